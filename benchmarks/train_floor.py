"""What GRPO's time consists of above the bare passes through the network, part by part.

    python benchmarks/train_floor.py --repeats 5 --out results/benchmarks

From the whole iteration, one part after another is taken out of GRPO's own code, until the passes
that no training can do without are left. Read from the bottom up, each row has the parts of all
rows below it and one more; what it adds is the difference within a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from _compare import Table, in_turns, parser, progress, spread
from _training import (
    FOR_EVER,
    SCHEDULES,
    TASKS,
    Schedule,
    Stopwatch,
    Task,
    bare_pass,
    batches_of,
    make_grpo,
    no_collection,
    together_of,
)
from stable_baselines3.common.callbacks import BaseCallback

from grpo_bench import GRPO
from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.grpo import algorithm
from grpo_bench.grpo.loss import Loss
from grpo_bench.grpo.rollout import Rollout
from grpo_bench.report.text.numbers import in_units, share
from grpo_bench.report.text.writers import Column

Without = Callable[[], AbstractContextManager[Any]]
STANDSTILL = 1e-9  # learning rate: the kept rollout stays one of this policy
PLAYING = "playing: environment, sampling, rollout"
FLOOR = "bare passes, per observation"
PER_TRANSITION = "bare passes, per transition"
REST = "advantages, checks, log-probabilities"


# -- the parts that can be taken out of ``GRPO.train`` ---------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """In the place of what is taken out."""


@contextmanager
def no_cutting(model: GRPO) -> Iterator[None]:
    """The minibatches are those of the first pass, kept."""
    kept: list[Any] = []

    def first_pass(*arguments: Any) -> list[Any]:
        if not kept:
            kept.extend(cut(*arguments))
        return kept

    cut = algorithm.minibatches
    with mock.patch.object(algorithm, "minibatches", first_pass):
        yield


class SilentLog:
    """An ``UpdateLog`` that notes nothing."""

    def add(self, *_: Any) -> None:
        pass

    add_ratio = add

    def means(self) -> dict[str, float]:
        return {}


@contextmanager
def no_metrics(model: GRPO) -> Iterator[None]:
    """Neither the log's means nor what is worked out for them alone."""
    with (
        mock.patch.object(algorithm, "UpdateLog", SilentLog),
        mock.patch.object(model.doctor, "examine_update", nothing),
        mock.patch.object(LogSoftmaxDistribution, "entropy", nothing),
    ):
        yield


def no_step(model: GRPO) -> AbstractContextManager[Any]:
    """The optimiser stands still."""
    return mock.patch.object(model.policy.optimizer, "step", nothing)


def no_clipping(model: GRPO) -> AbstractContextManager[Any]:
    """The gradient's norm is neither measured nor bounded."""
    return mock.patch.object(algorithm, "clip_grad_norm", nothing)


def no_loss(model: GRPO) -> AbstractContextManager[Any]:
    """The loss is the mean log-probability: no ratio, no clip, no weights."""

    def mean(logp: torch.Tensor, *_: Any, **__: Any) -> Loss:
        return Loss(logp.mean(), logp, logp, logp)

    return mock.patch.object(algorithm, "step_loss", mean)


# In the order in which they are taken out.
PARTS: dict[str, Callable[[GRPO], AbstractContextManager[Any]]] = {
    "cutting into minibatches": no_cutting,
    "metrics": no_metrics,
    "optimiser step": no_step,
    "gradient clipping": no_clipping,
    "ratio, clipped loss": no_loss,
}


# -- measuring ------------------------------------------------------------------------------------


class Unheard(BaseCallback):
    """What ``collect_rollouts`` tells, it tells nobody."""

    def _on_step(self) -> bool:
        return True


def whole(model: GRPO) -> Callable[[], None]:
    """An iteration of ``learn``."""
    unheard = Unheard()
    unheard.init_callback(model)

    def iteration() -> None:
        model.collect_rollouts(unheard)
        model.train()

    return iteration


def update(model: GRPO, rollout: Rollout) -> Callable[[], None]:
    """An update on the kept rollout, and a bare pass forward of its observations in the place of
    playing it."""

    def iteration() -> None:
        with torch.no_grad():
            model.policy(rollout.observations)
        model._rollout = rollout
        model.train()

    return iteration


