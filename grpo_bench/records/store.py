"""Planning, claiming and writing a run record."""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from grpo_bench.meter.provenance import Provenance
from grpo_bench.records.checkpoints import (
    Checkpoint,
    delete_checkpoints,
    latest_checkpoint,
    save_checkpoint,
)
from grpo_bench.records.files import (
    create,
    parquet_bytes,
    read_parquet,
    remove_leftovers,
    write_atomically,
)
from grpo_bench.records.lock import (
    EXPIRY,
    Heartbeat,
    Holder,
    attempt_file,
    latest_attempt,
    make_attempt,
)
from grpo_bench.records.schema import (
    BUDGETS,
    EVAL_SCHEMA,
    METRIC_SCHEMA,
    STATUSES,
    Manifest,
    RecordError,
    Status,
    read_manifest,
    run_folder,
)
from grpo_bench.records.whole import is_done

CUT_OFF = ("running", "killed", "timeout")  # what a run was that goes on from its checkpoint


def plan(results: Path, config: dict[str, Any]) -> Path:
    """The folder of a run, with a manifest of status ``planned`` unless it has one already."""
    folder = run_folder(results, config)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    if not path.exists():  # else a sweep that is run again would write and sync a file for each run
        create(path, Manifest("planned", config).to_json())
    return folder


