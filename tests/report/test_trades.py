"""GRPO beside each critic of PPO, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.curves import curve, run, summaries_of

from grpo_bench.report import build_tables, display

TEST, RATE = "eval/test/success", "time/transitions_per_second"


def with_critic(made: dict[str, Any], critic: str) -> dict[str, Any]:
    """The run as one of a PPO with this critic."""
    algo = {"name": made["row"]["algo"], "kind": "ppo", "critic": critic}
    config = made["row"]["config"] | {"algo": algo}
    return made | {"row": made["row"] | {"config": config}}


def last(success: float, rate: float, static: float) -> dict[str, float]:
    """The last values of a run."""
    peaks = {"memory/peak_bytes": 100 * static, "memory/policy_bytes": static}
    return {TEST: success, RATE: rate, **peaks}


# GRPO takes 1 s for what PPO takes 3 s for, and half of a second network's bytes.
GRPO = [
    run("grpo", 1, curve([0.2, 0.5, 0.6, 0.8]), **last(0.7, 600.0, 10.0)),
    run("grpo", 2, curve([0.2, 0.5, 0.7, 0.8]), **last(0.9, 600.0, 10.0)),
]
OTHER = [run("rloo", 1, curve([0.2, 0.9]), **last(0.9, 1.0, 1.0))]
PPO = [
    run("ppo", 1, curve([0.2, 0.6, 0.8, 0.9], seconds=3.0), **last(0.8, 200.0, 20.0)),
    run("ppo", 2, curve([0.2, 0.6, 0.9, 0.9], seconds=3.0), **last(0.8, 200.0, 20.0)),
]
SHARED = [
    with_critic(
        run("ppo_shared", s, curve([0.2, 0.4, 0.8, 0.9], seconds=2.0), **last(0.9, 300.0, 10.0)),
        "shared",
    )
    for s in (1, 2)
]


def rows(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {r["critic"]: r for r in build_tables(summaries_of(runs))["trades"].to_dict("records")}


def test_by_hand() -> None:
    found = rows(GRPO + OTHER + PPO + SHARED)
    assert list(found) == ["separate", "shared trunk"]
    assert {row["algo"] for row in found.values()} == {"grpo"}
    separate, shared = found["separate"], found["shared trunk"]
    # -0.1 and +0.1
    assert (separate["test_success"], separate["ppo_success"]) == pytest.approx((0.8, 0.8))
    assert separate["difference"] == pytest.approx(0) and separate["verdict"].startswith(
        "cannot tell"
    )
    # after 3 s GRPO is done, at 0.8, and PPO at its first evaluation, at 0.6
    assert separate["seconds"] == 3.0
    assert separate["seconds_difference"] == pytest.approx(0.2)
    assert separate["seconds_verdict"] == "cannot tell (needs 6)"  # twice the same
    assert separate["speed_ratio"] == pytest.approx(3)
    assert separate["static_ratio"] == pytest.approx(0.5)
    assert separate["peak_ratio"] == pytest.approx(0.5)
    # after 3 s the other is half-way between 0.4 and 0.8
    assert shared["seconds_difference"] == pytest.approx(0.2)
    assert shared["difference"] == pytest.approx(-0.1)
    assert shared["verdict"].startswith("cannot tell (needs ")
    assert shared["speed_ratio"] == pytest.approx(2)
    assert shared["static_ratio"] == pytest.approx(1)


def test_runs_that_failed_stay_in_both_denominators() -> None:
    failed = [run("grpo", 3, status="oom"), run("ppo", 3, status="failed")]
    elsewhere = run("rloo", 4, status="nan")
    tables = build_tables(summaries_of(GRPO + PPO + [*failed, elsewhere]))
    row = display("trades", tables["trades"]).iloc[0]
    assert (row["ok"], row["PPO ok"]) == ("2/3", "2/3")
    notes = tables["trades"].attrs["footnotes"]
    assert any("oom (seed 3)" in note for note in notes)
    assert any("failed (seed 3)" in note for note in notes)
    assert not any("rloo" in note for note in notes)  # which is no matter of this table
    assert any("rloo" in note for note in tables["summary"].attrs["footnotes"])


def test_a_ppo_with_several_settings_is_beside_nobody() -> None:
    other = run("ppo", 1, curve([0.2, 0.6]), **last(0.8, 200.0, 20.0))
    other["row"] |= {"variant": "other", "run": "vlm/ppo/other"}
    assert list(rows(GRPO + PPO + SHARED)) == ["separate", "shared trunk"]
    assert list(rows(GRPO + PPO + SHARED + [other])) == ["shared trunk"]


def test_two_ppos_with_one_kind_of_critic_are_told_apart() -> None:
    other = [run("my_ppo", s, **last(0.9, 300.0, 10.0)) for s in (1, 2)]
    found = rows(GRPO + PPO + SHARED + [with_critic(made, "separate") for made in other])
    assert list(found) == ["separate: ppo", "separate: my_ppo", "shared trunk"]


def test_no_row_without_one_of_the_two() -> None:
    assert "trades" not in build_tables(summaries_of(GRPO + OTHER))
    assert "trades" not in build_tables(summaries_of(OTHER + PPO))
