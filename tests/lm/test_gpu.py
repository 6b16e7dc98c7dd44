"""On a CUDA device: what is generated, and what is learned from it, is that of the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import torch
from tiny import EOS, PROMPTS, made_up, texts, tiny_llama

from grpo_bench.lm.completions import Completions
from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora, add_lora
from grpo_bench.lm.optimizer import make_optimizer

# pytestmark = pytest.mark.gpu
DEVICES = ("cpu", "cuda")


def drawn(device: str, temperature: float) -> Completions:
    generator = torch.Generator().manual_seed(0)
    model = tiny_llama().to(device)
    return generate(model, PROMPTS, 4, 12, temperature, (EOS,), generator)


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
        parts = (part.to(device) for part in (given.ids, given.length, given.logp, given.truncated))
        completions = Completions(*parts, given.group_size)
        optimizer = make_optimizer("adamw", model, 1e-3)
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
