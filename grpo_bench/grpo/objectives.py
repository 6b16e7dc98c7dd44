"""The policy loss: pure functions of (n_rollouts, length) tensors of log-probabilities.

A loss is ``(weights * per_token).sum()``, where the weights carry the whole aggregation: every
denominator is fixed before the batch is split, so micro-batches, padding and the order of the
rollouts cannot change the gradient. To add an option, write its function beside its like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
LARGEST_LOG = 20.0  # of a ratio


class PolicyLoss(NamedTuple):
    """The loss of a batch, and what to log of it."""

    loss: Tensor  # () to be minimised
    clip_fraction: Tensor  # () share of the valid tokens whose ratio is bounded
    ratio: Tensor  # (n_rollouts, length) importance ratio, 1 outside the mask


class Clip(NamedTuple):
    """Bounds of the importance ratio: [1 - low, 1 + high], and with ``dual`` a floor under the
    surrogate of bad actions.

    ``low`` = ``high``: PPO (arXiv 1707.06347). ``high`` > ``low``: clip-higher, DAPO (arXiv
    2503.14476). ``low`` of 1 or more: no lower bound.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    weights: Tensor | None = None,
    aggregation: str = "sequence_mean",
    max_len: int | None = None,
    ratio: str = "token",
    surrogate: str = "clip",
    clip: Clip = Clip(),  # noqa: B008 (immutable)
) -> PolicyLoss:
    """- sum w surrogate(rho, A).

    Args:
        logp, old_logp: (n_rollouts, length) log-probability of each action now and at sampling.
        advantages: (n_rollouts,) or (n_rollouts, length).
        mask: (n_rollouts, length) bool; tokens outside it count nowhere.
        weights: (n_rollouts, length), of the whole optimiser step, if these rollouts are a part of
            it; None: these rollouts are the whole step, and ``aggregation`` makes them.
        aggregation, max_len: a name in ``AGGREGATIONS``; see ``aggregation_weights``.
        ratio: a name in ``RATIOS``; see ``importance_ratio``.
        surrogate: a name in ``SURROGATES``.
        clip: the bounds of the ratio.
    """
    if weights is None:
        weights = aggregation_weights(mask, aggregation, max_len)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    advantages = torch.where(mask, advantages, 0.0)  # a weight of 0 would not hide a NaN
    rho = importance_ratio(logp, old_logp, mask, ratio)
    logp = torch.where(mask, logp, torch.zeros_like(logp))
    per_token, bounded = _named("surrogate", surrogate, SURROGATES)(rho, logp, advantages, clip)
    loss = -(weights * per_token).sum()
    clip_fraction = bounded.sum() / mask.sum().clamp(min=1)  # none outside: A = 0 there
    return PolicyLoss(loss, clip_fraction, rho)


# -- surrogates: (ratio, logp, advantages, clip) -> (objective of each token, where it is bounded) -


