"""grpo-bench: what GRPO trades against PPO in memory, speed and accuracy, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpo_envs  # noqa: F401  registers the environments

if TYPE_CHECKING:
    from grpo_bench.grpo.algorithm import GRPO
    from grpo_bench.records.load import load_results

__all__ = ["GRPO", "load_results"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import torch and SB3 when they are asked for, so that ``--help`` does not wait for them."""
    if name == "GRPO":
        from grpo_bench.grpo.algorithm import GRPO

        return GRPO
    if name == "load_results":
        from grpo_bench.records.load import load_results

        return load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
