"""From records to tables, and from tables to files."""

from grpo_bench.report.tables import build_tables
from grpo_bench.report.text.writers import block, brief, csv, display, latex, markdown

__all__ = ["block", "brief", "build_tables", "csv", "display", "latex", "markdown"]