def claim(
    folder: Path,
    config: dict[str, Any],
    *,
    seeds: dict[str, Any],
    provenance: Provenance,
    concurrency: int = 1,
) -> Run | None:
    """Take a planned run for this process, or one that did not end well. One that was cut off goes
    on from its last checkpoint; otherwise its files start anew.

    Returns:
        None if the run is ok already and its tables can be read, or another process holds it: of
        any number of sweeps that claim one run at once, exactly one gets it.

    Raises:
        RecordError: the folder's manifest cannot be read.
    """
    number, _ = latest_attempt(folder)
    before = read_manifest(folder).status
    if holder(folder) is not None or is_done(folder):
        return None
    if not make_attempt(folder, number + 1):
        return None
    run = Run(
        folder,
        Manifest(
            "running",
            config,
            attempt=number + 1,
            seeds=seeds,
            provenance=provenance,
            concurrency=concurrency,
            start=_now(),
        ),
        latest_checkpoint(folder) if before in CUT_OFF else None,
    )
    (folder / "error.txt").unlink(missing_ok=True)
    if run.checkpoint is None:
        delete_checkpoints(folder)
        for name in ("metrics.parquet", "eval.parquet", "completions.jsonl"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    remove_leftovers(folder)
    return run


def holder(folder: Path) -> Holder | None:
    """The living process that is at work on a run; None if there is none.

    Raises:
        RecordError: the folder's manifest cannot be read.
    """
    number, latest = latest_attempt(folder)
    # In this order: once the holder is seen dead, nobody changes the manifest any more.
    alive = latest is not None and latest.alive(attempt_file(folder, number))
    manifest = read_manifest(folder)
    ended = manifest.attempt == number and manifest.status not in ("planned", "running")
    return latest if alive and not ended else None


def settle(folder: Path, status: Status, error: str) -> bool:
    """Record how a run ended whose process could not do it (killed, out of memory, out of time):
    for the process that watched it.

    A process may die after it made its attempt and before it wrote its first manifest. The
    manifest is then an older one, and this attempt has not ended either.

    Returns:
        False if there was nothing to settle: the run has ended, or its process still lives.
    """
    number, latest = latest_attempt(folder)
    dead = latest is not None and not latest.alive(attempt_file(folder, number))
    manifest = read_manifest(folder)
    ended = manifest.attempt == number and manifest.status not in ("planned", "running")
    if not dead or ended or manifest.status == "ok":
        return False
    _end(folder, replace(manifest, attempt=number), status, error, {})
    return True


class RunLost(RuntimeError):
    """Another process has taken a run over, because this one was silent for too long."""


class Sink(Protocol):
    """Where a run's numbers go beside its record. It may raise anything: that is a warning, and the
    run goes on without it."""

    def log(self, budgets: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Metrics at one moment, and the ``BUDGETS`` spent until then, by name."""

    def close(self, status: Status) -> None:
        """The run has ended like this."""


class Run:
    """A claimed run. As a context manager it ends by itself: ``ok``, or with the status and the
    traceback of the exception, which passes on.

    Attributes:
        folder: of the record; more files may be put there.
        manifest: as last written.
        extra: goes into the manifest at the end, however the run ends.
        sinks: are told all that is logged.
        checkpoint: from which it goes on; None: it starts anew.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, checkpoint: Checkpoint | None = None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.checkpoint = checkpoint
        self._heartbeat = Heartbeat(folder, manifest.attempt)
        self.extra: dict[str, Any] = {}
        self.sinks: list[Sink] = []
        self._metrics: dict[str, list[Any]] = {name: [] for name in METRIC_SCHEMA.names}
        self._evaluations: list[pa.Table] = []
        if checkpoint is not None:
            try:
                self._go_on(*checkpoint.state["rows"])
            except RecordError:  # damaged: it starts anew
                self.checkpoint = None
        write_atomically(folder / "manifest.json", manifest.to_json())

    def _go_on(self, n_metrics: int, n_evaluations: int) -> None:
        """Take up the rows that had been noted when the checkpoint was made."""
        tables = []
        for name, n in (("metrics", n_metrics), ("eval", n_evaluations)):
            table = read_parquet(self.folder / f"{name}.parquet")
            if table is None or len(table) < n:
                raise RecordError(f"{self.folder / name}.parquet: expected {n} rows or more")
            tables.append(table.slice(0, n))
        self._metrics = tables[0].to_pydict()
        self._evaluations = [tables[1]] if n_evaluations else []

    def save_checkpoint(self, state: dict[str, Any], write: Callable[[Path], None]) -> None:
        """Write all that has been noted, and a checkpoint that goes on from there.

        Args:
            state: plain values; ``rows`` is added, the numbers of rows of both tables.
            write: puts the other files into a folder.

        Raises:
            OSError: the disk is full, or the like; earlier checkpoints are whole.
        """
        self.flush()
        rows = (len(self._metrics["metric"]), sum(map(len, self._evaluations)))
        save_checkpoint(self.folder, state | {"rows": rows}, write)

    def log(
        self,
        transitions: int,
        gradient_steps: int,
        seconds: float,
        peak_bytes: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Note metrics at one moment, which all four budgets name: environment transitions,
        gradient steps, seconds of training, peak bytes so far. In memory until ``flush``."""
        for metric, value in metrics.items():
            row = (transitions, gradient_steps, seconds, peak_bytes, metric, float(value))
            for column, item in zip(self._metrics.values(), row, strict=True):
                column.append(item)
        budgets = (transitions, gradient_steps, seconds, peak_bytes)
        self._tell("log", dict(zip(BUDGETS, budgets, strict=True)), metrics)

    def _tell(self, what: str, *arguments: Any) -> None:
        """Call a method of all sinks, and leave out those that fail from now on."""
        for sink in list(self.sinks):
            try:
                getattr(sink, what)(*arguments)
            except Exception as error:
                self.sinks.remove(sink)
                name = type(sink).__name__
                warnings.warn(f"{name} gets no more of {self.folder}: {error!r}", stacklevel=3)

    def evaluation(self, split: str, transitions: int, columns: Mapping[str, Any]) -> None:
        """Note an evaluation: an array or Series (n_problems,) for each of ``problem_id``,
        ``reward``, ``success``, ``length`` and the reward's components. In memory until ``flush``.

        Raises:
            ValueError: a column is missing, or the components are not those of the last time.
        """
        given = EVAL_SCHEMA.names[2:]
        missing = [name for name in given if name not in columns]
        if missing:
            raise ValueError(f"evaluation without {missing}: expected {given} and the components")
        schema = EVAL_SCHEMA
        for name in columns:
            if name not in EVAL_SCHEMA.names:
                schema = schema.append(pa.field(name, pa.float64()))
        rows = len(columns["problem_id"])
        whole = {**columns, "split": [split] * rows, "transitions": np.full(rows, transitions)}
        table = pa.table({name: np.asarray(whole[name]) for name in schema.names}, schema=schema)
        if self._evaluations and self._evaluations[0].schema != schema:
            before = self._evaluations[0].schema.names
            raise ValueError(f"evaluation with columns {schema.names}: expected {before} as before")
        self._evaluations.append(table)

    def flush(self) -> None:
        """Write what there is so far: a process killed later loses nothing of it.

        Raises:
            OSError: the disk is full, or the like; what was written before is still whole.
            RunLost: another process has taken the run over.
        """
        if self._lost():
            raise RunLost(
                f"{self.folder}: another process works on this run, since this one did not answer "
                f"for {EXPIRY:.0f} seconds"
            )
        metrics = pa.table(self._metrics, schema=METRIC_SCHEMA)
        evaluations = self._evaluations or [EVAL_SCHEMA.empty_table()]
        write_atomically(self.folder / "metrics.parquet", parquet_bytes(metrics))
        write_atomically(self.folder / "eval.parquet", parquet_bytes(pa.concat_tables(evaluations)))

    def _lost(self) -> bool:
        return latest_attempt(self.folder)[0] != self.manifest.attempt

    def finish(self, status: Status = "ok", error: str | None = None) -> None:
        """Write everything and say how it ended.

        Raises:
            ValueError: status is none with which a run ends.
            OSError: an ``ok`` run could not be written whole. One that failed is marked so even if
                its last rows find no room.
        """
        self._heartbeat.stop()
        if status == "ok":
            self.flush()
        else:
            with suppress(OSError, RunLost):
                self.flush()
        if self._lost():  # the record belongs to the other process
            self.manifest = replace(self.manifest, status=status)
            return
        self.manifest = _end(self.folder, self.manifest, status, error, self.extra)
        if status == "ok":
            delete_checkpoints(self.folder)
        self._tell("close", status)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.manifest.status != "running":  # finish() has said how it ended
            return
        if error is None:
            self.finish()
        else:
            self.finish(status_of(error), "".join(traceback.format_exception(error)))


def status_of(error: BaseException) -> Status:
    """The status of a run that ended with this exception."""
    match error:
        case MemoryError():
            return "oom"
        case FloatingPointError():
            return "nan"
        case TimeoutError():
            return "timeout"
        case KeyboardInterrupt():
            return "killed"
    # torch's own, told by name so that torch need not be imported; on a CPU it is a RuntimeError.
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return "oom"
    return "failed"


def _end(
    folder: Path, manifest: Manifest, status: Status, error: str | None, extra: dict[str, Any]
) -> Manifest:
    ends = STATUSES[2:]
    if status not in ends:
        raise ValueError(f"status={status!r}: a run ends with one of {', '.join(ends)}")
    if error is not None:
        with suppress(OSError):  # the status matters more, and needs less room
            write_atomically(folder / "error.txt", error.encode(errors="backslashreplace"))
    manifest = replace(manifest, status=status, end=_now(), extra=extra)
    write_atomically(folder / "manifest.json", manifest.to_json())
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
