"""Low-rank adapters, and the reference: what the policy was before training.

The adapters are put into the model itself, which stays of its own class: whoever runs it need not
know that they are there. With them switched off it is the reference, at no cost; a model that is
trained whole needs a frozen copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Lora:
    """W x + alpha / rank B A x, in which A and B are trained and W is not (arXiv 2106.09685).

    ``target_modules``: the names of the linear layers that get one, such as ``("q_proj",
    "v_proj")``; ``"all-linear"``: every one but the output layer, which is what keeps up with full
    fine-tuning (QLoRA, arXiv 2305.14314, section 4).
    """

    rank: int = 0  # 0: no adapters, all weights are trained
    alpha: int = 32
    target_modules: str | tuple[str, ...] = "all-linear"


def add_lora(model: PreTrainedModel, lora: Lora, seed: int) -> None:
    """Put adapters into the model, in the type of its weights, and freeze all else. B is 0 at
    first, so that the policy is still the reference; A is drawn from the seed.

    Raises:
        ValueError: the rank is less than 1, alpha is not more than 0, or the model has no layer
            of the names given, or one that is not linear.
    """
    if lora.rank < 1 or lora.alpha <= 0:
        raise ValueError(
            f"lora.rank={lora.rank}, lora.alpha={lora.alpha}: expected a rank of 1 or more and an "
            "alpha of more than 0"
        )
    named = lora.target_modules
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=named if isinstance(named, str) else list(named),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            base = module.get_base_layer()
            if not isinstance(base, nn.Linear | Conv1D):
                raise ValueError(
                    f"lora.target_modules={named}: {name} is of type {type(base).__name__}, "
                    "expected linear layers, to which saving can add B A"
                )


def adapters(model: PreTrainedModel) -> list[BaseTunerLayer]:
    """The layers of the model that have an adapter; none if it is trained whole."""
    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def base_of(model: PreTrainedModel, *, share: bool) -> PreTrainedModel:
    """The model without its adapters, in modules of its own.

    Its weights are copies, or with ``share`` the very tensors of the model: then it costs nothing,
    and other adapters that are put into it are its own. (Two sets of adapters in one module would
    have to be switched, and switched back before a checkpointed layer is computed again.)
    """
    tensors = (*model.parameters(), *model.buffers())
    base = deepcopy(model, {id(tensor): tensor for tensor in tensors} if share else None)
    for name, module in list(base.named_modules()):
        if isinstance(module, BaseTunerLayer):
            base.set_submodule(name, module.get_base_layer())
    return base


class Reference:
    """The policy as it was when this was made, which is before its first update.

        reference = Reference(policy)
        with reference.active() as model:
            logits = model(ids).logits

    Attributes:
        frozen: the copy of a policy that is trained whole, None with LoRA.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        self.policy = policy
        self.frozen = None if adapters(policy) else deepcopy(policy).requires_grad_(False)

    @contextmanager
    def active(self) -> Iterator[PreTrainedModel]:
        """The reference, without gradients. With LoRA it *is* the policy, its adapters switched off
        until the block ends."""
        with torch.no_grad():
            if self.frozen is not None:
                yield self.frozen
                return
            layers = adapters(self.policy)
            try:
                for layer in layers:
                    layer.enable_adapters(False)
                yield self.policy
            finally:
                for layer in layers:
                    layer.enable_adapters(True)
