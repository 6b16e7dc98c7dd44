"""Two processes make the update of one: with whole weights on each, and in shards (gloo, CPU)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from support.ranks import SIZE, together
from support.tiny import EOS, PROMPTS, made_up, texts, tiny_llama
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_bench.grpo.advantages import group_advantages
from grpo_bench.grpo.objectives import AGGREGATIONS, aggregation_weights, policy_loss
from grpo_bench.lm.generation import generate
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora, add_lora
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.parallel import World
from grpo_bench.lm.saving import plain_weights
from grpo_bench.lm.sharding import shard, units, whole
from grpo_bench.meter.memory import module_bytes

# What rank 0 plays is short and badly paid, what rank 1 plays is long and well paid: denominators
# and baselines of their own would be far from the common ones.
GROUP = 2
LENGTHS = [1, 2, 1, 1, 9, 8, 9, 7]
REWARDS = torch.tensor([[0.0, 0.1], [0.1, 0.0], [5.0, -4.0], [9.0, 1.0]])
LIMIT = 9  # tokens
ALONE = World()
LEARNING_RATE = 1e-3
CLIP = 0.05  # of the gradient's norm

# AdamW's eps. With 1e-8, a step is the sign of the gradient, and a number near 0 has its sign from
# rounding. With the largest number that the clipped gradient can have, a step of lr changes by at
# most 2 * lr / eps times what the gradient changes by.
EPS = CLIP

# Rounding of a gradient, relative to the largest number of a tensor. The gradient in float32 was up
# to 22 eps of float32 from that in float64 (both with and without vector instructions), so two
# orders of summation are up to 44 apart; this is 3 times as much. bfloat16 has 8 bits.
ROUNDING = {torch.float32: 128 * 2**-23, torch.bfloat16: 5 * 2**-8}

# A weight is rounded four times in two steps, for its decay and its move; in bfloat16, where this
# happens on float32 masters, it is rounded once.
LAST_BITS = {torch.float32: 4 * 2**-23, torch.bfloat16: 2**-7}

# (dtype, rank of the adapters, checkpointing): in shards, and whole
KINDS = {
    "full": (torch.float32, 0, False),
    "lora": (torch.float32, 4, False),
    "checkpointed": (torch.float32, 0, True),
    "bfloat16": (torch.bfloat16, 0, False),
}


def policy(kind: str = "full") -> PreTrainedModel:
    dtype, rank, checkpointed = KINDS[kind]
    model = tiny_llama(dtype).train()
    if rank:
        add_lora(model, Lora(rank), seed=0)
    if checkpointed:
        model.activation_checkpointing_enable()
    return model


def tensors(model: PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
    return list(model.parameters()), list(model.buffers())


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def accumulate(model: nn.Module, world: World, aggregation: str, apart: bool = False) -> None:
    """The gradient of a GRPO step whose baseline is the batch's, a group at a time. ``apart``:
    as if the ranks had never heard of each other."""
    groups = range(len(PROMPTS))[world.own(len(PROMPTS))]
    mine = made_up(LENGTHS, GROUP).of_groups(groups)
    others = ALONE if apart else world
    own = slice(None) if apart else world.own(len(LENGTHS))
    rewards = others.gather(REWARDS[groups.start : groups.stop])
    mask = others.gather(mine.mask)
    advantages = group_advantages(rewards, "batch_std").flatten()[own]
    weights = aggregation_weights(mask, aggregation, LIMIT)[own]
    for i, group in enumerate(groups):
        part, rows = mine.of_groups([i]), slice(i * GROUP, (i + 1) * GROUP)
        logp = completion_logprobs(model, [PROMPTS[group]], part, 0.7).logp
        old = logp.detach() - 0.1
        policy_loss(logp, old, advantages[rows], part.mask, weights=weights[rows]).loss.backward()
    world.sum_gradients(model.parameters())


def update(model: PreTrainedModel, world: World, aggregation: str, **how: Any) -> dict[str, Any]:
    """Two such steps: the gradient of the first, its norm, and the weights after both."""
    optimizer = make_optimizer("adamw", model.parameters(), LEARNING_RATE)
    optimizer.param_groups[0]["eps"] = EPS
    found: dict[str, Any] = {}
    for _ in range(2):
        optimizer.zero_grad()
        accumulate(model, world, aggregation, **how)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        gradient = {n: full(p.grad) for n, p in named.items() if p.grad is not None}
        norm = world.clip_gradients(named.values(), CLIP)
        found = found or {"gradient": gradient, "norm": norm}
        optimizer.step()
    return found | {"weights": {n: full(p.detach()) for n, p in named.items()}}


def completions(model: PreTrainedModel, rank: int) -> list[list[int]]:
    """So many that ranks do not make equally many passes."""
    generator = torch.Generator().manual_seed(rank)
    prompts = PROMPTS[: 1 + rank]
    return texts(generate(model, prompts, 3, 4 + 5 * rank, 0.7, (EOS,), generator))


def scenario(world: World) -> dict[str, Any]:
    """All that two ranks have to do for this file: processes are slow to start."""
    found: dict[str, Any] = {"rank": world.rank, "size": world.size}
    ones = torch.ones(1 + world.rank, 2 + world.rank, 2, dtype=torch.long)
    found["gathered"] = world.gather((1 + world.rank) * ones)
    found["most"] = world.most(7 - world.rank)
    found["own"] = [world.gather(torch.arange(n)[world.own(n)]).tolist() for n in range(6)]
    found["sums"] = gradients_of_two_types(world)
    weight = nn.Parameter(torch.tensor([1.0, 2.0 + 1e-3 * world.rank]))
    world.check_equal([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match="rank 0") as error:
        world.check_equal([weight])
    found["unequal"] = str(error.value)
    for aggregation in AGGREGATIONS:
        found[aggregation] = update(policy(), world, aggregation)
    found["apart"] = update(policy(), world, "token_mean", apart=True)
    for kind in KINDS:
        model = policy(kind)
        shard(model)
        found[f"{kind} bytes"] = module_bytes(model)
        with whole(model):
            found[f"{kind} text"] = completions(model, world.rank)
        found[f"{kind} in shards"] = update(model, world, "token_mean")
        found[f"{kind} saved"] = plain_weights(model)
        found[f"{kind} back"] = all(isinstance(p, DTensor) for p in model.parameters())
    return found


def gradients_of_two_types(world: World) -> list[Tensor | None]:
    """(1, 1) + (10, 10) in float32, 2 + nothing in bfloat16, nothing, and what is not trained."""
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))]
    weights += [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1), requires_grad=False)]
    weights[0].grad = torch.full((2,), 10.0**world.rank)
    if world.rank == 0:
        weights[1].grad = torch.tensor([2.0], dtype=torch.bfloat16)
    world.sum_gradients(weights)
    return [weight.grad for weight in weights]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(scenario, tmp_path_factory.mktemp("ranks"))


def assert_same(
    found: dict[str, Any], wanted: dict[str, Any], dtype: torch.dtype = torch.float32
) -> None:
    """Up to rounding: of the gradient, of what two steps make of it, and of the weights."""
    error = ROUNDING[dtype]
    torch.testing.assert_close(found["norm"], wanted["norm"], rtol=error, atol=0)
    for name, value in wanted["gradient"].items():
        atol = error * value.abs().max().item()
        torch.testing.assert_close(found["gradient"][name], value, rtol=0, atol=atol, msg=name)
    atol, rtol = 2 * 2 * LEARNING_RATE * error, LAST_BITS[dtype]
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=rtol, atol=atol, msg=name)
    assert all(found[what].keys() == wanted[what].keys() for what in ("gradient", "weights"))


# -- one process ----------------------------------------------------------------------------------


def test_one_process_is_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    world, rows = World.here(), torch.rand(3, 2)
    assert (world.rank, world.size, world.most(4)) == (0, 1, 4)
    assert range(5)[world.own(5)] == range(5)
    assert world.gather(rows) is rows
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    world.sum_gradients([weight])
    world.check_equal([weight])
    assert weight.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("max_norm", [0.5, 50.0])
def test_clipping_is_torchs(max_norm: float) -> None:
    weights, others = ([nn.Parameter(torch.zeros(n)) for n in (3, 1, 5)] for _ in range(2))
    for one, other in zip(weights[1:], others[1:], strict=True):
        one.grad, other.grad = torch.full_like(one, 2.0), torch.full_like(one, 2.0)
    norm = ALONE.clip_gradients(weights, max_norm)
    assert norm.item() == pytest.approx(24**0.5)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(others, max_norm))
    assert weights[0].grad is None
    for one, other in zip(weights[1:], others[1:], strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_norm_of_bfloat16_is_taken_in_float32() -> None:
    """In bfloat16 the squares of 1,000 ones add up to 256: 257 is no number of it."""
    weight = nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    assert ALONE.clip_gradients([weight], 100.0).item() == pytest.approx(1000**0.5)


def test_the_norm_stays_on_the_device() -> None:
    """A copy to the host would wait for the backward pass; of tensors on meta there is none."""
    weight = nn.Parameter(torch.ones(3, device="meta"))
    weight.grad = torch.ones(3, device="meta")
    assert ALONE.clip_gradients([weight], 1.0).device.type == "meta"


def test_more_processes_than_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "64")
    with pytest.raises(ValueError, match="one process for each CUDA device"):
        World.here("cuda")
    with pytest.raises(ValueError, match="device=cuda:0 in 2 processes: expected cuda, cpu or"):
        World.here("cuda:0")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 12])
def test_parts_are_all_and_as_equal_as_can_be(size: int, n: int) -> None:
    parts = [range(n)[World(rank, size).own(n)] for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_model_that_is_not_in_shards_is_whole() -> None:
    model = policy()
    assert units(model) == []
    with whole(model):
        assert completions(model, 0) == completions(policy(), 0)


# -- two ------------------------------------------------------------------------------------------


def test_ranks_know_each_other(ranks: list[dict[str, Any]]) -> None:
    assert [(found["rank"], found["size"]) for found in ranks] == [(0, SIZE), (1, SIZE)]
    for found in ranks:
        one, two = [1, 1], [2, 2]
        assert found["gathered"].tolist() == [[one, one, [0, 0]], [two] * 3, [two] * 3]
        assert found["gathered"].dtype == torch.long
        assert found["most"] == 7
        assert found["own"] == [list(range(n)) for n in range(6)]


def test_gradients_are_summed_by_type(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        first, second, *rest = found["sums"]
        assert first.tolist() == [11.0, 11.0] and first.dtype == torch.float32
        assert second.tolist() == [2.0] and second.dtype == torch.bfloat16
        assert rest == [None, None]


def test_unequal_weights_are_found(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["unequal"].startswith("ranks [1]:")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_two_ranks_make_the_update_of_one(ranks: list[dict[str, Any]], aggregation: str) -> None:
    wanted = update(policy(), ALONE, aggregation)
    for found in ranks:
        assert_same(found[aggregation], wanted)


def test_ranks_apart_would_not(ranks: list[dict[str, Any]]) -> None:
    """What the test above would see if denominators and baselines were those of a rank."""
    wanted = update(policy(), ALONE, "token_mean")
    assert abs(ranks[0]["apart"]["norm"] / wanted["norm"] - 1) > 0.1
    for what in ("gradient", "weights"):
        with pytest.raises(AssertionError):
            assert_same(wanted | {what: ranks[0]["apart"][what]}, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_make_the_same_update(ranks: list[dict[str, Any]], kind: str) -> None:
    wanted = update(policy(kind), ALONE, "token_mean")
    for found in ranks:
        assert_same(found[f"{kind} in shards"], wanted, KINDS[kind][0])


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_shards(ranks: list[dict[str, Any]], kind: str) -> None:
    """Each rank keeps half of the weights, before and after; the sizes here are all even."""
    weights, buffers = (sum(t.nbytes for t in ts) for ts in tensors(policy(kind)))
    assert [found[f"{kind} bytes"] for found in ranks] == [weights // 2 + buffers] * SIZE
    assert all(found[f"{kind} back"] for found in ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_saved_as_the_whole(ranks: list[dict[str, Any]], kind: str) -> None:
    model = policy(kind)
    names = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in ranks[0][f"{kind} in shards"]["weights"].items():
            names[name].copy_(weight)
    wanted = plain_weights(model)
    for found in ranks:
        saved = found[f"{kind} saved"]
        assert saved.keys() == wanted.keys()
        for name, weight in saved.items():
            assert torch.equal(weight, wanted[name]), name
        assert saved["lm_head.weight"] is saved["model.embed_tokens.weight"]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_generate_what_the_whole_does(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank, found in enumerate(ranks):
        assert found[f"{kind} text"] == completions(policy(kind), rank)
