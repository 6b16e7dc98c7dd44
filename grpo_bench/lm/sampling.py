"""From logits to probabilities and tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature in float32: after a log-softmax in bfloat16 the ratio of probabilities
    in the update and at sampling would not be 1 before anything has been learned."""
    # a tensor with a dimension, whose type counts: no copy of the logits in float32 before
    return logits / logits.new_full((1,), temperature, dtype=torch.float32)


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """k tokens from each row of softmax(logits / temperature), and their log-probabilities in it.

    By the inverse of the distribution function: the first token up to which the probabilities add
    up to more than the uniform number. (``torch.multinomial`` draws an exponential number for every
    token of the vocabulary: a third of the time of generation.) In float32, whatever logits are.

    Args:
        logits: (rows, vocabulary).
        temperature: 0 is greedy: the most probable token, whose log-probability is then 0.
        uniform: (rows, k) float32 in [0, 1); not looked at by greedy.

    Returns:
        tokens (rows, k) long, logp (rows, k) float32: NaN where a row of logits has a NaN or +inf
        (greedy: the token is then any).
    """
    if temperature == 0:
        tokens = logits.argmax(dim=-1, keepdim=True).expand(uniform.shape)
        return tokens, torch.zeros_like(uniform)
    scaled = tempered(logits, temperature)
    top = scaled.amax(dim=-1, keepdim=True)
    cumulative = scaled.sub_(top).exp_().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # uniform * total is below total, rounded too: a token is found, and never one of probability 0
    tokens = torch.searchsorted(cumulative, uniform * total, right=True)
    tokens.clamp_(max=logits.shape[-1] - 1)  # where the sums are NaN none is found
    return tokens, tempered(logits.gather(-1, tokens), temperature) - top - total.log()
