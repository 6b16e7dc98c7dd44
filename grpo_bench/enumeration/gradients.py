"""The expected gradient of a loss: its gradient on every batch, by the functions that train.

This module holds no formula of the algorithm. Advantages, loss, weights and KL terms come from
``grpo_bench.grpo``; they are called on all batches at once and summed up here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor

from grpo_bench.enumeration.tasks import Task, log_probs
from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import (
    BASELINES,
    baselines_that,
    group_advantages,
    return_penalty,
)
from grpo_bench.grpo.choices import choice
from grpo_bench.grpo.credit import BY_STEP
from grpo_bench.grpo.objectives import Clip, aggregation_weights, policy_loss

WHOLE_BATCH = baselines_that("across_groups")  # use statistics of the whole batch
BOUNDED = Clip()
UNBOUNDED = Clip(low=1.0, high=math.inf)


@dataclass(frozen=True)
class Estimator:
    """One way to make a gradient from a batch; the options are those of the algorithm."""

    baseline: str = "group"
    ddof: int = 0
    eps: float = 1e-4
    supervision: str = "outcome"
    gamma: float = 1.0
    aggregation: str = "sequence_mean"
    max_len: int | None = None  # for constant_length; None: the task's
    ratio: str = "token"
    surrogate: str = "clip"
    clip: Clip = BOUNDED
    kl: str | None = None  # a name in ``kl.FORMS``
    kl_coef: float = 0.0


# Sum over the tokens of a rollout, then mean over the rollouts: the scale of the true gradient.
SUMMED = Estimator(aggregation="constant_length", max_len=1)


class Policies(NamedTuple):
    """Logits (S, A) of the current policy, the sampling policy and the reference."""

    new: Tensor
    old: Tensor
    reference: Tensor


@contextmanager
def double_precision() -> Iterator[None]:
    """float64 as torch's default, which ``aggregation_weights`` follows."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def batch_gradients(
    task: Task, estimator: Estimator, policies: Policies, members: Tensor
) -> Tensor:
    """Direction of a step on each batch, minus the gradient of its loss, (B, S * A).

    Args:
        members: (B, P, G) rollouts of the task, by number.

    Raises:
        ValueError: a baseline over the batch with one problem a batch, or whose actions have
            advantages of their own.
    """
    with double_precision():
        n_batches, rollouts = len(members), members[0].numel()
        rows = members.flatten()  # (B * P * G,)
        logp = log_probs(task, policies.new)[rows].requires_grad_()
        divergence = _state_kl(task, policies.new, policies.reference)[rows].requires_grad_()
        mask = task.mask[rows]
        # (B, P * G, T): each batch is a step of its own
        weights = aggregation_weights(
            mask.view(n_batches, rollouts, -1),
            estimator.aggregation,
            estimator.max_len or task.max_len,
        ).flatten(0, 1)
        old_logp = log_probs(task, policies.old)[rows]
        loss = policy_loss(
            logp,
            old_logp,
            _advantages(task, estimator, policies, members).flatten(0, 2),
            mask,
            weights=weights,
            ratio=estimator.ratio,
            surrogate=estimator.surrogate,
            clip=estimator.clip,
        ).loss
        if estimator.kl is not None and kl.FORMS[estimator.kl].place == "loss":
            ref_logp = log_probs(task, policies.reference)[rows]
            terms = _kl_terms(estimator.kl, divergence, logp, ref_logp, old_logp, mask)
            loss = loss + estimator.kl_coef * (weights * terms).sum()
        by_logp, by_divergence = torch.autograd.grad(
            -loss, (logp, divergence), allow_unused=True, materialize_grads=True
        )
    gradient = _chain(by_logp, members, _jacobian(task, policies.new, log_probs))
    if estimator.kl == "exact":
        state_kl = partial(_state_kl, reference=policies.reference)
        gradient += _chain(by_divergence, members, _jacobian(task, policies.new, state_kl))
    return gradient


