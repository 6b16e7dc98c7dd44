"""Save and load, parameters, copies, seeds and counters."""

import copy
import pickle

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import SMALL, Walk, parameters, walker

from grpo_bench import GRPO
from grpo_bench.grpo.advantages import BASELINES
from grpo_envs.vlm.torch_view import TorchVLMVectorEnv

# -- save, load, parameters -----------------------------------------------------------------------


def learn_on(model, env):
    """Learn on from a fixed state of the random streams."""
    model.set_env(env)
    model.set_random_seed(7)
    model.learn(60, reset_num_timesteps=False)
    return parameters(model)


def by_ids():
    return gym.make_vec("GRPO-VLM-v0", num_envs=8)


def by_tensors():
    return TorchVLMVectorEnv(8, device="cpu")


def by_seeds():
    return DummyVecEnv([Walk] * 3)


@pytest.mark.parametrize("make", [by_ids, by_tensors, by_seeds])
def test_a_saved_model_goes_on_to_the_bit(tmp_path, make):
    """``learn(n)``, save, load, ``learn(m)`` gives the weights of ``learn(n + m)``."""
    whole = GRPO("MlpPolicy", make(), **SMALL).learn(1)
    n = whole.num_timesteps
    whole.learn(400, reset_num_timesteps=False)
    cut = GRPO("MlpPolicy", make(), **SMALL).learn(n)
    cut.save(tmp_path / "model")
    cut.learn(400, reset_num_timesteps=False)
    assert torch.equal(parameters(cut), parameters(whole)), "a save changes nothing"
    torch.rand(100)  # nor does what other code draws in between
    loaded = GRPO.load(tmp_path / "model", env=make())
    loaded.learn(400, reset_num_timesteps=False)
    assert loaded.num_timesteps == whole.num_timesteps > n
    assert torch.equal(parameters(loaded), parameters(whole))
    assert loaded._n_updates == whole._n_updates


@pytest.mark.parametrize("with_env", [True, False])
def test_learning_on_after_loading_equals_learning_on_without(tmp_path, with_env):
    model = walker(
        kl="exact",
        kl_coef=0.2,
        learning_rate=lambda progress: 1e-2 * (0.5 + progress),
        clip_range=lambda progress: 0.1 + 0.1 * progress,
        n_epochs=2,
        batch_size=4,
    )
    model.learn(60)
    model.save(tmp_path / "model")
    env = DummyVecEnv([Walk] * 4)
    loaded = GRPO.load(tmp_path / "model", env=env if with_env else None)
    assert torch.equal(parameters(loaded), parameters(model))
    for one, two in zip(loaded.reference.parameters(), model.reference.parameters(), strict=True):
        assert torch.equal(one, two) and not one.requires_grad
    assert not torch.equal(
        parameters(model), torch.nn.utils.parameters_to_vector(model.reference.parameters())
    )
    ours, theirs = (m.policy.optimizer.state_dict()["state"] for m in (loaded, model))
    assert ours[0]["step"] == theirs[0]["step"] == model._n_updates == loaded._n_updates
    assert torch.equal(ours[0]["exp_avg_sq"], theirs[0]["exp_avg_sq"])
    assert loaded.settings.clip(0.3).low == pytest.approx(0.13)
    assert loaded.num_timesteps == model.num_timesteps
    observation = Walk().reset(seed=0)[0]
    assert loaded.predict(observation, deterministic=True)[0] in (0, 1)
    expected = learn_on(model, DummyVecEnv([Walk] * 4))
    assert torch.equal(learn_on(loaded, DummyVecEnv([Walk] * 4)), expected)


@pytest.mark.parametrize("given", ["function", "name"])
def test_a_model_with_a_baseline_of_ones_own_is_saved(tmp_path, monkeypatch, given):
    scale = 0.5
    monkeypatch.setitem(BASELINES, "mine", lambda rewards, valid, ddof, eps: scale * rewards)
    options = {"baseline": BASELINES["mine"] if given == "function" else "mine"}
    options["surrogate"] = lambda rho, logp, a, clip: (rho * a, torch.zeros_like(rho) > 0)
    model = walker(**options).learn(20)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=DummyVecEnv([Walk] * 4))
    expected = learn_on(model, DummyVecEnv([Walk] * 4))
    assert torch.equal(learn_on(loaded, DummyVecEnv([Walk] * 4)), expected)
    assert not torch.equal(expected, learn_on(walker(), DummyVecEnv([Walk] * 4)))


