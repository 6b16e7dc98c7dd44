"""The committed records: each folder is read once, and its tables are made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from grpo_bench.records.load import RunSummaries, has_records
from grpo_bench.report.folder import read_records
from grpo_bench.report.tables import build_tables

RESULTS = Path("results/reference")  # records, and what is made of them
BENCHMARKS = RESULTS / "benchmarks"  # tables that benchmarks/ has measured
TRIALS = "tuning"  # records with tables of their own, see ``tuning_tables``

Read = tuple[RunSummaries, pd.DataFrame | None]


@dataclass(frozen=True)
class Committed:
    """The records in a checkout at ``root``. What is read or made stays in memory, since several
    steps use it."""

    root: Path
    _read: dict[str, Read] = field(default_factory=dict)
    _tables: dict[str, dict[str, pd.DataFrame]] = field(default_factory=dict)

    def folders(self) -> list[Path]:
        """The folders of records, without the trials of the tuning."""
        found = sorted((self.root / RESULTS).iterdir())
        return [folder for folder in found if folder.name != TRIALS and has_records(folder)]

    def read(self, name: str) -> Read:
        """The records of a folder, as ``read_records`` gives them.

        Raises:
            FileNotFoundError: there are no records in it.
        """
        if name not in self._read:
            self._read[name] = read_records(self.root / RESULTS / name)
        return self._read[name]

    def tables(self, name: str) -> dict[str, pd.DataFrame]:
        """The tables of a folder of records, in numbers.

        Raises:
            FileNotFoundError: there are no records in it.
        """
        if name not in self._tables:
            summaries, problems = self.read(name)
            self._tables[name] = build_tables(summaries, None, problems)
        return self._tables[name]
