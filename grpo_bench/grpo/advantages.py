"""Advantages from the rewards of groups: pure functions of a (n_problems, group_size) tensor.

Row p holds the rewards r_1..r_G of G rollouts of problem p. To add a baseline, write a function
of (rewards, valid, ddof, eps) with its formula and paper, and name it in ``BASELINES``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Baseline = Callable[[Tensor, Tensor, int, float], Tensor]  # (rewards, valid, ddof, eps)


def group_advantages(
    rewards: Tensor,
    baseline: str = "group",
    ddof: int = 0,
    eps: float = 1e-4,
    valid: Tensor | None = None,
) -> Tensor:
    """Advantage of each rollout, (n_problems, group_size).

    Args:
        rewards: (n_problems, group_size), finite wherever ``valid``.
        baseline: a name in ``BASELINES``.
        ddof: 0 divides the variance by G (population), 1 by G - 1 (Bessel; TRL and verl).
        eps: added to the standard deviation; ignored by the baselines that do not divide.
        valid: (n_problems, group_size) bool; rollouts that are not valid count in no mean and get
            advantage 0. None: all are.

    Raises:
        ValueError: unknown baseline, a group of one, or a reward that is not finite.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)}: expected (n_problems, group_size) "
            "with group_size of at least 2"
        )
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof}: expected 0 (population) or 1 (Bessel)")
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    rewards = torch.where(valid, rewards, torch.zeros_like(rewards))
    finite = torch.isfinite(rewards)
    if not finite.all():
        group, member = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"reward {rewards[group, member].item()} of member {member} of group {group} "
            "is not finite"
        )
    advantages = find_baseline(baseline)(rewards, valid, ddof, eps)
    return torch.where(valid, advantages, torch.zeros_like(advantages))


def find_baseline(name: str) -> Baseline:
    """The function of that name; ValueError with the names there are."""
    if name not in BASELINES:
        raise ValueError(f"baseline={name!r}: expected one of {', '.join(BASELINES)}")
    return BASELINES[name]


def without_spread(rewards: Tensor, valid: Tensor | None = None) -> Tensor:
    """Groups whose rewards are all equal, (n_problems,) bool: they teach nothing."""
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    highest = rewards.masked_fill(~valid, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~valid, torch.inf).amin(dim=1)
    return highest <= lowest


def group_mean_std(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + eps), exactly 0 in a group without spread.

    DeepSeekMath (arXiv 2402.03300), section 4.1.2.
    """
    centred = group_mean(rewards, valid, ddof, eps)
    return _divide(centred, group_std(rewards, valid, ddof) + eps)


def group_mean(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = r_i - mean(r), exactly 0 in a group without spread. Dr. GRPO (arXiv 2503.20783)."""
    centred = rewards - _mean(rewards, valid)
    return centred.masked_fill(without_spread(rewards, valid)[:, None], 0.0)


def leave_one_out(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = r_i - mean of the others = G / (G - 1) * (r_i - mean(r)). RLOO (arXiv 2402.14740)."""
    members = valid.sum(dim=1, keepdim=True)
    return group_mean(rewards, valid, ddof, eps) * members / (members - 1).clamp(min=1)


def batch_mean_std(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = (r_i - mean(all r)) / (std(all r) + eps), exactly 0 in a batch without spread: the
    batch is one group. REINFORCE++ (arXiv 2501.03262)."""
    advantages = group_mean_std(rewards.reshape(1, -1), valid.reshape(1, -1), ddof, eps)
    return advantages.view_as(rewards)


def group_mean_batch_std(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = (r_i - mean(r)) / (std(all r) + eps). REINFORCE++-baseline (arXiv 2501.03262)."""
    centred = group_mean(rewards, valid, ddof, eps)
    return _divide(centred, group_std(rewards.reshape(1, -1), valid.reshape(1, -1), ddof) + eps)


BASELINES: dict[str, Baseline] = {
    "group": group_mean_std,
    "group_mean": group_mean,
    "rloo": leave_one_out,
    "batch": batch_mean_std,
    "batch_std": group_mean_batch_std,
}


def group_std(rewards: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
    """Standard deviation over the valid rollouts of each group, (n_problems, 1)."""
    squares = torch.where(valid, rewards - _mean(rewards, valid), 0.0).square()
    return (squares.sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - ddof).clamp(min=1)).sqrt()


def _mean(rewards: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid rollouts of each group, (n_problems, 1); 0 where there are none."""
    total = torch.where(valid, rewards, 0.0).sum(1, keepdim=True)
    return total / valid.sum(1, keepdim=True).clamp(min=1)


def _divide(centred: Tensor, scale: Tensor) -> Tensor:
    """centred / scale, and 0 where ``centred`` is, even if ``scale`` is 0 (eps may be)."""
    return torch.where(centred == 0, centred, centred / scale)