def test_schedules_are_schedules_after_loading(tmp_path):
    """As SB3's PPO has them; numbers that are given at loading become schedules, too."""
    walker(clip_range_high=0.3).save(tmp_path / "model")
    for given, expected in (({}, 0.2), ({"clip_range": 0.1}, 0.1)):
        loaded = GRPO.load(tmp_path / "model", env=DummyVecEnv([Walk] * 4), **given)
        for schedule, value in ((loaded.clip_range, expected), (loaded.clip_range_high, 0.3)):
            assert isinstance(schedule, FloatSchedule) and schedule(0.5) == value
        assert loaded.settings.clip() == (expected, 0.3, None)
        loaded.learn(20)
    assert walker().clip_range_high is None


def test_a_loaded_model_may_have_other_sub_environments(tmp_path):
    walker().save(tmp_path / "model")
    for n in (8, 3):
        GRPO.load(tmp_path / "model", env=DummyVecEnv([Walk] * n)).learn(20)
    with pytest.raises(AssertionError, match="1 != 4"):
        walker().set_env(DummyVecEnv([Walk]))


@pytest.mark.parametrize("kl", ["none", "k3"])
def test_parameters_travel(kl):
    one, two = walker(kl=kl, seed=1), walker(kl=kl, seed=2)
    names = {"policy", "policy.optimizer"} | ({"reference"} if kl != "none" else set())
    assert set(one.get_parameters()) == names
    one.learn(30)
    assert not torch.equal(parameters(one), parameters(two))
    two.set_parameters(one.get_parameters())
    assert torch.equal(parameters(one), parameters(two))


def test_the_reference_is_the_policy_when_training_begins():
    """Weights that are loaded after construction count as "before training"."""
    model, donor = walker(kl="exact", kl_coef=1.0, seed=1), walker(seed=2)
    model.policy.load_state_dict(donor.policy.state_dict())
    model.learn(30)
    frozen = torch.nn.utils.parameters_to_vector(model.reference.parameters())
    assert torch.equal(frozen, parameters(donor))
    model.learn(30)
    assert torch.equal(
        torch.nn.utils.parameters_to_vector(model.reference.parameters()), parameters(donor)
    )


@pytest.mark.parametrize("kl", ["none", "exact"])
def test_copies_learn_on_alike(kl):
    model = walker(kl=kl)
    model.learn(30)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    expected = learn_on(model, DummyVecEnv([Walk] * 4))
    for other in copies:
        assert torch.equal(learn_on(other, DummyVecEnv([Walk] * 4)), expected)


def test_a_policy_is_saved_alone(tmp_path):
    model = walker(policy_kwargs={"net_arch": [5]})
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy")
    seen = torch.randn(3, 2)
    torch.testing.assert_close(loaded(seen), model.policy(seen))


# -- seeds and counters ---------------------------------------------------------------------------


@pytest.mark.parametrize("env", [DummyVecEnv, SyncVectorEnv])
@pytest.mark.parametrize("n", [1, 4])
def test_a_seed_repeats_a_run_to_the_bit(env, n):
    runs = []
    for seed in (3, 3, 4):
        settings = SMALL | {"seed": seed, "batch_size": 4, "n_epochs": 2}
        model = GRPO("MlpPolicy", env([Walk] * n), **settings).learn(80)
        runs.append((parameters(model), [episode["r"] for episode in model.ep_info_buffer]))
    assert torch.equal(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]
    assert not torch.equal(runs[0][0], runs[2][0])


def test_what_is_changed_while_loading_is_checked(tmp_path):
    walker().save(tmp_path / "model")
    with pytest.raises(ValueError, match="baseline='median': expected one of group"):
        GRPO.load(tmp_path / "model", baseline="median")
    with pytest.raises(ValueError, match="ddof=1 with baseline='rloo'"):
        GRPO.load(tmp_path / "model", baseline="rloo", ddof=1)


def test_learning_again_and_again():
    model = walker()
    model.learn(0)
    assert model.num_timesteps == 0 and model._n_updates == 0
    model.learn(20)
    first = model.num_timesteps
    model.learn(20, reset_num_timesteps=False)
    assert first >= 20 and model.num_timesteps >= first + 20
    model.learn(20)
    assert 20 <= model.num_timesteps < first + 20 and model._n_updates >= 3


def test_schedules_follow_the_progress_and_never_turn_negative():
    """One iteration is 8 episodes of up to 6 steps, so a budget of 10 is overshot."""
    rates, clips = [], []
    model = walker(
        learning_rate=lambda progress: rates.append(progress) or progress,
        clip_range=lambda progress: clips.append(progress) or 0.1 + 0.1 * progress,
    )
    model.learn(10)
    assert model.num_timesteps > 10
    assert rates[-1] == clips[-1] == 0 == model.policy.optimizer.param_groups[0]["lr"]
    before = parameters(model)
    model.learn(10)
    assert torch.equal(parameters(model), before), "learning rate 0, not below"
    rates.clear()
    model.learn(200)
    assert rates == sorted(rates, reverse=True) and 0.5 < max(rates) < 1
