"""Evidence for and against a claim: rows of a table, and on which side of a threshold they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import pandas as pd

from grpo_bench.report.text.numbers import significant
from grpo_bench.stats import Interval, Spread, deviation_ratio_interval

Side = Literal["passes", "fails", "cannot tell"]
SPREAD = ("sd", "kurtosis")  # the columns of a spread, after the name of the value
Filter = dict[str, Any]  # columns, and their value or a list of those that will do; * in a text


@dataclass(frozen=True)
class Evidence:
    """Some rows of a table, what is read in them, and what that has to be for the claim to hold.

    what: what is measured, and where.
    only_if: a condition in words that all of its rows share: "PPO has a critic of its own".
    short: the same in a few words, for the table of verdicts. Evidence of one kind shares them.
    table: its path below the folder of reference results.
    value: a column. With ``<value>_low`` and ``<value>_high`` beside it, it has an interval;
        without them it is exact, as a count or an enumeration is.
    label: how a row is called, with columns in braces: ``"{env}, {budget}"``.
    rows: which rows count; {}: all.
    over: the rows that those are divided by: of equal values in the columns ``same``. In a label
        their columns are ``over_<column>``.
    spread: compare the standard deviations over the seeds, the columns ``<value>_sd`` and
        ``<value>_kurtosis``, instead of the values.
    beside: a column to show with the value.
    """

    what: str
    only_if: str
    short: str
    table: str
    value: str
    label: str
    at_least: float | None = None
    at_most: float | None = None
    rows: Filter = field(default_factory=dict)
    over: Filter | None = None
    same: Sequence[str] = ()
    spread: bool = False
    beside: str | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"evidence {self.what!r}: expected either at_least or at_most")
        if (self.over is None) != (not self.same) or (self.spread and self.over is None):
            raise ValueError(f"evidence {self.what!r}: expected over and same together, or neither")

    @property
    def wanted(self) -> str:
        """The threshold in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}"


@dataclass(frozen=True)
class Row:
    """A row of the evidence.

    n: seeds; None where the table does not say.
    beside: NaN where nothing is to be shown, or there is none.
    """

    label: str
    interval: Interval
    n: int | None
    side: Side
    beside: float


def rows_of(evidence: Evidence, table: pd.DataFrame | None) -> list[Row]:
    """The rows that count and have a number, in the table's order; none without the table.

    Raises:
        ValueError: the table lacks a column that the evidence names.
    """
    if table is None:
        return []
    counted = _chosen(evidence, table, evidence.rows)
    if evidence.over is not None:
        _need(evidence, table, [*evidence.same])
        divisors = _chosen(evidence, table, evidence.over).add_prefix("over_")
        keys = [f"over_{name}" for name in evidence.same]
        counted = counted.merge(divisors, left_on=[*evidence.same], right_on=keys)
    deviations = [f"{evidence.value}_{of}" for of in SPREAD] + ["ok"] if evidence.spread else []
    _need(evidence, table, [evidence.value, *deviations])
    found = []
    for row in counted.to_dict("records"):
        interval = _interval(evidence, row)
        if not math.isnan(interval.estimate):
            n = int(row["ok"]) if "ok" in row else None
            beside = math.nan if evidence.beside is None else _column(evidence, row)
            label = _label(evidence, row)
            found.append(Row(label, interval, n, side(evidence, interval), beside))
    return found


def side(evidence: Evidence, interval: Interval) -> Side:
    """Where the whole interval lies; a number of too few seeds for an interval cannot tell."""
    _, low, high = interval
    if evidence.at_least is not None:
        passes, fails = low >= evidence.at_least, high < evidence.at_least
    else:
        assert evidence.at_most is not None
        passes, fails = high <= evidence.at_most, low > evidence.at_most
    return "passes" if passes else "fails" if fails else "cannot tell"


def measured(row: Row, beside: str | None) -> str:
    """The number with its interval if there is one, and with the column ``beside``."""
    estimate, low, high = row.interval
    text = significant(estimate)
    if low < high:
        text += f" [{significant(low)}, {significant(high)}]"
    if beside is not None and not math.isnan(row.beside):
        text += f", {beside} {significant(row.beside)}"
    return text


def _chosen(evidence: Evidence, table: pd.DataFrame, wanted: Filter) -> pd.DataFrame:
    _need(evidence, table, list(wanted))
    for column, values in wanted.items():
        some = values if isinstance(values, list) else [values]
        table = table[[any(_matches(cell, value) for value in some) for cell in table[column]]]
    return table


def _matches(cell: Any, value: Any) -> bool:
    """Whether they are equal, or of texts whether the pattern ``value`` describes the cell."""
    if isinstance(cell, str) and isinstance(value, str):
        return fnmatchcase(cell, value)
    return bool(cell == value)


def _need(evidence: Evidence, table: pd.DataFrame, columns: list[str]) -> None:
    for column in columns:
        if column not in table.columns:
            raise ValueError(
                f"evidence {evidence.what!r}: no column {column!r} in {evidence.table}, "
                f"expected one of {', '.join(map(str, table.columns))}"
            )


def _label(evidence: Evidence, row: dict[Any, Any]) -> str:
    try:
        return evidence.label.format_map(row)
    except KeyError as error:
        raise ValueError(
            f"evidence {evidence.what!r}: label={evidence.label!r} names {error}, "
            f"expected columns of {evidence.table}: {', '.join(map(str, row))}"
        ) from None


def _column(evidence: Evidence, row: dict[Any, Any]) -> float:
    if evidence.beside not in row:
        raise ValueError(
            f"evidence {evidence.what!r}: no column {evidence.beside!r} in {evidence.table}"
        )
    return float(row[evidence.beside])


def _interval(evidence: Evidence, row: dict[Any, Any]) -> Interval:
    """What is tested in a row: a value, a ratio, or a ratio of standard deviations."""
    mine = _read(row, evidence.value)
    if evidence.over is None:
        return mine
    its = _read(row, f"over_{evidence.value}")
    if evidence.spread:
        own, other = (_spread(row, evidence.value, over) for over in ("", "over_"))
        return deviation_ratio_interval(own, other)
    if f"{evidence.value}_low" in row:
        raise ValueError(
            f"evidence {evidence.what!r}: {evidence.value} has intervals, which do not say how it "
            "is paired: expected a column that is a ratio itself, or exact values"
        )
    return Interval(*[mine.estimate / its.estimate] * 3)


def _spread(row: dict[Any, Any], name: str, over: str) -> Spread:
    deviation, kurtosis = (float(row[f"{over}{name}_{of}"]) for of in SPREAD)
    return Spread(int(row[f"{over}ok"]), deviation, kurtosis)


def _read(row: dict[Any, Any], name: str) -> Interval:
    names = (name, f"{name}_low", f"{name}_high")
    return Interval(*(float(row.get(key, row[name])) for key in names))
