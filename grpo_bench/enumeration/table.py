"""A table of the oracle: rows of labels and numbers, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from grpo_bench.report.text.numbers import share, significant
from grpo_bench.report.text.writers import Column

DECIMALS = 10  # further digits may differ between machines

MEASURES = {
    "scale": "of the expected step along the true gradient, 1 is right",
    "cosine": "of the angle between them",
    "error": "length of their difference, over that of the true gradient",
    "turned": "the same after the best rescaling, which a learning rate can do",
    "variance": "of the step (trace of the covariance, problems given) times its rollouts, over "
    "the squared length of the true gradient",
    "noise": "the same over the squared length of the expected step: so many rollouts make signal "
    "and noise equal",
    "flat": "share of the groups whose returns are all equal",
}


@dataclass
class Table:
    """Rows of labels and numbers, and how to show them.

    Attributes:
        name: of its files.
        labels: the columns that identify a row; a column's name is its title.
        columns: the numbers to show; rows may hold more.
        reading: what the columns mean.
    """

    name: str
    caption: str
    labels: Sequence[str]
    columns: Sequence[Column]
    reading: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    footnotes: list[str] = field(default_factory=list)

    def add(self, labels: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        """One row; the numbers are rounded to ``DECIMALS``."""
        # + 0.0: no minus zero
        self.rows.append({**labels, **{k: round(x, DECIMALS) + 0.0 for k, x in numbers.items()}})

    def numbers(self) -> pd.DataFrame:
        """All rows with all their numbers; NaN where one does not exist."""
        return pd.DataFrame(self.rows)

    def shown(self) -> pd.DataFrame:
        """The table as strings, with the ``attrs`` that ``writers.markdown`` needs."""
        numbers = self.numbers()
        shown = numbers[[*self.labels]].astype(str)
        for column in self.columns:
            shown[column.title] = [column.cell(row) for row in numbers.to_dict("records")]
        shown.attrs = {
            "caption": self.caption,
            "header": "",  # the numbers depend on no machine
            "reading": self.reading,
            "footnotes": self.footnotes,
        }
        return shown


def number(x: float) -> str:
    """x with three significant figures and at most four decimals. ``0`` is zero up to rounding;
    ``0.0000`` is small."""
    return f"{x:.4f}" if 0 < abs(x) < 0.1 else significant(x)


def measures(*names: str) -> tuple[list[Column], str]:
    """The columns of some measures, and the sentence that explains them."""
    meaning = "; ".join(f"{name}: {MEASURES[name]}" for name in names)
    forms = {"cosine": share, "flat": share}
    return [
        Column(name, name, forms.get(name, number)) for name in names
    ], f"{meaning[0].upper()}{meaning[1:]}."
