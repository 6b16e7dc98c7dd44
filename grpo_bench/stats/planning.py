"""How many seeds an experiment needs."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike
from scipy import special

from grpo_bench.stats.checks import check_share, pairs
from grpo_bench.stats.intervals import deviation


def seeds_to_tell(
    a: ArrayLike, b: ArrayLike, confidence: float = 0.95, power: float = 0.8
) -> float:
    """How many pairs of seeds detect the observed mean difference of a and b, both (n,).

    The smallest n for which a two-sided paired t test at level 1 - confidence has the given power,
    if the observed mean and standard deviation of the differences are the true ones. The test
    matches ``paired_difference_interval``.

    Returns:
        A whole number of at least 2; inf if the means are equal; NaN below two pairs.
    """
    first, second = pairs(a, b)
    check_share(confidence, "confidence")
    check_share(power, "power")
    spread = deviation(first - second)
    if math.isnan(spread):
        return math.nan
    difference = abs(float((first - second).mean()))
    if difference == 0:
        return math.inf
    if spread == 0:
        return 2
    effect = difference / spread
    # The normal approximation is a little too small: start there.
    z = special.ndtri((1 + confidence) / 2) + special.ndtri(power)
    n = max(2, math.floor((z / effect) ** 2))
    while _power(effect, n, confidence) < power:
        n += 1
    return n


def _power(effect: float, n: int, confidence: float) -> float:
    """Power of the two-sided paired t test with n pairs (non-central t)."""
    shift = effect * math.sqrt(n)
    critical = special.stdtrit(n - 1, (1 + confidence) / 2)
    above = 1 - special.nctdtr(n - 1, shift, critical)
    return float(above + special.nctdtr(n - 1, shift, -critical))


def smallest_p(n: int, m: int, paired: bool = False) -> float:
    """The smallest p value that a two-sided permutation test can give.

    For n and m seeds it is 2 / C(n + m, n): the observed order and its opposite among all. For n
    pairs it is 2 / 2^n. Without pairs it is 0.10 at 3 against 3 seeds, 0.029 at 4 and 0.008 at 5.

    Raises:
        ValueError: a side has no seeds, or pairs have different numbers of seeds.
    """
    if min(n, m) < 1:
        raise ValueError(f"{n} and {m} seeds: expected at least one of each")
    if paired and n != m:
        raise ValueError(f"{n} and {m} seeds: pairs need the same number of each")
    return 2 / (2**n if paired else math.comb(n + m, n))


def seeds_for_p(p: float, paired: bool = False) -> int:
    """How many seeds on each side a permutation test needs for a p value of at most p."""
    check_share(p, "p")
    n = 1
    while smallest_p(n, n, paired) > p:
        n += 1
    return n
