"""The tables, in numbers: a row per environment, budget and algorithm. ``summary`` sets what the
others measure side by side.

Where a column ``x`` has an interval, ``x_low`` and ``x_high`` stand beside it: the mean over seeds
with the 95 % interval of ``stats.mean_interval``; ``x_sd`` is the standard deviation over them.
Differences and ratios are paired by seed with the reference. A transition of a language model is a
token, and stands in columns of its own.
A table's ``attrs`` hold ``caption``, ``header``, ``reading``, ``footnotes`` (a list),
``reference``, the name of the algorithm compared with as texts have it, and ``unit``, of the bytes
of components.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from grpo_bench.records import TRAINING
from grpo_bench.records.load import START, Ends
from grpo_bench.report.comparison import (
    COMPONENTS,
    Group,
    group_runs,
    pairs,
    reference_algorithm,
)
from grpo_bench.report.origin import footnotes, header
from grpo_bench.report.words import captions, in_text, readings
from grpo_bench.stats import (
    NOTHING,
    Interval,
    deviation,
    mean_interval,
    paired_difference_interval,
    paired_ratio_interval,
    seeds_to_tell,
)

TEST_SUCCESS = "eval/test/success"
RATE = "time/transitions_per_second"
Row = dict[str, Any]


def build_tables(results: Ends, reference: str | None = None) -> dict[str, pd.DataFrame]:
    """``summary`` (unless all rows are references), ``accuracy``, ``speed`` and ``memory``.

    Args:
        reference: the algorithm to compare with; None: ``ppo``, or ``grpo`` without a run of that.

    Raises:
        ValueError: there is no run of ``reference``.
    """
    algo = reference_algorithm(results, reference)
    groups = group_runs(results, algo)
    references = {group.place: group for group in groups if group.is_reference}
    about = {
        "header": header(results.runs),
        "footnotes": footnotes(groups, algo),
        "reference": in_text(algo),
        "unit": _unit(groups),
    }
    steps = sorted({_experience(group) for group in groups}, reverse=True)
    makers: dict[str, Callable[[Group, Group | None], Row]] = {
        "summary": _summary,
        "accuracy": _accuracy,
        "speed": _speed,
        "memory": _memory,
    }
    all_captions, all_readings = captions(algo), readings(algo, steps)
    tables = {}
    for name, row in makers.items():
        rows = [g for g in groups if name != "summary" or not g.is_reference]
        if not rows:
            continue
        others = [None if g.is_reference else references.get(g.place) for g in rows]
        table = pd.DataFrame(
            [_names(g) | row(g, other) for g, other in zip(rows, others, strict=True)]
        )
        table.attrs = about | {
            "caption": all_captions[name],
            "reading": all_readings[name],
        }
        tables[name] = table
    return tables


def _summary(group: Group, reference: Group | None) -> Row:
    its = np.empty(0) if reference is None else reference.column(TEST_SUCCESS)
    return {
        **_spread("test_success", group.column(TEST_SUCCESS)),
        **_spread("reference_success", its),
        **_compared(group, reference),
        **_ratio("speed_ratio", group, reference, RATE),
        **_memory_ratios(group, reference),
    }


def _accuracy(group: Group, reference: Group | None) -> Row:
    return {
        _experience(group): _mean(group, "transitions"),
        **_spread("validation_success", group.column("eval/validation/success")),
        **_spread("test_success", group.column(TEST_SUCCESS)),
        "test_success_sd": deviation(group.column(TEST_SUCCESS)),
        **_spread("sampled_success", group.column("eval/test_sampled/success")),
        **_spread("test_reward", group.column("eval/test/reward")),
        **_spread("normalised", _normalised(group)),
        "start_success": _mean(group, f"{START}eval/validation/success"),
        "well_formed": _mean(group, "eval/test/format"),
        **_compared(group, reference),
    }


def _normalised(group: Group) -> np.ndarray:
    """Reward on test of each run, (n,): 0 for random, 1 for the oracle."""
    names = ["eval/test/reward", "task/random_score", "task/oracle_score"]
    if not set(names) <= set(group.values.columns):
        return np.empty(0)
    reward, low, high = (group.values[name].to_numpy(dtype=np.float64) for name in names)
    scores = (reward - low) / (high - low)
    return scores[~np.isnan(scores)]


def _compared(group: Group, reference: Group | None) -> Row:
    """Difference to the reference in success on test, and what can be said about it."""
    if reference is None:
        word = "reference" if group.is_reference else ""
        return _columns("difference", NOTHING) | {"verdict": word}
    mine, its = pairs(group, reference, TEST_SUCCESS, same_machine=False)
    interval = paired_difference_interval(mine, its)
    seeds = seeds_to_tell(mine, its)
    return _columns("difference", interval) | {
        "verdict": verdict(group.algo, reference.algo, interval, len(mine), seeds)
    }


def verdict(algo: str, reference: str, interval: Interval, n: int, seeds: float) -> str:
    """Who is better, given the interval of algo's lead over n pairs; if that cannot be told, how
    many seeds would (more than n in any case)."""
    if n == 0:
        return ""
    if interval.low > 0:
        return f"{algo} better"
    if interval.high < 0:
        return f"{reference} better"
    if interval.low == interval.high == 0:
        return "equal"
    if not math.isfinite(seeds):
        return "cannot tell"
    return f"cannot tell (needs {max(round(seeds), n + 1):,})"


def _speed(group: Group, reference: Group | None) -> Row:
    parts = (*TRAINING, "setup", "warmup", "evaluation")
    return {
        "gradient_steps": _mean(group, "gradient_steps"),
        **_spread(f"{_experience(group)}_per_second", group.column(RATE)),
        **{f"{part}_seconds": _mean(group, f"time/{part}_seconds") for part in parts},
        **_ratio("ratio", group, reference, RATE),
        "critic_share": _mean(group, "critic_share"),
        "bound": _bound(group, reference),
    }


def _bound(group: Group, reference: Group | None) -> float:
    """What leaving out the reference's critic can gain, for those that have none."""
    if reference is None or len(group.column("critic_share")):
        return math.nan
    return _mean(reference, "bound")


