"""Several tasks at once: one score for each algorithm over all of them, and performance profiles.

Scores are normalised rewards on test, 0 for random and 1 for perfect (Agarwal et al., Deep
Reinforcement Learning at the Edge of the Statistical Precipice, arXiv 2108.13264). Only algorithms
that have runs on all tasks of a budget count: a mean over fewer tasks would be one of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from grpo_bench.report.rows.cells import (
    Row,
    beside_references,
    columns,
    normalised,
)
from grpo_bench.report.rows.comparison import Group
from grpo_bench.stats import (
    NOTHING,
    aggregate_interval,
    iqm,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    task_mean,
)

ALL = "all"  # in the place of an environment
TAUS = np.linspace(0.0, 1.0, 101)  # the scores at which profiles are read


def aggregate(groups: Sequence[Group]) -> list[Row]:
    """Mean, interquartile mean and optimality gap over tasks, and how probable it is that a run is
    better than one of the reference."""
    rows = []
    for both in over_tasks(groups):
        members = [group for group, _ in both]
        scores = [normalised(group) for group in members]
        its = [np.empty(0) if other is None else normalised(other) for _, other in both]
        better = probability_of_improvement(scores, its) if all(map(len, its)) else NOTHING
        rows.append(
            {
                **{"env": ALL, "budget": members[0].budget, "algo": members[0].label},
                "ok": sum(len(group.values) for group in members),
                "planned": sum(len(group.runs) for group in members),
                "tasks": len(members),
                **columns("mean", aggregate_interval(scores, task_mean)),
                **columns("iqm", aggregate_interval(scores, iqm)),
                **columns("optimality_gap", aggregate_interval(scores, optimality_gap)),
                **columns("improvement", better),
            }
        )
    return rows


def profiles(groups: Sequence[Group]) -> pd.DataFrame:
    """Performance profiles: the share of runs with a score above tau, mean over tasks.

    Returns:
        budget, algo (label), tau (one of ``TAUS``), share, low, high (pointwise bounds).
    """
    frames = []
    for both in over_tasks(groups):
        share, low, high = performance_profile([normalised(group) for group, _ in both], TAUS)
        names = {"budget": both[0][0].budget, "algo": both[0][0].label}
        frames.append(pd.DataFrame(names | {"tau": TAUS, "share": share, "low": low, "high": high}))
    if not frames:
        return pd.DataFrame(columns=["budget", "algo", "tau", "share", "low", "high"])
    return pd.concat(frames, ignore_index=True)


def over_tasks(groups: Sequence[Group]) -> Iterator[list[tuple[Group, Group | None]]]:
    """For each budget and algorithm with a score on all of at least two tasks its groups, one a
    task, with what they are compared with; nothing of a budget where it is only one algorithm."""
    compared = beside_references(groups)
    for budget in dict.fromkeys(group.budget for group in groups):
        there = [both for both in compared if both[0].budget == budget]
        tasks = sorted({group.env for group, _ in there})
        by_label: dict[str, list[tuple[Group, Group | None]]] = {}
        for group, other in there:
            if len(normalised(group)):
                by_label.setdefault(group.label, []).append((group, other))
        complete = [b for b in by_label.values() if [group.env for group, _ in b] == tasks]
        if len(tasks) > 1 and len(complete) > 1:
            yield from complete
