"""Register the ids of ``grpo_envs`` at the end of ``import gymnasium``.

Since version 1.0 gymnasium reads no entry points: it knows an id only when a program has imported
the package that registers it. So the wheel puts two files into ``site-packages``: this module, and
``grpo_envs_ids.pth``, which imports it when Python starts. A process without gymnasium gets one
more finder. Where another tool replaces the loader of gymnasium, or Python starts without ``site``,
this still works: ``gym.make("grpo_envs:GRPO-VLM-v0")``.
"""

import sys

TYPE_CHECKING = False  # to import it from typing would slow every start of Python
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class GymnasiumFinder:
    """Finds gymnasium as the other finders do, and adds a step to its loader."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of gymnasium, with a loader that registers the ids; None for other modules."""
        if name != "gymnasium":
            return None
        for finder in sys.meta_path:
            if finder is not GymnasiumFinder and hasattr(finder, "find_spec"):
                spec: ModuleSpec | None = finder.find_spec(name, path, target)
                if spec is not None:
                    register_after(spec)
                    return spec
        return None


def register_after(spec: "ModuleSpec") -> None:
    """Make the loader import ``grpo_envs`` once it has executed the module."""
    loader = spec.loader
    if loader is None or not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
        return  # an old loader, or one written in C
    execute = loader.exec_module

    def execute_and_register(module: "ModuleType") -> None:
        execute(module)
        try:
            import grpo_envs  # noqa: F401
        except Exception:  # gymnasium has to work where grpo_envs does not
            return

    loader.exec_module = execute_and_register  # type: ignore[method-assign]


sys.meta_path.insert(0, GymnasiumFinder)
