"""The tables in README.md and docs/*.md, from the records in results/reference.

A block stands between two lines, and what is in it is written here:

    <!-- table: comparison/trades -->
    <!-- end -->

is the table ``trades`` made from the records in ``results/reference/comparison``. A folder that
holds tables instead of records, as ``python -m grpo_bench.oracle`` and the benchmarks write them,
gives its files as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from grpo_bench.report import block, display
from grpo_bench.report.folder import make_tables
from tools.reference.places import RESULTS

START = re.compile(r"^<!-- table: (?P<records>\S+)/(?P<table>\S+) -->$", re.MULTILINE)
END = "<!-- end -->"
Blocks = Callable[[str, str], str]  # records and table to Markdown


def blocks(root: Path) -> Blocks:
    """What makes the Markdown of a table, or finds it; each folder of records is read once.

    Raises (when called):
        FileNotFoundError: there are no such records.
        ValueError: there is no such table of them.
    """
    tables = cache(lambda records: make_tables(root / RESULTS / records))

    def made(records: str, table: str) -> str:
        written = root / RESULTS / records / f"{table}.md"
        if written.exists():
            return written.read_text(encoding="utf-8")
        if table not in tables(records):
            raise ValueError(f"no table {table!r}: expected one of {', '.join(tables(records))}")
        return block(display(table, tables(records)[table]))

    return made


def updated(text: str, name: str, made: Blocks) -> str:
    """The page called ``name`` with its blocks made anew.

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


def files(root: Path) -> dict[Path, str]:
    """All pages with their blocks made anew.

    Raises:
        ValueError: a block has no end before the next, or its table cannot be made.
    """
    made = blocks(root)
    return {
        page.relative_to(root): updated(
            page.read_text(encoding="utf-8"), page.relative_to(root).as_posix(), made
        )
        for page in pages(root)
    }
