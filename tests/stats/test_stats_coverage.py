"""Each interval has the coverage it promises, by simulation.

Each case names the share of intervals that contain the truth. It is 0.95 or, where an interval is
known to miss that, the share found in 3,000 to 20,000 repetitions, so that a change shows. A case
may be off by three standard errors of its own repetitions. Bounds of shares are conservative with
few runs: they cover at least 0.95.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from grpo_bench.stats import (
    aggregate_interval,
    deviation_ratio_interval,
    iqm,
    mean_interval,
    median_to_reach,
    nested_permutation,
    paired_difference_interval,
    paired_ratio_interval,
    performance_profile,
    positive_mean_interval,
    probability_of_improvement,
    spread,
    task_mean,
    wilson,
)
from grpo_bench.stats.resampling import bounds, counts

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
DRAWS: dict[str, tuple[Draw, float]] = {  # and their means
    "normal": (lambda rng, shape: rng.normal(0.7, 0.1, size=shape), 0.7),
    "shares": (lambda rng, shape: rng.beta(18, 2, size=shape), 0.9),
    "exponential": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "one far out": (
        lambda rng, shape: rng.normal(size=shape) - 6 * (rng.random(shape) < 0.1),
        -0.6,
    ),
}


def coverage(interval: Callable[[np.random.Generator], tuple[float, ...]], truth, n) -> float:
    """The share of n intervals (estimate, low, high) that contain the truth."""
    rng = np.random.default_rng(0)
    found = np.array([interval(rng)[1:] for _ in range(n)])
    return float(np.mean((found[:, 0] <= truth) & (truth <= found[:, 1])))


def error(expected: float, n: int) -> float:
    """Three standard errors of n repetitions."""
    return 3 * math.sqrt(expected * (1 - expected) / n)


def near(expected: float, n: int):
    """Within the error of n repetitions."""
    return pytest.approx(expected, abs=error(expected, n))


MEANS = {
    ("normal", 3): 0.95,
    ("normal", 5): 0.95,
    ("normal", 9): 0.95,
    ("normal", 10): 0.95,
    ("normal", 20): 0.95,
    ("shares", 3): 0.925,
    ("shares", 5): 0.925,
    ("shares", 9): 0.93,
    ("shares", 10): 0.935,
    ("shares", 20): 0.945,
    ("exponential", 3): 0.885,
    ("exponential", 5): 0.88,
    ("exponential", 9): 0.90,
    ("exponential", 10): 0.91,
    ("exponential", 20): 0.93,
}


@pytest.mark.parametrize(("case", "expected"), MEANS.items(), ids=str)
def test_mean(case, expected):
    (name, seeds), n = case, 2500
    draw, truth = DRAWS[name]
    assert coverage(lambda rng: mean_interval(draw(rng, (seeds,))), truth, n) == near(expected, n)


def normal(rng, shape):
    return rng.normal(1, 0.2, size=shape)


def log_normal(rng, shape):
    return rng.lognormal(0, 0.5, size=shape)


@pytest.mark.parametrize(
    ("draw", "truth", "seeds", "expected"),
    [
        (normal, 1, 3, 0.95),
        (normal, 1, 9, 0.95),
        (log_normal, math.exp(0.125), 3, 0.942),
        (log_normal, math.exp(0.125), 9, 0.931),
        (log_normal, math.exp(0.125), 20, 0.935),
    ],
)
def test_positive_mean(draw, truth, seeds, expected):
    n = 2500
    found = coverage(lambda rng: positive_mean_interval(np.abs(draw(rng, (seeds,)))), truth, n)
    assert found == near(expected, n)


def test_a_plain_percentile_bootstrap_would_fail():
    """The tests above would find its coverage: 0.74 with 3 seeds, 0.90 with 10."""
    rng, n = np.random.default_rng(1), 2500
    for seeds, expected in [(3, 0.74), (10, 0.90)]:
        values = np.sort(rng.normal(size=(n, seeds)), axis=1)
        means = values @ counts(seeds) / seeds  # (n, RESAMPLES)
        low, high = np.transpose([bounds(resampled, 0.025) for resampled in means])
        covered = np.mean((low <= 0) & (high >= 0))
        assert covered == near(expected, n)
        assert covered != near(0.95, n)


@pytest.mark.parametrize("seeds", [3, 10])
def test_paired_difference_and_ratio(seeds):
    """Paired values share much: what is common to a seed must not count as spread."""
    n = 2000

    def pairs(rng):
        common = rng.normal(size=seeds)
        return common + rng.normal(0.3, 0.1, size=seeds), common

    found = coverage(lambda rng: paired_difference_interval(*pairs(rng)), 0.3, n)
    assert found == near(0.95, n)
    found = coverage(lambda rng: paired_ratio_interval(*np.exp(pairs(rng))), math.exp(0.3), n)
    assert found == near(0.95, n)


@pytest.mark.parametrize(
    ("name", "seeds", "expected"),
    [
        ("normal", (5, 5), 0.991),
        ("normal", (10, 10), 0.975),
        ("normal", (3, 10), 0.945),
        ("exponential", (5, 5), 0.984),
        ("exponential", (10, 10), 0.96),
        ("one far out", (10, 10), 0.95),
    ],
)
def test_ratio_of_deviations(name, seeds, expected):
    draw, n = DRAWS[name][0], 3000

    def interval(rng):
        first, second = (spread(draw(rng, (m,))) for m in seeds)
        return deviation_ratio_interval(first, second)

    assert coverage(interval, 1, n) == near(expected, n)


@pytest.mark.parametrize(
    ("share", "problems", "expected"),
    [(0.5, 500, 0.946), (0.9, 500, 0.956), (0.98, 500, 0.964), (0.9, 20, 0.957)],
)
def test_wilson(share, problems, expected):
    """Without a simulation: the probability of each number of right answers."""
    right = np.arange(problems + 1)
    held = [low <= share <= high for _, low, high in (wilson(int(k), problems) for k in right)]
    assert stats.binom.pmf(right, problems, share)[held].sum() == pytest.approx(expected, abs=6e-4)


TASKS = {
    "normal": [stats.norm(mean, 0.1) for mean in (0.3, 0.6, 0.9)],
    "shares": [stats.beta(18, 2), stats.beta(9, 0.5), stats.beta(3, 3)],
}
GRID = (np.arange(20_000) + 0.5) / 20_000


@pytest.mark.parametrize(
    ("name", "seeds", "statistic", "expected"),
    [
        ("normal", 6, iqm, 0.935),
        ("normal", 10, iqm, 0.945),
        ("normal", 20, iqm, 0.95),
        ("shares", 6, iqm, 0.90),
        ("shares", 10, iqm, 0.92),
        ("shares", 20, iqm, 0.945),
        ("normal", 10, task_mean, 0.95),
        ("shares", 6, task_mean, 0.94),
        ("shares", 10, task_mean, 0.94),
    ],
)
def test_aggregate_of_three_tasks(name, seeds, statistic, expected):
    tasks, n = TASKS[name], 300
    truth = statistic([task.ppf(GRID) for task in tasks])

    def interval(rng):
        return aggregate_interval([task.ppf(rng.random(seeds)) for task in tasks], statistic)

    assert coverage(interval, truth, n) == near(expected, n)


@pytest.mark.parametrize("seeds", [6, 10, 20])
@pytest.mark.parametrize("shifts", [(0.0,), (1.0, 1.0, 1.0), (2.5, 0.0, -2.5), (4.0, 1.0, -4.0)])
def test_probability_of_improvement(shifts, seeds):
    n = 300
    truth = np.mean([stats.norm.cdf(shift / math.sqrt(2)) for shift in shifts])

    def interval(rng):
        x, y = rng.normal(size=(2, len(shifts), seeds))
        return probability_of_improvement(list(x + np.array(shifts)[:, None]), list(y))

    assert coverage(interval, truth, n) > 0.95 - error(0.95, n)


@pytest.mark.parametrize(("seeds", "least"), [(3, 0.84), (6, 0.93), (10, 0.95), (20, 0.95)])
def test_profile_at_each_threshold(seeds, least):
    tasks, n, thresholds = TASKS["shares"], 800, np.array([0.2, 0.5, 0.8, 0.9, 0.95])
    truth = np.mean([task.sf(thresholds) for task in tasks], axis=0)
    rng, held = np.random.default_rng(0), np.zeros(len(thresholds))
    for _ in range(n):
        scores = [task.ppf(rng.random(seeds)) for task in tasks]
        _, low, high = performance_profile(scores, thresholds)
        held += (low <= truth) & (truth <= high)
    assert min(held / n) > least - error(least, n)


@pytest.mark.parametrize(("seeds", "expected"), [(6, 0.969), (10, 0.979), (20, 0.959)])
def test_median_to_reach(seeds, expected):
    """Exact whatever the distribution, also where a third never gets there."""
    n = 1500

    def interval(rng):
        needed = rng.exponential(size=seeds)
        end = math.log(3)  # a third needs more
        return median_to_reach(np.minimum(needed, end), needed <= end)

    assert coverage(interval, math.log(2), n) == near(expected, n)


def test_size_of_the_nested_permutation():
    """Two equal algorithms of 8 seeds: p at most 0.05 in 6 of the 128 pairs of opposite swaps."""
    rng, n = np.random.default_rng(0), 1500
    p = []
    for _ in range(n):
        rates = rng.uniform(0.2, 0.9, size=(2, 8, 1))
        a, b = rng.random((2, 8, 2000)) < rates
        p.append(nested_permutation(a, b).p)
    assert np.mean(np.array(p) <= 0.05) == near(6 / 128, n)
