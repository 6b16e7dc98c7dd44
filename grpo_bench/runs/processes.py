"""The processes of a sweep: one for each run, or for a warm-up that several runs need; all forked
from a server that has the imports done."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from grpo_bench.config import Config
from grpo_bench.meter.memory import map_pages_of
from grpo_bench.records import Holder, holder, plan, read_manifest, settle
from grpo_bench.runs.console import SIGN_OF_LIFE, as_news, make_bars
from grpo_bench.runs.outcome import Outcome, outcome, run_name

GLANCE = 0.2  # seconds between two looks at the runs
PRELOAD = [
    *("grpo_bench.runs.job", "grpo_bench.runs.processes", "grpo_bench.runs.sweep"),
    "grpo_bench.runs.launcher",  # of the main module, which each process runs again
    "pandas",  # pyarrow imports it when it makes the first table of a record
]


def start_server(threads: int) -> Any:
    """A multiprocessing context whose processes start with torch and SB3 imported already.

    The fork server does nothing but these imports, from the first call on, beside whatever this
    process does next; each run is forked from it, so no run sees another, and its peak of memory
    is that of a process that did the imports itself.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class Job:
    """What one process does: a run, or, without a folder, the warm-up of a configuration."""

    config: Config
    folder: Path | None = None  # of the run's record

    def name(self) -> str:
        """Its name for people."""
        return str(self.config["env"]["name"]) if self.folder is None else run_name(self.config)


