"""The processes of a sweep: one for each run, and for each warm-up that several runs need. All are
forked from a server that has done the imports."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import TaskID

from grpo_bench.config import RunConfig
from grpo_bench.meter.memory import map_pages_of
from grpo_bench.records import Holder, holder, plan, read_manifest, settle
from grpo_bench.records.labels import labels
from grpo_bench.records.lock import EXPIRY
from grpo_bench.records.texts import printable, reason_of
from grpo_bench.runs.console import SIGN_OF_LIFE, as_status, make_bars
from grpo_bench.runs.outcome import Outcome, outcome
from grpo_bench.runs.stopping import held

LAST_SECONDS = 5.0  # for a process that was told to end
GLANCE = 0.2  # seconds between two looks at the runs
LOOK = 1.0  # seconds between two looks at runs elsewhere, which may be on a slow file system
PRELOAD = [
    *("grpo_bench.runs.job", "grpo_bench.runs.processes", "grpo_bench.runs.sweep"),
    "grpo_bench.runs.door",  # imported by the main module, which each process imports again
    "pandas",  # pyarrow imports it when it makes the first table of a record
]


def start_server(threads: int) -> Any:
    """A multiprocessing context whose processes have imported torch and SB3 when they start.

    The fork server begins its imports with the first call, in parallel with this process. Each run
    is forked from it, so no run sees another, and its peak of memory is that of a process that did
    the imports itself. The server ignores Ctrl-C: this process ends the sweep.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the server
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)
    return context


@dataclass(frozen=True)
class Job:
    """The work of one process: a run, or without a folder the warm-up of a configuration."""

    config: RunConfig
    name: str
    folder: Path | None = None  # of the run's record


def run_names(runs: Mapping[Path, RunConfig]) -> dict[Path, str]:
    """A short name of each run: environment, algorithm, seed, and the settings in which it differs
    from other runs of this algorithm on this environment."""
    alike: dict[tuple[str, ...], dict[Path, dict[str, Any]]] = {}
    for folder, config in runs.items():
        of = (config.env.name, config.budget.name, config.algo.name)
        alike.setdefault(of, {})[folder] = config.plain
    differs = {
        folder: text for several in alike.values() for folder, text in labels(several).items()
    }
    return {folder: printable(config.name_with(differs[folder])) for folder, config in runs.items()}


