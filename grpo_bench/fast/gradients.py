"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable

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
