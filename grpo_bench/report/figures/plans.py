"""The figures of a report, with the numbers in each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from grpo_bench.report.contents import Report, Section, recorded_parts
from grpo_bench.report.figures.panels import (
    IN_SUMMARY,
    CurvePanel,
    all_trades,
    curve_panels,
    interval_rows,
    slug,
)
from grpo_bench.report.text.writers import csv

CURVE_AXES = ("transitions", "seconds")  # side by side in a figure of learning curves


@dataclass(frozen=True)
class Plan:
    """A figure to draw.

    data: all numbers in it.
    panels: the learning curves; none in other figures.
    order: the places of the algorithms' colours.
    """

    name: str
    kind: Literal["curves", "memory", "profiles", "summary"]
    data: pd.DataFrame
    panels: tuple[CurvePanel, ...]
    order: dict[str, int]

    @property
    def digest(self) -> str:
        """sha256 of the numbers as CSV, 64 hex digits."""
        return hashlib.sha256(csv(self.data).encode()).hexdigest()


def figure_plans(report: Report) -> Iterator[Plan]:
    """All figures of a report that have numbers."""
    for section in report.sections:
        for plan in _of_section(section):
            if len(plan.data):
                yield plan
    if report.memory is not None:
        yield Plan("memory", "memory", report.memory, (), {})


def _of_section(section: Section) -> Iterator[Plan]:
    for env in dict.fromkeys(group.env for group in section.groups):
        panels = [p for axis in CURVE_AXES for p in curve_panels(section, axis) if p.env == env]
        if panels:
            parts = [p.curves.assign(budget=p.budget, axis=p.axis) for p in panels]
            name = slug(section.name, "curves", env)
            yield Plan(name, "curves", pd.concat(parts), tuple(panels), section.order)
    memory = recorded_parts(section.tables["memory"])
    yield Plan(slug(section.name, "memory"), "memory", memory, (), {})
    yield Plan(slug(section.name, "profiles"), "profiles", section.profiles, (), section.order)
    rows = interval_rows(all_trades([section]))
    summary = rows[rows["measure"].isin(IN_SUMMARY)]
    yield Plan(slug(section.name, "summary"), "summary", summary, (), {})
