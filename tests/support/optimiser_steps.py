"""Optimiser steps with every combination of the options, put together as the algorithm does it.

The options come from the tables (SURROGATES, RATIOS, AGGREGATIONS, FORMS), so that a new entry is
tested as soon as it exists.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import group_advantages, return_penalty
from grpo_bench.grpo.credit import BY_STEP
from grpo_bench.grpo.objectives import (
    AGGREGATIONS,
    RATIOS,
    SURROGATES,
    Clip,
    aggregation_weights,
    policy_loss,
)

KL_COEF, MAX_LEN = 0.3, 11


class Options(NamedTuple):
    surrogate: str
    clip: Clip
    ratio: str
    aggregation: str
    kl: str


CLIPS = (Clip(0.2, 0.2), Clip(0.2, 0.3), Clip(0.2, 0.3, 2.0))
ALL = [Options(*o) for o in itertools.product(SURROGATES, CLIPS, RATIOS, AGGREGATIONS, kl.FORMS)]


class Batch(NamedTuple):
    """P groups of G rollouts of length T; reward is per step, the rollout's is their sum."""

    logp: torch.Tensor  # (P, G, T), as are the next fields
    old_logp: torch.Tensor
    ref_logp: torch.Tensor
    rewards: torch.Tensor
    mask: torch.Tensor

    def map(self, change) -> "Batch":
        return Batch(*[change(x) for x in self])

    def poisoned(self, value: float) -> "Batch":
        """``value`` wherever nothing should be read."""
        return Batch(*[x.masked_fill(~self.mask, value) for x in self[:4]], self.mask)


def make(seed: int, mask: torch.Tensor, spread: float = 0.7) -> Batch:
    """Probabilities from 0.05 to 0.95, and ratios on both sides of every bound."""
    rng = np.random.default_rng(seed)

    def values(scale: float) -> torch.Tensor:
        return torch.from_numpy(rng.normal(0, scale, mask.shape))

    logit = values(1.0)
    logp, old, ref = (
        torch.nn.functional.logsigmoid(x.clamp(-3, 3))
        for x in (logit, logit + values(spread), logit + values(1.0))
    )
    rewards = torch.from_numpy(rng.integers(-2, 3, mask.shape)).double()
    return Batch(logp, old, ref, rewards, mask)


@st.composite
def batches(draw) -> Batch:
    groups, members, steps = (draw(st.integers(*low_high)) for low_high in ((1, 3), (2, 4), (1, 5)))
    n = groups * members
    lengths = draw(st.lists(st.integers(0, steps), min_size=n, max_size=n))
    mask = torch.arange(steps) < torch.tensor(lengths).view(groups, members, 1)
    return make(draw(st.integers(0, 2**20)), mask)


def two_actions(logp: torch.Tensor) -> LogSoftmaxDistribution:
    """For log-probabilities (m,), the policy that takes the action with that probability."""
    logits = torch.stack([logp, torch.log1p(-logp.exp())], dim=1)
    return LogSoftmaxDistribution(2).proba_distribution(logits)


def kl_of_step(form: str, b: Batch) -> torch.Tensor:
    """The KL of each step, (P, G, T)."""
    if kl.FORMS[form].term is not None:
        return kl.sample_term(form, b.logp, b.ref_logp, b.old_logp, b.mask)
    now, ref = (two_actions(x[b.mask]) for x in (b.logp, b.ref_logp))
    return torch.zeros(b.mask.shape).to(b.logp).masked_scatter(b.mask, kl.exact(now, ref))


def advantages_of(b: Batch, form: str, baseline: str, supervision: str) -> torch.Tensor:
    """(P, G, T), as the algorithm makes them."""
    valid = b.mask.any(dim=2)
    if supervision != "outcome":
        advantages = BY_STEP[supervision](b.rewards, b.mask, baseline)
    else:
        returns = torch.where(b.mask, b.rewards, 0.0).sum(dim=2)
        advantages = group_advantages(returns, baseline, valid=valid)[..., None]
    if kl.FORMS[form].place == "return":
        penalties = kl_of_step(form, b._replace(logp=b.old_logp)).sum(dim=2)
        advantages = advantages + KL_COEF * return_penalty(penalties, valid)[..., None]
    return advantages.expand(b.mask.shape)


def loss_of(b: Batch, advantages: torch.Tensor, weights: torch.Tensor, o: Options) -> torch.Tensor:
    """The loss of some rollouts of a step, as the algorithm makes it."""
    policy = policy_loss(
        *(b.logp.flatten(0, 1), b.old_logp.flatten(0, 1), advantages.flatten(0, 1)),
        b.mask.flatten(0, 1),
        weights=weights.flatten(0, 1),
        ratio=o.ratio,
        surrogate=o.surrogate,
        clip=o.clip,
    )
    if kl.FORMS[o.kl].place == "return":
        return policy.loss
    return policy.loss + KL_COEF * (weights * kl_of_step(o.kl, b)).sum()


def weights_of(b: Batch, o: Options) -> torch.Tensor:
    flat = aggregation_weights(b.mask.flatten(0, 1), o.aggregation, MAX_LEN)
    return flat.view(b.mask.shape).to(b.logp.dtype)


def whole(b: Batch, o: Options, baseline: str = "group", supervision: str = "outcome"):
    """The loss of an optimiser step, and its gradient by the log-probabilities (P, G, T)."""
    b = b._replace(logp=b.logp.detach().requires_grad_())
    loss = loss_of(b, advantages_of(b, o.kl, baseline, supervision), weights_of(b, o), o)
    return loss.detach(), torch.autograd.grad(loss, b.logp)[0]
