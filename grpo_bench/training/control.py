"""Any Gymnasium environment: its sub-environments, the policy that fits it, and its evaluation."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from grpo_bench.config.imports import explained, imported
from grpo_bench.config.schema import ControlEnvConfig
from grpo_bench.training.networks import policy_kwargs
from grpo_envs.task import Split

SMALLEST_IMAGE = 36  # pixels a side that SB3's NatureCNN takes
TOGETHER = 16  # sub-environments of an evaluation


def make_envs(env: ControlEnvConfig, n: int, workers: int, normalize: bool) -> VecEnv:
    """n sub-environments with a ``Monitor`` each. With one worker they are in this process, with
    more each is in a process of its own.

    Raises:
        ValueError: the environment or a wrapper cannot be made.
    """
    make = maker(env)
    made: VecEnv = SubprocVecEnv([make] * n) if workers > 1 else DummyVecEnv([make] * n)
    return VecNormalize(made) if normalize else made


def maker(env: ControlEnvConfig) -> Callable[[], gym.Env[Any, Any]]:
    """A function that makes one sub-environment. It can be sent to another process, where the id
    need not be registered."""
    wrappers = [wrapper_of(entry) for entry in env.wrappers]
    return partial(make_one, spec_of(env.id), dict(env.kwargs), wrappers)


def wrapper_of(entry: str | Mapping[str, Mapping[str, Any]]) -> Callable[[Any], Any]:
    """A wrapper from an entry of ``env.wrappers``: its name, or its name with its keywords."""
    if isinstance(entry, str):
        entry = {entry: {}}
    ((name, keywords),) = entry.items()
    return partial(imported("env.wrappers", name), **keywords)


def spec_of(id: str) -> EnvSpec:
    """The specification of ``Name-v0`` or ``package.module:Name-v0``."""
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(name)


def make_one(spec: EnvSpec, kwargs: dict[str, Any], wrappers: list[Any]) -> gym.Env[Any, Any]:
    """One sub-environment."""
    made: gym.Env[Any, Any] = gym.make(spec, **kwargs)
    for wrapper in wrappers:
        made = wrapper(made)
    return Monitor(made)


def check_env(env: ControlEnvConfig) -> None:
    """Make one sub-environment.

    Raises:
        ValueError: names the key that is wrong, and the reason.
    """
    try:
        maker(env)().close()
    except (ImportError, gym.error.Error, TypeError) as error:
        raise ValueError(f"env.id={env.id}: {explained(error)}") from None


def policy_of(env: ControlEnvConfig, space: spaces.Space[Any]) -> tuple[str, dict[str, Any]]:
    """The policy of SB3 and its keywords. ``auto`` is the one that fits the observations; images
    that are too small for SB3's CNN are flat vectors to it. Without a network, it has SB3's."""
    name = env.policy
    if name == "auto":
        is_dict = isinstance(space, spaces.Dict)
        is_image = is_image_space(space) and min(sorted(space.shape or ())[1:]) >= SMALLEST_IMAGE
        name = "MultiInputPolicy" if is_dict else "CnnPolicy" if is_image else "MlpPolicy"
    return name, {} if env.network is None else policy_kwargs(env.network)


# -- evaluation -----------------------------------------------------------------------------------


def evaluation_seeds(split: Split, n: int) -> list[int]:
    """The seeds of a split's episodes, always the same. Training draws from 2^31 others."""
    sequence = np.random.SeedSequence([get_args(Split).index(split), *b"evaluation"])
    return [int(seed) for seed in sequence.generate_state(n) // 2]


def evaluate(model: BaseAlgorithm, env: ControlEnvConfig, split: Split) -> dict[str, np.ndarray]:
    """Episodes from the seeds of a split. Sampled actions are the same in each evaluation of a
    policy, and training samples as if there had been none.

    Returns:
        Columns ``problem_id`` (the seed), ``reward`` (the return), ``success`` and ``length``, each
        (n,). ``success`` is what the environment reports as ``is_success``; else the return as a
        score, 0 for random and 1 for the reference, if ``returns`` has both; else the return.
    """
    seeds = evaluation_seeds(split, env.evaluation.episodes)
    make = maker(env)
    envs = [make() for _ in range(min(TOGETHER, len(seeds)))]
    normalize = model.get_vec_normalize_env()
    left = list(range(len(seeds)))
    playing: dict[int, int] = {}  # episode of each sub-environment
    observations: dict[int, Any] = {}
    rows: dict[int, tuple[float, float, int]] = {}

    def begin(i: int) -> None:
        playing.pop(i, None)
        if left:
            playing[i] = left.pop(0)
            observations[i], _ = envs[i].reset(seed=seeds[playing[i]])

    for i in range(len(envs)):
        begin(i)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        while playing:
            slots = sorted(playing)
            seen = stacked([observations[i] for i in slots])
            if normalize is not None:
                seen = normalize.normalize_obs(seen)
            actions, _ = model.predict(seen, deterministic=env.evaluation.greedy)
            for i, action in zip(slots, actions, strict=True):
                observations[i], _, terminated, truncated, info = envs[i].step(action)
                if terminated or truncated:
                    episode, solved = info["episode"], float(info.get("is_success", math.nan))
                    rows[playing[i]] = episode["r"], solved, episode["l"]
                    begin(i)
    for each in envs:
        each.close()
    returns, success, length = (
        np.array(c) for c in zip(*map(rows.get, range(len(seeds))), strict=True)
    )
    return {
        "problem_id": np.array(seeds),
        "reward": returns,
        "success": success if not np.isnan(success).any() else score(returns, env),
        "length": length.astype(np.int64),
    }


def score(returns: np.ndarray, env: ControlEnvConfig) -> np.ndarray:
    """Returns (n,) as scores, or as they are where no random and reference return is known."""
    if env.returns is None:
        return returns
    low, high = env.returns.random, env.returns.reference
    return (returns - low) / (high - low)


def stacked(observations: list[Any]) -> Any:
    """Observations as a batch, (n, ...)."""
    if isinstance(observations[0], dict):
        return {k: np.stack([each[k] for each in observations]) for k in observations[0]}
    return np.stack(observations)
