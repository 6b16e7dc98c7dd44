"""A trained model as a folder in Hugging Face's format, as anyone may load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils import logging

from grpo_bench.lm.folders import whole_folder
from grpo_bench.lm.models import LanguageModel
from grpo_bench.lm.parallel import World

logging.disable_progress_bar()  # a run has its own


def save_pretrained(lm: LanguageModel, folder: Path, world: World = World()) -> None:  # noqa: B008
    """Write the weights (safetensors), the settings of the model and of its generation, and the
    tokenizer with its chat template.

    ``AutoModelForCausalLM.from_pretrained(folder)`` needs nothing of this package or of peft: the
    adapters of LoRA are added to the weights that they belong to. The model in memory stays as it
    is. The folder is whole or not there; one that is there is replaced.

    Every rank has to call this; the first one writes.
    """
    weights = plain_weights(lm.model)
    if world.rank == 0:
        with whole_folder(folder) as beside:
            lm.model.save_pretrained(beside, state_dict=weights)
            lm.tokenizer.save_pretrained(beside)


@torch.no_grad()
def plain_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a model by the names that they have without adapters and without shards; what
    is tied is one tensor still."""
    layers: dict[str, Any] = {
        f"{name}.": layer
        for name, layer in model.named_modules()
        if isinstance(layer, BaseTunerLayer)
    }
    found: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        layer, _, rest = name.rpartition("base_layer.")
        if layer in layers and rest == "weight":
            found[layer + rest] = merged(layers[layer])
        elif layer in layers or not name.startswith(tuple(layers)):
            found[layer + rest] = seen.setdefault(id(weight), _full(weight))
    return found


def merged(layer: Any) -> Tensor:
    """W + alpha / rank B A of a layer with adapters, those that are active, in the type of W: added
    in float32 and rounded once."""
    base = layer.get_base_layer().weight
    weight = _full(base).float()
    for name in layer.active_adapters:
        a, b = (_full(part[name].weight).float() for part in (layer.lora_A, layer.lora_B))
        added = layer.scaling[name] * (b @ a)
        weight = weight + (added.T if layer.fan_in_fan_out else added)
    return weight.to(base.dtype)


def _full(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
