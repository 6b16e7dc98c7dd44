"""From a folder of records to its tables, and from tables to the files beside the records."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from grpo_bench.records.files import write_atomically
from grpo_bench.records.load import RunSummaries, load_problems, load_summaries
from grpo_bench.report.tables import build_tables
from grpo_bench.report.text.writers import written

# Runs of whose test problems each is read. A run's are up to 10,000; those of 10,000 runs would
# take minutes and gigabytes, and what a permutation test can tell does not need more seeds.
MOST_PAIRED = 500


def read_records(folder: Path) -> tuple[RunSummaries, pd.DataFrame | None]:
    """What tables are made of: ``load_summaries``, and ``load_problems`` of no more than
    ``MOST_PAIRED`` runs.

    Raises:
        FileNotFoundError: there is no run in it.
    """
    summaries = load_summaries(folder)
    return summaries, load_problems(folder) if len(summaries.runs) <= MOST_PAIRED else None


def make_tables(folder: Path, reference: str | None = None) -> dict[str, pd.DataFrame]:
    """The tables of all records under a folder, by name, in numbers; see ``build_tables``.

    Raises:
        FileNotFoundError: there is no run in it.
        ValueError: there is no run of ``reference``.
    """
    summaries, problems = read_records(folder)
    return build_tables(summaries, reference, problems)


def write_tables(tables: dict[str, pd.DataFrame], out: Path) -> None:
    """Write the tables into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in written(tables).items():
        write_atomically(out / name, text.encode())


def differing(tables: dict[str, pd.DataFrame], out: Path) -> list[Path]:
    """The files of the tables in a folder that are not there or not so."""
    texts = {out / name: text for name, text in written(tables).items()}
    return [p for p, text in texts.items() if not p.exists() or p.read_bytes() != text.encode()]
