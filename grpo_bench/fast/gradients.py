"""What happens to the gradients between the backward pass and the optimiser."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients so that their common 2-norm is at most ``max_norm``; the norm before, ().

    ``torch.nn.utils.clip_grad_norm_``, number for number, for parameters of one device: torch's
    sorts them by device and type at every call, which on a small network takes longer than the
    norms.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
