"""What a user names as ``package.module:Name``: networks, functions, wrappers; and its digest."""

from __future__ import annotations

import sys

import gymnasium as gym
import pytest
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from grpo_bench.config import composed
from grpo_bench.config.imports import digests
from grpo_bench.records import identity
from grpo_bench.runs.models import make_model
from grpo_bench.training.control import maker

HERE = __name__
CARTPOLE = ("env=cartpole", "budget=smoke", "tuned=none")


class Wide(BaseFeaturesExtractor):
    def __init__(self, space, hidden=8):
        super().__init__(space, hidden)
        self.layer = torch.nn.Linear(space.shape[0], hidden)

    def forward(self, observations):
        return self.layer(observations)


class Times(gym.RewardWrapper):
    def __init__(self, env, factor=1.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def from_best(rewards, valid, ddof, eps):
    return rewards - rewards.max(dim=1, keepdim=True).values


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_body_of_ones_own_is_everyones_network(algo):
    network = f"env.network={{body: '{HERE}:Wide', hidden: 6}}"
    model = make_model(composed(*CARTPOLE, f"algo={algo}", network), "cpu")
    assert isinstance(model.policy.features_extractor, Wide)
    assert model.policy.action_net.in_features == 6


def test_a_function_in_place_of_a_formula():
    model = make_model(composed(*CARTPOLE, f"algo.baseline='{HERE}:from_best'"), "cpu")
    advantages = model.baseline(torch.tensor([[1.0, 3.0]]), torch.ones(1, 2, dtype=bool), 0, 0.0)
    assert advantages.tolist() == [[-2.0, 0.0]]


def test_wrappers_with_keywords():
    plain = composed(*CARTPOLE).plain
    plain["env"]["wrappers"] = [{f"{HERE}:Times": {"factor": 3.0}}, f"{HERE}:Times"]
    env = maker(composed(*CARTPOLE).changed({"env.wrappers": plain["env"]["wrappers"]}).env)()
    env.reset(seed=0)
    assert env.step(0)[1] == 3.0


@pytest.mark.parametrize("value", [[3], ["a", {}], [{"a:b": 1}], [{"a:b": {}, "c:d": {}}]])
def test_wrappers_that_are_none(value):
    with pytest.raises(ValueError, match=r"env\.wrappers=.*: expected a list such as"):
        composed(*CARTPOLE).changed({"env.wrappers": value})


# -- digests --------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file of the user's, on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "digested.py"
    file.write_text("x = 1\n")
    yield file
    sys.modules.pop("digested", None)


def test_a_changed_module_is_another_run_of_those_that_name_it(module):
    def hashes():
        words = ("algo=class", "algo.id=digested:Mine")
        runs = [composed(*CARTPOLE, *words), composed(*CARTPOLE, "algo=ppo")]
        return [identity(run.plain) for run in runs]

    before = hashes()
    assert hashes() == before
    module.write_text("x = 2\n")
    changed, same = hashes()
    assert changed != before[0] and same == before[1]


def test_only_modules_of_the_users_own_have_digests(module):
    named = {
        "id": "digested:Mine-v0",
        "wrappers": [{"digested:Wrapper": {"of": "gymnasium.wrappers:FlattenObservation"}}],
        "class": "grpo_bench.grpo:GRPO",
        "none": ["no_such_module:Name", "plain", "a: b", 3, None, "http://x"],
    }
    assert list(digests(named)) == ["digested"]
    assert len(digests(named)["digested"]) == 8
    assert "code" not in composed(*CARTPOLE).plain["env"]