def clipped_surrogate(
    ratio: Tensor, logp: Tensor, advantages: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """min(rho A, clip(rho, 1 - low, 1 + high) A), and with ``dual`` c at least c A where A < 0.

    PPO (arXiv 1707.06347, eq. 7), as GRPO uses it (2402.03300, eq. 3); dual clip (1912.09729, eq.
    5). Bounded means that the gradient is gone: rho above the upper bound with A > 0, below the
    lower bound with A < 0, or above c with A < 0. A ratio outside [1 - low, 1 + high] on the other
    side still learns.
    """
    unclipped = ratio * advantages
    # where a bound holds it is a constant: autograd need not pass through it
    bound = ratio.detach().clamp(1.0 - clip.low, 1.0 + clip.high) * advantages
    surrogate = torch.where(bound < unclipped, bound, unclipped)
    if clip.dual is not None:
        floor = clip.dual * advantages
        surrogate = torch.where((advantages < 0) & (surrogate < floor), floor, surrogate)
    return surrogate, surrogate != unclipped


def cispo_surrogate(
    ratio: Tensor, logp: Tensor, advantages: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """sg(clip(rho, 1 - low, 1 + high)) A log pi(a): REINFORCE with a bounded weight, through which
    no gradient flows, so that every token learns. CISPO, MiniMax-M1 (arXiv 2506.13585, eq. 4).

    Bounded means that the weight is, for a token that would push on in that direction: rho above
    the upper bound with A > 0, or below the lower bound with A < 0.
    """
    weight = ratio.detach().clamp(1.0 - clip.low, 1.0 + clip.high)
    return weight * advantages * logp, (ratio.detach() - weight) * advantages > 0


Surrogate = Callable[[Tensor, Tensor, Tensor, Clip], tuple[Tensor, Tensor]]
SURROGATES: dict[str, Surrogate] = {"clip": clipped_surrogate, "cispo": cispo_surrogate}


# -- ratios: (log pi - log pi_old, mask) -> its logarithm by token ---------------------------------


def token_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """rho_t = pi(a_t) / pi_old(a_t). PPO (arXiv 1707.06347), GRPO (2402.03300)."""
    return log_ratio


def sequence_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """rho_t = (prod_t pi(a_t) / pi_old(a_t))^(1 / length), the geometric mean of the rollout's
    token ratios, the same for all its tokens. GSPO (arXiv 2507.18071, eq. 7).

    Every token moves it alike: under ``clip``, advantages that differ by token count by their mean.
    """
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(mask, log_ratio.sum(dim=1, keepdim=True) / lengths, log_ratio)


Ratio = Callable[[Tensor, Tensor], Tensor]
RATIOS: dict[str, Ratio] = {"token": token_ratio, "sequence": sequence_ratio}


def importance_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, ratio: str) -> Tensor:
    """rho by a name in ``RATIOS``, (n_rollouts, length); 1 outside the mask.

    Its logarithm is held within ``LARGEST_LOG``, far outside any clip: an overflow would make the
    gradient of a token that the clip has set to 0 not 0 but NaN.
    """
    log_ratio = torch.where(mask, logp - old_logp, torch.zeros_like(logp))
    log_rho = _named("ratio", ratio, RATIOS)(log_ratio, mask)
    return log_rho.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


# -- aggregations: (lengths, number of rollouts, max_len) -> one over the weight of each token -----


def sequence_mean(lengths: Tensor, rollouts: Tensor, max_len: int | None) -> Tensor:
    """w_t = 1 / (rollouts * length of its rollout): each rollout counts the same. DeepSeekMath
    (arXiv 2402.03300, eq. 3)."""
    return lengths.clamp(min=1) * rollouts


def token_mean(lengths: Tensor, rollouts: Tensor, max_len: int | None) -> Tensor:
    """w_t = 1 / tokens of the step: each token counts the same. DAPO (arXiv 2503.14476, eq. 8)."""
    return lengths.sum(dim=-2, keepdim=True).clamp(min=1)


def constant_length(lengths: Tensor, rollouts: Tensor, max_len: int | None) -> Tensor:
    """w_t = 1 / (rollouts * max_len): each token counts the same, whatever the lengths of the
    others. Dr. GRPO (arXiv 2503.20783)."""
    if max_len is None or max_len < 1:
        raise ValueError(f"max_len={max_len}: constant_length needs the length limit, at least 1")
    return rollouts * max_len


Aggregation = Callable[[Tensor, Tensor, int | None], Tensor]
AGGREGATIONS: dict[str, Aggregation] = {
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant_length": constant_length,
}


def aggregation_weights(
    mask: Tensor, aggregation: str = "sequence_mean", max_len: int | None = None
) -> Tensor:
    """Weight of each token in the loss of one optimiser step, (n_rollouts, length), by a name in
    ``AGGREGATIONS``; 0 outside the mask.

    With more dimensions in front, (..., n_rollouts, length), each is a step of its own. Only the
    rollouts that have a token in the mask count: one that is masked whole, as a truncated
    completion may be, is neither in a numerator nor in a denominator.
    """
    tokens = mask.to(torch.get_default_dtype())
    lengths = tokens.sum(dim=-1, keepdim=True)  # (..., n_rollouts, 1)
    rollouts = (lengths > 0).sum(dim=-2, keepdim=True).clamp(min=1)  # (..., 1, 1)
    return tokens / _named("aggregation", aggregation, AGGREGATIONS)(lengths, rollouts, max_len)


def _named(option: str, name: str, choices: dict[str, T]) -> T:
    if name not in choices:
        raise ValueError(f"{option}={name!r}: expected one of {', '.join(choices)}")
    return choices[name]


# -- completions ----------------------------------------------------------------------------------


def completion_mask(ids: Tensor, eos_id: int) -> Tensor:
    """The tokens of each completion that are trained on, (n_rollouts, length) bool: up to and
    including the first EOS, all of them where there is none. By position, never by value, so the
    padding id may be the EOS id. ``mask.sum(1)`` is the length."""
    ended_before = (ids == eos_id).cumsum(dim=1) - (ids == eos_id).to(torch.long)
    return ended_before == 0


def truncated(ids: Tensor, eos_id: int) -> Tensor:
    """Completions that were cut off before an EOS, (n_rollouts,) bool."""
    return ~(ids == eos_id).any(dim=1)
