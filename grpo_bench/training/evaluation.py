"""Play every problem of a frozen split once, greedily: one row per problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm

from grpo_bench.grpo.rollout import take
from grpo_envs.task import Split

CHUNK = 4096  # episodes side by side: bounds the memory of an evaluation


def evaluate(
    model: BaseAlgorithm, env_id: str, kwargs: Mapping[str, Any], split: Split
) -> dict[str, np.ndarray]:
    """Greedy episodes on all problems of a split.

    Returns:
        Columns ``problem_id``, ``reward`` (the episode's sum), ``success``, ``length`` and the
        task's reward components, each (n,), in the order of the split's frozen list.
    """
    task = gym.make_vec(env_id, 1, split=split, **kwargs).unwrapped.task  # type: ignore[attr-defined]
    ids = task.problem_ids(split)
    parts = [
        _play(model, env_id, {**kwargs, "split": split}, ids[first : first + CHUNK])
        for first in range(0, len(ids), CHUNK)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _play(
    model: BaseAlgorithm, env_id: str, kwargs: dict[str, Any], ids: np.ndarray
) -> dict[str, np.ndarray]:
    env = gym.make_vec(env_id, len(ids), autoreset_mode=AutoresetMode.DISABLED, **kwargs)
    columns = ("is_success", *env.unwrapped.task.component_names)  # type: ignore[attr-defined]
    total = {name: np.zeros(len(ids)) for name in ("reward", *columns)}
    length = np.zeros(len(ids), dtype=np.int64)
    ended = np.zeros(len(ids), dtype=bool)
    obs, _ = env.reset(options={"problem_id": ids})
    actions = np.zeros(len(ids), dtype=np.int64)
    while not ended.all():
        going = (~ended).nonzero()[0]
        actions[going] = _greedy(model, env, take(obs, going), going)
        obs, reward, terminated, _, infos = env.step(actions)  # those that ended pay 0
        length += ~ended
        for name, values in {"reward": reward, **{name: infos[name] for name in columns}}.items():
            total[name] += np.where(ended, 0.0, values)
        ended |= terminated
    success = total.pop("is_success")
    return {"problem_id": ids, "success": success, "length": length, **total}


def _greedy(model: BaseAlgorithm, env: Any, obs: Any, going: np.ndarray) -> np.ndarray:
    """Actions of the episodes that go on, whose observations these are."""
    if isinstance(model, MaskablePPO):
        masks = env.unwrapped.action_masks()[going]
        return model.predict(obs, deterministic=True, action_masks=masks)[0]
    return model.predict(obs, deterministic=True)[0]
