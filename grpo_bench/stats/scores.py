"""Several tasks at once: one number for all, with an interval, and the profile of all runs.

Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (arXiv
2108.13264), whose formulas these are. Scores are normalised, 0 for random and 1 for perfect, so
that tasks can be put together; one array (n_k,) of runs for each task k. The bootstrap draws seeds
within each task (stratified), so no task is left out or counts twice.

A statistic takes the tasks' scores, each (..., n_k), and gives one number for all, (...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grpo_bench.stats.checks import Values, check_share, one_per_seed, one_per_task
from grpo_bench.stats.intervals import Interval, bounds_of_mean, wilson
from grpo_bench.stats.resampling import bounds, expanded_level, resamples

Statistic = Callable[[Sequence[Values]], Values]
AGGREGATE_FROM = 6  # seeds of each task; see aggregate_interval


def task_mean(scores: Sequence[Values]) -> Values:
    """Mean over tasks of the mean over runs."""
    return _task_means(scores).mean(axis=0)


def task_median(scores: Sequence[Values]) -> Values:
    """Median over tasks of the mean over runs."""
    return np.median(_task_means(scores), axis=0)


def iqm(scores: Sequence[Values]) -> Values:
    """Interquartile mean: of the runs of all tasks together, without the lowest and the highest
    quarter (of N runs floor(N / 4) each, as ``scipy.stats.trim_mean`` cuts)."""
    runs = np.sort(np.concatenate([np.asarray(task) for task in scores], axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    middle = runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)
    return np.where(np.isnan(runs[..., -1]), math.nan, middle)  # NaN is last, and would be cut off


def optimality_gap(scores: Sequence[Values], gamma: float = 1.0) -> Values:
    """How far runs stay below the score gamma: gamma - min(score, gamma), mean over the runs of a
    task, then over tasks. What lies above gamma makes up for nothing."""
    return gamma - task_mean([np.minimum(task, gamma) for task in scores])


def _task_means(scores: Sequence[Values]) -> Values:
    """(tasks, ...)"""
    return np.stack([np.asarray(task).mean(axis=-1) for task in scores])


def aggregate_interval(
    scores: Sequence[ArrayLike], statistic: Statistic, confidence: float = 0.95
) -> Interval:
    """A statistic of the scores, (n_k,) for each task, with its stratified bootstrap interval.

    Levels are expanded as ``resampling`` says, with the degrees of freedom of all tasks together.
    A task of fewer than ``AGGREGATE_FROM`` seeds leaves no bounds. In a simulation of three tasks
    with normal scores and with shares near 1, a nominal 95 % covers of the mean and the IQM 0.90 to
    0.96 at 6 seeds of each and 0.91 to 0.96 at 10; but at 5 seeds 0.85 and at 3 seeds 0.83 of the
    IQM of shares, and of a single task at 3 seeds 0.66 to 0.78 whatever it is.
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
    return Interval(estimate, float(low), float(high))


class Profile(NamedTuple):
    """Shares of runs above each threshold, and their bounds: each (thresholds,)."""

    share: Values
    low: Values
    high: Values


def performance_profile(
    scores: Sequence[ArrayLike], thresholds: ArrayLike, confidence: float = 0.95
) -> Profile:
    """The share of runs that score above each threshold (t,), mean over tasks (the run-score
    distribution of Agarwal et al., section 4.2), with bounds for each threshold by itself.

    The bounds are those of each task (``wilson``), put together by ``bounds_of_mean``. The
    stratified bootstrap of the paper has no width where the runs of each task are all on one side,
    as they are in most of a profile of unlike tasks: in a simulation it covers there 0.56 at 6
    seeds and 0.73 at 10. These bounds cover 0.93 to 0.99 at 6 seeds and 0.96 to 0.99 from 10 on;
    at 3 seeds 0.84 where nearly all runs are on one side.
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
    return Profile(shares.mean(axis=0), *bounds_of_mean(shares, low, high))
