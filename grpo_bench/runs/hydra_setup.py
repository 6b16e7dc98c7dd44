"""What Hydra needs to know before it composes conf/config.yaml."""

from __future__ import annotations

import atexit
import shutil
import tempfile

from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from grpo_bench.runs.launcher import ProcessLauncher


def scratch() -> str:
    """A folder that is deleted at the end, for Hydra's multirun.yaml: the records say it all, and
    two sweeps would write over each other's."""
    folder = tempfile.mkdtemp(prefix="grpo_bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def register() -> None:
    """Register the launcher and the resolver ``scratch``.

    Hydra makes plugins of two packages only, its own and ``hydra_plugins``. A package of that name
    in our wheel would hold one line, and an editable installation would not put it on the path.
    """
    plugins = Plugins.instance()
    plugins.register(ProcessLauncher)
    plugins.is_in_toplevel_plugins_module = lambda clazz: True  # type: ignore[method-assign]
    OmegaConf.register_new_resolver("scratch", scratch, use_cache=True, replace=True)
