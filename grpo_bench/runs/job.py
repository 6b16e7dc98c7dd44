"""One run, from its configuration to its record."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule, get_device

from grpo_bench.config import ControlConfig, GymConfig, LanguageConfig, RunConfig
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
from grpo_bench.grpo.seeds import integer_seed, stream
from grpo_bench.grpo.settings import Settings
from grpo_bench.grpo.vec_env import VectorEnvAdapter, seed_sub_environments
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import reset_peak
from grpo_bench.meter.provenance import provenance
from grpo_bench.records import claim, plan
from grpo_bench.runs.stopping import held
from grpo_bench.training import control
from grpo_bench.training.baselines import KINDS, load_actor, make_baseline, make_zoo
from grpo_bench.training.control import check_env, imported, make_envs, policy_of
from grpo_bench.training.evaluation import evaluate
from grpo_bench.training.exports import check_exports, sinks
from grpo_bench.training.networks import policy_kwargs
from grpo_bench.training.recorder import Evaluation, Recorder
from grpo_bench.training.warmup import check_warmup, warmed_up
from grpo_envs.task import Task

if TYPE_CHECKING:
    from grpo_bench.lm.parallel import World

# Called with the stage, the share of it that is done, and the latest success rate.
Progress = Callable[[str, float, float], None]
Weights = dict[str, dict[str, torch.Tensor]]  # state dicts, as ``load_actor`` takes them


def ignore_progress(stage: str, share: float, success: float) -> None:
    """Show no progress."""


def execute(config: RunConfig, progress: Progress = ignore_progress, concurrency: int = 1) -> Path:
    """Execute a run, unless its record is ok or another process executes it.

    Returns:
        The folder of its record. An exception is in the record before it is raised.
    """
    torch.set_num_threads(config.threads)
    reset_peak()
    device = device_of(config.device)
    world = world_of(config, device)
    folder = plan(Path(config.results), config.plain)
    seeds = {name: integer_seed(config.seed, name) for name in ("policy", "environment")}
    found = provenance(device)
    with ExitStack() as stack:
        with held():  # the run is entered before a signal can end it: its record says "killed"
            run = claim(
                folder, config.plain, seeds=seeds, provenance=found, concurrency=concurrency
            )
            if run is not None:
                stack.enter_context(run)
        if run is None if world is None else world.most(run is None):  # all of them, or none
            return folder
        assert run is not None
        run.sinks = sinks(config, folder)
        if isinstance(config, LanguageConfig):
            from grpo_bench.lm.run import learn  # transformers: seconds, and an extra

            assert world is not None
            learn(run, config, device, progress, world)
            return folder
        assert isinstance(config, GymConfig | ControlConfig)
        phases = Phases(device)
        with phases("setup"):
            model = make_model(config, device)
            extra = scores_of(config.env)
        if isinstance(config, GymConfig) and config.env.warmup is not None:
            task = task_of(config.env)
            extra["time/warmup_seconds"] = warm_up(model, task, config, progress)
        recorder = Recorder(
            run,
            evaluation_of(config.env),
            config.budget,
            phases,
            lambda share, success: progress("training", share, success),
        )
        try:
            model.learn(config.budget.transitions, callback=recorder, log_interval=1)
        finally:
            if isinstance(model, GRPO) and model.doctor.findings:
                run.extra["findings"] = list(model.doctor.findings.values())
        recorder.finish(extra)
        assert model.env is not None
        model.env.close()
        (folder / "checkpoint").mkdir(exist_ok=True)
        model.save(folder / "checkpoint" / "model.zip")
    return folder


def world_of(config: RunConfig, device: str) -> World | None:
    """The processes that train a language model together; None in the Gym track, where each run
    has one process."""
    if not isinstance(config, LanguageConfig):
        return None
    from grpo_bench.lm.parallel import World  # imports torch.distributed

    return World.here(device)


def check(config: RunConfig) -> None:
    """Make the model of a configuration, untrained, to see that it can be made.

    Raises:
        ValueError: names what is wrong with the configuration.
    """
    device_of(config.device)
    check_installed(config)
    who = f"env={config.env.name} algo={config.algo.name}"
    try:
        if isinstance(config, LanguageConfig):
            from grpo_bench.lm.setup import check_config

            check_config(config)
            return
        if isinstance(config, ControlConfig):
            check_control(config)
            return
        assert isinstance(config, GymConfig)
        make_model(config, "cpu")
        if config.env.warmup is not None:
            check_warmup(task_of(config.env), config.env)
    except (AssertionError, MemoryError, TypeError, ValueError, gym.error.Error) as error:
        raise ValueError(f"{who}: {error or type(error).__name__}") from error


def check_installed(config: RunConfig) -> None:
    """Raises ValueError where a language model, TensorBoard or Weights & Biases needs a package
    that is not installed."""
    check_exports(config)
    if isinstance(config, LanguageConfig) and importlib.util.find_spec("transformers") is None:
        raise ValueError(
            f"model={config.model.name}: needs transformers; in a checkout of grpo-bench: "
            "pip install -c constraints.txt '.[lm]'"
        )


def device_of(name: str) -> str:
    """Where to train, for torch: ``auto`` is the first CUDA card, or the CPU if there is none.

    Raises:
        ValueError: this machine has no such device. (SB3 would take the CPU instead.)
    """
    expected = f"device={name}: expected auto, cpu, cuda or cuda:<n>"
    try:
        device = get_device(name)
    except RuntimeError:
        raise ValueError(expected) from None
    cards = torch.cuda.device_count()
    if name.startswith("cuda") and (device.type != "cuda" or (device.index or 0) >= cards):
        raise ValueError(f"{expected}; torch {torch.__version__} finds {cards} cards here")
    return str(device)


def check_control(config: ControlConfig) -> None:
    """Make the model of a run on any Gymnasium environment, in this process.

    Raises:
        ValueError: names what is wrong.
    """
    check_env(config.env)
    model = make_model(config.changed({"env.workers": 1}), "cpu")
    assert model.env is not None
    model.env.close()


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
    options = dict(algo.options)
    cls = class_of(algo)
    options.pop("id", None)
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
    options = dict(algo.options)
    n_envs, normalize = env.train.sub_envs, env.normalize
    if algo.kind == "zoo":
        n_envs, normalize = options.pop("n_envs"), options.pop("normalize")
    cls = class_of(algo)
    options.pop("id", None)
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
        return cls(**common | group_options(config) | {"gamma": env.gamma} | options)
    if algo.kind == "class":
        return cls(**common | {"gamma": env.gamma} | options)
    if algo.kind == "maskable_ppo" and not is_masking_supported(vector):
        raise ValueError("algo=maskable_ppo: expected an environment with action_masks()")
    return make_baseline(algo.kind, **common, **steps_options(config), **options)


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


def warm_up(model: BaseAlgorithm, task: Task, config: GymConfig, progress: Progress) -> float:
    """Start from the warmed-up actor; the seconds that it cost, now or when it was made."""
    weights, seconds = warmup_of(task, config, progress)
    load_actor(model.policy, weights)
    return seconds


def make_warmup(config: RunConfig, progress: Progress = ignore_progress) -> None:
    """Make the warm-up of a configuration, unless it exists, where its runs will find it."""
    assert isinstance(config, GymConfig)
    torch.set_num_threads(config.threads)
    warmup_of(task_of(config.env), config, progress)


def warmup_of(task: Task, config: GymConfig, progress: Progress) -> tuple[Weights, float]:
    """As ``warmed_up``, from the cache in the folder of results."""
    cache = Path(config.results) / "warmup"
    return warmed_up(task, config.env, cache, lambda share: progress("warm-up", share, math.nan))


def task_of(env: EnvConfig) -> Task:
    """The task of an environment."""
    return gym.make_vec(env.id, 1, **env.kwargs).unwrapped.task  # type: ignore[attr-defined]
