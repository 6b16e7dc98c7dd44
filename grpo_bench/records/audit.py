"""Audit of a folder of records: is each run complete, readable and what it says it is?"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from grpo_bench.records.files import read_parquet
from grpo_bench.records.schema import Manifest, RecordError, read_manifest, run_folder
from grpo_bench.records.store import holder
from grpo_bench.records.whole import check_present

ROUNDING = 1e-9  # of a mean that is summed in another order


def problems(folder: Path, results: Path) -> Iterator[str]:
    """What is wrong with the record of a run; nothing if it is whole. A run that failed, or has not
    begun, is no problem; one that was cut off is.

    Args:
        folder: of the run.
        results: the folder of all runs.
    """
    try:
        manifest = read_manifest(folder)
        alive = holder(folder) is not None
    except RecordError as error:
        yield str(error)
        return
    if run_folder(results, manifest.config) != folder:
        right = run_folder(results, manifest.config).name
        yield f"{folder}: its configuration is that of {right}: expected it there"
    for file in sorted(folder.glob(".*.tmp")):
        if not alive:
            yield f"{file}: left by a process that was killed"
    if manifest.status == "running" and not alive:
        yield f"{folder}: cut off; the same command goes on with it"
    if manifest.status == "ok":
        try:
            check_present(folder)
            yield from table_problems(folder, manifest)
        except RecordError as error:
            yield str(error)
        yield from model_problems(folder)


def table_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the tables of a run that is ok.

    Raises:
        RecordError: one cannot be read.
    """
    metrics = read_parquet(folder / "metrics.parquet")
    rows = read_parquet(folder / "eval.parquet")
    assert metrics is not None and rows is not None
    place = folder / "metrics.parquet"
    transitions = metrics["transitions"].to_pylist()
    if transitions != sorted(transitions):
        yield f"{place}: transitions go back: expected them in order"
    budget = manifest.config["budget"]
    wanted = budget.get("transitions", 0)
    if (transitions or [0])[-1] < wanted:
        yield f"{place}: ends after {(transitions or [0])[-1]} transitions, expected {wanted}"
    last = dict(zip(metrics["metric"].to_pylist(), metrics["value"].to_pylist(), strict=True))
    bad = [name for name, value in last.items() if not math.isfinite(value)]
    if bad:
        yield f"{place}: {', '.join(bad)} not finite at the end"
    for split in {budget.get("split"), *(["test"] if budget.get("test") else [])} - {None}:
        yield from evaluation_problems(folder, rows, split, last)


def evaluation_problems(
    folder: Path, rows: Any, split: str, last: dict[str, float]
) -> Iterator[str]:
    """Whether the means of the last evaluation on a split are those of its rows."""
    mine = rows.filter(pc.equal(rows["split"], split))
    if not len(mine):
        yield f"{folder / 'eval.parquet'}: no evaluation on {split}"
        return
    final = mine.filter(pc.equal(mine["transitions"], pc.max(mine["transitions"])))
    for name in ("success", "reward"):
        mean, said = pc.mean(final[name]).as_py(), last.get(f"eval/{split}/{name}", math.nan)
        if not abs(mean - said) <= ROUNDING * max(1.0, abs(mean)):
            yield f"{folder}: eval/{split}/{name} is {said}, and the mean of its rows {mean}"


def model_problems(folder: Path) -> Iterator[str]:
    """Whether the saved model of a run, if there is one, can be unpacked."""
    saved = folder / "checkpoint" / "model.zip"
    if not saved.exists():
        return
    try:
        with zipfile.ZipFile(saved) as archive:
            # half of the file may end with an archive too: that of the weights, which is inside
            bad = archive.testzip() or ("data" not in archive.namelist() and "cut off")
    except (OSError, zipfile.BadZipFile) as error:
        bad = str(error)
    if bad:
        yield f"{saved}: damaged ({bad})"
