"""Where in a checkout that which is committed lies."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results/reference")  # records, and what is made of them
BENCHMARKS = RESULTS / "benchmarks"  # tables that benchmarks/ has measured
