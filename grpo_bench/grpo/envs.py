"""Environments for groups: make one from an id, and check that groups fit on it."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench.grpo.vec_env import VectorEnvAdapter, base_vec_env
from grpo_envs.vector import TaskVectorEnv

GROUPS_BY_DEFAULT = 2  # few, so that a small budget has many updates
GROUPS_OF_TASKS = 32  # of our own tasks, which play all episodes of an iteration at once
LONGEST = 5_000  # steps of an episode whose environment has no limit


def make_env(
    env_id: str, group_size: int, n_problems: int | None
) -> VecEnv | VectorEnv[Any, Any, Any]:
    """Make an environment for groups: for our own, one sub-environment for each episode of an
    iteration; for others, one for each member of a group."""
    module, _, name = env_id.rpartition(":")
    if module:  # "package:Name-v0", as gymnasium.make takes it
        importlib.import_module(module)
    if gym.spec(name).vector_entry_point is not None:
        one = gym.make_vec(name, 1, vectorization_mode="vector_entry_point")
        one.close()
        if isinstance(one.unwrapped, TaskVectorEnv):
            num_envs = group_size * (n_problems or GROUPS_OF_TASKS)
            return gym.make_vec(name, num_envs, autoreset_mode=AutoresetMode.DISABLED)
    return make_vec_env(env_id, n_envs=group_size)


def check_layout(group_size: int, n_problems: int, batch_size: int | None) -> None:
    """Raises ValueError, with valid numbers, if a minibatch would not hold whole groups."""
    episodes = n_problems * group_size
    if batch_size is not None and (batch_size % group_size or episodes % batch_size):
        sizes = [g * group_size for g in range(1, n_problems + 1) if n_problems % g == 0]
        raise ValueError(
            f"batch_size={batch_size}: expected whole groups of {group_size} that divide the "
            f"{episodes} episodes of an iteration: {_listed(sizes)}"
        )


def steps_limit(env: VecEnv) -> int:
    """After so many steps an episode counts as one that never ends: the limit in the environment's
    spec, or ``LONGEST``."""
    base = base_vec_env(env)
    if isinstance(base, VectorEnvAdapter):
        specs = [getattr(base.env, "spec", None)]
    else:
        specs = base.get_attr("spec") if base.has_attr("spec") else [None]
    limits = [spec.max_episode_steps for spec in specs if spec is not None]
    return max((limit for limit in limits if limit), default=LONGEST)


def _listed(numbers: list[int]) -> str:
    if len(numbers) > 12:
        return f"{', '.join(map(str, numbers[:12]))}, ..."
    return ", ".join(map(str, numbers))


def check_observations(space: spaces.Space[Any]) -> None:
    """Raises ValueError for observations that SB3's policies cannot read."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {None: space}
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    for name, part in parts.items():
        if not isinstance(part, kinds):
            key = "" if name is None else f" of key {name!r}"
            raise ValueError(
                f"observation space {part}{key}: expected Box, Discrete, MultiDiscrete, "
                "MultiBinary, or a Dict of these; wrap the environment in "
                "gymnasium.wrappers.FlattenObservation, or drop the key with FilterObservation"
            )


def check_actions(action_space: spaces.Space[Any]) -> None:
    """Raises ValueError for actions that SB3's distributions would number wrongly: they count from
    0, and take the actions of a MultiDiscrete space as one row."""
    start = np.asarray(getattr(action_space, "start", 0))
    if start.any():
        raise ValueError(
            f"action space {action_space}: policies number actions from 0, so wrap the environment "
            "in one that adds start to the action"
        )
    if isinstance(action_space, spaces.MultiDiscrete) and len(action_space.shape) > 1:
        raise ValueError(f"action space {action_space}: expected one row, so flatten it")
