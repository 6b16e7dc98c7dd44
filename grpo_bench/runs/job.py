"""One run, from its configuration to its record."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium as gym
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import get_device

from grpo_bench.config import ControlConfig, GymConfig, LanguageConfig, RunConfig
from grpo_bench.fast.gradients import norms_seen
from grpo_bench.grpo.seeds import integer_seed
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import reset_peak
from grpo_bench.meter.provenance import provenance
from grpo_bench.records import claim, plan
from grpo_bench.runs.models import evaluation_of, make_model, scores_of, task_of
from grpo_bench.runs.stopping import held
from grpo_bench.training.baselines import load_actor
from grpo_bench.training.control import check_env
from grpo_bench.training.exports import check_exports, sinks
from grpo_bench.training.recorder import Recorder
from grpo_bench.training.resume import resumed
from grpo_bench.training.warmup import check_warmup, warmed_up
from grpo_envs.task import Task

if TYPE_CHECKING:
    from grpo_bench.lm.parallel import World

NO_MODEL = (AssertionError, MemoryError, RuntimeError, TypeError, ValueError, gym.error.Error)
UNEXPECTED = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
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
        recorder = Recorder(
            run,
            evaluation_of(config.env),
            config.budget,
            phases,
            lambda share, success: progress("training", share, success),
            config.checkpoint_minutes,
        )
        with phases("setup"):
            model = make_model(config, device)
            if run.checkpoint is not None:
                model, recorder.counts = resumed(model, run.checkpoint)
            else:
                recorder.counts.extra = scores_of(config.env)
        phases.seconds |= recorder.counts.seconds
        if run.checkpoint is None and config.env.warmup is not None:
            assert isinstance(config, GymConfig)
            seconds = warm_up(model, task_of(config.env), config, progress)
            recorder.counts.extra["time/warmup_seconds"] = seconds
        left = config.budget.transitions - model.num_timesteps
        try:
            with norms_seen(recorder.see_norm):
                model.learn(
                    left,
                    callback=recorder,
                    log_interval=1,
                    reset_num_timesteps=run.checkpoint is None,
                )
        finally:
            if recorder.findings:
                run.extra["findings"] = recorder.findings
        recorder.finish()
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
    except (
        AssertionError,
        RuntimeError,
        MemoryError,
        TypeError,
        ValueError,
        gym.error.Error,
    ) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        if (found := UNEXPECTED.search(said)) and found[2] in config.algo.options:
            said = f"{found[1]} has no setting algo.{found[2]}"
        raise ValueError(f"{who}: {said}") from error


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
