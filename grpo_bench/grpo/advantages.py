"""Advantages from the rewards of groups: pure functions of a (n_problems, group_size) tensor.

Row p holds the rewards r_1..r_G of G rollouts of problem p. A baseline is a function of (rewards,
valid, ddof, eps). Pass your own as ``GRPO(..., baseline=function)``, or give it a name:
``BASELINES["mine"] = function``, also at run time.

These are advantages of whole rollouts. ``grpo.credit`` makes those of single actions from the same
baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grpo_bench.grpo.choices import choice, label


def group_advantages(
    rewards: Tensor,
    baseline: str | BaselineFunction = "group",
    ddof: int = 0,
    eps: float = 1e-4,
    valid: Tensor | None = None,
) -> Tensor:
    """Advantage of each rollout, (n_problems, group_size).

    Args:
        rewards: (n_problems, group_size), finite where ``valid``.
        baseline: a name in ``BASELINES``, a ``Baseline``, or its function.
        ddof: 0 divides the variance by G (population), 1 by G - 1 (Bessel; TRL and verl).
        eps: added to the standard deviation; ignored by the baselines that do not divide.
        valid: (n_problems, group_size) bool; rollouts that are not valid count in no mean and get
            advantage 0. None: all are.

    Raises:
        ValueError: unknown baseline, a group of one, a reward that is not finite, or advantages of
            another shape.
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
    check_finite(rewards)
    function = choice("baseline", baseline, BASELINES)
    # in float64: in float32 the squares of large deviations overflow, those of tiny ones vanish
    advantages = function(rewards.double(), valid, ddof, eps)
    if advantages.shape != rewards.shape:
        raise ValueError(
            f"baseline={label(baseline)} made advantages of shape {tuple(advantages.shape)} from "
            f"rewards of shape {tuple(rewards.shape)}: expected the same shape"
        )
    return torch.where(valid, advantages, 0.0).to(rewards.dtype)


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


BaselineFunction = Callable[[Tensor, Tensor, int, float], Tensor]  # (rewards, valid, ddof, eps)


@dataclass(frozen=True)
class Baseline:
    """A baseline. What else it allows is found by trying it on two small groups.

    Attributes:
        function: of (rewards, valid, ddof, eps), all of (n_problems, group_size) in float64.
        by_step: step rewards can take the place of returns, as in process supervision.
    """

    function: BaselineFunction
    by_step: bool = False

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
        return self.function(rewards, valid, ddof, eps)

    @cached_property
    def divides(self) -> bool:
        """By a standard deviation, so ``ddof`` counts."""
        return not torch.equal(self._tried(TRIAL), self._tried(TRIAL, ddof=1))

    @cached_property
    def needs_spread(self) -> bool:
        """A group whose rewards are all equal gets 0, whatever the other groups have."""
        return bool((self._tried(TRIAL)[1] == 0).all())

    @cached_property
    def across_groups(self) -> bool:
        """The rewards of other groups count."""
        usual = self._tried(TRIAL)[0]
        others = ([9.0, 7.0, 1.0], [-80.0, -90.0, -99.0])  # the second moves even an order
        return any(not torch.equal(usual, self._tried([TRIAL[0], group])[0]) for group in others)

    def _tried(self, rewards: list[list[float]], ddof: int = 0) -> Tensor:
        groups = torch.tensor(rewards, dtype=torch.float64)
        return self.function(groups, torch.ones_like(groups, dtype=torch.bool), ddof, 1e-4)


TRIAL = [[0.0, 2.0, 5.0], [4.0, 4.0, 4.0]]  # a group with spread, and one without

BASELINES: dict[str, Baseline | BaselineFunction] = {
    "group": Baseline(group_mean_std, by_step=True),
    "group_mean": Baseline(group_mean, by_step=True),
    "rloo": Baseline(leave_one_out),
    "batch": Baseline(batch_mean_std, by_step=True),
    "batch_std": Baseline(group_mean_batch_std, by_step=True),
    "rank": Baseline(centred_ranks),
    "none": Baseline(no_baseline, by_step=True),
}


def baseline_of(value: str | BaselineFunction) -> Baseline:
    """A baseline by its name in ``BASELINES``, or from a ``Baseline`` or its function.

    Raises:
        ValueError: an unknown name.
    """
    chosen = choice("baseline", value, BASELINES)
    return chosen if isinstance(chosen, Baseline) else Baseline(chosen)


def baselines_that(flag: str) -> list[str]:
    """The names of the baselines that have a property."""
    return [name for name in BASELINES if getattr(baseline_of(name), flag)]


def group_std(rewards: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
    """Standard deviation over the valid rollouts of each group, (n_problems, 1)."""
    squares = torch.where(valid, rewards - _mean(rewards, valid), 0.0).square()
    return (squares.sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - ddof).clamp(min=1)).sqrt()


def check_finite(rewards: Tensor) -> None:
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


def _divide(centred: Tensor, scale: Tensor) -> Tensor:
    """centred / scale, and 0 where ``centred`` is 0, even if ``scale`` is 0 (eps may be)."""
    return torch.where(centred == 0, centred, centred / scale)
