"""Critics: their values and gradients against passes of whole texts, and what they leave alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from support.tiny import PROMPTS, texts
from test_logprobs import GROUP, LENGTHS, TEMPERATURE, completions, weights
from torch import Tensor, nn

from grpo_bench.lm.completions import Completions
from grpo_bench.lm.critics import KINDS, Critic, make_critic
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.lora import Lora, Reference, adapters, base_of
from grpo_bench.lm.models import load_model
from grpo_bench.lm.optimizer import MasterAdamW

IDS = torch.tensor([[1, 5, 2, 9, 2, 40], [7, 2, 2, 2, 100, 258]])
LORA = Lora(rank=2)
ROUNDING = 5e-5  # of a gradient in float32, relative

# the policy is trained whole or by LoRA, and has a reference beside it or not
SETTINGS = [(lora, referenced) for lora in (Lora(), LORA) for referenced in (False, True)]


def made(
    kind: str, lora: Lora, referenced: bool, dtype: str = "float32", checkpointing: bool = False
) -> tuple[Any, Reference | None, Critic]:
    """Policy, reference and critic, of which those that learn have been trained for a while."""
    policy = load_model(
        "tiny", dtype=dtype, lora=lora, gradient_checkpointing=checkpointing, seed=3
    ).model
    reference = Reference(policy) if referenced else None
    critic = make_critic(kind, policy, reference, LORA, seed=4)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in trained(policy) + critic.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) / 10)
    return policy, reference, critic


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def logits(model: Any) -> Tensor:
    return model(IDS, use_cache=False).logits


def plain_values(critic: Critic, prompts: list[list[int]], made: Completions) -> Tensor:
    """(n, T), 0 beyond the length: each whole text on its own, the value head on every state."""
    values = torch.zeros(made.ids.shape)
    for i, text in enumerate(texts(made)):
        prompt = prompts[i // made.group_size]
        states = critic.trunk(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False)
        of_all = critic.head(states.last_hidden_state[0].float()).squeeze(1)
        values[i, : len(text)] = of_all[len(prompt) - 1 : -1]
    return values


def gradients(values: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """Of a weighted sum of the values, as one vector; 0 where there is none."""
    for parameter in parameters:
        parameter.grad = None
    (weights()[0] * values).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([grad.float().flatten() for grad in grads])


# -- the same as plain ----------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("lora", "referenced"), SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_the_plain_ones(
    kind: str, lora: Lora, referenced: bool, checkpointing: bool
) -> None:
    policy, _, critic = made(kind, lora, referenced, checkpointing=checkpointing)
    learn = trained(policy) + critic.parameters()
    ours = critic.values(PROMPTS, completions())
    theirs = plain_values(critic, PROMPTS, completions())
    assert ours.dtype == torch.float32
    assert (ours[~completions().mask] == 0).all()
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    found, wanted = gradients(ours, learn), gradients(theirs, learn)
    assert wanted.norm() > 1
    assert (found - wanted).norm() < ROUNDING * wanted.norm()


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("lora", [Lora(), LORA])
def test_the_policy_s_pass_gives_the_shared_critic_s_values(lora: Lora, share_prefix: bool) -> None:
    """Log-probabilities and entropies stay as they are, and all is there after one pass."""
    policy, _, critic = made("shared", lora, False)
    alone = completion_logprobs(policy, PROMPTS, completions(), TEMPERATURE, entropy=True)
    passes: list[int] = []
    policy.model.layers[0].register_forward_pre_hook(lambda *_: passes.append(1))
    both = completion_logprobs(
        policy,
        PROMPTS,
        completions(),
        TEMPERATURE,
        share_prefix=share_prefix,
        entropy=True,
        value_head=critic.head,
    )
    assert len(passes) == 1
    assert both.value is not None
    torch.testing.assert_close(both.logp, alone.logp, rtol=0, atol=2e-5)
    torch.testing.assert_close(both.entropy, alone.entropy, rtol=0, atol=2e-5)
    plain = plain_values(critic, PROMPTS, completions())
    torch.testing.assert_close(both.value, plain, rtol=0, atol=2e-5)
    learn = trained(policy) + critic.parameters()
    found, wanted = gradients(both.value, learn), gradients(plain, learn)
    assert (found - wanted).norm() < ROUNDING * wanted.norm()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [Lora(), LORA])
@pytest.mark.parametrize("kind", KINDS)
def test_one_backward_of_both_losses_is_the_sum_of_two(
    kind: str, lora: Lora, checkpointing: bool
) -> None:
    """Nothing is switched between the passes that a checkpoint would have to switch back."""
    policy, _, critic = made(kind, lora, True, checkpointing=checkpointing)
    learn = trained(policy) + critic.parameters()

    def logp() -> Tensor:
        return completion_logprobs(policy, PROMPTS, completions(), TEMPERATURE).logp

    def values() -> Tensor:
        return critic.values(PROMPTS, completions())

    alone = gradients(logp(), learn) + gradients(values(), learn)
    together = gradients(logp() + values(), learn)
    assert (together - alone).norm() < ROUNDING * alone.norm()


def test_only_states_that_predict_meet_the_value_head_in_float32() -> None:
    policy, _, critic = made("shared", Lora(), False, dtype="bfloat16")
    met: list[Tensor] = []
    critic.head.register_forward_hook(lambda module, inputs, output: met.append(inputs[0]))
    made_up = completions()
    value = completion_logprobs(policy, PROMPTS, made_up, 1.0, value_head=critic.head).value
    assert value is not None
    assert [states.shape for states in met] == [(sum(LENGTHS), 32)]
    assert met[0].dtype == value.dtype == critic.head.weight.dtype == torch.float32


def test_without_gradient() -> None:
    critic = made("separate", Lora(), False)[2]
    with torch.no_grad():
        assert not critic.values(PROMPTS, completions()).requires_grad


# -- at first -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [Lora(), LORA])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_0_at_first_and_the_head_learns(kind: str, lora: Lora) -> None:
    policy = load_model("tiny", dtype="float32", lora=lora).model
    critic = make_critic(kind, policy, None, LORA, seed=0)
    values = critic.values(PROMPTS, completions())
    assert (values == 0).all()
    assert gradients(values, list(critic.head.parameters())).abs().min() > 0


def test_a_critic_is_made_from_its_seed_alone() -> None:
    policy = load_model("tiny", lora=LORA, seed=3).model
    before = torch.get_rng_state()
    first, same, other = (make_critic("lora", policy, None, LORA, seed) for seed in (1, 1, 2))
    make_critic("separate", policy, None, LORA, 0)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(first.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two, _ in pairs)
    assert not all(torch.equal(one, three) for one, _, three in pairs)


# -- what a critic leaves alone -------------------------------------------------------------------


@pytest.mark.parametrize(("lora", "referenced"), SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_making_and_asking_a_critic_changes_nothing(
    kind: str, lora: Lora, referenced: bool
) -> None:
    policy, reference, critic = made(kind, lora, referenced)
    learning = [p.requires_grad for p in policy.parameters()]
    alone = load_model("tiny", dtype="float32", lora=lora, seed=3).model
    assert learning == [p.requires_grad for p in alone.parameters()]
    before, values = logits(policy), critic.values(PROMPTS, completions())
    values.sum().backward()
    assert torch.equal(logits(policy), before)
    assert learning == [p.requires_grad for p in policy.parameters()]
    if reference is None:
        return
    base = load_model("tiny", dtype="float32", seed=3).model
    with reference.active() as model:
        assert torch.equal(logits(model), logits(base))
        if kind != "shared":  # it is not the reference's pass that switches a critic off
            assert torch.equal(critic.values(PROMPTS, completions()), values)


@pytest.mark.parametrize(("lora", "referenced"), SETTINGS)
@pytest.mark.parametrize("kind", ["separate", "lora"])
def test_training_a_critic_leaves_policy_and_reference_as_they_are(
    kind: str, lora: Lora, referenced: bool
) -> None:
    """To the bit; the critic has moved, all of it or its adapters and head."""
    policy, reference, critic = made(kind, lora, referenced)
    before, old = logits(policy), critic.values(PROMPTS, completions())
    frozen = copy.deepcopy(list(critic.trunk.parameters()))
    optimizer = MasterAdamW(critic.parameters(), lr=1e-2)
    critic.values(PROMPTS, completions()).square().sum().backward()
    optimizer.step()
    assert torch.equal(logits(policy), before)
    assert all(p.grad is None for p in policy.parameters())
    if reference is not None:
        base = load_model("tiny", dtype="float32", seed=3).model
        with reference.active() as model:
            assert torch.equal(logits(model), logits(base))
    new = critic.values(PROMPTS, completions())
    assert (new - old)[completions().mask].abs().min() > 0
    moved = [not torch.equal(p, f) for p, f in zip(critic.trunk.parameters(), frozen, strict=True)]
    assert moved == [p.requires_grad for p in critic.trunk.parameters()]


@pytest.mark.parametrize("lora", [Lora(), LORA])
@pytest.mark.parametrize("kind", ["separate", "lora"])
def test_training_the_policy_leaves_a_critic_as_it_is(kind: str, lora: Lora) -> None:
    policy, _, critic = made(kind, lora, True)
    before = critic.values(PROMPTS, completions())
    logits(policy).square().sum().backward()
    MasterAdamW(trained(policy), lr=1e-2).step()
    assert torch.equal(critic.values(PROMPTS, completions()), before)


def test_the_value_loss_of_a_shared_critic_reaches_the_policy() -> None:
    policy, _, critic = made("shared", Lora(), False)
    assert gradients(critic.values(PROMPTS, completions()), trained(policy.model)).norm() > 1


def test_gradient_checkpointing_follows_the_policy() -> None:
    for kind in KINDS:
        for lora in (Lora(), LORA):
            passes: list[int] = []
            critic = made(kind, lora, True, checkpointing=True)[2]
            critic.trunk.layers[0].mlp.register_forward_pre_hook(lambda *_, p=passes: p.append(1))
            critic.values(PROMPTS, completions()).sum().backward()
            assert len(passes) == 2


# -- what it costs --------------------------------------------------------------------------------

# of tiny: 259 x 32 of the embedding, and of two layers; the adapters have rank x (inputs + outputs)
TRUNK = 259 * 32 + 2 * (2 * 32**2 + 2 * 32 * 16 + 3 * 32 * 96 + 2 * 32) + 32
ADAPTERS = 2 * 2 * (2 * 64 + 2 * 48 + 3 * 128)
HEAD = 32 + 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("kind", "lora", "referenced", "own", "learn"),
    [
        ("separate", Lora(), False, TRUNK + HEAD, TRUNK + HEAD),
        ("separate", LORA, True, TRUNK + HEAD, TRUNK + HEAD),
        ("shared", Lora(), True, HEAD, HEAD),
        ("shared", LORA, False, HEAD, HEAD),
        ("lora", LORA, False, ADAPTERS + HEAD, ADAPTERS + HEAD),
        ("lora", LORA, True, ADAPTERS + HEAD, ADAPTERS + HEAD),
        ("lora", Lora(), True, ADAPTERS + HEAD, ADAPTERS + HEAD),
        ("lora", Lora(), False, TRUNK + ADAPTERS + HEAD, ADAPTERS + HEAD),
    ],
)
def test_what_is_in_memory_for_the_critic_alone(
    kind: str, lora: Lora, referenced: bool, own: int, learn: int, device: str
) -> None:
    policy = load_model("tiny", device=device, lora=lora).model
    reference = Reference(policy) if referenced else None
    critic = make_critic(kind, policy, reference, LORA, seed=0)
    assert sum(p.numel() for p in critic.own_parameters()) == own
    assert sum(p.numel() for p in critic.parameters()) == learn
    elsewhere = {id(p) for p in policy.parameters()}
    if reference is not None and reference.frozen is not None:
        elsewhere |= {id(p) for p in reference.frozen.parameters()}
    assert not elsewhere & {id(p) for p in critic.own_parameters()}
    assert all(p.requires_grad for p in critic.parameters())
    assert {p.dtype for p in critic.trunk.parameters()} == {torch.bfloat16}
    everything = {id(p) for p in (*critic.trunk.parameters(), *critic.head.parameters())}
    assert everything <= elsewhere | {id(p) for p in critic.own_parameters()}


def test_the_base_of_a_model_with_adapters() -> None:
    policy = load_model("tiny", dtype="float32", lora=LORA, seed=3).model
    base = load_model("tiny", dtype="float32", seed=3).model
    wanted = base.model(IDS).last_hidden_state
    for share in (False, True):
        found = base_of(policy.model, share=share)
        assert not adapters(found)
        assert torch.equal(found(IDS).last_hidden_state, wanted)
        same = [
            p.data_ptr() == q.data_ptr()
            for p, q in zip(found.parameters(), base_parameters(policy.model), strict=True)
        ]
        assert all(same) if share else not any(same)
    assert len(adapters(policy)) == 2 * 7


def base_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if "lora_" not in name]


# -- bad input ------------------------------------------------------------------------------------


def test_a_kind_that_there_is_not() -> None:
    policy = load_model("tiny").model
    with pytest.raises(ValueError, match="critic='twin': expected one of separate, shared, lora"):
        make_critic("twin", policy, None, LORA, 0)


def test_adapters_without_a_rank() -> None:
    with pytest.raises(ValueError, match=r"lora.rank=0, lora.alpha=32: expected a rank"):
        make_critic("lora", load_model("tiny").model, None, Lora(), 0)


def test_numbers_that_do_not_go_together() -> None:
    critic = made("shared", Lora(), False)[2]
    with pytest.raises(ValueError, match=f"3 prompts and 12 completions in groups of {GROUP}"):
        critic.values(PROMPTS[:3], completions())
