"""Synthetic run records in any number: a few made by the records code, the others beside them under
seeds and settings of their own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_bench.meter import provenance
from grpo_bench.records import Run, claim, plan, run_folder

ITERATIONS, PROBLEMS = 489, 4096  # of the default budget on vlm, and of its test split
MOMENT = 2048  # transitions of an iteration
ENVS, ALGOS = ("arithmetic", "format", "vlm"), ("dapo", "grpo", "ppo")
EACH_ITERATION = (
    *("time/fps", "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate"),
    *("rollout/group_std", "rollout/zero_std_frac", "train/approx_kl", "train/clip_fraction"),
    *("train/kl_ref", "train/kl_k1", "train/kl_k3", "train/loss", "train/entropy_loss"),
    *("train/gradient_norm",),
)
AT_THE_END = (
    *(f"time/{phase}_seconds" for phase in ("rollout", "update", "setup", "evaluation")),
    *("time/transitions_per_second", "task/random_score", "task/oracle_score"),
    *(f"memory/{part}_bytes" for part in ("peak", "start", "train_peak", "policy", "gradient")),
    *("memory/optimizer_bytes", "memory/rollout_bytes"),
)


def config(env: str, algo: str, seed: int, setting: int, results: Path) -> dict[str, Any]:
    """The configuration of a record, as far as tables read it. ``setting``: of the algorithm."""
    return {
        "env": {"name": env, "id": f"GRPO-{env}", "train": {"episodes": MOMENT}},
        "algo": {"name": algo, "kind": algo, "learning_rate": 1e-3 * (1 + setting)},
        "budget": {"name": "default"},
        "seed": seed,
        "results": str(results),
    }


def fill(run: Run, rng: np.random.Generator) -> None:
    """Metrics of as many iterations as the default budget has on vlm, with 11 evaluations on
    validation and one on test, all of random numbers."""
    for i in range(ITERATIONS + 1):
        moment = (i * MOMENT, 16 * i, 0.02 * i, 10**8)
        if i % (ITERATIONS // 10) == 0:
            evaluate(run, "validation", moment, rng)
        run.log(*moment, dict(zip(EACH_ITERATION, rng.random(len(EACH_ITERATION)), strict=True)))
    evaluate(run, "test", moment, rng)
    run.log(*moment, dict(zip(AT_THE_END, 1 + rng.random(len(AT_THE_END)), strict=True)))


def evaluate(
    run: Run, split: str, moment: tuple[int, int, float, int], rng: np.random.Generator
) -> None:
    """An evaluation, and its means among the metrics."""
    success = (rng.random(PROBLEMS) < rng.random()).astype(np.float64)
    columns = {"reward": 1.5 * success - 0.5, "success": success, "format": success}
    columns["length"] = np.ones(PROBLEMS, np.int64)
    run.evaluation(split, moment[0], columns | {"problem_id": np.arange(PROBLEMS)})
    run.log(*moment, {f"eval/{split}/{name}": float(x.mean()) for name, x in columns.items()})


def make_records(results: Path, n: int, seeds: int) -> None:
    """At least ``n`` records of all environments and algorithms in equal parts, with ``seeds``
    seeds of each setting. Those of an environment and algorithm share the files of its first."""
    origin, rng = provenance(), np.random.default_rng(0)
    each = -(-n // (len(ENVS) * len(ALGOS)))
    for env in ENVS:
        for algo in ALGOS:
            first = config(env, algo, 0, 0, results)
            run = claim(plan(results, first), first, seeds={}, provenance=origin)
            assert run is not None
            with run:
                fill(run, rng)
            for i in range(1, each):
                other = config(env, algo, i % seeds, i // seeds, results)
                folder = run_folder(results, other)
                folder.mkdir()
                manifest = replace(run.manifest, config=other).to_json()
                (folder / "manifest.json").write_bytes(manifest)
                for name in ("metrics.parquet", "eval.parquet"):
                    os.link(run.folder / name, folder / name)
