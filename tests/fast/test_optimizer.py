"""EagerAdam is torch's Adam, bit for bit, and works under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grpo_bench.fast.optimizer import EagerAdam

SETTINGS: list[dict[str, Any]] = [
    {"fused": True, "eps": 1e-5},
    {"fused": True, "amsgrad": True, "weight_decay": 0.1, "maximize": True, "betas": (0.8, 0.9)},
    {"fused": True, "decoupled_weight_decay": True, "weight_decay": 0.1},
    {"lr": 0.1},
    {"foreach": False, "amsgrad": True, "weight_decay": 0.1},
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))


def step(forward: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    forward(torch.ones(4, 5)).square().sum().backward()
    optimizer.step()


def assert_same(first: nn.Module, second: nn.Module) -> None:
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_steps_and_the_same_state_as_torch(settings: dict[str, Any]) -> None:
    ours, theirs = net(), net()
    eager = EagerAdam(ours.parameters(), **settings)
    adam = torch.optim.Adam(theirs.parameters(), **settings)
    for _ in range(10):
        step(ours, eager)
        step(theirs, adam)
    assert_same(ours, theirs)
    state, wanted = eager.state_dict(), adam.state_dict()
    assert state["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(state["state"], wanted["state"], rtol=0, atol=0)
    eager.load_state_dict(wanted)  # each goes on from the other's checkpoint
    adam.load_state_dict(state)
    step(ours, eager)
    step(theirs, adam)
    assert_same(ours, theirs)


@pytest.mark.parametrize("fused", [True, False])
def test_parameters_without_a_gradient_stay(fused: bool) -> None:
    module, before = net(), net()
    optimizer = EagerAdam(module.parameters(), lr=1.0, fused=fused)
    optimizer.step()
    assert_same(module, before)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    optimizer.step()
    torch.testing.assert_close(module[0].weight, before[0].weight - 1)  # Adam's first step is lr
    assert torch.equal(module[0].bias, before[0].bias)


def test_hooks_run_once_a_step() -> None:
    module, calls = net(), []
    optimizer = EagerAdam(module.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    step(module, optimizer)
    assert calls == ["before", "after"]


def test_a_step_with_a_closure_and_without_gradients() -> None:
    module = net()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = EagerAdam(module.parameters())
    loss = optimizer.step(lambda: module(torch.ones(1, 5)).sum())
    assert loss.requires_grad  # the closure runs with gradients, the step without
    assert all(map(torch.equal, before, module.parameters()))


@pytest.mark.parametrize("compiled_step", [False, True])
def test_with_a_compiled_network_and_in_a_compiled_step(compiled_step: bool) -> None:
    torch.compiler.reset()
    plain, compiled = net(), net()
    eager, other = EagerAdam(plain.parameters()), EagerAdam(compiled.parameters())
    forward = torch.compile(compiled, backend="eager")
    advance = torch.compile(step, backend="eager") if compiled_step else step
    for _ in range(3):
        step(plain, eager)
        advance(forward, other)
    for one, two in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one, two)