def child(job: Job, pipe: Connection, concurrency: int) -> None:
    """The main function of a process. A run's record has its outcome and the traceback of an error;
    the sweep also gets the error, in case the record could not be written."""
    from grpo_bench.runs.job import execute, make_warmup

    gc.freeze()  # collections skip what the server imported: 0.1 s each
    map_pages_of(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep handles Ctrl-C

    def send(stage: str, share: float, success: float) -> None:
        try:
            pipe.send((stage, share, success))
        except BrokenPipeError:
            raise KeyboardInterrupt("the sweep that this run belongs to is gone") from None

    try:
        if job.folder is None:
            make_warmup(job.config, send)
        else:
            execute(job.config, send, concurrency)
    except (Exception, KeyboardInterrupt) as error:
        with suppress(BrokenPipeError):
            pipe.send(reason_of(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def wait_for_end(pid: int) -> None:
    """Wait until a process is gone, and kill it if it does not go. ``join`` returns early where a
    signal to the whole group ended the fork server first."""
    deadline = time.monotonic() + LAST_SECONDS
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.01)


@dataclass
class Running:
    """A process, its job, and its state as the sweep knows it."""

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
        limit = self.job.config.timeout_s
        return limit is not None and time.monotonic() - self.began > limit

    def why(self) -> str:
        """Why the process ended, if its record does not say."""
        if self.late:
            return f"longer than timeout_s={self.job.config.timeout_s}"
        code = self.process.exitcode
        if code >= 0:
            return self.error or f"the process ended with exit code {code}"
        known = {number.value: number.name for number in signal.Signals}
        return f"the process was ended by signal {-code} ({known.get(-code, 'unknown')})"


class Sweep:
    """Runs at most ``n_jobs`` processes at a time; leaving the context ends those still running."""

    def __init__(self, console: Console, context: Any, n_jobs: int) -> None:
        self.console, self.context, self.n_jobs = console, context, n_jobs
        self.queue: deque[Job] = deque()
        self.running: list[Running] = []
        self.elsewhere: dict[Path, tuple[Job, TaskID]] = {}  # another process executes it
        self.ended: dict[Path, Outcome] = {}
        self.n_runs = 0
        self.last_line = self.last_look = time.monotonic()
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
                wait_for_end(run.process.pid)
                if run.job.folder is not None:
                    with suppress(OSError):  # a full disk: the next sweep finds the process gone
                        settle(run.job.folder, "killed", "the sweep was stopped")
        finally:
            self.bars.stop()

    def run_all(
        self, runs: dict[Path, RunConfig], warmups: Sequence[RunConfig] = ()
    ) -> dict[Path, Outcome]:
        """Execute all runs in this order, and print a line for each.

        The warm-ups of ``warmups`` are made first; one that cannot be made fails in the run that
        needs it. A run that another sweep executes is waited for, and executed here if it is cut
        off there. A run that failed there is not repeated.
        """
        self.n_runs = len(runs)
        total = self.bars.add_task(f"{self.n_runs} runs", total=self.n_runs, status="")
        names = run_names(runs)
        self.queue.extend(Job(config, config.env.name) for config in warmups)
        self.queue.extend(Job(config, names[folder], folder) for folder, config in runs.items())
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
                before = outcome(job.folder, job.config, job.name)
                if before.status == "ok":
                    return self._report(before, "already done: ")
                self._print(before.again())
            if (other := holder(job.folder)) is not None:
                return self._await(job, job.folder, other)
        receiver, sender = self.context.Pipe(duplex=False)
        arguments = (job, sender, self.n_jobs)
        process = self.context.Process(target=child, args=arguments, daemon=True)
        bar = self.bars.add_task(f"  {job.name}", total=1.0, status="starts")
        run = Running(job, process, receiver, bar)
        with held():  # a signal finds it among those that are running, or not started
            process.start()
            self.running.append(run)
        sender.close()

    def _await(self, job: Job, folder: Path, other: Holder) -> None:
        """Wait for the process that executes the run."""
        bar = self.bars.add_task(f"  {job.name}", total=None, status="runs elsewhere")
        self.elsewhere[folder] = job, bar
        self._print(
            f"{job.name}: process {other} is executing it, waiting (until it ends, or has been "
            f"silent for {EXPIRY:.0f} s)"
        )

    def _watch(self) -> None:
        """Wait a moment, then update the state of all runs."""
        wait([run.process.sentinel for run in self.running], timeout=GLANCE)
        for run in list(self.running):
            self._receive(run)
            if run.overdue and not run.late:
                run.late = True
                run.process.kill()
            if not run.process.is_alive():
                self._end(run)
        if self.elsewhere and time.monotonic() - self.last_look > LOOK:
            self.last_look = time.monotonic()
            for folder in list(self.elsewhere):
                self._look(folder)
        if not self.console.is_terminal and time.monotonic() - self.last_line > SIGN_OF_LIFE:
            for task in self.bars.tasks[1:]:  # all but the total
                status = f"{task.percentage:.0f} %, {task.fields['status']}"
                self._print(f"{task.description.strip()}: {status}")

    def _receive(self, run: Running) -> None:
        """Read the messages of a run."""
        with suppress(EOFError):
            while run.pipe.poll():
                message = run.pipe.recv()
                if isinstance(message, str):
                    run.error = message
                    continue
                stage, share, success = message
                self.bars.update(run.bar, completed=share, status=as_status(stage, success))

    def _look(self, folder: Path) -> None:
        """Check on a run that another process executes."""
        job, bar = self.elsewhere[folder]
        if (folder / "manifest.json").exists() and holder(folder) is not None:
            return
        del self.elsewhere[folder]
        self.bars.remove_task(bar)
        plan(Path(job.config.results), job.config.plain)  # again, if it was deleted
        ended = outcome(folder, job.config, job.name)
        if ended.status in ("planned", "running", "killed", "damaged"):
            self.queue.appendleft(job)
        else:
            self._report(ended, "done elsewhere: ")

    def _end(self, run: Running) -> None:
        run.process.join()
        self._receive(run)
        self.running.remove(run)
        self.bars.remove_task(run.bar)
        job, folder = run.job, run.job.folder
        if folder is None:
            return
        other = holder(folder)
        if other is not None:  # it claimed the run first
            return self._await(job, folder, other)
        with suppress(OSError):  # a full disk: the line is printed anyway
            settle(folder, "timeout" if run.late else "killed", run.why())
        ended = outcome(folder, job.config, job.name)
        if ended.status in ("planned", "running"):
            ended = changed(ended, status="failed", reason=run.why())
        self._report(ended, "")

    def _report(self, ended: Outcome, note: str) -> None:
        self.ended[ended.folder] = ended
        self._print(f"[{len(self.ended)}/{self.n_runs}] {note}{ended.line()}")

    def _print(self, line: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(printable(line), markup=False, soft_wrap=True)
