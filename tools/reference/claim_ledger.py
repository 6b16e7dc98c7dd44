"""The claim ledger: results/claims.yaml judged by the tables in results/reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from grpo_bench.report.claims import ledger
from grpo_bench.report.claims.judge import Judged, judge, parse_claim
from grpo_bench.report.text.writers import csv
from tools.reference.committed import RESULTS, Committed

CLAIMS = Path("results/claims.yaml")


def judged(root: Path) -> list[Judged]:
    """Every claim with its evidence and verdict.

    Raises:
        ValueError: an entry or a table is not as it should be, see ``report.claims``.
    """

    def read(name: str) -> pd.DataFrame | None:
        path = root / RESULTS / name
        if not path.exists():
            return None
        return pd.read_csv(path, keep_default_na=False, na_values=[""])

    entries: Any = OmegaConf.to_container(OmegaConf.load(root / CLAIMS))
    return [judge(parse_claim(name, entry), read) for name, entry in entries.items()]


def claim_pages(committed: Committed) -> dict[Path, str]:
    """``claims.md`` and ``claims.csv``, and the verdicts alone."""
    found = judged(committed.root)
    return {
        RESULTS / "verdicts.md": f"{ledger.verdicts(found)}\n",
        RESULTS / "claims.md": ledger.claims_page(found),
        RESULTS / "claims.csv": csv(ledger.numbers(found)),
    }
