"""The parts of the page that have charts: learning curves, memory, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from grpo_bench.report.contents import OWN, Section, recorded_parts
from grpo_bench.report.figures.plots import (
    AXES,
    Panel,
    bytes_unit,
    component_places,
    memory_panels,
    of_the_algorithm,
    panels,
    profile_panels,
    told,
)
from grpo_bench.report.page import charts, records
from grpo_bench.report.page.elements import Markup, element, join
from grpo_bench.report.text.numbers import significant

NEGLIGIBLE = 0.01  # of a process: a part that cannot decide its peak
CURVE_COLUMNS = ("x", "success", "success_low", "success_high")
PROFILE = ("tau", "share", "low", "high")
PROFILE_AXES = ("normalised score τ", "share of runs above τ")
CURVES_READING = (
    "Success on the validation split while a run learns: the mean over the seeds that ended ok, "
    "with its 95 % interval as a band. Each budget is counted from the beginning of training."
)
MEMORY_READING = (
    "Means over the seeds that ended ok. The rest of a process is its peak less the parts that are "
    "counted: interpreter, libraries, environment, activations."
)
MEMORY_APART = (
    "A process for each bar, measured apart from the records: first all that it held at its peak, "
    "then, of that and in a unit of its own, what the algorithm holds all the time."
)
PROFILES_READING = (
    "Share of the runs whose normalised score (0 is random, 1 is perfect) is above τ, the mean "
    "over the tasks, with its 95 % interval. Higher is better everywhere along the axis."
)


def curves(section: Section) -> Markup | None:
    """Learning curves with their switches: which budget is counted, and which rows are drawn."""
    drawn = {axis: found for axis in AXES if (found := panels(section, axis))}
    if not drawn:
        return None
    group = records.section_anchor(section)
    axes = [
        element(
            "label",
            element("input", type="radio", name=f"{group}-axis", value=axis, checked=i == 0),
            found[0].words,
        )
        for i, (axis, found) in enumerate(drawn.items())
    ]
    parts = [
        element(
            "div",
            element("h4", f"Over {found[0].words}"),
            element("div", *(_curve(section, panel) for panel in found), class_="panels"),
            class_="axis",
            data_axis=axis,
        )
        for axis, found in drawn.items()
    ]
    return element(
        "div",
        element("h3", "Learning curves"),
        element("p", CURVES_READING, class_="reading"),
        element("fieldset", element("legend", "Budget"), *axes, class_="axes controls"),
        _legend(section.order),
        *parts,
        class_="plots",
    )


def memory_apart(parts: pd.DataFrame) -> Markup:
    """What processes held that were measured apart from the records."""
    largest = parts.loc[parts["component"] == OWN["critic"], "bytes"].max()
    least = parts.groupby(["env", "algo"])["bytes"].sum().min()
    reading = element("p", MEMORY_APART, " ", _critics(largest, least), class_="reading")
    return join(reading, memory(parts))


def memory(parts: pd.DataFrame) -> Markup:
    """Bars of what processes held: all of it, and what an algorithm holds all the time."""
    places = component_places(parts)
    names = [join(charts.patch(i), name) for name, i in places.items()]
    keys = element("ul", *(element("li", name) for name in names), class_="legend")
    figures = []
    for title, rows in memory_panels(parts):
        figures.append(_bars(f"{title}: the whole process", rows, places))
        own = of_the_algorithm(rows)
        if len(own):
            figures.append(_bars(f"{title}: of that, networks, optimiser and rollout", own, places))
    return join(keys, element("div", *figures, class_="panels pairs"))


def of_records(section: Section) -> Markup:
    """What the processes of a section held, as their records have it."""
    table = section.tables["memory"]
    parts = recorded_parts(table)
    if parts.empty:
        return join()
    rows = table[(table["critic_bytes"] > 0) & (table["peak_bytes"] > 0)]
    critics = _critics(rows["critic_bytes"].max(), rows["peak_bytes"].min())
    return join(
        element("h3", "Memory"),
        element("p", MEMORY_READING, " ", critics, class_="reading"),
        memory(parts),
    )


def profiles(section: Section) -> Markup | None:
    """The share of runs above each score, over all tasks."""
    figures = []
    shown: dict[str, int] = {}
    for title, rows in profile_panels(section.profiles):
        lines = [
            _line(section, str(algo), some, PROFILE)
            for algo, some in rows.groupby("algo", sort=False)
        ]
        shown |= {line.label: line.index for line in lines}
        chart = charts.line_chart(lines, (rows["tau"].min(), 1.0), 1.0, *PROFILE_AXES)
        figures.append(element("figure", element("figcaption", title), chart, class_="panel"))
    if not figures:
        return None
    return element(
        "div",
        element("h3", "Performance profiles"),
        element("p", PROFILES_READING, class_="reading"),
        _legend(shown),
        element("div", *figures, class_="panels"),
        class_="plots profiles",
    )


def _curve(section: Section, panel: Panel) -> Markup:
    lines = [
        _line(section, str(algo), rows, CURVE_COLUMNS, panel)
        for algo, rows in panel.curves.groupby("algo", sort=False)
    ]
    chart = charts.line_chart(lines, panel.range, panel.unit, panel.label, "success, validation")
    caption = element("figcaption", panel.title)
    return element("figure", caption, chart, class_="panel readable")


def _legend(order: dict[str, int]) -> Markup:
    """The rows of a chart, each with a switch."""
    items = [
        element(
            "label",
            element("input", type="checkbox", class_=f"k{index}", checked=True),
            charts.key(index),
            label,
        )
        for label, index in order.items()
    ]
    return element("div", *items, class_="legend", role="group", aria_label="Rows shown")


def _bars(title: str, parts: pd.DataFrame, places: dict[str, int]) -> Markup:
    rows: list[tuple[str, list[tuple[int, float, str]]]] = []
    for algo, some in parts.groupby("algo", sort=False):
        sizes = dict(zip(some["component"], some["bytes"], strict=True))
        stack = [
            (places[name], sizes[name], f"{algo}: {name} {_size(sizes[name])}")
            for name in places
            if name in sizes
        ]
        rows.append((str(algo), stack))
    name, unit = bytes_unit(max(sum(size for _, size, _ in stack) for _, stack in rows))
    return element(
        "figure", element("figcaption", title), charts.bars(rows, unit, name), class_="panel"
    )


def _critics(largest: float, least: float) -> str:
    """How large the largest critic is beside the least of the processes; NaN: there is none."""
    if not largest > 0:
        return ""
    sizes = f"The weights of a critic are {_size(largest)} at most, and no process holds less than "
    told = f"{sizes}{_size(least)}"
    if largest < NEGLIGIBLE * least:
        return f"{told}: the interpreter and its libraries decide the peak here, not the critic."
    return f"{told}."


def _size(x: Any) -> str:
    name, unit = bytes_unit(float(x))
    return f"{significant(float(x) / unit)} {name}"


def _line(
    section: Section,
    label: str,
    rows: pd.DataFrame,
    columns: Sequence[str],
    panel: Panel | None = None,
) -> charts.Line:
    """A line of a section's row ``label``, of the columns x, y, low and high; its points are told
    on a panel of learning curves."""
    x, y, low, high = rows[list(columns)].to_numpy(dtype=np.float64).T
    words = [] if panel is None else [told(row, panel) for row in rows.to_dict("records")]
    return charts.Line(label, section.order[label], x, y, low, high, words)
