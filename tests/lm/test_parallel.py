"""Two processes make the update of one: whole weights on each, and in shards (gloo, CPU)."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

pytest.importorskip("transformers")

import torch
from ranks import together
from tiny import EOS, PROMPTS, made_up, tiny_llama
from torch import nn
from torch.distributed.tensor import DTensor

from grpo_bench.grpo.advantages import group_advantages
from grpo_bench.grpo.objectives import AGGREGATIONS, aggregation_weights, policy_loss
from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora, add_lora
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.parallel import World
from grpo_bench.lm.sharding import shard, units, whole

# Rank 0 has short completions and small rewards, rank 1 long ones and large rewards.
LENGTHS = [1, 2, 1, 1, 9, 8, 9, 7]
REWARDS = torch.tensor([0.0, 0.1, 0.1, 0.0, 5.0, -4.0, 9.0, 1.0])
GROUP = 2
TEMPERATURE = 0.7
LIMIT = 9


def policy(dtype=torch.float32, lora=0):
    model = tiny_llama(dtype).train()
    if lora:
        add_lora(model, Lora(lora), seed=0)
    return model


def update(model, world, aggregation, groups=None):
    """One update of GRPO with a batch baseline, whose denominators are those of all ranks. Gives
    the norm of the gradient, and by weight the gradient before it was clipped and the new value."""
    completions = made_up(LENGTHS, GROUP)
    groups = list(range(len(PROMPTS)))[world.own(len(PROMPTS))] if groups is None else groups
    mine = completions.of_groups(groups)
    members = torch.tensor([g * GROUP + i for g in groups for i in range(GROUP)])
    start = int(members[0])
    rewards = world.gather(REWARDS[members]).view(-1, GROUP)
    masks = world.gather(mine.mask.long()).bool()
    advantages = group_advantages(rewards, baseline="batch_std").flatten()
    weights = aggregation_weights(masks, aggregation, LIMIT)[start : start + len(mine.ids)]
    optimizer = make_optimizer("adamw", model, 1e-2)
    for i, group in enumerate(groups):  # a micro-batch each
        part = mine.of_groups([i])
        rows = slice(i * GROUP, (i + 1) * GROUP)
        logp = completion_logprobs(model, [PROMPTS[group]], part, TEMPERATURE).logp
        loss = policy_loss(
            logp,
            logp.detach() - 0.1,
            advantages[start : start + len(mine.ids)][rows],
            part.mask,
            weights=weights[rows],
        ).loss
        loss.backward()
    weights = dict(model.named_parameters())
    world.sum_gradients(weights.values())
    gradients = {n: full(w.grad).clone() for n, w in weights.items() if w.grad is not None}
    norm = world.clip_gradients(weights.values(), 0.05)
    optimizer.step()
    return norm, gradients, {name: full(weight.detach()) for name, weight in weights.items()}
