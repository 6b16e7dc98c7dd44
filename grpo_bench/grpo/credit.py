"""Credit over time: which of an episode's rewards an action is credited with.

``outcome`` gives all actions of a rollout the advantage of its return (``group_advantages``). The
two supervisions here give each action its own, from (n_problems, group_size, length) step rewards,
by the same baselines:

``return_to_go``: baseline after discounting: the return from this step on, compared with those of
the members of the group that are still playing at this step.
``process``: baseline before: the step's reward, compared with all step rewards of the group, then
summed over this and the following steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_bench.grpo.advantages import (
    Baseline,
    BaselineFunction,
    baseline_of,
    baselines_that,
    check_finite,
    group_advantages,
)
from grpo_bench.grpo.choices import label


def to_go(rewards: Tensor, gamma: float = 1.0) -> Tensor:
    """G_t = sum_{j >= t} gamma^(j - t) r_j, along the last dimension. The first is the discounted
    return of the episode."""
    if gamma == 1:
        return rewards.flip(-1).cumsum(-1).flip(-1)
    returns = rewards.clone()
    for t in range(rewards.shape[-1] - 2, -1, -1):
        returns[..., t] += gamma * returns[..., t + 1]
    return returns


def return_to_go_advantages(
    rewards: Tensor,
    mask: Tensor,
    baseline: str | BaselineFunction = "group",
    ddof: int = 0,
    eps: float = 1e-4,
    gamma: float = 1.0,
) -> Tensor:
    """Advantage of each action, (n_problems, group_size, length): its return to go, against a
    baseline for each step.

    A_it = baseline(G_1t..G_kt)_i of the k members that take an action at step t, with the return to
    go G_it = sum_{j >= t} gamma^(j - t) r_ij. So ``group_mean`` subtracts b_t = mean_i G_it, and
    ``group`` also divides by the deviation of the G_it. The members are in different states at step
    t; the step alone stands for the state. That is the group estimator that GPG (arXiv 2510.03679)
    puts in place of PPO's critic, with one bin for each time step.

    Where only one member still plays (k = 1), its action has nothing to be compared with, and every
    baseline of groups gives it 0, as it does to a group with one valid rollout. The return itself
    would be unbiased, but would reward whatever the last member does. The price: with ``rloo``, the
    gradient of step t counts with the probability that another member plays, which is
    1 - (1 - q_t)^(G - 1) if an episode has a step t with probability q_t. It goes to 1 with growing
    groups. ``none`` is unbiased.

    Args:
        rewards: (n_problems, group_size, length), finite wherever ``mask``.
        mask: (n_problems, group_size, length) bool, the real steps.
        baseline, ddof, eps: as for ``group_advantages``.
        gamma: the discount.

    Raises:
        ValueError: as ``group_advantages``.
    """
    across_groups = _checked(rewards, mask, baseline).across_groups
    returns = to_go(rewards.double().masked_fill(~mask, 0.0), gamma)

    def at_once(values: Tensor, valid: Tensor) -> Tensor:
        return group_advantages(values, baseline, ddof, eps, valid)

    if across_groups:  # a batch for each step
        steps = [at_once(returns[..., t], mask[..., t]) for t in range(mask.shape[2])]
        advantages = torch.stack(steps, dim=2)
    else:  # each step of a group is a group of its own: (n_problems * length, group_size)
        folded = at_once(returns.mT.flatten(0, 1), mask.mT.flatten(0, 1))
        advantages = folded.view(returns.mT.shape).mT
    return advantages.to(rewards.dtype)


def process_advantages(
    rewards: Tensor,
    mask: Tensor,
    baseline: str | BaselineFunction = "group",
    ddof: int = 0,
    eps: float = 1e-4,
    gamma: float = 1.0,
) -> Tensor:
    """Advantage of each action, (n_problems, group_size, length): the sum of the normalised rewards
    of this step and of those that follow it.

    A_it = sum_{j >= t} gamma^(j - t) r~_ij, where the baseline makes r~ of the step rewards of the
    whole group as it makes A of the returns: ``group`` subtracts the mean of all step rewards of
    the group and divides by their standard deviation. DeepSeekMath (arXiv 2402.03300), section
    4.1.3, which has no discount.

    Args:
        rewards, mask, gamma: as for ``return_to_go_advantages``.
        baseline, ddof, eps: as for ``group_advantages``, with a baseline that works ``by_step``.

    Raises:
        ValueError: as ``group_advantages``, or a baseline that compares whole rollouts.
    """
    if not _checked(rewards, mask, baseline).by_step:
        raise ValueError(
            f"baseline={label(baseline)} compares whole rollouts, process supervision compares "
            f"steps: expected one of {', '.join(baselines_that('by_step'))}"
        )
    normalised = group_advantages(rewards.flatten(1), baseline, ddof, eps, mask.flatten(1))
    return to_go(normalised.view_as(rewards), gamma).masked_fill(~mask, 0.0)


BY_STEP: dict[str, Callable[..., Tensor]] = {
    "process": process_advantages,
    "return_to_go": return_to_go_advantages,
}


def _checked(rewards: Tensor, mask: Tensor, baseline: str | BaselineFunction) -> Baseline:
    """The baseline, if the arguments are valid."""
    if rewards.dim() != 3 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)}: expected (n_problems, group_size, length) "
            "with group_size of at least 2"
        )
    chosen = baseline_of(baseline)
    check_finite(rewards.masked_fill(~mask, 0.0))
    return chosen