def child(job: Job, pipe: Connection, concurrency: int) -> None:
    """The life of a process. How a run went, a traceback included, is in its record; the error
    alone goes to the sweep too, for a record that could not be written."""
    from grpo_bench.runs.job import execute, make_warmup

    gc.freeze()  # what the server has imported is no garbage: not looked through, 0.1 s each time
    map_pages_of(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the sweep, which ends its runs

    def tell(stage: str, share: float, success: float) -> None:
        try:
            pipe.send((stage, share, success))
        except BrokenPipeError:
            raise KeyboardInterrupt("the sweep that this run belongs to is gone") from None

    try:
        if job.folder is None:
            make_warmup(job.config, tell)
        else:
            execute(job.config, tell, concurrency)
    except (Exception, KeyboardInterrupt) as error:
        with suppress(BrokenPipeError):
            pipe.send(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


@dataclass
class Running:
    """One process with its job, and what the sweep knows of it."""

    job: Job
    process: Any
    pipe: Connection
    bar: TaskID
    began: float = field(default_factory=time.monotonic)
    late: bool = False
    error: str = ""

    @property
    def overdue(self) -> bool:
        """It has run for longer than ``timeout_s``."""
        limit = self.job.config["timeout_s"]
        return limit is not None and time.monotonic() - self.began > limit

    def why(self) -> str:
        """Why the process ended, if its record does not say."""
        if self.late:
            return f"longer than timeout_s={self.job.config['timeout_s']}"
        code = self.process.exitcode
        if code >= 0:
            return self.error or f"the process ended with exit code {code}"
        known = {number.value: number.name for number in signal.Signals}
        return f"the process was ended by signal {-code} ({known.get(-code, 'unknown')})"


class Sweep:
    """At most ``n_jobs`` processes at a time, watched; leaving it ends those that still run."""

    def __init__(self, console: Console, context: Any, n_jobs: int) -> None:
        self.console, self.context, self.n_jobs = console, context, n_jobs
        self.queue: deque[Job] = deque()
        self.running: list[Running] = []
        self.elsewhere: dict[Path, tuple[Config, TaskID]] = {}  # another process is at work on it
        self.ended: dict[Path, Outcome] = {}
        self.n_runs = 0
        self.last_line = time.monotonic()
        self.bars = make_bars(console)

    def __enter__(self) -> Sweep:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for run in self.running:
                run.process.terminate()
            for run in self.running:
                run.process.join()
                if run.job.folder is not None:
                    with suppress(OSError):  # a full disk: the next sweep finds the process gone
                        settle(run.job.folder, "killed", "the sweep was stopped")
        finally:
            self.bars.stop()

    def carry_out(
        self,
        runs: dict[Path, Config],
        warmups: Sequence[Config] = (),
    ) -> dict[Path, Outcome]:
        """Bring all of them to their end, in this order, and tell of each.

        ``warmups`` are configurations whose warm-up is made before; one
        that cannot be made fails in the run that needs it. A run that another sweep is at work on
        is waited for; one that is cut off there is done here. A run that failed there has had its
        try.
        """
        self.n_runs = len(runs)
        total = self.bars.add_task(f"{self.n_runs} runs", total=self.n_runs, news="")
        self.queue.extend(Job(config) for config in warmups)
        self.queue.extend(Job(config, folder) for folder, config in runs.items())
        while len(self.ended) < self.n_runs:
            while self.queue and len(self.running) < self.n_jobs:
                self._begin(self.queue.popleft())
            if self.running or self.elsewhere:
                self._watch()
            self.bars.update(total, completed=len(self.ended))
        return self.ended

    def _begin(self, job: Job) -> None:
        """Start a process for a warm-up, or for a run that is neither ok nor going on elsewhere."""
        if job.folder is not None:
            if read_manifest(job.folder).status == "ok":
                return self._tell(outcome(job.folder, job.config), "already done: ")
            if (other := holder(job.folder)) is not None:
                return self._await(job.folder, job.config, other)
        receiver, sender = self.context.Pipe(duplex=False)
        arguments = (job, sender, self.n_jobs)
        process = self.context.Process(target=child, args=arguments, daemon=True)
        bar = self.bars.add_task(f"  {job.name()}", total=1.0, news="starts")
        run = Running(job, process, receiver, bar)
        process.start()
        self.running.append(run)
        sender.close()

    def _await(self, folder: Path, config: Config, other: Holder) -> None:
        """Leave the run to the process that is at work on it."""
        bar = self.bars.add_task(f"  {run_name(config)}", total=None, news="runs elsewhere")
        self.elsewhere[folder] = config, bar
        self._print(
            f"{run_name(config)}: process {other} is at work on it, waiting for that (if there is "
            f"no such process any more, delete {folder})"
        )

    def _watch(self) -> None:
        """Wait a moment, then see how all runs stand."""
        wait([run.process.sentinel for run in self.running], timeout=GLANCE)
        for run in list(self.running):
            self._hear(run)
            if run.overdue and not run.late:
                run.late = True
                run.process.kill()
            if not run.process.is_alive():
                self._end(run)
        for folder in list(self.elsewhere):
            self._look(folder)
        if not self.console.is_terminal and time.monotonic() - self.last_line > SIGN_OF_LIFE:
            for task in self.bars.tasks[1:]:  # all but the total
                news = f"{task.percentage:.0f} %, {task.fields['news']}"
                self._print(f"{task.description.strip()}: {news}")

    def _hear(self, run: Running) -> None:
        """What the run has told since the last time."""
        with suppress(EOFError):
            while run.pipe.poll():
                news = run.pipe.recv()
                if isinstance(news, str):
                    run.error = news
                    continue
                stage, share, success = news
                self.bars.update(run.bar, completed=share, news=as_news(stage, success))

    def _look(self, folder: Path) -> None:
        """How a run stands that another process is at work on."""
        config, bar = self.elsewhere[folder]
        if (folder / "manifest.json").exists() and holder(folder) is not None:
            return
        del self.elsewhere[folder]
        self.bars.remove_task(bar)
        plan(Path(config["results"]), config)  # anew, if it was deleted
        ended = outcome(folder, config)
        if ended.status in ("planned", "running", "killed"):
            self.queue.appendleft(Job(config, folder))
        else:
            self._tell(ended, "done elsewhere: ")

    def _end(self, run: Running) -> None:
        run.process.join()
        self._hear(run)
        self.running.remove(run)
        self.bars.remove_task(run.bar)
        config, folder = run.job.config, run.job.folder
        if folder is None:
            return
        other = holder(folder)
        if other is not None:  # it was first
            return self._await(folder, config, other)
        with suppress(OSError):  # no room to write it down: told all the same
            settle(folder, "timeout" if run.late else "killed", run.why())
        ended = outcome(folder, config)
        if ended.status in ("planned", "running"):
            ended = changed(ended, status="failed", reason=run.why())
        self._tell(ended, "")

    def _tell(self, ended: Outcome, note: str) -> None:
        self.ended[ended.folder] = ended
        self._print(f"[{len(self.ended)}/{self.n_runs}] {note}{ended.line()}")

    def _print(self, line: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(line, markup=False, soft_wrap=True)
