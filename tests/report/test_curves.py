"""Curves of success over the four budgets, and their means over runs."""

import math

import numpy as np
import pytest
from support.curves import curve, groups_of, run, summaries_of

from grpo_bench.report.rows.curves import AXES, NEVER, learning_curves, reading_places, run_curves


def points(frame, algo, axis):
    """x, n and success of a curve, as lists."""
    rows = frame[(frame["algo"] == algo) & (frame["axis"] == axis)]
    return [rows[name].tolist() for name in ("x", "n", "success")]


def only(runs):
    """The curve of the only run."""
    (found,) = run_curves(summaries_of(runs)).values()
    return found


def test_a_curve_is_read_on_the_line_between_two_evaluations():
    one = only([run("grpo", 1, curve([0.2, 0.4, 0.8], seconds=2.0))])
    x = np.array([-1.0, 0.0, 50.0, 150.0, 200.0, 201.0])
    np.testing.assert_allclose(one.at("transitions", x), [np.nan, 0.2, 0.3, 0.6, 0.8, np.nan])
    np.testing.assert_allclose(one.at("seconds", np.array([3.0])), [0.6])


def test_within_so_many_bytes_counts_the_best_so_far():
    # The allocator gave some back before the third evaluation: the process had held 300 before.
    one = only([run("grpo", 1, curve([0.2, 0.7, 0.6, 0.9], peaks=[100, 300, 250, 400]))])
    x = np.array([99.0, 100.0, 299.0, 300.0, 399.0, 400.0, 1e9])
    np.testing.assert_allclose(one.at("peak_bytes", x), [np.nan, 0.2, 0.2, 0.7, 0.7, 0.9, 0.9])


def test_what_it_takes_by_hand():
    one = only([run("grpo", 1, curve([0.2, 0.4, 0.3, 0.8, 0.7]))])
    assert [one.reaches(score) for score in (0.2, 0.4, 0.5, 0.8, 0.9)] == [0, 1, 3, 3, NEVER]
    assert one.need("transitions", 0.5, 3) == pytest.approx(240)  # 0.2 of the way from 0.3 to 0.8
    assert one.need("gradient_steps", 0.5, 3) == pytest.approx(24)
    assert one.need("transitions", 0.3, 1) == 100  # at the first evaluation: no more than that
    assert one.need("seconds", 0.9, NEVER) == 4.0  # all that there was


def test_the_mean_over_runs_where_all_were_evaluated():
    shown = ([0.2, 0.4, 0.8], [0.3, 0.5, 0.8], [0.4, 0.6, 0.8])
    runs = [run("grpo", seed, curve(success)) for seed, success in enumerate(shown)]
    frame = learning_curves(groups_of(summaries_of(runs)), summaries_of(runs))
    expected = [[0.0, 100.0, 200.0], [3, 3, 3], pytest.approx([0.3, 0.5, 0.8])]
    assert points(frame, "grpo", "transitions") == expected
    first = frame.iloc[0]  # s = 0.1, half width 4.302653 * 0.1 / sqrt(3) = 0.2484
    assert first["success_low"] == pytest.approx(0.3 - 0.2484, abs=1e-4)
    assert first["success_high"] == pytest.approx(0.3 + 0.2484, abs=1e-4)
    two = learning_curves(groups_of(summaries_of(runs[:2])), summaries_of(runs[:2]))
    assert two["success_low"].isna().all() and two["success"].notna().all()
    last = frame[frame["x"] == 200].iloc[0]
    assert [last["success_low"], last["success_high"]] == pytest.approx([0.8, 0.8])
    assert list(frame["axis"].unique()) == list(AXES)


def test_runs_of_different_lengths_end_with_the_shortest():
    # Seconds 0, 1, 2 and 0, 2, 4: from 0 to 2 at three places; the slower one is at 0.5 after 1.
    runs = [run("grpo", 1, curve([0.2, 0.4, 0.8])), run("grpo", 2, curve([0.4, 0.6, 0.9], 100, 2))]
    frame = learning_curves(groups_of(summaries_of(runs)), summaries_of(runs))
    expected = [[0.0, 1.0, 2.0], [2, 2, 2], pytest.approx([0.3, 0.45, 0.7])]
    assert points(frame, "grpo", "seconds") == expected


def test_more_memory_than_a_run_needed_changes_nothing_for_it():
    one = curve([0.2, 0.4], peaks=[100, 200])
    two = curve([0.4, 0.8], peaks=[120, 400])
    runs = [run("grpo", 1, one), run("grpo", 2, two)]
    frame = learning_curves(groups_of(summaries_of(runs)), summaries_of(runs))
    expected = [[120.0, 400.0], [2, 2], pytest.approx([0.3, 0.6])]
    assert points(frame, "grpo", "peak_bytes") == expected


def test_equal_places_count_once_and_places_apart_give_no_curve():
    same = np.array([5.0, 5.0, 7.0])
    assert reading_places([same, same], "peak_bytes").tolist() == [5.0, 7.0]
    early, late = np.array([0.0, 1.0]), np.array([2.0, 3.0])
    assert reading_places([early, late], "seconds").size == 0


def test_runs_without_a_curve_are_left_out():
    failed = run("grpo", 3, curve([0.9, 0.9]), status="oom")
    bare = run("grpo", 2)
    broken = run("grpo", 4, curve([0.2, math.nan]))
    summaries = summaries_of([run("grpo", 1, curve([0.2, 0.4])), bare, failed, broken])
    assert list(run_curves(summaries)) == ["vlm/grpo/1", "vlm/grpo/4"]
    assert run_curves(summaries)["vlm/grpo/4"].success.tolist() == [0.2]
    none = summaries_of([bare, failed])
    assert run_curves(none) == {}
    frame = learning_curves(groups_of(none), none)
    assert frame.empty and list(frame.columns)[:4] == ["env", "budget", "algo", "axis"]
