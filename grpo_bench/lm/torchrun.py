"""What ``torchrun`` says of a process in the environment, before torch is imported."""

from __future__ import annotations

import os
from typing import Any


def rank() -> int:
    """The number of this process among those that were started together; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


def n_processes() -> int:
    """How many were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_processes(config: dict[str, Any]) -> None:
    """Raises ValueError where several would train what is for one: all but language models."""
    if n_processes() > 1 and "model" not in config:
        raise ValueError("torchrun is for language models: expected one, or plain python")
