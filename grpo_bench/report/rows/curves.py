"""Success on the validation split over each of the four budgets, while a run learns.

Seconds are those of training alone. Over bytes a point says what a run reached within that memory:
the best success of the evaluations before which the process never held more. Runs that learned
together in one process have no seconds and no peak of their own, and no curve over these two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_bench.records.load import RunSummaries
from grpo_bench.report.rows.cells import share_columns
from grpo_bench.report.rows.comparison import Group

AXES = ("transitions", "gradient_steps", "seconds", "peak_bytes")
FIRST = 1  # the index of the first evaluation after training began
NEVER = -1  # in the place of the index of an evaluation that there is not
Array = NDArray[np.float64]
NAMES = ["env", "budget", "algo", "axis", "x", "n", "success", "success_low", "success_high"]


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run, the first one before training.

    success: on validation, (k,).
    places: for each axis that the run has, how much of it was spent by then, (k,), ascending.
    """

    success: Array
    places: dict[str, Array]

    def at(self, axis: str, x: Array) -> Array:
        """Success at places x (m,) of an axis, (m,): on the straight line between two evaluations,
        and NaN before the first and after the last. Within so many bytes: the best so far, which
        more memory does not change."""
        places = self.places[axis]
        if axis != "peak_bytes":
            return np.interp(x, places, self.success, left=np.nan, right=np.nan)
        best = np.concatenate([[np.nan], np.maximum.accumulate(self.success)])
        return best[np.searchsorted(places, x, side="right")]

    def reaches(self, score: float) -> int:
        """The first evaluation with at least this success; ``NEVER`` if there is none."""
        there = self.success >= score
        return int(there.argmax()) if there.any() else NEVER

    def need(self, axis: str, score: float, index: int) -> float:
        """How much of an axis it took to reach a score for the first time, at evaluation ``index``:
        on the straight line from the one before. At the first after training began nobody knows the
        way there, and it is as much as had been spent by then; at ``NEVER`` all there was."""
        places, success = self.places[axis], self.success
        if index == NEVER or index <= FIRST:
            return float(places[index])
        part = (score - success[index - 1]) / (success[index] - success[index - 1])
        return float(places[index - 1] + part * (places[index] - places[index - 1]))


def run_curves(summaries: RunSummaries) -> dict[str, Curve]:
    """The curve of each run that ended ok and was evaluated, by the name of the run."""
    ok = summaries.runs.loc[summaries.runs["status"] == "ok", "run"]
    rows = summaries.curves[summaries.curves["success"].notna() & summaries.curves["run"].isin(ok)]
    names = rows["run"].to_numpy()
    edges = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
    data = {axis: rows[axis].to_numpy(dtype=np.float64) for axis in AXES}
    data["peak_bytes"] = rows.groupby("run", sort=False)["peak_bytes"].cummax().to_numpy(np.float64)
    success = rows["success"].to_numpy(dtype=np.float64)
    curves = {}
    for start, end in pairwise(edges):
        if start < end:
            places = {axis: data[axis][start:end] for axis in AXES}
            measured = {axis: x for axis, x in places.items() if np.isfinite(x).all()}
            curves[names[start]] = Curve(success[start:end], measured)
    return curves


def curves_of(group: Group, curves: dict[str, Curve], axis: str) -> dict[str, Curve]:
    """The curves over an axis of a group's runs that ended ok and have one, by run."""
    found = {run: curves[run] for run in group.values.index if run in curves}
    return {run: curve for run, curve in found.items() if axis in curve.places}


def learning_curves(groups: Iterable[Group], summaries: RunSummaries) -> pd.DataFrame:
    """Mean success of each group over each axis, with its interval over the seeds.

    Returns:
        env, budget, algo (the label of the group), axis (one of ``AXES``; a transition of a
        language model is a token), x, n (runs, all of which have data at x), success, success_low,
        success_high; by group, axis and x.
    """
    curves = run_curves(summaries)
    rows = []
    for group in groups:
        for axis in AXES:
            members = [*curves_of(group, curves, axis).values()]
            if not members:
                continue
            x = reading_places([curve.places[axis] for curve in members], axis)
            success = np.stack([curve.at(axis, x) for curve in members])  # (runs, points)
            names = {"env": group.env, "budget": group.budget, "algo": group.label, "axis": axis}
            rows += [
                names | {"x": place, "n": len(members)} | share_columns("success", values)
                for place, values in zip(x.tolist(), success.T, strict=True)
            ]
    return pd.DataFrame(rows, columns=NAMES)


def reading_places(places: Sequence[Array], axis: str) -> Array:
    """Where to read curves whose evaluations are at ``places``, (k,) of each run: there, if that is
    the same for all; else as many points, evenly from where all have begun to where the first ends.
    A run that needs fewer bytes than others does not end there: these go on to the last end."""
    if all(np.array_equal(each, places[0]) for each in places):
        return np.unique(places[0])
    start = max(each[0] for each in places)
    last = [each[-1] for each in places]
    end = max(last) if axis == "peak_bytes" else min(last)
    return np.linspace(start, end, min(map(len, places))) if start < end else np.empty(0)
