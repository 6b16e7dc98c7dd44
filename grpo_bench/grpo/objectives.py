"""The policy loss: pure functions of (n_rollouts, length) tensors of log-probabilities.

The loss is ``(weights * per_token).sum()``, and the weights carry the whole aggregation. Every
denominator is fixed before the batch is split, so micro-batches, padding and the order of the
rollouts cannot change the gradient. A surrogate, ratio or aggregation is a name in its table, or a
function of the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_bench.grpo.choices import choice

LARGEST_LOG = 20.0  # of a ratio of probabilities, far outside any clip


class PolicyLoss(NamedTuple):
    """The loss of a batch, and what to log of it."""

    loss: Tensor  # () to be minimised
    clip_fraction: Tensor  # () share of the valid tokens whose ratio is bounded
    ratio: Tensor  # (n_rollouts, length) importance ratio, 1 outside the mask


class Clip(NamedTuple):
    """Bounds of the importance ratio, [1 - low, 1 + high], and with ``dual`` a lower bound of the
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
    aggregation: str | Aggregation = "sequence_mean",
    max_len: int | None = None,
    ratio: str | Ratio = "token",
    surrogate: str | Surrogate = "clip",
    clip: Clip = Clip(),  # noqa: B008 (immutable)
) -> PolicyLoss:
    """- sum w surrogate(rho, A).

    Args:
        logp, old_logp: (n_rollouts, length) log-probability of each action now and at sampling.
        advantages: (n_rollouts,) or (n_rollouts, length).
        mask: (n_rollouts, length) bool; tokens outside it count nowhere.
        weights: (n_rollouts, length) in the loss of the whole optimiser step, of which these
            rollouts may be a part. None: they are the whole step; ``aggregation`` sets the weights.
        aggregation, max_len: see ``aggregation_weights``.
        ratio: see ``importance_ratio``.
        surrogate: a name in ``SURROGATES``, or a function.
        clip: the bounds of the ratio.
    """
    if weights is None:
        weights = aggregation_weights(mask, aggregation, max_len)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    advantages = torch.where(mask, advantages, 0.0)  # a weight of 0 would not hide a NaN
    rho = importance_ratio(logp, old_logp, mask, ratio)
    logp = torch.where(mask, logp, torch.zeros_like(logp))
    per_token, bounded = choice("surrogate", surrogate, SURROGATES)(rho, logp, advantages, clip)
    loss = -(weights * per_token).sum()
    clip_fraction = bounded.sum() / mask.sum().clamp(min=1)  # none outside: A = 0 there
    return PolicyLoss(loss, clip_fraction, rho)


# -- surrogates: (ratio, logp, advantages, clip) -> (objective, is it bounded?), both by token -----


def clipped_surrogate(
    ratio: Tensor, logp: Tensor, advantages: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """min(rho A, clip(rho, 1 - low, 1 + high) A), and with ``dual`` c at least c A where A < 0.

    PPO (arXiv 1707.06347, eq. 7), as GRPO uses it (2402.03300, eq. 3); dual clip (1912.09729, eq.
    5). A bounded action has no gradient: rho above the upper bound with A > 0, below the lower
    bound with A < 0, or above c with A < 0. With the other sign of A it still learns.
    """
    unclipped = ratio * advantages
    # a bound is a constant where it holds, so autograd need not pass through it
    bound = ratio.detach().clamp(1.0 - clip.low, 1.0 + clip.high) * advantages
    surrogate = torch.where(bound < unclipped, bound, unclipped)
    if clip.dual is not None:
        floor = clip.dual * advantages
        surrogate = torch.where((advantages < 0) & (surrogate < floor), floor, surrogate)
    return surrogate, surrogate != unclipped


def cispo_surrogate(
    ratio: Tensor, logp: Tensor, advantages: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """sg(clip(rho, 1 - low, 1 + high)) A log pi(a): REINFORCE with a bounded weight. No gradient
    flows through the weight, so every token learns. CISPO, MiniMax-M1 (arXiv 2506.13585, eq. 4).

    An action is bounded if its weight is and it would push rho further out: rho above the upper
    bound with A > 0, or below the lower bound with A < 0.
    """
    weight = ratio.detach().clamp(1.0 - clip.low, 1.0 + clip.high)
    return weight * advantages * logp, (ratio.detach() - weight) * advantages > 0


Surrogate = Callable[[Tensor, Tensor, Tensor, Clip], tuple[Tensor, Tensor]]
SURROGATES: dict[str, Surrogate] = {"clip": clipped_surrogate, "cispo": cispo_surrogate}


# -- ratios: (log pi - log pi_old, mask) -> log rho by token ---------------------------------------


def token_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """rho_t = pi(a_t) / pi_old(a_t). PPO (arXiv 1707.06347), GRPO (2402.03300)."""
    return log_ratio


def sequence_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """rho_t = (prod_t pi(a_t) / pi_old(a_t))^(1 / length), the geometric mean of the rollout's
    token ratios, the same for all its tokens. GSPO (arXiv 2507.18071, eq. 7).

    Each token moves it equally, so with ``clip`` only the mean of a rollout's advantages counts.
    """
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(mask, log_ratio.sum(dim=1, keepdim=True) / lengths, log_ratio)


Ratio = Callable[[Tensor, Tensor], Tensor]
RATIOS: dict[str, Ratio] = {"token": token_ratio, "sequence": sequence_ratio}


def importance_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, ratio: str | Ratio) -> Tensor:
    """rho by a name in ``RATIOS`` or a function, (n_rollouts, length); 1 outside the mask.

    Its logarithm is limited to ``LARGEST_LOG``. An overflow would turn a gradient that the clip
    sets to 0 into NaN.
    """
    log_ratio = torch.where(mask, logp - old_logp, torch.zeros_like(logp))
    log_rho = choice("ratio", ratio, RATIOS)(log_ratio, mask)
    return log_rho.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


# -- aggregations: (lengths, number of rollouts, max_len) -> 1 / weight of each token --------------


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
    mask: Tensor, aggregation: str | Aggregation = "sequence_mean", max_len: int | None = None
) -> Tensor:
    """Weight of each token in the loss of one optimiser step, (n_rollouts, length), by a name in
    ``AGGREGATIONS`` or a function; 0 outside the mask.

    With more dimensions in front, (..., n_rollouts, length), each holds its own step. A rollout
    without a token in the mask, such as a truncated completion, counts in no denominator.
    """
    tokens = mask.to(torch.get_default_dtype())
    lengths = tokens.sum(dim=-1, keepdim=True)  # (..., n_rollouts, 1)
    rollouts = (lengths > 0).sum(dim=-2, keepdim=True).clamp(min=1)  # (..., 1, 1)
    return tokens / choice("aggregation", aggregation, AGGREGATIONS)(lengths, rollouts, max_len)
