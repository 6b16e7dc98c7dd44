"""The charts of the page as files: PNG and SVG, by matplotlib.

Each file names a digest of the numbers that it shows. So a figure can be told from a stale one
without drawing it anew: the same numbers give the same digest, while the bytes of a file depend on
the version of matplotlib as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from grpo_bench.report.contents import Report, Section, recorded_parts
from grpo_bench.report.plots import (
    Panel,
    name_of,
    panels,
    trade_rows,
    trades_of,
)
from grpo_bench.report.writers import csv

FORMATS = ("png", "svg")
SHOWN_AXES = ("transitions", "seconds")  # of learning curves, side by side
DIGEST = "data sha256 "  # what stands before a digest in a file
_DIGEST = re.compile(rf"{DIGEST}([0-9a-f]{{64}})".encode())


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


def figures(report: Report) -> dict[str, bytes]:
    """All figures by file name: of each section ``<section>-curves-<env>``, ``<section>-memory``,
    ``<section>-profiles`` and ``<section>-summary``, and ``memory`` of the report, as ``.png`` and
    ``.svg``; what has nothing to show is left out."""
    from grpo_bench.report.drawing import draw  # matplotlib takes half a second

    files: dict[str, bytes] = {}
    for plan in plans(report):
        drawn = draw(plan, DIGEST + plan.digest)
        files |= {f"{plan.name}.{form}": drawn[form] for form in FORMATS}
    return files


def expected_digests(report: Report) -> dict[str, str]:
    """The digest of each of the ``figures``, without drawing them."""
    return {f"{plan.name}.{form}": plan.digest for plan in plans(report) for form in FORMATS}


def figure_digest(data: bytes) -> str | None:
    """The digest that a PNG or an SVG names; None if it names none."""
    found = _DIGEST.search(data)
    return found[1].decode() if found else None


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
