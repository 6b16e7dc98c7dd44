"""The loss of an optimiser step: surrogate, entropy, KL and value loss, once for every track.

Pure functions of (n_rollouts, length) tensors. Every term is a sum over the actions with the
weights of the whole step (``objectives.aggregation_weights``), so the losses of micro-batches add
up to that of the step. To add a term, write it here, and its coefficient in ``grpo.settings``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_bench.grpo.objectives import Clip, policy_loss
from grpo_bench.grpo.settings import Settings


class ValueLoss(NamedTuple):
    """The loss of a critic, and what to log of it."""

    loss: Tensor  # () to be minimised
    clip_fraction: Tensor | None  # () share of the actions from which the clip takes the gradient


class Loss(NamedTuple):
    """The loss of a step or of a part of it, and what to log of it."""

    total: Tensor  # () to be minimised
    surrogate: Tensor  # () the policy-gradient part
    clip_fraction: Tensor  # () share of the actions whose ratio is bounded
    ratio: Tensor  # (n, T) importance ratio, 1 outside the mask


def step_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    settings: Settings,
    clip: Clip,
    *,
    entropy: Tensor | None = None,
    kl: Tensor | None = None,
    places: Tensor | None = None,
    value: ValueLoss | None = None,
    vf_coef: float = 0.0,
) -> Loss:
    """- sum w surrogate(rho, A) - ent_coef sum w H + kl_coef sum w KL + vf_coef value loss.

    Args:
        logp, old_logp: (n, T) log-probability of each action now, with gradient, and at sampling.
        advantages: (n,) or (n, T).
        mask: (n, T) bool; actions outside it count nowhere.
        weights: (n, T) of the actions in the loss of the whole optimiser step.
        clip: the bounds of the ratio, ``settings.clip`` at the present progress.
        entropy, kl: of each action, (n, T), or (m,) of the m actions inside the mask in order.
            None: no such term.
        places: (m,) the places of those m actions in n * T.
        value: of a critic that shares parameters with the policy. (A critic with its own network
            has its own backward pass.)
    """
    policy = policy_loss(
        logp,
        old_logp,
        advantages,
        mask,
        weights=weights,
        ratio=settings.ratio,
        surrogate=settings.surrogate,
        clip=clip,
    )
    total = policy.loss
    if entropy is not None and settings.ent_coef:
        total = total - settings.ent_coef * weighted_sum(entropy, weights, places)
    if kl is not None and settings.kl_coef:
        total = total + settings.kl_coef * weighted_sum(kl, weights, places)
    if value is not None:
        total = total + vf_coef * value.loss
    return Loss(total, policy.loss, policy.clip_fraction, policy.ratio)


def weighted_sum(values: Tensor, weights: Tensor, places: Tensor | None = None) -> Tensor:
    """sum w x, (), of values (n, T), or (m,) at some of the places of the weights (n, T)."""
    if values.shape != weights.shape:
        weights = weights.flatten()
        if len(values) != len(weights):
            weights = weights[places]  # (m,)
    return (weights * values).sum()


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    weights: Tensor,
    clip_range_vf: float | None,
) -> ValueLoss:
    """sum w max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2), or without c sum w (V - R)^2.

    There is no factor 1/2: with weights of ``token_mean`` this is SB3's mean squared error, which
    SB3 multiplies by a ``vf_coef`` of 0.5 too. The clip is that of PPO's own code (arXiv
    2005.12729); SB3 takes the clipped error alone. An action whose V has moved towards R by more
    than c gets no gradient.

    Args:
        values, old_values: (n, T) now, with gradient, and when the rollouts were played.
        returns: (n, T) what the critic learns.
        weights: (n, T) of the whole optimiser step; see ``aggregation_weights``.
        clip_range_vf: c, in units of the reward.

    Raises:
        ValueError: ``clip_range_vf`` is not positive.
    """
    if clip_range_vf is not None and not clip_range_vf > 0:
        raise ValueError(f"clip_range_vf={clip_range_vf}: expected a positive number, or null")
    valid = weights > 0
    returns = torch.where(valid, returns, 0.0)  # a weight of 0 would not hide a NaN
    values = torch.where(valid, values, 0.0)
    error = (values - returns).square()
    if clip_range_vf is None:
        return ValueLoss((weights * error).sum(), None)
    old_values = torch.where(valid, old_values, 0.0)
    # V_old + clip(V - V_old, -c, c), but exactly V within the range; where it bounds it is a
    # constant, so autograd need not pass through it
    nearer = values.detach().clamp(old_values - clip_range_vf, old_values + clip_range_vf)
    clipped_error = (nearer - returns).square()
    bounded = clipped_error > error
    loss = (weights * torch.where(bounded, clipped_error, error)).sum()
    return ValueLoss(loss, bounded.sum() / valid.sum().clamp(min=1))
