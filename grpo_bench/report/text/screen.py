"""Tables on a screen: as wide as it is, without what does not fit."""

from __future__ import annotations

import os
import textwrap

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_bench.report.text.writers import TEXT_COLUMNS, display, without_budget

PIPED_WIDTH = 100  # characters, where neither a terminal nor COLUMNS says how wide it is
TEXT_WIDTH = 20  # of a name on the screen; a longer one is folded
GAP = 2  # characters between columns
SPARE = {  # what a narrow screen leaves out, the first first
    "summary": ("static mem ×", "{reference} success", "peak mem ×"),
    "accuracy": (
        *("test reward", "normalised", "k transitions", "k tokens", "well formed"),
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


def print_tables(tables: dict[str, pd.DataFrame]) -> None:
    """Print those tables of which ``SPARE`` knows, as wide as the terminal is (or ``COLUMNS``
    says): where not all columns fit, without the spare ones, which a line below names. The other
    tables are named at the end."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    for name in (name for name in tables if name in SPARE):
        shown, left_out = fit(name, display(name, tables[name]), console.width)
        console.print(screen_grid(shown))
        console.print(shown.attrs["reading"], style="dim", markup=False)
        if left_out:
            line = f"Too wide for this screen, but in the files: {', '.join(left_out)}."
            console.print(line, style="dim", markup=False)
        console.print()
    about = next(iter(tables.values())).attrs
    for line in (*about["footnotes"], about["header"]):
        console.print(line, markup=False)
    others = [
        f"{name}.md ({table.attrs['caption']})"
        for name, table in tables.items()
        if name not in SPARE
    ]
    if others:
        console.print(f"Only in the files: {'; '.join(others)}", markup=False)


def fit(name: str, shown: pd.DataFrame, width: int) -> tuple[pd.DataFrame, list[str]]:
    """The table called ``name`` as ``display`` gives it, made for a screen of ``width`` characters,
    and the titles of what did not fit. A budget that all rows share stands in the caption."""
    shown = without_budget(shown)
    about = shown.attrs
    left_out: list[str] = []
    shown = shown.assign(algo=[textwrap.fill(name, TEXT_WIDTH) for name in shown["algo"]])
    for title in (spare.format_map(about) for spare in SPARE[name]):
        if sum(column_width(shown[t]) + GAP for t in shown.columns) - GAP <= width:
            break
        if title in shown.columns:
            shown = shown.drop(columns=title)
            left_out.append(title)
    shown.attrs = about
    return shown, left_out


def column_width(column: pd.Series) -> int:
    """Characters that a column takes on the screen, its title folded between words."""
    lines = [line for cell in column for line in cell.split("\n")]
    return max(map(len, [*str(column.name).split(), *lines]))


def screen_grid(shown: pd.DataFrame) -> Table:
    """The table for the screen, each column no wider than its cells need."""
    caption = Text(shown.attrs["caption"], style="bold")
    grid = Table(
        title=caption,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box has one more
    )
    for title in shown.columns:
        head = textwrap.fill(title, column_width(shown[title]), break_on_hyphens=False)
        grid.add_column(head, justify="left" if title in TEXT_COLUMNS else "right")
    for row in shown.to_numpy().tolist():
        grid.add_row(*map(Text, row))
    return grid
