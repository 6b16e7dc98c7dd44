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
import pyarrow.compute as pc
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
CURVE = "eval/validation/success"  # the metric that curves are of
BUDGETS = METRIC_SCHEMA.names[:4]  # what a moment costs: the first columns of metrics.parquet
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
    curves: one row per run and evaluation of the validation split, in the order of runs and of
        transitions: ``run``, the ``BUDGETS`` spent until then, and ``success``, the share of the
        problems solved. Of two evaluations after the same transitions the later one counts.
    """

    runs: pd.DataFrame
    values: pd.DataFrame
    curves: pd.DataFrame


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
    some = [(row["run"], ends) for row, ends in found if ends is not None]
    values = pd.DataFrame(
        [ends[0] for _, ends in some], index=[name for name, _ in some], dtype=np.float64
    )
    return Ends(runs, values, _curves([(name, ends[1]) for name, ends in some]))


def load_problems(folder: Path | str) -> pd.DataFrame:
    """Columns ``run``, ``problem_id`` and ``success``: the last evaluation on the test split of
    each run that ended ok, in the order of ``Results`` and of the split's problems.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    _, found = _read_all(folder, _problems)
    frames = [
        table.to_pandas().assign(run=row["run"])
        for row, table in found
        if table is not None and row["status"] == "ok"
    ]
    columns = ["run", "problem_id", "success"]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns]


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


def _ends(path: Path) -> tuple[dict[str, float], list[np.ndarray]] | None:
    """A row of ``Ends.values``, and of the rows of ``CURVE`` the ``BUDGETS`` and the values, each
    (n,); None where a run has no metrics."""
    names = METRIC_SCHEMA.names
    table = _read(path / "metrics.parquet", names, dictionaries=["metric"])
    if table is None or not table.num_rows:
        return None
    metric = table["metric"].combine_chunks()
    metrics, codes = metric.dictionary.to_pylist(), metric.indices.to_numpy()
    value, rows = table["value"].to_numpy(), np.arange(len(codes))
    first, last = np.empty((2, len(metrics)), dtype=np.intp)
    last[codes] = rows  # of equal indices the last assignment counts
    first[codes[::-1]] = rows[::-1]
    values = {
        **{name: table[name][-1].as_py() for name in ("transitions", "gradient_steps")},
        **dict(zip(metrics, value[last].tolist(), strict=True)),
        **{START + n: x for n, x in zip(metrics, value[first].tolist(), strict=True)},
    }
    (chosen,) = (codes == (metrics.index(CURVE) if CURVE in metrics else -1)).nonzero()
    return values, [table[name].to_numpy()[chosen] for name in (*BUDGETS, "value")]


def _curves(found: list[tuple[str, list[np.ndarray]]]) -> pd.DataFrame:
    """``Ends.curves`` of the columns that ``_ends`` found for each run."""
    empty = [
        np.empty(0, METRIC_SCHEMA.field(n).type.to_pandas_dtype()) for n in (*BUDGETS, "value")
    ]
    columns = [np.concatenate(parts) for parts in zip(empty, *(c for _, c in found), strict=True)]
    names = np.array([name for name, _ in found], dtype=object)
    names = names.repeat([len(c[0]) for _, c in found])
    curves = pd.DataFrame({"run": names, **dict(zip([*BUDGETS, "success"], columns, strict=True))})
    return curves.drop_duplicates(["run", "transitions"], keep="last", ignore_index=True)


def _problems(path: Path) -> pa.Table | None:
    """Problems and successes of the last evaluation on test."""
    columns = ["split", "transitions", "problem_id", "success"]
    table = _read(path / "eval.parquet", columns)
    if table is None:
        return None
    table = table.filter(pc.equal(table["split"], "test"))
    last = pc.equal(table["transitions"], pc.max(table["transitions"]))
    return table.filter(last).select(columns[2:])


def _read(
    path: Path, columns: list[str] | None = None, dictionaries: list[str] | None = None
) -> pa.Table | None:
    """A table, or some of its columns, those of ``dictionaries`` as such; None without the file."""
    if not path.exists():
        return None
    try:
        # ParquetFile, for read_table would take a folder called a=b for a column.
        with pq.ParquetFile(path, read_dictionary=dictionaries, pre_buffer=False) as file:
            found = file.schema_arrow.names
            if not set(columns or ()) <= set(found):
                raise RecordError(f"{path}: columns {found}, expected {columns}")
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
