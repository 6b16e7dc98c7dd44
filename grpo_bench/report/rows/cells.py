"""The numbers of a row: names, means, ratios, and what can be said of a difference.

A number with an interval takes three columns: ``x``, ``x_low`` and ``x_high``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_bench.report.rows.comparison import Group, paired_values, rival
from grpo_bench.stats import (
    INTERVAL_FROM,
    NOTHING,
    Interval,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    positive_mean_interval,
    seeds_for_p,
    seeds_to_tell,
)

TEST_SUCCESS = "eval/test/success"
RATE = "time/transitions_per_second"
BETTER = " better"  # ends a verdict that names a winner
OF_THOSE_OK = " (of those ok)"  # after it, where runs of either side gave no result
NO_SPREAD_FROM = seeds_for_p(0.05, paired=True)
MOST_SEEDS = 1000  # beyond, how many would tell says only that nobody will
Row = dict[str, Any]


def names(group: Group) -> Row:
    """What a row is about, and how many of its runs ended ok."""
    where = {"env": group.env, "budget": group.budget, "algo": group.label}
    return where | {"ok": len(group.values), "planned": len(group.runs)}


def experience(group: Group) -> str:
    """What the environment's steps are, and the column that counts them."""
    return "tokens" if group.of_language_model else "transitions"


def beside_references(groups: Sequence[Group]) -> list[tuple[Group, Group | None]]:
    """Each group with the one that it is compared with; a reference is compared with nothing."""
    references: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        if group.is_reference:
            references.setdefault(group.place, []).append(group)
    return [(g, None if g.is_reference else rival(g, references.get(g.place, []))) for g in groups]


def normalised(group: Group) -> NDArray[np.float64]:
    """Reward on test of each run, (n,): 0 for random, 1 for the oracle."""
    parts = ["eval/test/reward", "task/random_score", "task/oracle_score"]
    if not set(parts) <= set(group.values.columns):
        return np.empty(0)
    reward, low, high = (group.values[name].to_numpy(dtype=np.float64) for name in parts)
    scores = (reward - low) / (high - low)
    return scores[~np.isnan(scores)]


def mean(group: Group, metric: str) -> float:
    """The mean of a metric over the runs that have it; NaN where none has."""
    column = group.column(metric)
    return float(column.mean()) if len(column) else math.nan


def mean_columns(name: str, values: NDArray[Any]) -> Row:
    """The mean of values (n,) with its interval."""
    return columns(name, mean_interval(values))


def share_columns(name: str, shares: NDArray[Any]) -> Row:
    """The mean of shares (n,) with its interval, cut at 0 and 1. No share lies beyond, so the cut
    takes no coverage away; an interval on another scale would have no width where all are 1.

    Scores of other environments may lie beyond: their interval is not cut."""
    estimate, low, high = mean_interval(shares)
    if ((shares >= 0) & (shares <= 1)).all():
        low, high = np.clip([low, high], 0, 1).tolist()
    return columns(name, Interval(estimate, low, high))


def positive_columns(name: str, values: NDArray[Any]) -> Row:
    """The mean of seconds, bytes or rates (n,) with its interval, which stays above 0."""
    return columns(name, positive_mean_interval(values))


def ratio(
    name: str, group: Group, reference: Group | None, metric: str, *, same_machine: bool = True
) -> Row:
    """How many times the reference's a metric is, paired by seed; nothing where a value of the
    pairs is not a positive number."""
    if reference is None:
        return columns(name, NOTHING)
    mine, its = paired_values(group, reference, metric, same_machine=same_machine)
    positive = all(((x > 0) & (x < math.inf)).all() for x in (mine, its))
    return columns(name, paired_ratio_interval(mine, its) if positive else NOTHING)


def memory_ratios(group: Group, reference: Group | None) -> Row:
    """How many times the reference's bytes: at the peak, and of what is there at any batch."""
    return {
        **ratio("peak_ratio", group, reference, "memory/peak_bytes"),
        **ratio("static_ratio", group, reference, "static"),
    }


def difference(
    group: Group, reference: Group | None, metric: str, *, same_machine: bool = False
) -> Row:
    """Difference to the reference in a metric, paired by seed, and what can be said about it."""
    if reference is None:
        word = "reference" if group.is_reference else ""
        return columns("difference", NOTHING) | {"verdict": word}
    mine, its = paired_values(group, reference, metric, same_machine=same_machine)
    interval = paired_difference_interval(mine, its)
    seeds = seeds_to_tell(mine, its)
    change = mine - its
    if 1 < len(change) < INTERVAL_FROM and np.allclose(change, change[0], rtol=1e-9, atol=0):
        seeds = max(seeds, NO_SPREAD_FROM)  # there are no bounds that show it
    said = verdict(group.algo, reference.algo, interval, len(mine), seeds)
    lost = any(len(side.values) < len(side.runs) for side in (group, reference))
    if said.endswith(BETTER) and lost:
        said += OF_THOSE_OK
    return columns("difference", interval) | {"verdict": said}


def verdict(algo: str, reference: str, interval: Interval, n: int, seeds: float) -> str:
    """Who is better, given the interval of algo's lead over n pairs; if that cannot be told, how
    many seeds would (more than n in any case). A few equal differences name nobody: on some
    hundreds of problems they are equal by chance, and no permutation test could tell them apart."""
    if n == 0:
        return ""
    if interval.low == interval.high == 0:
        return "equal"
    # Equal but for rounding.
    no_spread = math.isclose(interval.low, interval.high, rel_tol=1e-9)
    if no_spread and n < NO_SPREAD_FROM:
        return f"cannot tell (needs {NO_SPREAD_FROM})"
    if interval.low > 0:
        return f"{algo}{BETTER}"
    if interval.high < 0:
        return f"{reference}{BETTER}"
    if not math.isfinite(seeds):
        return "cannot tell"
    if seeds > MOST_SEEDS:
        return f"cannot tell (needs over {MOST_SEEDS:,})"
    return f"cannot tell (needs {max(round(seeds), n + 1):,})"


def columns(name: str, interval: Interval) -> Row:
    """The three columns of an interval."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
