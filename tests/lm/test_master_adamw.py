"""MasterAdamW is torch's AdamW in float32; weights in bfloat16 are its rounded masters."""

from __future__ import annotations

from io import BytesIO

import pytest

pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from grpo_bench.lm import optimizer as module
from grpo_bench.lm.optimizer import MasterAdamW, buckets, make_optimizer
from grpo_bench.meter.memory import optimizer_bytes

SHAPES = [(5, 3), (7,), (1,), (4, 4)]
SETTINGS = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """The same values in every type: they are multiples of 1/8."""
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter((torch.randint(-9, 9, shape, generator=generator) / 8).to(dtype))
        for shape in SHAPES
    ]


def gradients(step: int) -> list[Tensor]:
    """In bfloat16, so that both types can be given the same ones."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator).bfloat16() for shape in SHAPES]


def advance(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient.to(weight.dtype)
        optimizer.param_groups[0]["lr"] = 3e-3 / (1 + step)  # as a schedule would
        optimizer.step()


def masters(weights: list[nn.Parameter], optimizer: MasterAdamW) -> list[Tensor]:
    return [optimizer.state[weight]["master"] for weight in weights]


def assert_equal(ones: list[nn.Parameter] | list[Tensor], others: list[nn.Parameter]) -> None:
    for one, other in zip(ones, others, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_on_float32_it_is_torchs_bit_for_bit() -> None:
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    master, adamw = MasterAdamW(ours, **SETTINGS), AdamW(theirs, fused=True, **SETTINGS)
    advance(ours, master, range(10))
    advance(theirs, adamw, range(10))
    assert_equal(ours, theirs)
    state, wanted = master.state_dict(), adamw.state_dict()
    assert state["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(state["state"], wanted["state"], rtol=0, atol=0)
    master.load_state_dict(wanted)  # and each goes on from the other's checkpoint
    adamw.load_state_dict(state)
    advance(ours, master, range(10, 12))
    advance(theirs, adamw, range(10, 12))
    assert_equal(ours, theirs)


def test_masters_follow_float32_and_weights_are_rounded_masters() -> None:
    rounded, exact = parameters(torch.bfloat16), parameters(torch.float32)
    optimizer = MasterAdamW(rounded, **SETTINGS)
    advance(rounded, optimizer, range(10))
    advance(exact, AdamW(exact, fused=True, **SETTINGS), range(10))
    assert_equal(masters(rounded, optimizer), exact)
    assert_equal(rounded, [nn.Parameter(weight.bfloat16()) for weight in exact])


def test_small_updates_add_up() -> None:
    """A weight of 1 and gradients of 1: each step takes lr = 0.001 off. Below 1, bfloat16 has steps
    of 2^-8: 0.999 is rounded to 1, 0.998 to 1 - 2^-8, since it is below the middle, 1 - 2^-9."""
    settings = {"lr": 1e-3, "weight_decay": 0.0}
    ours, theirs = (nn.Parameter(torch.ones(1, dtype=torch.bfloat16)) for _ in range(2))
    master, adamw = MasterAdamW([ours], **settings), AdamW([theirs], fused=True, **settings)
    seen = []
    for _ in range(2):
        for weight, optimizer in ((ours, master), (theirs, adamw)):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        seen.append(ours.item())
    assert seen == [1.0, 1 - 2**-8]
    assert master.state[ours]["master"].item() == pytest.approx(0.998, abs=1e-6)
    assert theirs.item() == 1.0  # without masters nothing ever happens


def test_a_checkpoint_goes_on_as_if_nothing_had_been() -> None:
    through, before, after = (parameters(torch.bfloat16) for _ in range(3))
    straight, first = MasterAdamW(through, **SETTINGS), MasterAdamW(before, **SETTINGS)
    advance(through, straight, range(8))
    advance(before, first, range(5))
    file = BytesIO()
    torch.save([[weight.data for weight in before], first.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    for weight, saved in zip(after, weights, strict=True):
        weight.data.copy_(saved)
    second = MasterAdamW(after, **SETTINGS)
    second.load_state_dict(state)
    advance(after, second, range(5, 8))
    assert_equal(after, through)
    assert_equal(masters(after, second), masters(through, straight))  # type: ignore[arg-type]


def test_a_loaded_state_is_a_copy() -> None:
    weights, others = parameters(torch.bfloat16), parameters(torch.bfloat16)
    optimizer, other = MasterAdamW(weights, **SETTINGS), MasterAdamW(others, **SETTINGS)
    advance(weights, optimizer, range(1))
    other.load_state_dict(optimizer.state_dict())
    advance(others, other, range(1, 2))
    assert optimizer.state[weights[0]]["step"].item() == 1


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (1, [[0], [1], [2], [3]]),  # 15, 7, 1 and 16 elements, none of which fits with another
        (8, [[0], [1, 2], [3]]),
        (22, [[0, 1], [2, 3]]),
        (39, [[0, 1, 2, 3]]),
    ],
)
def test_buckets(size: int, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    weights, others = parameters(torch.bfloat16), parameters(torch.bfloat16)
    found = [
        [next(i for i, w in enumerate(weights) if w is x) for x in b]
        for b in buckets(weights, size)
    ]
    assert found == wanted
    advance(weights, MasterAdamW(weights, **SETTINGS), range(3))
    monkeypatch.setattr(module, "BUCKET", size)
    advance(others, MasterAdamW(others, **SETTINGS), range(3))
    assert_equal(others, weights)


def test_no_weights_no_buckets() -> None:
    assert list(buckets([], 8)) == []


def test_a_weight_without_a_gradient_stays_as_it_is() -> None:
    weights = parameters(torch.bfloat16)
    optimizer = MasterAdamW(weights, **SETTINGS)
    weights[0].grad = gradients(0)[0]
    optimizer.step()
    assert_equal(weights[1:], parameters(torch.bfloat16)[1:])
    assert not torch.equal(weights[0], parameters(torch.bfloat16)[0])
    assert list(optimizer.state) == weights[:1]
    optimizer.zero_grad()
    assert weights[0].grad is None


@pytest.mark.parametrize(("dtype", "each"), [(torch.bfloat16, 12), (torch.float32, 8)])
def test_its_bytes(dtype: torch.dtype, each: int) -> None:
    """Two moments of 4 bytes and a master of 4 for each element, a count of 4 for each weight."""
    weights = parameters(dtype)
    optimizer = MasterAdamW(weights, **SETTINGS)
    assert optimizer_bytes(optimizer) == 0
    advance(weights, optimizer, range(1))
    assert optimizer_bytes(optimizer) == (15 + 7 + 1 + 16) * each + 4 * 4


# -- by name --------------------------------------------------------------------------------------


def test_the_optimiser_has_the_weights_that_are_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    optimizer = make_optimizer("adamw", model.parameters(), 0.25, weight_decay=0.5)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, MasterAdamW)
    assert [group["lr"], group["weight_decay"]] == [0.25, 0.5]
    assert group["params"] == [*model[1].parameters()]


def test_names_that_are_wrong() -> None:
    with pytest.raises(ValueError, match=r"'sgd': expected one of adamw, adamw_plain, adamw_8bit"):
        make_optimizer("sgd", nn.Linear(1, 1).parameters(), 0.1)
    with pytest.raises(ValueError, match="nothing"):
        make_optimizer("adamw", nn.Linear(1, 1).requires_grad_(False).parameters(), 0.1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_eight_bits_need_a_gpu() -> None:
    with pytest.raises(ValueError, match="'adamw_8bit': needs a CUDA device; without one"):
        make_optimizer("adamw_8bit", nn.Linear(1, 1).parameters(), 0.1)


@pytest.mark.gpu
def test_on_a_gpu_masters_follow_float32() -> None:
    rounded = [nn.Parameter(weight.cuda()) for weight in parameters(torch.bfloat16)]
    exact = [nn.Parameter(weight.cuda()) for weight in parameters(torch.float32)]
    ours, theirs = MasterAdamW(rounded, **SETTINGS), AdamW(exact, fused=True, **SETTINGS)
    for step in range(5):
        for one, other, gradient in zip(rounded, exact, gradients(step), strict=True):
            one.grad, other.grad = gradient.cuda(), gradient.cuda().float()
        ours.step()
        theirs.step()
    assert_equal(masters(rounded, ours), exact)
    assert_equal(rounded, [nn.Parameter(weight.bfloat16()) for weight in exact])
