"""The charts of the page as files: PNG and SVG, by matplotlib.

Each file names a digest of the numbers that it shows. So a figure can be told from a stale one
without drawing it anew: the same numbers give the same digest, while the bytes of a file depend on
the version of matplotlib as well.
"""

from __future__ import annotations

import re

from grpo_bench.report.contents import Report
from grpo_bench.report.figures.plans import plans

FORMATS = ("png", "svg")
DIGEST = "data sha256 "  # what stands before a digest in a file
_DIGEST = re.compile(rf"{DIGEST}([0-9a-f]{{64}})".encode())


def figures(report: Report) -> dict[str, bytes]:
    """All figures by file name: of each section ``<section>-curves-<env>``, ``<section>-memory``,
    ``<section>-profiles`` and ``<section>-summary``, and ``memory`` of the report, as ``.png`` and
    ``.svg``; what has nothing to show is left out."""
    from grpo_bench.report.figures.drawing import draw  # matplotlib takes half a second

    files: dict[str, bytes] = {}
    for plan in plans(report):
        drawn = draw(plan, DIGEST + plan.digest)
        files |= {f"{plan.name}.{form}": drawn[form] for form in FORMATS}
    return files


def expected_digests(report: Report) -> dict[str, str]:
    """The digest of each of the ``figures``, without drawing them."""
    return {f"{plan.name}.{form}": plan.digest for plan in plans(report) for form in FORMATS}


def figure_digest(data: bytes) -> str | None:
    """The digest that a PNG or an SVG names; None if it names none."""
    found = _DIGEST.search(data)
    return found[1].decode() if found else None
