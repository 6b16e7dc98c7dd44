"""The bootstrap: how seeds are drawn again, and where the bounds are read off.

All that is random here is drawn once for each number of seeds and kept, so the same data give the
same bounds, whatever was computed before. What is drawn is symmetric: of each resample there is the
mirror image. On sorted values the bounds therefore depend neither on the order of the seeds nor on
which of two algorithms is called a: those of -x are minus those of x.

A percentile bootstrap of n values is too narrow. It takes the values for the population, whose
variance they show too small by (n - 1) / n, and it reads normal quantiles where Student's t belong:
of 10 seeds it covers 90 %, not 95 %. The bounds are therefore read further out, at the levels
Phi(-sqrt(n / (n - 1)) t(n - 1)) and its complement (Hesterberg, What Teachers Should Know about the
Bootstrap, arXiv 1411.5279, section 5.2). A bootstrap-t covers a little more of skewed data, but has
no bounds where many seeds are equal, and leaves 0 to 1 with shares; these bounds lie within the
data.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes as long to import as torch

RESAMPLES = 4000  # of 2000, the bounds of 10 seeds differ twice as much from those of very many


@lru_cache(maxsize=64)
def resamples(n: int, stratum: int = 0) -> NDArray[np.intp]:
    """Which of n sorted seeds are drawn, (RESAMPLES, n), read-only; others for every stratum."""
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
    """The level of the lower bound for strata of n seeds with as many degrees of freedom in all
    (of a single stratum n - 1): Phi(-sqrt(n / (n - 1)) t(freedom))."""
    quantile = special.stdtrit(freedom, (1 + confidence) / 2)
    return float(special.ndtr(-math.sqrt(n / (n - 1)) * quantile))


def bounds(
    statistics: NDArray[np.float64], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The order statistics at a level and at its complement of resampled statistics
    (RESAMPLES, ...), each (...)."""
    below = max(0, math.floor(level * len(statistics) + 0.5) - 1)
    above = len(statistics) - 1 - below
    ordered = np.partition(statistics, (below, above), axis=0)
    return ordered[below], ordered[above]
