"""Shared by the benchmarks of training: tasks, schedules, models, a stopwatch, and the bare passes
through the network."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from grpo_bench import GRPO
from grpo_bench.config.schema import NetworkConfig
from grpo_bench.grpo import algorithm
from grpo_bench.grpo.rollout import Rollout, RolloutBuilder, TensorObs, take
from grpo_bench.grpo.vec_env import VectorEnvAdapter
from grpo_bench.meter import Phases
from grpo_bench.training.baselines import make_baseline
from grpo_bench.training.networks import policy_kwargs

GROUP_SIZE = 8
LEARNING_RATE = 3e-4  # SB3's default; the speed does not depend on it
FOR_EVER = 10**9  # transitions: the stopwatch ends the training


@dataclass(frozen=True)
class Task:
    """An environment and a network to train on it.

    Attributes:
        steps: vector steps of an iteration of PPO: about the length of an episode, so an iteration
            of GRPO (whole episodes) has about the same number of transitions.
    """

    env_id: str
    policy: str
    network: NetworkConfig
    steps: int


@dataclass(frozen=True)
class Schedule:
    """Minibatches and epochs of an iteration."""

    name: str
    n_minibatches: int
    n_epochs: int


TASKS = {
    "vlm": Task("GRPO-VLM-v0", "MlpPolicy", NetworkConfig("mlp", {"widths": (64, 64)}), 1),
    "arithmetic": Task(
        "GRPO-Arithmetic-v0",
        "MultiInputPolicy",
        NetworkConfig("transformer", {"width": 64, "depth": 2, "heads": 4}),
        4,
    ),
}
SCHEDULES = {
    "full": Schedule("whole batch, 1 epoch", 1, 1),
    "default": Schedule("32 minibatches, 10 epochs", 32, 10),  # SB3's: 64 of 2,048
    "middle": Schedule("4 minibatches, 4 epochs", 4, 4),
}


# -- models ---------------------------------------------------------------------------------------


def make_grpo(
    task: Task,
    schedule: Schedule,
    transitions: int,
    turn: int,
    group_size: int = GROUP_SIZE,
) -> GRPO:
    """GRPO with all episodes of an iteration in parallel."""
    episodes = transitions // task.steps
    env = gym.make_vec(task.env_id, num_envs=episodes, autoreset_mode=AutoresetMode.DISABLED)
    return GRPO(
        task.policy,
        env,
        learning_rate=LEARNING_RATE,
        group_size=group_size,
        n_problems=episodes // group_size,
        batch_size=episodes // schedule.n_minibatches,
        n_epochs=schedule.n_epochs,
        policy_kwargs=policy_kwargs(task.network),
        seed=turn,
        device="cpu",
    )


def make_ppo(
    task: Task, schedule: Schedule, transitions: int, critic: str, dummies: int | None, turn: int
) -> BaseAlgorithm:
    """PPO with as many sub-environments as GRPO, or with SB3's ``DummyVecEnv`` of ``dummies``."""
    n_envs = dummies or transitions // task.steps
    if dummies is None:
        env: VecEnv = VectorEnvAdapter(gym.make_vec(task.env_id, num_envs=n_envs))
    else:
        env = make_vec_env(task.env_id, n_envs, seed=turn)
    return make_baseline(
        "ppo",
        env,
        critic=critic,
        n_steps=transitions // n_envs,
        n_minibatches=schedule.n_minibatches,
        n_epochs=schedule.n_epochs,
        learning_rate=LEARNING_RATE,
        policy=task.policy,
        policy_kwargs=policy_kwargs(task.network),
        seed=turn,
        device="cpu",
    )


def ppo_as_it_comes(env_id: str, policy: str, n_envs: int, seed: int) -> PPO:
    """SB3's PPO as in its documentation: ``DummyVecEnv`` and default settings (2,048 steps of each
    sub-environment, minibatches of 64, 10 epochs, networks of 64-64 for actor and critic)."""
    return PPO(policy, make_vec_env(env_id, n_envs, seed=seed), seed=seed, device="cpu")


# -- whole iterations -----------------------------------------------------------------------------


class Speed(NamedTuple):
    """One measurement: transitions per second, and shares of the time that add up to 1."""

    rate: float
    rollout: float
    buffer: float  # making the update's input from rollouts
    update: float  # the rest


