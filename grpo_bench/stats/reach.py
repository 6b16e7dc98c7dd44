"""What an algorithm needs to reach a score, where some runs never get there.

Such a run is censored: it needs more than it was given. It counts all the
same; leaving it out would make an algorithm that fails half the time look quick.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpo_bench.stats.checks import Values, check_share, one_per_seed
from grpo_bench.stats.intervals import NOTHING, Interval


def median_to_reach(needed: ArrayLike, reached: ArrayLike, confidence: float = 0.95) -> Interval:
    """The median of what runs need to reach a score, in any unit of a budget; inf where fewer than
    half get there, as a bound where that may be so.

    The estimate is that of Kaplan and Meier. Its bounds are order statistics, with the binomial
    distribution: no assumption, and at least the confidence (0.979 of 10 runs for 0.95). A censored
    run counts for the lower bound as if it had got there at its end, for the upper one as if it
    never would. There are no bounds below 6 runs (for 0.95), where even the smallest and the
    largest are too close.

    Args:
        needed: (n,), where each run got there, or where it ended if it did not.
        reached: (n,) whether it got there.

    Raises:
        ValueError: shapes differ, or a need is negative or NaN.
    """
    times, there = _runs(needed, reached)
    check_share(confidence, "confidence")
    return _median(times, there, confidence) if len(times) else NOTHING


def kaplan_meier(needed: ArrayLike, reached: ArrayLike) -> tuple[Values, Values]:
    """The points where runs reach the score, and the share that has reached it from there on, (k,)
    each.

    The share is 1 - prod (1 - d_i / r_i) over the points so far: d_i of the r_i runs that have
    neither reached the score nor ended reach it at point i (Kaplan, Meier, JASA 53, 1958). A run
    that ends at a point counts in its r_i.
    """
    times, there = _runs(needed, reached)
    points, arrivals = np.unique(times[there], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), points, side="left")
    still_away = np.cumprod(1 - arrivals / at_risk, dtype=np.float64)
    return points, 1 - still_away


def _median(times: Values, there: NDArray[np.bool_], confidence: float) -> Interval:
    points, shares = kaplan_meier(times, there)
    half = points[shares >= 0.5 - 1e-12]  # but for rounding
    estimate = float(half[0]) if len(half) else math.inf
    n = len(times)
    # The median is below the r-th smallest of n with the probability of at most r - 1 heads.
    rank = 0
    while special.bdtr(rank, n, 0.5) <= (1 - confidence) / 2:
        rank += 1
    if rank == 0:
        return Interval(estimate, math.nan, math.nan)
    latest = np.sort(np.where(there, times, math.inf))
    return Interval(estimate, float(np.sort(times)[rank - 1]), float(latest[n - rank]))


def _runs(needed: ArrayLike, reached: ArrayLike) -> tuple[Values, NDArray[np.bool_]]:
    times, there = one_per_seed(needed, "needed"), np.asarray(reached, dtype=np.bool_)
    if there.shape != times.shape:
        raise ValueError(f"{len(times)} needs, reached of shape {there.shape}: expected one a run")
    wrong = times[~(times >= 0)]
    if len(wrong):
        raise ValueError(f"a need of {wrong[0]}: expected where a run got there, or where it ended")
    return times, there
