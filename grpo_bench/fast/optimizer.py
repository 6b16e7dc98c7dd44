"""The optimiser of every algorithm here: torch's Adam without its ties to ``torch.compile``.

torch wraps some methods of an optimiser so that its compiler leaves them alone. The wrappers import
``torch._dynamo``, and sympy with it, when the first optimiser is made and stepped: nearly as slow
as the import of torch itself, and 70 MB, for a compiler that nothing here uses.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam


class EagerAdam(Adam):
    """``torch.optim.Adam``, the same arithmetic and the same state, for code that is not compiled.

    Its methods are torch's own, beneath the wrappers; where a torch has no such wrapper they are
    the inherited ones. Step hooks work as ever: torch adds those when the first one is made. The
    step never builds a graph of itself, so ``differentiable=True`` has no effect. With
    ``fused=True`` the parameters of a group lie on one device in one type.
    """

    add_param_group = unwrap(Adam.add_param_group)
    load_state_dict = unwrap(Adam.load_state_dict)
    state_dict = unwrap(Adam.state_dict)
    zero_grad = unwrap(Adam.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As torch's; a fused one calls its kernel at once. Between the two torch sorts the
        parameters by device and type, which takes longer than the kernel on a small network."""
        if any(not g["fused"] or g.get("decoupled_weight_decay") for g in self.param_groups):
            return unwrap(Adam.step)(self, closure)
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            lists: list[list[Tensor]] = [[] for _ in range(6)]
            self._init_group(group, *lists)  # parameters, gradients, and their state
            if not lists[0]:  # no gradients
                continue
            torch._foreach_add_(lists[-1], 1)  # steps taken
            torch._fused_adam_(
                *lists,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=group["amsgrad"],
                maximize=group["maximize"],
            )
        return loss
