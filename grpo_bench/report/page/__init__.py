"""The report as one self-contained HTML page."""

from grpo_bench.report.page.document import report_page

__all__ = ["report_page"]
