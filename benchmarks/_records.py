"""Any number of synthetic run records: a few are written as runs write them, the others are copies
with other seeds and settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_bench.meter import provenance
from grpo_bench.records import Run, claim, plan, read_manifest, run_folder

ITERATIONS, PROBLEMS = 489, 4096  # of the default budget on vlm, and of one of its splits
TRANSITIONS = 2048  # per iteration
ENVS, ALGOS = ("arithmetic", "format", "vlm"), ("dapo", "grpo", "ppo")
KINDS = len(ENVS) * len(ALGOS)
EACH_ITERATION = (
    *("rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate", "rollout/group_std"),
    *("rollout/zero_std_frac", "rollout/zero_std_expected", "train/approx_kl"),
    *("train/clip_fraction", "train/kl_ref", "train/kl_k1", "train/kl_k3", "train/loss"),
    *("train/entropy_loss", "train/gradient_norm"),
)
AT_THE_END = (
    *(f"time/{phase}_seconds" for phase in ("rollout", "update", "setup", "evaluation")),
    *("time/transitions_per_second", "task/random_score", "task/oracle_score"),
    *(f"memory/{part}_bytes" for part in ("peak", "start", "train_peak", "policy", "gradient")),
    *("memory/optimizer_bytes", "memory/rollout_bytes"),
)
Moment = tuple[int, int, float, int]  # transitions, gradient steps, seconds, peak bytes


def make_records(folder: Path, n: int, seeds: int) -> None:
    """Make n records, rounded up to the same number for each environment and algorithm.

    Args:
        seeds: number of seeds of each setting; with one, every record is a row of the tables.
    """
    origin, rng = provenance(), np.random.default_rng(0)
    for env in ENVS:
        for algo in ALGOS:
            first, *others = (
                config(env, algo, i % seeds, i // seeds) for i in range(-(-n // KINDS))
            )
            run = claim(plan(folder, first), first, seeds={}, provenance=origin)
            assert run is not None, f"{folder} has this record already"
            with run:
                fill(run, rng)
            copy(run.folder, folder, others)


def copy(original: Path, results: Path, configs: Iterable[dict[str, Any]]) -> None:
    """Copy the record of a finished run into ``results`` under other configurations. Its tables are
    hard links: writing a hundred thousand files takes long."""
    manifest = read_manifest(original)
    for config in configs:
        folder = run_folder(results, config)
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(replace(manifest, config=config).to_json())
        for name in ("metrics.parquet", "eval.parquet"):
            os.link(original / name, folder / name)


def config(env: str, algo: str, seed: int, setting: int) -> dict[str, Any]:
    """The part of a record's configuration that the tables read."""
    return {
        "env": {"name": env},
        "algo": {"name": algo, "kind": algo, "learning_rate": 1e-3 * (1 + setting)},
        "budget": {"name": "default"},
        "seed": seed,
    }


def fill(run: Run, rng: np.random.Generator) -> None:
    """Write random numbers in as many rows as a run of the default budget on vlm: 489 iterations,
    11 evaluations on validation and one on test."""
    for i in range(ITERATIONS + 1):
        moment = (i * TRANSITIONS, 16 * i, 0.02 * i, 10**8)
        if i % (ITERATIONS // 10) == 0:
            _evaluate(run, "validation", moment, rng)
        run.log(*moment, _random(EACH_ITERATION, rng))
    _evaluate(run, "test", moment, rng)
    run.log(*moment, _random(AT_THE_END, rng))


def _evaluate(run: Run, split: str, moment: Moment, rng: np.random.Generator) -> None:
    success = (rng.random(PROBLEMS) < rng.random()).astype(np.float64)
    columns = {"reward": 1.5 * success - 0.5, "success": success, "length": np.ones(PROBLEMS, int)}
    run.evaluation(split, moment[0], columns | {"problem_id": np.arange(PROBLEMS)})
    means = {f"eval/{split}/{name}": float(column.mean()) for name, column in columns.items()}
    run.log(*moment, means)


def _random(names: tuple[str, ...], rng: np.random.Generator) -> dict[str, float]:
    """A random number from 1 to 2 for each name."""
    return dict(zip(names, (1 + rng.random(len(names))).tolist(), strict=True))
