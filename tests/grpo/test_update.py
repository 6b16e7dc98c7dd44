"""One ``train()`` against an update written again: plain, one transition at a time, no shared rows,
no padding, no weights."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import DummyVecEnv
from toys import OneStep, Walk, collected, parameters

from grpo_bench import GRPO

G, P = 4, 3
CLIP = {"clip_range": 0.1, "clip_range_high": 0.15}


# -- the update, written again --------------------------------------------------------------------


def naive_advantages(returns, baseline, ddof, eps):
    """(P, G) floats, by the formulas."""
    everything = [r for group in returns for r in group]
    result = []
    for group in returns:
        mean = sum(group) / G
        if baseline == "group":
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (G - ddof))
            row = [(r - mean) / (std + eps) for r in group]
        elif baseline == "group_mean":
            row = [r - mean for r in group]
        elif baseline == "rloo":
            row = [r - (sum(group) - r) / (G - 1) for r in group]
        else:
            centre = sum(everything) / (P * G)
            spread = sum((r - centre) ** 2 for r in everything) / (P * G - ddof)
            shift = centre if baseline == "batch" else mean
            row = [(r - shift) / (math.sqrt(spread) + eps) for r in group]
        result.append([0.0] * G if max(group) == min(group) and baseline != "batch" else row)
    return result


def naive_loss(model, policy, reference, episodes, advantages):
    """Loss of some episodes, each a list of (observation, action, old log-probability)."""
    chosen = [episode for episode, _ in episodes]
    n_tokens = sum(len(episode) for episode in chosen)
    loss = 0.0
    for (episode, advantage), _ in zip(episodes, advantages, strict=True):
        weight = {
            "sequence_mean": 1 / (len(chosen) * len(episode)),
            "token_mean": 1 / n_tokens,
            "constant_length": 1 / (len(chosen) * (model.max_len or 1)),
        }[model.aggregation]
        log_ratios = []
        for observation, action, old_logp in episode:
            log_ratios.append(policy_at(policy, observation).log_prob(action) - old_logp)
        for t, (observation, action, _) in enumerate(episode):
            log_ratio = log_ratios[t] if model.ratio == "token" else sum(log_ratios) / len(episode)
            rho = log_ratio.exp()
            bounded = rho.clamp(1 - CLIP["clip_range"], 1 + CLIP["clip_range_high"])
            loss = loss - weight * torch.min(rho * advantage, bounded * advantage)
            now, then = policy_at(policy, observation), policy_at(reference, observation)
            loss = loss - model.ent_coef * weight * now.entropy()
            if model.kl != "none":
                loss = loss + model.kl_coef * weight * naive_kl(model.kl, now, then, action)
    return loss


def policy_at(policy, observation):
    return policy.get_distribution(obs_as_tensor(observation, "cpu"))


def naive_kl(form, now, then, action):
    x = now.log_prob(action) - then.log_prob(action)
    if form == "k3":
        return torch.exp(-x) - 1 + x
    if form == "tutorial":
        return -x
    p, q = now.distribution.probs, then.distribution.probs
    return (p * (p / q).log()).sum()


def naive_update(model, policy, reference, rollout):
    """What ``train`` does, on copies of the policy and of the rollout."""
    episodes = []
    for e, length in enumerate(rollout.lengths.tolist()):
        steps = []
        for t in range(length):
            i = rollout.rows[e, t].item()
            if isinstance(rollout.observations, dict):
                seen = {
                    name: values[i][None].numpy() for name, values in rollout.observations.items()
                }
            else:
                seen = rollout.observations[i][None].numpy()
            steps.append((seen, rollout.actions[e, t][None], rollout.old_logp[e, t]))
        episodes.append(steps)
    returns = [[sum(rollout.rewards[p * G + i].tolist()) for i in range(G)] for p in range(P)]
    advantages = naive_advantages(returns, model.baseline, model.ddof, model.eps)
    groups_per_batch = (model.batch_size or P * G) // G
    for _ in range(model.n_epochs):
        order = range(P) if groups_per_batch == P else torch.randperm(P).tolist()
        for first in range(0, P, groups_per_batch):
            groups = list(order)[first : first + groups_per_batch]
            batch = [(episodes[g * G + i], advantages[g][i]) for g in groups for i in range(G)]
            loss = naive_loss(model, policy, reference, batch, [a for _, a in batch])
            policy.optimizer.zero_grad()
            loss.sum().backward()
            squares = sum(p.grad.square().sum() for p in policy.parameters())
            scale = min(1.0, model.max_grad_norm / (squares.sqrt().item() + 1e-6))
            for p in policy.parameters():
                p.grad *= scale
            policy.optimizer.step()


# -- the comparison -------------------------------------------------------------------------------

HOMES = {
    "ragged": ("MlpPolicy", lambda: DummyVecEnv([Walk] * G)),
    "tokens": (
        "MultiInputPolicy",
        lambda: gym.make_vec("GRPO-Arithmetic-v0", P * G, max_tokens=5),
    ),
    "one step": ("MlpPolicy", lambda: gym.make_vec("GRPO-VLM-v0", P * G, source="synthetic")),
}
SETTINGS = {
    "defaults": {},
    "minibatches": {"batch_size": G, "n_epochs": 3},
    "epochs": {"n_epochs": 3},
    "bessel": {"ddof": 1, "eps": 0.3},
    "group_mean, token mean": {"baseline": "group_mean", "aggregation": "token_mean"},
    "rloo, constant length": {
        "baseline": "rloo",
        "aggregation": "constant_length",
        "max_len": 9,
        "n_epochs": 2,
    },
    "batch": {"baseline": "batch", "batch_size": G},
    "batch_std": {"baseline": "batch_std", "ddof": 1},
    "sequence ratio": {"ratio": "sequence", "n_epochs": 3, "batch_size": G},
    "k3": {"kl": "k3", "kl_coef": 0.7, "n_epochs": 2, "batch_size": G},
    "exact": {"kl": "exact", "kl_coef": 0.7, "n_epochs": 2},
    "exact, token mean": {"kl": "exact", "kl_coef": 0.7, "aggregation": "token_mean"},
    "tutorial": {"kl": "tutorial", "kl_coef": 0.7, "n_epochs": 2},
    "entropy": {"ent_coef": 0.3, "aggregation": "token_mean"},
    "small norm": {"max_grad_norm": 0.01, "n_epochs": 2},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("home", HOMES)
def test_train_does_what_the_formulas_say(home, options):
    policy_name, make = HOMES[home]
    settings = {"learning_rate": 0.02, "max_grad_norm": 100.0} | CLIP | options
    model = GRPO(
        policy_name,
        make(),
        group_size=G,
        n_problems=P,
        seed=1,
        policy_kwargs={"net_arch": [8], "optimizer_class": torch.optim.SGD},
        **settings,
    )
    rollout = copy.deepcopy(collected(model))
    rollout.rewards[:, 0] += torch.linspace(-1, 2, P * G).square()  # spread in every group
    model._rollout = copy.deepcopy(rollout)
    with torch.no_grad():  # away from the reference and from the policy that sampled
        for p in model.policy.parameters():
            p += 0.05 * torch.randn_like(p)
    policy = copy.deepcopy(model.policy)
    reference = model.reference or policy
    before = parameters(model)

    torch.manual_seed(5)
    model.train()
    torch.manual_seed(5)
    naive_update(model, policy, reference, rollout)

    moved = parameters(model) - before
    expected = torch.nn.utils.parameters_to_vector(policy.parameters()).detach() - before
    assert moved.norm() > 1e-4
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)


def test_dropped_rollouts_leave_the_update_of_the_others():
    """Problem 0 loses member 0; the update is that of the eleven others."""
    model = GRPO("MlpPolicy", DummyVecEnv([Walk] * G), group_size=G, n_problems=P, seed=1,
                 nan_reward="drop", baseline="group_mean", aggregation="token_mean",
                 learning_rate=0.02, max_grad_norm=100.0)  # fmt: skip
    rollout = collected(model)
    rollout.rewards[0, 0] = math.nan
    model._rollout = copy.deepcopy(rollout)
    policy = copy.deepcopy(model.policy)
    model.train()

    loss, mask = 0.0, rollout.mask
    n_tokens = rollout.lengths[1:].sum()
    for p in range(P):
        members = [m for m in range(p * G, (p + 1) * G) if m != 0]
        mean = sum(rollout.rewards[m].sum() for m in members) / len(members)
        for m in members:
            advantage = rollout.rewards[m].sum() - mean
            for t in range(mask[m].sum()):
                seen = rollout.observations[rollout.rows[m, t]][None]
                logp = policy.get_distribution(seen).log_prob(rollout.actions[m, t][None])
                loss = loss - advantage * (logp - rollout.old_logp[m, t]).exp() / n_tokens
    policy.optimizer.zero_grad()
    loss.sum().backward()
    policy.optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    torch.testing.assert_close(parameters(model), expected, rtol=0, atol=1e-6)
    assert not np.isnan(list(model.logger.name_to_value.values())).any()


@pytest.mark.parametrize("batch_size", [None, G])
def test_when_all_are_dropped_nothing_is_learned(batch_size):
    model = GRPO("MlpPolicy", DummyVecEnv([Walk] * G), group_size=G, n_problems=P,
                 nan_reward="drop", batch_size=batch_size, n_epochs=2)  # fmt: skip
    rollout = collected(model)
    rollout.rewards[:, 0] = math.inf
    before = parameters(model)
    model.train()
    assert (parameters(model) == before).all() and model._n_updates == 0
    assert model.logger.name_to_value["rollout/group_std"] == 0
    assert not np.isnan([episode["r"] for episode in model.ep_info_buffer]).any()


def test_a_return_that_is_not_finite_is_an_error_that_names_the_problem():
    model = GRPO("MlpPolicy", DummyVecEnv([Walk] * G), group_size=G, n_problems=P)
    rollout = collected(model)
    rollout.rewards[G] = math.nan  # of problem 1
    with pytest.raises(ValueError, match=rf"problem {rollout.starts[1]} .*nan.*nan_reward='drop'"):
        model.train()


# -- what one epoch must show ---------------------------------------------------------------------


def logged_after_one_update(model):
    collected(model)
    model.train()
    return model.logger.name_to_value


@pytest.mark.parametrize("kl", ["none", "tutorial", "k3", "exact"])
def test_with_one_epoch_the_ratio_is_one(kl):
    model = GRPO("MlpPolicy", DummyVecEnv([Walk] * G), group_size=G, n_problems=P, seed=0, kl=kl)
    log = logged_after_one_update(model)
    assert log["train/clip_fraction"] == 0
    assert log["train/approx_kl"] == pytest.approx(0, abs=1e-7)
    assert log["train/loss"] == pytest.approx(0, abs=1e-6), "advantages sum to 0"
    assert log["train/grad_norm"] > 0.01, "and yet there is something to learn"
    assert log["train/entropy_loss"] == pytest.approx(-math.log(2), abs=1e-3)
    if kl != "none":  # the policy is the reference before the first update
        for name in ("kl_ref_k1", "kl_ref_k3"):
            assert log[f"train/{name}"] == pytest.approx(0, abs=1e-7)
        assert log.get("train/kl_ref", 0) == pytest.approx(0, abs=1e-7)
        log = logged_after_one_update(model)
        assert log["train/kl_ref_k3"] > 0
    else:
        assert not any("kl_ref" in name for name in log), "absent, not 0"


def test_groups_without_spread_are_counted_and_teach_nothing():
    env = OneStep(spaces.Discrete(2), spaces.Box(-1, 1, (2,)), lambda seen, action: 0.1)
    model = GRPO("MlpPolicy", env, group_size=G, n_problems=P)
    before = parameters(model)
    log = logged_after_one_update(model)
    assert log["rollout/zero_std_frac"] == 1 and log["train/grad_norm"] == 0
    assert (parameters(model) == before).all()


def test_box_actions_are_clipped_for_the_environment_and_not_in_the_update():
    seen = []
    env = OneStep(
        spaces.Box(-0.1, 0.1, (2, 3), np.float32),
        spaces.Box(-1, 1, (2,)),
        lambda observation, action: seen.append(action) or float(action.sum()),
    )
    model = GRPO("MlpPolicy", env, group_size=G, n_problems=P, seed=0)
    rollout = collected(model)
    assert rollout.actions.shape == (P * G, 1, 6) and rollout.actions.abs().max() > 0.1
    played = torch.from_numpy(np.stack(seen)).view(P * G, 1, 6)
    torch.testing.assert_close(played, rollout.actions.clamp(-0.1, 0.1))
    distribution = model.policy.get_distribution(rollout.observations[rollout.rows[:, 0]])
    logp = distribution.log_prob(rollout.actions[:, 0])
    torch.testing.assert_close(logp, rollout.old_logp[:, 0])
