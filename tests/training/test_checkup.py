"""The instruments of SB3's algorithms: gradient norms, what is not finite, and the doctor."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv
from support.configs import config
from support.toys import Walk
from torch import nn

from grpo_bench.fast.gradients import norms_seen
from grpo_bench.grpo.doctor import PATIENCE, DoctorWarning
from grpo_bench.runs.job import execute
from grpo_bench.training.checkup import Checkup, largest_entropy


def ppo(**keywords):
    return PPO("MlpPolicy", DummyVecEnv([Walk] * 4), n_steps=8, batch_size=16, **keywords)


def examined(model, n_updates=PATIENCE, **metrics):
    """The short names of what a checkup finds in updates that log these metrics."""
    checkup = Checkup(model)
    logged = {f"{name.replace('__', '/')}": value for name, value in metrics.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoctorWarning)
        for update in range(n_updates):
            checkup.examine(logged, 10 * (update + 1))
    return list(checkup.doctor.findings)


def started(returns):
    model = ppo()
    model._setup_learn(100)
    model.ep_info_buffer.extend({"r": r, "l": 1} for r in returns)
    return model


@pytest.mark.parametrize("cls", [PPO, A2C, DQN])
def test_the_norm_is_that_of_the_gradient_before_it_is_shortened(cls):
    """A bound of 1e-9 shortens every gradient, so a norm that is seen after it would show."""
    seen = []
    quick = {"learning_starts": 8, "train_freq": 4} if cls is DQN else {"n_steps": 8}
    torch.manual_seed(0)
    model = cls("MlpPolicy", DummyVecEnv([Walk] * 4), max_grad_norm=1e-9, **quick)
    with norms_seen(seen.append):
        model.learn(64)
    assert len(seen) >= 2 and min(seen) > 1e-6
    clip = torch.nn.utils.clip_grad_norm_
    with pytest.raises(RuntimeError), norms_seen(seen.append):
        raise RuntimeError
    assert torch.nn.utils.clip_grad_norm_ is clip


def test_records_of_ppo_have_every_metric(tmp_path):
    """Those of SB3, numpy scalars too, and the norm of the gradient."""
    folder = execute(config(tmp_path, "env=vlm_synthetic", "algo=ppo", "seed=1"))
    metrics = set(pd.read_parquet(folder / "metrics.parquet")["metric"])
    assert {"train/grad_norm", "train/approx_kl", "train/explained_variance"} <= metrics


def test_a_gradient_of_sb3_that_is_not_finite_ends_the_run_before_the_step(tmp_path, monkeypatch):
    weights = []

    def poisoned(self, obs, actions):
        weights.append(torch.nn.utils.parameters_to_vector(self.parameters()).detach().clone())
        values, logp, entropy = evaluate_actions(self, obs, actions)
        return values * (math.nan if len(weights) == 3 else 1.0), logp, entropy

    from stable_baselines3.common.policies import ActorCriticPolicy

    evaluate_actions = ActorCriticPolicy.evaluate_actions
    monkeypatch.setattr(ActorCriticPolicy, "evaluate_actions", poisoned)
    with pytest.raises(FloatingPointError, match="the gradient norm of step 3 is nan"):
        execute(config(tmp_path, "env=vlm_synthetic", "algo=ppo", "seed=1"))
    assert len(weights) == 3 and weights[-1].isfinite().all()


@pytest.mark.parametrize(
    ("space", "most"),
    [
        (spaces.Discrete(4), math.log(4)),
        (spaces.MultiDiscrete([2, 3]), math.log(6)),
        (spaces.MultiBinary(3), 3 * math.log(2)),
        (spaces.Box(-1, 1, (2,), np.float32), 0.0),
    ],
)
def test_the_largest_entropy(space, most):
    assert largest_entropy(space) == pytest.approx(most)


STILL = {"train__entropy_loss": -1e-3, "train__approx_kl": 300.0}


def test_a_policy_that_an_update_destroyed_has_collapsed():
    assert examined(started([0.0, 1.0]), **STILL) == ["collapsed"]
    assert examined(started([0.0, 1.0]), rollout__success_rate=0.3, **STILL) == ["collapsed"]
    a2c = STILL | {"train__approx_kl": math.inf}
    assert examined(started([0.0, 1.0]), **a2c) == ["collapsed"]


@pytest.mark.parametrize(
    "metrics",
    [
        STILL | {"train__entropy_loss": -0.5},
        STILL | {"train__approx_kl": 0.02},
        STILL | {"rollout__success_rate": 0.95},
    ],
)
def test_what_is_no_collapse(metrics):
    assert examined(started([0.0, 1.0]), **metrics) == []
    assert examined(started([0.0, 1.0]), PATIENCE - 1, **STILL) == [], "too early"


def test_equal_returns_of_all_episodes():
    usual = {"train__entropy_loss": -0.5, "train__approx_kl": 0.02}
    assert examined(started([-200.0] * 5), **usual) == ["no spread"]
    assert examined(started([]), **usual) == []


def test_a_network_with_dropout():
    class Noisy(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(64, 64), nn.Dropout(0.5))

    model = ppo()
    model.policy.extra = Noisy()
    assert examined(model, 0) == ["dropout"]
    assert examined(ppo(), 0) == []
