"""A report as files: one page, and its figures beside it."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.records.files import replace
from grpo_bench.report.contents import Report
from grpo_bench.report.figures.render import figures
from grpo_bench.report.page import page

PAGE = "report.html"
FIGURES = "figures"  # the folder beside the page


def publish(report: Report, out: Path) -> Path:
    """Write the page of a report and its figures into a folder; the path of the page."""
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, data in figures(report).items():
        replace(out / FIGURES / name, data)
    replace(out / PAGE, page(report).encode())
    return out / PAGE
