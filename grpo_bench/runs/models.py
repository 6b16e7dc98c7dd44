"""From the configuration of a run to its model, untrained, and to what the model is judged by."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from grpo_bench.config import ControlConfig, GymConfig
from grpo_bench.config.imports import imported
from grpo_bench.config.schema import (
    AlgoConfig,
    ControlEnvConfig,
    ControlTrainConfig,
    EnvConfig,
    GymEnvConfig,
    GymTrainConfig,
)
from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.grpo.base import GroupAlgorithm
from grpo_bench.grpo.choices import check_choice
from grpo_bench.grpo.envs import steps_limit
from grpo_bench.grpo.seeds import integer_seed, stream
from grpo_bench.grpo.settings import Settings
from grpo_bench.grpo.vec_env import VectorEnvAdapter, seed_sub_environments
from grpo_bench.training import control
from grpo_bench.training.baselines import KINDS, make_baseline, make_zoo
from grpo_bench.training.control import make_envs, policy_of
from grpo_bench.training.evaluation import evaluate
from grpo_bench.training.networks import policy_kwargs
from grpo_bench.training.recorder import Evaluation
from grpo_envs.task import Task


def make_model(config: GymConfig | ControlConfig, device: str) -> BaseAlgorithm:
    """The algorithm of a configuration on its environment, untrained."""
    if isinstance(config, ControlConfig):
        model = make_control_model(config, device)
    else:
        model = make_task_model(config, device)
    assert model.env is not None
    seed_sub_environments(model.env, stream(config.seed, "environment"))
    return model


def make_task_model(config: GymConfig, device: str) -> BaseAlgorithm:
    """The algorithm on one of our own tasks."""
    env, train, algo = config.env, config.env.train, config.algo
    options, cls = options_of(algo), class_of(algo)
    is_grpo = issubclass(cls, GroupAlgorithm)
    # GRPO starts its episodes itself; SB3's algorithms want them restarted
    mode = AutoresetMode.DISABLED if is_grpo else AutoresetMode.SAME_STEP
    vector = gym.make_vec(env.id, train.episodes, autoreset_mode=mode, **env.kwargs)
    common: dict[str, Any] = {
        "policy": env.policy,
        "learning_rate": LinearSchedule(config.algo.learning_rate, 0.0, 1.0),
        "policy_kwargs": policy_kwargs(env.network),
        "stats_window_size": train.episodes,
        "seed": integer_seed(config.seed, "policy"),
        "device": device,
    }
    if is_grpo:
        options.setdefault("gamma", 1.0)  # outcomes are judged at the end of an episode
        if options.get("aggregation") == "constant_length":
            options.setdefault("max_len", vector.unwrapped.task.max_steps)  # type: ignore[attr-defined]
        return cls(**common | group_options(config) | options | {"env": vector})
    common["env"] = VectorEnvAdapter(vector)
    if algo.kind == "class":
        return cls(**common | options)
    return make_baseline(algo.kind, **common, **steps_options(config), **options)


def make_control_model(config: ControlConfig, device: str) -> BaseAlgorithm:
    """The algorithm on any Gymnasium environment."""
    env, algo = config.env, config.algo
    options, cls = options_of(algo), class_of(algo)
    n_envs, normalize = env.train.sub_envs, env.normalize
    if algo.kind == "zoo":
        n_envs, normalize = options.pop("n_envs"), options.pop("normalize")
    vector = make_envs(env, n_envs, env.workers, normalize)
    policy, keywords = policy_of(env, vector.observation_space)
    common: dict[str, Any] = {
        "policy": policy,
        "env": vector,
        "learning_rate": LinearSchedule(algo.learning_rate, 0.0, 1.0),
        "policy_kwargs": keywords,
        "seed": integer_seed(config.seed, "policy"),
        "device": device,
    }
    if algo.kind == "zoo":
        return make_zoo(n_epochs=algo.n_epochs, **common, **options)
    if issubclass(cls, GroupAlgorithm):
        if options.get("aggregation") == "constant_length":
            options.setdefault("max_len", steps_limit(vector))
        return cls(**common | group_options(config) | {"gamma": env.gamma} | options)
    if algo.kind == "class":
        return cls(**common | {"gamma": env.gamma} | options)
    if algo.kind == "maskable_ppo" and not is_masking_supported(vector):
        raise ValueError("algo=maskable_ppo: expected an environment with action_masks()")
    return make_baseline(algo.kind, **common, **steps_options(config), **options)


def options_of(algo: AlgoConfig) -> dict[str, Any]:
    """An algorithm's own keywords. A function in place of a formula of ours is named as
    ``package.module:function``."""
    return {
        name: imported(f"algo.{name}", value) if ":" in str(value) else value
        for name, value in algo.options.items()
        if name != "id"
    }


def class_of(algo: AlgoConfig) -> type[BaseAlgorithm]:
    """The class of an algorithm.

    Raises:
        ValueError: an unknown kind, or an ``id`` that is no algorithm.
    """
    check_choice("algo.kind", algo.kind, ("grpo", *KINDS, "zoo", "class"))
    if algo.kind != "class":
        known: dict[str, type[BaseAlgorithm]] = {"grpo": GRPO, "zoo": PPO, **KINDS}
        return known[algo.kind]
    name = str(algo.options["id"])
    found: Any = imported("algo.id", name)
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        raise ValueError(f"algo.id={name}: expected a subclass of SB3's BaseAlgorithm")
    return found


def steps_options(config: GymConfig | ControlConfig) -> dict[str, Any]:
    """How SB3's on-policy algorithms cut an iteration into steps."""
    check_minibatches(config.env.train, None, config.algo.minibatches)
    return {
        "n_steps": config.env.train.n_steps,
        "n_minibatches": config.algo.minibatches,
        "n_epochs": config.algo.n_epochs,
    }


