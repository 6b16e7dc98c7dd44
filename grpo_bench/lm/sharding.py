"""A model in shards: each process keeps a part of every weight, its gradient and its optimiser's
state (FSDP2: ``torch.distributed.fsdp.fully_shard``; ZeRO stage 3, arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel


def shard(model: PreTrainedModel) -> None:
    """Leave of every weight only this rank's part, a layer at a time; the whole layer is there only
    while it computes. The optimiser has to be made afterwards, of the weights that are then there.

    Every forward and backward pass is a meeting of all ranks: they must make as many.

    Embeddings, last norm and head are one unit, since the head may be the embedding. They are
    fetched where ``get_decoder`` is called, with which every pass begins here, and stay until the
    gradients are there.

    Raises:
        ValueError: this torch cannot sum gradients in the backward pass, but only average them.
    """
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ValueError(
            f"model.sharded=true: needs torch 2.9 or later, here it is {torch.__version__}"
        )
    for layer in model.get_decoder().layers:
        fully_shard(layer)
    fully_shard(model)
    for unit in units(model):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    register_fsdp_forward_method(model, "get_decoder")
    model.get_decoder()  # the unit that is called first is the outermost
    model.reshard()  # type: ignore[operator]


def units(model: PreTrainedModel) -> list[FSDPModule]:
    """What is fetched at a time: the layers of a model in shards, and the rest; none of another."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def whole(model: PreTrainedModel) -> Iterator[None]:
    """Within the block every rank has all weights, so that passes are no meetings: in generation
    ranks make different numbers of them. No gradients there. Nothing happens to a model that is
    not in shards."""
    for unit in units(model):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units(model):
            unit.set_reshard_after_forward(unit is not model, recurse=False)
            unit.reshard()
