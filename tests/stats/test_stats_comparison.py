"""Two algorithms: hand-worked values, and scipy's tests on the same numbers."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_bench.stats import (
    AGGREGATE_FROM,
    comparison,
    mcnemar,
    nested_permutation,
    paired_difference_interval,
    probability_of_improvement,
    smallest_p,
)
from grpo_bench.stats.resampling import counts, expanded_level

# -- probability of improvement -------------------------------------------------------------------


def test_improvement_by_hand():
    # 1 beats 0, ties with 1; 3 beats both: (1 + 1/2 + 2) / 4. Second task: never
    x, y = [[1.0, 3.0], [0.0]], [[0.0, 1.0], [1.0, 2.0, 3.0]]
    assert probability_of_improvement(x[:1], y[:1]).estimate == 3.5 / 4
    assert probability_of_improvement(x, y).estimate == 3.5 / 8


def test_improvement_is_the_statistic_of_mann_and_whitney():
    rng = np.random.default_rng(0)
    x = [rng.integers(5, size=n) for n in (8, 11)]
    y = [rng.integers(6, size=n) for n in (9, 7)]
    expected = np.mean(
        [stats.mannwhitneyu(a, b).statistic / len(a) / len(b) for a, b in zip(x, y, strict=True)]
    )
    assert probability_of_improvement(x, y).estimate == pytest.approx(expected)


def test_improvement_has_the_interval_of_a_bootstrap_written_out():
    rng = np.random.default_rng(1)
    x, y = rng.normal(0.5, 1, size=12), rng.normal(size=10)
    drawn = [np.mean(rng.choice(x, 12)[:, None] > rng.choice(y, 10)) for _ in range(3000)]
    level = stats.norm.cdf(-math.sqrt(10 / 9) * stats.t.ppf(0.975, 9))
    estimate, low, high = probability_of_improvement([x], [y])
    assert estimate == pytest.approx(np.mean(x[:, None] > y))
    expected = np.quantile(drawn, [level, 1 - level])
    assert (low, high) == pytest.approx(expected, abs=0.06 * (high - low))


def test_improvement_on_unlike_tasks_by_hand():
    """X always wins one task and always loses the other: each bootstrap has width 0."""
    low, high = np.arange(10.0), np.arange(10.0) + 100
    found = probability_of_improvement([high, low], [low, high])
    # 10 pairs each: 0.025^(1 / 10) = 0.691503, so distances of 0.308497 on one side of each task
    half = 0.308497 / 2
    assert found == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)


def test_improvement_without_an_exception_is_still_bounded():
    above, below = [np.arange(10) + 100.0] * 2, [np.arange(12) * 1.0] * 2
    # As if all of 10 independent pairs were won, on each of the tasks: Clopper and Pearson
    distance = (1 - stats.binomtest(10, 10).proportion_ci().low) * math.sqrt(2) / 2
    assert probability_of_improvement(above, below) == pytest.approx((1, 1 - distance, 1))
    assert probability_of_improvement(below, above) == pytest.approx((0, 0, distance))


def test_improvement_draws_every_side_of_every_task_by_itself(monkeypatch):
    """And its level is that of the smaller side, with n - 1 degrees of freedom."""
    streams, levels = [], []

    def drawn(n, stratum=0):
        streams.append(stratum)
        return counts(n, stratum)

    def level(*arguments):
        levels.append(arguments)
        return expanded_level(*arguments)

    monkeypatch.setattr(comparison, "counts", drawn)
    monkeypatch.setattr(comparison, "expanded_level", level)
    x = [np.arange(7.0), np.arange(8.0), np.arange(9.0)]
    probability_of_improvement(x, [np.arange(8.0) + 0.5] * 3, 0.9)
    assert sorted(streams) == list(range(6))
    assert levels == [(7, 6, 0.9), (8, 7, 0.9), (8, 7, 0.9)]


def test_improvement_of_equals_is_a_half():
    assert probability_of_improvement([np.ones(9)], [np.ones(9)]) == (0.5, 0.5, 0.5)


def test_improvement_without_enough_runs_or_numbers():
    few = probability_of_improvement([np.arange(AGGREGATE_FROM - 1)], [np.arange(20)])
    assert not math.isnan(few.estimate) and math.isnan(few.low) and math.isnan(few.high)
    enough = probability_of_improvement([np.arange(AGGREGATE_FROM)], [np.arange(20)])
    assert not np.isnan(enough).any()
    unknown = probability_of_improvement([[math.nan] * 10], [np.arange(10)])
    assert all(math.isnan(x) for x in unknown)


# -- the same problems ----------------------------------------------------------------------------


def test_mcnemar_by_hand():
    # Only a: 5, only b: 1, both 2, none 1. P(at most 1 of 6 heads) = 7 / 64, twice that
    a = [1] * 5 + [0] + [1, 1] + [0]
    b = [0] * 5 + [1] + [1, 1] + [0]
    assert mcnemar(a, b) == (5, 1, pytest.approx(14 / 64))
    assert mcnemar(b, a) == (1, 5, pytest.approx(14 / 64))
    assert mcnemar(a, a) == (0, 0, 1)
    assert mcnemar([1, 0], [0, 1]) == (1, 1, 1)  # twice 3 / 4 is no probability
    assert mcnemar([], []).p == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_agrees_with_scipy(answers):
    a, b = np.array(answers).T
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1
    assert mcnemar(a, b) == (only_a, only_b, pytest.approx(expected))


def answers(rates, problems=40, seed=0):
    """Which problems seeds with these rates got right, (seeds, problems)."""
    rng = np.random.default_rng(seed)
    return rng.random((len(rates), problems)) < np.array(rates)[:, None]


def test_nested_by_hand():
    a = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    b = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    # leads 4, 2, -1 of 4 problems: sum 5; of the 8 sums 7, 5 and their opposites are as far
    found = nested_permutation(a, b)
    assert found.p == 4 / 8
    assert found.difference == pytest.approx(
        paired_difference_interval([1, 0.75, 0.25], [0, 0.25, 0.5])
    )
    assert nested_permutation(b, a).p == 4 / 8


@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
def test_nested_agrees_with_every_swap_and_with_scipy(n):
    a, b = answers([0.6] * n, seed=n), answers([0.5] * n, seed=n + 100)
    found = nested_permutation(a, b).p
    lead = a.mean(axis=1) - b.mean(axis=1)
    if n < 10:
        means = [np.mean(lead * signs) for signs in product([1, -1], repeat=n)]
        assert found == np.mean(np.abs(means) >= abs(lead.mean()) - 1e-12)
    if n > 1:
        other = stats.permutation_test(
            (a.mean(axis=1), b.mean(axis=1)), lambda x, y: abs(np.mean(x - y)),
            permutation_type="samples", alternative="greater",
        )  # fmt: skip
        assert found == pytest.approx(other.pvalue)


def test_nested_of_many_seeds_draws_swaps_and_is_the_same_each_time():
    a, b = answers([0.6] * 15), answers([0.5] * 15, seed=1)
    found = nested_permutation(a, b)
    assert found == nested_permutation(a, b)
    exact = stats.permutation_test(
        (a.mean(axis=1) - b.mean(axis=1),), lambda x: abs(np.mean(x)), n_resamples=2**15,
        permutation_type="samples", alternative="greater",
    ).pvalue  # fmt: skip
    assert found.p == pytest.approx(exact, abs=3 * math.sqrt(exact / 10_000) + 1e-4)
    # No p is 0: the observed swap is one of them
    best = nested_permutation(answers([1.0] * 40), answers([0.0] * 40))
    assert best.p == 1 / 10_001


def test_one_seed_says_nothing_however_many_problems():
    a, b = answers([0.99], 5000), answers([0.01], 5000)
    assert mcnemar(a[0], b[0]).p < 1e-300
    assert nested_permutation(a, b).p == 1
    three = nested_permutation(answers([0.99] * 3, 5000), answers([0.01] * 3, 5000))
    assert three.p == smallest_p(3, 3, paired=True) == 0.25


def test_problems_of_one_policy_are_not_replications():
    """Both algorithms are the same, but training is lucky or not: over all 5 x 50 answers at once
    McNemar's test is wrong half the time, the nested one at its nominal rate (5 seeds: p is at
    least 1/16, so never below 0.05, and below 0.07 in 1/16)."""
    rng = np.random.default_rng(0)
    pooled, nested = [], []
    for k in range(600):
        a, b = (answers(rng.uniform(0.2, 0.9, size=5), 50, seed) for seed in (2 * k, 2 * k + 1))
        pooled.append(mcnemar(a.ravel(), b.ravel()).p)
        nested.append(nested_permutation(a, b).p)
    assert np.mean(np.array(pooled) < 0.05) > 0.4
    assert np.mean(np.array(nested) < 0.07) == pytest.approx(
        1 / 16, abs=3 * math.sqrt(1 / 16 / 600)
    )
    assert min(nested) == 1 / 16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: probability_of_improvement([[1]], [[1], [2]]), "x of 1 and y of 2 tasks"),
        (lambda: probability_of_improvement([[1]], [[]]), r"y\[0\] is empty"),
        (lambda: mcnemar([1, 0], [1]), r"shapes \(2,\) and \(1,\): expected the same problems"),
        (lambda: mcnemar([1, 0.5], [1, 1]), "a holds 0.5: expected 1 for right"),
        (lambda: mcnemar([1, math.nan], [1, 1]), "a holds nan"),
        (lambda: nested_permutation([1, 0], [1, 1]), r"a of shape \(2,\): expected \(seeds"),
        (lambda: nested_permutation([[]], [[]]), r"a of shape \(1, 0\): expected at least one"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
