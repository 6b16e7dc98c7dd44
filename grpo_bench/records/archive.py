"""Packed records: those of many runs in three Parquet files, as results are kept and published.

FOLDER/
    runs.parquet      one row per run: ``run``, its name; ``manifest``, the text of manifest.json,
                      or null; ``problem``, why its record cannot be read, "" if it can; ``error``,
                      the text of error.txt, or null
    metrics.parquet   ``run`` and the columns of ``wide``: one row per run and moment
    problems.parquet  ``run`` and the columns of eval.parquet, null for a component that the run's
                      environment lacks: of each split the last evaluation

Runs stand in their order (``schema.run_order``). The same records give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_bench.records.files import read_parquet
from grpo_bench.records.folders import Record
from grpo_bench.records.schema import BUDGETS, CURVE, START, RecordError, parse_manifest

RUNS, METRICS, PROBLEMS = "runs.parquet", "metrics.parquet", "problems.parquet"


def read_archive(folder: Path) -> list[Record]:
    """The records that are packed in ``folder``, in the order of runs; none if it has no archive.

    Raises:
        RecordError: runs.parquet is damaged.
    """
    table = read_parquet(folder / RUNS, ["run", "manifest", "problem"])
    return [] if table is None else [_record(**row) for row in table.to_pylist()]


def _record(run: str, manifest: str | None, problem: str) -> Record:
    if manifest is None:
        return Record(run, None, problem)
    try:
        return Record(run, parse_manifest(manifest, f"{run}/manifest.json"))
    except RecordError as error:  # such as one of an older schema
        return Record(run, None, str(error))


def read_packed(path: Path, names: set[str], *columns: str) -> pa.Table:
    """Of METRICS or PROBLEMS the rows of the runs with these names; all columns, or some.

    Raises:
        RecordError: the file is damaged or missing.
    """
    table = _whole(path, *columns)
    return table.filter(of_runs(table, names))


def read_packed_summaries(path: Path, names: set[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``values`` and ``curves`` of ``RunSummaries``, of the runs with these names. Reads one column
    of METRICS after the other: the whole would take a gigabyte for ten thousand runs.

    Raises:
        RecordError: the file is damaged or missing.
    """
    runs, codes = coded(_whole(path, "run")["run"])

    def column(name: str) -> pa.ChunkedArray:
        return _whole(path, name)[name]

    last_row = np.empty(len(runs), dtype=np.intp)
    last_row[codes] = np.arange(len(codes))  # of equal indices the last assignment counts
    values = {name: column(name).to_numpy()[last_row] for name in BUDGETS[:2]}
    curves = pd.DataFrame({"run": [], **{name: [] for name in (*BUDGETS, "success")}})
    for metric in pq.read_schema(path).names:
        if metric in ("run", *BUDGETS):
            continue
        cells = column(metric)
        rows = cells.is_valid().to_numpy().nonzero()[0]
        value, run = cells.to_numpy()[rows], codes[rows]
        first, last = np.full((2, len(runs)), np.nan)
        last[run], first[run[::-1]] = value, value[::-1]
        values |= {metric: last, f"{START}{metric}": first}
        if metric == CURVE:
            budgets = {name: column(name).to_numpy()[rows] for name in BUDGETS}
            curves = pd.DataFrame({"run": runs[run], **budgets, "success": value})
    frame = pd.DataFrame(values, index=runs, dtype=np.float64)
    return frame[frame.index.isin(names)], curves[curves["run"].isin(names)]


def _whole(path: Path, *columns: str) -> pa.Table:
    table = read_parquet(path, [*columns] or None)
    if table is None:
        raise RecordError(f"{path}: missing, but {RUNS} is there; pack the records again")
    return table


def of_runs(table: pa.Table, names: set[str]) -> np.ndarray:
    """Whether each row of a table is of a run with one of the names, (n,)."""
    runs, codes = coded(table["run"])
    return np.isin(runs, [*names])[codes]


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The different names in a column, and for each of its n rows which of them it has, (n,)."""
    whole = column.combine_chunks()
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    return whole.dictionary.to_numpy(zero_copy_only=False), whole.indices.to_numpy()
