"""All records under a folder as data frames: whole, or a summary of each run. The records may be
folders of runs, an archive, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from grpo_bench.meter.provenance import Provenance
from grpo_bench.records.archive import (
    METRICS,
    PROBLEMS,
    RUNS,
    of_runs,
    read_archive,
    read_packed,
    read_packed_summaries,
)
from grpo_bench.records.files import read_parquet
from grpo_bench.records.folders import Record, read_folders, read_problems, read_summary, run_names
from grpo_bench.records.schema import (
    BUDGETS,
    CURVE,
    EVAL_SCHEMA,
    METRIC_SCHEMA,
    START,
    Manifest,
    coordinates,
    identity,
    run_order,
)
from grpo_bench.records.wide import lengthened

__all__ = [
    "BUDGETS",
    "CURVE",
    "KEYS",
    "START",
    "Results",
    "RunSummaries",
    "has_records",
    "load_problems",
    "load_results",
    "load_summaries",
]

KEYS = ["run", "env", "algo", "budget", "seed"]  # the first columns of every frame


@dataclass(frozen=True)
class Results:
    """Records in the order of environment, algorithm, budget, seed.

    runs: one row per run: ``KEYS``, status, attempt, concurrency, start, end, config, extra, the
        fields of ``Provenance``, and
        variant: eight hex digits, the same for runs that differ in their seed alone,
        setting: the same for runs that differ in seed and algorithm alone,
        problem: why the record cannot be read, "" if it can. Such a run counts as planned: its
            status is that, its names come from its folder's, and it has no other rows.
    metrics: ``KEYS`` and the columns of metrics.parquet.
    evaluations: ``KEYS`` and the columns of eval.parquet; a component that a run's environment
        does not have is NaN. Of packed runs the last evaluation of each split.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    evaluations: pd.DataFrame


@dataclass(frozen=True)
class RunSummaries:
    """The first and last values of each run and its curve, in the order of ``Results``.

    runs: as in ``Results``.
    values: one row per run that has metrics, indexed by its ``run``: the last value of each metric
        under its name, the first one under ``START`` and its name, and the last ``transitions``
        and ``gradient_steps``; NaN for a metric that the run does not have.
    curves: one row per run and evaluation of the validation split, in the order of runs and of
        transitions: ``run``, the ``BUDGETS`` spent until then, and ``success``, the share of the
        problems solved. Of two evaluations after the same transitions the later one counts.
    notes: the lines of ``notes.txt`` in the folder, if there is one: what whoever made the records
        wants to say about them. Tables repeat them.
    """

    runs: pd.DataFrame
    values: pd.DataFrame
    curves: pd.DataFrame
    notes: tuple[str, ...] = ()


def has_records(folder: Path) -> bool:
    """Whether there are records in a folder that can be loaded."""
    return (folder / RUNS).exists() or bool(run_names(folder))


def load_results(folder: Path | str = "results/runs") -> Results:
    """Read every record under ``folder``, whatever its status.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
        RecordError: an archive is damaged.
    """
    folder = Path(folder)
    runs, found, packed = _read_all(folder, _tables)
    frames: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for name, tables in found:
        for its, table in zip(frames, tables, strict=True):
            if table is not None:
                its.append(table.to_pandas().assign(run=name))
    if packed:
        frames[0].append(lengthened(read_packed(folder / METRICS, packed)).to_pandas())
        frames[1].append(read_packed(folder / PROBLEMS, packed).to_pandas())
    return Results(
        runs,
        _keyed(frames[0], METRIC_SCHEMA.names, runs),
        _keyed(frames[1], EVAL_SCHEMA.names, runs),
    )


def load_summaries(folder: Path | str) -> RunSummaries:
    """Summarise every record under ``folder``, whatever its status: all that tables need, without
    opening eval.parquet.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
        RecordError: an archive is damaged.
    """
    folder = Path(folder)
    runs, found, packed = _read_all(folder, read_summary)
    some = [(name, summary) for name, summary in found if summary is not None]
    values = pd.DataFrame(
        [summary[0] for _, summary in some], index=[name for name, _ in some], dtype=np.float64
    )
    curves = _curves([(name, ends[1]) for name, ends in some])
    if packed:
        its_values, its_curves = read_packed_summaries(folder / METRICS, packed)
        values = pd.concat([values, its_values])
        curves = pd.concat([curves, its_curves])
    values = values.loc[[name for name in runs["run"] if name in values.index]]
    curves = _in_order(curves, runs).drop_duplicates(["run", "transitions"], keep="last")
    notes = folder / "notes.txt"
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return RunSummaries(
        runs, values, curves.astype({"run": str}).reset_index(drop=True), tuple(lines)
    )


