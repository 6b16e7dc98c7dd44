"""Speed of learning: seeds that learn together beside the same seeds one after another.

    python benchmarks/batched_seeds.py --repeats 5 --out results/benchmarks

Every turn makes fresh models, lets each learn one iteration that does not count, and then times
whole iterations. A row of seeds takes the sum of what each of them takes. Start-up, evaluation and
the writing of records are no part of it.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from _compare import Table, in_turns, parser, progress, ratio, ratio_columns, spread, verdict
from _training import FOR_EVER, GROUP_SIZE, SCHEDULES, TASKS, Schedule, learning, make_grpo

from grpo_bench.batched.train import Company
from grpo_bench.report.numbers import significant
from grpo_bench.report.writers import Column

TASK = TASKS["vlm"]
TOGETHER, IN_A_ROW = "together", "one after another"
TARGET, TARGET_PROBLEMS, TARGET_SEEDS = 10.0, 32, 32


def in_a_row(
    n_seeds: int, schedule: Schedule, transitions: int, seconds: float, turn: int
) -> float:
    """Transitions per second of all seeds, each of which learns as many as the others."""
    make = partial(make_grpo, TASK, schedule, transitions)
    rates = [learning(make, seconds / n_seeds, turn * n_seeds + i).rate for i in range(n_seeds)]
    return n_seeds / sum(1 / rate for rate in rates)


def together(
    n_seeds: int, schedule: Schedule, transitions: int, seconds: float, turn: int
) -> float:
    """Transitions per second of all seeds."""
    first = turn * n_seeds
    makers = [partial(make_grpo, TASK, schedule, transitions, first + i) for i in range(n_seeds)]
    company = Company(makers, FOR_EVER)
    company.update(company.collect())
    start, n, elapsed = time.perf_counter(), 0, 0.0
    while not n or elapsed < seconds:
        company.update(company.collect())
        n += n_seeds * transitions
        elapsed = time.perf_counter() - start
    return n / elapsed


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--seeds", nargs="+", type=int, default=[8, 32])
    command.add_argument("--problems", nargs="+", type=int, default=[8, 32, 256])
    command.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=["full", "middle"])
    command.add_argument("--seconds", type=float, default=1.0, help="of each measurement, at least")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table(
        caption=f"Speed of many seeds, {TASK.env_id}, {GROUP_SIZE} rollouts a problem",
        labels=("seeds", "problems an iteration", "schedule", "how"),
        columns=[
            Column("transitions/s", "rate", significant, interval=True),
            *ratio_columns("together / this"),
        ],
        repeats=options.repeats,
    )
    for n_seeds in options.seeds:
        for problems in options.problems:
            for schedule in (SCHEDULES[name] for name in options.schedules):
                progress(f"{n_seeds} seeds, {problems} problems, {schedule.name}")
                size = (n_seeds, schedule, problems * GROUP_SIZE, options.seconds)
                subjects = {TOGETHER: partial(together, *size), IN_A_ROW: partial(in_a_row, *size)}
                rates = in_turns(subjects, options.repeats)
                against = ratio(rates[TOGETHER], rates[IN_A_ROW])
                for how, turns in rates.items():
                    values = (n_seeds, problems, schedule.name, how)
                    labels = dict(zip(table.labels, values, strict=True))
                    found = against if how == IN_A_ROW else {}
                    table.add(labels, spread("rate", turns), found)
                if (n_seeds, problems) == (TARGET_SEEDS, TARGET_PROBLEMS):
                    what = f"{n_seeds} seeds, {problems} problems, {schedule.name}, {TOGETHER}"
                    table.targets.append(verdict(what, against, at_least=TARGET))
    table.write(options.out, "batched_seeds")


if __name__ == "__main__":
    main()
