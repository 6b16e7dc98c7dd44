"""On a CUDA device: what is generated, and what is learned from it, is that of the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
from support.tiny import EOS, PROMPTS, made_up, texts, tiny_llama

from grpo_bench.config import composed
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora, add_lora
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.setup import make_trainer

pytestmark = pytest.mark.gpu
DEVICES = ("cpu", "cuda")


def drawn(device: str, temperature: float) -> Completions:
    generator = torch.Generator().manual_seed(0)
    model = tiny_llama().to(device)
    return generate(model, PROMPTS, 4, 12, temperature, (EOS,), generator)


def on(device: str, given: Completions) -> Completions:
    parts = (part.to(device) for part in (given.ids, given.length, given.logp, given.truncated))
    return Completions(*parts, given.group_size)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_generation_is_that_of_the_cpu(temperature: float) -> None:
    cpu, cuda = (drawn(device, temperature) for device in DEVICES)
    assert cuda.ids.device.type == "cuda"
    assert texts(cuda) == texts(cpu)
    assert cuda.truncated.tolist() == cpu.truncated.tolist()
    torch.testing.assert_close(cuda.logp.cpu(), cpu.logp, rtol=0, atol=1e-4)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("rank", [0, 4])
def test_an_update_is_that_of_the_cpu(rank: int, checkpointed: bool) -> None:
    """Compared before the optimiser too, whose first step is the sign of the gradient."""
    gradients, weights = [], []
    for device in DEVICES:
        model = tiny_llama().train()
        if rank:
            add_lora(model, Lora(rank), seed=0)
        if checkpointed:
            model.activation_checkpointing_enable()
        model.to(device)
        given = made_up([3, 9, 1, 5, 4, 4, 2, 7], group_size=2)
        completions = on(device, given)
        optimizer = make_optimizer("adamw", model.parameters(), 1e-3)
        found = completion_logprobs(model, PROMPTS, completions, 0.7, entropy=True)
        (found.logp.sum() + 0.1 * found.entropy.sum()).backward()
        trained = [weight for weight in model.parameters() if weight.grad is not None]
        gradients.append(torch.cat([weight.grad.flatten().cpu() for weight in trained]))
        optimizer.step()
        weights.append(torch.cat([weight.detach().flatten().cpu() for weight in trained]))
    scale = gradients[0].abs().max().item()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-4 * scale)
    clear = gradients[0].abs() > 1e-3 * scale  # elsewhere rounding decides the sign
    torch.testing.assert_close(weights[1][clear], weights[0][clear], rtol=0, atol=1e-5)


ALGORITHMS = {
    "grpo": ["algo=grpo", "algo.kl=k3", "+algo.kl_coef=0.1", "algo.group_size=4"],
    **{name: [f"algo={name}"] for name in ("ppo", "ppo_shared", "lm/ppo_lora")},
}
SMALL = [
    *("model=tiny", "env=arithmetic_text", "budget=smoke", "model.dtype=float32"),
    *("env.train.episodes=16", "env.train.group_size=4", "env.train.learning_rate=1e-3"),
]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_trainer_learns_what_it_does_on_the_cpu(algo: str) -> None:
    """The same completions with rewards that differ: metrics, and weights after a step, of which
    rounding may turn some."""
    metrics, weights = [], []
    config = composed(*SMALL, *ALGORITHMS[algo])
    played = make_trainer(config).collect()
    reward = np.linspace(-1, 2, 16) ** 2
    played = replace(played, outcome=replace(played.outcome, reward=reward))
    for device in DEVICES:
        trainer = make_trainer(config, device)
        there = replace(played, completions=on(device, played.completions))
        metrics.append(trainer.update(there))
        moved = [weight.detach().flatten().cpu() for weight in trainer.parameters]
        weights.append(torch.cat(moved))
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-4)
    apart = (weights[1] - weights[0]).abs()
    assert (apart > 1e-5).float().mean() < 0.01


def test_a_run_on_the_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo_bench.run", *SMALL, "device=cuda", "results=runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.rglob("manifest.json")
    manifest = json.loads(path.read_text())
    assert manifest["status"] == "ok"
    assert manifest["provenance"]["accelerator"] == torch.cuda.get_device_name()
