"""Every case of tests/cases that is about the algorithm, through the public functions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.distributions import CategoricalDistribution

from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import group_advantages
from grpo_bench.grpo.objectives import Clip, policy_loss

CASES = Path(__file__).parent.parent / "cases"


def cases(name: str) -> Any:
    listed = json.loads((CASES / f"{name}.json").read_text())
    ids = [case.get("name", f"case {i}") for i, case in enumerate(listed)]
    return pytest.mark.parametrize("case", listed, ids=ids)


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@cases("advantages")
def test_advantages(case):
    options = {name: case[name] for name in ("baseline", "ddof", "eps") if name in case}
    advantages = group_advantages(double(case["rewards"]), **options)
    torch.testing.assert_close(advantages, double(case["expected"]), rtol=1e-12, atol=1e-12)
    flat = [max(row) == min(row) for row in case["rewards"]]
    if case.get("baseline", "group") not in ("batch",):
        assert (advantages[torch.tensor(flat)] == 0).all(), "exactly 0 without spread"


@cases("objective")
def test_objective(case):
    loss, clip_fraction, _ = policy_loss(
        double(case["logp"]),
        double(case["old"]),
        double(case["advantages"]),
        torch.tensor(case["mask"], dtype=torch.bool),
        aggregation=case.get("agg", "sequence_mean"),
        max_len=case.get("max_len"),
        ratio=case.get("ratio", "token"),
        clip=Clip(case.get("low", 0.2), case.get("high", 0.2)),
    )
    # the weights are float32
    torch.testing.assert_close(loss, double(case["expected_loss"]), rtol=1e-6, atol=1e-7)
    assert clip_fraction.item() == pytest.approx(case["expected_clip_fraction"])


@cases("kl")
def test_kl(case):
    pi, logp, ref_logp = double(case["pi"]), double(case["pi"]).log(), double(case["ref"]).log()
    for name in ("k1", "k2", "k3", "tutorial"):
        expected = (pi * kl.ESTIMATORS[name](logp, ref_logp)).sum()
        assert expected.item() == pytest.approx(case[f"expected_{name}"], abs=1e-12)
    policy, reference = (
        CategoricalDistribution(len(pi)).proba_distribution(logits[None])
        for logits in (logp, ref_logp)
    )
    assert kl.exact(policy, reference).item() == pytest.approx(case["kl"], abs=1e-12)
