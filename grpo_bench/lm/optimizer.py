"""AdamW for weights in bfloat16, and the optimisers of language models by name.

bfloat16 has 8 significant bits: a weight of 0.02 with a learning rate of 1e-6 would have to move by
6e-5 to move at all, so most updates would be rounded away. The update is made in float32, on master
weights that the optimiser keeps, and the model computes with their rounded copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.adamw import adamw

from grpo_bench.grpo.choices import choice

BUCKET = 2**25  # elements whose gradients are in float32 at one time: 128 MiB


class MasterAdamW(AdamW):
    """``torch.optim.AdamW`` (arXiv 1711.05101) in float32, whatever the weights are in.

    Where a weight is in another type, its state has its float32 ``master`` beside the two moments;
    the kernel is torch's fused one, which steps the masters, and the weight is the rounded master.
    On float32 weights everything is torch's, bit for bit, the state too.

    Args:
        params: weights, or groups of them, as for ``AdamW``.
        lr, betas, eps, weight_decay: as for ``AdamW``.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient. It is float32 for a bucket of them at a time: all
        at once would be as large as the masters."""
        for group in self.param_groups:
            for weights in buckets([w for w in group["params"] if w.grad is not None], BUCKET):
                self._update(weights, group)

    def _update(self, weights: list[nn.Parameter], group: dict[str, Any]) -> None:
        states = [self._state(weight) for weight in weights]
        here = [local(weight) for weight in weights]
        masters = [s.get("master", w) for w, s in zip(here, states, strict=True)]
        beta1, beta2 = group["betas"]
        adamw(
            masters,
            [local(weight.grad).float() for weight in weights if weight.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for weight, master in zip(here, masters, strict=True):
            if weight is not master:
                weight.copy_(master)

    def _state(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """The weight's state, made at its first step."""
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            here = local(weight)
            state["step"] = torch.zeros((), device=here.device)
            state["exp_avg"] = torch.zeros_like(here, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(here, dtype=torch.float32)
            if here.dtype != torch.float32:
                state["master"] = here.detach().float()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but every state stays in float32: torch would round it like the weight."""
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, saved in state_dict["state"].items():
            device = weights[index].device
            self.state[weights[index]] = {
                name: value.to(device, copy=True) for name, value in saved.items()
            }


def local(tensor: Tensor) -> Tensor:
    """Of a tensor in shards the one of this process, which shares its memory; any other as it is.
    Each element is updated on its own, so that nobody need know of the others."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def buckets(weights: list[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """The weights in order, in lists of at most ``size`` elements together; a larger one alone."""
    bucket: list[nn.Parameter] = []
    elements = 0
    for weight in weights:
        if bucket and elements + weight.numel() > size:
            yield bucket
            bucket, elements = [], 0
        bucket.append(weight)
        elements += weight.numel()
    if bucket:
        yield bucket


def adamw_8bit(params: Iterable[nn.Parameter], **settings: Any) -> Optimizer:
    """AdamW with its moments in 8 bits, by block (arXiv 2110.02861), from the package bitsandbytes.
    There are no master weights: in bfloat16 it loses what ``MasterAdamW`` keeps.

    Raises:
        ValueError: there is no CUDA device, or bitsandbytes is not installed.
    """
    if not torch.cuda.is_available():
        raise ValueError("optimizer='adamw_8bit': needs a CUDA device; without one, use 'adamw'")
    try:
        from bitsandbytes.optim import AdamW8bit
    except ModuleNotFoundError:
        raise ValueError(
            "optimizer='adamw_8bit': needs bitsandbytes, pip install bitsandbytes"
        ) from None
    return AdamW8bit(params, **settings)


class EightBitShapes(Optimizer):
    """Has the state that bitsandbytes' AdamW8bit has, and does nothing with it: of each weight two
    moments of a byte, and a float32 scale for each block of 256; small weights have float32 ones.
    """

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make the state, once."""
        for weight in self.param_groups[0]["params"]:
            state, n = self.state[weight], weight.numel()
            if state or weight.grad is None:
                continue
            for name in ("1", "2"):
                if n < 4096:
                    state[f"state{name}"] = torch.empty_like(weight, dtype=torch.float32)
                else:
                    state[f"state{name}"] = torch.empty_like(weight, dtype=torch.uint8)
                    state[f"absmax{name}"] = weight.new_empty(-(-n // 256), dtype=torch.float32)


def adamw_plain(params: Iterable[nn.Parameter], **settings: Any) -> Optimizer:
    """torch's AdamW as it is, its moments in the type of the weights, without masters: in bfloat16
    half the bytes of ``MasterAdamW`` and less, but small updates are lost."""
    return AdamW(params, **settings, fused=True)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": MasterAdamW,
    "adamw_plain": adamw_plain,
    "adamw_8bit": adamw_8bit,
}


def make_optimizer(
    name: str, weights: Iterable[nn.Parameter], learning_rate: float, weight_decay: float = 0.0
) -> Optimizer:
    """The optimiser by a name in ``OPTIMIZERS``, of those of the weights that are trained.

    Raises:
        ValueError: there is none of that name, or it cannot run here, or nothing is trained.
    """
    make = choice("optimizer", name, OPTIMIZERS)
    trained = [weight for weight in weights if weight.requires_grad]
    if not trained:
        raise ValueError("model: nothing in it is trained, expected a weight that requires_grad")
    return make(trained, lr=learning_rate, weight_decay=weight_decay)
