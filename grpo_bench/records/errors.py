"""Why runs did not end ok: the type and first line of their exceptions."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.records.archive import RUNS
from grpo_bench.records.files import read_parquet
from grpo_bench.records.schema import is_run
from grpo_bench.records.texts import reason_of


def load_errors(folder: Path | str) -> dict[str, str]:
    """The reason in error.txt of each run under ``folder`` that has one, by the run's name.

    Raises:
        RecordError: an archive is damaged.
    """
    folder = Path(folder)
    texts: dict[str, str] = {}
    packed = read_parquet(folder / RUNS, ["run", "error"])
    if packed is not None:
        texts |= {row["run"]: row["error"] for row in packed.to_pylist() if row["error"]}
    for path in folder.glob("*/*/*/error.txt"):
        name = path.parent.relative_to(folder).as_posix()
        if is_run(name):
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
    return {name: reason_of(text) for name, text in texts.items()}
