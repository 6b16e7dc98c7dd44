"""The norm of a gradient: clipped, checked, and seen where another library clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients so that their total 2-norm is at most ``max_norm``.

    The same numbers as ``torch.nn.utils.clip_grad_norm_``, for parameters on one device. torch's
    sorts them by device and type at every call, which takes longer than the norms of a small
    network.

    Returns:
        the norm before, ().
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def check_gradient(norm: Tensor, step: int) -> None:
    """Before an optimiser step, so that the weights are still those of the last good one.

    Args:
        norm: of the gradient, ().
        step: its number, from 1.

    Raises:
        FloatingPointError: the norm is not finite.
    """
    if not math.isfinite(value := norm.item()):
        raise FloatingPointError(
            f"the gradient norm of step {step} is {value}; the weights are those before this step. "
            "Take a lower learning_rate or kl_coef, or a smaller max_grad_norm"
        )


@contextmanager
def norms_seen(see: Callable[[Tensor], None]) -> Iterator[None]:
    """Call ``see`` with the norm, (), before each call of ``torch.nn.utils.clip_grad_norm_``
    shortens the gradient. SB3's algorithms clip with it and keep no norm; computing it a second
    time would slow them down in a comparison of speed."""
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_see(*args: Any, **kwargs: Any) -> Tensor:
        norm = clip(*args, **kwargs)
        see(norm)
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_and_see
    try:
        yield
    finally:
        torch.nn.utils.clip_grad_norm_ = clip