def kl_estimate(task: Task, form: str, policies: Policies) -> float:
    """A form's estimate of KL(pi || ref): its terms summed over the steps of a rollout, on average
    over rollouts of ``policies.old``."""
    new, reference, old = (
        log_probs(task, logits) for logits in (policies.new, policies.reference, policies.old)
    )
    divergence = _state_kl(task, policies.new, policies.reference)
    terms = _kl_terms(form, divergence, new, reference, old, task.mask).sum(dim=1)  # (M,)
    return ((old.sum(dim=1).exp() * terms).sum() / task.n_problems).item()


def _kl_terms(form: str, divergence: Tensor, *logps_and_mask: Tensor) -> Tensor:
    """The KL term of each step, (n, T), 0 outside the mask: the exact ``divergence`` of its state,
    or ``kl.sample_term`` of its action."""
    if form == "exact":
        return torch.where(logps_and_mask[-1], divergence, 0.0)
    return kl.sample_term(form, *logps_and_mask)


def _state_kl(task: Task, logits: Tensor, reference: Tensor) -> Tensor:
    """(M, T) exact KL in the state of each step of each rollout."""
    pair = [
        CategoricalDistribution(task.shape[1]).proba_distribution(table)
        for table in (logits, reference)
    ]
    return kl.exact(*pair)[task.states]


def _advantages(task: Task, estimator: Estimator, policies: Policies, members: Tensor) -> Tensor:
    """(B, P, G, 1), or (B, P, G, T) where each action has its own."""
    e = estimator
    if e.supervision != "outcome":
        if e.baseline in WHOLE_BATCH:
            raise ValueError(
                f"baseline={e.baseline!r} with supervision={e.supervision!r} is not enumerated"
            )
        rewards, mask = task.rewards[members].flatten(0, 1), task.mask[members].flatten(0, 1)
        of_steps = BY_STEP[e.supervision]  # (B * P, G, T)
        advantages = of_steps(rewards, mask, e.baseline, e.ddof, e.eps, e.gamma)
    elif e.baseline in WHOLE_BATCH:
        advantages = _by_batch(task.returns[members], e)
    else:
        returns = task.returns[members].flatten(0, 1)  # (B * P, G)
        advantages = group_advantages(returns, e.baseline, e.ddof, e.eps)
    advantages = advantages.view(*members.shape, -1)
    if e.kl is not None and kl.FORMS[e.kl].place == "return":
        old, ref = log_probs(task, policies.old), log_probs(task, policies.reference)
        whole = kl.sample_term(e.kl, old, ref, old, task.mask).sum(dim=1)  # (M,) as when sampled
        penalty = return_penalty(whole[members].flatten(0, 1)).view(*members.shape, 1)
        advantages = advantages + e.kl_coef * penalty
    return advantages


def _by_batch(returns: Tensor, e: Estimator) -> Tensor:
    """A baseline over the whole batch (P, G), applied to (B, P, G). ``group_advantages`` takes one
    batch at a time, and its checks of the values do not work under ``vmap``."""
    if returns.shape[1] < 2:
        raise ValueError(f"baseline={e.baseline!r}: expected batches of at least 2 problems")
    baseline = choice("baseline", e.baseline, BASELINES)
    every = torch.ones_like(returns, dtype=torch.bool)
    return torch.vmap(lambda r, valid: baseline(r, valid, e.ddof, e.eps))(returns, every)


def _jacobian(task: Task, logits: Tensor, function: Callable[[Task, Tensor], Tensor]) -> Tensor:
    """Derivatives (M, T, S * A) of a function's value at each step of each rollout."""
    made = torch.autograd.functional.jacobian(partial(function, task), logits.detach())
    return made.flatten(2)


def _chain(by_step: Tensor, members: Tensor, jacobian: Tensor) -> Tensor:
    """Chain rule, (B, S * A): derivatives (B * P * G, T) of the loss by each step value, times the
    derivatives (M, T, S * A) of those values by the logits."""
    n_rollouts, length, n_logits = jacobian.shape
    rollouts = members.flatten(1)[..., None]  # (B, P * G, 1)
    summed = by_step.new_zeros(len(members), n_rollouts, length)  # over members that are alike
    summed.scatter_add_(1, rollouts.expand(-1, -1, length), by_step.view(*rollouts.shape[:2], -1))
    return summed.flatten(1) @ jacobian.reshape(-1, n_logits)
