"""Speed of learning: GRPO beside SB3's PPO on the same native environment, with the same actor,
transitions, minibatches and epochs, and beside the bare passes through the network.

    python benchmarks/train_speed.py --repeats 5 --out results/benchmarks

Every turn makes a fresh model from a seed of its own, learns one iteration that does not count, and
then times whole iterations for a while. Start-up and the writing of logs are no part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from _compare import Table, in_turns, parser, progress, ratio, ratio_columns, spread, verdict
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from grpo_bench import GRPO
from grpo_bench.baselines import make_baseline
from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.networks import policy_kwargs
from grpo_bench.report.numbers import share, significant
from grpo_bench.report.writers import Column
from grpo_bench.vec_env import VectorEnvAdapter

GROUP_SIZE = 8
TARGET = 2.0  # times PPO with a critic of its own
FOR_EVER = 10**9  # transitions: the stopwatch ends it
GRPO_ROW, PPO_ROW = "GRPO", "PPO, separate critic"


@dataclass(frozen=True)
class Task:
    """An environment and the network that learns on it.

    Attributes:
        steps: vector steps of an iteration, for PPO: about the length of an episode, so that an
            iteration of GRPO (episodes) has about as many transitions.
    """

    env_id: str
    policy: str
    network: dict[str, Any]
    steps: int


@dataclass(frozen=True)
class Schedule:
    """How an iteration's transitions are passed over."""

    name: str
    n_minibatches: int
    n_epochs: int


class Speed(NamedTuple):
    """One measurement."""

    rate: float  # transitions per second
    rollout: float  # share of the time


TASKS = {
    "vlm": Task("GRPO-VLM-v0", "MlpPolicy", {"body": "mlp", "widths": (64, 64)}, 1),
    "arithmetic": Task(
        "GRPO-Arithmetic-v0",
        "MultiInputPolicy",
        {"body": "transformer", "width": 64, "depth": 2, "heads": 4},
        4,
    ),
}
SCHEDULES = {
    "full": Schedule("whole batch, 1 epoch", 1, 1),
    "default": Schedule("32 minibatches, 10 epochs", 32, 10),  # SB3's: 64 of 2,048
    "middle": Schedule("4 minibatches, 4 epochs", 4, 4),
}