def _experience(group: Group) -> str:
    """What the environment's steps are, and the column that counts them."""
    return "tokens" if group.of_language_model else "transitions"


def _memory(group: Group, reference: Group | None) -> Row:
    return {
        **_spread("peak_bytes", group.column("memory/peak_bytes")),
        "growth_bytes": _mean(group, "growth"),
        **{f"{part}_bytes": _mean(group, f"memory/{part}_bytes") for part in COMPONENTS},
        **_memory_ratios(group, reference),
    }


def _memory_ratios(group: Group, reference: Group | None) -> Row:
    return {
        **_ratio("peak_ratio", group, reference, "memory/peak_bytes"),
        **_ratio("static_ratio", group, reference, "static"),
    }


def _unit(groups: list[Group]) -> str:
    """The unit in which the bytes of all components can be read."""
    largest = [_mean(group, f"memory/{part}_bytes") for group in groups for part in COMPONENTS]
    return "MB" if any(size >= 10e6 for size in largest) else "KB"


# -- cells ----------------------------------------------------------------------------------------


def _names(group: Group) -> Row:
    names = {"env": group.env, "budget": group.budget, "algo": group.label}
    return names | {"ok": len(group.values), "planned": len(group.runs)}


def _mean(group: Group, metric: str) -> float:
    return mean_interval(group.column(metric)).estimate


def _spread(name: str, values: np.ndarray) -> Row:
    return _columns(name, mean_interval(values))


def _ratio(name: str, group: Group, reference: Group | None, metric: str) -> Row:
    if reference is None:
        return _columns(name, NOTHING)
    mine, its = pairs(group, reference, metric, same_machine=True)
    positive = (mine > 0).all() and (its > 0).all()
    return _columns(name, paired_ratio_interval(mine, its) if positive else NOTHING)


def _columns(name: str, interval: Interval) -> Row:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
