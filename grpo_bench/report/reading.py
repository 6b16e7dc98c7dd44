"""From a folder of records to its tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from grpo_bench.records.load import Ends, load_ends, load_problems
from grpo_bench.report.tables import build_tables

# Runs of whose test problems each is read. A run's are up to 10,000; those of 10,000 runs would
# take minutes and gigabytes, and what a permutation test can tell does not need more seeds.
MOST_PAIRED = 500


def read_records(folder: Path) -> tuple[Ends, pd.DataFrame | None]:
    """What tables are made of: ``load_ends``, and ``load_problems`` of no more than
    ``MOST_PAIRED`` runs.

    Raises:
        FileNotFoundError: there is no run in it.
    """
    ends = load_ends(folder)
    return ends, load_problems(folder) if len(ends.runs) <= MOST_PAIRED else None


def make_tables(folder: Path, reference: str | None = None) -> dict[str, pd.DataFrame]:
    """The tables of all records under a folder, by name, in numbers; see ``build_tables``.

    Raises:
        FileNotFoundError: there is no run in it.
        ValueError: there is no run of ``reference``.
    """
    ends, problems = read_records(folder)
    return build_tables(ends, reference, problems)
