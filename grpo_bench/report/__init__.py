"""From records to tables, and from tables to files."""

from grpo_bench.report.tables import build_tables
from grpo_bench.report.writers import csv, display, latex, markdown

__all__ = ["build_tables", "csv", "display", "latex", "markdown"]
