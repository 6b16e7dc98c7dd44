"""What a loss does in expectation: its gradient on every batch, through the functions that train.

No formula of the algorithm stands here. The advantages, the loss, its weights and the KL terms come
from ``grpo_bench.grpo``; this module calls them on all batches at once and sums up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor

from grpo_bench.enumeration.tasks import Task, log_probs
from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import (
    find_baseline,
    group_advantages,
    process_advantages,
    return_penalty,
)
from grpo_bench.grpo.objectives import Clip, aggregation_weights, policy_loss

WHOLE_BATCH = ("batch", "batch_std")  # baselines for which a batch is more than its groups
BOUNDED = Clip()
UNBOUNDED = Clip(low=1.0, high=math.inf)


@dataclass(frozen=True)
class Estimator:
    """One way to make a gradient from a batch; the options are those of the algorithm."""

    baseline: str = "group"
    ddof: int = 0
    eps: float = 1e-4
    supervision: Literal["outcome", "process"] = "outcome"
    aggregation: str = "sequence_mean"
    max_len: int | None = None  # for constant_length; None: the task's
    ratio: str = "token"
    surrogate: str = "clip"
    clip: Clip = BOUNDED
    kl: str | None = None  # a name in ``kl.FORMS``
    kl_coef: float = 0.0


# Over the tokens of a rollout, whatever its length, then the mean over the rollouts: the scale is
# that of the true gradient.
SUMMED = Estimator(aggregation="constant_length", max_len=1)


class Policies(NamedTuple):
    """Logits (S, A) of the policy that learns, of that which sampled, and of the reference."""

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
    """The direction in which a step on each batch goes, minus the gradient of its loss, (B, S * A).

    Args:
        members: (B, P, G) rollouts of the task, by number.

    Raises:
        ValueError: a baseline over the batch with one problem a batch, or with process supervision.
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
    """What a form makes of whole rollouts, on average over ``policies.old``: its estimate of KL(pi
    || ref), where its terms are added up over the steps."""
    new, reference, old = (
        log_probs(task, logits) for logits in (policies.new, policies.reference, policies.old)
    )
    divergence = _state_kl(task, policies.new, policies.reference)
    terms = _kl_terms(form, divergence, new, reference, old, task.mask).sum(dim=1)  # (M,)
    return ((old.sum(dim=1).exp() * terms).sum() / task.n_problems).item()


def _kl_terms(form: str, divergence: Tensor, *logps_and_mask: Tensor) -> Tensor:
    """(n, T) of each step: ``divergence``, which is that of its state, or of its action by
    ``kl.sample_term``, which takes the rest; 0 outside the mask."""
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
    """(B, P, G, 1), or (B, P, G, T) under process supervision."""
    e = estimator
    if e.supervision == "process":
        if e.baseline in WHOLE_BATCH:
            raise ValueError(f"baseline={e.baseline!r} with process supervision is not enumerated")
        rewards, mask = task.rewards[members].flatten(0, 1), task.mask[members].flatten(0, 1)
        advantages = process_advantages(rewards, mask, e.baseline, e.ddof, e.eps)  # (B * P, G, T)
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
    """A baseline that looks at the whole (P, G) of a batch, on (B, P, G). ``group_advantages``
    takes one batch, and its checks of the values stand in the way of ``vmap``."""
    if returns.shape[1] < 2:
        raise ValueError(f"baseline={e.baseline!r}: expected batches of at least 2 problems")
    baseline = find_baseline(e.baseline)
    every = torch.ones_like(returns, dtype=torch.bool)
    return torch.vmap(lambda r, valid: baseline(r, valid, e.ddof, e.eps))(returns, every)


def _jacobian(task: Task, logits: Tensor, function: Callable[[Task, Tensor], Tensor]) -> Tensor:
    """(M, T, S * A) derivatives of what a function gives for each step of each rollout."""
    made = torch.autograd.functional.jacobian(partial(function, task), logits.detach())
    return made.flatten(2)


def _chain(by_step: Tensor, members: Tensor, jacobian: Tensor) -> Tensor:
    """(B, S * A) from the derivatives (B * P * G, T) by what each step of each member gave, and the
    derivatives (M, T, S * A) of that by the logits."""
    n_rollouts, length, n_logits = jacobian.shape
    rollouts = members.flatten(1)[..., None]  # (B, P * G, 1)
    summed = by_step.new_zeros(len(members), n_rollouts, length)  # over members that are alike
    summed.scatter_add_(1, rollouts.expand(-1, -1, length), by_step.view(*rollouts.shape[:2], -1))
    return summed.flatten(1) @ jacobian.reshape(-1, n_logits)
