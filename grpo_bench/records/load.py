"""All records under a folder as three data frames."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

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


def load_results(folder: Path | str) -> Results:
    """Read every record under ``folder``, whatever its status.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    folder = Path(folder)
    paths = sorted((p for p in folder.glob("*/*/*") if _FOLDER.fullmatch(p.name)), key=_order)
    if not paths:
        raise FileNotFoundError(
            f"no runs under {folder}: expected folders <env>/<algo>/<budget>-seed<n>-<hash>, "
            f"which python -m grpo_bench.run makes"
        )
    runs: list[dict[str, Any]] = []
    metrics: list[pd.DataFrame] = []
    evaluations: list[pd.DataFrame] = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            manifest = read_manifest(path)
            tables = [_read(path / "metrics.parquet"), _read(path / "eval.parquet")]
        except RecordError as error:
            problem = str(error).replace(f"{path}", name)  # the same words wherever it lies
            runs.append(_unreadable(path, name, problem))
            continue
        runs.append(_row(name, manifest))
        for frames, table in zip((metrics, evaluations), tables, strict=True):
            if table is not None:
                frames.append(_keyed(table, runs[-1]))
    return Results(
        pd.DataFrame(runs),
        _joined(metrics, METRIC_SCHEMA.names),
        _joined(evaluations, EVAL_SCHEMA.names),
    )


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
        **({f.name: None for f in fields(Provenance)} if origin is None else asdict(origin)),
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


def _read(path: Path) -> pa.Table | None:
    if not path.exists():
        return None
    try:
        # ParquetFile, for read_table would take a folder called a=b for a column.
        with pq.ParquetFile(path) as file:
            return file.read()
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
