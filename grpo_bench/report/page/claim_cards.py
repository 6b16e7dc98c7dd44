"""The claims on the page: all verdicts in one list, and each claim with its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from grpo_bench.report.claims.evidence import Evidence, Row, measured
from grpo_bench.report.claims.judge import Judged
from grpo_bench.report.figures.panels import slug
from grpo_bench.report.page.elements import Markup, element, join, prose
from grpo_bench.report.page.sortable_table import Cell, sortable_table

WORDS = {"holds": "yes", "holds only if": "partly", "does not hold": "no"}  # any other is open
SIDES = {"passes": "better", "fails": "worse", "cannot tell": "open"}


def claim_overview(ledger: Sequence[Judged]) -> Markup:
    """A list of the claims and their verdicts, each with a link to its evidence."""
    items = [
        element(
            "li",
            element("a", judged.claim.says, href=f"#{_anchor(judged)}"),
            " ",
            _badge(judged),
            element("p", _condition(judged), class_="condition"),
        )
        for judged in ledger
    ]
    return element("ol", *items, class_="verdicts")


def claim_cards(ledger: Sequence[Judged], addresses: dict[str, str]) -> Markup:
    """A part for each claim.

    Args:
        addresses: of the tables on the page, by their path below the reference results.
    """
    return join(*(_claim(judged, addresses) for judged in ledger))


def _claim(judged: Judged, addresses: dict[str, str]) -> Markup:
    claim = judged.claim
    links = [element("a", s.what, href=s.url, rel="noreferrer") for s in claim.sources]
    said = join(*(join("; " if i else "", link) for i, link in enumerate(links)))
    rows = []
    for evidence, some in zip(claim.evidence, judged.rows, strict=True):
        found: Sequence[Row | None] = some or [None]
        rows += [list(_cells(evidence, row, addresses)) for row in found]
    titles = ["evidence", "row", "measured", "seeds", "needed", "result", "from"]
    caption = f"What the measurements say about: {claim.says}"
    return element(
        "article",
        element("h3", claim.says),
        element("p", _badge(judged), " ", _condition(judged)),
        element("p", "Sources: ", said or "none found", ". ", prose(claim.remark)),
        element("p", "How it is tested: ", prose(claim.protocol)),
        sortable_table(titles, rows, caption) if rows else None,
        id=_anchor(judged),
    )


def _cells(evidence: Evidence, row: Row | None, addresses: dict[str, str]) -> Iterator[Cell]:
    yield Cell(evidence.what)
    yield Cell(row.label if row else "")
    estimate = row.interval.estimate if row else math.nan
    yield Cell(measured(row, evidence.beside) if row else "", estimate)
    n = None if row is None else row.n
    yield Cell("" if n is None else str(n), math.nan if n is None else n)
    yield Cell(evidence.wanted)
    side = row.side if row else "untested"
    yield Cell(side, kind=SIDES.get(side, "open"))
    yield Cell(evidence.table, link=addresses.get(evidence.table))


def _badge(judged: Judged) -> Markup:
    word = judged.verdict.word
    return element("strong", word, class_=f"badge {WORDS.get(word, 'open')}")


def _condition(judged: Judged) -> str:
    """The verdict without its first words."""
    return str(judged.verdict).removeprefix(judged.verdict.word).lstrip(" :;")


def _anchor(judged: Judged) -> str:
    return slug("claim", judged.claim.name)
