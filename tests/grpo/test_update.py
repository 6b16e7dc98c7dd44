"""One ``train()`` against the second implementation, ``naive.py``, and what one epoch must show."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from support.naive import CLIP, G, P, naive_update
from support.toys import UNIT, OneStep, Walk, collected, parameters, walker

from grpo_bench import GRPO
from grpo_bench.grpo.doctor import DoctorWarning
from grpo_bench.grpo.kl import FORMS

ONCE = {"group_size": G, "n_problems": P, "n_epochs": 1, "gamma": 1.0}
SETUPS = {
    "ragged": ("MlpPolicy", lambda: DummyVecEnv([Walk] * G)),
    "tokens": (
        "MultiInputPolicy",
        lambda: gym.make_vec("GRPO-Arithmetic-v0", P * G, max_tokens=5),
    ),
    "one step": ("MlpPolicy", lambda: gym.make_vec("GRPO-VLM-v0", P * G, source="synthetic")),
}
CONSTANT = {"aggregation": "constant_length", "max_len": 9}
CISPO = {"surrogate": "cispo", "aggregation": "token_mean", "n_epochs": 3}
PROCESS = {"supervision": "process"}
TO_GO = {"supervision": "return_to_go"}
MASKED = {"mask_truncated": True, "n_epochs": 2}
KL = {"kl_coef": 0.7, "n_epochs": 2}
SETTINGS = {
    "defaults": {},
    "minibatches": {"batch_size": G, "n_epochs": 3},
    "epochs": {"n_epochs": 3},
    "bessel": {"ddof": 1, "eps": 0.3},
    "group_mean, token mean": {"baseline": "group_mean", "aggregation": "token_mean"},
    "rloo, constant length": {"baseline": "rloo", "n_epochs": 2, **CONSTANT},
    "batch": {"baseline": "batch", "batch_size": G},
    "batch_std": {"baseline": "batch_std", "ddof": 1},
    "rank": {"baseline": "rank", "n_epochs": 2},
    "none": {"baseline": "none", "batch_size": G},
    "sequence ratio": {"ratio": "sequence", "n_epochs": 3, "batch_size": G},
    "dual clip": {"clip_dual": 1.02, "n_epochs": 3},
    "dual clip, sequence": {"clip_dual": 1.02, "n_epochs": 2, "ratio": "sequence"},
    "cispo": CISPO,
    "cispo, sequence": CISPO | {"ratio": "sequence", "batch_size": G},
    "process": PROCESS | {"n_epochs": 3, "batch_size": G},
    "process, group mean": PROCESS | {"baseline": "group_mean", **CONSTANT},
    "process, batch": PROCESS | {"baseline": "batch", "ddof": 1},
    "process, batch_std": PROCESS | {"baseline": "batch_std", "eps": 0.1},
    "process, none, cispo": PROCESS | CISPO | {"baseline": "none"},
    "process, dual": PROCESS | {"clip_dual": 1.05, "n_epochs": 2},
    "process, gamma": PROCESS | {"gamma": 0.7},
    "outcome, gamma": {"gamma": 0.7, "n_epochs": 2},
    "to go": TO_GO | {"n_epochs": 3, "batch_size": G},
    "to go, group mean, gamma": TO_GO | {"baseline": "group_mean", "gamma": 0.7, **CONSTANT},
    "to go, rloo": TO_GO | {"baseline": "rloo", "aggregation": "token_mean"},
    "to go, rank": TO_GO | {"baseline": "rank", "gamma": 0.0},
    "to go, batch": TO_GO | {"baseline": "batch", "ddof": 1},
    "to go, batch_std": TO_GO | {"baseline": "batch_std", "eps": 0.1, "gamma": 0.9},
    "to go, none, cispo": TO_GO | CISPO | {"baseline": "none", "gamma": 0.9},
    **{form: KL | {"kl": form} for form in FORMS},
    **{f"{form}, minibatches": KL | {"kl": form, "batch_size": G} for form in ("k3", "k1_reward")},
    "exact, token mean": {"kl": "exact", "kl_coef": 0.7, "aggregation": "token_mean"},
    "k2, constant length": KL | {"kl": "k2", "baseline": "rloo", **CONSTANT},
    "k3_ratio, sequence": KL | {"kl": "k3_ratio", "ratio": "sequence"},
    "k1_reward, process": KL | PROCESS | {"kl": "k1_reward"},
    "tutorial_reward, batch": KL | {"kl": "tutorial_reward", "baseline": "batch"},
    "measured only": {"kl": "k3", "n_epochs": 2},
    "entropy": {"ent_coef": 0.3, "aggregation": "token_mean"},
    "small norm": {"max_grad_norm": 0.01, "n_epochs": 2},
    "masked": MASKED,
    "masked, token mean": MASKED | {"aggregation": "token_mean", "batch_size": G},
    "masked, constant length": MASKED | {"baseline": "rloo", **CONSTANT},
    "masked, process, kl": MASKED | PROCESS | {"kl": "exact", "kl_coef": 0.3, "ent_coef": 0.1},
    "masked, kl in the return": MASKED | {"kl": "k1_reward", "kl_coef": 0.7},
    "dropped": {"nan_reward": "drop", "baseline": "group_mean", "aggregation": "token_mean"},
    "dropped, rank": {"nan_reward": "drop", "baseline": "rank", "batch_size": G},
    "dropped, to go, kl in the return": KL
    | TO_GO
    | {"nan_reward": "drop", "kl": "k1_reward", "mask_truncated": True, "gamma": 0.9},
    "dropped, process, kl in the return": KL
    | PROCESS
    | {"nan_reward": "drop", "kl": "k1_reward", "mask_truncated": True},
}


def model_at(setup, **options):
    """A model on one of ``SETUPS`` that makes large steps of plain gradient descent."""
    policy_name, make = SETUPS[setup]
    settings = ONCE | {"learning_rate": 0.02, "max_grad_norm": 100.0} | CLIP | options
    return GRPO(
        policy_name,
        make(),
        seed=1,
        policy_kwargs={"net_arch": [8], "optimizer_class": torch.optim.SGD},
        **settings,
    )


def assert_train_is_naive(model, rollout):
    """``train`` on this rollout moves and logs as the second implementation does."""
    model._rollout = copy.deepcopy(rollout)
    with torch.no_grad():  # policy, reference and the policy that sampled are three
        for network in filter(None, (model.policy, model.reference)):
            for p in network.parameters():
                p += 0.1 * torch.randn_like(p)
    policy = copy.deepcopy(model.policy)
    before = parameters(model)

    torch.manual_seed(5)
    model.train()
    torch.manual_seed(5)
    expected_log = naive_update(model, policy, model.reference or policy, rollout)

    moved = parameters(model) - before
    expected = torch.nn.utils.parameters_to_vector(policy.parameters()).detach() - before
    assert moved.norm() > 1e-4
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)
    log = dict(model.logger.name_to_value)
    for name, value in expected_log.items():
        assert log[f"train/{name}"] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert not np.isnan(list(log.values())).any()


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("setup", SETUPS)
def test_train_does_what_the_formulas_say(setup, options):
    model = model_at(setup, **options)
    rollout = copy.deepcopy(collected(model))
    rollout.rewards[:, 0] += torch.linspace(-1, 2, P * G).square()  # spread in every group
    rollout.rewards[2, 0] = rollout.rewards[3, 0]  # and two that are almost alike
    rollout.truncated[::3] = True
    if model.nan_reward == "drop":
        rollout.rewards[0, 0], rollout.rewards[G + 1, 0] = math.nan, -math.inf
    assert_train_is_naive(model, rollout)


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
@pytest.mark.parametrize("options", [{}, KL | {"kl": "exact", "batch_size": G}], ids=str)
@pytest.mark.parametrize("setup", SETUPS)
def test_train_on_what_dynamic_sampling_joined(setup, options):
    model = model_at(setup, max_refills=3, spread_tol=0.5, **options)
    _, callback = model._setup_learn(1000)
    callback.on_training_start({}, {})
    for _ in range(20):
        model.collect_rollouts(callback)
        if model.logger.name_to_value["rollout/replaced_frac"] > 0:
            break
    assert model.logger.name_to_value["rollout/replaced_frac"] > 0
    rollout = copy.deepcopy(model._rollout)
    rollout.rewards[:, 0] += torch.linspace(-1, 2, P * G).square()
    assert_train_is_naive(model, rollout)


def test_a_kl_that_is_only_measured_may_be_infinite():
    """A reference that never does one of the actions: 0 times that would be NaN."""
    model = model_at("ragged", kl="exact")
    rollout = collected(model)
    with torch.no_grad():
        model.reference.action_net.bias[1] = -math.inf
    rollout.rewards[:, 0] += torch.linspace(-1, 2, P * G)
    with pytest.warns(DoctorWarning):
        model.train()
    assert math.isinf(model.logger.name_to_value["train/kl_ref"])
    assert torch.isfinite(parameters(model)).all()


@pytest.mark.parametrize("batch_size", [None, G])
def test_when_all_are_dropped_nothing_is_learned(batch_size):
    env = OneStep(spaces.Discrete(2), UNIT, lambda seen, action: math.inf)
    model = GRPO("MlpPolicy", env, group_size=G, n_problems=P,
                 nan_reward="drop", batch_size=batch_size, n_epochs=2)  # fmt: skip
    collected(model)
    before = parameters(model)
    with pytest.warns(DoctorWarning, match=r"nothing left: .*nan_reward='drop'"):
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


# -- target_kl ------------------------------------------------------------------------------------


def after(rollout, **options):
    """A model that has trained on this rollout."""
    model = model_at("ragged", **options)
    collected(model)
    model._rollout = copy.deepcopy(rollout)
    model.train()
    return model


def kl_to_the_sampler(model, rollout):
    """mean(rho - 1 - log rho) over the actions, from SB3's ``evaluate_actions``."""
    seen = rollout.observations[rollout.rows[rollout.mask]]
    _, logp, _ = model.policy.evaluate_actions(seen, rollout.actions[rollout.mask])
    log_ratio = (logp - rollout.old_logp[rollout.mask]).detach()
    return (log_ratio.exp() - 1 - log_ratio).mean().item()


