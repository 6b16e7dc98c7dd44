"""How the training of a language model goes on after it was cut off: what changes while it trains.

Weights that are not trained, and the reference policy, are those that the configuration makes anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grpo_bench.grpo.streams import set_state, state_of
from grpo_bench.lm.trainer import Trainer

TENSORS = "trainer.pt"


def can_resume(trainer: Trainer) -> bool:
    """Whether it goes on from a checkpoint: where it has one process. Others start over."""
    return trainer.world.size == 1


def write_tensors(trainer: Trainer, folder: Path) -> None:
    """Put trained weights, optimisers and the stream of the tokens into a folder."""
    critic, its_optimizer = trainer.critic, trainer.critic_optimizer
    tensors: dict[str, Any] = {
        "weights": [weight.detach() for weight in trainer.parameters],
        "optimizer": trainer.optimizer.state_dict(),
        "tokens": trainer.token_rng.get_state(),
    }
    if critic is not None and its_optimizer is not None:
        tensors["critic"] = [weight.detach() for weight in critic.parameters()]
        tensors["critic_optimizer"] = its_optimizer.state_dict()
    torch.save(tensors, folder / TENSORS)


def plain_state(trainer: Trainer) -> dict[str, Any]:
    """The rest of its state, as plain values."""
    return {
        "gradient_steps": trainer.gradient_steps,
        "problems": state_of(trainer.problem_rng),
        "groups": state_of(trainer.group_rng),
        "doctor": dict(vars(trainer.doctor)),
    }


@torch.no_grad()
def restore(trainer: Trainer, folder: Path, plain: dict[str, Any]) -> None:
    """Put a trainer that was made anew into the state of a checkpoint."""
    tensors = torch.load(folder / TENSORS, map_location="cpu", weights_only=True)
    pairs = [(trainer.parameters, tensors["weights"])]
    critic, its_optimizer = trainer.critic, trainer.critic_optimizer
    if critic is not None and its_optimizer is not None:
        pairs.append((list(critic.parameters()), tensors["critic"]))
        its_optimizer.load_state_dict(tensors["critic_optimizer"])
    for weights, saved in pairs:
        for weight, value in zip(weights, saved, strict=True):
            weight.copy_(value)
    trainer.optimizer.load_state_dict(tensors["optimizer"])
    trainer.token_rng.set_state(tensors["tokens"])
    set_state(trainer.problem_rng, plain["problems"])
    set_state(trainer.group_rng, plain["groups"])
    trainer.gradient_steps = plain["gradient_steps"]
    vars(trainer.doctor).update(plain["doctor"])
