"""The parts of the page that have charts: trades, learning curves, memory, profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from grpo_bench.report.contents import OWN, Report, Section, recorded_parts
from grpo_bench.report.html import charts, records
from grpo_bench.report.html.elements import Markup, element, join
from grpo_bench.report.html.tables import comparison
from grpo_bench.report.numbers import ratio, significant
from grpo_bench.report.plots import (
    AXES,
    MEASURES,
    Panel,
    bytes_unit,
    component_places,
    memory_panels,
    of_the_algorithm,
    panels,
    profile_panels,
    told,
    trade_rows,
    trades_of,
)
from grpo_bench.report.words import readings

NEGLIGIBLE = 0.01  # of a process: a part that cannot decide its peak
CURVE_COLUMNS = ("x", "success", "success_low", "success_high")
CAPTION = "GRPO beside each critic of PPO"
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
INTRODUCTION = (
    "GRPO has no critic; PPO trains one, as a network of its own (separate) or on the policy's "
    "(shared trunk). Both are compared seed by seed, and no winner is named where the 95 % "
    "interval of the difference holds 0. A count of runs, such as 10/10, leads to their records."
)
INTERVALS_READING = (
    "GRPO beside each critic of PPO. Dots: estimates; lines: their 95 % intervals, none where all "
    "seeds are equal; dashed: no difference."
)
TIMES = {  # what a ratio says, in words
    "speed_ratio": "GRPO makes {} times as many {steps} per second",
    "peak_ratio": "its process holds {} times as much memory at its peak",
    "static_ratio": (
        "policy, critic, reference, gradients and optimiser state together are {} times as large"
    ),
}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
PROFILES_READING = (
    "Share of the runs whose normalised score (0 is random, 1 is perfect) is above τ, the mean "
    "over the tasks, with its 95 % interval. Higher is better everywhere along the axis."
)


def trades(report: Report) -> Markup:
    """GRPO beside each critic on each task, in words and as a table."""
    table = _marked(report)
    if table.empty:
        return element("p", "No runs of grpo beside ppo are in these records.")
    sections = [section for section in report.sections if "trades" in section.tables]
    steps = sorted({name for section in sections for name in _steps(section)}, reverse=True)
    words = {"caption": CAPTION, "reading": readings("ppo", steps)["trades"]}
    table.attrs = table.attrs | words
    anchors = {
        (section.name, *place): f"#{anchor}"
        for section in sections
        for place, anchor in records.group_anchors(section).items()
    }
    shown = comparison(
        "trades",
        table,
        lambda row: anchors[row["section"], row["env"], row["budget"], row["algo"]],
        id_="all-trades",
        names={"task": table["task"]},
    )
    marks = _marks(report)
    told = [element("p", _in_words(s, marks.get(s.name, ""))) for s in sections]
    notes = [
        element("li", f"{marks[s.name]} {s.name}: {' '.join(f'{n}.' for n in s.notes)}")
        for s in sections
        if s.name in marks
    ]
    below = element("ul", *notes, class_="notes") if notes else None
    return join(element("p", INTRODUCTION), *told, shown, below)


def intervals(report: Report) -> Markup | None:
    """The same as intervals on common axes."""
    rows = trade_rows(_marked(report))
    figures = []
    for measure in MEASURES:
        told = [
            (row.label, row.estimate, row.low, row.high, _interval(row.label, row))
            for row in rows[rows["measure"] == measure.title].itertuples()
        ]
        if told:
            caption = element("figcaption", f"{measure.title}: {measure.better} is better")
            chart = charts.forest(told, measure)
            figures.append(element("figure", caption, chart, class_="panel"))
    if not figures:
        return None
    noted = " A raised number is that of a note under the table." if _marks(report) else ""
    reading = element("p", INTERVALS_READING, noted, class_="reading")
    return join(reading, element("div", *figures, class_="panels"))


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


def _marks(report: Report) -> dict[str, str]:
    """A raised number for each section with trades that has notes."""
    noted = [s.name for s in report.sections if s.notes and "trades" in s.tables]
    return {name: str(i).translate(RAISED) for i, name in enumerate(noted, 1)}


def _marked(report: Report) -> pd.DataFrame:
    """The trades of all sections, tasks of those with notes marked."""
    table, marks = trades_of(report.sections), _marks(report)
    if marks:
        pairs = zip(table["task"], table["section"], strict=True)
        table["task"] = [f"{task} {marks.get(name, '')}".strip() for task, name in pairs]
    return table


def _in_words(section: Section, mark: str) -> Markup:
    """What a section's trades come to."""
    rows = section.tables["trades"]
    steps = " or ".join(sorted(_steps(section)))
    ranges = []
    for column, words in TIMES.items():
        found = rows[column].dropna()
        if len(found):
            low, high = ratio(found.min()), ratio(found.max())
            span = low if low == high else f"{low} to {high}"
            ranges.append(words.format(span, steps=steps))
    budgets = {steps: rows["verdict"], "seconds": rows["seconds_verdict"]}
    sentences = [
        f"Accuracy after as many {spent}: {count_verdicts(verdicts)}."
        for spent, verdicts in budgets.items()
        if any(verdicts)
    ]
    if ranges:
        sentences.append(f"Beside PPO, {'; '.join(ranges)}.")
    name = element("strong", f"{section.name}{mark}.")
    return join(name, *(f" {sentence}" for sentence in sentences))


def count_verdicts(verdicts: pd.Series) -> str:
    """How many verdicts are for GRPO, how many against it, and how many are neither."""
    there = verdicts[verdicts != ""]
    of = f"of {len(there)} comparisons"
    ahead = int((there == "grpo better").sum())
    behind = int(there.str.endswith(" better").sum()) - ahead
    rest = len(there) - ahead - behind
    sides = {"GRPO": ahead, "PPO": behind}
    if len(there) == 1:
        leads = [f"{name} is ahead" for name, n in sides.items() if n]
        return leads[0] if leads else "the two cannot be told apart"
    if rest == len(there):
        return f"none {of} tells the two apart"
    first, *second = [f"{name} {{}}in {n}" for name, n in sides.items() if n]
    words = " and ".join([first.format("is ahead ") + f" {of}", *(x.format("") for x in second)])
    return words + (f"; {rest} cannot be told apart" if rest else "")


def _interval(label: str, row: Any) -> str:
    return f"{label}: {significant(row.estimate)} [{significant(row.low)}, {significant(row.high)}]"


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


def _steps(section: Section) -> Iterable[str]:
    return {"tokens" if g.of_language_model else "transitions" for g in section.groups}


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
