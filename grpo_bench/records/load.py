"""All records under a folder as data frames: whole, or what runs began and ended with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_bench.meter.provenance import Provenance
from grpo_bench.records.schema import (
    EVAL_SCHEMA,
    METRIC_SCHEMA,
    Manifest,
    RecordError,
    coordinates,
    identity,
    read_manifest,
)

KEYS = ["run", "env", "algo", "budget", "seed"]  # the first columns of every frame
START = "start/"  # prefix of a metric's first value, beside its last
T = TypeVar("T")
_FOLDER = re.compile(r"(?P<budget>.+)-seed(?P<seed>-?\d+)-[0-9a-f]{8}")


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
        does not have is NaN.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    evaluations: pd.DataFrame


@dataclass(frozen=True)
class Ends:
    """What runs began and ended with, in the order of ``Results``.

    runs: as in ``Results``.
    values: one row per run that has metrics, indexed by its ``run``: the last value of each metric
        under its name, the first one under ``START`` and its name, and the last ``transitions``
        and ``gradient_steps``; NaN for a metric that the run does not have.
    """

    runs: pd.DataFrame
    values: pd.DataFrame


def load_results(folder: Path | str) -> Results:
    """Read every record under ``folder``, whatever its status.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    runs, tables = _read_all(folder, _tables)
    metrics, evaluations = (
        [_keyed(pair[i], row) for row, pair in tables if pair[i] is not None] for i in (0, 1)
    )
    return Results(
        runs, _joined(metrics, METRIC_SCHEMA.names), _joined(evaluations, EVAL_SCHEMA.names)
    )


def load_ends(folder: Path | str) -> Ends:
    """Read the ends of every record under ``folder``, whatever its status: what tables are made of,
    without opening eval.parquet.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    runs, found = _read_all(folder, _ends)
    names = [row["run"] for row, ends in found if ends]
    values = [ends for _, ends in found if ends]
    return Ends(runs, pd.DataFrame(values, index=names, dtype=np.float64))


def _read_all(
    folder: Path | str, read: Callable[[Path], T]
) -> tuple[pd.DataFrame, list[tuple[dict[str, Any], T]]]:
    """``Results.runs``, and the row of each readable record with what ``read`` finds in it."""
    folder = Path(folder)
    paths = sorted((p for p in folder.glob("*/*/*") if _FOLDER.fullmatch(p.name)), key=_order)
    if not paths:
        raise FileNotFoundError(
            f"no runs under {folder}: expected folders <env>/<algo>/<budget>-seed<n>-<hash>, "
            f"which python -m grpo_bench.run makes"
        )
    runs: list[dict[str, Any]] = []
    found: list[tuple[dict[str, Any], T]] = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            row = _row(name, read_manifest(path))
            found.append((row, read(path)))
        except RecordError as error:
            problem = str(error).replace(f"{path}", name)  # the same words wherever it lies
            row = _unreadable(path, name, problem)
        runs.append(row)
    return pd.DataFrame(runs), found


def _row(name: str, manifest: Manifest) -> dict[str, Any]:
    env, algo, budget, seed = coordinates(manifest.config)
    others = {key: value for key, value in manifest.config.items() if key != "seed"}
    origin = manifest.provenance
    return {
        "run": name,
        "env": env,
        "algo": algo,
        "budget": budget,
        "seed": seed,
        "status": manifest.status,
        "attempt": manifest.attempt,
        "problem": "",
        "variant": identity(others),
        "setting": identity({key: value for key, value in others.items() if key != "algo"}),
        "concurrency": manifest.concurrency,
        "start": manifest.start,
        "end": manifest.end,
        "config": manifest.config,
        "extra": manifest.extra,
        **({f.name: None for f in fields(Provenance)} if origin is None else vars(origin)),
    }


def _order(path: Path) -> tuple[str, str, str, int, str]:
    """What a run's folder says about it, seeds as numbers."""
    match = _FOLDER.fullmatch(path.name)
    assert match is not None
    algo = path.parent
    return algo.parent.name, algo.name, match["budget"], int(match["seed"]), path.name


def _unreadable(path: Path, name: str, problem: str) -> dict[str, Any]:
    env, algo, budget, seed, _ = _order(path)
    config = {
        "env": {"name": env},
        "algo": {"name": algo},
        "budget": {"name": budget},
        "seed": seed,
    }
    return _row(name, Manifest("planned", config)) | {"problem": problem, "variant": ""}


def _tables(path: Path) -> tuple[pa.Table | None, pa.Table | None]:
    """metrics.parquet and eval.parquet of a run's folder."""
    return _read(path / "metrics.parquet"), _read(path / "eval.parquet")


def _ends(path: Path) -> dict[str, float]:
    """A row of ``Ends.values``; empty where a run has no metrics."""
    columns = ["transitions", "gradient_steps", "metric", "value"]
    table = _read(path / "metrics.parquet", columns, dictionaries=["metric"])
    if table is None or not table.num_rows:
        return {}
    if set(columns) > set(table.column_names):
        raise RecordError(
            f"{path}/metrics.parquet: columns {table.column_names}, expected {columns}"
        )
    metric = table["metric"].combine_chunks()
    names, codes = metric.dictionary.to_pylist(), metric.indices.to_numpy()
    value, rows = table["value"].to_numpy(), np.arange(len(codes))
    first, last = np.empty((2, len(names)), dtype=np.intp)
    last[codes] = rows  # of equal indices the last assignment counts
    first[codes[::-1]] = rows[::-1]
    return {
        **{name: table[name][-1].as_py() for name in columns[:2]},
        **dict(zip(names, value[last].tolist(), strict=True)),
        **{START + n: x for n, x in zip(names, value[first].tolist(), strict=True)},
    }


def _read(
    path: Path, columns: list[str] | None = None, dictionaries: list[str] | None = None
) -> pa.Table | None:
    """A table, or some of its columns, those of ``dictionaries`` as such; None without the file."""
    if not path.exists():
        return None
    try:
        # ParquetFile, for read_table would take a folder called a=b for a column.
        with pq.ParquetFile(path, read_dictionary=dictionaries) as file:
            return file.read(columns=columns, use_threads=False)  # threads only cost, on so little
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{path}: not readable ({error})") from None


def _keyed(table: pa.Table, row: dict[str, Any]) -> pd.DataFrame:
    frame = table.to_pandas()
    for position, key in enumerate(KEYS):
        frame.insert(position, key, row[key])
    return frame


def _joined(frames: list[pd.DataFrame], names: list[str]) -> pd.DataFrame:
    first = [*KEYS, *names]
    if not frames:
        return pd.DataFrame(columns=first)
    others = sorted({name for frame in frames for name in frame.columns} - set(first))
    return pd.concat(frames, ignore_index=True)[[*first, *others]]
