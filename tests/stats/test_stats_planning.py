"""How many seeds it takes: textbook values, scipy's permutation test, simulated power."""

import math

import numpy as np
import pytest
from scipy import stats

from grpo_bench.stats import seeds_for_p, seeds_to_tell, smallest_p

HALF = np.array([-1.0, 1.0]) / math.sqrt(2) + 0.5  # mean 0.5, s = 1


def test_seeds_to_tell_gives_the_power_it_promises():
    # Cohen's textbook case: an effect of half a standard deviation takes 34 pairs.
    assert seeds_to_tell(HALF, np.zeros(2)) == 34
    draws = np.random.default_rng(1).normal(0.5, 1, size=(4000, 34))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert abs(found - 0.80) < 3 * math.sqrt(0.8 * 0.2 / 4000) + 0.008  # 34 pairs give 0.808


@pytest.mark.parametrize(
    ("effect", "n", "confidence"), [(0.5, 12, 0.95), (1.0, 6, 0.95), (0.4, 9, 0.8), (2.0, 4, 0.95)]
)
def test_seeds_to_tell_is_the_smallest_number_with_that_power(effect, n, confidence):
    """The power of n pairs by scipy's non-central t."""
    critical, shift = stats.t.ppf((1 + confidence) / 2, n - 1), effect * math.sqrt(n)
    above, below = stats.nct.sf(critical, n - 1, shift), stats.nct.cdf(-critical, n - 1, shift)
    power = above + below
    differences = HALF - 0.5 + effect
    for more, seeds in ((-1e-5, n), (1e-5, n + 1)):
        assert seeds_to_tell(differences, np.zeros(2), confidence, power + more) == seeds


def test_seeds_to_tell_is_about_pairs():
    a, common = np.array([0.1, 0.2, 0.3]), np.array([0.0, 50.0, 100.0])
    assert seeds_to_tell(a, [0, 0, 0]) == seeds_to_tell(a + common, common)
    assert seeds_to_tell(a, [0, 0, 0]) == seeds_to_tell([0, 0, 0], a)


def test_seeds_to_tell_at_its_edges():
    assert seeds_to_tell([1, 2], [2, 1]) == math.inf
    assert seeds_to_tell([1, 1], [2, 2]) == 2
    assert seeds_to_tell([1.0, 1.0], [2.0, 2.0001]) == 2
    assert math.isnan(seeds_to_tell([1], [2])) and math.isnan(seeds_to_tell([], []))
    assert math.isnan(seeds_to_tell([1, math.nan], [2, 3]))
    # Differences 1.0001 and -0.9999: (2.80 sqrt(2) / 0.0001)^2 = 1.57e9, but no loop of that length
    assert 1.56e9 < seeds_to_tell([1.0001, 0], [0, 0.9999]) < 1.58e9


@pytest.mark.parametrize(("n", "p"), [(3, 0.1), (4, 2 / 70), (5, 2 / 252)])
def test_smallest_p_is_that_of_complete_separation(n, p):
    assert smallest_p(n, n) == pytest.approx(p)
    low, high = np.arange(n), np.arange(n) + 100.0
    found = stats.permutation_test(
        (high, low), lambda x, y, axis: x.mean(axis) - y.mean(axis), vectorized=True
    )
    assert found.pvalue == pytest.approx(p)


def test_smallest_p_of_unequal_numbers_and_of_pairs():
    assert smallest_p(2, 4) == 2 / 15  # C(6, 2)
    low, high = np.arange(4), np.array([10.0, 11.0])
    found = stats.permutation_test(
        (high, low), lambda x, y, axis: x.mean(axis) - y.mean(axis), vectorized=True
    )
    assert found.pvalue == pytest.approx(2 / 15)
    assert smallest_p(6, 6, paired=True) == 2 / 64
    assert stats.wilcoxon(np.arange(1.0, 7.0)).pvalue == pytest.approx(2 / 64)
    assert smallest_p(1, 1) == smallest_p(1, 1, paired=True) == 1


def test_seeds_for_p():
    assert [seeds_for_p(p) for p in (0.1, 0.05, 0.01, 0.001)] == [3, 4, 5, 7]  # 2 / 3432 at 7
    assert [seeds_for_p(p, paired=True) for p in (0.5, 0.05, 0.01)] == [2, 6, 8]  # 2 / 64, 2 / 256


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: seeds_to_tell([1, 2], [3, 4], power=1), "power=1"),
        (lambda: seeds_to_tell([1, 2], [3]), "2 and 1 values"),
        (lambda: smallest_p(0, 3), "0 and 3 seeds: expected at least one"),
        (lambda: smallest_p(2, 3, paired=True), "2 and 3 seeds: pairs need the same number"),
        (lambda: seeds_for_p(0), "p=0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
