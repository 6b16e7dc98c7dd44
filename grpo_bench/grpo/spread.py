"""How much of what is played can teach: groups with spread, expected and best group sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_bench.grpo.advantages import group_std, without_spread

SIZES = np.arange(2, 1025)  # group sizes that are looked at


class Played(Protocol):
    """What is looked at of a rollout: here those of the Gym track and of language models."""

    @property
    def returns(self) -> Tensor:
        """(n_groups, G)"""

    @property
    def mask(self) -> Tensor:
        """(n_rollouts, T) bool, the transitions that there are."""

    @property
    def success(self) -> NDArray[np.float64]:
        """(n_rollouts,) 1.0 where it is right; NaN where that is unknown."""


def expected_flat_share(success_rate: float, group_size: Any) -> Any:
    """p^G + (1 - p)^G: the share of groups in which all G rollouts succeed, or all fail, if every
    problem has success rate p. Problems of different difficulty make it larger."""
    return success_rate**group_size + (1 - success_rate) ** group_size


def yield_per_rollout(success_rate: float, group_size: Any) -> Any:
    """(1 - p^G - (1 - p)^G) (G - 1) / G / G: how much of a group with spread one rollout buys.

    A group without spread counts nothing, and one with spread (G - 1) / G: a baseline from G
    rollouts, leave-one-out, leaves G / (G - 1) times the variance of a known one (1 + 1 / (G - 1),
    its own variance added). A rule of thumb: it knows one success rate, and no price of a problem.
    """
    with_spread = 1 - expected_flat_share(success_rate, group_size)
    return with_spread * (group_size - 1) / group_size**2


def best_group_size(success_rate: float) -> int | None:
    """The group size of ``SIZES`` with the largest ``yield_per_rollout``: 3 where half of the
    rollouts succeed, about sqrt(2 / p) where few do. None where all do, or none."""
    if not 0 < success_rate < 1:
        return None
    return int(SIZES[np.argmax(yield_per_rollout(success_rate, SIZES))])


def spread_metrics(played: Sequence[Played]) -> dict[str, float]:
    """What to log of an iteration's groups, those that dynamic sampling replaced included.

    ``zero_std_frac``: share of the groups whose returns are all equal; ``group_std``: mean
    deviation of the returns within a group; ``informative_cost``: transitions for each group with
    spread, if there is one; and where the environment tells success, ``zero_std_expected`` and
    ``best_group_size`` at the present success rate.
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
