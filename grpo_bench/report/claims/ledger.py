"""The claim ledger as a page and as a table of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from grpo_bench.report.claims.evidence import Evidence, Row, measured
from grpo_bench.report.claims.judge import Judged, Source
from grpo_bench.report.text.writers import escaped, markdown_grid

TITLE = "Claims about GRPO, and what the measurements say"
READING = (
    "A row passes if its whole interval is on the side that the claim needs, fails if it is wholly "
    "on the other side, and otherwise cannot tell. [low, high]: 95 % interval over the seeds; a "
    "number without one is the same for all seeds, an enumeration, or the bytes of one process. "
    "Each verdict follows from its rows. `make reference` writes it from results/claims.yaml."
)
LEFT = ("evidence", "row", "result")  # columns aligned left


def numbers(ledger: Sequence[Judged]) -> pd.DataFrame:
    """A row for each row of evidence; where there is none, one without numbers for the evidence,
    or for the claim."""
    rows = pd.DataFrame(row for judged in ledger for row in _numbers(judged))
    return rows.astype({"n": "Int64"}) if "n" in rows else rows  # whole, and missing for some


def claims_page(ledger: Sequence[Judged]) -> str:
    """All verdicts in one table, then a section for each claim, in Markdown."""
    parts = [f"# {TITLE}", verdicts(ledger), READING]
    for judged in ledger:
        parts += _section(judged)
    return "\n\n".join(parts) + "\n"


def verdicts(ledger: Sequence[Judged]) -> str:
    """A row for each claim: the verdict, and one clause. Not aligned: cells are sentences."""
    lines = ["|claim|verdict|when|", "|:--|:--|:--|"]
    for judged in ledger:
        cells = (judged.claim.says, f"**{judged.verdict.word}**", _clause(judged))
        lines.append(f"|{'|'.join(escaped(cell) for cell in cells)}|")
    return "\n".join(lines)


def _clause(judged: Judged) -> str:
    """When the claim holds, or what has not been measured, in a few words each said once."""
    word, detail, _ = judged.verdict
    pieces = [*zip(judged.claim.evidence, judged.rows, strict=True)]
    if word not in ("holds only if", "untested"):
        return detail
    passing = [e.short for e, rows in pieces if any(row.side == "passes" for row in rows)]
    untested = [e.short for e, rows in pieces if not rows]
    clauses = [" or ".join(dict.fromkeys(passing))] if passing else []
    if untested:
        clauses.append(f"not measured: {', '.join(dict.fromkeys(untested))}")
    return "; ".join(clauses)


def _section(judged: Judged) -> Iterator[str]:
    claim = judged.claim
    yield f"## {claim.says}"
    yield f"**{judged.verdict}**"
    said = ", ".join(map(_link, claim.sources)) or "none found"
    yield f"Sources: {said}.{' ' if claim.remark else ''}{claim.remark}"
    yield f"How it is tested: {claim.protocol}"
    rows = [
        {
            "evidence": evidence.what if is_first else "",
            "row": row.label if row else "",
            "measured": measured(row, evidence.beside) if row else "",
            "seeds": "" if row is None or row.n is None else str(row.n),
            "needed": evidence.wanted,
            "result": row.side if row else "untested",
            # the page lies where the path begins; what is untested has no table yet
            "from": f"[{evidence.table}]({evidence.table})" if row else evidence.table,
        }
        for evidence, row, is_first in _pairs(judged)
    ]
    if rows:
        yield markdown_grid(pd.DataFrame(rows), LEFT)


def _numbers(judged: Judged) -> Iterator[dict[str, Any]]:
    word, detail, _ = judged.verdict
    first = {"claim": judged.claim.name, "verdict": word, "detail": detail}
    if not judged.rows:
        yield first
    for evidence, row, _ in _pairs(judged):
        estimate, low, high = row.interval if row else (math.nan,) * 3
        yield first | {
            "evidence": evidence.what,
            "row": row.label if row else "",
            "n": row.n if row else None,
            "estimate": estimate,
            "low": low,
            "high": high,
            "beside": row.beside if row else math.nan,
            "needed": evidence.wanted,
            "result": row.side if row else "untested",
            "table": evidence.table,
        }


def _pairs(judged: Judged) -> Iterator[tuple[Evidence, Row | None, bool]]:
    """The evidence with each of its rows, or with None where it has none, and whether that is the
    first of them."""
    for evidence, rows in zip(judged.claim.evidence, judged.rows, strict=True):
        yield from ((evidence, row, row is rows[0]) for row in rows)
        if not rows:
            yield evidence, None, True


def _link(source: Source) -> str:
    return f"[{source.what}]({source.url})"
