"""The default comparison and its tables with this checkout and with another commit: how long each
takes, and whether the results agree.

    python benchmarks/comparison.py --before REV --repeats 5 --out results/benchmarks

Each turn runs ``python -m grpo_bench.run -m seed=1,2,3`` with both, from start to end. The other
commit is checked out into a temporary worktree.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from _compare import (
    Table,
    bounds,
    interleaved,
    parser,
    progress,
    ratio,
    ratio_columns,
    spread,
    verdict,
)

from grpo_bench.records.load import Results, load_results
from grpo_bench.report.rows.cells import share_columns
from grpo_bench.report.text.numbers import difference, share, significant
from grpo_bench.report.text.writers import Column
from grpo_bench.stats import paired_difference_interval

ROOT = Path(__file__).resolve().parents[1]
THIS = "this tree"
TARGET = 0.5  # times the seconds before
CELL = ["env", "algo"]
READING = (
    "Success on the test split at the end: mean over seeds with its 95 % interval (Student's t). "
    "The difference is taken seed by seed. The records are those of the last of {repeats} turns."
)


class Sweep(NamedTuple):
    """Times and results of a sweep."""

    seconds: float  # of the whole command
    training: float  # share of the cores' time spent in rollouts and updates
    success: pd.Series  # on the test split, by env, algo and seed


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with that commit, compiled like an installation.

    Raises:
        SystemExit: the commit does not exist; with git's message.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--detach", str(tree), revision], capture_output=True, text=True
        )
        if added.returncode:
            raise SystemExit(f"--before {revision}: expected a commit; {added.stderr.strip()}")
        try:
            compileall.compile_dir(tree, quiet=1)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run_sweep(tree: Path, sweep: Sequence[str], turn: int) -> Sweep:
    """Run the command with the code of a tree, in an empty folder.

    Raises:
        RuntimeError: a run failed, or its record cannot be read.
    """
    progress(f"turn {turn + 1}, {'this tree' if tree == ROOT else 'before'}")
    if (tree / "conf" / "tuned").exists():  # older commits have no tuned settings
        sweep = [*sweep, "tuned=none"]
    path = os.pathsep.join(map(str, (tree, tree / "envs")))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "grpo_bench.run", "-m", *sweep, "results=runs"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"the sweep of {tree} failed:\n{done.stdout}{done.stderr}")
        return Sweep(seconds, *found(load_results(Path(folder) / "runs"), seconds))


def found(results: Results, seconds: float) -> tuple[float, pd.Series]:
    """``Sweep.training`` and ``Sweep.success`` of a sweep that took ``seconds``."""
    keys = [*CELL, "seed"]
    last = results.metrics.groupby([*keys, "metric"])["value"].last().unstack()
    training = last[["time/rollout_seconds", "time/update_seconds"]].sum(axis=None)
    cores = results.runs["concurrency"].max() * results.runs["threads"].max()
    return float(training / (seconds * cores)), last["eval/test/success"]


def seconds_table(before: str, sweeps: dict[str, list[Sweep]], repeats: int) -> Table:
    """Seconds of both, and their share of training."""
    table = Table(
        caption="The default comparison and its tables",
        labels=("code",),
        columns=[
            Column("seconds", "seconds", significant, interval=True),
            Column("share of training", "training", share, interval=True),
            *ratio_columns(f"this tree / {before}"),
        ],
        repeats=repeats,
    )
    seconds = {name: [sweep.seconds for sweep in turns] for name, turns in sweeps.items()}
    against = ratio(seconds[THIS], seconds[before])
    for name, turns in sweeps.items():
        table.add(
            {"code": name},
            spread("seconds", seconds[name]),
            spread("training", [sweep.training for sweep in turns]),
            against if name == THIS else {},
        )
    table.targets.append(verdict(f"{THIS} / {before}", against, at_most=TARGET))
    return table


def results_table(before: str, sweeps: dict[str, list[Sweep]], repeats: int) -> Table:
    """Success of both, and the difference."""
    table = Table(
        caption="Results of the default comparison",
        labels=CELL,
        columns=[
            Column(before, "before", share, interval=True),
            Column(THIS, "after", share, interval=True),
            Column("difference", "difference", difference, interval=True),
        ],
        repeats=repeats,
        reading=READING,
    )
    both = pd.DataFrame({"after": sweeps[THIS][-1].success, "before": sweeps[before][-1].success})
    apart = 0
    for cell, rows in both.groupby(CELL):
        change = paired_difference_interval(rows["after"], rows["before"])
        apart += change.low > 0 or change.high < 0
        table.add(
            dict(zip(CELL, cell, strict=True)),
            share_columns("before", rows["before"].to_numpy()),
            share_columns("after", rows["after"].to_numpy()),
            bounds("difference", change),
        )
    table.footnotes.append(f"Intervals of the difference without 0: {apart} of {len(table.rows)}")
    return table


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__)
    command.add_argument("--before", required=True, help="the other commit")
    command.add_argument("--sweep", nargs="+", default=["seed=1,2,3"], help="its arguments")
    options = command.parse_args(arguments)
    with checked_out(options.before) as tree:
        trees = {options.before: tree, THIS: ROOT}
        sweeps = interleaved(
            {name: partial(run_sweep, tree, options.sweep) for name, tree in trees.items()},
            options.repeats,
        )
    seconds_table(options.before, sweeps, options.repeats).write(options.out, "comparison")
    results_table(options.before, sweeps, options.repeats).write(options.out, "comparison_results")


if __name__ == "__main__":
    main()
