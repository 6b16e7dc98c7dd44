"""The result of a search: a file for each algorithm in conf/tuned, and tables of the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from grpo_bench.report.text.numbers import share
from grpo_bench.report.text.writers import csv, markdown_grid
from grpo_bench.tuning.trials import Trial, best

LEFT = ("env", "algo", "settings", "chosen")  # columns of the table that are aligned left
READING = (
    "Success on the tuning split at the end of each trial: on the first seed for all, on the mean "
    "of {n} seeds for those that got them. Trial 0 is the algorithm as its file says."
)
WINNERS = (
    "Success on the tuning split, mean of {n} seeds; the best of {trials} trials of each. That it "
    "is the best makes it look better than it is: other seeds and problems are reported."
)


def tuned_file(trials: Sequence[Trial], settings: DictConfig) -> str:
    """The settings of an algorithm's best trial as a file, with the command that found them."""
    chosen, first = best(trials), trials[0]
    seeds = ", ".join(map(str, chosen.scores))
    lines = [
        "# @package _global_",
        f"# python -m grpo_bench.tune envs=[{chosen.env}] algos=[{chosen.algo}] "
        f"trials={settings.trials} finalists={settings.finalists} "
        f"seeds=[{','.join(map(str, settings.seeds))}]",
        f"# Trial {chosen.number} of {len(trials)}: {share(chosen.score)} on the tuning split, "
        f"as the algorithm's file says {share(first.score)} (seeds {seeds}).",
    ]
    if not chosen.settings:
        return "\n".join([*lines, "algo: {} # as its file says", ""])
    values = [f"  {name}: {value}" for name, value in chosen.settings.items()]
    return "\n".join([*lines, "algo:", *values, ""])


def table(trials: Sequence[Sequence[Trial]]) -> pd.DataFrame:
    """A row for each trial: its settings, its score, whether it was chosen."""
    rows = []
    for some in trials:
        chosen = best(some)
        for trial in some:
            rows.append(
                {
                    "env": trial.env,
                    "algo": trial.algo,
                    "trial": trial.number,
                    "settings": ", ".join(f"{k}={v:g}" for k, v in trial.settings.items()),
                    "first_seed": next(iter(trial.scores.values())),
                    "seeds": len(trial.scores),
                    "mean": math.nan if len(trial.scores) == 1 else trial.score,
                    "chosen": "chosen" if trial is chosen else "",
                }
            )
    return pd.DataFrame(rows)


def page(trials: pd.DataFrame, n_seeds: int) -> str:
    """The table of trials in Markdown."""
    shown = trials.assign(
        trial=trials["trial"].astype(str),
        seeds=trials["seeds"].astype(str),
        first_seed=trials["first_seed"].map(share),
        mean=trials["mean"].map(share),
    ).rename(columns={"first_seed": "first seed"})
    reading = READING.format(n=n_seeds)
    return f"**Tuning: all trials**\n\n{markdown_grid(shown, LEFT)}\n\n{reading}\n"


def winners(trials: Sequence[Sequence[Trial]], n_seeds: int) -> str:
    """The chosen settings and those of the algorithm's file, in Markdown."""
    rows = []
    for some in trials:
        chosen, first = best(some), some[0]
        rows.append(
            {
                "env": chosen.env,
                "algo": chosen.algo,
                "settings": chosen.words(),
                "as its file says": share(first.score),
                "tuned": share(chosen.score),
            }
        )
    reading = WINNERS.format(trials=len(trials[0]), n=n_seeds)
    return (
        f"**Tuning: what was chosen**\n\n{markdown_grid(pd.DataFrame(rows), LEFT)}\n\n{reading}\n"
    )


def result_files(trials: Sequence[Sequence[Trial]], settings: DictConfig) -> dict[Path, str]:
    """All files of the result, with their texts."""
    tables = Path(settings.results) / "tables"
    found = table(trials)
    texts = {
        tables / "trials.csv": csv(found),
        tables / "trials.md": page(found, len(settings.seeds)),
        tables / "chosen.md": winners(trials, len(settings.seeds)),
    }
    for some in trials:
        path = Path(settings.out) / some[0].env / f"{some[0].algo}.yaml"
        texts[path] = tuned_file(some, settings)
    return texts
