"""The report as one self-contained page."""

from grpo_bench.report.page.page import page

__all__ = ["page"]
