"""Whether the record of a run that ended ok has all its numbers."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.records.files import read_parquet
from grpo_bench.records.schema import EVAL_SCHEMA, METRIC_SCHEMA, RecordError, read_manifest

TABLES = {"metrics.parquet": METRIC_SCHEMA.names, "eval.parquet": EVAL_SCHEMA.names}


def is_done(folder: Path) -> bool:
    """Whether a run need not be executed: it is ok, and its tables can be read.

    Raises:
        RecordError: the folder's manifest cannot be read.
    """
    return read_manifest(folder).status == "ok" and not damage(folder)


def damage(folder: Path) -> str:
    """Which table of a run that is ok is missing or cannot be read, and why; "" if none."""
    try:
        check_present(folder)
        for name, columns in TABLES.items():
            read_parquet(folder / name, columns)
    except RecordError as error:
        return str(error)
    return ""


def check_present(folder: Path) -> None:
    """Check that the tables of a run that is ok exist.

    Raises:
        RecordError: names the first that is missing.
    """
    for name in TABLES:
        if not (folder / name).exists():
            raise RecordError(f"{folder / name}: missing, though the run is ok")