def passes(
    model: GRPO, rollout: Rollout, schedule: Schedule, per_problem: bool
) -> Callable[[], None]:
    """The bare passes of an iteration, as in ``train_speed.py``."""
    batches = batches_of(rollout, schedule, per_problem)
    together = together_of(rollout, per_problem)

    def iteration() -> None:
        with torch.no_grad():
            model.policy(together)
        for _ in range(schedule.n_epochs):
            for batch in batches:
                bare_pass(model.policy, batch)

    return iteration


def processor_seconds(
    iteration: Callable[[], None], without: list[Without], seconds: float, turn: int
) -> float:
    """Of one iteration with parts taken out: the mean over as many as fit; the first does not
    count. The processor's time of this process, since small differences are sought: a neighbour
    is no part of it."""
    with ExitStack() as taken_out:
        for part in without:
            taken_out.enter_context(part())
        iteration()
        taken_out.enter_context(no_collection())
        n, elapsed, start = 0, 0.0, time.process_time()
        while not n or elapsed < seconds:
            iteration()
            n += 1
            elapsed = time.process_time() - start
    return elapsed / n


def ladder(
    task: Task, schedule: Schedule, transitions: int, seconds: float
) -> dict[str, Callable[[int], float]]:
    """What is measured, from the whole to the floor: each the seconds of an iteration, named after
    the part that it has and the next one lacks."""
    model, watch = make_grpo(task, schedule, transitions, 0, STANDSTILL), Stopwatch(0.0)
    model.learn(FOR_EVER, watch, log_interval=None)
    assert watch.rollout is not None
    parts: dict[str, Without] = {name: partial(without, model) for name, without in PARTS.items()}
    rungs: dict[str, tuple[Callable[[], None], list[Without]]] = {PLAYING: (whole(model), [])}
    for taken_out, name in enumerate([*PARTS, REST]):
        rungs[name] = (update(model, watch.rollout), [*parts.values()][:taken_out])
    for name, per_problem in ((FLOOR, True), (PER_TRANSITION, False)):
        rungs[name] = (passes(model, watch.rollout, schedule, per_problem), [])
    return {name: partial(processor_seconds, *rung, seconds) for name, rung in rungs.items()}


def add_rows(table: Table, task: Task, schedule: Schedule, times: dict[str, list[float]]) -> None:
    """A row for each rung. Nothing is below the floor, and the passes per transition are beside
    the ladder: they have more work than the floor, and add nothing to it."""
    names = [name for name in times if name != PER_TRANSITION]
    below = dict(zip(names, [*(times[name] for name in names[1:]), None], strict=True))
    for name, seconds in times.items():
        labels = dict(zip(table.labels, (task.env_id, schedule.name, name), strict=True))
        numbers = [spread("seconds", seconds)]
        if name in below:
            less = below[name] or [0.0] * len(seconds)
            adds = [a - b for a, b in zip(seconds, less, strict=True)]
            parts = [a / b for a, b in zip(adds, times[PLAYING], strict=True)]
            numbers += [spread("adds", adds), spread("share", parts)]
        table.add(labels, *numbers)


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--tasks", nargs="+", choices=TASKS, default=["vlm"])
    command.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=[*SCHEDULES])
    command.add_argument("--transitions", type=int, default=2048, help="of an iteration")
    command.add_argument("--seconds", type=float, default=0.5, help="of each measurement, at least")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption=f"GRPO above the bare passes, {options.transitions:,} transitions an iteration",
        labels=("environment", "schedule", "part"),
        columns=[
            Column("processor ms, with all below", "seconds", in_units(1e-3), interval=True),
            Column("adds ms", "adds", in_units(1e-3), interval=True),
            Column("share of GRPO", "share", share, interval=True),
        ],
        repeats=options.repeats,
        footnotes=[
            f"{PLAYING}: the whole of GRPO, in which the floor's pass forward is a real one"
        ],
    )
    for key in options.tasks:
        for schedule in (SCHEDULES[name] for name in options.schedules):
            task = TASKS[key]
            progress(f"{task.env_id}, {schedule.name}")
            rungs = ladder(task, schedule, options.transitions, options.seconds)
            add_rows(table, task, schedule, in_turns(rungs, options.repeats))
    table.write(options.out, "train_floor")


if __name__ == "__main__":
    main()
