"""Tables of success at equal budgets and of what it takes to reach a score."""

import math

import pytest
from support.curves import curve, groups_of, run, summaries_of

from grpo_bench.report import build_tables, display
from grpo_bench.report.rows.budgets import SCORES, equal, reach
from grpo_bench.report.rows.curves import run_curves


def rows(table, runs, reference="ppo"):
    """The rows of a table, by algorithm and what tells them apart."""
    summaries = summaries_of(runs)
    made = table(groups_of(summaries, reference), run_curves(summaries))
    return {(row["algo"], row.get("axis", row.get("score"))): row for row in made}


# GRPO takes 1 s for what PPO takes 3 s for.
GRPO = [run("grpo", s, curve([0.2, 0.5, 0.6 + d, 0.8])) for s, d in ((1, 0.0), (2, 0.1))]
PPO = [run("ppo", s, curve([0.2, 0.6, 0.8 + d, 0.9], seconds=3.0)) for s, d in ((1, 0.0), (2, 0.1))]


# -- equal budgets --------------------------------------------------------------------------------


def test_equal_by_hand():
    found = rows(equal, GRPO + PPO)
    assert list(found) == [(a, x) for x in ("transitions", "seconds") for a in ("grpo", "ppo")]
    same = found["grpo", "transitions"]
    assert (same["at"], same["n"], same["success"]) == (300, 2, pytest.approx(0.8))
    assert same["difference"] == pytest.approx(-0.1)
    assert same["verdict"] == "cannot tell (needs 6)"  # by as much with both seeds
    assert found["ppo", "transitions"]["verdict"] == "reference"
    # GRPO has trained for 3 s at its end, PPO then at its first evaluation
    quick, slow = found["grpo", "seconds"], found["ppo", "seconds"]
    assert (quick["at"], quick["success"]) == (3.0, pytest.approx(0.8))
    assert slow["success"] == pytest.approx(0.6) and math.isnan(slow["success_low"])  # two seeds
    assert (quick["difference"], quick["verdict"]) == (
        pytest.approx(0.2),
        "cannot tell (needs 6)",
    )


def test_unequal_ends_are_read_where_the_shortest_ends():
    short = [run("ppo", 1, curve([0.2, 0.4, 0.6], every=125))]
    row = rows(equal, GRPO[:1] + short)["grpo", "transitions"]
    assert (row["at"], row["success"]) == (250, pytest.approx(0.7))  # between 0.6 and 0.8
    assert (row["difference"], row["verdict"]) == (pytest.approx(0.1), "cannot tell")  # one seed
    assert math.isnan(row["success_low"]) and math.isnan(row["difference_low"])


def test_nothing_is_known_before_the_first_evaluation_of_training():
    # GRPO ends after 3 s; one run of PPO has its first evaluation then, and one later. The mean of
    # those that are quick enough would be one of chosen seeds.
    slow = [run("ppo", s, curve([0.2, 0.6, 0.8], seconds=x)) for s, x in ((1, 3.0), (2, 3.5))]
    found = rows(equal, GRPO + slow)
    assert found["grpo", "seconds"]["success"] == pytest.approx(0.8)
    assert math.isnan(found["ppo", "seconds"]["success"])
    assert found["ppo", "seconds"]["n"] == 0
    assert math.isnan(found["grpo", "seconds"]["difference"])
    assert found["grpo", "seconds"]["verdict"] == ""


def test_no_winner_where_the_interval_holds_0():
    mixed = [
        *(run("grpo", s, curve([0.2, x])) for s, x in ((1, 0.5), (2, 0.9), (3, 0.8))),
        *(run("ppo", s, curve([0.2, x])) for s, x in ((1, 0.6), (2, 0.6), (3, 0.6))),
    ]
    row = rows(equal, mixed)["grpo", "transitions"]
    assert row["difference"] > 0 > row["difference_low"]
    assert row["verdict"].startswith("cannot tell (needs ")


def test_a_failed_run_and_one_without_evaluations_leave_the_others():
    others = [run("grpo", 3, curve([0.2, 0.9]), status="oom"), run("grpo", 4)]
    row = rows(equal, [*GRPO, *others, *PPO])["grpo", "transitions"]
    assert (row["ok"], row["planned"], row["n"]) == (3, 4, 2)
    assert row["at"] == 300  # the failed run, which ended at 100, does not say when


def test_seconds_are_of_the_commonest_machine_alone():
    other = run("grpo", 3, curve([0.2, 0.3, 0.4, 0.5], seconds=0.1), processor="other")
    found = rows(equal, [*GRPO, other, *PPO])
    row = found["grpo", "seconds"]
    assert (row["at"], row["n"], row["success"]) == (3.0, 2, pytest.approx(0.8))
    assert found["grpo", "transitions"]["n"] == 3


def test_without_any_curve_there_is_a_row_without_numbers():
    row = rows(equal, [run("grpo", 1), run("grpo", 2, status="killed")])["grpo", "transitions"]
    assert (row["ok"], row["planned"], row["n"]) == (1, 2, 0)
    assert math.isnan(row["at"]) and math.isnan(row["success"])


# -- to reach a score -----------------------------------------------------------------------------