def test_target_kl_ends_the_update_before_the_step_that_exceeds_it():
    rollout = copy.deepcopy(collected(model_at("ragged")))
    rollout.rewards[:, 0] += torch.linspace(-1, 2, P * G).square()
    models = [after(rollout, n_epochs=n) for n in (1, 2, 3, 4, 5)]
    kls = [kl_to_the_sampler(model, rollout) for model in models]
    assert kls == sorted(kls) and kls[2] > 1.2 * kls[1], "the policy moves away with each step"
    between = math.sqrt(kls[1] * kls[2])  # exceeded after three steps, not after two
    stopped = after(rollout, n_epochs=5, target_kl=between / 1.5)
    assert stopped._n_updates == 3 and torch.equal(parameters(stopped), parameters(models[2]))
    assert stopped.logger.name_to_value["train/n_updates"] == 3
    # approx_kl is the mean over the minibatches that were looked at: before steps 1, 2, 3 and 4
    expected = (0 + sum(kls[:3])) / 4
    assert stopped.logger.name_to_value["train/approx_kl"] == pytest.approx(expected, rel=1e-3)
    for target, n in ((kls[0] / 100, 1), (kls[4], 5)):  # the first step is on the ratio 1
        model = after(rollout, n_epochs=5, target_kl=target)
        assert model._n_updates == n and torch.equal(parameters(model), parameters(models[n - 1]))


