"""Scores over tasks: hand-worked values, scipy's, and the formulas of rliable written out."""

import math

import numpy as np
import pytest
from scipy import stats

from grpo_bench.stats import (
    AGGREGATE_FROM,
    aggregate_interval,
    iqm,
    mean_interval,
    optimality_gap,
    performance_profile,
    task_mean,
    wilson,
)
from grpo_bench.stats.resampling import RESAMPLES, bounds, counts, expanded_level, resamples

RNG = np.random.default_rng(0)
TASKS = [RNG.beta(a, b, size=n) for a, b, n in [(18, 2, 10), (3, 3, 12), (9, 0.5, 10)]]


def test_scores_by_hand():
    tasks = [np.array([0.0, 1.0]), np.array([0.2, 0.4, 0.6]), np.array([1.5, 1.7])]
    assert task_mean(tasks) == pytest.approx((0.5 + 0.4 + 1.6) / 3)
    # 7 runs: floor(7 / 4) = 1 from each end; 0.2, 0.4, 0.6, 1, 1.5 are left
    assert iqm(tasks) == pytest.approx(3.7 / 5)
    assert optimality_gap(tasks) == pytest.approx((0.5 + 0.6 + 0) / 3)
    assert optimality_gap(tasks, gamma=2) == pytest.approx((1.5 + 1.6 + 0.4) / 3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10])
def test_scores_agree_with_scipy_and_with_rliable(n):
    scores = np.random.default_rng(n).normal(0.8, 0.3, size=(n, 4))  # (runs, tasks), as in rliable
    tasks = list(scores.T)
    assert iqm(tasks) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))
    assert task_mean(tasks) == pytest.approx(np.mean(np.mean(scores, axis=0), axis=-1))
    assert optimality_gap(tasks) == pytest.approx(1.0 - np.mean(np.minimum(scores, 1.0)))
    profile = performance_profile(tasks, [0.0, 0.5, 1.0])
    expected = [np.mean(np.mean(scores > tau, axis=0)) for tau in (0.0, 0.5, 1.0)]
    assert profile.share == pytest.approx(expected)


@pytest.mark.parametrize("statistic", [iqm, task_mean, optimality_gap])
def test_interval_is_that_of_a_bootstrap_written_out(statistic):
    """Another stream of random numbers, one resample at a time, within each task."""
    rng = np.random.default_rng(5)
    drawn = [statistic([rng.choice(task, len(task)) for task in TASKS]) for _ in range(4000)]
    # t(9 + 11 + 9) at 97.5 % = 2.04523, of 10 seeds at least: Phi(-sqrt(10 / 9) 2.04523)
    level = stats.norm.cdf(-math.sqrt(10 / 9) * 2.04523)
    estimate, low, high = aggregate_interval(TASKS, statistic)
    assert estimate == statistic(TASKS)
    width = high - low
    assert (low, high) == pytest.approx(np.quantile(drawn, [level, 1 - level]), abs=0.06 * width)


def test_of_one_task_the_mean_is_that_of_the_other_bootstrap():
    assert aggregate_interval(TASKS[:1], task_mean) == pytest.approx(mean_interval(TASKS[0]))


def test_more_confidence_is_wider_and_the_order_of_seeds_does_not_matter():
    narrow, wide = (aggregate_interval(TASKS, iqm, level) for level in (0.8, 0.95))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high
    turned = aggregate_interval([task[::-1] for task in TASKS], iqm)
    assert turned == pytest.approx(aggregate_interval(TASKS, iqm), rel=1e-12)


def test_few_seeds_have_no_bounds():
    few = [TASKS[0], TASKS[1][: AGGREGATE_FROM - 1]]
    interval = aggregate_interval(few, iqm)
    assert interval.estimate == iqm(few)
    assert math.isnan(interval.low) and math.isnan(interval.high)
    enough = [TASKS[0], TASKS[1][:AGGREGATE_FROM]]
    assert not math.isnan(aggregate_interval(enough, iqm).low)


def test_equal_scores_have_an_interval_of_width_zero():
    assert aggregate_interval([np.full(10, 0.5), np.full(10, 1.0)], task_mean) == (0.75,) * 3


