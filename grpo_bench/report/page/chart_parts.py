"""The parts of the page with charts: learning curves, memory, performance profiles."""

from __future__ import annotations

from functools import partial

import pandas as pd

from grpo_bench.report.contents import OWN, Section, recorded_parts
from grpo_bench.report.figures.drawing import draw_bars, draw_curves, draw_profiles
from grpo_bench.report.figures.panels import (
    AXES,
    CurvePanel,
    component_places,
    curve_panels,
    held_by_the_algorithm,
    memory_in_words,
    memory_panels,
    profile_panels,
    profiles_in_words,
    size_in_words,
)
from grpo_bench.report.page.charts import bar_key, chart, line_key
from grpo_bench.report.page.elements import Markup, element, join
from grpo_bench.report.page.run_lists import section_anchor

NEGLIGIBLE = 0.01  # share of a process that cannot decide its peak
CURVES_READING = (
    "Success on the validation split during training: the mean over the seeds that ended ok, with "
    "its 95 % interval as a band. Each budget counts from the start of training."
)
MEMORY_READING = (
    "Means over the seeds that ended ok. The rest of a process is its peak minus the parts that we "
    "count: interpreter, libraries, environment, activations."
)
MEASURED_APART_READING = (
    "One process for each bar, measured separately from the records. The first chart shows all "
    "that the process held at its peak. The second shows, in its own unit, what the algorithm "
    "holds all the time."
)
PROFILES_READING = (
    "The share of runs with a normalised score above τ (0 is random, 1 is perfect): the mean over "
    "the tasks, with its 95 % interval. Higher is better."
)


def curves_part(section: Section) -> Markup | None:
    """Learning curves, with switches for the budget on the axis and for the algorithms."""
    drawn = {axis: panels for axis in AXES if (panels := curve_panels(section, axis))}
    if not drawn:
        return None
    group = section_anchor(section)
    switches = [
        element(
            "label",
            element("input", type="radio", name=f"{group}-axis", value=axis, checked=i == 0),
            panels[0].words,
        )
        for i, (axis, panels) in enumerate(drawn.items())
    ]
    parts = [
        element(
            "div",
            element("h4", f"Over {panels[0].words}"),
            element("div", *(_curves(section, panel) for panel in panels), class_="panels"),
            class_="axis",
            data_axis=axis,
        )
        for axis, panels in drawn.items()
    ]
    return element(
        "div",
        element("h3", "Learning curves"),
        element("p", CURVES_READING, class_="reading"),
        element("fieldset", element("legend", "Budget"), *switches, class_="axes controls"),
        _legend(section.order),
        *parts,
        class_="plots",
    )


def memory_apart(parts: pd.DataFrame) -> Markup:
    """The memory of processes that were measured separately from the records."""
    largest = parts.loc[parts["component"] == OWN["critic"], "bytes"].max()
    least = parts.groupby(["env", "algo"])["bytes"].sum().min()
    critics = _critic_sizes(largest, least)
    reading = element("p", MEASURED_APART_READING, " ", critics, class_="reading")
    return join(reading, _memory("apart", parts))


def memory_part(section: Section) -> Markup:
    """The memory of a section's processes, from their records."""
    table = section.tables["memory"]
    parts = recorded_parts(table)
    if parts.empty:
        return join()
    rows = table[(table["critic_bytes"] > 0) & (table["peak_bytes"] > 0)]
    critics = _critic_sizes(rows["critic_bytes"].max(), rows["peak_bytes"].min())
    return join(
        element("h3", "Memory"),
        element("p", MEMORY_READING, " ", critics, class_="reading"),
        _memory(section.name, parts),
    )


def profiles_part(section: Section) -> Markup | None:
    """Performance profiles: the share of runs above each score, over all tasks."""
    figures = [
        chart(
            f"profiles/{section.name}/{title}",
            title,
            profiles_in_words(title, rows),
            partial(draw_profiles, rows=rows, order=section.order),
        )
        for title, rows in profile_panels(section.profiles)
    ]
    if not figures:
        return None
    labels = section.profiles["algo"].unique()
    return element(
        "div",
        element("h3", "Performance profiles"),
        element("p", PROFILES_READING, class_="reading"),
        _legend({label: section.order[label] for label in labels}),
        element("div", *figures, class_="panels"),
        class_="plots",
    )


def _curves(section: Section, panel: CurvePanel) -> Markup:
    name = f"curves/{section.name}/{panel.title}/{panel.axis}"
    draw = partial(draw_curves, panel=panel, order=section.order)
    return chart(name, panel.title, panel.summary, draw)


def _legend(order: dict[str, int]) -> Markup:
    """The algorithms of a chart, each with a switch that hides it."""
    items = [
        element(
            "label",
            element("input", type="checkbox", class_=f"k{place}", checked=True),
            line_key(place),
            label,
        )
        for label, place in order.items()
    ]
    return element("div", *items, class_="legend", role="group", aria_label="Algorithms shown")


def _memory(name: str, parts: pd.DataFrame) -> Markup:
    """Bars: all that each process held, and what its algorithm holds all the time."""
    places = component_places(parts)
    keys = [element("li", bar_key(place), component) for component, place in places.items()]
    figures = []
    for title, rows in memory_panels(parts):
        views = {
            f"{title}: the whole process": rows,
            f"{title}: of that, networks, optimiser and rollout": held_by_the_algorithm(rows),
        }
        for caption, shown in views.items():
            if len(shown):
                figures.append(_bars(f"memory/{name}/{caption}", caption, shown, places))
    legend = element("ul", *keys, class_="legend")
    return join(legend, element("div", *figures, class_="panels pairs"))


def _bars(name: str, caption: str, parts: pd.DataFrame, places: dict[str, int]) -> Markup:
    draw = partial(draw_bars, parts=parts, places=places)
    height = 0.7 + 0.24 * parts["algo"].nunique()
    return chart(name, caption, memory_in_words(caption, parts), draw, height)


def _critic_sizes(largest: float, least: float) -> str:
    """The size of the largest critic compared with the smallest process; NaN: no critic."""
    if not largest > 0:
        return ""
    sizes = (
        f"The weights of a critic are {size_in_words(largest)} at most, and no process holds less "
        f"than {size_in_words(least)}"
    )
    if largest < NEGLIGIBLE * least:
        return f"{sizes}: the interpreter and its libraries decide the peak here, not the critic."
    return f"{sizes}."
