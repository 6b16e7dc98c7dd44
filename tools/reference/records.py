"""The tables of each folder of records in results/reference, in its folder ``tables``."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.records.load import has_records
from grpo_bench.report.folder import make_tables
from grpo_bench.report.text.writers import written
from tools.reference.places import RESULTS

TRIALS = "tuning"  # what has a table of its own, see ``tuning``


def folders(root: Path) -> list[Path]:
    """The folders of records, but for the trials of the tuning."""
    found = sorted((root / RESULTS).iterdir())
    return [folder for folder in found if folder.name != TRIALS and has_records(folder)]


def files(root: Path) -> dict[Path, str]:
    """The tables as Markdown, CSV and LaTeX."""
    return {
        RESULTS / folder.name / "tables" / name: text
        for folder in folders(root)
        for name, text in written(make_tables(folder)).items()
    }
