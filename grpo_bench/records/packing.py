"""Making an archive (see ``archive``) of records, or adding some to one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
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
from grpo_bench.records.files import read_parquet, replace
from grpo_bench.records.folders import Record, read_folders, read_problems
from grpo_bench.records.schema import (
    EVAL_SCHEMA,
    METRIC_SCHEMA,
    run_order,
)
from grpo_bench.records.wide import widened

RUNS_SCHEMA = pa.schema([(name, pa.string()) for name in ("run", "manifest", "problem", "error")])
RUN = pa.field("run", pa.dictionary(pa.int32(), pa.string()))
LEVEL = 19  # of zstd: packed once and kept for long; how fast it reads does not depend on it
TRIED = 3  # the level at which encodings are compared
ENCODINGS = {  # what a column may be stored as: the smallest is taken
    pa.float64(): ("DICTIONARY", "PLAIN", "BYTE_STREAM_SPLIT"),
    pa.int64(): ("DICTIONARY", "PLAIN", "DELTA_BINARY_PACKED"),
}


class Tables(NamedTuple):
    """What is in the three files, before it is put in order."""

    runs: pa.Table
    metrics: pa.Table
    problems: pa.Table


def pack(results: Path, out: Path) -> int:
    """Put all records under ``results`` into the archive in ``out``, whatever their status, beside
    what is there. Of two records of one run that of the higher rank stays (``Manifest.rank``).

    Returns:
        How many runs the archive has now.

    Raises:
        FileNotFoundError: there is no run under ``results``.
        ValueError: an archive or an eval.parquet is damaged, or a metric has the name of a column.
    """
    folders = read_folders(results, _read_tables)
    here = [(read_archive(place), place) for place in dict.fromkeys([out, results])]
    if not folders and not here[-1][0]:
        raise FileNotFoundError(f"no runs under {results}: nothing to pack")
    parts: list[tuple[Sequence[Record], Tables]] = [
        (records, _read_archive(place)) for records, place in here if records
    ]
    parts += [([record], _tables(record)) for record in folders]
    chosen: dict[str, tuple[tuple[bool, str], int]] = {}  # rank and part of each run
    for i, (records, _) in enumerate(parts):
        for record in records:
            chosen[record.name] = max(chosen.get(record.name, (record.rank, i)), (record.rank, i))
    kept: list[set[str]] = [set() for _ in parts]
    for name, (_, i) in chosen.items():
        kept[i].add(name)
    tables = [
        [table.filter(of_runs(table, names)) for table in part]
        for (_, part), names in zip(parts, kept, strict=True)
    ]
    out.mkdir(parents=True, exist_ok=True)
    firsts = (RUNS_SCHEMA, pa.schema([RUN, *METRIC_SCHEMA][:5]), pa.schema([RUN, *EVAL_SCHEMA]))
    whole = [
        _joined(first, tables)
        for first, tables in zip(firsts, zip(*tables, strict=True), strict=True)
    ]
    files = [_bytes(table, _encodings(table), LEVEL) for table in whole]
    for name, data in reversed([*zip((RUNS, METRICS, PROBLEMS), files, strict=True)]):
        replace(out / name, data)  # runs last: they say what of the others counts
    return len(chosen)


def _read_archive(folder: Path) -> Tables:
    names = {record.name for record in read_archive(folder)}
    runs = read_parquet(folder / RUNS)
    assert runs is not None
    return Tables(runs, *(read_packed(folder / name, names) for name in (METRICS, PROBLEMS)))


def _read_tables(path: Path) -> tuple[str | None, pa.Table | None, pa.Table | None]:
    """Of a run's folder the traceback, the metrics and the last evaluations."""
    metrics = read_parquet(path / "metrics.parquet", METRIC_SCHEMA.names)
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
    return Tables(pa.Table.from_pylist([row], RUNS_SCHEMA), *named)


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
