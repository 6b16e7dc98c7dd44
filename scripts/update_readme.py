"""Put the tables into README.md and docs/*.md, from the records in results/reference.

    python scripts/update_readme.py            # rewrite what has changed
    python scripts/update_readme.py --check    # change nothing; exit 1 if anything would

A block stands between two lines, and the script owns what is in it:

    <!-- table: default/summary -->
    <!-- end -->

is the table ``summary`` made from the records in ``results/reference/default``. A folder that holds
tables instead of records, as ``python -m grpo_bench.oracle`` and the benchmarks write them, gives
its files as they are.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from grpo_bench.report import block, display
from grpo_bench.tables import make_tables

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path("results/reference")
START = re.compile(r"^<!-- table: (?P<records>\S+)/(?P<table>\S+) -->$", re.MULTILINE)
END = "<!-- end -->"
Blocks = Callable[[str, str], str]  # records and table to Markdown


def blocks(root: Path) -> Blocks:
    """What makes the Markdown of a table, or finds it; each folder of records is read once.

    Raises (when called):
        FileNotFoundError: there are no such records.
        ValueError: there is no such table of them.
    """
    tables = cache(lambda records: make_tables(root / RECORDS / records))

    def made(records: str, table: str) -> str:
        written = root / RECORDS / records / f"{table}.md"
        if written.exists():
            return written.read_text(encoding="utf-8")
        if table not in tables(records):
            raise ValueError(f"no table {table!r}: expected one of {', '.join(tables(records))}")
        return block(display(table, tables(records)[table]))

    return made


def updated(text: str, name: str, made: Blocks) -> tuple[str, list[str]]:
    """A page with its blocks made anew, and ``<name>:<line>: <marker>`` of those that differ.

    Raises:
        ValueError: a block has no end before the next, or its table cannot be made.
    """
    starts = list(START.finditer(text))
    bounds = [match.start() for match in starts] + [len(text)]
    parts = [text[: bounds[0]]]
    differing: list[str] = []
    for match, stop in zip(starts, bounds[1:], strict=True):
        line = text.count("\n", 0, match.start()) + 1
        place = f"{name}:{line}: {match[0]}"
        old, end, rest = text[match.end() : stop].partition(END)
        if not end:
            raise ValueError(f"{place}: no {END} before the next table or the end of the file")
        try:
            new = f"\n{made(match['records'], match['table'])}"
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from None
        if new != old:
            differing.append(place)
        parts += [match[0], new, END, rest]
    return "".join(parts), differing


def pages(root: Path) -> list[Path]:
    """The files that may have blocks."""
    return [p for p in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if p.exists()]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Update or check all pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a block is not up to date")
    check = parser.parse_args(arguments).check
    made = blocks(root)
    status = 0
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            new, differing = updated(text, page.relative_to(root).as_posix(), made)
        except ValueError as error:
            print(error)
            status = 1
            continue
        for place in differing:
            print(f"{place}: {'not what the records give' if check else 'updated'}")
        if differing and check:
            status = 1
        elif differing:
            page.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
