"""Small environments, and what several test files do with a model."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from grpo_bench import GRPO


class Walk(gym.Env):
    """Walk a line from a start that only the seed decides, left or right, until |x| reaches 3 or 6
    steps are over (truncated). Reward 1 for each step to the right, as an int; no info."""

    observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-2, 2)), 0
        return self._see(), {}

    def step(self, action):
        self.x += 1.0 if action else -1.0
        self.t += 1
        return self._see(), int(action), abs(self.x) >= 3, self.t >= 6, {}

    def _see(self):
        return np.array([self.x, self.t / 3], dtype=np.float32)


class OneStep(gym.Env):
    """One observation, one action, one reward: ``reward(observation, action)``."""

    def __init__(self, action_space, observation_space, reward):
        self.action_space, self.observation_space = action_space, observation_space
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.seen = self.observation_space.sample()
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.seen, self.reward(self.seen, action), True, False, {}


SMALL = {"group_size": 4, "n_problems": 2, "seed": 0}


def walker(**settings: Any) -> GRPO:
    """A small model on four walks, of which a group takes all."""
    return GRPO("MlpPolicy", DummyVecEnv([Walk] * 4), **SMALL | settings)


def collected(model: GRPO, steps: int = 10_000) -> Any:
    """Set the model up and play one iteration's groups; the rollout waits in the model."""
    _, callback = model._setup_learn(steps)
    callback.on_training_start({}, {})
    assert model.collect_rollouts(callback)
    return model._rollout


def parameters(model: GRPO) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


class Starts(BaseCallback):
    """Notes the problem ids or seeds of all groups of a run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.noted.extend(self.locals["rollout"].starts.tolist())
