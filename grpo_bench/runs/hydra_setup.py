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

    Hydra looks for plugins in the folders on the path, and an editable installation puts none
    there.
    """
    Plugins.instance().register(ProcessLauncher)
    OmegaConf.register_new_resolver("scratch", scratch, use_cache=True, replace=True)
