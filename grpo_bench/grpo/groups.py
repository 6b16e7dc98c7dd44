"""Sources of groups: start the same problem in several sub-environments, and step them.

A *start* makes the members of a group begin alike: a problem id where the environment has ids, else
a seed, and nothing in ``mixed_start`` groups. There are two classes, because SB3's and Gymnasium's
vector environments take seeds, options and steps in different ways.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench.grpo.vec_env import (
    VectorEnvAdapter,
    base_vec_env,
    takes_problem_ids,
    tensor_device,
    to_host,
)


class Step(NamedTuple):
    """One step of all E sub-environments; rows of those that wait mean nothing. Rewards and ends
    are on the host, which counts episodes; ``obs`` may be on a device."""

    obs: Any
    rewards: np.ndarray  # (E,)
    dones: np.ndarray  # (E,) bool
    truncated: np.ndarray  # (E,) bool, done because of a time limit alone
    success: np.ndarray  # (E,) float, NaN where the environment does not say


class GroupSource(Protocol):
    """Starts problems in E sub-environments, and steps them all."""

    kind: str  # of start: "problem_id", "seed" or "mixed_start"
    n_envs: int
    device: torch.device | None  # of observations and actions; None: they are arrays

    def draw(self, n: int) -> np.ndarray:
        """n starts, (n,)."""
        ...

    def reset(self, starts: np.ndarray) -> Any:
        """Begin start i in sub-environment i; first observations, batched."""
        ...

    def step(self, actions: Any) -> Step:
        """One action (E, ...) in every sub-environment: an array, or a tensor on ``device``."""
        ...


def make_source(env: VecEnv, rng: np.random.Generator, mixed_start: bool) -> GroupSource:
    """The source that fits the environment; ``rng`` draws the seeds where there are no ids."""
    if isinstance(env, VectorEnvAdapter):
        return VectorEnvSource(env, rng, mixed_start)
    return VecEnvSource(env, rng, mixed_start)


class VectorEnvSource(GroupSource):
    """Groups in a Gymnasium ``VectorEnv``.

    Raises:
        ValueError: the environment can neither start given problems nor seed each sub-environment,
            so the members of a group cannot start alike.
    """

    def __init__(self, adapter: VectorEnvAdapter, rng: np.random.Generator, mixed_start: bool):
        self.env, self.mode, self.rng = adapter.env, adapter.mode, rng
        self.n_envs = adapter.num_envs
        self.device = tensor_device(self.env)
        self._seed = adapter._pending_seed()
        if mixed_start:
            self.kind = "mixed_start"
        elif takes_problem_ids(self.env):
            self.kind = "problem_id"
        elif isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            self.kind = "seed"
        else:
            raise ValueError(
                f"{self.env} takes one seed for all its sub-environments, so the members of a "
                "group cannot start alike: use SyncVectorEnv, an environment with problem ids, or "
                "mixed_start=True"
            )
        self.env.reset(seed=self._seed)

    def draw(self, n: int) -> np.ndarray:
        if self.kind == "problem_id":
            return to_host(self.env.unwrapped.draw_problems(n))  # type: ignore[attr-defined]
        return self.rng.integers(2**31, size=n)

    def reset(self, starts: np.ndarray) -> Any:
        match self.kind:
            case "problem_id":
                return self.env.reset(options={"problem_id": starts})[0]
            case "seed":
                return self.env.reset(seed=starts.tolist())[0]
            case _:
                return self.env.reset()[0]

    def step(self, actions: Any) -> Step:
        obs, *ends, infos = self.env.step(actions)
        rewards, terminated, truncated = to_host(tuple(ends))
        dones = terminated | truncated
        final = infos.get("final_info", infos)
        success = np.full(self.n_envs, np.nan)
        if "is_success" in final:
            said = to_host(final.get("_is_success", np.ones(self.n_envs, dtype=bool)))
            success[said] = to_host(final["is_success"])[said]
        if self.mode is AutoresetMode.DISABLED and self.kind != "problem_id" and dones.any():
            obs, _ = self.env.reset(options={"reset_mask": dones})
        return Step(obs, rewards, dones, truncated & ~terminated, success)


class VecEnvSource(GroupSource):
    """Groups in an SB3 ``VecEnv``: ids through ``set_options``, seeds through ``_seeds`` (there is
    no public way to seed each sub-environment)."""

    def __init__(self, env: VecEnv, rng: np.random.Generator, mixed_start: bool):
        self.env, self.rng = env, rng
        self.n_envs = env.num_envs
        self.device = None
        env.reset()
        base = base_vec_env(env)
        has_ids = all("problem_id" in info for info in base.reset_infos)
        if isinstance(base, VectorEnvAdapter):  # infos may carry ids that reset() does not take
            has_ids = takes_problem_ids(base.env)
        self.kind = "mixed_start" if mixed_start else "problem_id" if has_ids else "seed"

    def draw(self, n: int) -> np.ndarray:
        if self.kind != "problem_id":
            return self.rng.integers(2**31, size=n)
        ids: list[float] = []
        while len(ids) < n:
            self.env.reset()
            ids += [info["problem_id"] for info in base_vec_env(self.env).reset_infos]
        return np.array(ids[:n])

    def reset(self, starts: np.ndarray) -> Any:
        base = base_vec_env(self.env)
        match self.kind:
            case "problem_id":
                base.set_options([{"problem_id": start} for start in starts.tolist()])
            case "seed":
                base._seeds = starts.tolist()
        return self.env.reset()

    def step(self, actions: Any) -> Step:
        obs, rewards, dones, infos = self.env.step(actions)
        success = np.array([float(info.get("is_success", np.nan)) for info in infos])
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        return Step(obs, rewards, dones, truncated, success)
