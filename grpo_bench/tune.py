"""``python -m grpo_bench.tune``: the same number of trials for every algorithm.

    python -m grpo_bench.tune                                  # conf/tune.yaml says of what
    python -m grpo_bench.tune envs=[vlm] algos=[grpo,ppo] trials=20
    python -m grpo_bench.run -m seed=1,2,3     # takes it up, unless tuned=none

Random search: the settings of a trial are a point of a scrambled Halton sequence, which covers a
space more evenly than independent draws (Bergstra and Bengio, JMLR 13, 2012; section 4). Two
algorithms with one setting in common try the same values of it. A trial is a run of the budget
``tuning``: as long as a reported one, on seeds and problems that no reported run sees. Each has a
record, so tuning that was cut off goes on with what is missing.

Every algorithm gets all its trials on the first seed; then the first trial, which is the algorithm
as its file says, and the best of the others get the other seeds. What is best on the mean over the
seeds goes to ``conf/tuned/<env>/<algo>.yaml``. A trial that fails counts as one and is not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pandas as pd
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from grpo_bench import run  # registers what conf/config.yaml needs
from grpo_bench.config import CONF, Config, resolved
from grpo_bench.records.files import replace
from grpo_bench.report.numbers import share
from grpo_bench.report.writers import csv, grid
from grpo_bench.sweep import carry_out

POINTS_SEED = 0  # of the sequence of trials
DIGITS = 3  # significant figures of a tuned number
LEFT = ("env", "algo", "settings", "chosen")  # columns of the table that are aligned left
READING = (
    "Success on the tuning split at the end of each trial: on the first seed for all, on the mean "
    "of {n} seeds for those that got them. Trial 0 is the algorithm as its file says."
)

Settings = dict[str, float]


@dataclass
class Trial:
    """Settings of an algorithm on an environment, and the success they led to, by seed."""

    env: str
    algo: str
    number: int
    settings: Settings
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Mean over the seeds; minus infinity if one of them failed."""
        mean = float(np.mean(list(self.scores.values())))
        return -math.inf if math.isnan(mean) else mean


def propose(
    parameters: Mapping[str, Mapping[str, Sequence[float]]],
    space: Sequence[str],
    own: Mapping[str, float],
    n: int,
) -> list[Settings]:
    """The settings of n trials: none for the first, then one of each parameter in the space.

    Args:
        parameters: of each either ``factor`` [low, high], times the algorithm's own value, even on
            a logarithmic scale, or ``choices``. Its place in this order is its coordinate.
        own: the algorithm's own values of those with a factor.
    """
    from scipy.stats import qmc  # slow to import

    points = qmc.Halton(len(parameters), rng=np.random.default_rng(POINTS_SEED)).random(n - 1)
    return [
        {},
        *(
            {
                name: value_at(parameter, u, own.get(name, math.nan))
                for (name, parameter), u in zip(parameters.items(), point, strict=True)
                if name in space
            }
            for point in points.tolist()
        ),
    ]


def value_at(parameter: Mapping[str, Sequence[float]], u: float, own: float) -> float:
    """A parameter's value at u in [0, 1)."""
    if "choices" in parameter:
        return parameter["choices"][int(u * len(parameter["choices"]))]
    low, high = parameter["factor"]
    return float(f"{own * low * (high / low) ** u:.{DIGITS}g}")


def finalists(trials: Sequence[Trial], n: int) -> list[Trial]:
    """The first trial and the n - 1 best of the others; of equals the earlier one."""
    return [trials[0], *sorted(trials[1:], key=lambda trial: -trial.score)[: n - 1]]


def best(trials: Sequence[Trial]) -> Trial:
    """The best of those with the most seeds; of equals the earlier one."""
    most = max(len(trial.scores) for trial in trials)
    return max((t for t in trials if len(t.scores) == most), key=lambda trial: trial.score)


def overrides(trial: Trial, seed: int, settings: DictConfig) -> list[str]:
    """What ``python -m grpo_bench.run`` would be told to carry out a trial."""
    return [
        f"env={trial.env}",
        f"algo={trial.algo}",
        "budget=tuning",
        "tuned=none",
        f"seed={seed}",
        f"results='{settings.results}'",
        *settings.overrides,
        *(f"++algo.{name}={value}" for name, value in trial.settings.items()),
    ]


