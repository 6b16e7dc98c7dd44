"""Tables that can be sorted: each cell has a text and a number to sort by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_bench.report.figures.panels import task_names
from grpo_bench.report.page.elements import Child, Markup, element, join, prose
from grpo_bench.report.rows.cells import BETTER, OF_THOSE_OK
from grpo_bench.report.text.writers import COLUMNS, display, without_budget

NAMES = ("env", "budget", "algo")
COUNTS = {"ok": "planned", "ppo_ok": "ppo_planned"}  # columns of runs, and their denominators


@dataclass(frozen=True)
class Cell:
    """content: what the cell shows; further lines of a text are small.
    value: the number to sort by, NaN if it is missing; None: sorted as text.
    kind: classes; "": none.
    link: an address; None: no link.
    """

    content: Child
    value: float | None = None
    kind: str = ""
    link: str | None = None

    def markup(self) -> Markup:
        """The cell as a ``td``."""
        inner = _lines(self.content)
        if self.link is not None:
            inner = element("a", inner, href=self.link)
        number = None
        if self.value is not None:  # an empty one is a missing number, and comes last
            number = "" if math.isnan(self.value) else f"{self.value:.12g}"
            number = number.replace("inf", "Infinity")  # as JavaScript reads it
        kinds = " ".join(part for part in ("n" if number is not None else "", self.kind) if part)
        return element("td", inner, data_value=number, class_=kinds or None)


def sortable_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    caption: str,
    *,
    anchors: Sequence[str] = (),
    named: int = 1,
    id_: str | None = None,
) -> Markup:
    """A table in a box, which scrolls if the table is too wide.

    Args:
        anchors: the id of each row; empty: rows have none.
        named: how many columns name a row and stay in place when the others scroll, 1 or 2.
    """
    numeric = [any(row[i].value is not None for row in rows) for i in range(len(titles))]
    heads = [
        element("th", title, scope="col", class_="n" if is_number else None)
        for title, is_number in zip(titles, numeric, strict=True)
    ]
    ids: Sequence[str | None] = anchors or [None] * len(rows)
    body = [
        element("tr", *(cell.markup() for cell in row), id=anchor)
        for row, anchor in zip(rows, ids, strict=True)
    ]
    table = element(
        "table",
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        aria_label=caption,
        class_="sortable named" if named == 2 else "sortable",
    )
    box = element("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return element("figure", element("figcaption", caption), box, id=id_, class_="table")


def comparison_table(
    name: str,
    table: pd.DataFrame,
    runs_of: Callable[[dict[Any, Any]], str | None],
    *,
    id_: str,
    names: dict[str, Iterable[str]] | None = None,
) -> Markup:
    """A table of the report, with an explanation of its columns.

    Args:
        runs_of: the address of the runs behind a row.
        names: the columns that name the rows, by title; None: environment and algorithm, with the
            budget after the environment if it has several, else in the caption.
    """
    shown = without_budget(display(name, table))
    if names is None:
        names = {"env": task_names(table), "algo": table["algo"]}
        caption = shown.attrs["caption"]
    else:
        caption = table.attrs["caption"]
    sources = {column.title.format_map(table.attrs): column.name for column in COLUMNS[name]}
    records = table.to_dict("records")
    columns = {
        str(title): [
            _cell(str(title), text, sources, record, runs_of)
            for text, record in zip(shown[title], records, strict=True)
        ]
        for title in shown.columns
    }
    others = {title: cells for title, cells in columns.items() if title not in NAMES}
    called = {t: [Cell(_breakable(text)) for text in texts] for t, texts in names.items()}
    columns = called | others
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    reading = element("p", prose(table.attrs["reading"]), class_="reading")
    return join(sortable_table(list(columns), rows, caption, named=len(names), id_=id_), reading)


def _cell(
    title: str,
    text: str,
    sources: dict[str, str],
    record: dict[Any, Any],
    runs_of: Callable[[dict[Any, Any]], str | None],
) -> Cell:
    source = sources.get(title, title)
    if source in COUNTS:
        ok, planned = record[source], record[COUNTS[source]]
        kind = "missing" if ok < planned else ""
        whose = record if source == "ok" else record | {"algo": record["ppo"]}
        return Cell(text, ok / planned, kind, runs_of(whose))
    if source.endswith("verdict"):
        return Cell(text, kind=_side(record[source], record["algo"]))
    value = record.get(source)
    return Cell(text, float(value) if isinstance(value, int | float) else None)


def _side(verdict: str, label: str) -> str:
    """Whether a verdict is for the row's own algorithm or against it; "open": neither."""
    winner = verdict.removesuffix(OF_THOSE_OK)
    if winner == f"{label.split(' (')[0]}{BETTER}":
        return "better"
    return "worse" if winner.endswith(BETTER) else "open"


def _breakable(name: str) -> Markup:
    """A name that may break after each ``_``."""
    first, *rest = name.split("_")
    return join(first, *(join("_", element("wbr"), part) for part in rest))


def _lines(content: Child) -> Markup:
    if content is None or isinstance(content, Markup):
        return join(content)
    first, *rest = content.split("\n")
    return join(first, *(element("small", line) for line in rest))
