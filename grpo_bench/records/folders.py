"""Reading the folders of runs: one after another, each with its manifest and what is asked of its
tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo_bench.records.files import read_parquet
from grpo_bench.records.schema import (
    BUDGETS,
    CURVE,
    METRIC_SCHEMA,
    START,
    Manifest,
    RecordError,
    is_run,
    read_manifest,
    run_order,
)
from grpo_bench.records.whole import check_present


@dataclass(frozen=True)
class Record:
    """A run's record, or that there is one that cannot be read.

    name: ``<env>/<algo>/<slug>-<hash8>``, where its folder lies.
    manifest: None if the record cannot be read.
    problem: why that is so, "" if it can.
    found: what was read of its tables.
    """

    name: str
    manifest: Manifest | None
    problem: str = ""
    found: Any = None

    @property
    def rank(self) -> tuple[bool, str]:
        """See ``Manifest.rank``; a record that cannot be read has the lowest."""
        return (False, "") if self.manifest is None else self.manifest.rank


def run_names(folder: Path) -> list[str]:
    """The names of the runs whose folders lie under ``folder``, in the order of runs."""
    names = (path.relative_to(folder).as_posix() for path in folder.glob("*/*/*"))
    return sorted(filter(is_run, names), key=run_order)


def read_folders(folder: Path, read: Callable[[Path], Any]) -> list[Record]:
    """The records in the folders of runs under ``folder``, in the order of runs, with what ``read``
    finds in each; where that raises RecordError the record is one that cannot be read."""
    records = []
    for name in run_names(folder):
        path = folder / name
        try:
            manifest = read_manifest(path)
            if manifest.status == "ok":
                check_present(path)
            records.append(Record(name, manifest, "", read(path)))
        except RecordError as error:
            problem = str(error).replace(f"{path}", name)  # the same words wherever it lies
            records.append(Record(name, None, problem))
    return records


# -- what is read ---------------------------------------------------------------------------------


def read_summary(path: Path) -> tuple[dict[str, float], list[np.ndarray]] | None:
    """A run's row of ``RunSummaries.values``, and the ``BUDGETS`` and values of its rows of
    ``CURVE``, each (n,); None where a run has no metrics."""
    names = METRIC_SCHEMA.names
    table = read_parquet(path / "metrics.parquet", names, dictionaries=["metric"])
    if table is None or not table.num_rows:
        return None
    metric = table["metric"].combine_chunks()
    metrics, codes = metric.dictionary.to_pylist(), metric.indices.to_numpy()
    value, rows = table["value"].to_numpy(), np.arange(len(codes))
    first, last = np.empty((2, len(metrics)), dtype=np.intp)
    last[codes] = rows  # of equal indices the last assignment counts
    first[codes[::-1]] = rows[::-1]
    values = {
        **{name: table[name][-1].as_py() for name in BUDGETS[:2]},
        **dict(zip(metrics, value[last].tolist(), strict=True)),
        **{START + n: x for n, x in zip(metrics, value[first].tolist(), strict=True)},
    }
    (chosen,) = (codes == (metrics.index(CURVE) if CURVE in metrics else -1)).nonzero()
    return values, [table[name].to_numpy()[chosen] for name in (*BUDGETS, "value")]


def read_problems(path: Path) -> pa.Table | None:
    """Of a run's folder the last evaluation of each split, in the columns of eval.parquet; None
    without that file."""
    table = read_parquet(path / "eval.parquet")
    if table is None:
        return None
    splits = pc.unique(table["split"]).to_pylist()
    return pa.concat_tables(
        [table.schema.empty_table(), *(_last_of(table, split) for split in sorted(splits))]
    )


def _last_of(table: pa.Table, split: str) -> pa.Table:
    """The last evaluation of a split: the rows after the same transitions as the last one, of those
    the last of each problem, in the order of problems."""
    table = table.filter(pc.equal(table["split"], split))
    newest = (table["transitions"].to_numpy() == table["transitions"][-1].as_py()).nonzero()[0]
    _, back = np.unique(table["problem_id"].to_numpy()[newest][::-1], return_index=True)
    return table.take(newest[::-1][back])
