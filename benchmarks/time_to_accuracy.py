"""Seconds of training until a validation accuracy is reached, on GRPO-VLM-v0.

    python benchmarks/time_to_accuracy.py --repeats 5 --out results/benchmarks

GRPO and PPO with the settings of ``conf/`` on the native environment, and SB3's PPO as most people
run it: ``DummyVecEnv`` and default settings. Every turn is a seed. The clock starts with the first
rollout, so start-up does not count, and stops during evaluations.
"""

from __future__ import annotations

import math
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from _compare import (
    Table,
    Target,
    interleaved,
    parser,
    progress,
    ratio,
    ratio_columns,
    spread,
    verdict,
)
from _training import FOR_EVER, TASKS, ppo_as_it_comes
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from grpo_bench.config import composed
from grpo_bench.report.text.numbers import ABSENT, in_units, significant
from grpo_bench.report.text.writers import Column
from grpo_bench.runs.models import make_model
from grpo_bench.training.evaluation import evaluate

Run = tuple[BaseAlgorithm, int]  # a fresh model, and its number of transitions
ENV_ID = TASKS["vlm"].env_id
LEAST = 0.3  # lowest accuracy: an untrained policy has about 0.25
TARGET = 5.0  # times as fast as SB3's PPO with default settings
GRPO_ROW, PAIRS_ROW = "GRPO", "GRPO, pairs, baseline of the batch"
DUMMY_ROW = "PPO as it comes, DummyVecEnv of 8"


class Point(NamedTuple):
    """An evaluation of the policy on all problems of the validation split."""

    seconds: float  # of training before it
    transitions: float
    accuracy: float


class Curve(BaseCallback):
    """Evaluates before a rollout once ``every`` seconds of training have passed since the last
    evaluation. Ends the training when an evaluation reaches ``enough``, or after ``limit``
    seconds."""

    def __init__(self, enough: float, limit: float, every: float) -> None:
        super().__init__()
        self.enough, self.limit, self.every = enough, limit, every
        self.points: list[Point] = []
        self._began = 0.0  # perf_counter() when the clock last started
        self._trained = 0.0  # seconds until then

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_rollout_start(self) -> None:
        seconds = self._trained + time.perf_counter() - self._began
        due = self.points[-1].seconds + self.every if self.points else 0.0
        if seconds >= min(due, self.limit):
            columns = evaluate(self.model, ENV_ID, {}, "validation")
            accuracy = float(columns["success"].mean())
            self.points.append(Point(seconds, self.num_timesteps, accuracy))
        self._trained, self._began = seconds, time.perf_counter()

    def _on_step(self) -> bool:
        return self.points[-1].accuracy < self.enough and self._trained < self.limit


def reached(points: Sequence[Point], accuracy: float) -> Point:
    """Where the curve first reaches an accuracy, by linear interpolation between the two
    evaluations around it; infinity if it never does."""
    for before, after in pairwise(points):
        if before.accuracy < accuracy <= after.accuracy:
            part = (accuracy - before.accuracy) / (after.accuracy - before.accuracy)
            return Point(*(a + part * (b - a) for a, b in zip(before, after, strict=True)))
    return Point(math.inf, math.inf, accuracy)


def configured(overrides: Sequence[str], turn: int) -> Run:
    """A run with the settings of ``conf/``. Its learning rate falls to 0 over the full budget, so
    every algorithm has time to reach the highest accuracy."""
    config = composed("env=vlm", "tuned=none", "budget=full", f"seed={turn}", *overrides)
    return make_model(config, "cpu"), config.budget.transitions


def as_it_comes(n_envs: int, turn: int) -> Run:
    """SB3's PPO with default settings and a constant learning rate."""
    return ppo_as_it_comes(ENV_ID, TASKS["vlm"].policy, n_envs, turn), FOR_EVER


ALGORITHMS: dict[str, tuple[str, Callable[[int], Run]]] = {  # the row's name, and its model
    "grpo": (GRPO_ROW, partial(configured, ["algo=grpo"])),
    "pairs": (PAIRS_ROW, partial(configured, ["algo=options/baseline_batch", "algo.group_size=2"])),
    "ppo": ("PPO, tuned, native", partial(configured, ["algo=ppo"])),
    "dummy_8": (DUMMY_ROW, partial(as_it_comes, 8)),
    "dummy_1": ("PPO as it comes, DummyVecEnv of 1", partial(as_it_comes, 1)),
}