def check_settings(settings: DictConfig) -> None:
    """Raises ValueError where something is asked that cannot be done."""
    for name, least in (("trials", 1), ("finalists", 1)):
        value = settings[name]
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value}: expected a whole number of at least {least}")
    if settings.finalists > settings.trials:
        raise ValueError(
            f"finalists={settings.finalists}: expected at most trials={settings.trials}"
        )
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise ValueError(f"seeds={list(settings.seeds)}: expected one or more different seeds")
    for algo in settings.algos:
        if algo not in settings.spaces:
            known = ", ".join(settings.spaces)
            raise ValueError(
                f"algos={algo}: no space to tune it in, expected one of {known}, or a line for it "
                "under spaces"
            )
        unknown = set(settings.spaces[algo]) - set(settings.parameters)
        if unknown:
            raise ValueError(
                f"spaces.{algo}: {', '.join(sorted(unknown))} not among the parameters, "
                f"expected some of {', '.join(settings.parameters)}"
            )


def all_trials(settings: DictConfig) -> dict[tuple[str, str], list[Trial]]:
    """The trials of each environment and algorithm."""
    parameters: Any = OmegaConf.to_container(settings.parameters)
    found = {}
    for env in settings.envs:
        for algo in settings.algos:
            bare = Trial(env, algo, 0, {})
            own = resolved(compose("config", overrides(bare, settings.seeds[0], settings)))["algo"]
            proposals = propose(parameters, settings.spaces[algo], own, settings.trials)
            found[env, algo] = [Trial(env, algo, i, each) for i, each in enumerate(proposals)]
    return found


def try_out(trials: Sequence[Trial], seeds: Sequence[int], settings: DictConfig) -> None:
    """Carry the trials out on the seeds, and note their scores."""
    pairs = [(trial, seed) for seed in seeds for trial in trials]
    configs: list[Config] = [
        resolved(compose("config", overrides(trial, seed, settings))) for trial, seed in pairs
    ]
    if not configs:
        return
    for (trial, seed), outcome in zip(pairs, carry_out(configs, settings.n_jobs), strict=True):
        trial.scores[seed] = outcome.score if outcome.status == "ok" else math.nan


def tuned_file(trials: Sequence[Trial], settings: DictConfig) -> str:
    """The configuration that the best of an algorithm's trials is, and how it was found."""
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


def table(trials: Mapping[tuple[str, str], Sequence[Trial]]) -> pd.DataFrame:
    """A row for each trial: its settings, its score, whether it was chosen."""
    rows = []
    for of_one in trials.values():
        chosen = best(of_one)
        for trial in of_one:
            first = next(iter(trial.scores.values()))
            rows.append(
                {
                    "env": trial.env,
                    "algo": trial.algo,
                    "trial": trial.number,
                    "settings": ", ".join(
                        f"{name}={value:g}" for name, value in trial.settings.items()
                    ),
                    "first_seed": first,
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
    return f"**Tuning: all trials**\n\n{grid(shown, LEFT)}\n\n{reading}\n"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tune")
def main(settings: DictConfig) -> None:
    """Tune, and write what was found."""
    try:
        check_settings(settings)
        trials = all_trials(settings)
        every = [trial for of_one in trials.values() for trial in of_one]
        n_rest = len(settings.seeds) - 1
        runs = len(every) + len(trials) * settings.finalists * n_rest
        print(
            f"{settings.trials} trials of each of {len(trials)}, then {settings.finalists} "
            f"finalists on {n_rest} more seeds: {runs} runs"
        )
        try_out(every, settings.seeds[:1], settings)
        final = [t for of_one in trials.values() for t in finalists(of_one, settings.finalists)]
        try_out(final, settings.seeds[1:], settings)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    tables = Path(settings.results) / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    found = table(trials)
    replace(tables / "trials.csv", csv(found).encode())
    replace(tables / "trials.md", page(found, len(settings.seeds)).encode())
    for (env, algo), of_one in trials.items():
        path = Path(settings.out) / env / f"{algo}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, tuned_file(of_one, settings).encode())
        print(f"{path}: trial {best(of_one).number}, {share(best(of_one).score)}")
    print(f"All trials: {tables / 'trials.md'}")


if __name__ == "__main__":
    run.stopping(main)
