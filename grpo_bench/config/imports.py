"""Classes and functions that a user names in the configuration: ``package.module:Name``."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMED = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w./-]*")  # package.module:Name
INSTALLED = {"site-packages", "dist-packages", "grpo_bench", "grpo_envs"}
INSTALL = "pip install -c constraints.txt '.[control]'"


def explained(error: BaseException) -> str:
    """The first line of an error's message, and what to install where a package is missing."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if any(name in line for name in ("minigrid", "highway_env", "Box2D", "pygame")):
        line = f"{line.rstrip('.')}; in a checkout of grpo-bench: {INSTALL}"
    return line


def imported(key: str, name: str) -> Any:
    """The object ``package.module:Name``.

    Raises:
        ValueError: there is none.
    """
    module, _, attribute = name.rpartition(":")
    if not module:
        raise ValueError(f"{key}={name}: expected package.module:Name")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{key}={name}: {explained(error)}") from None
    if not hasattr(found, attribute):
        raise ValueError(f"{key}={name}: {module} has no {attribute}")
    return getattr(found, attribute)


def digests(plain: Any) -> dict[str, str]:
    """For each module of the user's own that a configuration names, eight hex digits of its source.
    With a changed one a run is another run. Installed packages are told by their versions.

    Args:
        plain: the configuration, or a part of it.
    """
    if isinstance(plain, Mapping):
        plain = [*plain, *plain.values()]
    if isinstance(plain, list):
        return {name: digest for part in plain for name, digest in digests(part).items()}
    if not isinstance(plain, str) or not (named := NAMED.fullmatch(plain)):
        return {}
    try:
        spec = importlib.util.find_spec(named[1])
    except (ImportError, ValueError):  # that is told where the run is checked
        return {}
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return {}
    if INSTALLED & {*Path(spec.origin).parts}:
        return {}
    return {named[1]: hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:8]}
