"""Intervals over seeds: none below three, Student's t below ten, the bootstrap from ten on.

A seed is the unit of replication: x is one number per seed, (n,). A NaN among the values makes the
estimate and both bounds NaN.

Two seeds have an interval in theory, t(1) s / sqrt(2) = 9 s to either side, but it says nothing:
it is four times as wide as that of three seeds with the same s.

What a nominal 95 % covers, in a simulation (tests/stats/test_stats_coverage.py repeats it):

| seeds              | 3    | 5    | 9    | 10   | 20   |
|--------------------|------|------|------|------|------|
| normal values      | 0.95 | 0.95 | 0.95 | 0.95 | 0.95 |
| shares about 0.9   | 0.93 | 0.92 | 0.93 | 0.94 | 0.95 |
| exponential values | 0.88 | 0.88 | 0.90 | 0.91 | 0.93 |

A percentile bootstrap of three values would cover 0.74 of normal ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from grpo_bench.stats.checks import Values, check_share, one_per_seed, pairs
from grpo_bench.stats.resampling import bounds, counts, expanded_level

INTERVAL_FROM = 3  # seeds
BOOTSTRAP_FROM = 10  # seeds


class Interval(NamedTuple):
    """An estimate and its bounds. The bounds are NaN if the data give none."""

    estimate: float
    low: float
    high: float


NOTHING = Interval(math.nan, math.nan, math.nan)


def mean_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of x (n,) and its interval.

    Below ten values Student's t: mean +- t(n-1) s / sqrt(n), s with ddof 1. From ten on the
    bootstrap with expanded levels (``resampling``). Fewer than ``INTERVAL_FROM`` values have no
    bounds, none has no mean either; equal values have an interval of width 0.
    """
    values = one_per_seed(x, "x")
    check_share(confidence, "confidence")
    n = len(values)
    if n == 0 or np.isnan(values).any():
        return NOTHING
    mean = float(values.mean())
    if n < INTERVAL_FROM:
        return Interval(mean, math.nan, math.nan)
    if n < BOOTSTRAP_FROM:
        half = _half_width(values, confidence)
        return Interval(mean, mean - half, mean + half)
    return _bootstrap(np.sort(values), confidence)


def positive_mean_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of x (n,), none of them negative, and its interval, with no bound below 0.

    As ``mean_interval``, but below ten values Student's t is applied to the logarithm of the mean,
    whose standard error is s / (sqrt(n) mean): from mean / w to mean w, with
    w = exp(t(n-1) s / (sqrt(n) mean)) (Meeker and Escobar, Statistical Methods for Reliability
    Data, Wiley 1998, on intervals for positive parameters). The estimate stays the arithmetic mean.
    From ten values on the bounds lie within the data.

    A nominal 95 % covers, at 3, 5 and 9 seeds: normal values with a deviation of a fifth of their
    mean 0.95; log-normal ones with sigma 0.5, 0.94, 0.94 and 0.93 (Student's t itself 0.92, and at
    3 seeds half of its lower bounds are negative).

    Raises:
        ValueError: a value is negative.
    """
    values = one_per_seed(x, "x")
    if (values < 0).any():
        raise ValueError(f"x holds {values[values < 0][0]}: expected no negative value")
    plain = mean_interval(values, confidence)
    mean = plain.estimate
    if not INTERVAL_FROM <= len(values) < BOOTSTRAP_FROM or not mean > 0:
        return plain
    factor = math.exp(_half_width(values, confidence) / mean)
    return Interval(mean, mean / factor, mean * factor)


def _half_width(values: Values, confidence: float) -> float:
    """Half the width of Student's interval of the mean of values (n,)."""
    n = len(values)
    quantile = special.stdtrit(n - 1, (1 + confidence) / 2)
    return float(quantile * values.std(ddof=1) / math.sqrt(n))


def _bootstrap(values: Values, confidence: float) -> Interval:
    """The mean of sorted values (n,) with bounds from resampled means."""
    n = len(values)
    mean = float(values.mean())
    deviations = values - values[0]  # exactly 0 if all are equal
    # Not a matrix product: its rounding depends on the processor.
    means = np.add.reduce(counts(n) * deviations[:, None], axis=0) / n  # (RESAMPLES,)
    low, high = bounds(means, expanded_level(n, n - 1, confidence))
    centre = float(deviations.mean())
    return Interval(mean, mean + (low - centre), mean + (high - centre))


def paired_difference_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of a - b over pairs, both (n,), with its ``mean_interval``."""
    first, second = pairs(a, b)
    return mean_interval(first - second, confidence)


def paired_ratio_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Geometric mean of a / b over pairs, both (n,): ``mean_interval`` of the log ratios.

    Raises:
        ValueError: a value is not positive.
    """
    first, second = pairs(a, b)
    for values in (first, second):
        if (values <= 0).any():
            raise ValueError(f"a ratio of {values[values <= 0][0]}: expected positive values")
    logs = mean_interval(np.log(first) - np.log(second), confidence)
    return Interval(*(math.exp(value) for value in logs))


