"""How cost grows with sub-environments, group size, network width, runs and records.

    python benchmarks/scaling.py --repeats 5 --out results/benchmarks

The exponent is the slope of log cost on log size: 1 if twice the size costs twice as much. Fixed
costs flatten the curve at small sizes, so the slope is fitted to the upper half of the sizes; the
table also has the slope between the two largest. Every turn measures all sizes and gives both.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from _compare import Table, Target, interleaved, parser, progress, ratio, spread, verdict
from _growth import COLUMNS, LABELS, LINEAR, Growth, add_rows
from _records import copy, make_records
from _training import SCHEDULES, TASKS, Task, learning, make_grpo, make_ppo
from env_speed import IDS, stepping_vector
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from start_up import Process, fresh

from grpo_bench.config import RunConfig, composed
from grpo_bench.config.schema import NetworkConfig
from grpo_bench.records import run_folder
from grpo_bench.report.folder import make_tables, write_tables
from grpo_bench.report.text.numbers import significant
from grpo_bench.runs.sweep import run_all

SCHEDULE = SCHEDULES["middle"]
GROUP_SIZE = 8  # unless it grows
PROBLEMS, TRANSITIONS = 64, 2048  # of an iteration when the group grows
WIDTH_TRANSITIONS = 256  # of an iteration when the network grows
WIDTHS = {"vlm": (32, 64, 128, 256, 512, 1024), "arithmetic": (32, 64, 128, 256)}
# One iteration and its evaluations: the fixed cost of a run.
SMALLEST = [
    *("env=vlm", "tuned=none", "budget=smoke"),
    *(f"budget.transitions={TRANSITIONS}", "budget.evaluations=1"),
]
SEEDS = 100  # of a setting, among the records of more seeds
PARTS = ("environments", "iterations", "widths", "runs", "records")
SECONDS_LIMIT, MEMORY_LIMIT = 10.0, 1000.0  # s and MB, of the tables of 10,000 records


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call; its output is discarded."""
    start = time.perf_counter()
    with redirect_stdout(io.StringIO()):
        call()
    return time.perf_counter() - start


# -- environments and learning --------------------------------------------------------------------


@cache
def native(env_id: str, n: int) -> VectorEnv[Any, Any, Any]:
    """n sub-environments, made once."""
    return gym.make_vec(env_id, num_envs=n)


def environments(seconds: float) -> Iterator[Growth]:
    """A step of all native sub-environments."""
    for env_id in IDS:

        def step(n: int, turn: int, env_id: str = env_id) -> float:
            return n / stepping_vector(native(env_id, n), seconds, turn)

        sizes = (64, 256, 1024, 4096, 16384, 65536)
        yield Growth(f"step, {env_id}", "sub-environments", sizes, step)


class Iteration(NamedTuple):
    """One iteration of a fresh model, to be timed; ``make`` takes the turn."""

    transitions: int
    make: Callable[[int], BaseAlgorithm]


def grpo(task: Task, transitions: int, group_size: int = GROUP_SIZE) -> Iteration:
    """GRPO with all episodes of an iteration in parallel."""
    make = partial(make_grpo, task, SCHEDULE, transitions, group_size=group_size)
    return Iteration(transitions, make)


def ppo(task: Task, transitions: int) -> Iteration:
    """PPO with a separate critic as large as the actor."""
    return Iteration(transitions, partial(make_ppo, task, SCHEDULE, transitions, "separate", None))


def learned(
    what: str, size: str, sizes: Sequence[int], at: Callable[[int], Iteration], seconds: float
) -> Growth:
    """The growth of the iterations ``at(size)``."""

    def cost(n: int, turn: int) -> float:
        transitions, make = at(n)
        return transitions / learning(make, seconds, turn).rate

    return Growth(what, size, sizes, cost)