class Stopwatch(BaseCallback):
    """Times the phases of all iterations except the first, and keeps GRPO's last rollout. Ends
    training at the first rollout that begins at least ``seconds`` after the second one."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.least = seconds
        self.begins: list[tuple[float, int]] = []  # seconds, transitions so far
        self.phases = Phases()
        self.whole: dict[str, float] = {}  # seconds of each phase of whole iterations
        self.rollout: Rollout | None = None
        self._phase = ExitStack()

    def _on_rollout_start(self) -> None:
        self._phase.close()
        if not self.begins[1:]:
            self.phases.seconds.clear()
        self.whole = dict(self.phases.seconds)
        self.begins.append((time.perf_counter(), self.num_timesteps))
        self._phase.enter_context(self.phases("rollout"))

    def _on_step(self) -> bool:
        return len(self.begins) < 3 or self.begins[-1][0] - self.begins[1][0] < self.least

    def _on_rollout_end(self) -> None:
        self._phase.close()
        self.rollout = self.locals.get("rollout")
        self._phase.enter_context(self.phases("update"))

    def speed(self) -> Speed:
        """The speed of all whole iterations except the first."""
        (start, before), (end, after) = self.begins[1], self.begins[-1]
        rollout, buffer = (self.whole[name] / (end - start) for name in ("rollout", "buffer"))
        return Speed((after - before) / (end - start), rollout, buffer, 1 - rollout - buffer)


def learning(make: Callable[[int], BaseAlgorithm], seconds: float, turn: int) -> Speed:
    """Speed of a fresh model."""
    model, watch = make(turn), Stopwatch(seconds)
    with no_collection(), buffer_timed(watch.phases):
        model.learn(FOR_EVER, watch, log_interval=None)  # type: ignore[arg-type]
    return watch.speed()


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn off Python's garbage collector, as ``timeit`` does. SB3 makes a dict for each
    sub-environment and step, which triggers full collections of the 300,000 objects of all imported
    modules: 160 ms in one short measurement, nothing in the next."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def buffer_timed(phases: Phases) -> Iterator[None]:
    """Time the work between rollout and update as the phase ``buffer``: the methods of SB3's
    rollout buffer, and GRPO's ``RolloutBuilder.finish`` and ``minibatches``."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with phases("buffer"):
                return function(*args, **kwargs)

        return call

    def timed_parts(generator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            parts = generator(*args, **kwargs)
            while (part := timed(next)(parts, None)) is not None:
                yield part

        return call

    parts: list[tuple[Any, str, Callable[..., Any]]] = [
        (RolloutBuffer, "compute_returns_and_advantage", timed),
        (RolloutBuilder, "finish", timed),
        (algorithm, "minibatches", timed_parts),
    ]
    for owner in (RolloutBuffer, DictRolloutBuffer):
        parts += [(owner, "reset", timed), (owner, "add", timed), (owner, "get", timed_parts)]
    with ExitStack() as patches:
        for owner, name, wrap in parts:
            patches.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        yield


# -- the floor ------------------------------------------------------------------------------------


def batches_of(rollout: Rollout, schedule: Schedule, per_problem: bool) -> list[TensorObs]:
    """The observations of each minibatch: one per transition, as in PPO, or each distinct one once:
    the members of a group share their first observation."""
    batches = []
    for rows, mask in zip(
        rollout.rows.chunk(schedule.n_minibatches),
        rollout.mask.chunk(schedule.n_minibatches),
        strict=True,
    ):
        wanted = rows[mask].unique() if per_problem else rows[mask]
        batches.append(take(rollout.observations, wanted))
    return batches


def together_of(rollout: Rollout, per_problem: bool) -> TensorObs:
    """The observations of the whole rollout, in the same way."""
    if per_problem:
        return rollout.observations
    return take(rollout.observations, rollout.rows[rollout.mask])


def bare_pass(policy: torch.nn.Module, observations: TensorObs) -> None:
    """One pass forward and backward; the loss is the mean log-probability of action 0."""
    for parameter in policy.parameters():
        parameter.grad = None
    loss: Tensor = policy(observations).log_softmax(dim=1)[:, 0].mean()
    loss.backward()
