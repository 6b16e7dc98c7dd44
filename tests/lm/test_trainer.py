"""The update: its gradient is that of the plain computation, for every option, whatever is packed,
chunked, split or left out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from support.new_names import MINE, with_mine
from support.tiny import plain_logp

from grpo_bench.config.rules import read
from grpo_bench.config.schema import AlgoConfig, TextEnvConfig
from grpo_bench.grpo.advantages import BASELINES, group_advantages, return_penalty
from grpo_bench.grpo.kl import FORMS, sample_term
from grpo_bench.grpo.loss import value_loss
from grpo_bench.grpo.objectives import AGGREGATIONS, aggregation_weights, policy_loss
from grpo_bench.lm.critics import make_critic
from grpo_bench.lm.gae import gae, token_rewards, whiten
from grpo_bench.lm.lora import Lora, Reference
from grpo_bench.lm.models import load_model
from grpo_bench.lm.settings import settings_of
from grpo_bench.lm.tasks import TextTask
from grpo_bench.lm.trainer import Trainer
from grpo_envs.task import Outcome

TEXT = {
    "id": "GRPO-Arithmetic-v0",
    "kwargs": {"preset": "easy"},
    "examples": 0,
    "generation": {"max_new_tokens": 5, "temperature": 0.8, "backend": "native"},
    "train": {"episodes": 12, "group_size": 3, "max_tokens": 150}
    | {"minibatches": 1, "n_epochs": 1, "learning_rate": 1e-3},
    "name": "arithmetic_text",
    "warmup": None,
    "transitions": {},
    "evaluation": {"batch_size": 8},
}
ENV = read(TextEnvConfig, TEXT)
GRPO = {"kind": "grpo", "learning_rate": 1e-3, "n_epochs": 1, "minibatches": 1, "group_size": 3}
PPO = {"kind": "ppo", "learning_rate": 1e-3, "n_epochs": 1, "minibatches": 1}
REWARDS = [1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0]  # the second group is flat


def algo_of(options):
    return read(AlgoConfig, {"name": "x", **options})


def trainer_of(algo, rank=0, env=ENV):
    """A trainer of the tiny model in float32, whose critic and reference know something else."""
    lm = load_model("tiny", dtype="float32", lora=Lora(rank))
    settings = settings_of(algo_of({"max_grad_norm": 1e9, **algo}), env.train, 5)
    reference = None if settings.kl == "none" else Reference(lm.model)
    critic = None
    if settings.kind == "ppo":
        critic = make_critic(settings.critic, lm.model, reference, Lora(2), 0)
    trainer = Trainer(
        lm, TextTask(env, lm), settings, env, critic=critic, reference=reference, seed=1
    )
    generator = torch.Generator().manual_seed(7)
    moved = [*trainer.parameters, *(critic.parameters() if critic else ())]
    with torch.no_grad():
        for weight in moved:
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    return trainer


def played(trainer):
    """A rollout with those rewards, drawn from a policy that was a little different: ratios and
    clips count."""
    rollout = trainer.collect()
    completions = rollout.completions
    generator = torch.Generator().manual_seed(3)
    shift = 0.3 * torch.randn(completions.logp.shape, generator=generator)
    completions = dataclasses.replace(
        completions, logp=torch.where(completions.mask, completions.logp + shift, 0.0)
    )
    reward = np.array(REWARDS)
    success = (reward > 0).astype(float)
    outcome = Outcome(reward, reward > -1, success, {"accuracy": success})
    return dataclasses.replace(rollout, completions=completions, outcome=outcome)


def gradients(trainer, rollout):
    """Of one step of the trainer, which is not taken."""
    found = []
    for optimizer in (trainer.optimizer, trainer.critic_optimizer):
        if optimizer is not None:
            weights = [w for group in optimizer.param_groups for w in group["params"]]
            optimizer.step = lambda weights=weights: found.append(
                [None if w.grad is None else w.grad.clone() for w in weights]
            )
    trainer.update(rollout)
    return found


def plain(model, rollout, temperature=0.8):
    """log pi of each token and the entropy there, (n, T), one completion at a time."""
    completions = rollout.completions
    shape = completions.ids.shape
    logp, entropy = torch.zeros(shape), torch.zeros(shape)
    rows, entropies = [], []
    for i, (ids, length) in enumerate(
        zip(completions.ids.tolist(), completions.length.tolist(), strict=True)
    ):
        tokens = ids[:length]
        table = plain_logp(model, rollout.prompts[i // rollout.group_size], tokens, temperature)
        pad = (0, shape[1] - length)
        taken = table[torch.arange(length), torch.tensor(tokens)]
        rows.append(torch.nn.functional.pad(taken, pad))
        entropies.append(torch.nn.functional.pad(-(table.exp() * table).sum(-1), pad))
    logp, entropy = torch.stack(rows), torch.stack(entropies)
    return logp, entropy


def plain_grpo_loss(trainer, rollout):
    """The loss over the whole batch at once."""
    s, completions = trainer.settings, rollout.completions
    mask, old = completions.mask, completions.logp
    logp, entropy = plain(trainer.lm.model, rollout)
    rewards = torch.tensor(rollout.outcome.reward).float().view(-1, rollout.group_size)
    advantages = group_advantages(rewards, s.baseline, s.ddof, s.eps)
    ref = None
    if trainer.reference is not None:
        with trainer.reference.active() as model:
            ref, _ = plain(model, rollout)
        if FORMS[s.kl].place == "return":
            sums = sample_term(s.kl, old, ref, old, mask).sum(1).view_as(advantages)
            advantages = advantages + return_penalty(s.kl_coef * sums)
    if s.mask_truncated:
        mask = mask & ~completions.truncated[:, None]
    weights = aggregation_weights(mask, s.aggregation, s.max_len)
    loss = policy_loss(
        logp,
        old,
        advantages.flatten(),
        mask,
        aggregation=s.aggregation,
        max_len=s.max_len,
        ratio=s.ratio,
        surrogate=s.surrogate,
        clip=s.clip(),
    ).loss
    loss = loss - s.ent_coef * (weights * entropy).sum()
    if ref is not None and FORMS[s.kl].place == "loss":
        loss = loss + s.kl_coef * (weights * sample_term(s.kl, logp, ref, old, mask)).sum()
    return loss


def assert_same(found, expected):
    largest = max(float(e.abs().max()) for e in expected if e is not None)
    assert largest > 0
    for mine, theirs in zip(found, expected, strict=True):
        mine = torch.zeros(1) if mine is None else mine
        theirs = torch.zeros(1) if theirs is None else theirs
        assert float((mine - theirs).abs().max()) < 2e-5 * largest


OPTIONS = [
    *({"aggregation": name} for name in AGGREGATIONS),
    *({"baseline": name} for name in BASELINES),
    *({"kl": name, "kl_coef": 0.3} for name, form in FORMS.items() if form.term is not None),
    {"ratio": "sequence"},
    {"surrogate": "cispo"},
    {"clip_range_high": 0.5, "clip_dual": 2.0},
    {"ddof": 1},
    {"ent_coef": 0.1},
    {"mask_truncated": True},
]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_gradient_is_the_plain_one(option):
    trainer = trainer_of(GRPO | option)
    rollout = played(trainer)
    expected = torch.autograd.grad(
        plain_grpo_loss(trainer, rollout), trainer.parameters, allow_unused=True
    )
    (found,) = gradients(trainer, rollout)
    assert_same(found, expected)


def test_gradient_of_adapters_is_the_plain_one():
    trainer = trainer_of(GRPO | {"kl": "k2", "kl_coef": 0.3}, rank=2)
    rollout = played(trainer)
    expected = torch.autograd.grad(plain_grpo_loss(trainer, rollout), trainer.parameters)
    (found,) = gradients(trainer, rollout)
    assert_same(found, expected)


@pytest.mark.parametrize("max_tokens", [100, 10_000])
def test_micro_batches_change_nothing(max_tokens):
    env = dataclasses.replace(ENV, train=dataclasses.replace(ENV.train, max_tokens=max_tokens))
    here, there = trainer_of(GRPO), trainer_of(GRPO, env=env)
    rollout = played(here)
    assert_same(gradients(here, rollout)[0], gradients(there, rollout)[0])


@pytest.mark.parametrize("critic", ["separate", "shared", "lora"])
@pytest.mark.parametrize("kl", ["none", "k1_reward", "k3"])
def test_gradient_of_ppo_is_the_plain_one(critic, kl):
    algo = {"critic": critic, "gae_lambda": 0.9, "gamma": 0.95, "clip_range_vf": 0.1}
    algo |= {} if kl == "none" else {"kl": kl, "kl_coef": 0.3}
    trainer = trainer_of(PPO | algo)
    rollout = played(trainer)
    s, completions = trainer.settings, rollout.completions
    mask, old = completions.mask, completions.logp
    logp, _ = plain(trainer.lm.model, rollout)
    values = plain_values(trainer.critic, rollout)
    penalties = term = None
    if trainer.reference is not None:
        with trainer.reference.active() as model:
            ref, _ = plain(model, rollout)
        penalties = 0.3 * sample_term(kl, old, ref, old, mask) if kl == "k1_reward" else None
        term = sample_term(kl, logp, ref, old, mask) if kl == "k3" else None
    paid = token_rewards(torch.tensor(REWARDS), penalties, mask)
    advantages, returns = gae(paid, values, mask, 0.95, 0.9)
    weights = mask / mask.sum()
    loss = policy_loss(logp, old, whiten(advantages, mask), mask, weights=weights).loss
    if term is not None:
        loss = loss + 0.3 * (weights * term).sum()
    loss = loss + s.vf_coef * value_loss(values, values.detach(), returns, weights, 0.1).loss
    weights_of_all = [*trainer.parameters, *trainer.critic.parameters()]
    expected = torch.autograd.grad(loss, weights_of_all, allow_unused=True)
    policy, of_critic = gradients(trainer, rollout)
    assert_same(policy, expected[: len(policy)])
    assert_same(of_critic, expected[len(policy) :])


def plain_values(critic, rollout):
    """V before each token, one completion at a time, (n, T)."""
    completions, rows = rollout.completions, []
    for i, (ids, length) in enumerate(
        zip(completions.ids.tolist(), completions.length.tolist(), strict=True)
    ):
        prompt = rollout.prompts[i // rollout.group_size]
        text = torch.tensor([[*prompt, *ids[:length]]])
        hidden = critic.trunk(input_ids=text, use_cache=False).last_hidden_state[0]
        value = critic.head(hidden[len(prompt) - 1 : -1].float()).squeeze(-1)
        rows.append(torch.nn.functional.pad(value, (0, completions.ids.shape[1] - length)))
    return torch.stack(rows)


def test_the_first_ratio_is_one():
    """In float32, of completions just drawn: nothing is clipped, and the policy loss is 0, as the
    advantages of a group add up to 0 and each completion weighs the same."""
    trainer = trainer_of(GRPO)
    rollout = trainer.collect()
    reward = np.array(REWARDS)
    outcome = dataclasses.replace(rollout.outcome, reward=reward)
    metrics = trainer.update(dataclasses.replace(rollout, outcome=outcome))
    assert metrics["train/logp_mismatch"] < 1e-5
    assert metrics["train/clip_fraction"] == 0
    assert abs(metrics["train/policy_gradient_loss"]) < 1e-6
    assert metrics["train/grad_norm"] > 1e-3
    assert metrics["rollout/ep_rew_mean"] == pytest.approx(np.mean(REWARDS))
    assert metrics["rollout/zero_std_frac"] == 0.25


def test_the_clip_is_a_share_of_all_tokens_those_of_flat_groups_too():
    trainer = trainer_of(GRPO)
    rollout = trainer.collect()
    completions = rollout.completions
    reward = np.array([1.0, 0.0, 0.0] + 9 * [1.0])  # only the first of four groups teaches
    off = completions.logp.clone()
    off[:3] -= 1.0  # so that its ratios are e, and bounded where the advantage is positive
    rollout = dataclasses.replace(
        rollout,
        completions=dataclasses.replace(completions, logp=off),
        outcome=dataclasses.replace(rollout.outcome, reward=reward),
    )
    share = completions.length[0] / completions.length.sum()
    assert trainer.update(rollout)["train/clip_fraction"] == pytest.approx(float(share))


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_the_loss_of_ppo_has_that_of_its_critic(critic):
    """SB3's: policy_gradient_loss + vf_coef value_loss, whosever network the critic is."""
    trainer = trainer_of(PPO | {"critic": critic})
    metrics = trainer.update(played(trainer))
    assert metrics["train/value_loss"] > 0.01
    assert metrics["train/loss"] == pytest.approx(
        metrics["train/policy_gradient_loss"] + 0.5 * metrics["train/value_loss"], rel=1e-5
    )


