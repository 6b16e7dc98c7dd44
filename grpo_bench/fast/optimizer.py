"""torch's Adam without ``torch.compile``; every algorithm of the harness uses it.

torch wraps some methods of an optimiser so that its compiler skips them. The wrappers import
``torch._dynamo`` and sympy when the first optimiser is created and stepped. That takes nearly as
long as importing torch itself, and 70 MB, for a compiler that nothing here uses.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam


class EagerAdam(Adam):
    """``torch.optim.Adam`` with the same arithmetic and state, for code that is not compiled.

    Its methods are torch's own, without the wrappers. Step hooks work as usual. The step never
    builds a graph of itself, so ``differentiable=True`` has no effect. With ``fused=True`` all
    parameters of a group must have one device and one dtype.
    """

    add_param_group = unwrap(Adam.add_param_group)
    load_state_dict = unwrap(Adam.load_state_dict)
    state_dict = unwrap(Adam.state_dict)
    zero_grad = unwrap(Adam.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As torch's. A fused step calls its kernel directly: torch first sorts the parameters by
        device and type, which takes longer than the kernel on a small network."""
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
