"""Making an archive (see ``archive``) of records, or adding some to one."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grpo_bench.records.archive import (
    METRICS,
    PROBLEMS,
    RUNS,
    coded,
    of_runs,
    read_archive,
    read_packed,
)
from grpo_bench.records.files import read_parquet, write_atomically
from grpo_bench.records.folders import Record, read_folders, read_problems
from grpo_bench.records.schema import (
    EVAL_SCHEMA,
    METRIC_SCHEMA,
    run_order,
)
from grpo_bench.records.wide import widened

RUN = pa.field("run", pa.dictionary(pa.int32(), pa.string()))
LEVEL = 19  # of zstd: packed once and kept for long; how fast it reads does not depend on it
TRIED = 3  # the level at which encodings are compared
ENCODINGS = {  # what a column may be stored as: the smallest is taken
    pa.float64(): ("DICTIONARY", "PLAIN", "BYTE_STREAM_SPLIT"),
    pa.int64(): ("DICTIONARY", "PLAIN", "DELTA_BINARY_PACKED"),
}


# The files, in the order in which they are written, and their first columns. Runs come last: they
# say which rows of the others count.
FIRST = {
    METRICS: pa.schema([RUN, *METRIC_SCHEMA][:5]),
    PROBLEMS: pa.schema([RUN, *EVAL_SCHEMA]),
    RUNS: pa.schema([(name, pa.string()) for name in ("run", "manifest", "problem", "error")]),
}


class Tables(NamedTuple):
    """What is in the files, before it is put in order."""

    metrics: pa.Table
    problems: pa.Table
    runs: pa.Table


def pack(results: Path, out: Path, metrics: Sequence[str] = ("*",)) -> int:
    """Put all records under ``results`` into the archive in ``out``, whatever their status, beside
    what is there. Of two records of one run that of the higher rank stays (``Manifest.rank``).

    Args:
        metrics: patterns; of runs in folders those with a name that fits one are kept.

    Returns:
        How many runs the archive has now.

    Raises:
        FileNotFoundError: there is no run under ``results``.
        ValueError: an archive or an eval.parquet is damaged, or a metric has the name of a column.
    """
    folders = read_folders(results, partial(_read_tables, patterns=metrics))
    here = [(read_archive(place), place) for place in dict.fromkeys([out, results])]
    if not folders and not here[-1][0]:
        raise FileNotFoundError(f"{results}: no records to pack")
    parts: list[tuple[Sequence[Record], Tables]] = [
        (records, _read_archive(place)) for records, place in here if records
    ]
    parts += [([record], _tables(record)) for record in folders]
    kept = _kept([records for records, _ in parts])
    files = {}
    for i, (name, first) in enumerate(FIRST.items()):
        its = [
            part[i].filter(of_runs(part[i], names))
            for (_, part), names in zip(parts, kept, strict=True)
        ]
        whole = _joined(first, its)
        files[name] = _bytes(whole, _encodings(whole), LEVEL)
    out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(out / name, data)
    return sum(map(len, kept))


def _kept(parts: Sequence[Sequence[Record]]) -> list[set[str]]:
    """The names of the runs whose records in each part stay: those of the highest rank, and of
    equal ones the last."""
    best: dict[str, tuple[tuple[bool, str], int]] = {}
    for i, records in enumerate(parts):
        for record in records:
            best[record.name] = max(best.get(record.name, (record.rank, i)), (record.rank, i))
    return [{name for name, (_, part) in best.items() if part == i} for i in range(len(parts))]


def _read_archive(folder: Path) -> Tables:
    names = {record.name for record in read_archive(folder)}
    runs = read_parquet(folder / RUNS)
    assert runs is not None
    metrics, problems = (read_packed(folder / name, names) for name in (METRICS, PROBLEMS))
    return Tables(metrics, problems, runs)


def _read_tables(
    path: Path, patterns: Sequence[str]
) -> tuple[str | None, pa.Table | None, pa.Table | None]:
    """Of a run's folder the traceback, the metrics whose names fit, and the last evaluations."""
    metrics = read_parquet(path / "metrics.parquet", METRIC_SCHEMA.names)
    if metrics is not None:
        names = metrics["metric"].unique().to_pylist()
        fit = [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]
        metrics = metrics.filter(pc.is_in(metrics["metric"], pa.array(fit, pa.string())))
    try:
        problems = read_problems(path)
        wide = widened(metrics) if metrics is not None and metrics.num_rows else None
    except ValueError as error:  # no record that cannot be read: tables can be made of it
        raise ValueError(f"{path}: {error}") from None
    trace = path / "error.txt"
    return trace.read_text(encoding="utf-8") if trace.exists() else None, wide, problems


def _tables(record: Record) -> Tables:
    """What the archive has of one record in a folder."""
    text, *tables = record.found or (None, None, None)
    manifest = record.manifest and record.manifest.to_json().decode()
    row = {"run": record.name, "manifest": manifest, "problem": record.problem, "error": text}
    named = []
    for table in tables:
        table = pa.table({}) if table is None else table
        names = pa.array([record.name] * table.num_rows, pa.string()).dictionary_encode()
        named.append(table.add_column(0, RUN, names))
    return Tables(named[0], named[1], pa.Table.from_pylist([row], FIRST[RUNS]))


def _joined(first: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    """The tables in one, runs in their order; the columns of ``first``, and the others by name."""
    whole = pa.concat_tables([first.empty_table(), *tables], promote_options="default")
    others = sorted({*whole.column_names} - {*first.names})
    there = [name for name in others if whole[name].null_count < whole.num_rows]
    names, codes = coded(whole["run"])
    order = sorted(range(len(names)), key=lambda i: run_order(str(names[i])))
    place = np.empty(len(names), dtype=np.int32)
    place[order] = np.arange(len(names))
    rows = place[codes].argsort(kind="stable")
    sorted_rows = whole.select([*first.names[1:], *there]).take(rows)
    runs = pa.DictionaryArray.from_arrays(place[codes][rows], pa.array(names[order], pa.string()))
    return sorted_rows.add_column(0, first.field("run"), runs.cast(first.field("run").type))


def _encodings(table: pa.Table) -> dict[str, str]:
    """For each column the encoding that makes it smallest."""
    return {
        field.name: min(
            ENCODINGS.get(field.type, ("DICTIONARY",)),
            key=lambda way: len(_bytes(table.select([field.name]), {field.name: way}, TRIED)),
        )
        for field in table.schema
    }


def _bytes(table: pa.Table, encodings: dict[str, str], level: int) -> bytes:
    """A Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        version="2.6",
        compression="zstd",
        compression_level=level,
        write_statistics=False,
        use_dictionary=[name for name, way in encodings.items() if way == "DICTIONARY"],
        column_encoding={name: way for name, way in encodings.items() if way != "DICTIONARY"},
    )
    return bytes(sink.getvalue().to_pybytes())