def test_a_batch_without_spread_moves_nothing_but_counts_as_a_step():
    trainer = trainer_of(GRPO)
    rollout = trainer.collect()
    outcome = dataclasses.replace(rollout.outcome, reward=np.ones(12))
    before = [weight.clone() for weight in trainer.parameters]
    metrics = trainer.update(dataclasses.replace(rollout, outcome=outcome))
    assert metrics["train/grad_norm"] == 0
    assert trainer.gradient_steps == 1
    for weight, old in zip(trainer.parameters, before, strict=True):
        torch.testing.assert_close(weight, old, rtol=0, atol=0)


def test_minibatches_are_whole_groups_and_each_once():
    trainer = trainer_of(GRPO | {"minibatches": 2, "n_epochs": 3})
    seen = [groups for _ in range(3) for groups in trainer._minibatches(4)]
    assert [len(groups) for groups in seen] == [2] * 6
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert sorted(first + second) == [0, 1, 2, 3]
    trainer.update(played(trainer))
    assert trainer.gradient_steps == 6


def test_groups_that_teach_nothing_are_replaced_and_counted():
    """A judge that pays by the order of play: three groups of the first round have spread, none of
    the first refill, all of the second."""
    trainer = trainer_of(GRPO | {"max_refills": 4})
    rounds = iter([[0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0], [1, 1, 1], [0, 1, 0]])
    played_by_round = []

    def judge(ids, texts, truncated):
        success = np.array(next(rounds), dtype=float)
        assert len(ids) == len(texts) == len(truncated) == len(success)
        played_by_round.append(ids.tolist())
        return Outcome(success, success > -1, success, {"accuracy": success})

    trainer.task.judge = judge
    rollout = trainer.collect()
    assert rollout.success.tolist() == [1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0]
    first, _, third = played_by_round
    assert rollout.problem_ids.repeat(3).tolist() == first[3:] + third
    assert [part.success.tolist() for part in rollout.replaced] == [[0, 0, 0], [1, 1, 1]]
    parts = [rollout, *rollout.replaced]
    assert rollout.tokens == sum(int(part.completions.length.sum()) for part in parts)
    metrics = trainer.update(rollout)
    assert metrics["rollout/zero_std_frac"] == pytest.approx(2 / 6)
    for i, text in enumerate(rollout.texts):
        ids = rollout.completions.ids[i, : rollout.completions.length[i]].tolist()
        assert trainer.lm.tokenizer.decode(ids, skip_special_tokens=True) == text


