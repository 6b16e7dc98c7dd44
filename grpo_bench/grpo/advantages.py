"""Advantages from the rewards of groups: pure functions of a (n_problems, group_size) tensor.

Row p holds the rewards r_1..r_G of G rollouts of problem p. To add a baseline, write a function
of (rewards, valid, ddof, eps) with its formula and paper, and add it to ``BASELINES``.

Outcome supervision gives each rollout one advantage (``group_advantages``). Process supervision
gives each step of a rollout its own (``process_advantages``), by the same baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_bench.grpo.choices import choice


def group_advantages(
    rewards: Tensor,
    baseline: str = "group",
    ddof: int = 0,
    eps: float = 1e-4,
    valid: Tensor | None = None,
) -> Tensor:
    """Advantage of each rollout, (n_problems, group_size).

    Args:
        rewards: (n_problems, group_size), finite where ``valid``.
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
    function = choice("baseline", baseline, BASELINES).function
    # in float64: in float32 the squares of large deviations overflow, those of tiny ones vanish
    advantages = function(rewards.double(), valid, ddof, eps)
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
        mask: (n_problems, group_size, length) bool, the real steps.
        baseline, ddof, eps: as for ``group_advantages``, with a baseline that works ``by_step``.

    Raises:
        ValueError: as ``group_advantages``, or a baseline that compares whole rollouts.
    """
    if rewards.dim() != 3 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)}: expected (n_problems, group_size, length) "
            "with group_size of at least 2"
        )
    if not choice("baseline", baseline, BASELINES).by_step:
        raise ValueError(
            f"baseline={baseline!r} compares whole rollouts, process supervision compares steps: "
            f"expected one of {', '.join(baselines_that('by_step'))}"
        )
    _check_finite(rewards.masked_fill(~mask, 0.0))
    normalised = group_advantages(rewards.flatten(1), baseline, ddof, eps, mask.flatten(1))
    return _to_go(normalised.view_as(rewards)).masked_fill(~mask, 0.0)


def return_penalty(penalties: Tensor, valid: Tensor | None = None) -> Tensor:
    """What to add to the advantages when ``penalties`` are subtracted from the returns,
    (n_problems, group_size).

    - leave_one_out(penalties), whatever the baseline of the rewards: an unbiased gradient of the
    expected penalty. It is not divided by a deviation. So a coefficient means the same with every
    baseline, and in a group whose rewards are all equal the penalty, mostly noise, does not grow to
    the size of an outcome. With the baseline ``rloo`` (and on average ``none``) this is the
    advantage of the penalised return itself.

    Args:
        penalties: (n_problems, group_size), finite wherever ``valid``.
        valid: as for ``group_advantages``.
    """
    return -group_advantages(penalties, "rloo", valid=valid)


def without_spread(rewards: Tensor, valid: Tensor | None = None) -> Tensor:
    """Groups whose rewards are all equal, (n_problems,) bool: most baselines give them 0."""
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


class Baseline(NamedTuple):
    """A baseline, and what it allows. A flag that is missing refuses an option, at worst."""

    function: Callable[[Tensor, Tensor, int, float], Tensor]  # (rewards, valid, ddof, eps)
    divides: bool = False  # by a standard deviation, so ddof and eps count
    by_step: bool = False  # step rewards can take the place of returns
    needs_spread: bool = False  # a group whose rewards are all equal gets 0
    across_groups: bool = False  # the rewards of other groups count


BASELINES: dict[str, Baseline] = {
    "group": Baseline(group_mean_std, divides=True, by_step=True, needs_spread=True),
    "group_mean": Baseline(group_mean, by_step=True, needs_spread=True),
    "rloo": Baseline(leave_one_out, needs_spread=True),
    "batch": Baseline(batch_mean_std, divides=True, by_step=True, across_groups=True),
    "batch_std": Baseline(
        group_mean_batch_std, divides=True, by_step=True, needs_spread=True, across_groups=True
    ),
    "rank": Baseline(centred_ranks, needs_spread=True),
    "none": Baseline(no_baseline, by_step=True),
}


def baselines_that(flag: str) -> list[str]:
    """The names of the baselines that have a flag."""
    return [name for name, baseline in BASELINES.items() if getattr(baseline, flag)]


def group_std(rewards: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
    """Standard deviation over the valid rollouts of each group, (n_problems, 1)."""
    squares = torch.where(valid, rewards - _mean(rewards, valid), 0.0).square()
    return (squares.sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - ddof).clamp(min=1)).sqrt()


def _check_finite(rewards: Tensor) -> None:
    """ValueError that names the first reward, of (n_problems, G[, T]), that is not finite."""
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
    """The number of valid members j with ``holds[:, i, j]``, for each member i: (n_problems, G)."""
    return (holds & valid[:, None, :]).sum(dim=2)


def _to_go(values: Tensor) -> Tensor:
    """The sum of each value and all later ones, along the last dimension."""
    return values.flip(-1).cumsum(-1).flip(-1)


def _divide(centred: Tensor, scale: Tensor) -> Tensor:
    """centred / scale, and 0 where ``centred`` is 0, even if ``scale`` is 0 (eps may be)."""
    return torch.where(centred == 0, centred, centred / scale)