# -- what one epoch must show ---------------------------------------------------------------------


def logged_after_one_update(model):
    collected(model)
    model.train()
    return model.logger.name_to_value


@pytest.mark.parametrize("kl", ["none", *FORMS])
def test_with_one_epoch_the_ratio_is_one(kl):
    model = GRPO("MlpPolicy", DummyVecEnv([Walk] * G), **ONCE, seed=0, kl=kl)
    log = logged_after_one_update(model)
    assert log["train/clip_fraction"] == 0
    assert log["train/approx_kl"] == pytest.approx(0, abs=1e-7)
    assert log["train/loss"] == pytest.approx(0, abs=1e-6), "advantages sum to 0"
    assert log["train/grad_norm"] > 0.01, "and yet there is something to learn"
    assert log["train/entropy_loss"] == pytest.approx(-math.log(2), abs=1e-3)
    if kl != "none":  # the policy is the reference before the first update
        for name in ("kl_ref_k1", "kl_ref_k3"):
            assert log[f"train/{name}"] == pytest.approx(0, abs=1e-7)
        assert log["train/kl_ref"] == pytest.approx(0, abs=1e-7), "exact, whatever is trained on"
        log = logged_after_one_update(model)
        assert log["train/kl_ref_k3"] > 0 and log["train/kl_ref"] > 0
    else:
        assert not any("kl_ref" in name for name in log), "absent, not 0"