def test_seeds_make_problems_and_tokens():
    one, again = trainer_of(GRPO), trainer_of(GRPO)
    first, second = one.collect(), again.collect()
    assert first.problem_ids.tolist() == second.problem_ids.tolist()
    assert first.completions.ids.tolist() == second.completions.ids.tolist()
    assert one.collect().problem_ids.tolist() != first.problem_ids.tolist()
    assert set(one.task.task.split_of(first.problem_ids)) == {"train"}


def test_shuffled_rewards_go_to_others():
    """Their multiset is the same; the gradient is that of a permutation, not of the rewards."""
    env = dataclasses.replace(ENV, shuffled_rewards=True)
    trainer, honest = trainer_of(GRPO, env=env), trainer_of(GRPO)
    rollout = played(honest)
    signal = trainer._signal(rollout, None)
    shown = honest._signal(rollout, None)
    assert signal.advantages.tolist() != shown.advantages.tolist()
    assert trainer.shuffled
    assert not honest.shuffled


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ({**GRPO, "kind": "a2c"}, "algo.kind='a2c' with a language model: expected grpo or ppo"),
        ({**GRPO, "kl": "exact"}, "kl='exact' with a language model"),
        ({**GRPO, "supervision": "process"}, "algo.supervision='process' with a language model"),
        ({**GRPO, "group_size": 5}, "env.train.episodes=12: expected a multiple of group_size=5"),
        ({**GRPO, "minibatches": 3}, "algo.minibatches=3: expected a divisor of the 4 groups"),
        ({**GRPO, "eps": -1}, "eps=-1: expected a finite number, 0 or more"),
        ({**PPO, "critic": "none"}, "critic='none': expected one of separate, shared, lora"),
        ({**PPO, "gae_lambda": 2}, "gae_lambda=2: expected a number from 0 to 1"),
        ({**PPO, "critic_rank": 0}, "critic_rank=0: expected a whole number, at least 1"),
        ({**PPO, "vf_coef": 0}, "vf_coef=0: expected a number, more than 0"),
        ({**GRPO, "clip_hihger": None}, "algo.clip_hihger=None with a language model: grpo has"),
        ({**PPO, "ratio": "sequence"}, "algo.ratio='sequence' with a language model: ppo has only"),
    ],
)
def test_settings_that_cannot_be_meant(algo, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        settings_of(algo_of(algo), ENV.train, 5)


def test_a_group_that_may_not_fit_is_told_before_the_first_is_played():
    longest = 57 + 3 * 4  # bytes of "What is 17+25? ..." as a chat; all but the last token are fed
    for max_tokens in (longest, longest - 1):
        env = dataclasses.replace(ENV, train=dataclasses.replace(ENV.train, max_tokens=max_tokens))
        if max_tokens == longest:
            trainer_of(GRPO, env=env)
        else:
            with pytest.raises(
                ValueError, match=r"env\.train\.max_tokens=68: expected at least 69"
            ):
                trainer_of(GRPO, env=env)


@pytest.mark.parametrize("option", MINE)
def test_a_new_name_is_one_entry_of_a_table(option, monkeypatch):
    """Added while the program runs; the step differs from that of the default."""
    after = []
    for chosen in ({}, with_mine(option, monkeypatch)):
        trainer = trainer_of(GRPO | chosen)
        trainer.update(played(trainer))
        after.append(torch.nn.utils.parameters_to_vector(trainer.parameters).detach())
    assert after[1].isfinite().all() and not torch.equal(*after)


def test_constant_length_is_the_limit_of_tokens():
    settings = settings_of(algo_of({**GRPO, "aggregation": "constant_length"}), ENV.train, 7)
    assert settings.max_len == 7
