"""The bootstrap: resamples of seeds, and the levels of its bounds.

Resamples are drawn once for each number of seeds and kept: the same data always give the same
bounds. Every resample comes with its mirror image. On sorted values the bounds therefore depend
neither on the order of the seeds nor on which of two algorithms is called a: the bounds of -x are
minus those of x.

A percentile bootstrap of n values is too narrow. It underestimates the variance by (n - 1) / n, and
it uses normal quantiles instead of Student's t: with 10 seeds it covers 90 %, not 95 %. So these
bounds use the wider levels Phi(-sqrt(n / (n - 1)) t(n - 1)) and its complement (Hesterberg, What
Teachers Should Know about the Bootstrap, arXiv 1411.5279, section 5.2). A bootstrap-t covers
skewed data a little better, but has no bounds if many seeds are equal, and its bounds of shares can
leave 0 to 1; these bounds stay within the data.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes as long to import as torch

RESAMPLES = 4000  # 2000 would double the distance to the bounds of very many (at 10 seeds)


@lru_cache(maxsize=64)
def resamples(n: int, stratum: int = 0) -> NDArray[np.intp]:
    """Indices of the drawn seeds, of n sorted ones, (RESAMPLES, n), read-only; strata differ."""
    drawn = np.random.default_rng([n, stratum]).integers(n, size=(RESAMPLES // 2, n))
    both = np.concatenate([drawn, n - 1 - drawn])
    both.flags.writeable = False
    return both


@lru_cache(maxsize=64)
def counts(n: int, stratum: int = 0) -> NDArray[np.float64]:
    """How often each of n sorted seeds is drawn, (n, RESAMPLES), whole numbers, read-only."""
    drawn = resamples(n, stratum)
    often = np.stack([(drawn == seed).sum(axis=1) for seed in range(n)]).astype(np.float64)
    often.flags.writeable = False
    return often


@lru_cache(maxsize=64)
def expanded_level(n: int, freedom: int, confidence: float) -> float:
    """The level of the lower bound for strata of n seeds: Phi(-sqrt(n / (n - 1)) t(freedom)), with
    the degrees of freedom of all strata together (n - 1 for a single one)."""
    quantile = special.stdtrit(freedom, (1 + confidence) / 2)
    return float(special.ndtr(-math.sqrt(n / (n - 1)) * quantile))


def bounds(statistics: NDArray[np.float64], level: float) -> tuple[float, float]:
    """The order statistics of resampled statistics (RESAMPLES,) at a level and its complement."""
    below = max(0, math.floor(level * len(statistics) + 0.5) - 1)
    above = len(statistics) - 1 - below
    ordered = np.partition(statistics, (below, above))
    return float(ordered[below]), float(ordered[above])
