"""Intervals of one task against hand-worked values and scipy's own."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_bench.stats import (
    BOOTSTRAP_FROM,
    INTERVAL_FROM,
    deviation,
    deviation_ratio_interval,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    positive_mean_interval,
    spread,
    wilson,
)


def test_mean_of_three_by_hand():
    # 1, 2, 3: mean 2, s = 1, t(2) at 97.5 % = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    assert mean_interval([1, 2, 3]) == pytest.approx((2, -0.484138, 4.484138), abs=1e-6)


def test_no_spread_has_an_interval_of_width_zero():
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("interval", [mean_interval, positive_mean_interval])
def test_one_and_two_values_have_no_bounds_and_none_no_mean(interval):
    one, two, none = interval([0.25]), interval([0.25, 0.75]), interval([])
    assert (one.estimate, two.estimate) == (0.25, 0.5)
    assert all(math.isnan(x) for x in (*one[1:], *two[1:], *none))


def test_positive_mean_of_three_by_hand():
    # As above, but a factor: w = exp(2.484138 / 2) = 3.462770; 2 / w = 0.577572, 2 w = 6.925540
    assert positive_mean_interval([1, 2, 3]) == pytest.approx((2, 0.577572, 6.925540), abs=1e-5)
    assert positive_mean_interval([0.1, 0.2, 0.3]) == pytest.approx((0.2, 0.0577572, 0.692554))
    assert positive_mean_interval([5, 5, 5]) == (5, 5, 5)
    assert positive_mean_interval([0, 0, 0]) == (0, 0, 0)
    assert positive_mean_interval(TEN) == mean_interval(TEN)
    assert positive_mean_interval(TEN, 0.5) == mean_interval(TEN, 0.5)
    with pytest.raises(ValueError, match=r"x holds -1\.0: expected no negative value"):
        positive_mean_interval([1, -1, 2])


def test_ratio_of_two_pairs_has_no_bounds():
    ratio = paired_ratio_interval([1, 4], [1, 1])
    assert ratio.estimate == 2 and all(math.isnan(x) for x in ratio[1:])


def test_nan_is_passed_on():
    assert all(math.isnan(x) for x in mean_interval([1.0, math.nan, 2.0]))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=INTERVAL_FROM, max_size=BOOTSTRAP_FROM - 1).filter(
        lambda x: np.std(x) > 1e-3
    ),
    st.floats(0.5, 0.99),
)
def test_mean_of_few_agrees_with_scipy(x, confidence):
    low, high = stats.ttest_1samp(x, 0).confidence_interval(confidence)
    interval = mean_interval(x, confidence)
    assert interval == pytest.approx((np.mean(x), low, high), rel=1e-6, abs=1e-6)


TEN = np.array([0.2, 0.35, 0.4, 0.5, 0.55, 0.6, 0.62, 0.7, 0.9, 0.95])


def test_bootstrap_of_ten_is_near_the_expanded_percentiles_of_scipy():
    # Level Phi(-sqrt(10 / 9) 2.262157) = 0.008551 for t(9) at 97.5 % = 2.262157
    level = stats.norm.cdf(-math.sqrt(10 / 9) * 2.262157)
    assert level == pytest.approx(0.008551, abs=1e-6)
    other = stats.bootstrap(
        (TEN,), np.mean, confidence_level=1 - 2 * level, n_resamples=50_000, method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    # The quantile of 4,000 resampled means: error sqrt(p (1 - p) / 4000) / density, here 0.0045
    assert mean_interval(TEN) == pytest.approx((0.577, other.low, other.high), abs=0.01)
    half = stats.ttest_1samp(TEN, 0).confidence_interval().high - 0.577
    assert mean_interval(TEN).high - 0.577 == pytest.approx(half, rel=0.06)


def test_bootstrap_does_not_depend_on_what_came_before_nor_on_the_order_or_sign():
    first = mean_interval(TEN)
    np.random.default_rng(0).normal(size=100)
    mean_interval(np.arange(30.0))
    assert mean_interval(TEN) == mean_interval(TEN[::-1]) == first
    turned = mean_interval(-TEN)
    assert turned == pytest.approx((-first.estimate, -first.high, -first.low), abs=1e-12)
    moved = mean_interval(3 * TEN + 1)
    assert moved == pytest.approx([3 * x + 1 for x in first])


def test_bootstrap_of_equal_values_and_of_nan():
    assert mean_interval([0.1] * 12) == (mean_interval([0.1] * 12).estimate,) * 3
    assert mean_interval([0.1] * 12).estimate == pytest.approx(0.1)
    assert all(math.isnan(x) for x in mean_interval([math.nan, *TEN]))
    assert all(math.isnan(x) for x in paired_difference_interval([math.nan, *TEN], [0, *TEN]))


def test_bootstrap_stays_within_the_data():
    shares = [1.0] * 9 + [0.2]
    interval = mean_interval(shares)
    assert 0.2 < interval.low < interval.estimate == pytest.approx(0.92)
    assert interval.high <= 1 < stats.ttest_1samp(shares, 0).confidence_interval().high


def test_paired_ratios_of_many_are_geometric_and_invert():
    a, b = np.exp(TEN), np.ones(10)
    logs = mean_interval(TEN)
    assert paired_ratio_interval(a, b) == pytest.approx(np.exp(logs))
    turned = paired_ratio_interval(b, a)
    assert turned == pytest.approx(np.exp([-logs.estimate, -logs.high, -logs.low]))


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


def test_pairs_have_the_confidence_that_is_asked_for():
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 1.0])
    assert paired_difference_interval(a, b, 0.5) == mean_interval(a - b, 0.5)
    logs = mean_interval(np.log(a) - np.log(b), 0.5)
    assert paired_ratio_interval(a, b, 0.5) == pytest.approx(np.exp(logs))


def test_wilson_of_all_successes_is_at_most_1():
    # the bound is 1 but for rounding: of 16 it would be 1.0000000000000002
    assert all(wilson(n, n).high == 1 and wilson(0, n).low == 0 for n in range(1, 300))


def test_wilson_by_hand():
    # 0 of 4: centre (z^2 / 8) / (1 + z^2 / 4) = half width, so 0 to z^2 / (4 + z^2), z = 1.959964
    assert wilson(0, 4) == pytest.approx((0, 0, 3.841459 / 7.841459), abs=1e-6)
    assert math.isnan(wilson(0, 0).estimate)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_interval([[1.0]]), r"shape \(1, 1\)"),
        (lambda: mean_interval([1, 2], confidence=95), "confidence=95"),
        (lambda: paired_difference_interval([1, 2], [1]), "2 and 1 values"),
        (lambda: paired_ratio_interval([1, 0.0], [1, 2]), "a ratio of 0.0"),
        (lambda: wilson(5, 4), "successes=5"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_deviation_by_hand():
    assert deviation([1, 2, 4]) == pytest.approx(math.sqrt(7 / 3))  # (16 + 1 + 25) / 9 / 2
    assert deviation([3.0, 3.0, 3.0]) == 0
    assert math.isnan(deviation([1.0])) and math.isnan(deviation([]))


def test_spread_by_hand():
    # -1, 0, 1, 2 about 0.5: squares 5, fourth powers 10.25, and 4 * 10.25 / 25
    assert spread([-1, 0, 1, 2]) == pytest.approx((4, math.sqrt(5 / 3), 1.64))
    # Of five values floor(5 / 2) = 2 are cut at either end: about the median 0 the outlier has
    # 10^4, about the mean 2 the squares are 4 * 4 + 64.
    assert spread([0, 10, 0, 0, 0]).kurtosis == pytest.approx(5 * 10**4 / 80**2)
    # Of three and four nothing is cut. Squares 6, fourth powers 18; squares 12, fourth powers 84
    assert spread([0, 0, 3]).kurtosis == pytest.approx(3 * 18 / 6**2)
    assert spread([0, 0, 0, 4]).kurtosis == pytest.approx(4 * 84 / 12**2)
    # Of 20 floor(20 / 8) = 2 are cut at either end, which leaves 15 of 0 and one of 1: mean 1/16
    fourths = 17 * (1 / 16) ** 4 + 3 * (15 / 16) ** 4
    squares = 20 * 0.15 * 0.85
    assert spread([0] * 17 + [1] * 3).kurtosis == pytest.approx(20 * fourths / squares**2)
    # of two values: mean 0.5, squares 1/4 + 1/4, fourth powers 1/16 + 1/16: 2 (1/8) / (1/2)^2
    assert spread([0, 1]).kurtosis == pytest.approx(1.0)
    assert spread([1, 1 + 1e-10]).kurtosis == pytest.approx(1.0, rel=1e-4)
    assert math.isnan(spread([3.0, 3.0]).kurtosis) and spread([3.0, 3.0])[:2] == (2, 0)
    assert math.isnan(spread([0.0, 1e-200]).kurtosis)  # whose squares are 0 in floating point
    assert math.isnan(spread([1.0]).deviation) and math.isnan(spread([]).kurtosis)


def test_ratio_of_deviations_by_hand():
    # Squares 20 and 5, fourth powers 164 and 10.25: kurtosis 8 * 174.25 / 25^2 = 2.2304, variance
    # 2 (2.2304 - 1/4) / 3, t(6) at 97.5 % = 2.446912
    factor = math.exp(2.446912 * math.sqrt(2 * 1.9804 / 3) / 2)
    wide, narrow = spread([-2, 0, 2, 4]), spread([-1, 0, 1, 2])
    interval = deviation_ratio_interval(wide, narrow)
    assert interval == pytest.approx((2, 2 / factor, 2 * factor), rel=1e-6)
    turned = deviation_ratio_interval(narrow, wide)
    assert turned == pytest.approx((1 / 2, 1 / interval.high, 1 / interval.low))


def test_ratio_of_deviations_of_different_numbers_of_seeds_by_hand():
    # n 3 and 4, squares 2 and 5, fourth powers 2 and 1.64 * 5^2 / 4 = 10.25 (as above), so
    # k = 7 * 12.25 / 7^2 = 1.75; variance (k - 0) / 2 + (k - 1/4) / 3 = 1.375; t(5) = 2.570582:
    # the factor is exp(2.570582 * sqrt(1.375) / 2) = 4.5138; ratio sqrt(5/3)
    interval = deviation_ratio_interval(spread([-1, 0, 1, 2]), spread([0, 1, 2]))
    ratio = math.sqrt(5 / 3)
    assert interval == pytest.approx((ratio, ratio / 4.5138, ratio * 4.5138), rel=1e-4)
    two = deviation_ratio_interval(spread([-1, 0, 1, 2]), spread([0, 1]))
    assert two.estimate > 0 and math.isnan(two.low) and math.isnan(two.high)


def test_one_outlier_is_no_difference_in_deviation():
    rng = np.random.default_rng(0)
    calm, other = rng.normal(size=(2, 10))
    other[0] += 8
    ratio = deviation_ratio_interval(spread(calm), spread(other))
    assert ratio.estimate < 0.5 < 1 < ratio.high
    spread_out = deviation_ratio_interval(spread(calm), spread(8 * rng.normal(size=10)))
    assert spread_out.high < 1


def test_no_ratio_to_no_deviation_and_no_bounds_without_a_spread():
    some, same = spread([1.0, 2.0, 4.0]), spread([3.0, 3.0, 3.0])
    assert all(math.isnan(x) for x in deviation_ratio_interval(some, same))
    assert all(math.isnan(x) for x in deviation_ratio_interval(spread([1.0]), some))
    none = deviation_ratio_interval(same, some)
    assert none.estimate == 0 and math.isnan(none.low) and math.isnan(none.high)