def learned(name: str, make: Callable[[int], Run], options: Namespace, turn: int) -> list[Point]:
    """The evaluations of a fresh model during its training."""
    model, transitions = make(turn)
    curve = Curve(max(options.accuracies), options.limit, options.every)
    model.learn(transitions, curve, log_interval=None)  # type: ignore[arg-type]
    last = curve.points[-1]
    progress(f"turn {turn + 1}, {name}: {last.accuracy:.3f} right after {last.seconds:.1f} s")
    return curve.points


def add_rows(
    table: Table, accuracy: float, curves: Mapping[str, Sequence[Sequence[Point]]]
) -> None:
    """Add a row for each algorithm, and verdicts for GRPO's. A run that misses the accuracy enters
    a ratio with all its seconds. The ratio is then a bound, useful only if GRPO itself reaches the
    accuracy."""
    found = {name: [reached(points, accuracy) for points in runs] for name, runs in curves.items()}
    there = {name: sum(math.isfinite(x.seconds) for x in runs) for name, runs in found.items()}
    bounds = {
        name: [
            min(x.seconds, points[-1].seconds) for x, points in zip(runs, curves[name], strict=True)
        ]
        for name, runs in found.items()
    }
    n = table.repeats
    for name, runs in found.items():
        labels = (f"{accuracy:g}", name, f"{there[name]}/{n}")
        compared = name != GRPO_ROW and there.get(GRPO_ROW) == n
        table.add(
            dict(zip(table.labels, labels, strict=True)),
            spread("seconds", [x.seconds for x in runs]),
            spread("transitions", [x.transitions for x in runs]),
            ratio(bounds[name], bounds[GRPO_ROW]) if compared else {},
        )
    for name in (GRPO_ROW, PAIRS_ROW):
        if name not in found or DUMMY_ROW not in found:
            continue
        what = f"accuracy {accuracy:g}, seconds of {DUMMY_ROW} / {name}"
        target = verdict(what, ratio(bounds[DUMMY_ROW], bounds[name]), at_least=TARGET)
        if there[name] < n:
            note = f"reached by {there[name]} of {n} runs of the latter"
            target = Target(what, target.wanted, "missed", note=note)
        elif there[DUMMY_ROW] < n:  # a lower bound can meet a target, but not miss it
            word = "met" if target.verdict == "met" else "open"
            note = "the ratio is a lower bound: not every run reached the accuracy"
            target = replace(target, verdict=word, note=note)
        table.targets.append(target)


def seconds_or_not(x: float) -> str:
    """Seconds, or "not reached"."""
    return "not reached" if math.isinf(x) else significant(x)


def thousands_or_not(x: float) -> str:
    """Thousands, or a dash if the accuracy was not reached."""
    return ABSENT if math.isinf(x) else in_units(1e3)(x)


def accuracy_of(text: str) -> float:
    """An accuracy. Raises ArgumentTypeError outside [0, 1], or if an untrained policy has it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST <= value <= 1:
        raise ArgumentTypeError(f"{text!r}: expected a share from {LEAST} to 1")
    return value


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=[*ALGORITHMS])
    command.add_argument("--accuracies", nargs="+", type=accuracy_of, default=[0.6, 0.7, 0.8])
    command.add_argument("--limit", type=float, default=50.0, help="seconds of training of a run")
    command.add_argument("--every", type=float, default=0.1, help="seconds between evaluations")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption=f"Seconds of training to a validation accuracy, {ENV_ID}",
        labels=("accuracy", "algorithm", "reached"),
        columns=[
            Column("seconds", "seconds", seconds_or_not, interval=True),
            Column("k transitions", "transitions", thousands_or_not, interval=True),
            *ratio_columns("this / GRPO"),
        ],
        repeats=options.repeats,
        footnotes=[
            f"A run ends at the highest accuracy or after {options.limit:g} s; if it did not reach "
            "an accuracy, its ratio is a lower bound",
        ],
    )
    chosen = (ALGORITHMS[key] for key in options.algorithms)
    subjects = {name: partial(learned, name, make, options) for name, make in chosen}
    curves = interleaved(subjects, options.repeats)
    for accuracy in sorted(options.accuracies):
        add_rows(table, accuracy, curves)
    table.write(options.out, "time_to_accuracy")


if __name__ == "__main__":
    main()
