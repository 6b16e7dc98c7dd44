"""Advantages from the rewards of groups: pure functions of a (n_problems, group_size) tensor.

Row p holds the rewards r_1..r_G of G rollouts of problem p. To add a baseline, write a function
of (rewards, valid, ddof, eps) with its formula and paper, and name it in ``BASELINES``.

Outcome supervision gives a rollout one advantage (``group_advantages``), process supervision one
for each of its steps (``process_advantages``), by the same baselines.
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
    _check_finite(rewards)
    # in float64, where the squares of large and of tiny deviations still exist
    advantages = find_baseline(baseline)(rewards.double(), valid, ddof, eps)
    return torch.where(valid, advantages, 0.0).to(rewards.dtype)


def process_advantages(
    rewards: Tensor, mask: Tensor, baseline: str = "group", ddof: int = 0, eps: float = 1e-4
) -> Tensor:
    """Advantage of each step, (n_problems, group_size, length): the sum of the normalised rewards
    of this step and of those that follow it.

    A_it = sum_{j >= t} r~_ij, where the baseline makes r~ of the step rewards of the whole group as
    it makes A of the returns: ``group`` subtracts the mean of all step rewards of the group and
    divides by their standard deviation. DeepSeekMath (arXiv 2402.03300), section 4.1.3.

    Args:
        rewards: (n_problems, group_size, length), finite wherever ``mask``.
        mask: (n_problems, group_size, length) bool, the steps that there are.
        baseline, ddof, eps: as for ``group_advantages``, but a baseline of ``STEP_BASELINES``.

    Raises:
        ValueError: as ``group_advantages``, or a baseline that compares whole rollouts.
    """
    if rewards.dim() != 3 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)}: expected (n_problems, group_size, length) "
            "with group_size of at least 2"
        )
    find_baseline(baseline)
    if baseline not in STEP_BASELINES:
        raise ValueError(
            f"baseline={baseline!r} compares whole rollouts, process supervision compares steps: "
            f"expected one of {', '.join(STEP_BASELINES)}"
        )
    _check_finite(rewards.masked_fill(~mask, 0.0))
    normalised = group_advantages(rewards.flatten(1), baseline, ddof, eps, mask.flatten(1))
    return _to_go(normalised.view_as(rewards)).masked_fill(~mask, 0.0)


def return_penalty(penalties: Tensor, valid: Tensor | None = None) -> Tensor:
    """What taking ``penalties`` off the returns adds to the advantages, (n_problems, group_size).

    - leave_one_out(penalties), whatever the baseline of the rewards: an unbiased gradient of the
    expected penalty. It is not divided by a deviation, so that a coefficient means the same with
    every baseline, and so that the penalty of a group whose rewards are all equal, mostly noise,
    is not blown up to the size of an outcome. With the baselines ``rloo`` (and on average ``none``)
    this is the advantage of the penalised return itself.

    Args:
        penalties: (n_problems, group_size), finite wherever ``valid``.
        valid: as for ``group_advantages``.
    """
    return -group_advantages(penalties, "rloo", valid=valid)


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
    """A_i = (r_i - mean(r)) / (std(all r) + eps). Lite PPO (arXiv 2508.08221)."""
    centred = group_mean(rewards, valid, ddof, eps)
    return _divide(centred, group_std(rewards.reshape(1, -1), valid.reshape(1, -1), ddof) + eps)


def centred_ranks(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = (2 rank_i - (G + 1)) / (G - 1): from -1 for the lowest reward of the group to 1 for the
    highest, where equal rewards share the mean of their ranks.

    Only the order of the rewards counts. Of rewards with two values it is 1 / (high - low) times
    ``leave_one_out``. Rank shaping as in evolution strategies (arXiv 1703.03864, section 2.1).
    """
    lower = _count(rewards[:, :, None] > rewards[:, None, :], valid)  # of the others, by member
    higher = _count(rewards[:, :, None] < rewards[:, None, :], valid)
    others = valid.sum(dim=1, keepdim=True) - 1
    return (lower - higher).to(rewards.dtype) / others.clamp(min=1)


def no_baseline(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """A_i = r_i, also in a group without spread. REINFORCE (Williams 1992, Machine Learning 8)."""
    return rewards


BASELINES: dict[str, Baseline] = {
    "group": group_mean_std,
    "group_mean": group_mean,
    "rloo": leave_one_out,
    "batch": batch_mean_std,
    "batch_std": group_mean_batch_std,
    "rank": centred_ranks,
    "none": no_baseline,
}
# What can be done with steps as with rollouts; those that divide by a deviation, where ddof counts;
# and those to which a group whose rewards are all equal teaches nothing.
STEP_BASELINES = ("group", "group_mean", "batch", "batch_std", "none")
DIVIDING = ("group", "batch", "batch_std")
WITHIN_GROUP = ("group", "group_mean", "rloo", "batch_std", "rank")


def group_std(rewards: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
    """Standard deviation over the valid rollouts of each group, (n_problems, 1)."""
    squares = torch.where(valid, rewards - _mean(rewards, valid), 0.0).square()
    return (squares.sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - ddof).clamp(min=1)).sqrt()


def _check_finite(rewards: Tensor) -> None:
    """ValueError that names the first reward that is not, (n_problems, G) or (n_problems, G, T)."""
    finite = torch.isfinite(rewards)
    if not finite.all():
        first = (~finite).nonzero()[0].tolist()
        names = ("group", "member", "step")
        place = ", ".join(f"{name} {i}" for name, i in zip(names, first, strict=False))
        raise ValueError(f"reward {rewards[tuple(first)].item()} ({place}) is not finite")


def _mean(rewards: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid rollouts of each group, (n_problems, 1); 0 where there are none."""
    total = torch.where(valid, rewards, 0.0).sum(1, keepdim=True)
    return total / valid.sum(1, keepdim=True).clamp(min=1)


def _count(holds: Tensor, valid: Tensor) -> Tensor:
    """For each member i, of how many valid members j ``holds[:, i, j]``, (n_problems, G)."""
    return (holds & valid[:, None, :]).sum(dim=2)


def _to_go(values: Tensor) -> Tensor:
    """Sum of each value and of those after it, along the last dimension."""
    return values.flip(-1).cumsum(-1).flip(-1)


def _divide(centred: Tensor, scale: Tensor) -> Tensor:
    """centred / scale, and 0 where ``centred`` is, even if ``scale`` is 0 (eps may be)."""
    return torch.where(centred == 0, centred, centred / scale)
