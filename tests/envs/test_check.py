"""``check_group_env`` on correct environments, and on environments with one fault each."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from grpo_envs import check_group_env
from grpo_envs.tokens.arithmetic import ArithmeticVectorEnv


class Guess(gym.Env[np.ndarray, int]):
    """Two guesses of a problem's id modulo 3. Each subclass breaks one thing."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(3)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.problem = self.pick(options or {})
        self.guesses = 0
        self.episodes += 1
        return self.observe(), self.info()

    def step(self, action: int) -> Any:
        self.guesses += 1
        reward = float(action == self.problem % 3)
        return self.observe(), reward, self.guesses == 2, False, self.info()

    def pick(self, options: dict[str, Any]) -> int:
        drawn = int(self.np_random.integers(1000))
        return int(options.get("problem_id", drawn))

    def observe(self) -> np.ndarray:
        return np.array([self.problem, self.guesses], dtype=np.float32)

    def info(self) -> dict[str, Any]:
        return {"problem_id": float(self.problem), "is_success": 0.0}


class NoisyStart(Guess):
    def observe(self) -> np.ndarray:
        noise = self.np_random.random() if self.guesses == 0 else 0
        return super().observe() + np.float32(noise)


class NoisyObservation(Guess):
    def observe(self) -> np.ndarray:
        noise = self.np_random.random() if self.guesses == 1 else 0
        return super().observe() + np.float32(noise)


class _NoisyReward(Guess):
    def noise(self) -> float:
        raise NotImplementedError

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.noise(), *rest


class OwnGeneratorReward(_NoisyReward):
    def noise(self) -> float:
        return self.np_random.random()


class GlobalNumpyReward(_NoisyReward):
    def noise(self) -> float:
        return np.random.random()  # noqa: NPY002


class GlobalPythonReward(_NoisyReward):
    def noise(self) -> float:
        return random.random()


class LeftoverReward(_NoisyReward):
    def noise(self) -> float:
        return float(self.episodes)


class LeftoverEnd(Guess):
    def step(self, action: int) -> Any:
        observation, reward, _, *rest = super().step(action)
        return observation, reward, self.guesses == 2 + self.episodes % 2, *rest


class IgnoresTheId(Guess):
    def pick(self, options: dict[str, Any]) -> int:
        return super().pick({})


class MoreKeysAtTheEnd(Guess):
    def info(self) -> dict[str, Any]:
        return super().info() | ({"length": 2.0} if self.guesses == 2 else {})


class IntegerInfo(Guess):
    def info(self) -> dict[str, Any]:
        return super().info() | {"is_success": 0}


class NumpyInfo(Guess):
    def info(self) -> dict[str, Any]:
        return super().info() | {"is_success": np.float64(0)}


BROKEN = {
    NoisyStart: "the first observations of a first rollout and a later one differ",
    NoisyObservation: "observations after step 1 .* differ",
    OwnGeneratorReward: "rewards .* at step 1",
    GlobalNumpyReward: "rewards .* at step 1",
    GlobalPythonReward: "rewards .* at step 1",
    LeftoverReward: "rewards .* at step 1",
    LeftoverEnd: r"\(terminated, truncated\) .* at step 2",
    IgnoresTheId: "was asked for by reset.* but info says",
    MoreKeysAtTheEnd: "info has the keys .*length",
    IntegerInfo: "is 0, a int: expected a Python float",
    NumpyInfo: "a float64: expected a Python float",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda env: env.__name__)
def test_each_fault_is_reported(broken: type[Guess]) -> None:
    with pytest.raises(AssertionError, match=r"^problem \d+.*" + BROKEN[broken]):
        check_group_env(broken())


def test_one_problem_is_enough_to_find_leftovers() -> None:
    with pytest.raises(AssertionError, match="rewards"):
        check_group_env(LeftoverReward(), n_problems=1)


def test_bad_number_of_problems() -> None:
    with pytest.raises(ValueError, match="n_problems=0: expected at least 1"):
        check_group_env(Guess(), n_problems=0)


# -- environments that keep the contract ----------------------------------------------------------


@pytest.mark.parametrize("name", ["Arithmetic", "Format"])
def test_our_environments(name: str) -> None:
    check_group_env(gym.make(f"GRPO-{name}-v0"))
    for mode in AutoresetMode:
        check_group_env(gym.make_vec(f"GRPO-{name}-v0", num_envs=5, autoreset_mode=mode))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_environments_without_ids(env_id: str) -> None:
    """Third-party environments need only equal seeds: dict, tuple and discrete spaces."""
    check_group_env(gym.make(env_id))
    for mode in AutoresetMode:
        check_group_env(SyncVectorEnv([lambda: gym.make(env_id)] * 3, autoreset_mode=mode))


def test_the_global_generators_are_left_as_they_were() -> None:
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    check_group_env(gym.make("GRPO-Arithmetic-v0"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


# -- vector environments --------------------------------------------------------------------------


class PlaceInTheBatch(ArithmeticVectorEnv):
    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward + np.arange(self.num_envs), *rest


class CrossTalk(ArithmeticVectorEnv):
    """Rewards depend on the whole batch: equal within one group, different in a mixed batch."""

    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward + np.mean(actions), *rest


class ListInfo(ArithmeticVectorEnv):
    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        infos["accuracy"] = infos["accuracy"].astype(np.float32)
        return *rest, infos


class NoFinalObservation(ArithmeticVectorEnv):
    """Only the first observation of the next, random episode follows the last step of one."""

    metadata: ClassVar[dict[str, Any]]

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        for name in ("final_obs", "_final_obs"):
            infos.pop(name, None)
        return *rest, infos


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (PlaceInTheBatch(3), "rewards of group members 0 and 1 at step 1"),
        (CrossTalk(3), "rewards of a first rollout and a later one at step 1"),
        (ListInfo(3), r"infos\['accuracy'\] .* expected an array of float64"),
        (NoFinalObservation(3), "observations after step"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_broken_vector_environments(env: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_group_env(env)


@pytest.mark.parametrize(
    "env",
    [
        gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
        SyncVectorEnv([lambda: gym.make("GRPO-Arithmetic-v0")] * 3),
    ],
    ids=["one seed only", "one id only"],
)
def test_vector_environments_that_cannot_start_a_group(env: Any) -> None:
    with pytest.raises(AssertionError, match="so a group cannot be started"):
        check_group_env(env)
