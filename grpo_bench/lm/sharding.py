"""A model in shards: each process keeps a part of every weight, its gradient and its optimiser's
state (FSDP2: ``torch.distributed.fsdp.fully_shard``; ZeRO stage 3, arXiv 1910.02054)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from grpo_bench.lm.critics import Critic
from grpo_bench.lm.lora import Reference
from grpo_bench.lm.parallel import World


def shard_all(
    policy: PreTrainedModel, reference: Reference | None, critic: Critic | None, world: World
) -> None:
    """Leave each rank its part of all networks of a trainer. A value head is whole everywhere.

    Raises:
        ValueError: there is one process only, or a critic on weights that another network has too.
    """
    check_sharded(world)
    networks = [policy]
    if reference is not None and reference.frozen is not None:
        networks.append(reference.frozen)
    if critic is not None and critic.trunk is not policy.get_decoder():
        if critic.lender is not None:
            raise ValueError(
                "algo.critic=lora with model.sharded=true: expected separate or shared, since its "
                "weights are another network's"
            )
        networks.append(critic.trunk)
    for network in networks:
        shard(network)


def check_sharded(world: World) -> None:
    """That a model can be in shards.

    Raises:
        ValueError: there is one process only, or this torch cannot sum gradients in the backward
            pass, but only average them.
    """
    if world.size == 1:
        raise ValueError("model.sharded=true in one process: expected false, or torchrun")
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ValueError(
            f"model.sharded=true: needs torch 2.9 or later, here it is {torch.__version__}"
        )


def shard(model: PreTrainedModel) -> None:
    """Leave of every weight only this rank's part, a layer at a time; the whole layer is there only
    while it computes. The optimiser has to be made afterwards, of the weights that are then there.

    Every forward and backward pass is a meeting of all ranks: they must make as many.

    Embeddings, last norm and head are one unit, since the head may be the embedding. They are
    fetched where ``get_decoder`` is called, with which every pass begins here, and stay until the
    gradients are there.
    """
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
