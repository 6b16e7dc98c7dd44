"""Speed of training: GRPO against SB3's PPO on the same native environment and on ``DummyVecEnv``,
with the same actor, transitions, minibatches and epochs; PPO with its defaults ("as it comes"); and
the bare passes through the network.

    python benchmarks/train_speed.py --repeats 5 --out results/benchmarks

Every turn makes a fresh model with its own seed, runs one warm-up iteration, and then times whole
iterations. Start-up and logging do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from _compare import Table, interleaved, parser, progress, ratio, ratio_columns, spread, verdict
from _training import (
    FOR_EVER,
    SCHEDULES,
    TASKS,
    Schedule,
    Speed,
    Stopwatch,
    Task,
    bare_pass,
    batches_of,
    learning,
    make_grpo,
    make_ppo,
    ppo_as_it_comes,
    together_of,
)
from stable_baselines3.common.base_class import BaseAlgorithm

from grpo_bench.grpo.policies import ActorPolicy
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.report.text.numbers import share, significant
from grpo_bench.report.text.writers import Column

DUMMIES = 8  # sub-environments of a DummyVecEnv
GRPO_ROW, PPO_ROW = "GRPO", "PPO, separate critic"
FLOOR_ROW = "bare passes, per transition"
# Of GRPO's speed over the row's, by schedule.
TARGETS = {PPO_ROW: {"full": 4.0, "default": 2.0}, FLOOR_ROW: {"full": 0.7}}


def passes(
    policy: ActorPolicy, rollout: Rollout, schedule: Schedule, per_problem: bool, seconds: float
) -> Callable[[int], Speed]:
    """The floor of an iteration: one pass forward of its observations, and one forward and backward
    for each minibatch and epoch."""
    batches = batches_of(rollout, schedule, per_problem)
    together = together_of(rollout, per_problem)

    def iteration() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            policy(together)
        ended = time.perf_counter()
        for _ in range(schedule.n_epochs):
            for batch in batches:
                bare_pass(policy, batch)
        return ended - start

    def measure(turn: int) -> Speed:
        iteration()
        forward, n, elapsed, start = 0.0, 0, 0.0, time.perf_counter()
        while not n or elapsed < seconds:
            forward += iteration()
            n += int(rollout.mask.sum())
            elapsed = time.perf_counter() - start
        return Speed(n / elapsed, forward / elapsed, 0.0, 1 - forward / elapsed)

    return measure


def subjects(
    task: Task, schedule: Schedule, transitions: int, seconds: float
) -> dict[str, Callable[[int], Speed]]:
    """The algorithms to measure on a task under a schedule, each a function of the turn."""
    grpo = partial(make_grpo, task, schedule, transitions)
    ppo = partial(make_ppo, task, schedule, transitions)
    makers: dict[str, Callable[[int], BaseAlgorithm]] = {
        GRPO_ROW: grpo,
        PPO_ROW: partial(ppo, "separate", None),
        "PPO, shared critic": partial(ppo, "shared", None),
        f"PPO, separate critic, DummyVecEnv of {DUMMIES}": partial(ppo, "separate", DUMMIES),
        f"PPO, shared critic, DummyVecEnv of {DUMMIES}": partial(ppo, "shared", DUMMIES),
    }
    if schedule is SCHEDULES["default"]:  # its own
        makers[f"PPO as it comes, DummyVecEnv of {DUMMIES}"] = partial(
            ppo_as_it_comes, task.env_id, task.policy, DUMMIES
        )
    found = {name: partial(learning, make, seconds) for name, make in makers.items()}
    model, watch = grpo(0), Stopwatch(0.0)
    model.learn(FOR_EVER, watch, log_interval=None)
    assert watch.rollout is not None
    for name, per_problem in ((FLOOR_ROW, False), ("bare passes, per observation", True)):
        bare = passes(model.policy, watch.rollout, schedule, per_problem, seconds)
        found[name] = bare  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def compare(table: Table, key: str, name: str, speeds: dict[str, list[Speed]]) -> None:
    """Add the rows of a task under a schedule, and GRPO's verdicts."""
    env_id, schedule = TASKS[key].env_id, SCHEDULES[name].name
    rates = {row: [speed.rate for speed in turns] for row, turns in speeds.items()}
    for row, turns in speeds.items():
        labels = dict(zip(table.labels, (env_id, schedule, row), strict=True))
        against = {} if row == GRPO_ROW else ratio(rates[GRPO_ROW], rates[row])
        split = np.median(np.array(turns)[:, 1:], axis=0)
        shares = dict(zip(Speed._fields[1:], split.tolist(), strict=True))
        table.add(labels, spread("rate", rates[row]), shares, against)
        target = TARGETS.get(row, {}).get(name)
        if target:
            what = f"{env_id}, {schedule}, GRPO / {row}"
            table.targets.append(verdict(what, against, at_least=target))


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    command.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=[*SCHEDULES])
    command.add_argument("--transitions", type=int, default=2048, help="of an iteration")
    command.add_argument("--seconds", type=float, default=0.5, help="minimum of a measurement")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption=f"Speed of training, {options.transitions:,} transitions per iteration",
        labels=("environment", "schedule", "algorithm"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            *(Column(name, name, share) for name in Speed._fields[1:]),
            *ratio_columns("GRPO / this"),
        ],
        repeats=options.repeats,
    )
    for key in options.tasks:
        for name in options.schedules:
            task, schedule = TASKS[key], SCHEDULES[name]
            progress(f"{task.env_id}, {schedule.name}")
            found = subjects(task, schedule, options.transitions, options.seconds)
            compare(table, key, name, interleaved(found, options.repeats))
    table.write(options.out, "train_speed")


if __name__ == "__main__":
    main()
