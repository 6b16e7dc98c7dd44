"""The claim ledger: public claims about GRPO, their sources, and a verdict on each.

A verdict is never written by hand. A claim has evidence (``evidence.py``): rows of committed tables
and a threshold. The verdict depends on which rows are wholly on the claim's side:

- all of them, and nothing is untested: ``holds``
- some: ``holds only if`` the conditions of those hold
- none, and some are wholly on the other side: ``does not hold``
- none on either side: ``cannot tell``, at so many seeds
- there are no rows: ``untested``
- there is no source for the claim: ``no source found``, followed by what the evidence says
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from grpo_bench.report.claims.evidence import Evidence, Row, rows_of


class Source(NamedTuple):
    """Who makes the claim, or who examines it."""

    what: str
    url: str


@dataclass(frozen=True)
class Claim:
    """A claim as people make it.

    remark: a note on the sources; "": none.
    protocol: how it is tested, in words.
    """

    name: str
    says: str
    sources: Sequence[Source]
    remark: str
    protocol: str
    evidence: Sequence[Evidence]


class Verdict(NamedTuple):
    """word: one of those at the top of the file. detail: the condition, or what cannot be told; "".
    untested: the evidence for which there are no rows."""

    word: str
    detail: str
    untested: tuple[str, ...]

    def __str__(self) -> str:
        text = " ".join(part for part in (self.word, self.detail) if part)
        if self.untested:
            text += ": " if self.word == "untested" else "; untested: "
            text += "; ".join(self.untested)
        return text


@dataclass(frozen=True)
class Judged:
    """A claim, the rows of each of its pieces of evidence, and what follows."""

    claim: Claim
    rows: Sequence[Sequence[Row]]
    verdict: Verdict


Tables = Callable[[str], pd.DataFrame | None]  # a table by its path, None if it is not there


def parse_claim(name: str, entry: dict[str, Any]) -> Claim:
    """A claim from an entry of the file of claims.

    Raises:
        ValueError: a key is missing, or is none of a claim's or of its evidence's.
    """
    try:
        sources = [Source(**source) for source in entry["sources"]]
        evidence = [Evidence(**block) for block in entry["evidence"]]
        rest = {k: v for k, v in entry.items() if k not in ("sources", "evidence")}
        return Claim(name, **{"remark": "", **rest}, sources=sources, evidence=evidence)
    except (KeyError, TypeError) as error:
        raise ValueError(f"claim {name!r}: {error}") from None


def judge(claim: Claim, tables: Tables) -> Judged:
    """The verdict on a claim.

    Raises:
        ValueError: a table lacks a column that the evidence names.
    """
    rows = [rows_of(evidence, tables(evidence.table)) for evidence in claim.evidence]
    found = verdict(claim.evidence, rows)
    if not claim.sources:
        said = " ".join(part for part in (found.word, found.detail) if part)
        detail = "" if found.word == "untested" else f"(measured anyway: {said})"
        found = Verdict("no source found", detail, found.untested)
    return Judged(claim, rows, found)


def verdict(evidence: Sequence[Evidence], rows: Sequence[Sequence[Row]]) -> Verdict:
    """What follows from the rows of each piece of evidence, if the claim has a source."""
    untested = tuple(e.what for e, some in zip(evidence, rows, strict=True) if not some)
    every = [row for some in rows for row in some]
    sides = {row.side for row in every}
    if not every:
        return Verdict("untested", "", untested)
    if sides == {"passes"} and not untested:
        return Verdict("holds", "", ())
    if "passes" in sides:
        return Verdict("holds only if", _condition(evidence, rows), untested)
    open_rows = [row for row in every if row.side == "cannot tell"]
    if "fails" not in sides:
        return Verdict("cannot tell", _at_seeds(open_rows), untested)
    if open_rows:
        labels = "; ".join(row.label for row in open_rows)
        detail = f"(cannot tell {_at_seeds(open_rows)}: {labels})"
        return Verdict("does not hold", detail, untested)
    return Verdict("does not hold", "", untested)


def _condition(evidence: Sequence[Evidence], rows: Sequence[Sequence[Row]]) -> str:
    """The conditions of what passes; where others of the same evidence do not, with its rows."""
    parts = []
    for piece, some in zip(evidence, rows, strict=True):
        passing = [row.label for row in some if row.side == "passes"]
        if passing:
            whole = len(passing) == len(some)
            parts.append(piece.only_if if whole else f"{piece.only_if} ({'; '.join(passing)})")
    return "; or ".join(parts)


def _at_seeds(rows: Sequence[Row]) -> str:
    counts = [row.n for row in rows if row.n is not None]
    if not counts:
        return ""
    return f"at {max(counts)} seed{'' if max(counts) == 1 else 's'}"
