"""The sub-environments of a vector environment, one by one: SB3 and Gymnasium step all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

Reset = tuple[int | None, dict[str, Any] | None]  # seed and options of Env.reset


class Stepped(NamedTuple):
    """What ``gymnasium.Env.step`` returns."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class SubEnvs(Protocol):
    """The sub-environments of a vector environment, one by one."""

    def step(self, slots: np.ndarray, actions: Sequence[Any]) -> list[Stepped]:
        """Step these, with an action each."""
        ...

    def reset(self, slots: np.ndarray, how: list[Reset]) -> list[tuple[Any, dict[str, Any]]]:
        """Reset these; observations and infos."""
        ...


class InThisProcess(SubEnvs):
    """Those of ``DummyVecEnv`` and ``SyncVectorEnv``."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        self.envs = envs

    def step(self, slots: np.ndarray, actions: Sequence[Any]) -> list[Stepped]:
        pairs = zip(slots, actions, strict=True)
        return [Stepped(*self.envs[i].step(action)) for i, action in pairs]

    def reset(self, slots: np.ndarray, how: list[Reset]) -> list[tuple[Any, dict[str, Any]]]:
        each = []
        for i, (seed, options) in zip(slots, how, strict=True):
            given = {} if options is None else {"options": options}
            each.append(self.envs[i].reset(seed=seed, **given))
        return each


class OfSubproc(SubEnvs):
    """Those of ``SubprocVecEnv``, which work at the same time."""

    def __init__(self, env: SubprocVecEnv) -> None:
        self.remotes = env.remotes

    def step(self, slots: np.ndarray, actions: Sequence[Any]) -> list[Stepped]:
        for i, action in zip(slots, actions, strict=True):
            self.remotes[i].send(("step", action))
        return [self._receive(i) for i in slots]

    def _receive(self, i: int) -> Stepped:
        obs, reward, done, info, _ = self.remotes[i].recv()
        truncated = info.pop("TimeLimit.truncated")
        last = info.pop("terminal_observation") if done else obs  # the worker has reset it
        return Stepped(last, reward, done and not truncated, truncated, info)

    def reset(self, slots: np.ndarray, how: list[Reset]) -> list[tuple[Any, dict[str, Any]]]:
        for i, (seed, options) in zip(slots, how, strict=True):
            self.remotes[i].send(("reset", (seed, options)))
        return [self.remotes[i].recv() for i in slots]


class OfAsync(SubEnvs):
    """Those of ``AsyncVectorEnv``, which work at the same time."""

    def __init__(self, env: AsyncVectorEnv) -> None:
        self.env = env
        mode = env.metadata["autoreset_mode"]
        # Without shared memory, the worker's reset does not clear its mark to reset at the next
        # step (Gymnasium 1.4), so that step comes first.
        self.marked = mode is AutoresetMode.NEXT_STEP and not env.shared_memory
        self.ended: set[int] = set()

    def step(self, slots: np.ndarray, actions: Sequence[Any]) -> list[Stepped]:
        for i, action in zip(slots, actions, strict=True):
            self.env.parent_pipes[i].send(("step", action))
        each = []
        for i, result in zip(slots, self._receive(slots), strict=True):
            obs, reward, terminated, truncated, info = result
            if "final_obs" in info:  # SAME_STEP: the worker has reset it
                obs, info = info["final_obs"], info["final_info"]
            elif self.env.shared_memory:
                obs = self._shared(i)
            if terminated or truncated:
                self.ended.add(int(i))
            each.append(Stepped(obs, reward, terminated, truncated, info))
        return each

    def reset(self, slots: np.ndarray, how: list[Reset]) -> list[tuple[Any, dict[str, Any]]]:
        if marked := [i for i in slots if self.marked and i in self.ended]:
            for i in marked:
                self.env.parent_pipes[i].send(("step", None))
            self._receive(np.array(marked))
        self.ended -= set(slots.tolist())
        for i, (seed, options) in zip(slots, how, strict=True):
            self.env.parent_pipes[i].send(("reset", {"seed": seed, "options": options}))
        each = zip(slots, self._receive(slots), strict=True)
        return [
            (self._shared(i) if self.env.shared_memory else obs, info) for i, (obs, info) in each
        ]

    def _receive(self, slots: np.ndarray) -> list[Any]:
        received = [self.env.parent_pipes[i].recv() for i in slots]
        fine = np.ones(self.env.num_envs, dtype=bool)
        fine[slots] = [success for _, success in received]
        self.env._raise_if_errors(fine)
        return [result for result, _ in received]

    def _shared(self, i: int) -> Any:
        every = iterate(self.env.observation_space, self.env.observations)
        return deepcopy(list(every)[i])


def sub_envs_of(env: VecEnv | VectorEnv[Any, Any, Any]) -> SubEnvs | None:
    """The sub-environments of a vector environment; None if they cannot be stepped one by one."""
    if isinstance(env, DummyVecEnv | SyncVectorEnv):
        return InThisProcess(env.envs)
    if isinstance(env, SubprocVecEnv):
        return OfSubproc(env)
    return OfAsync(env) if isinstance(env, AsyncVectorEnv) else None