def test_groups_without_spread_are_counted_and_teach_nothing():
    env = OneStep(spaces.Discrete(2), UNIT, lambda seen, action: 0.1)
    model = GRPO("MlpPolicy", env, group_size=G, n_problems=P)
    before = parameters(model)
    log = logged_after_one_update(model)
    assert log["rollout/zero_std_frac"] == 1 and log["train/grad_norm"] == 0
    assert (parameters(model) == before).all()


def test_box_actions_are_clipped_for_the_environment_and_not_in_the_update():
    seen = []
    env = OneStep(
        spaces.Box(-0.1, 0.1, (2, 3), np.float32),
        UNIT,
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


def test_returns_earned_in_another_order_are_equal():
    """The sum of these four in float32 depends on their order; eps=0 would blow that up."""
    model = model_at("ragged", baseline="group", eps=0.0)
    rollout = collected(model)
    orders = [
        [0.1, 0.2, 0.7, 0.3],
        [0.7, 0.3, 0.2, 0.1],
        [0.3, 0.7, 0.1, 0.2],
        [0.2, 0.1, 0.3, 0.7],
    ]
    rollout.rewards = torch.tensor(orders * P)
    rollout.mask = torch.ones_like(rollout.rewards, dtype=torch.bool)
    assert len(set(rollout.rewards.sum(dim=1).tolist())) > 1, "in float32"
    assert (rollout.returns == rollout.returns[0, 0]).all()
    advantages = model._advantages(rollout, None)
    assert (advantages == 0).all() and advantages.dtype == rollout.old_logp.dtype


def test_a_gradient_that_is_not_finite_is_seen_before_its_step():
    model = model_at("ragged")
    collected(model)
    model.policy.action_net.bias.register_hook(lambda gradient: gradient * math.nan)
    before = parameters(model)
    message = r"the gradient norm of step 1 is nan; the weights .*learning_rate"
    with pytest.raises(FloatingPointError, match=message):
        model.train()
    assert torch.equal(before, parameters(model))


def test_the_upper_bound_is_logged_where_it_differs():
    logs = []
    for high in (None, 0.3):
        model = walker(clip_range_high=high)
        collected(model)
        model.train()
        logs.append(model.logger.name_to_value)
    assert "train/clip_range_high" not in logs[0] and logs[1]["train/clip_range_high"] == 0.3
    assert logs[0]["train/clip_range"] == logs[1]["train/clip_range"] == 0.2
