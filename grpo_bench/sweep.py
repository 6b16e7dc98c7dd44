"""Many runs: each in a process of its own, a line for each that ends, the tables at the end."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from grpo_bench.records import plan, read_manifest, settle
from grpo_bench.tables import make_tables, print_tables, write_tables

Config = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, in short."""

    folder: Path
    config: Config
    status: str
    score: float  # success on the validation split at the end; NaN if there is none
    seconds: float  # of training
    speed: float  # transitions per second of training

    def line(self) -> str:
        """One line about it."""
        who = " ".join(
            [
                *(self.config[group]["name"] for group in ("env", "algo")),
            ]
        )
        name = f"{who} seed={self.config['seed']}"
        if self.status != "ok":
            return f"{name}: {self.status}, see {self.folder / 'error.txt'}"
        return (
            f"{name}: {self.score:.3f} right on validation, {self.seconds:.1f} s of training, "
            f"{self.speed / 1e3:,.1f} thousand transitions/s"
        )


def run_all(configs: list[Config], n_jobs: int | None = None) -> list[Outcome]:
    """Check all configurations, carry out those that are not ok yet, print the tables.

    Args:
        configs: resolved configurations of one sweep, with one folder of results.
        n_jobs: runs side by side; None: one for each core.

    Returns:
        An outcome for each configuration, in the same order.

    Raises:
        ValueError: a configuration that could not run; before anything is started.
    """
    n_jobs = n_jobs or os.cpu_count() or 1
    server = start_server(max(config["threads"] for config in configs))
    check_all(configs)
    folders = [plan(Path(config["results"]), config) for config in configs]
    console = Console(highlight=False)
    with Sweep(console, server, n_jobs, len(configs)) as sweep:
        for i in in_turns(configs):
            sweep.start(folders[i], configs[i])
        sweep.drain()
    results = Path(configs[0]["results"])
    tables = make_tables(results)
    write_tables(tables, results / "tables")
    print_tables(tables)
    return [outcome(folder, config) for folder, config in zip(folders, configs, strict=True)]


def check_all(configs: Iterable[Config]) -> None:
    """Make each different model once, untrained: what is wrong shows before anything starts."""
    from grpo_bench.job import check

    seen = set()
    for config in configs:
        key = json.dumps({**config, "seed": None}, sort_keys=True)
        if key not in seen:
            seen.add(key)
            check(config)


def in_turns(configs: list[Config]) -> list[int]:
    """The order of the runs: those that differ in their algorithm only stand side by side, so that
    a machine that gets slower or faster does it to both."""
    apart = [json.dumps({**config, "algo": None}, sort_keys=True) for config in configs]
    first = {key: apart.index(key) for key in apart}
    return sorted(range(len(configs)), key=lambda i: (first[apart[i]], i))


def outcome(folder: Path, config: Config) -> Outcome:
    """What the record of a run says of its end."""
    status = read_manifest(folder).status
    last: dict[str, float] = {}
    if (folder / "metrics.parquet").exists():
        metrics = pd.read_parquet(folder / "metrics.parquet", columns=["metric", "value"])
        last = metrics.groupby("metric")["value"].last().to_dict()
    seconds = [last.get(f"time/{phase}_seconds", math.nan) for phase in ("rollout", "update")]
    score = last.get("eval/validation/success", math.nan)
    speed = last.get("time/transitions_per_second", math.nan)
    return Outcome(folder, config, status, score, sum(seconds), speed)


def start_server(threads: int) -> Any:
    """A multiprocessing context whose processes start with torch and SB3 imported already.

    The fork server has done nothing but these imports; each run is forked from it, so no run sees
    another, and the peak of its memory is reset before it begins.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # the first optimiser of a process imports torch._dynamo, which takes as long as torch itself
    context.set_forkserver_preload(["grpo_bench.job", "torch._dynamo"])
    return context


def child(config: Config, pipe: Connection, concurrency: int) -> None:
    """The life of a run's process. How it went, a traceback included, is in the record."""
    from grpo_bench.job import execute

    try:
        execute(config, lambda *news: pipe.send(news), concurrency)
    except (Exception, KeyboardInterrupt):
        raise SystemExit(1) from None


@dataclass
class Running:
    """One run in its process, and what the sweep knows of it."""

    folder: Path
    config: Config
    process: Any
    pipe: Connection
    bar: TaskID
    began: float = field(default_factory=time.monotonic)
    late: bool = False

    @property
    def overdue(self) -> bool:
        """It has run for longer than ``timeout_s``."""
        limit = self.config["timeout_s"]
        return limit is not None and time.monotonic() - self.began > limit


class Sweep:
    """At most ``n_jobs`` processes at a time, watched; leaving it ends those that still run."""

    def __init__(self, console: Console, context: Any, n_jobs: int, n_runs: int) -> None:
        self.console, self.context, self.n_jobs, self.n_runs = console, context, n_jobs, n_runs
        self.running: list[Running] = []
        self.ended = 0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[news]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.total = self.bars.add_task(f"{n_runs} runs", total=n_runs, news="")

    def __enter__(self) -> Sweep:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for run in self.running:
            run.process.terminate()
            run.process.join()
            settle(run.folder, "killed", "the sweep was stopped")
        self.bars.stop()

    def start(self, folder: Path, config: Config) -> None:
        """Start a run as soon as there is room; one that is ok already is only told of."""
        if read_manifest(folder).status == "ok":
            self._tell(folder, config, "already done: ")
            return
        while len(self.running) >= self.n_jobs:
            self._watch()
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=child, args=(config, sender, self.n_jobs))
        name = f"{config['env']['name']} {config['algo']['name']} seed={config['seed']}"
        process.start()
        sender.close()
        bar = self.bars.add_task(f"  {name}", total=1.0, news="")
        self.running.append(Running(folder, config, process, receiver, bar))

    def drain(self) -> None:
        """Wait for all of them."""
        while self.running:
            self._watch()

    def _watch(self) -> None:
        wait([run.process.sentinel for run in self.running], timeout=0.2)
        for run in list(self.running):
            try:
                while run.pipe.poll():
                    stage, share, success = run.pipe.recv()
                    news = stage if math.isnan(success) else f"{stage}, {success:.3f} right"
                    self.bars.update(run.bar, completed=share, news=news)
            except EOFError:
                pass
            if run.overdue and not run.late:
                run.late = True
                run.process.kill()
            if not run.process.is_alive():
                self._end(run)

    def _end(self, run: Running) -> None:
        run.process.join()
        code = run.process.exitcode
        if run.late:
            settle(run.folder, "timeout", f"longer than timeout_s={run.config['timeout_s']}")
        else:
            settle(run.folder, "killed", f"the process ended with exit code {code}")
        self.running.remove(run)
        self.bars.remove_task(run.bar)
        self._tell(run.folder, run.config, "")

    def _tell(self, folder: Path, config: Config, note: str) -> None:
        self.ended += 1
        self.bars.update(self.total, completed=self.ended)
        line = outcome(folder, config).line()
        self.console.print(f"[{self.ended}/{self.n_runs}] {note}{line}", markup=False, soft_wrap=True)
