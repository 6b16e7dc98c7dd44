"""The figures of the comparison, and the page with all records.

A figure names a digest of the numbers that it shows. The check compares that digest, since the
bytes of a figure depend on the version of matplotlib as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from grpo_bench.records.errors import load_errors
from grpo_bench.records.files import write_atomically
from grpo_bench.report.contents import Report, assemble, gather, make_section
from grpo_bench.report.figures.files import expected_digests, figure_digest, figure_files
from grpo_bench.report.page import report_page
from grpo_bench.report.rows.memory_parts import memory_parts
from tools.reference.claim_ledger import judged
from tools.reference.committed import RESULTS, Committed

FIGURES = RESULTS / "figures"
PAGE = RESULTS / "report.html"  # not committed: it repeats what is
MAIN = "comparison"


def main_report(committed: Committed) -> Report:
    """What the figures show: the main comparison, and the memory of one process each."""
    summaries, _ = committed.read(MAIN)
    errors = load_errors(committed.root / RESULTS / MAIN)
    section = make_section(MAIN, summaries, committed.tables(MAIN), errors)
    return assemble([section], memory=_memory(committed.root))


def digests(report: Report) -> dict[Path, str]:
    """The paths of all figures, and the digest that each has to name."""
    return {FIGURES / name: digest for name, digest in expected_digests(report).items()}


def stale(root: Path, expected: dict[Path, str]) -> list[Path]:
    """The figures that are missing, or do not show what their records give."""
    return [
        path
        for path, digest in expected.items()
        if not (root / path).exists() or figure_digest((root / path).read_bytes()) != digest
    ]


def draw(root: Path, report: Report) -> Iterator[Path]:
    """Draw the stale figures; their paths."""
    needed = stale(root, digests(report))
    if not needed:
        return
    (root / FIGURES).mkdir(exist_ok=True)
    for name, data in figure_files(report).items():
        if FIGURES / name in needed:
            write_atomically(root / FIGURES / name, data)
            yield FIGURES / name


def publish_all(root: Path) -> Path:
    """Write the page of all records but the trials; its path."""
    order = sorted(Committed(root).folders(), key=lambda folder: folder.name != MAIN)
    write_atomically(root / PAGE, report_page(gather(order, judged(root), _memory(root))).encode())
    return PAGE


def _memory(root: Path) -> pd.DataFrame:
    return memory_parts(pd.read_csv(root / RESULTS / "memory.csv"))