def group_options(config: GymConfig | ControlConfig) -> dict[str, Any]:
    """GRPO's options that follow from the episodes of an iteration."""
    episodes = config.env.train.episodes
    group_size = config.algo.options.get("group_size", Settings.group_size)
    check_minibatches(config.env.train, group_size, config.algo.minibatches)
    return {
        "n_problems": episodes // group_size,
        "batch_size": episodes // config.algo.minibatches,
        "n_epochs": config.algo.n_epochs,
    }


def scores_of(env: GymEnvConfig | ControlEnvConfig) -> dict[str, float]:
    """The mean rewards of a random policy and of the best one, as far as they are known."""
    if isinstance(env, GymEnvConfig):
        task = task_of(env)
        low, high = task.random_score, task.oracle_score
    elif env.returns is not None:
        low, high = env.returns.random, env.returns.reference
    else:
        return {}
    return {"task/random_score": low, "task/oracle_score": high}


def evaluation_of(env: GymEnvConfig | ControlEnvConfig) -> Evaluation:
    """How a model is evaluated on the environment."""
    if isinstance(env, GymEnvConfig):
        return lambda model, split: evaluate(model, env.id, env.kwargs, split)
    return lambda model, split: control.evaluate(model, env, split)


def check_minibatches(train: GymTrainConfig, group_size: int | None, minibatches: int) -> None:
    """Raises ValueError where the minibatches of an iteration would differ in size: SB3 would train
    on a remainder, and the algorithms would no longer be matched."""
    side_by_side = train.sub_envs if isinstance(train, ControlTrainConfig) else train.episodes
    units, what = side_by_side * train.n_steps, "transitions"
    if group_size:
        if train.episodes % group_size:
            raise ValueError(
                f"env.train.episodes={train.episodes}: expected a multiple of "
                f"group_size={group_size}"
            )
        units, what = train.episodes // group_size, "groups"
    if units % minibatches:
        raise ValueError(
            f"algo.minibatches={minibatches}: expected a divisor of the {units} {what} of an "
            "iteration"
        )


def task_of(env: EnvConfig) -> Task:
    """The task of an environment."""
    return gym.make_vec(env.id, 1, **env.kwargs).unwrapped.task  # type: ignore[attr-defined]
