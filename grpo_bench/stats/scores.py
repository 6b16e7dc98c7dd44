"""Several tasks together: one number for all, with its interval, and the profile of all runs.

The formulas are from Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical
Precipice (arXiv 2108.13264). Scores are normalised, 0 for random and 1 for perfect, so that tasks
can be combined; each task k has an array (n_k,) of runs. The bootstrap is stratified: it draws
seeds within each task.

A statistic maps the tasks' scores, each (..., n_k), to one number, (...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grpo_bench.stats.checks import Values, check_share, one_per_seed, one_per_task
from grpo_bench.stats.intervals import INTERVAL_FROM, Interval, bounds_of_mean, wilson
from grpo_bench.stats.resampling import bounds, expanded_level, resamples

Statistic = Callable[[Sequence[Values]], Values]
AGGREGATE_FROM = 6  # seeds of each task; see aggregate_interval


def task_mean(scores: Sequence[Values]) -> Values:
    """Mean over tasks of the mean over runs."""
    means = np.stack([np.asarray(task).mean(axis=-1) for task in scores])  # (tasks, ...)
    return means.mean(axis=0)


def iqm(scores: Sequence[Values]) -> Values:
    """Interquartile mean: the mean of the runs of all tasks without the lowest and highest quarter
    (floor(N / 4) of N runs each, as in ``scipy.stats.trim_mean``)."""
    runs = np.sort(np.concatenate([np.asarray(task) for task in scores], axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    middle = runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)
    return np.where(np.isnan(runs[..., -1]), math.nan, middle)  # NaN is sorted last and trimmed


def optimality_gap(scores: Sequence[Values], gamma: float = 1.0) -> Values:
    """How far runs stay below the score gamma: gamma - min(score, gamma), averaged over the runs of
    a task, then over tasks. Scores above gamma make up for nothing."""
    return gamma - task_mean([np.minimum(task, gamma) for task in scores])


def aggregate_interval(
    scores: Sequence[ArrayLike], statistic: Statistic, confidence: float = 0.95
) -> Interval:
    """A statistic of the scores, (n_k,) for each task, with its stratified bootstrap interval.

    Levels are expanded (``resampling``) with the degrees of freedom of all tasks together. If a
    task has fewer than ``AGGREGATE_FROM`` seeds there are no bounds. In simulations of three tasks,
    with normal scores and with shares near 1, a nominal 95 % interval of the mean or the IQM covers
    0.90 to 0.96 at 6 seeds each and 0.91 to 0.96 at 10. Fewer seeds cover too little: for the IQM
    of shares 0.85 at 5 and 0.83 at 3; for any statistic of a single task 0.66 to 0.78 at 3.
    """
    tasks = one_per_task(scores, "scores")
    check_share(confidence, "confidence")
    estimate = float(statistic(tasks))
    fewest = min(len(task) for task in tasks)
    if math.isnan(estimate) or fewest < AGGREGATE_FROM:
        return Interval(estimate, math.nan, math.nan)
    level = expanded_level(fewest, sum(len(task) - 1 for task in tasks), confidence)
    drawn = [np.sort(task)[resamples(len(task), k)] for k, task in enumerate(tasks)]
    low, high = bounds(statistic(drawn), level)
    return Interval(estimate, low, high)


class Profile(NamedTuple):
    """Shares of runs above each threshold and their bounds, each (thresholds,)."""

    share: Values
    low: Values
    high: Values


def performance_profile(
    scores: Sequence[ArrayLike], thresholds: ArrayLike, confidence: float = 0.95
) -> Profile:
    """The share of runs above each threshold (t,), averaged over tasks (the run-score distribution
    of Agarwal et al., section 4.2), with pointwise bounds.

    ``bounds_of_mean`` combines the bounds of each task (``wilson``). The paper's stratified
    bootstrap has no width if all runs of each task are on one side of the threshold, as in most of
    a profile of different tasks: in simulations it covers 0.56 there at 6 seeds and 0.73 at 10.
    These bounds cover 0.93 to 0.99 at 6 seeds and 0.96 to 0.99 from 10 on;
    at 3 seeds 0.84 where nearly all runs are on one side. A task of fewer seeds leaves no bounds.
    """
    tasks = one_per_task(scores, "scores")
    steps = one_per_seed(thresholds, "thresholds")
    check_share(confidence, "confidence")
    if any(np.isnan(task).any() for task in tasks):
        return Profile(*np.full((3, len(steps)), math.nan))
    by_task = []
    for task in tasks:
        of_count = np.array([wilson(k, len(task), confidence) for k in range(len(task) + 1)])
        by_task.append(of_count[(task[:, None] > steps).sum(axis=0)])  # (t, 3)
    shares, low, high = np.stack(by_task).transpose(2, 0, 1)  # (tasks, t) each
    share = shares.mean(axis=0)
    if min(map(len, tasks)) < INTERVAL_FROM:
        return Profile(share, *np.full((2, len(steps)), math.nan))
    return Profile(share, *bounds_of_mean(shares, low, high))
