"""What the benchmarks share: things measured in turns, ratios with their spread, one table each.

Times drift: a clock slows down, a neighbour wakes up. So the things to be compared take turns,
A B C A B C ..., and the ratio is taken within each turn, where the drift is common to both.
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
from grpo_bench.records.files import replace
from grpo_bench.report import csv, markdown
from grpo_bench.report.text.numbers import significant
from grpo_bench.report.text.origin import header
from grpo_bench.report.text.writers import Column
from grpo_bench.stats import Interval, paired_ratio_interval

T = TypeVar("T")
READING = (
    "Of measured values the median and [smallest, largest] of {repeats} turns; of ratios, taken "
    "turn by turn, the same, and the geometric mean with its 95 % interval (Student's t on the "
    "logarithms)."
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with what every benchmark takes: ``--repeats`` and ``--out``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--repeats", type=turns, default=5, help="turns; 5 or more to be believed")
    made.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder")
    return made


def turns(text: str) -> int:
    """A number of turns. Raises ArgumentTypeError for one that gives no interval."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 2")
    return int(text)


def progress(what: str) -> None:
    """Say what is being measured now, apart from the tables on the output."""
    print(what, file=sys.stderr, flush=True)


def in_turns(subjects: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """Measure every subject once in each turn; a subject is told the number of the turn."""
    measured: dict[str, list[T]] = {name: [] for name in subjects}
    for turn in range(repeats):
        for name, measure in subjects.items():
            measured[name].append(measure(turn))
    return measured


@dataclass(frozen=True)
class Target:
    """What was wanted of a ratio, and whether it came out."""

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
    """Rows of labels and numbers, and how they are shown.

    Attributes:
        labels: titles of the columns that say what was measured.
        columns: of the measured values, and last of the ratio.
        reading: how to read the numbers; ``{repeats}`` in it is the number of turns.
        rows: a dict of the labels and, for each column, its value and bounds.
        targets: what was wanted of the numbers; shown before the other footnotes.
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
        """One row: its labels, and what ``spread`` and ``ratio`` made."""
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
        """The table as people read it."""
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
        """``name.md`` and ``name.csv`` in a folder, ``name_targets.csv`` where there are targets,
        and the first on the screen."""
        out.mkdir(parents=True, exist_ok=True)
        shown = self.shown()
        text = markdown(shown)
        replace(out / f"{name}.md", text.encode())
        replace(out / f"{name}.csv", csv(self.numbers()).encode())
        if self.targets:
            targets = pd.DataFrame([asdict(target) for target in self.targets])
            targets["measured"] = shown.attrs["header"]
            replace(out / f"{name}_targets.csv", csv(targets).encode())
        print(text)


def ratio_columns(title: str) -> list[Column]:
    """The two columns that ``ratio`` fills: its spread over the turns, and its mean."""
    return [
        Column(title, "ratio_median", significant, interval=True),
        Column("mean ratio", "ratio", significant, interval=True),
    ]


def bounds(name: str, interval: Interval) -> dict[str, float]:
    """An interval as ``Table.add`` takes it."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Median, smallest and largest of the turns, as ``name``, ``name_low`` and ``name_high``."""
    x = np.array(list(values), dtype=np.float64)
    return {
        name: float(np.median(x)),
        f"{name}_low": float(x.min()),
        f"{name}_high": float(x.max()),
    }


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """a / b turn by turn: ``ratio_median`` with the smallest and largest, and ``ratio``, the
    geometric mean with the bounds of its 95 % interval. a and b: one positive value a turn."""
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
    """Holds what ``ratio`` or ``spread`` found, under its name, against one of the two targets: met
    if the whole interval meets it, missed if none of it does, else open."""
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    if at_least is not None:
        met, missed, wanted = low >= at_least, high < at_least, f"at least {at_least:,.9g}"
    else:
        assert at_most is not None, "verdict() needs at_least or at_most"
        met, missed, wanted = high <= at_most, low > at_most, f"at most {at_most:,.9g}"
    word = "met" if met else "missed" if missed else "open"
    median = found.get(f"{name}_median", found[name])
    return Target(what, wanted, word, found[name], low, high, median)
