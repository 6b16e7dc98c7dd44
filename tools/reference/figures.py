"""The figures of the comparison, and the page with all records.

Whether a figure is what its records give is told by the digest of its numbers, which it names: its
bytes depend on the version of matplotlib as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from grpo_bench.records.files import replace
from grpo_bench.report.contents import Report, gather
from grpo_bench.report.figures.files import expected_digests, figure_digest, figure_files
from grpo_bench.report.page import report_page
from grpo_bench.report.rows.memory_parts import memory_parts
from tools.reference.claims import judged
from tools.reference.places import RESULTS
from tools.reference.records import folders

FIGURES = RESULTS / "figures"
PAGE = RESULTS / "report.html"  # not committed: it repeats what is
MAIN = "comparison"


def stale(root: Path) -> Iterator[Path]:
    """The figures that are not there, or do not show what their records give."""
    for name, digest in expected_digests(_main(root)).items():
        path = root / FIGURES / name
        if not path.exists() or figure_digest(path.read_bytes()) != digest:
            yield FIGURES / name


def paths(root: Path) -> set[Path]:
    """All figures."""
    return {FIGURES / name for name in expected_digests(_main(root))}


def draw(root: Path) -> Iterator[Path]:
    """Draw the stale figures; their paths."""
    needed = set(stale(root))
    if not needed:
        return
    (root / FIGURES).mkdir(exist_ok=True)
    for name, data in figure_files(_main(root)).items():
        if FIGURES / name in needed:
            replace(root / FIGURES / name, data)
            yield FIGURES / name


def publish_all(root: Path) -> Path:
    """Write the page of all records but the trials; its path."""
    order = sorted(folders(root), key=lambda folder: folder.name != MAIN)
    replace(root / PAGE, report_page(gather(order, judged(root), _memory(root))).encode())
    return PAGE


def _main(root: Path) -> Report:
    return gather([root / RESULTS / MAIN], memory=_memory(root))


def _memory(root: Path) -> pd.DataFrame:
    return memory_parts(pd.read_csv(root / RESULTS / "memory.csv"))
