"""The tables of each folder of records in results/reference, in its folder ``tables``."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.report.text.writers import written
from tools.reference.committed import RESULTS, Committed


def record_tables(committed: Committed) -> dict[Path, str]:
    """The tables as Markdown, CSV and LaTeX."""
    return {
        RESULTS / folder.name / "tables" / name: text
        for folder in committed.folders()
        for name, text in written(committed.tables(folder.name)).items()
    }