def test_a_profile_of_two_seeds_has_no_bounds():
    profile = performance_profile([[0.2, 0.8], [0.1, 0.2, 0.9]], [0.5])
    assert profile.share == pytest.approx([(1 / 2 + 1 / 3) / 2])
    assert np.isnan([profile.low, profile.high]).all()
    three = performance_profile([[0.2, 0.8, 0.9]] * 2, [0.5])
    assert not np.isnan([three.low, three.high]).any()


def test_nan_is_passed_on():
    broken = [TASKS[0], np.array([math.nan, *TASKS[1]])]
    for statistic in (iqm, task_mean, optimality_gap):  # the IQM must not cut it off
        assert all(math.isnan(x) for x in aggregate_interval(broken, statistic))
    assert all(np.isnan(x).all() for x in performance_profile(broken, [0.1, 0.9]))


def test_profile_by_hand():
    tasks = [np.arange(1, 11) / 10, np.full(10, 0.95)]
    share, low, high = performance_profile(tasks, [0.05, 0.5, 0.95, 1.0])
    # above 0.5 are 0.6 to 1, above 0.95 is 1 alone; 0.95 itself is not above it
    assert share == pytest.approx([1, (0.5 + 1) / 2, (0.1 + 0) / 2, 0])
    # Wilson of 10 of 10: 10 / (10 + z^2) = 0.722467 to 1. Distances 0.277533 of both tasks:
    # 0.277533 sqrt(2) / 2 = 0.196245
    assert (low[0], high[0]) == pytest.approx((1 - 0.196245, 1), abs=1e-6)
    assert (low[3], high[3]) == pytest.approx((0, 0.196245), abs=1e-6)
    # Wilson of 5 of 10: 0.5 +- 0.263407. Below sqrt(0.263407^2 + 0.277533^2) / 2, above half of it
    assert (low[1], high[1]) == pytest.approx((0.75 - 0.191317, 0.75 + 0.131703), abs=1e-6)


def test_profile_of_one_task_is_wilson():
    share, low, high = performance_profile([np.arange(10.0)], [6.5, 9.0])
    assert (share[0], low[0], high[0]) == wilson(3, 10)
    assert (share[1], low[1], high[1]) == wilson(0, 10)
    share, low, high = performance_profile([np.arange(10.0)], [6.5], 0.5)
    assert (share[0], low[0], high[0]) == wilson(3, 10, 0.5)


def test_resamples_are_symmetric_read_only_and_differ_between_strata():
    drawn, often = resamples(7), counts(7)
    assert drawn.shape == (RESAMPLES, 7) and often.shape == (7, RESAMPLES)
    assert (drawn[: RESAMPLES // 2] + drawn[RESAMPLES // 2 :] == 6).all()
    assert (often.sum(axis=0) == 7).all()
    assert often[3, 11] == np.sum(drawn[11] == 3)
    assert often.sum(axis=1) == pytest.approx(np.full(7, RESAMPLES), rel=0.05)
    assert (resamples(7, 1) != drawn).any()
    for array in (drawn, often):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0


def test_bounds_are_order_statistics():
    values = np.random.default_rng(0).permutation(RESAMPLES).astype(float)
    # 4000 * 0.025 = 100: the 100th from below and from above
    assert bounds(values, 0.025) == (99, RESAMPLES - 100)
    assert bounds(values, 1e-9) == (0, RESAMPLES - 1)
    assert expanded_level(10**6, 10**6 - 1, 0.95) == pytest.approx(0.025, rel=1e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: aggregate_interval([], iqm), "scores: no task"),
        (lambda: aggregate_interval([[1.0], []], iqm), r"scores\[1\] is empty"),
        (lambda: aggregate_interval([[[1.0]]], iqm), r"scores\[0\] of shape \(1, 1\)"),
        (lambda: aggregate_interval([[1.0]], iqm, 1.0), "confidence=1.0"),
        (lambda: performance_profile([[1.0]], [[0.5]]), r"thresholds of shape \(1, 1\)"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
