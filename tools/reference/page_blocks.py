"""The tables in README.md and docs/*.md, from the records in results/reference.

A block stands between two lines, and what is in it is written here:

    <!-- table: comparison/trades -->
    <!-- end -->

is the table ``trades`` of the records in ``results/reference/comparison``, in its ``brief``
columns. A table that another command wrote, such as ``python -m grpo_bench.oracle`` or a benchmark,
is copied from its file. A page on GitHub is 946 pixels wide, so each interval stays in the cell of
its estimate, and a table of more than seven columns is split by ``PARTS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from grpo_bench.report import block, brief
from grpo_bench.report.text.writers import markdown_grid
from tools.reference.committed import RESULTS, Committed

START = re.compile(r"^<!-- table: (?P<records>\S+)/(?P<table>\S+) -->$", re.MULTILINE)
END = "<!-- end -->"
GRID = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")
Blocks = Callable[[str, str], str]  # records and table to Markdown
# The tables that are split: the columns that name a row, then those of each part.
PARTS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "oracle/kl": (
        ("task", "form"),
        (
            ("place", "label", "estimate", "variance"),
            ("error", "cosine", "to reverse", "error off", "cosine off"),
        ),
    ),
    "training/spread": (
        ("algo",),
        (
            ("flat at 1/4", "expected", "success rate", "entropy"),
            ("flat at the end", "gradient steps", "test success"),
        ),
    ),
    "benchmarks/lm_critics": (
        ("algorithm",),
        (
            ("seconds", "generation", "scoring", "critic", "update"),
            ("critic share", "bound", "seconds, this / grpo", "mean ratio"),
        ),
    ),
    "benchmarks/lm_step": (
        ("reference", "trainer"),
        (
            ("seconds", "generation", "passes"),
            ("scoring", "logprobs", "optimizer"),
            ("tokens/s", "peak MiB", "seconds, this / ours", "peak, ours / this"),
        ),
    ),
    "./memory": (
        ("env", "algo"),
        (
            ("moment", "interpreter", "code", "first use", "environment"),
            ("policy", "critic", "reference", "gradients", "optimiser"),
            ("rollout", "activations", "arrays and objects", "kept by malloc", "sum"),
            ("measured", "error %", "growth", "explained %"),
        ),
    ),
}


def blocks(committed: Committed) -> Blocks:
    """The function that gives the Markdown of a table.

    Raises (when called):
        FileNotFoundError: there are no such records.
        ValueError: there is no such table of them.
    """

    def made(records: str, table: str) -> str:
        written = committed.root / RESULTS / records / f"{table}.md"
        if written.exists():
            return narrowed(written.read_text(encoding="utf-8"), f"{records}/{table}")
        tables = committed.tables(records)
        if table not in tables:
            raise ValueError(f"no table {table!r}: expected one of {', '.join(tables)}")
        return block(brief(table, tables[table]))

    return made


def narrowed(text: str, name: str) -> str:
    """A text with its tables as they fit a page, those of ``name`` in their ``PARTS``.

    Raises:
        ValueError: a table lacks a column of its parts.
    """
    return GRID.sub(lambda found: _narrowed_grid(found[0].splitlines(), name) + "\n", text)


def _narrowed_grid(lines: list[str], name: str) -> str:
    titles, rule, *rows = [
        [cell.strip() for cell in BAR.split(line.strip()[1:-1])] for line in lines
    ]
    whole: list[list[str]] = []
    for row in rows:
        if whole and not row[0]:  # the second line of the row above: its intervals
            whole[-1] = [" ".join(filter(None, both)) for both in zip(whole[-1], row, strict=True)]
        else:
            whole.append(row)
    table = pd.DataFrame(whole, columns=titles).replace(r"\\\|", "|", regex=True)
    left = [t for t, mark in zip(titles, rule, strict=True) if not mark.endswith(":")]
    if name not in PARTS:
        return "\n".join(lines) if len(whole) == len(rows) else markdown_grid(table, left)
    first, parts = PARTS[name]
    missing = [title for part in (first, *parts) for title in part if title not in titles]
    if missing:
        raise ValueError(f"{name}: no column {missing[0]!r}: expected one of {', '.join(titles)}")
    return "\n\n".join(markdown_grid(table[[*first, *part]], left) for part in parts)


def updated(text: str, name: str, made: Blocks) -> str:
    """The page called ``name`` with new blocks.

    Raises:
        ValueError: a block has no end before the next, or its table cannot be made.
    """
    starts = list(START.finditer(text))
    bounds = [match.start() for match in starts] + [len(text)]
    parts = [text[: bounds[0]]]
    for match, stop in zip(starts, bounds[1:], strict=True):
        line = text.count("\n", 0, match.start()) + 1
        place = f"{name}:{line}: {match[0]}"
        _, end, rest = text[match.end() : stop].partition(END)
        if not end:
            raise ValueError(f"{place}: no {END} before the next table or the end of the file")
        try:
            new = f"\n{made(match['records'], match['table'])}"
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from None
        parts += [match[0], new, END, rest]
    return "".join(parts)


def pages(root: Path) -> list[Path]:
    """The files that may have blocks."""
    return [p for p in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if p.exists()]


def page_blocks(committed: Committed) -> dict[Path, str]:
    """All pages with new blocks.

    Raises:
        ValueError: a block has no end before the next, or its table cannot be made.
    """
    made, root = blocks(committed), committed.root
    return {
        page.relative_to(root): updated(
            page.read_text(encoding="utf-8"), page.relative_to(root).as_posix(), made
        )
        for page in pages(root)
    }
