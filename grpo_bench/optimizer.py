"""The optimiser of every algorithm here: torch's Adam without its ties to ``torch.compile``.

torch wraps some methods of an optimiser so that its compiler leaves them alone. The wrappers import
``torch._dynamo``, and sympy with it, when the first optimiser is made and stepped: nearly as slow
as the import of torch itself, and 70 MB, for a compiler that nothing here uses.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Adam


class EagerAdam(Adam):
    """``torch.optim.Adam``, the same arithmetic and the same state, for code that is not compiled.

    Its methods are torch's own, beneath the wrappers; where a torch has no such wrapper they are
    the inherited ones. Step hooks work as ever: torch adds those when the first one is made. The
    step never builds a graph of itself, so ``differentiable=True`` has no effect.
    """

    add_param_group = unwrap(Adam.add_param_group)
    load_state_dict = unwrap(Adam.load_state_dict)
    state_dict = unwrap(Adam.state_dict)
    step = torch.no_grad()(unwrap(Adam.step))
    zero_grad = unwrap(Adam.zero_grad)
