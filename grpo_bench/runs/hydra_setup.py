"""What Hydra needs to know before it composes a configuration."""

from __future__ import annotations

import atexit
import shutil
import tempfile

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from grpo_bench.config.resolve import config_folders
from grpo_bench.runs.launcher import ProcessLauncher


class OwnFolders(SearchPathPlugin):
    """Puts the user's folders of configuration before ours. Hydra itself puts ``--config-dir``
    after them, where our tuned settings would win."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra calls it before it composes."""
        for folder in config_folders()[-2::-1]:
            search_path.prepend("user", f"file://{folder}", SearchPathQuery(provider="main"))


def scratch() -> str:
    """A folder that is deleted at the end, for Hydra's multirun.yaml. The records have its content,
    and two sweeps would overwrite each other's."""
    folder = tempfile.mkdtemp(prefix="grpo_bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def register() -> None:
    """Register the plugins and the resolver ``scratch``.

    Hydra makes launchers of two packages only, its own and ``hydra_plugins``. A package of that
    name in our wheel would hold one line, and an editable installation would not put it on the
    path.
    """
    plugins = Plugins.instance()
    plugins.register(ProcessLauncher)
    plugins.register(OwnFolders)
    plugins.is_in_toplevel_plugins_module = lambda clazz: True  # type: ignore[method-assign]
    OmegaConf.register_new_resolver("scratch", scratch, use_cache=True, replace=True)