def load_problems(folder: Path | str) -> pd.DataFrame:
    """Columns ``run``, ``problem_id`` and ``success``: the last evaluation on the test split of
    each run that ended ok, in the order of ``Results`` and of the problems' ids.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
        RecordError: an archive is damaged.
    """
    folder = Path(folder)
    runs, found, packed = _read_all(folder, read_problems)
    columns = ["run", "problem_id", "success"]
    tables = [
        table.add_column(0, "run", pa.array([name] * table.num_rows, pa.string()))
        for name, table in found
        if table is not None
    ]
    if packed:
        tables.append(read_packed(folder / PROBLEMS, packed, "split", *columns))
    ok = set(runs["run"][runs["status"] == "ok"])
    frames = [
        table.filter(of_runs(table, ok) & pc.equal(table["split"], "test").to_numpy())
        .select(columns)
        .to_pandas()
        .astype({"run": str})
        for table in tables
    ]
    if not frames:
        return pd.DataFrame(columns=columns)
    return _in_order(pd.concat(frames), runs).reset_index(drop=True)


def _read_all(
    folder: Path, read: Callable[[Path], Any]
) -> tuple[pd.DataFrame, list[tuple[str, Any]], set[str]]:
    """``Results.runs``; the name of each readable record in a folder, with what ``read`` finds in
    it; and the names of the others that can be read, which are packed. Of two records of one run
    that of the higher rank counts, and of equal ones that in the folder."""
    chosen = {record.name: record for record in read_archive(folder)}
    packed = set(chosen)
    found = []
    for record in read_folders(folder, read):
        if record.name in chosen and chosen[record.name].rank > record.rank:
            continue
        chosen[record.name] = record
        packed.discard(record.name)
        if record.manifest is not None:
            found.append((record.name, record.found))
    if not chosen:
        raise FileNotFoundError(
            f"{folder}: no records; expected a folder that python -m grpo_bench.run or "
            "python -m grpo_bench.pack wrote"
        )
    rows = [_row(chosen[name]) for name in sorted(chosen, key=run_order)]
    return pd.DataFrame(rows), found, {n for n in packed if chosen[n].manifest is not None}


def _row(record: Record) -> dict[str, Any]:
    """A row of ``Results.runs``."""
    manifest = record.manifest or _planned(record.name)
    env, algo, budget, seed = coordinates(manifest.config)
    others = {key: value for key, value in manifest.config.items() if key != "seed"}
    origin = manifest.provenance
    return {
        "run": record.name,
        "env": env,
        "algo": algo,
        "budget": budget,
        "seed": seed,
        "status": manifest.status,
        "attempt": manifest.attempt,
        "problem": record.problem,
        "variant": "" if record.problem else identity(others),
        "setting": identity({key: value for key, value in others.items() if key != "algo"}),
        "concurrency": manifest.concurrency,
        "start": manifest.start,
        "end": manifest.end,
        "config": manifest.config,
        "extra": manifest.extra,
        **({f.name: None for f in fields(Provenance)} if origin is None else vars(origin)),
    }


def _planned(name: str) -> Manifest:
    """What stands for a record that cannot be read: all that its name says of it."""
    env, algo, budget, seed, _ = run_order(name)
    names = {"env": {"name": env}, "algo": {"name": algo}, "budget": {"name": budget}}
    return Manifest("planned", {**names, "seed": seed})


def _tables(path: Path) -> tuple[pa.Table | None, pa.Table | None]:
    """metrics.parquet and eval.parquet of a run's folder."""
    return read_parquet(path / "metrics.parquet"), read_parquet(path / "eval.parquet")


def _curves(found: list[tuple[str, list[np.ndarray]]]) -> pd.DataFrame:
    """``RunSummaries.curves`` of the columns that ``read_summary`` found for each run."""
    empty = [
        np.empty(0, METRIC_SCHEMA.field(n).type.to_pandas_dtype()) for n in (*BUDGETS, "value")
    ]
    columns = [np.concatenate(parts) for parts in zip(empty, *(c for _, c in found), strict=True)]
    names = np.array([name for name, _ in found], dtype=object)
    names = names.repeat([len(c[0]) for _, c in found])
    return pd.DataFrame({"run": names, **dict(zip([*BUDGETS, "success"], columns, strict=True))})


def _in_order(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame in the order of ``runs``, those of one run as they are."""
    place = pd.Index(runs["run"]).get_indexer(pd.Index(frame["run"]))
    return frame.iloc[place.argsort(kind="stable")]


def _keyed(frames: list[pd.DataFrame], names: list[str], runs: pd.DataFrame) -> pd.DataFrame:
    """The frames in one, in the order of ``runs``, with ``KEYS``, the columns of ``names`` and then
    the others."""
    first = [*KEYS, *names]
    if not frames:
        return pd.DataFrame(columns=first)
    whole = _in_order(pd.concat(frames), runs)
    others = sorted(set(whole.columns) - set(first))
    keys = runs.set_index("run")[KEYS[1:]].loc[whole["run"]].reset_index()
    return pd.concat([keys, whole[[*names, *others]].reset_index(drop=True)], axis=1)