def test_reach_by_hand():
    found = rows(reach, GRPO + PPO)
    # 0.95 no run reaches, 0.5 all at their first evaluation
    assert list(found) == [(a, s) for s in (0.75, 0.9) for a in ("grpo", "ppo")]
    # 0.75: GRPO on the way from 0.6 or 0.7 to 0.8, at 275 and 250; PPO on that from 0.6 to 0.8 or
    # 0.9, at 175 and 150. Ratios 11/7 and 5/3; of the middle two the Kaplan-Meier median is the
    # first, where half have got there.
    quick, slow = found["grpo", 0.75], found["ppo", 0.75]
    assert (quick["reached"], quick["at_first"], quick["n"]) == (2, 0, 2)
    assert quick["transitions"] == pytest.approx(250)
    assert quick["gradient_steps"] == pytest.approx(25)
    assert (quick["seconds"], slow["seconds"]) == pytest.approx((2.5, 4.5))
    assert quick["transitions_ratio"] == pytest.approx(math.sqrt(11 / 7 * 5 / 3))
    assert quick["seconds_ratio"] == pytest.approx(math.sqrt(11 / 21 * 5 / 9))
    assert math.isnan(slow["transitions_ratio"])  # the reference


def test_at_the_first_evaluation_there_is_a_bound_and_no_ratio():
    late = [run("grpo", 1, curve([0.2, 0.4, 0.6])), run("ppo", 1, curve([0.2, 0.5, 0.6]))]
    found = rows(reach, late)
    mine, its = found["grpo", 0.5], found["ppo", 0.5]
    assert (mine["transitions"], mine["at_first"]) == (pytest.approx(150), 0)
    assert (its["transitions"], its["at_first"]) == (100, 1)
    assert math.isnan(mine["transitions_ratio"]) and math.isnan(mine["seconds_ratio"])


def test_runs_that_never_get_there_are_not_dropped():
    never = [run("grpo", s, curve([0.2, 0.3, 0.4, 0.4])) for s in (3, 4, 5)]
    row = rows(reach, [*GRPO, *never, *PPO])["grpo", 0.75]
    assert (row["reached"], row["n"]) == (2, 5)
    assert row["transitions"] == math.inf  # fewer than half of 5
    row = rows(reach, [*GRPO, *never[:2], *PPO])["grpo", 0.75]
    assert (row["reached"], row["n"]) == (2, 4)
    assert row["transitions"] == pytest.approx(275)  # where the second of 4 gets there


def test_the_few_that_get_there_late_do_not_stand_for_all():
    # The others end sooner, so that Kaplan and Meier would have half of all there after 2.5 s.
    quick = [run("grpo", s, curve([0.2, 0.3, 0.4], seconds=0.1)) for s in (1, 2)]
    row = rows(reach, [*quick, run("grpo", 3, curve([0.2, 0.4, 0.4, 0.6]))])["grpo", 0.5]
    assert (row["reached"], row["n"], row["seconds"]) == (1, 3, math.inf)


def test_no_ratio_where_a_pair_does_not_get_there():
    lost = run("grpo", 3, curve([0.2, 0.3, 0.4, 0.5]))
    third = run("ppo", 3, curve([0.2, 0.6, 0.9, 0.9], seconds=3.0))
    found = rows(reach, [*GRPO, lost, *PPO, third])
    assert math.isnan(found["grpo", 0.75]["transitions_ratio"])
    unpaired = rows(reach, [*GRPO, lost, *PPO])  # a seed that the reference lacks is no pair
    assert not math.isnan(unpaired["grpo", 0.75]["transitions_ratio"])


def test_scores_that_a_run_begins_with_are_left_out():
    high = run("grpo", 3, curve([0.55, 0.6, 0.8, 0.96]))
    scores = {score for _, score in rows(reach, [*GRPO, high, *PPO])}
    assert scores == {0.75, 0.9, 0.95} == set(SCORES) - {0.5}
    quick = [run(a, 1, curve([0.2, 0.97, 0.98])) for a in ("grpo", "ppo")]
    assert rows(reach, quick) == {}  # all by the first evaluation, which tells nothing
    assert rows(reach, [run("grpo", 1)]) == {}


def test_a_failed_run_stays_in_the_denominator():
    tables = build_tables(summaries_of([*GRPO, run("grpo", 3, status="nan"), *PPO]))
    for name in ("equal", "reach"):
        shown = display(name, tables[name])
        assert set(shown[shown["algo"] == "grpo"]["ok"]) == {"2/3"}
        assert set(shown[shown["algo"] == "ppo"]["ok"]) == {"2/2"}
    reached = display("reach", tables["reach"])
    assert list(reached["reached"]) == ["2/2", "2/2", "0/2", "2/2"]
    assert list(reached["k transitions"])[2] == "∞"


def test_equal_and_reach_without_a_reference():
    tables = build_tables(summaries_of([*GRPO, run("dapo", 1, curve([0.2, 0.3, 0.4]))]), "dapo")
    assert tables["equal"].attrs["reference"] == "dapo"
    alone = build_tables(summaries_of(GRPO))
    assert set(alone["equal"]["verdict"]) == {"reference"}
    assert alone["reach"]["transitions_ratio"].isna().all()


def test_a_transition_of_a_language_model_is_a_token():
    runs = [
        *(run("grpo", s, curve([0.2, 0.4, 0.6]), model=True) for s in (1, 2)),
        *(run("ppo", s, curve([0.2, 0.3, 0.7]), model=True) for s in (1, 2)),
    ]
    tables = build_tables(summaries_of(runs))
    assert list(tables["equal"]["axis"]) == ["tokens", "tokens", "seconds", "seconds"]
    shown = display("reach", tables["reach"])
    assert {"k tokens", "tokens ×"} <= set(shown.columns)
    assert "k transitions" not in shown.columns
    assert list(shown["k tokens"]) == ["0.150", "0.150"]
    assert "Held equal: tokens, or seconds" in tables["equal"].attrs["reading"]
