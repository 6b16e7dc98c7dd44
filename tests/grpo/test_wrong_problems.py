"""An environment that plays another problem than it was reset to."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from support.toys import UNIT

from grpo_bench import GRPO
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


@pytest.mark.parametrize("cls", [OneOff, LateOff])
def test_native_environments(cls):
    env = cls(8, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match=r"was reset to problem \d+ and info says problem \d+"):
        GRPO("MultiInputPolicy", env, **SMALL).learn(1)
