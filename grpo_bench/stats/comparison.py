"""Compare two algorithms: how often one is better, and whether that could be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpo_bench.stats.checks import Values, check_share, one_per_task
from grpo_bench.stats.intervals import NOTHING, Interval, bounds_of_mean, paired_difference_interval
from grpo_bench.stats.resampling import bounds, counts, expanded_level
from grpo_bench.stats.scores import AGGREGATE_FROM

ENUMERATED_TO = 12  # seeds: 4096 ways to swap
DRAWN = 10_000  # random swaps of more seeds


def probability_of_improvement(
    x: Sequence[ArrayLike], y: Sequence[ArrayLike], confidence: float = 0.95
) -> Interval:
    """The probability that a run of X scores higher than a run of Y on a random task.

    Mean over tasks of P(X > Y) + P(X = Y) / 2 over all pairs of a run (n_k,) of x and one (m_k,) of
    y: the Mann-Whitney statistic over n_k m_k (Agarwal et al., arXiv 2108.13264, section 4.3).

    The bootstrap draws runs of x and of y for the bounds of each task; ``bounds_of_mean`` combines
    them. If one side wins every pair, all resamples are equal and the bound is exact: the runs make
    min(n_k, m_k) independent pairs, and it wins all of them with probability at most
    p^min(n_k, m_k) (Clopper, Pearson, Biometrika 26, 1934). A task with fewer than
    ``AGGREGATE_FROM`` runs on a side gives no bounds. In simulations of three similar or different
    tasks the coverage is 0.98 to 1 up to 10 runs on each side and 0.95 to 0.98 at 20; for a single
    task that one side nearly always wins it is 0.92 at 20.

    Raises:
        ValueError: x and y have different numbers of tasks.
    """
    first, second = one_per_task(x, "x"), one_per_task(y, "y")
    if len(first) != len(second):
        raise ValueError(f"x of {len(first)} and y of {len(second)} tasks: expected the same tasks")
    check_share(confidence, "confidence")
    if any(np.isnan(task).any() for task in (*first, *second)):
        return NOTHING
    of_tasks = [
        _improvement(np.sort(a), np.sort(b), k, confidence)
        for k, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    estimates, low, high = np.array(of_tasks).T
    bounds_of_all = bounds_of_mean(estimates, low, high)
    return Interval(float(estimates.mean()), *map(float, bounds_of_all))


def _improvement(x: Values, y: Values, task: int, confidence: float) -> Interval:
    """The same for a single task, with sorted runs (n,) and (m,)."""
    wins = (x[:, None] > y) + (x[:, None] == y) / 2  # (n, m)
    estimate, pairs = float(wins.mean()), min(wins.shape)
    if pairs < AGGREGATE_FROM:
        return Interval(estimate, math.nan, math.nan)
    # Sums of whole numbers and halves are exact in any order: the same on every machine.
    often = counts(len(x), 2 * task) * (wins @ counts(len(y), 2 * task + 1))  # (n, RESAMPLES)
    level = expanded_level(pairs, pairs - 1, confidence)
    low, high = bounds(often.sum(axis=0) / wins.size, level)
    edge = ((1 - confidence) / 2) ** (1 / pairs)
    return Interval(
        estimate,
        edge if estimate == 1 else low,
        1 - edge if estimate == 0 else high,
    )


class McNemar(NamedTuple):
    """The numbers of problems that only a and only b solved, and the p value of equal policies."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """Exact two-sided test of whether one of two policies is better on the same problems.

    a and b mark the problems (n,) that each policy solved, as booleans or 0 and 1. Only problems
    that one policy solved and the other did not count: equally good policies split them like a
    fair coin (McNemar, Psychometrika 12, 1947, with the binomial distribution). This compares two
    policies; ``nested_permutation`` compares two algorithms.

    Raises:
        ValueError: shapes differ, or a value is not 0 or 1.
    """
    first, second = _solved(a, "a", 1), _solved(b, "b", 1)
    _check_same(first, second)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    tail = special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)
    return McNemar(only_a, only_b, float(min(1.0, 2 * tail)))


class Nested(NamedTuple):
    """Difference of the mean success of two algorithms with its interval over seeds, and the p
    value of no difference."""

    difference: Interval
    p: float


def nested_permutation(a: ArrayLike, b: ArrayLike) -> Nested:
    """Test whether a or b solves more problems, (seeds, problems) each, paired by seed.

    If the algorithms were the same, their names could be swapped in any seed. The p value is the
    share of all such swaps whose mean difference is at least as far from 0 as the observed one.
    Beyond ``ENUMERATED_TO`` seeds it uses ``DRAWN`` random swaps and the observed one. Names are
    swapped for whole seeds, never for single problems: the answers of one policy come from the same
    training and are correlated, so 500 problems of 3 seeds are 3 observations, not 1,500.

    Raises:
        ValueError: shapes differ, or a value is not 0 or 1.
    """
    first, second = _solved(a, "a", 2), _solved(b, "b", 2)
    _check_same(first, second)
    if first.size == 0:
        raise ValueError(f"a of shape {first.shape}: expected at least one seed and one problem")
    rates = first.mean(axis=1), second.mean(axis=1)  # (seeds,)
    lead = first.sum(axis=1) - second.sum(axis=1)  # whole numbers: ties are exact
    n = len(lead)
    if n <= ENUMERATED_TO:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)  # (2^n, seeds)
        more = 0
    else:
        signs = 1 - 2 * np.random.default_rng(n).integers(2, size=(DRAWN, n))
        more = 1  # the observed one
    as_far = np.abs((signs * lead).sum(axis=1)) >= abs(lead.sum())
    p = (int(as_far.sum()) + more) / (len(signs) + more)
    return Nested(paired_difference_interval(*rates), p)


def _solved(x: ArrayLike, name: str, dimensions: int) -> NDArray[np.bool_]:
    values: Values = np.asarray(x, dtype=np.float64)
    shape = "(problems,)" if dimensions == 1 else "(seeds, problems)"
    if values.ndim != dimensions:
        raise ValueError(f"{name} of shape {values.shape}: expected {shape}")
    wrong = values[(values != 0) & (values != 1)]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}: expected 1 for right and 0 for wrong")
    return values == 1


def _check_same(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> None:
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape}: expected the same problems for both")
