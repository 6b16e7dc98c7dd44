"""What GRPO's defaults learn on control tasks: mean return of deterministic episodes, seed by seed.

    python benchmarks/control.py --out results/benchmarks

Each row of the table is a setting on an environment with a budget of transitions, and a target.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from grpo_bench import GRPO
from grpo_bench.records.files import write_atomically
from grpo_bench.report.text.writers import csv

COLUMNS = ("environment", "setting", "transitions", "seeds", "median", "lowest", "target", "met")


class Case(NamedTuple):
    """A setting, and what its seeds must reach."""

    env_id: str
    env_kwargs: dict[str, Any]
    setting: str
    options: dict[str, Any]
    transitions: int
    seeds: int
    episodes: int  # of the evaluation
    target: str
    met: Callable[[np.ndarray], bool]  # of the mean return of each seed


CASES = (
    Case(
        *("CartPole-v1", {}, "defaults", {}, 60_000, 5, 20),
        *("median of at least 400", lambda returns: bool(np.median(returns) >= 400)),
    ),
    Case(
        *("FrozenLake-v1", {"is_slippery": False}, "defaults", {}, 40_000, 5, 20),
        *("every seed reaches the goal", lambda returns: bool((returns == 1).all())),
    ),
    Case(
        *("CartPole-v1", {}, "learning_rate=LinearSchedule(1e-3, 0.0, 1.0)"),
        *({"learning_rate": LinearSchedule(1e-3, 0.0, 1.0)}, 120_000, 10, 100),
        *("at least 475 on 9 of 10 seeds", lambda returns: bool((returns >= 475).sum() >= 9)),
    ),
)


def mean_return(case: int, seed: int) -> float:
    """Train on one seed; the mean return of episodes from other seeds."""
    torch.set_num_threads(1)
    env_id, env_kwargs, _, options, transitions, _, episodes, *_ = CASES[case]
    envs = partial(make_vec_env, env_id, env_kwargs=env_kwargs)
    model = GRPO("MlpPolicy", envs(8), seed=seed, device="cpu", **options).learn(transitions)
    mean, _ = evaluate_policy(model, envs(10, seed=10_000 + 100 * seed), episodes)
    print(f"{env_id}, {CASES[case].setting}, seed {seed}: {mean:.1f}", flush=True)
    return float(mean)


def main() -> None:
    """Run all cases, and write ``control.md`` and ``control.csv``."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    command.add_argument("--processes", type=int, default=2)
    arguments = command.parse_args()
    jobs = [(c, s) for c, case in enumerate(CASES) for s in range(1, case.seeds + 1)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = pd.DataFrame(jobs, columns=["case", "seed"])
        found["mean_return"] = list(pool.map(mean_return, *zip(*jobs, strict=True)))
    rows = []
    for number, case in enumerate(CASES):
        returns = found.loc[found["case"] == number, "mean_return"].to_numpy()
        numbers = (f"{np.median(returns):.1f}", f"{returns.min():.1f}")
        cells = (case.env_id, case.setting, f"{case.transitions:,}", str(case.seeds), *numbers)
        rows.append((*cells, case.target, "met" if case.met(returns) else "missed"))
    found.insert(0, "environment", [CASES[c].env_id for c in found["case"]])
    found.insert(1, "setting", [CASES[c].setting for c in found.pop("case")])
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out / "control.md", text.encode())
    write_atomically(arguments.out / "control.csv", csv(found).encode())
    print(text)


if __name__ == "__main__":
    main()
