"""An environment that plays another problem than it was reset to."""

from __future__ import annotations

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize
from support.toys import UNIT

from grpo_bench import GRPO
from grpo_bench.grpo.vec_env import VectorEnvAdapter
from grpo_envs.tokens.arithmetic import ArithmeticVectorEnv

SMALL = {"group_size": 4, "n_problems": 4, "seed": 1}


class Stubborn(gym.Env):
    """It takes the ids of problems 0 to 6 and draws others in place of problem 7."""

    observation_space, action_space = UNIT, gym.spaces.Discrete(2)
    kind = int

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(8))
        self.problem = (options or {}).get("problem_id", drawn)
        if options and self.problem == 7:
            self.problem = 3
        return np.zeros(UNIT.shape, UNIT.dtype), {"problem_id": self.kind(self.problem)}

    def step(self, action):
        info = {"problem_id": self.kind(self.problem)}
        return np.zeros(UNIT.shape, UNIT.dtype), float(action), True, False, info


class Careful(Stubborn):
    def reset(self, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        if options:
            self.problem = info["problem_id"] = self.kind(options["problem_id"])
        return observation, info


class Floats(Careful):
    kind = float


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "vec", [DummyVecEnv, SubprocVecEnv, lambda e: VecNormalize(DummyVecEnv(e))]
)
def test_both_problems_are_named(vec, n):
    env = vec([Stubborn] * n)
    with pytest.raises(
        ValueError, match=r"was reset to problem 7 and info says problem 3: make res"
    ):
        GRPO("MlpPolicy", env, **SMALL).learn(200)
    env.close()


@pytest.mark.parametrize("env", [Careful, Floats])
def test_ids_of_any_number_type_are_right(env):
    GRPO("MlpPolicy", DummyVecEnv([env] * 3), **SMALL).learn(100)


class LargeIds(Stubborn):
    """All of its ids are above a million, and floats."""

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.problem += 1_234_567
        return observation, {"problem_id": float(self.problem)}


def test_all_digits_of_an_id_are_named():
    with pytest.raises(ValueError, match=r"problem 12345\d\d and info says problem 12345\d\d:"):
        GRPO("MlpPolicy", DummyVecEnv([LargeIds] * 3), **SMALL).learn(200)


class OwnChance(Stubborn):
    """It draws its problem from a generator that no seed reaches; nothing else shows it."""

    def __init__(self):
        self.chance = np.random.default_rng(0)

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.problem = int(self.chance.integers(8))
        return observation, {"problem_id": self.problem}

    def step(self, action):
        return np.zeros(UNIT.shape, UNIT.dtype), 0.0, True, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("vec", [SyncVectorEnv, AsyncVectorEnv])
def test_groups_by_seed_play_one_problem(vec, mode):
    words = r"with seed \d+ and info says problem \d, but the same seed gave problem \d to"
    with closing(vec([OwnChance] * 2, autoreset_mode=mode)) as env:
        model = GRPO("MlpPolicy", env, **SMALL)
        with pytest.raises(ValueError, match=words):
            model.learn(100)
    GRPO("MlpPolicy", SyncVectorEnv([Stubborn] * 2, autoreset_mode=mode), **SMALL).learn(100)


def test_mixed_starts_may_be_other_problems():
    env = SyncVectorEnv([OwnChance] * 2)
    GRPO("MlpPolicy", env, mixed_start=True, **SMALL).learn(16)


class OneOff(ArithmeticVectorEnv):
    """At a restart in the middle of a rollout, or at the start of one."""

    late = False

    def reset(self, *, seed=None, options=None):
        observations, infos = super().reset(seed=seed, options=options)
        if options and ("reset_mask" in options) == self.late:
            infos["problem_id"] = infos["problem_id"] + 1
        return observations, infos


class LateOff(OneOff):
    late = True


@pytest.mark.parametrize(
    ("cls", "mode"),
    [*((OneOff, mode) for mode in AutoresetMode), (LateOff, AutoresetMode.DISABLED)],
)
def test_native_environments(cls, mode):
    env = cls(8, autoreset_mode=mode)
    with pytest.raises(ValueError, match=r"was reset to problem \d+ and info says problem \d+"):
        GRPO("MultiInputPolicy", env, **SMALL).learn(1)


def test_native_environments_in_wrappers_of_sb3():
    env = VecMonitor(VectorEnvAdapter(OneOff(8, autoreset_mode=AutoresetMode.DISABLED)))
    with pytest.raises(ValueError, match=r"was reset to problem \d+ and info says problem \d+:"):
        GRPO("MultiInputPolicy", env, **SMALL).learn(1)
