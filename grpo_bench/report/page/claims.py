"""The claim ledger on the page: all verdicts at a glance, and each claim with its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from grpo_bench.report.claims.evidence import Evidence, Row, shown
from grpo_bench.report.claims.judge import Judged
from grpo_bench.report.figures.plots import name_of
from grpo_bench.report.page.elements import Markup, element, join, prose
from grpo_bench.report.page.tables import Cell, grid

WORDS = {"holds": "yes", "holds only if": "partly", "does not hold": "no"}  # the rest is open
SIDES = {"passes": "better", "fails": "worse", "cannot tell": "open"}


def verdicts(ledger: Sequence[Judged]) -> Markup:
    """A list of what is claimed and what came of it, each with the way to its rows."""
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


def ledger(judged: Sequence[Judged], addresses: dict[str, str]) -> Markup:
    """A part for each claim.

    Args:
        addresses: of tables that are on the page, by their path below the reference results.
    """
    return join(*(_claim(one, addresses) for one in judged))


def _claim(judged: Judged, addresses: dict[str, str]) -> Markup:
    claim = judged.claim
    links = [element("a", s.what, href=s.url, rel="noreferrer") for s in claim.sources]
    said = join(*(join("; " if i else "", link) for i, link in enumerate(links)))
    rows = []
    for evidence, some in zip(claim.evidence, judged.rows, strict=True):
        found: Sequence[Row | None] = some or [None]
        rows += [list(_cells(evidence, row, addresses)) for row in found]
    titles = ["evidence", "row", "measured", "seeds", "needed", "result", "from"]
    return element(
        "article",
        element("h3", claim.says),
        element("p", _badge(judged), " ", _condition(judged)),
        element("p", "Sources: ", said or "none found", ". ", prose(claim.remark)),
        element("p", "How it is tested: ", prose(claim.protocol)),
        grid(titles, rows, f"What the measurements say to: {claim.says}") if rows else None,
        id=_anchor(judged),
    )


def _cells(evidence: Evidence, row: Row | None, addresses: dict[str, str]) -> Iterator[Cell]:
    yield Cell(evidence.what)
    yield Cell(row.label if row else "")
    estimate = row.interval.estimate if row else math.nan
    yield Cell(shown(row, evidence.beside) if row else "", estimate)
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
    """The rest of the verdict."""
    return str(judged.verdict).removeprefix(judged.verdict.word).lstrip(" :;")


def _anchor(judged: Judged) -> str:
    return name_of("claim", judged.claim.name)
