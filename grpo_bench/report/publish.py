"""A report as files: one page, and a folder with its figures."""

from __future__ import annotations

from pathlib import Path

from grpo_bench.records.files import write_atomically
from grpo_bench.report.contents import Report
from grpo_bench.report.figures.files import figure_files
from grpo_bench.report.page import report_page

PAGE = "report.html"
FIGURES = "figures"  # the folder next to the page


def publish(report: Report, out: Path) -> Path:
    """Write the page of a report and its figures into a folder; the path of the page."""
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, data in figure_files(report).items():
        write_atomically(out / FIGURES / name, data)
    write_atomically(out / PAGE, report_page(report).encode())
    return out / PAGE
