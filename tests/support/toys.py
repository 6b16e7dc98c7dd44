"""Small environments, and helpers for models that several test files share."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from grpo_bench import GRPO
from grpo_bench.grpo.rollout import Rollout

UNIT = spaces.Box(-1, 1, (2,), np.float32)


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


SPREAD, FAILED, SOLVED, SHAPED, HIDDEN, NARROW = (100 * kind for kind in range(1, 7))


class Puzzle(gym.Env):
    """Problems whose id, or seed, decides how a group ends, whatever its actions are.

    The hundreds of the id: every second member of ``SPREAD`` succeeds, none of ``FAILED``, all of
    ``SOLVED``; in ``SHAPED`` none does but the rewards differ, in ``HIDDEN`` every second does but
    the rewards do not differ, in ``NARROW`` the rewards differ by hundredths. Members are counted
    in ``plays``, which the sub-environments share. An episode has 1 to 3 steps, and ends by a time
    limit if its id is even. The reward comes at the end. Info has ``is_success`` if ``reports``.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, plays=None, reports=True, as_dict=False):
        self.plays = {} if plays is None else plays
        self.reports, self.as_dict = reports, as_dict
        place = spaces.Box(0, 1000, (2,), np.float32)
        self.observation_space = spaces.Dict(place=place, time=UNIT) if as_dict else place

    def reset(self, *, seed=None, options=None):
        self.problem = int((options or {}).get("problem_id", seed or 0))
        self.member = self.plays.get(self.problem, 0)
        if self.problem:
            self.plays[self.problem] = self.member + 1
        self.t, self.length = 0, 1 + (self.problem + self.member) % 3
        return self._see(), {"problem_id": self.problem}

    def step(self, action):
        self.t += 1
        done, odd = self.t >= self.length, self.member % 2
        kind = self.problem // 100 * 100
        success = {SPREAD: odd, SOLVED: 1, HIDDEN: odd}.get(kind, 0)
        reward = {
            SHAPED: self.member * 0.5, HIDDEN: 0.1, NARROW: 0.1 + 0.01 * odd, FAILED: 0.1
        }.get(kind, success)  # fmt: skip
        info = {"problem_id": self.problem}
        if self.reports:
            info["is_success"] = bool(success)
        cut_off = done and self.problem % 2 == 0
        return self._see(), float(done * reward), done and not cut_off, cut_off, info

    def _see(self):
        place = np.array([self.problem, self.t], dtype=np.float32)
        if not self.as_dict:
            return place
        return {"place": place, "time": np.full(2, self.t / 3, dtype=np.float32)}


SMALL = {"group_size": 4, "n_problems": 2, "n_epochs": 1, "gamma": 1.0, "seed": 0}


def walker(**settings: Any) -> GRPO:
    """A small model on four walks; a group takes all of them."""
    return GRPO("MlpPolicy", DummyVecEnv([Walk] * 4), **SMALL | settings)


def collected(model: GRPO, steps: int = 10_000) -> Any:
    """Set the model up and play one iteration's groups; the rollout waits in the model."""
    _, callback = model._setup_learn(steps)
    callback.on_training_start({}, {})
    assert model.collect_rollouts(callback)
    return model._rollout


def parameters(model: GRPO) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


def rollout_of(returns, success):
    """One-step groups of these returns; success 0 or, if false, unknown."""
    rewards = torch.tensor(returns)
    n = rewards.numel()
    return Rollout(
        observations=torch.arange(n, dtype=torch.float32)[:, None],
        rows=torch.arange(n)[:, None],
        actions=torch.zeros(n, 1, dtype=torch.long),
        old_logp=torch.zeros(n, 1),
        rewards=rewards.reshape(n, 1),
        mask=torch.ones(n, 1, dtype=torch.bool),
        truncated=torch.zeros(n, dtype=torch.bool),
        success=np.full(n, 0.0 if success else np.nan),
        starts=np.arange(len(rewards)),
        group_size=rewards.shape[1],
    )


def group(rollout, problem):
    """The part of a rollout for this problem's group: each real step, then each episode."""
    (place,) = np.flatnonzero(rollout.starts == problem)
    size = rollout.group_size
    members = range(place * size, (place + 1) * size)
    steps = []
    for e in members:
        assert rollout.mask[e].tolist() == sorted(rollout.mask[e].tolist(), reverse=True)
        for t in range(int(rollout.mask[e].sum())):
            seen = rollout.observations
            row = rollout.rows[e, t]
            parts = seen.values() if isinstance(seen, dict) else [seen]
            values = [rollout.actions[e, t], rollout.old_logp[e, t], rollout.rewards[e, t]]
            steps.append((e - place * size, t, *(part[row].tolist() for part in parts)))
            steps[-1] += tuple(value.tolist() for value in values)
    ends = [(rollout.success[e].item(), rollout.truncated[e].item()) for e in members]
    return steps, [repr(end) for end in ends]


class Starts(BaseCallback):
    """Records the problem ids or seeds of all groups of a run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.noted.extend(self.locals["rollout"].starts.tolist())
