"""Tables on a screen: the comparison in short, or what each algorithm did if there is none."""

from __future__ import annotations

import os
import textwrap

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_bench.records.texts import printable
from grpo_bench.report.text.writers import TEXT_COLUMNS, brief

PIPED_WIDTH = 100  # characters, where neither a terminal nor COLUMNS says how wide it is
TEXT_WIDTH = 20  # of a name on the screen; a longer one is folded
GAP = 2  # characters between columns
ALONE = ("accuracy", "speed", "memory")  # the tables where nothing is compared
SPARE = {  # columns that a narrow screen leaves out, the first first
    "accuracy": (
        *("test reward", "normalised", "k transitions", "k tokens", "well formed"),
        "completed",
        *("validation success", "sampled success", "start"),
    ),
    "speed": (
        *("set-up s", "evaluation s", "warm-up s", "gradient steps", "scoring s", "critic share"),
        *("reference s", "rollout s", "critic s", "generation s", "update s"),
    ),
    "memory": (
        *("gradient {unit}", "optimiser {unit}", "reference {unit}", "policy {unit}"),
        *("rollout {unit}", "critic {unit}", "growth MB"),
    ),
}
NARROW = "On this screen without its intervals and lesser columns; the files have them."


def print_tables(tables: dict[str, pd.DataFrame]) -> None:
    """Print ``summary``, or ``ALONE`` without one, as wide as the terminal is (or ``COLUMNS``
    says), and name the other tables. If no run has ended ok, say so instead."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    if not any(table["ok"].any() for table in tables.values() if "ok" in table):
        console.print("No run has ended ok yet.")
        return
    printed = ("summary",) if "summary" in tables else ALONE
    for name in (name for name in printed if name in tables):
        shown = brief(name, tables[name])
        narrow = fit(name, shown, console.width)
        console.print(Text(printable(shown.attrs["caption"]), style="bold"))
        console.print(screen_grid(narrow))
        if name == "summary":
            console.print(shown.attrs["reading"], style="dim", markup=False)
        if not narrow.equals(shown):
            console.print(NARROW, style="dim", markup=False)
    about = next(iter(tables.values())).attrs
    for line in (*about["footnotes"], about["header"]):
        console.print(printable(line), markup=False)
    others = ", ".join(f"{name}.md" for name in tables if name not in printed)
    if others:
        console.print(f"More in the files: {others}", markup=False)


def fit(name: str, shown: pd.DataFrame, width: int) -> pd.DataFrame:
    """A table as ``brief`` gives it, on a screen of ``width`` characters: with long names folded,
    and where that is too wide without intervals, and then without ``SPARE`` columns."""
    about = shown.attrs
    narrow = shown.copy()
    if "algo" in narrow:
        narrow["algo"] = [textwrap.fill(algo, TEXT_WIDTH) for algo in narrow["algo"]]
    if table_width(narrow) > width:
        numbers = [title for title in narrow.columns if title not in TEXT_COLUMNS]
        for title in numbers:
            narrow[title] = [cell.partition("\n")[0] for cell in narrow[title]]
    for title in (spare.format_map(about) for spare in SPARE.get(name, ())):
        if table_width(narrow) <= width:
            break
        narrow = narrow.drop(columns=title, errors="ignore")
    narrow.attrs = about
    return narrow


def table_width(shown: pd.DataFrame) -> int:
    """Characters that a table takes on the screen."""
    return sum(column_width(shown[title]) + GAP for title in shown.columns) - GAP


def column_width(column: pd.Series) -> int:
    """Characters that a column takes on the screen, its title folded between words."""
    lines = [line for cell in column for line in cell.split("\n")]
    return max(map(len, [*str(column.name).split(), *lines]))


def screen_grid(shown: pd.DataFrame) -> Table:
    """The table for the screen, each column no wider than its cells need."""
    grid = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box has one more
    )
    for title in shown.columns:
        head = textwrap.fill(title, column_width(shown[title]), break_on_hyphens=False)
        grid.add_column(head, justify="left" if title in TEXT_COLUMNS else "right")
    for row in shown.to_numpy().tolist():
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid
