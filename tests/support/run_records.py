"""Records with numbers that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_bench.meter import Provenance
from grpo_bench.records import claim, plan
from grpo_bench.records.schema import Status
from grpo_bench.report import display

ORIGIN = Provenance(
    commit="0123456789abcdef",
    dirty=False,
    code_digest="c0de" * 16,
    versions={"torch": "2.13.0", "numpy": "2.4.6"},
    python="3.11.7",
    platform="Linux",
    processor="Processor_X 3 & 4",
    cores=2,
    accelerator=None,
    threads=1,
)


def record(
    results: Path,
    algo: str,
    seed: int,
    last: dict[str, float],
    *,
    status: Status = "ok",
    env: str = "vlm",
    budget: str = "smoke",
    origin: Provenance = ORIGIN,
    components: Sequence[str] = (),
    findings: Sequence[str] = (),
    model: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    processes: int | None = None,
    **others: Any,
) -> None:
    """One run that logs 0 for everything at first, then ``last``. ``model``: settings of a language
    model, ``settings``: of the environment, ``others``: of the algorithm."""
    names = {
        "env": {"name": env} | (settings or {}),
        "algo": {"name": algo} | others,
        "budget": {"name": budget},
    }
    names |= {} if model is None else {"model": model}
    config = {**names, "seed": seed, "results": str(results)}
    run = claim(plan(results, config), config, seeds={}, provenance=origin, concurrency=2)
    run.log(0, 0, 0.0, 1, dict.fromkeys(last, 0.0) | {"eval/validation/success": 0.25})
    run.log(2048, 16, 1.0, 2, last | {f"eval/test/{name}": 0.75 for name in components})
    for step, value in [(0, 0.0), (2048, 1.0)]:
        table = pd.DataFrame(
            {"problem_id": [0, 1], "reward": 1.0, "success": 1.0, "length": 1}
            | {name: [value, 0.5] for name in components}
        )
        run.evaluation("test", step, table)
    if findings:
        run.extra["findings"] = list(findings)
    if processes is not None:
        run.extra["processes"] = processes
    run.finish(status)


def values(
    success: float, rate: float, peak: float, critic: float | None = None
) -> dict[str, float]:
    """The values that a run logs at its end."""
    critics = {} if critic is None else {"memory/critic_bytes": critic}
    return {
        "eval/validation/success": success + 0.05,
        "eval/test/success": success,
        "eval/test/reward": 1.5 * success - 0.5,  # +1 right, -0.5 wrong
        "task/random_score": -0.125,
        "task/oracle_score": 1.0,
        "time/transitions_per_second": rate,
        "time/rollout_seconds": 0.25,
        "time/update_seconds": 0.75,
        "time/setup_seconds": 3.0,
        "memory/peak_bytes": peak,
        "memory/start_bytes": 100e6,
        "memory/train_peak_bytes": 112e6,
        "memory/policy_bytes": 10e3,
        "memory/gradient_bytes": 10e3,
        "memory/optimizer_bytes": 20e3,
        **critics,
    }


def cells(tables: dict[str, pd.DataFrame], name: str, env: str, algo: str) -> dict[str, str]:
    """A row as printed, by title."""
    shown = display(name, tables[name])
    (row,) = shown[(shown["env"] == env) & (shown["algo"] == algo)].to_dict("records")
    return row