def iterations(seconds: float) -> Iterator[Growth]:
    """GRPO with growing numbers of episodes, and with growing groups."""
    vlm, arithmetic = TASKS["vlm"], TASKS["arithmetic"]
    what, size = "iteration of GRPO, vlm", "sub-environments"
    yield learned(what, size, (256, 1024, 4096, 16384), lambda n: grpo(vlm, n), seconds)
    yield learned(
        "iteration of GRPO, arithmetic",
        size,
        (64, 256, 1024),
        lambda n: grpo(arithmetic, n * arithmetic.steps),
        seconds,
    )
    size, sizes = "group size", (2, 4, 8, 16, 32, 64, 128)
    more, fewer = f"{what}, {PROBLEMS} problems", f"{what}, {TRANSITIONS:,} transitions"
    yield learned(more, size, sizes, lambda g: grpo(vlm, PROBLEMS * g, g), seconds)
    yield learned(fewer, size, sizes, lambda g: grpo(vlm, TRANSITIONS, g), seconds)


def wider(task: Task, width: int) -> Task:
    """The task with a network of another width."""
    body, arguments = task.network.body, task.network.arguments
    sizes = {"widths": (width, width)} if body == "mlp" else {"width": width}
    return replace(task, network=NetworkConfig(body, {**arguments, **sizes}))


def widths(seconds: float) -> Iterator[Growth]:
    """GRPO and PPO with growing networks."""
    for name, sizes in WIDTHS.items():
        for algo, make in {"GRPO": grpo, "PPO": ppo}.items():

            def at(
                width: int,
                task: Task = TASKS[name],
                make: Callable[[Task, int], Iteration] = make,
            ) -> Iteration:
                return make(wider(task, width), WIDTH_TRANSITIONS)

            what = f"iteration of {algo}, {TASKS[name].network.body}"
            policies = [at(width).make(0).policy for width in sizes]
            parameters = [sum(p.numel() for p in policy.parameters()) for policy in policies]
            growth = learned(what, "width", sizes, at, seconds)
            yield replace(growth, judged_by={"parameters": parameters})


# -- runs and records -----------------------------------------------------------------------------


def configs(n: int, results: Path) -> list[RunConfig]:
    """The runs of a sweep over n seeds."""
    base = composed(*SMALLEST, f"results='{results}'", "device=cpu")
    return [base.changed({"seed": seed}) for seed in range(n)]


def sweeps(scratch: Path) -> Iterator[Growth]:
    """Sweeps of growing numbers of runs, one at a time: small runs, and finished runs."""
    first = scratch / "first"
    (config,) = configs(1, first)
    timed(partial(run_all, [config], n_jobs=1))  # also starts the fork server

    def fresh_runs(n: int, turn: int) -> float:
        runs = configs(n, scratch / f"turn-{turn}" / f"{n}")
        return timed(partial(run_all, runs, n_jobs=1))

    @cache
    def done(n: int) -> list[RunConfig]:
        runs = configs(n, scratch / f"done-{n}")
        plain = [run.plain for run in runs]
        copy(run_folder(first, config.plain), scratch / f"done-{n}", plain)
        return runs

    def done_runs(n: int, turn: int) -> float:
        runs = done(n)
        return timed(partial(run_all, runs, n_jobs=1))

    yield Growth("sweep, one iteration a run", "runs", (1, 2, 4, 8), fresh_runs)
    yield Growth("sweep, all runs done", "runs", (16, 64, 256, 1024), done_runs)


