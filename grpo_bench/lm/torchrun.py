"""What ``torchrun`` passes to a process in the environment, read without torch."""

from __future__ import annotations

import os

from grpo_bench.config import LanguageConfig, RunConfig


def rank() -> int:
    """The number of this process among those that were started together; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


def n_processes() -> int:
    """How many were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_processes(config: RunConfig) -> None:
    """Raises ValueError for several processes, unless they train a language model."""
    if n_processes() > 1 and not isinstance(config, LanguageConfig):
        raise ValueError("torchrun is for language models: expected one, or plain python")
