"""Intervals for a handful of seeds.

With fewer than ten seeds an interval is Student's t: a percentile bootstrap of three values covers
73 %, not 95 %. A seed is the unit of replication: x is one number per seed, (n,). A NaN among the
values makes the estimate and both bounds NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # scipy.stats takes as long to import as torch


class Interval(NamedTuple):
    """An estimate and its bounds. The bounds are NaN where the data cannot give any."""

    estimate: float
    low: float
    high: float


def mean_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of x (n,) and Student's t interval: mean +- t(n-1) s / sqrt(n), s with ddof 1.

    One value has no bounds, none has no mean either.
    """
    values = _values(x, "x")
    _check_share(confidence, "confidence")
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan)
    quantile = special.stdtrit(n - 1, (1 + confidence) / 2)
    half = float(quantile * values.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def paired_difference_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of a - b over pairs, both (n,), with Student's t interval."""
    first, second = _pairs(a, b)
    return mean_interval(first - second, confidence)


def paired_ratio_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Geometric mean of a / b over pairs, both (n,): Student's t on the log ratios.

    Raises:
        ValueError: a value is not positive.
    """
    first, second = _pairs(a, b)
    for values in (first, second):
        if (values <= 0).any():
            raise ValueError(f"a ratio of {values[values <= 0][0]}: expected positive values")
    logs = mean_interval(np.log(first) - np.log(second), confidence)
    return Interval(*(math.exp(value) for value in logs))


def deviation_ratio_interval(
    deviation: float, n: int, other: float, m: int, confidence: float = 0.95
) -> Interval:
    """Ratio of two standard deviations (ddof 1) of n and m normal values, with the interval of the
    F distribution: (s / s')^2 over its quantiles with n - 1 and m - 1 degrees of freedom.

    There is none where a deviation does not exist, or the other one is 0.
    """
    _check_share(confidence, "confidence")
    if math.isnan(deviation) or not other > 0:
        return Interval(math.nan, math.nan, math.nan)
    ratio = deviation / other
    tail = (1 + confidence) / 2
    low = ratio / math.sqrt(special.fdtri(n - 1, m - 1, tail))
    return Interval(ratio, low, ratio * math.sqrt(special.fdtri(m - 1, n - 1, tail)))


def deviation_within(interval: Interval, n: int, confidence: float = 0.95) -> float:
    """The standard deviation (ddof 1) of the n values that ``mean_interval`` was made of; NaN where
    it has no bounds."""
    if n < 2:
        return math.nan
    quantile = special.stdtrit(n - 1, (1 + confidence) / 2)
    return float((interval.high - interval.low) / 2 * math.sqrt(n) / quantile)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Share of successes in n independent problems, with Wilson's score interval (JASA 22, 1927).

    For one policy on n problems; over seeds, average each seed first and use ``mean_interval``.

    Raises:
        ValueError: successes is not between 0 and n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes={successes}: expected 0 to n={n}")
    _check_share(confidence, "confidence")
    if n == 0:
        return Interval(math.nan, math.nan, math.nan)
    z = float(special.ndtri((1 + confidence) / 2))
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # At 0 and n one bound is exactly the share; rounding must not put it past.
    return Interval(share, min(max(0.0, centre - half), share), max(min(1.0, centre + half), share))


def seeds_to_tell(
    x: ArrayLike, y: ArrayLike, confidence: float = 0.95, power: float = 0.8
) -> float:
    """How many seeds for each of two algorithms would tell the observed difference of means.

    The smallest n for which a two-sided two-sample t test at level 1 - confidence has the given
    power, if the difference and the pooled spread of x (n,) and y (m,) are the true ones.

    Returns:
        A whole number of at least 2; inf where the means are equal; NaN where x or y has fewer
        than two values.
    """
    first, second = _values(x, "x"), _values(y, "y")
    _check_share(confidence, "confidence")
    _check_share(power, "power")
    if min(len(first), len(second)) < 2:
        return math.nan
    freedom = len(first) + len(second) - 2
    squares = first.var(ddof=1) * (len(first) - 1) + second.var(ddof=1) * (len(second) - 1)
    spread = math.sqrt(squares / freedom)
    difference = abs(float(first.mean() - second.mean()))
    if math.isnan(difference) or difference == 0:
        return math.nan if math.isnan(difference) else math.inf
    if spread == 0:
        return 2
    effect = difference / spread
    # The normal approximation is a little too small: count up from there.
    z = special.ndtri((1 + confidence) / 2) + special.ndtri(power)
    n = max(2, math.floor(2 * (z / effect) ** 2))
    while _power(effect, n, confidence) < power:
        n += 1
    return n


def _power(effect: float, n: int, confidence: float) -> float:
    """Power of the two-sided two-sample t test with n values a side (non-central t)."""
    freedom, shift = 2 * n - 2, effect * math.sqrt(n / 2)
    critical = special.stdtrit(freedom, (1 + confidence) / 2)
    above = 1 - special.nctdtr(freedom, shift, critical)
    return float(above + special.nctdtr(freedom, shift, -critical))


def _values(x: ArrayLike, name: str) -> NDArray[np.float64]:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} of shape {values.shape}: expected one value per seed, (n,)")
    return values


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = _values(a, "a"), _values(b, "b")
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values: pairs need as many of each")
    return first, second


def _check_share(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}: expected a number between 0 and 1")