class Stopwatch(BaseCallback):
    """Notes when rollouts begin and end, keeps GRPO's last one, and ends the learning at the first
    rollout that begins ``seconds`` after the second one did."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.begins: list[tuple[float, int]] = []  # seconds, transitions so far
        self.ends: list[float] = []
        self.rollout: Rollout | None = None

    def _on_rollout_start(self) -> None:
        self.begins.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        return len(self.begins) < 3 or self.begins[-1][0] - self.begins[1][0] < self.seconds

    def _on_rollout_end(self) -> None:
        self.ends.append(time.perf_counter())
        self.rollout = self.locals.get("rollout")

    def speed(self) -> Speed:
        """Of all whole iterations but the first."""
        (start, before), (end, after) = self.begins[1], self.begins[-1]
        rollouts = zip(self.begins[1:-1], self.ends[1:], strict=True)
        rollout = sum(ended - began for (began, _), ended in rollouts)
        return Speed((after - before) / (end - start), rollout / (end - start))


def make_grpo(task: Task, schedule: Schedule, transitions: int, turn: int) -> GRPO:
    """GRPO with all episodes of an iteration side by side."""
    episodes = transitions // task.steps
    env = gym.make_vec(task.env_id, num_envs=episodes, autoreset_mode=AutoresetMode.DISABLED)
    return GRPO(
        task.policy,
        env,
        group_size=GROUP_SIZE,
        n_problems=episodes // GROUP_SIZE,
        batch_size=episodes // schedule.n_minibatches,
        n_epochs=schedule.n_epochs,
        policy_kwargs=policy_kwargs(task.network),
        seed=turn,
        device="cpu",
    )


def make_ppo(
    task: Task, schedule: Schedule, transitions: int, critic: str, dummies: int | None, turn: int
) -> BaseAlgorithm:
    """PPO on as many native sub-environments as GRPO has, or on SB3's ``DummyVecEnv`` of
    ``dummies``."""
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
        learning_rate=3e-4,
        policy=task.policy,
        policy_kwargs=policy_kwargs(task.network),
        seed=turn,
        device="cpu",
    )


def learning(make: Callable[[int], BaseAlgorithm], seconds: float, turn: int) -> Speed:
    """Speed of a fresh model."""
    watch = Stopwatch(seconds)
    make(turn).learn(FOR_EVER, watch, log_interval=None)  # type: ignore[arg-type]
    return watch.speed()


def passes(
    policy: ActorPolicy, rollout: Rollout, schedule: Schedule, per_problem: bool, seconds: float
) -> Callable[[int], Speed]:
    """The floor: one pass forward of a rollout's observations, then forward and backward ones of
    its minibatches, with the mean log-probability as the loss and no optimiser.

    Args:
        per_problem: only the distinct observations of each minibatch, as GRPO passes them; else
            one observation for each transition.
    """
    batches = []
    for rows, mask in zip(
        rollout.rows.chunk(schedule.n_minibatches),
        rollout.mask.chunk(schedule.n_minibatches),
        strict=True,
    ):
        wanted = rows[mask].unique() if per_problem else rows[mask]
        batches.append(_take(rollout.observations, wanted))
    together = _take(rollout.observations, torch.arange(int(rollout.rows.max()) + 1))
    if not per_problem:
        together = _take(rollout.observations, rollout.rows[rollout.mask])

    def iteration() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            policy(together)
        ended = time.perf_counter()
        for _ in range(schedule.n_epochs):
            for batch in batches:
                policy.zero_grad()
                policy(batch).log_softmax(dim=1)[:, 0].mean().backward()
        return ended - start

    def measure(turn: int) -> Speed:
        iteration()
        forward, n, elapsed, start = 0.0, 0, 0.0, time.perf_counter()
        while not n or elapsed < seconds:
            forward += iteration()
            n += int(rollout.mask.sum())
            elapsed = time.perf_counter() - start
        return Speed(n / elapsed, forward / elapsed)

    return measure


def _take(observations: Any, index: Tensor) -> Any:
    if isinstance(observations, dict):
        return {name: values[index] for name, values in observations.items()}
    return observations[index]


def subjects(
    task: Task, schedule: Schedule, transitions: int, seconds: float
) -> dict[str, Callable[[int], Speed]]:
    """What is measured of a task under a schedule, each a function of the turn."""
    grpo = partial(make_grpo, task, schedule, transitions)
    makers: dict[str, Callable[[int], BaseAlgorithm]] = {GRPO_ROW: grpo}
    for critic in ("separate", "shared"):
        makers[f"PPO, {critic} critic"] = partial(
            make_ppo, task, schedule, transitions, critic, None
        )
    if schedule is SCHEDULES["default"]:
        makers["PPO, separate critic, DummyVecEnv of 8"] = partial(
            make_ppo, task, schedule, transitions, "separate", 8
        )
    found = {name: partial(learning, make, seconds) for name, make in makers.items()}
    model, watch = grpo(0), Stopwatch(0.0)
    model.learn(FOR_EVER, watch, log_interval=None)
    assert watch.rollout is not None
    for name, per_problem in (("per transition", False), ("per observation", True)):
        bare = passes(model.policy, watch.rollout, schedule, per_problem, seconds)
        found[f"bare passes, {name}"] = bare  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    command.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=[*SCHEDULES])
    command.add_argument("--transitions", type=int, default=2048, help="of an iteration")
    command.add_argument("--seconds", type=float, default=0.5, help="of each measurement, at least")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption=f"Speed of learning, {options.transitions:,} transitions an iteration",
        labels=("environment", "schedule", "algorithm"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            Column("rollout's share", "rollout", share),
            *ratio_columns("GRPO / this"),
        ],
        repeats=options.repeats,
    )
    for key in options.tasks:
        for schedule in (SCHEDULES[name] for name in options.schedules):
            task = TASKS[key]
            progress(f"{task.env_id}, {schedule.name}")
            found = subjects(task, schedule, options.transitions, options.seconds)
            speeds = in_turns(found, options.repeats)
            rates = {name: [speed.rate for speed in turns] for name, turns in speeds.items()}
            for name, turns in speeds.items():
                labels = dict(zip(table.labels, (task.env_id, schedule.name, name), strict=True))
                against = {} if name == GRPO_ROW else ratio(rates[GRPO_ROW], rates[name])
                rollout = {"rollout": float(np.median([speed.rollout for speed in turns]))}
                table.add(labels, spread("rate", rates[name]), rollout, against)
                if name == PPO_ROW:
                    what = f"{task.env_id}, {schedule.name}, GRPO / {name}"
                    table.footnotes.append(verdict(what, against, at_least=TARGET))
    table.write(options.out, "train_speed")


if __name__ == "__main__":
    main()
