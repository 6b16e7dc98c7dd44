"""GRPO beside each critic of PPO: in words, as a table and as intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from grpo_bench.report.contents import Report, Section
from grpo_bench.report.figures.plots import MEASURES, trade_rows, trades_of
from grpo_bench.report.page import charts, records
from grpo_bench.report.page.elements import Markup, element, join
from grpo_bench.report.page.tables import comparison
from grpo_bench.report.rows.cells import BETTER, OF_THOSE_OK
from grpo_bench.report.text.numbers import ratio, significant
from grpo_bench.report.text.words import readings

CAPTION = "GRPO beside each critic of PPO"
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
    told = there.str.removesuffix(OF_THOSE_OK)
    ahead = int((told == f"grpo{BETTER}").sum())
    behind = int(told.str.endswith(BETTER).sum()) - ahead
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


def _steps(section: Section) -> Iterable[str]:
    return {"tokens" if g.of_language_model else "transitions" for g in section.groups}
