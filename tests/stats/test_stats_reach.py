"""What it takes to reach a score: censored runs, by hand and against plain computations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_bench.stats import kaplan_meier, median_to_reach


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


def test_all_that_is_known_of_runs_that_never_get_there():
    # 6 runs to 100: the median is the third of them, bounds the first and the sixth (never)
    found = median_to_reach([10, 20, 30, 40, 100, 100], [True] * 4 + [False] * 2)
    assert found == (30, 10, math.inf)


def test_a_median_that_was_not_reached():
    found = median_to_reach([10, 20, 100, 100, 100, 100], [True] * 2 + [False] * 4)
    assert found == (math.inf, 10, math.inf)
    # none got there before 100, so neither did half of them
    assert median_to_reach([100] * 6, [False] * 6) == (math.inf, 100, math.inf)


def test_bounds_of_the_median_are_those_of_the_sign_test():
    # Of 10 values P(at most 1 of 10 heads) = 11 / 1024 < 0.025 < 56 / 1024: the 2nd and the 9th
    times = np.arange(1.0, 11)
    assert median_to_reach(times, [True] * 10) == (5, 2, 9)
    quantile = stats.quantile_test(times, p=0.5).confidence_interval(0.95)
    assert (quantile.low, quantile.high) == (2, 9)
    # Of 9 P(at most 1) = 10 / 512 < 0.025 < 46 / 512; of 2 P(0) = 1 / 4 is exactly the level
    assert median_to_reach(times[:9], [1] * 9)[1:] == (2, 8)
    assert median_to_reach(times[:2], [1] * 2, confidence=0.5)[1:] == (1, 2)
    # 5 values: 2 / 32 > 0.05, so not even the extremes
    few = median_to_reach(times[:5], [True] * 5)
    assert few.estimate == 3 and math.isnan(few.low) and math.isnan(few.high)
    assert median_to_reach(times[:5], [True] * 5, confidence=0.9) == (3, 1, 5)


def test_runs_that_ended_early_widen_the_median_on_both_sides():
    times, there = np.arange(1.0, 11), np.ones(10, dtype=bool)
    there[[0, 7]] = False  # one that ended at 1, and one at 8
    found = median_to_reach(times, there)
    # for the lower bound they got there: the 2nd; for the upper one never: the 2nd from above is
    assert found[1:] == (2, math.inf)
    assert found.estimate == 6  # 1 - 8/9 ... 4/9 passes a half at 6: 5 of 9


def test_no_runs():
    assert all(math.isnan(x) for x in median_to_reach([], []))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: median_to_reach([1, 2], [True]), r"2 needs, reached of shape \(1,\)"),
        (lambda: median_to_reach([-1.0], [True]), "a need of -1.0"),
        (lambda: median_to_reach([math.nan], [False]), "a need of nan"),
        (lambda: median_to_reach([10], [True], confidence=0), "confidence=0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
