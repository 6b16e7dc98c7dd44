"""How informative groups are: their spread, and the expected and best group sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_bench.grpo.advantages import group_std, without_spread

SIZES = np.arange(2, 1025)  # candidates for the best group size


class GroupedRollout(Protocol):
    """A rollout, of the Gym track or of a language model."""

    @property
    def returns(self) -> Tensor:
        """(n_groups, G)"""

    @property
    def mask(self) -> Tensor:
        """(n_rollouts, T) bool, the real transitions."""

    @property
    def success(self) -> NDArray[np.float64]:
        """(n_rollouts,) 1.0 for success; NaN where unknown."""


def expected_flat_share(success_rate: float, group_size: Any) -> Any:
    """p^G + (1 - p)^G: the share of groups in which all G rollouts succeed, or all fail, if every
    problem has success rate p. Problems of different difficulty make it larger."""
    return success_rate**group_size + (1 - success_rate) ** group_size


def yield_per_rollout(success_rate: float, group_size: Any) -> Any:
    """(1 - p^G - (1 - p)^G) (G - 1) / G / G: the information of a group, per rollout.

    A group without spread counts 0, one with spread (G - 1) / G, because a leave-one-out baseline
    from G rollouts gives G / (G - 1) = 1 + 1 / (G - 1) times the variance of a known baseline. A
    rule of thumb: it assumes one success rate for all problems, and problems that cost nothing.
    """
    with_spread = 1 - expected_flat_share(success_rate, group_size)
    return with_spread * (group_size - 1) / group_size**2


def best_group_size(success_rate: float) -> int | None:
    """The group size of ``SIZES`` with the largest ``yield_per_rollout``: 3 where half of the
    rollouts succeed, about sqrt(2 / p) where few do. None if all or none succeed."""
    if not 0 < success_rate < 1:
        return None
    return int(SIZES[np.argmax(yield_per_rollout(success_rate, SIZES))])


def spread_metrics(played: Sequence[GroupedRollout]) -> dict[str, float]:
    """Metrics of an iteration's groups, including those that dynamic sampling replaced.

    ``zero_std_frac``: share of the groups whose returns are all equal; ``group_std``: mean
    deviation of the returns within a group; ``informative_cost``: transitions per group with
    spread, if any; and if success is known, ``zero_std_expected`` and ``best_group_size`` at the
    present success rate.
    """
    returns = torch.cat([part.returns for part in played])  # (n_groups, G)
    valid = torch.isfinite(returns)
    flat = int(without_spread(returns, valid).sum())
    n_groups, group_size = returns.shape
    metrics = {
        "zero_std_frac": flat / n_groups,
        "group_std": group_std(returns, valid).mean().item(),
    }
    if flat < n_groups:
        transitions = sum(int(part.mask.sum()) for part in played)
        metrics["informative_cost"] = transitions / (n_groups - flat)
    success_rate = float(np.concatenate([part.success for part in played]).mean())
    if not math.isnan(success_rate):
        metrics["zero_std_expected"] = expected_flat_share(success_rate, group_size)
        if best := best_group_size(success_rate):
            metrics["best_group_size"] = best
    return metrics
