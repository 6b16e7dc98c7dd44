"""What it takes to reach a score: censored runs, by hand and against plain computations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_bench.stats import kaplan_meier, mean_interval, time_to_reach


def test_kaplan_meier_by_hand():
    # At risk 5, 4, 2: 1/5 arrive at 2; at 3 one of 4, and another ends there; one of 2 at 5
    points, share = kaplan_meier([2, 3, 3, 5, 7], [True, True, False, True, False])
    assert list(points) == [2, 3, 5]
    assert share == pytest.approx([1 / 5, 1 - 4 / 5 * 3 / 4, 1 - 4 / 5 * 3 / 4 * 1 / 2])


RUNS = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=20)


@settings(deadline=None)
@given(RUNS)
def test_kaplan_meier_agrees_with_scipy(runs):
    times, there = (np.array(column) for column in zip(*runs, strict=True))
    points, share = kaplan_meier(times, there)
    curve = stats.ecdf(stats.CensoredData.right_censored(times, ~there)).cdf
    assert share == pytest.approx(curve.evaluate(points) if len(points) else [])


@settings(deadline=None)
@given(RUNS)
def test_the_restricted_mean_is_the_area_above_the_curve(runs):
    times, there = (np.array(column) for column in zip(*runs, strict=True))
    found = time_to_reach(times, there)
    points, share = kaplan_meier(times, there)
    edges = np.concatenate([[0], points[points < found.horizon], [found.horizon]])
    away = 1 - np.concatenate([[0], share[points < found.horizon]])
    assert found.restricted_mean.estimate == pytest.approx(np.sum(away * np.diff(edges)))


def test_runs_that_never_get_there():
    # 6 runs to 100: the median is the third of them, bounds the first and the sixth (never)
    found = time_to_reach([10, 20, 30, 40, 100, 100], [True] * 4 + [False] * 2)
    assert (found.n, found.reached, found.horizon) == (6, 4, 100)
    assert found.median == (30, 10, math.inf)
    assert found.restricted_mean == mean_interval([10, 20, 30, 40, 100, 100])


def test_a_median_that_was_not_reached():
    found = time_to_reach([10, 20, 100, 100, 100, 100], [True] * 2 + [False] * 4)
    assert found.median == (math.inf, 10, math.inf)
    none = time_to_reach([100] * 6, [False] * 6)
    # no run got there before 100, so the median is at least 100
    assert none.median == (math.inf, 100, math.inf)
    assert none.reached == 0 and none.restricted_mean == (100, 100, 100)


def test_bounds_of_the_median_are_those_of_the_sign_test():
    # Of 10 values P(at most 1 of 10 heads) = 11 / 1024 < 0.025 < 56 / 1024: the 2nd and the 9th
    times = np.arange(1.0, 11)
    assert time_to_reach(times, [True] * 10).median == (5, 2, 9)
    quantile = stats.quantile_test(times, p=0.5).confidence_interval(0.95)
    assert (quantile.low, quantile.high) == (2, 9)
    # 5 values: 2 / 32 > 0.05, so not even the extremes
    few = time_to_reach(times[:5], [True] * 5).median
    assert few.estimate == 3 and math.isnan(few.low) and math.isnan(few.high)
    assert time_to_reach(times[:5], [True] * 5, confidence=0.9).median == (3, 1, 5)


def test_runs_that_ended_early_widen_the_median_on_both_sides():
    times, there = np.arange(1.0, 11), np.ones(10, dtype=bool)
    there[[0, 7]] = False  # one that ended at 1, and one at 8
    found = time_to_reach(times, there)
    # for the lower bound they got there: the 2nd; for the upper one never: the 2nd from above is
    assert found.median[1:] == (2, math.inf)
    assert found.median.estimate == 6  # 1 - 8/9 ... 4/9 passes a half at 6: 5 of 9


def test_a_common_horizon():
    found = time_to_reach([10, 20, 90], [True, True, False], horizon=50)
    assert found.horizon == 50
    assert found.restricted_mean.estimate == pytest.approx((10 + 20 + 50) / 3)
    assert time_to_reach([10, 20, 30], [True] * 3, horizon=50).restricted_mean.estimate == 20


def test_no_runs():
    found = time_to_reach([], [])
    assert found.n == found.reached == 0
    assert all(math.isnan(x) for x in (*found.median, *found.restricted_mean, found.horizon))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: time_to_reach([1, 2], [True]), r"2 needs, reached of shape \(1,\)"),
        (lambda: time_to_reach([-1.0], [True]), "a need of -1.0"),
        (lambda: time_to_reach([math.nan], [False]), "a need of nan"),
        (lambda: time_to_reach([10], [False], horizon=20), "horizon=20: expected at most 10"),
        (lambda: time_to_reach([10], [True], confidence=0), "confidence=0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
