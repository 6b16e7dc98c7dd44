"""Which figures a report has, with the numbers in each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from grpo_bench.report.contents import Report, Section, recorded_parts
from grpo_bench.report.figures.plots import Panel, name_of, panels, trade_rows, trades_of
from grpo_bench.report.text.writers import csv

SHOWN_AXES = ("transitions", "seconds")  # of learning curves, side by side


@dataclass(frozen=True)
class Plan:
    """A figure that can be drawn.

    data: all numbers in it.
    panels: of learning curves.
    order: the places of the labels of algorithms, for their colours.
    """

    name: str
    kind: Literal["curves", "memory", "profiles", "summary"]
    data: pd.DataFrame
    panels: tuple[Panel, ...]
    order: dict[str, int]

    @property
    def digest(self) -> str:
        """sha256 of the numbers as CSV, 64 hex digits."""
        return hashlib.sha256(csv(self.data).encode()).hexdigest()


def plans(report: Report) -> Iterator[Plan]:
    """All figures of a report that have something to show."""
    for section in report.sections:
        for plan in _of_section(section):
            if len(plan.data):
                yield plan
    if report.memory is not None:
        yield Plan("memory", "memory", report.memory, (), {})


def _of_section(section: Section) -> Iterator[Plan]:
    for env in dict.fromkeys(group.env for group in section.groups):
        shown = [p for axis in SHOWN_AXES for p in panels(section, axis) if p.env == env]
        if shown:
            parts = [p.curves.assign(budget=p.budget, axis=p.axis) for p in shown]
            name = name_of(section.name, "curves", env)
            yield Plan(name, "curves", pd.concat(parts), tuple(shown), section.order)
    memory = recorded_parts(section.tables["memory"])
    yield Plan(name_of(section.name, "memory"), "memory", memory, (), {})
    name = name_of(section.name, "profiles")
    yield Plan(name, "profiles", section.profiles, (), section.order)
    trades = trade_rows(trades_of([section]))
    yield Plan(name_of(section.name, "summary"), "summary", trades, (), {})
