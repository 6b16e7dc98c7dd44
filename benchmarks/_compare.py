"""Shared by all benchmarks: interleaved measurements, ratios with their spread, and tables.

Times drift: the clock slows down, another process wakes up. So subjects alternate, A B C A B C ...,
and each ratio is taken within one turn, where both sides drift alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from grpo_bench.meter import provenance
from grpo_bench.records.files import write_atomically
from grpo_bench.report import csv, markdown
from grpo_bench.report.text.numbers import significant
from grpo_bench.report.text.origin import header
from grpo_bench.report.text.writers import Column
from grpo_bench.stats import Interval, paired_ratio_interval

T = TypeVar("T")
READING = (
    "Measured values and ratios: median and [smallest, largest] of {repeats} turns. A ratio is "
    "taken within each turn. Mean ratio: geometric mean with its 95 % interval (Student's t on the "
    "logarithms)."
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with the options of every benchmark: ``--repeats`` and ``--out``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--repeats", type=turns, default=5, help="turns; use 5 or more")
    made.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder")
    return made


def turns(text: str) -> int:
    """A number of turns. Raises ArgumentTypeError below 2: one turn gives no interval."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 2")
    return int(text)


def progress(what: str) -> None:
    """Print to stderr what is being measured; stdout is for the tables."""
    print(what, file=sys.stderr, flush=True)


def interleaved(subjects: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """Measure every subject once per turn. Subjects are called with the number of the turn."""
    measured: dict[str, list[T]] = {name: [] for name in subjects}
    for turn in range(repeats):
        for name, measure in subjects.items():
            measured[name].append(measure(turn))
    return measured


@dataclass(frozen=True)
class Target:
    """A limit for a ratio, and whether it was met."""

    what: str
    wanted: str
    verdict: str  # met, missed or open
    estimate: float = math.nan
    low: float = math.nan
    high: float = math.nan
    median: float = math.nan  # of the turns
    note: str = ""

    def __str__(self) -> str:
        found = ""
        if not math.isnan(self.estimate):
            numbers = map(significant, (self.estimate, self.low, self.high))
            found = " {} [{}, {}]".format(*numbers)
        note = f"; {self.note}" if self.note else ""
        return f"Target {self.verdict}: {self.what}{found}, wanted {self.wanted}{note}"


@dataclass
class Table:
    """Rows of labels and numbers, and how to print them.

    Attributes:
        labels: titles of the columns that name what was measured.
        columns: the measured values, then the ratio.
        reading: how to read the numbers; ``{repeats}`` stands for the number of turns.
        rows: a dict for each row: its labels and, for each column, the value and its bounds.
        targets: limits for the numbers; printed before the other footnotes.
    """

    caption: str
    labels: Sequence[str]
    columns: Sequence[Column]
    repeats: int
    reading: str = READING
    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    footnotes: list[str] = field(default_factory=list)

    def add(self, labels: Mapping[str, Any], *numbers: Mapping[str, float]) -> None:
        """Add a row: its labels, and results of ``spread`` and ``ratio``."""
        row = dict(labels)
        for part in numbers:
            row |= part
        self.rows.append(row)

    def numbers(self) -> pd.DataFrame:
        """All rows at full precision; NaN where a row lacks a number."""
        names = [*self.labels]
        for column in self.columns:
            ends = ("", "_low", "_high") if column.interval else ("",)
            names += [column.name + end for end in ends]
        return pd.DataFrame(self.rows).reindex(columns=names)

    def shown(self) -> pd.DataFrame:
        """The table for readers."""
        numbers = self.numbers()
        shown = numbers[[*self.labels]].astype(str)
        for column in self.columns:
            shown[column.title] = [column.cell(row) for row in numbers.to_dict("records")]
        origin = pd.DataFrame([asdict(provenance()) | {"status": "ok", "concurrency": 1}])
        shown.attrs = {
            "caption": self.caption,
            "header": header(origin),
            "reading": self.reading.format(repeats=self.repeats),
            "footnotes": [*map(str, self.targets), *self.footnotes],
        }
        return shown

    def write(self, out: Path, name: str) -> None:
        """Write ``name.md`` and ``name.csv`` to a folder, and ``name_targets.csv`` if there are
        targets. Print the markdown."""
        out.mkdir(parents=True, exist_ok=True)
        shown = self.shown()
        text = markdown(shown)
        write_atomically(out / f"{name}.md", text.encode())
        write_atomically(out / f"{name}.csv", csv(self.numbers()).encode())
        if self.targets:
            targets = pd.DataFrame([asdict(target) for target in self.targets])
            targets["measured"] = shown.attrs["header"]
            write_atomically(out / f"{name}_targets.csv", csv(targets).encode())
        print(text)


def ratio_columns(title: str) -> list[Column]:
    """The two columns of ``ratio``: its spread over the turns, and its mean."""
    return [
        Column(title, "ratio_median", significant, interval=True),
        Column("mean ratio", "ratio", significant, interval=True),
    ]


def bounds(name: str, interval: Interval) -> dict[str, float]:
    """An interval in the form that ``Table.add`` takes."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Median, smallest and largest turn, as ``name``, ``name_low`` and ``name_high``."""
    x = np.array(list(values), dtype=np.float64)
    return {
        name: float(np.median(x)),
        f"{name}_low": float(x.min()),
        f"{name}_high": float(x.max()),
    }


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """a / b turn by turn: ``ratio_median`` with the smallest and largest, and ``ratio``, the
    geometric mean with its 95 % interval. a and b have one positive value per turn."""
    mean = paired_ratio_interval(a, b)
    each = spread("ratio_median", np.array(a) / np.array(b))
    return each | {"ratio": mean.estimate, "ratio_low": mean.low, "ratio_high": mean.high}


def verdict(
    what: str,
    found: Mapping[str, float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    name: str = "ratio",
) -> Target:
    """Compare a result of ``ratio`` or ``spread`` with a limit: met if the whole interval meets it,
    missed if no part does, else open."""
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    if at_least is not None:
        met, missed, wanted = low >= at_least, high < at_least, f"at least {at_least:,.9g}"
    else:
        assert at_most is not None, "verdict() needs at_least or at_most"
        met, missed, wanted = high <= at_most, low > at_most, f"at most {at_most:,.9g}"
    word = "met" if met else "missed" if missed else "open"
    median = found.get(f"{name}_median", found[name])
    return Target(what, wanted, word, found[name], low, high, median)
