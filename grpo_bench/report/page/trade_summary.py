"""GRPO compared with each critic of PPO: in words, as a table and as intervals."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pandas as pd

from grpo_bench.report.contents import Report, Section
from grpo_bench.report.figures.drawing import draw_intervals
from grpo_bench.report.figures.panels import (
    MEASURES,
    all_trades,
    interval_rows,
    intervals_in_words,
)
from grpo_bench.report.page.charts import chart
from grpo_bench.report.page.elements import Markup, element, join
from grpo_bench.report.page.run_lists import group_anchors
from grpo_bench.report.page.sortable_table import comparison_table
from grpo_bench.report.rows.cells import BETTER, OF_THOSE_OK
from grpo_bench.report.text.numbers import ratio
from grpo_bench.report.text.words import readings

CAPTION = "GRPO compared with each critic of PPO"
INTRODUCTION = (
    "GRPO has no critic. PPO trains one, either as a separate network or on top of the policy's "
    "(shared trunk). We compare the two seed by seed, and name no winner if the 95 % interval of "
    "the difference contains 0. A count of runs, such as 10/10, is a link to these runs."
)
INTERVALS_READING = (
    "GRPO compared with each critic of PPO. Dots are estimates, lines their 95 % intervals; there "
    "is no line if all seeds agree. On the dotted line the two are equal."
)
TIMES = {  # each ratio in words
    "speed_ratio": "GRPO makes {} times as many {steps} per second",
    "peak_ratio": "its process holds {} times as much memory at its peak",
    "static_ratio": (
        "policy, critic, reference, gradients and optimiser state together are {} times as large"
    ),
}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def trade_summary(report: Report) -> Markup:
    """GRPO compared with each critic on each task, in words and as a table."""
    table = _marked(report)
    if table.empty:
        return element("p", "These records have no runs of both grpo and ppo.")
    sections = [section for section in report.sections if "trades" in section.tables]
    steps = sorted({name for section in sections for name in _steps(section)}, reverse=True)
    words = {"caption": CAPTION, "reading": readings("ppo", steps)["trades"]}
    table.attrs = table.attrs | words
    anchors = {
        (section.name, *place): f"#{anchor}"
        for section in sections
        for place, anchor in group_anchors(section).items()
    }
    table_part = comparison_table(
        "trades",
        table,
        lambda row: anchors[row["section"], row["env"], row["budget"], row["algo"]],
        id_="all-trades",
        names={"task": table["task"]},
    )
    marks = _marks(report)
    sentences = [element("p", _in_words(s, marks.get(s.name, ""))) for s in sections]
    notes = [
        element("li", f"{marks[s.name]} {s.name}: {' '.join(f'{n}.' for n in s.notes)}")
        for s in sections
        if s.name in marks
    ]
    below = element("ul", *notes, class_="notes") if notes else None
    return join(element("p", INTRODUCTION), *sentences, table_part, below)


def trade_intervals(report: Report) -> Markup | None:
    """The same comparisons as intervals."""
    trades = interval_rows(_marked(report))
    figures = []
    for measure in MEASURES:
        rows = trades[trades["measure"] == measure.title]
        if len(rows):
            caption = f"{measure.title}: {measure.comparison}, {measure.better} is better"
            summary = "; ".join([caption, *intervals_in_words(rows)])
            draw = partial(draw_intervals, rows=rows, measure=measure)
            height = 0.6 + 0.36 * len(rows)
            figures.append(chart(f"intervals/{measure.title}", caption, summary, draw, height))
    if not figures:
        return None
    noted = " A raised number refers to a note under the table." if _marks(report) else ""
    reading = element("p", INTERVALS_READING, noted, class_="reading")
    return join(reading, element("div", *figures, class_="panels"))


def _marks(report: Report) -> dict[str, str]:
    """A raised number for each section with trades that has notes."""
    noted = [s.name for s in report.sections if s.notes and "trades" in s.tables]
    return {name: str(i).translate(RAISED) for i, name in enumerate(noted, 1)}


def _marked(report: Report) -> pd.DataFrame:
    """The trades of all sections. The tasks of sections with notes have a mark."""
    table, marks = all_trades(report.sections), _marks(report)
    if marks:
        pairs = zip(table["task"], table["section"], strict=True)
        table["task"] = [f"{task} {marks.get(name, '')}".strip() for task, name in pairs]
    return table


def _in_words(section: Section, mark: str) -> Markup:
    """The trades of a section in a few sentences."""
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
        f"Accuracy after equal {spent}: {count_verdicts(verdicts)}."
        for spent, verdicts in budgets.items()
        if any(verdicts)
    ]
    if ranges:
        sentences.append(f"Compared with PPO, {'; '.join(ranges)}.")
    name = element("strong", f"{section.name}{mark}.")
    return join(name, *(f" {sentence}" for sentence in sentences))


def count_verdicts(verdicts: pd.Series) -> str:
    """How many verdicts are for GRPO, for PPO, and for neither."""
    there = verdicts[verdicts != ""]
    of = f"of {len(there)} comparisons"
    winners = there.str.removesuffix(OF_THOSE_OK)
    ahead = int((winners == f"grpo{BETTER}").sum())
    behind = int(winners.str.endswith(BETTER).sum()) - ahead
    rest = len(there) - ahead - behind
    sides = {"GRPO": ahead, "PPO": behind}
    if len(there) == 1:
        leads = [f"{name} is ahead" for name, n in sides.items() if n]
        return leads[0] if leads else "no clear difference"
    if rest == len(there):
        return f"no clear difference in any {of}"
    first, *second = [f"{name} {{}}in {n}" for name, n in sides.items() if n]
    words = " and ".join([first.format("is ahead ") + f" {of}", *(x.format("") for x in second)])
    return words + (f"; no clear difference in {rest}" if rest else "")


def _steps(section: Section) -> Iterable[str]:
    return {"tokens" if g.of_language_model else "transitions" for g in section.groups}
