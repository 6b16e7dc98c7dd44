"""One new entry, ``mine``, for each table of formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpo_bench.grpo.advantages import BASELINES, Baseline
from grpo_bench.grpo.kl import FORMS, Form
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES

MINE: dict[str, tuple[dict[str, Any], Any]] = {
    "baseline": (BASELINES, Baseline(lambda rewards, valid, ddof, eps: rewards / 2)),
    "surrogate": (
        SURROGATES,
        lambda ratio, logp, advantages, clip: (
            ratio * (advantages + 1),
            torch.zeros_like(ratio) > 0,
        ),
    ),
    "ratio": (RATIOS, lambda log_ratio, mask: 2 * log_ratio),
    "aggregation": (AGGREGATIONS, lambda lengths, rollouts, max_len: 7.0 * rollouts),
    "kl": (FORMS, Form("loss", lambda logp, ref, old: (logp - ref) ** 2 + logp, "right")),
}


def with_mine(option: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that select the new entry, which is in its table until the test ends."""
    table, entry = MINE[option]
    monkeypatch.setitem(table, "mine", entry)
    return {option: "mine", **({"kl_coef": 0.5} if option == "kl" else {})}
