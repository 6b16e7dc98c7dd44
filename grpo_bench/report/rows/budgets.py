"""What is reached with as much of a budget, and how much of each budget it takes to reach a score.

Both are read off the curves of success on the validation split. What is compared shares its place:
environment, budget and other settings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from grpo_bench.report.rows.cells import (
    Row,
    beside_references,
    columns,
    difference,
    experience,
    names,
    ratio,
    share_columns,
)
from grpo_bench.report.rows.comparison import Group
from grpo_bench.report.rows.curves import FIRST, NEVER, Curve, curves_of
from grpo_bench.stats import median_to_reach

SCORES = (
    0.5,
    0.75,
    0.9,
    0.95,
)  # of success; known before any run, so that no result can choose them
TO_REACH = ("transitions", "gradient_steps", "seconds")
RATIOS = ("transitions", "seconds")  # of these to the reference's
AT_EQUAL, TO_SCORE = "success at equal budget", "to reach a score"  # as metrics of groups
Curves = dict[str, Curve]  # by the name of the run


def equal(groups: Sequence[Group], curves: Curves) -> list[Row]:
    """Success where all runs of a place have spent as much: of transitions, then of seconds; the
    latter are left out where no run has any."""
    rows = []
    for members in places(groups):
        for axis in ("transitions", "seconds"):
            at, read = at_equal(members, curves, axis)
            if axis == "transitions" or not math.isnan(at):
                rows += [_equal(g, other, axis, at) for g, other in beside_references(read)]
    return rows


def _equal(group: Group, reference: Group | None, axis: str, at: float) -> Row:
    success = group.column(AT_EQUAL)
    same_machine = axis == "seconds"
    return {
        **names(group),
        "axis": experience(group) if axis == "transitions" else axis,
        "at": at,
        "n": len(success),
        **share_columns("success", success),
        **difference(group, reference, AT_EQUAL, same_machine=same_machine),
    }


def at_equal(groups: Sequence[Group], curves: Curves, axis: str) -> tuple[float, list[Group]]:
    """The most of a budget that every run of the groups has spent, and the groups with their runs'
    success there as the metric ``AT_EQUAL``. Seconds are read of runs on one machine: that of most
    of them. Nothing is known of a run there if its first evaluation after training began comes
    later, nor then of its group: the other runs are the quick ones."""
    found = [curves_of(group, curves, axis) for group in groups]
    if axis == "seconds":
        machine = {run: name for g in groups for run, name in g.values["machine"].items()}
        number = Counter(machine[run] for runs in found for run in runs)
        commonest = min(number, key=lambda name: (-number[name], name), default=None)
        found = [{run: c for run, c in runs.items() if machine[run] == commonest} for runs in found]
    trained = [{run: c for run, c in runs.items() if len(c.success) > FIRST} for runs in found]
    at = min((c.places[axis][-1] for runs in trained for c in runs.values()), default=math.nan)
    read = []
    for group, runs in zip(groups, trained, strict=True):
        is_known = all(curve.places[axis][FIRST] <= at for curve in runs.values())
        success = {r: float(c.at(axis, np.array(at))) for r, c in runs.items() if is_known}
        read.append(_with_metric(group, AT_EQUAL, success))
    return at, read


def reach(groups: Sequence[Group], curves: Curves) -> list[Row]:
    """What it takes to reach each of ``SCORES``. A score is left out where no run comes to it, one
    has it before training, or all have it at their first evaluation: then nothing is known of what
    it takes."""
    rows = []
    for members in places(groups):
        runs = [run for group in members for run in group.values.index if run in curves]
        for score in SCORES:
            at = {run: curves[run].reaches(score) for run in runs}
            indices = set(at.values())
            if 0 not in indices and max(indices, default=NEVER) >= FIRST and indices != {FIRST}:
                rows += [
                    names(group) | {"score": score} | _reach(group, other, curves, score, at)
                    for group, other in beside_references(members)
                ]
    return rows


def _reach(
    group: Group, reference: Group | None, curves: Curves, score: float, at: dict[str, int]
) -> Row:
    """The columns of a score, given at which evaluation each run reaches it."""
    indices = [at[run] for run in curves_of(group, curves, "transitions")]
    row: Row = {
        "reached": sum(index != NEVER for index in indices),
        "at_first": sum(index == FIRST for index in indices),
        "n": len(indices),
    }
    for axis in TO_REACH:
        title = experience(group) if axis == "transitions" else axis
        found = curves_of(group, curves, axis)
        needs = [curve.need(axis, score, at[run]) for run, curve in found.items()]
        there = [at[run] != NEVER for run in found]
        median = median_to_reach(needs, there)
        if 2 * sum(there) < len(there):
            # Where the others ended sooner, Kaplan and Meier would take the few for all.
            median = median._replace(estimate=math.inf)
        row |= columns(title, median)
        if axis in RATIOS:
            mine, its = group, reference
            if reference is not None:
                mine, its = (_with_need(g, curves, axis, score, at) for g in (group, reference))
            row |= ratio(f"{title}_ratio", mine, its, TO_SCORE, same_machine=axis == "seconds")
    return row


def _with_need(group: Group, curves: Curves, axis: str, score: float, at: dict[str, int]) -> Group:
    """The group with what each run needs to reach a score as the metric ``TO_SCORE``; inf, which
    has no ratio, where it is not known: at ``NEVER`` and at the ``FIRST`` evaluation."""
    needs = {
        run: curve.need(axis, score, at[run]) if at[run] > FIRST else math.inf
        for run, curve in curves_of(group, curves, axis).items()
    }
    return _with_metric(group, TO_SCORE, needs)


def _with_metric(group: Group, metric: str, values: dict[str, float]) -> Group:
    """The group with one metric, given by run, in the place of all others."""
    runs = group.values.index
    columns = {name: group.values[name].array for name in ("seed", "machine")}
    column = [values.get(run, math.nan) for run in runs]
    return replace(group, values=pd.DataFrame(columns | {metric: column}, index=runs))


def places(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that can be compared with each other, in their order."""
    members: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        members.setdefault(group.place, []).append(group)
    return [*members.values()]