class TablesOfRecords:
    """Times of ``python -m grpo_bench.tables`` in fresh processes, and of reading its input."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.processes: dict[int, list[Process]] = defaultdict(list)
        self.readings: dict[int, list[float]] = defaultdict(list)

    def records(self, n: int, seeds: int) -> Path:
        """The folder of n records, made once."""
        folder = self.scratch / f"records-{n}-{seeds}"
        if not folder.exists():
            make_records(folder, n, seeds)
        return folder

    def more_seeds(self, n: int, turn: int) -> float:
        """Seconds of the whole command; also times reading its input."""
        folder = self.records(n, SEEDS)
        process = fresh(
            f"sys.argv[1:] = ['results={folder}']\n"
            "runpy.run_module('grpo_bench.tables', run_name='__main__', alter_sys=True)",
            turn,
        )
        files = [*folder.glob("*/*/*/manifest.json"), *folder.glob("*/*/*/metrics.parquet")]
        self.readings[n].append(timed(lambda: [path.read_bytes() for path in files]))
        self.processes[n].append(process)
        return process.seconds

    def more_settings(self, n: int, turn: int) -> float:
        """Seconds of making tables that have a row for each record."""
        folder = self.records(n, 1)
        return timed(lambda: write_tables(make_tables(folder), folder / "tables"))

    def growths(self) -> Iterator[Growth]:
        sizes = (100, 300, 1000, 3000, 10000)
        yield Growth("python -m grpo_bench.tables", "records", sizes, self.more_seeds)
        what = "tables, a row for each record"
        yield Growth(what, "records", (36, 108, 324, 972), self.more_settings)

    def targets(self) -> list[Target]:
        """Verdicts for the largest number of records."""
        n, processes = max(self.processes.items())
        seconds = spread("seconds", [process.seconds for process in processes])
        peak = spread("peak", [process.peak / 1e6 for process in processes])
        what = f"python -m grpo_bench.tables, {n:,} records"
        return [
            verdict(f"{what}, seconds", seconds, at_most=SECONDS_LIMIT, name="seconds"),
            verdict(f"{what}, peak MB", peak, at_most=MEMORY_LIMIT, name="peak"),
        ]

    def footnote(self) -> str:
        """The time for the largest number of records over the time to read their bytes."""
        n, processes = max(self.processes.items())
        against = ratio([process.seconds for process in processes], self.readings[n])
        low, high = significant(against["ratio_low"]), significant(against["ratio_high"])
        return (
            f"The command takes {significant(against['ratio'])} [{low}, {high}] times as long as "
            f"reading the bytes of the manifests and metrics of {n:,} records"
        )


# -- the table ------------------------------------------------------------------------------------

READING = (
    "ms at the largest: median and [smallest, largest] of {repeats} turns. Exponents, one per "
    "turn: mean and 95 % interval (Student's t), over the upper half of the sizes, and between the "
    f"two largest. No worse than linear: yes if the whole interval is at most {LINEAR}, no if no "
    "part of it is; data that outgrow a cache have an exponent above 1. The operations of a "
    "network grow with its parameters, that is, with the square of its width."
)


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    command.add_argument("--smallest", type=int, help="only this many sizes of each; at least 3")
    command.add_argument("--seconds", type=float, default=0.1, help="minimum of a measurement")
    options = command.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table("How cost grows", LABELS, COLUMNS, options.repeats, reading=READING)
    with tempfile.TemporaryDirectory() as scratch:
        tables = TablesOfRecords(Path(scratch))
        parts = {
            "environments": environments(options.seconds),
            "iterations": iterations(options.seconds),
            "widths": widths(options.seconds),
            "runs": sweeps(Path(scratch)),
            "records": tables.growths(),
        }
        for growth in (growth for name in options.parts for growth in parts[name]):
            growth = growth.smallest(options.smallest)
            progress(f"{growth.what}, {growth.size}")
            costs = interleaved(
                {f"{n}": partial(growth.cost, n) for n in growth.sizes}, options.repeats
            )
            add_rows(table, growth, np.array([*costs.values()]).T)
        if tables.processes:
            table.targets += tables.targets()
            table.footnotes.append(tables.footnote())
    whole = set(options.parts) == set(PARTS)
    table.write(options.out, "scaling" if whole else f"scaling_{'_'.join(options.parts)}")


if __name__ == "__main__":
    main()
