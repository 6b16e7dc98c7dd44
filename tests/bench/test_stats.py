"""Intervals against hand-worked values, scipy's own, and simulated coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpo_bench.stats import (
    deviation_ratio_interval,
    deviation_within,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    seeds_to_tell,
    wilson,
)


def test_mean_of_three_by_hand():
    # 1, 2, 3: mean 2, s = 1, t(2) at 97.5 % = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    assert mean_interval([1, 2, 3]) == pytest.approx((2, -0.484138, 4.484138), abs=1e-6)


def test_no_spread_has_an_interval_of_width_zero():
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_one_value_has_no_bounds_and_none_no_mean():
    one, none = mean_interval([0.25]), mean_interval([])
    assert one.estimate == 0.25
    assert all(math.isnan(x) for x in (one.low, one.high, *none))


def test_nan_is_passed_on():
    assert all(math.isnan(x) for x in mean_interval([1.0, math.nan, 2.0]))


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20).filter(lambda x: np.std(x) > 1e-3),
    st.floats(0.5, 0.99),
)
def test_mean_agrees_with_scipy(x, confidence):
    low, high = stats.ttest_1samp(x, 0).confidence_interval(confidence)
    interval = mean_interval(x, confidence)
    assert interval == pytest.approx((np.mean(x), low, high), rel=1e-6, abs=1e-6)


def test_coverage_of_three_seeds_is_the_nominal_one():
    draws = np.random.default_rng(0).normal(0.7, 0.1, size=(4000, 3))
    intervals = [mean_interval(x) for x in draws]
    covered = np.mean([i.low <= 0.7 <= i.high for i in intervals])
    error = math.sqrt(0.95 * 0.05 / 4000)  # of the simulation
    assert abs(covered - 0.95) < 4 * error


def test_paired_difference_takes_the_common_part_out():
    a, b = [1.1, 2.2, 3.3], [1.0, 2.0, 3.0]  # differences 0.1, 0.2, 0.3: a tenth of the case above
    expected = (0.2, 0.2 - 0.2484138, 0.2 + 0.2484138)
    assert paired_difference_interval(a, b) == pytest.approx(expected, abs=1e-6)


def test_paired_ratio_by_hand():
    # Ratios 1, 2, 4: logs 0, l, 2l with l = log 2, so mean l, s = l: bounds 2 * 2^(+-2.484138)
    interval = paired_ratio_interval([1, 4, 12], [1, 2, 3])
    assert interval == pytest.approx((2, 2**-1.484138, 2**3.484138), rel=1e-5)
    swapped = paired_ratio_interval([1, 2, 3], [1, 4, 12])
    assert swapped == pytest.approx((1 / 2, 1 / interval.high, 1 / interval.low))


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (500, 1000)])
def test_wilson_agrees_with_scipy(successes, n):
    low, high = stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes, n) == pytest.approx((successes / n, low, high), abs=1e-12)


def test_wilson_by_hand():
    # 0 of 4: centre (z^2 / 8) / (1 + z^2 / 4) = half width, so 0 to z^2 / (4 + z^2), z = 1.959964
    assert wilson(0, 4) == pytest.approx((0, 0, 3.841459 / 7.841459), abs=1e-6)
    assert math.isnan(wilson(0, 0).estimate)


def test_seeds_to_tell_gives_the_power_it_promises():
    # Cohen's textbook case: an effect of half a standard deviation takes 64 a side.
    x = np.array([-1.0, 1.0]) / math.sqrt(2)  # s = 1
    assert seeds_to_tell(x + 0.5, x) == 64
    draws = np.random.default_rng(1).normal(size=(2, 4000, 64))
    draws[0] += 0.5
    found = np.mean(stats.ttest_ind(*draws, axis=1).pvalue < 0.05)
    assert abs(found - 0.80) < 4 * math.sqrt(0.8 * 0.2 / 4000) + 0.003  # 64 gives 0.8015


def test_seeds_to_tell_at_its_edges():
    assert seeds_to_tell([1, 2], [2, 1]) == math.inf
    assert seeds_to_tell([1, 1], [2, 2]) == 2
    assert seeds_to_tell([1.0, 1.0001], [2.0, 2.0001]) == 2
    assert math.isnan(seeds_to_tell([1], [2, 3]))
    assert 1e8 < seeds_to_tell([0.0, 1.0], [0.0001, 1.0001]) < 2e9  # no loop of that length


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_interval([[1.0]]), r"shape \(1, 1\)"),
        (lambda: mean_interval([1, 2], confidence=95), "confidence=95"),
        (lambda: paired_difference_interval([1, 2], [1]), "2 and 1 values"),
        (lambda: paired_ratio_interval([1, 0.0], [1, 2]), "a ratio of 0.0"),
        (lambda: wilson(5, 4), "successes=5"),
        (lambda: seeds_to_tell([1, 2], [3, 4], power=1), "power=1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_deviation_comes_back_from_its_interval():
    for x in ([1.0, 2.0, 4.0], [0.5, 0.75], [3.0, 3.0, 3.0]):
        found = deviation_within(mean_interval(x), len(x))
        assert found == pytest.approx(np.std(x, ddof=1))
    assert math.isnan(deviation_within(mean_interval([1.0]), 1))


def test_ratio_of_deviations_by_hand():
    # F(2, 2) at 97.5 % is 39: bounds 2 / sqrt(39) and 2 sqrt(39)
    interval = deviation_ratio_interval(0.2, 3, 0.1, 3)
    assert interval == pytest.approx((2, 2 / math.sqrt(39), 2 * math.sqrt(39)))
    # unequal numbers: scipy's quantiles, and turned round it is the inverse
    interval, turned = deviation_ratio_interval(3, 5, 1, 9), deviation_ratio_interval(1, 9, 3, 5)
    assert interval.low == pytest.approx(3 / math.sqrt(stats.f.ppf(0.975, 4, 8)))
    assert turned == pytest.approx((1 / 3, 1 / interval.high, 1 / interval.low))
    assert all(math.isnan(x) for x in deviation_ratio_interval(1, 3, 0, 3))
    assert all(math.isnan(x) for x in deviation_ratio_interval(math.nan, 1, 1, 3))


def test_coverage_of_the_ratio_of_deviations():
    draws = np.random.default_rng(0).normal(size=(4000, 2, 4))
    deviations = draws.std(axis=2, ddof=1)
    intervals = [deviation_ratio_interval(a, 4, b, 4) for a, b in deviations]
    covered = np.mean([i.low <= 1 <= i.high for i in intervals])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
