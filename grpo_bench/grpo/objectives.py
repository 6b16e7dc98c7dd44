"""The policy loss: pure functions of (n_rollouts, length) tensors of log-probabilities.

A loss is ``(weights * per_token).sum()``, where the weights carry the whole aggregation: every
denominator is fixed before the batch is split, so micro-batches, padding and the order of the
rollouts cannot change the gradient. To add an option, write its function beside its like.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Aggregation = Literal["sequence_mean", "token_mean", "constant_length"]
RatioLevel = Literal["token", "sequence"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
RATIO_LEVELS: tuple[RatioLevel, ...] = get_args(RatioLevel)


class PolicyLoss(NamedTuple):
    """The loss of a batch, and what to log of it."""

    loss: Tensor  # () to be minimised
    clip_fraction: Tensor  # () share of the valid tokens whose gradient the clip takes away
    ratio: Tensor  # (n_rollouts, length) importance ratio, 1 outside the mask


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    weights: Tensor | None = None,
    aggregation: Aggregation = "sequence_mean",
    max_len: int | None = None,
    ratio: RatioLevel = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> PolicyLoss:
    """- sum w min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    The clipped surrogate of PPO (arXiv 1707.06347, eq. 7) as GRPO uses it (2402.03300, eq. 3).

    Args:
        logp, old_logp: (n_rollouts, length) log-probability of each action now and at sampling.
        advantages: (n_rollouts,) or (n_rollouts, length).
        mask: (n_rollouts, length) bool; tokens outside it count nowhere.
        weights: (n_rollouts, length), of the whole optimiser step, if these rollouts are a part of
            it; None: these rollouts are the whole step, and ``aggregation`` makes them.
        aggregation, max_len: see ``aggregation_weights``.
        ratio: see ``importance_ratio``.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
    """
    if weights is None:
        weights = aggregation_weights(mask, aggregation, max_len)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    advantages = torch.where(mask, advantages, 0.0)  # a weight of 0 would not hide a NaN
    rho = importance_ratio(logp, old_logp, mask, ratio)
    surrogate, clipped = clipped_surrogate(rho, advantages, clip_low, clip_high)
    loss = -(weights * surrogate).sum()
    clip_fraction = (clipped & mask).sum() / mask.sum().clamp(min=1)
    return PolicyLoss(loss, clip_fraction, rho)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """min(rho A, clip(rho, 1 - low, 1 + high) A), and where the clip is active.

    Active means that the gradient is gone: rho above the upper bound with A > 0, or below the
    lower bound with A < 0. A ratio outside the bounds on the other side still learns.
    """
    clipped_ratio = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    unclipped = ratio * advantages
    surrogate = torch.minimum(unclipped, clipped_ratio * advantages)
    return surrogate, surrogate < unclipped


def importance_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, level: RatioLevel) -> Tensor:
    """rho, (n_rollouts, length); 1 outside the mask.

    ``token``: pi(a_t) / pi_old(a_t) for each token. ``sequence``: the geometric mean of the token
    ratios of a rollout, the same for all its tokens (GSPO, arXiv 2507.18071, eq. 7).
    """
    log_ratio = torch.where(mask, logp - old_logp, torch.zeros_like(logp))
    if level == "sequence":
        lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = torch.where(mask, log_ratio.sum(dim=1, keepdim=True) / lengths, log_ratio)
    elif level != "token":
        raise ValueError(f"ratio={level!r}: expected one of {', '.join(RATIO_LEVELS)}")
    return log_ratio.exp()


def aggregation_weights(
    mask: Tensor, aggregation: Aggregation = "sequence_mean", max_len: int | None = None
) -> Tensor:
    """Weight of each token in the loss of one optimiser step, (n_rollouts, length).

    With more dimensions in front, (..., n_rollouts, length), each is a step of its own.

    ``sequence_mean``: 1 / (n_rollouts * length of its rollout), as in DeepSeekMath;
    ``token_mean``: 1 / number of tokens in the step, DAPO (arXiv 2503.14476, eq. 8);
    ``constant_length``: 1 / (n_rollouts * max_len), Dr. GRPO (arXiv 2503.20783).
    n_rollouts counts the rollouts that have a token in the mask.
    """
    tokens = mask.to(torch.get_default_dtype())
    lengths = tokens.sum(dim=-1, keepdim=True)
    rollouts = (lengths > 0).sum(dim=-2, keepdim=True).clamp(min=1)
    if aggregation == "sequence_mean":
        return tokens / (lengths.clamp(min=1) * rollouts)
    if aggregation == "token_mean":
        return tokens / tokens.sum(dim=(-2, -1), keepdim=True).clamp(min=1)
    if aggregation == "constant_length":
        if max_len is None or max_len < 1:
            raise ValueError(
                f"max_len={max_len}: constant_length needs the length limit, at least 1"
            )
        return tokens / (max_len * rollouts)
    raise ValueError(f"aggregation={aggregation!r}: expected one of {', '.join(AGGREGATIONS)}")


def completion_mask(ids: Tensor, eos_id: int) -> Tensor:
    """The tokens of each completion that are trained on, (n_rollouts, length) bool: up to and
    including the first EOS, all of them where there is none. By position, never by value, so the
    padding id may be the EOS id. ``mask.sum(1)`` is the length."""
    ended_before = (ids == eos_id).cumsum(dim=1) - (ids == eos_id).to(torch.long)
    return ended_before == 0


def truncated(ids: Tensor, eos_id: int) -> Tensor:
    """Completions that were cut off before an EOS, (n_rollouts,) bool."""
    return ~(ids == eos_id).any(dim=1)