def bounds_of_mean(estimates: Values, low: Values, high: Values) -> tuple[Values, Values]:
    """Bounds of the mean, (...), of k independent estimates, (k, ...), from their bounds. The
    squares of the distances between estimate and bound add up (Zou, Donner, Statistics in Medicine
    27, 2008; Newcombe's square-and-add)."""
    mean, k = estimates.mean(axis=0), len(estimates)
    below = np.sqrt(((estimates - low) ** 2).sum(axis=0)) / k
    above = np.sqrt(((high - estimates) ** 2).sum(axis=0)) / k
    return mean - below, mean + above


def deviation(x: ArrayLike) -> float:
    """Standard deviation of x (n,), ddof 1; NaN below two values."""
    values = one_per_seed(x, "x")
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


class Spread(NamedTuple):
    """The spread of n values: their standard deviation (ddof 1), and their kurtosis about a trimmed
    mean m, n sum (x - m)^4 / (sum (x - mean)^2)^2, which is about 3 for normal values and larger
    with outliers. Both are NaN below two values; the kurtosis is also NaN if all are equal."""

    n: int
    deviation: float
    kurtosis: float


def spread(x: ArrayLike) -> Spread:
    """The spread of x (n,). The trimmed mean leaves out the share 1 / (2 sqrt(n - 4)) at each end,
    and nothing of up to four values (Bonett, cited below)."""
    values = np.sort(one_per_seed(x, "x"))
    n = len(values)
    squares = float(((values - values.mean()) ** 2).sum()) if n > 1 else math.nan
    if not squares > 0 or math.isclose(values[0], values[-1], rel_tol=1e-12):
        return Spread(n, deviation(values), math.nan)
    cut = int(n / (2 * math.sqrt(n - 4))) if n > 4 else 0
    fourth = float(((values - values[cut : n - cut].mean()) ** 4).sum())
    return Spread(n, deviation(values), n * fourth / squares**2)


def deviation_ratio_interval(x: Spread, y: Spread, confidence: float = 0.95) -> Interval:
    """Ratio of the standard deviations of x and y, with an interval for values of any distribution
    (Bonett, Robust Confidence Interval for a Ratio of Standard Deviations, Applied Psychological
    Measurement 30, 2006; with the quantile of t(n + m - 2) instead of the normal one).

    The variance of log(s^2 / s'^2) is the sum over both samples of (k - (n - 3) / n) / (n - 1),
    with their pooled kurtosis k, each about its own trimmed mean. (If one sample is much wider, k
    is up to twice as large as for each alone: then the interval is too wide, never too narrow.)
    The interval of the F distribution assumes normal values. If one value in ten is an outlier it
    covers 0.65, and takes that outlier for a difference between algorithms. This one covers 0.98
    with normal and 0.96 with exponential values, at 10 and 10.

    There is no ratio where a deviation does not exist or the other one is 0, and there are no
    bounds where a side has no spread or fewer than ``INTERVAL_FROM`` values.
    """
    check_share(confidence, "confidence")
    if math.isnan(x.deviation) or not y.deviation > 0:
        return NOTHING
    ratio = x.deviation / y.deviation
    if math.isnan(x.kurtosis) or math.isnan(y.kurtosis) or min(x.n, y.n) < INTERVAL_FROM:
        return Interval(ratio, math.nan, math.nan)
    squares = [(side.n - 1) * side.deviation**2 for side in (x, y)]
    fourths = [s.kurtosis * square**2 / s.n for s, square in zip((x, y), squares, strict=True)]
    kurtosis = (x.n + y.n) * sum(fourths) / sum(squares) ** 2
    variance = sum((kurtosis - (side.n - 3) / side.n) / (side.n - 1) for side in (x, y))
    quantile = special.stdtrit(x.n + y.n - 2, (1 + confidence) / 2)
    factor = math.exp(float(quantile) * math.sqrt(variance) / 2)
    return Interval(ratio, ratio / factor, ratio * factor)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Share of successes in n independent problems, with Wilson's score interval (JASA 22, 1927).

    For one policy on n problems. Over seeds, average each seed and use ``mean_interval``.

    Raises:
        ValueError: ``successes`` is not between 0 and n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes={successes}: expected 0 to n={n}")
    check_share(confidence, "confidence")
    if n == 0:
        return NOTHING
    z = float(special.ndtri((1 + confidence) / 2))
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # At 0 and n one bound is exactly the share; rounding must not move it past.
    return Interval(share, min(max(0.0, centre - half), share), max(min(1.0, centre + half), share))
