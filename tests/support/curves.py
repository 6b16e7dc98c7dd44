"""The last values of runs, with curves that can be checked by hand; without records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from support.run_records import ORIGIN

from grpo_bench.records.load import RunSummaries
from grpo_bench.report.rows.comparison import Group, group_runs

Point = tuple[float, float, float, float, float]  # the four budgets, and success


def curve(
    success: Sequence[float],
    every: int = 100,
    seconds: float = 1.0,
    peaks: Sequence[int] | None = None,
) -> list[Point]:
    """Evaluations ``every`` transitions, and as many ``seconds``, with ten steps between two."""
    peaks = [1000] * len(success) if peaks is None else peaks
    return [(i * every, 10 * i, i * seconds, peaks[i], s) for i, s in enumerate(success)]


def run(
    algo: str,
    seed: int,
    points: Sequence[Point] = (),
    *,
    env: str = "vlm",
    status: str = "ok",
    processor: str = "one",
    extra: dict[str, Any] | None = None,
    model: bool = False,
    **last: float,
) -> dict[str, Any]:
    """A run, its curve and the last values of its metrics."""
    names = {"env": {"name": env}, "algo": {"name": algo}, "budget": {"name": "small"}}
    config = names | ({"model": {"name": "tiny"}} if model else {})
    row = vars(ORIGIN) | {"processor": processor, "config": config, "extra": extra or {}}
    row |= {"run": f"{env}/{algo}/{seed}", "env": env, "algo": algo, "budget": "small"}
    row |= {"seed": seed, "status": status, "problem": "", "variant": algo, "setting": env}
    return {"row": row | {"concurrency": 1}, "points": points, "last": last}


def summaries_of(runs: Sequence[dict[str, Any]]) -> RunSummaries:
    """The result that ``load_summaries`` would give."""
    names = ["run", "transitions", "gradient_steps", "seconds", "peak_bytes", "success"]
    rows = [[r["row"]["run"], *point] for r in runs for point in r["points"]]
    values = pd.DataFrame([r["last"] for r in runs], index=[r["row"]["run"] for r in runs])
    frame = pd.DataFrame([r["row"] for r in runs])
    curves = pd.DataFrame(rows, columns=names)
    return RunSummaries(frame, values, curves.astype({name: float for name in names[1:]}))


def groups_of(summaries: RunSummaries, reference: str = "ppo") -> list[Group]:
    """The rows of the tables."""
    return group_runs(summaries, reference)
