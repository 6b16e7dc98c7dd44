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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from grpo_bench.records.load import Ends
from grpo_bench.records.schema import run_folder
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
WINNERS = (
    "Success on the tuning split, mean of {n} seeds; the best of {trials} trials of each. That it "
    "is the best makes it look better than it is: other seeds and problems are reported."
)

Settings = dict[str, float]
Score = Callable[[list[Config]], list[float]]


@dataclass
class Trial:
    """Settings of an algorithm on an environment, and the success they led to, by seed.

    base: the configuration of the algorithm as its file says.
    """

    env: str
    algo: str
    number: int
    settings: Settings
    base: Config = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def config(self, seed: int) -> Config:
        """The configuration of a run of it."""
        return {**self.base, "algo": {**self.base["algo"], **self.settings}, "seed": seed}

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


def all_trials(settings: DictConfig) -> list[list[Trial]]:
    """The trials of each environment and algorithm, yet without scores."""
    parameters: Any = OmegaConf.to_container(settings.parameters)
    found = []
    for env in settings.envs:
        for algo in settings.algos:
            base = base_config(env, algo, settings)
            proposals = propose(parameters, settings.spaces[algo], base["algo"], settings.trials)
            found.append([Trial(env, algo, i, each, base) for i, each in enumerate(proposals)])
    return found


def base_config(env: str, algo: str, settings: DictConfig) -> Config:
    """What ``python -m grpo_bench.run`` makes of an algorithm as its file says, on any seed."""
    choices = [f"env={env}", f"algo={algo}", "budget=tuning", "tuned=none"]
    place = f"results='{settings.results}'"
    return resolved(compose("config", [*choices, place, *settings.overrides]))


def all_scores(trials: Sequence[Sequence[Trial]], settings: DictConfig, score: Score) -> None:
    """Note the scores of all trials on the first seed, then those of the finalists on the others.

    Args:
        score: of runs, given their configurations.
    """
    first, *others = settings.seeds
    note([trial for some in trials for trial in some], [first], score)
    final = [trial for some in trials for trial in finalists(some, settings.finalists)]
    note(final, others, score)


def note(trials: Sequence[Trial], seeds: Sequence[int], score: Score) -> None:
    """Note the scores of trials on some seeds."""
    pairs = [(trial, seed) for seed in seeds for trial in trials]
    scores = score([trial.config(seed) for trial, seed in pairs])
    for (trial, seed), value in zip(pairs, scores, strict=True):
        trial.scores[seed] = value


def carried_out(configs: list[Config], n_jobs: int | None) -> list[float]:
    """Success of runs at their ends; NaN of those that do not end ok."""
    outcomes = carry_out(configs, n_jobs) if configs else []
    return [each.score if each.status == "ok" else math.nan for each in outcomes]


def recorded(configs: list[Config], records: Ends) -> list[float]:
    """The same from records that are there already; NaN of those that are not."""
    values = records.values.reindex(columns=["eval/tuning/success"])["eval/tuning/success"]
    ok = records.runs.loc[records.runs["status"] == "ok", "run"]
    names = [run_folder(Path(), config).as_posix() for config in configs]
    return values.reindex(ok).reindex(names).tolist()


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
    return f"**Tuning: all trials**\n\n{grid(shown, LEFT)}\n\n{reading}\n"


def winners(trials: Sequence[Sequence[Trial]], n_seeds: int) -> str:
    """What was chosen, beside the algorithm as its file says, in Markdown."""
    rows = []
    for some in trials:
        chosen, first = best(some), some[0]
        settings = ", ".join(f"{k} {v:g}" for k, v in chosen.settings.items())
        rows.append(
            {
                "env": chosen.env,
                "algo": chosen.algo,
                "settings": settings or "as its file says",
                "as its file says": share(first.score),
                "tuned": share(chosen.score),
            }
        )
    reading = WINNERS.format(trials=len(trials[0]), n=n_seeds)
    return f"**Tuning: what was chosen**\n\n{grid(pd.DataFrame(rows), LEFT)}\n\n{reading}\n"


def files(trials: Sequence[Sequence[Trial]], settings: DictConfig) -> dict[Path, str]:
    """What was found: ``trials.csv`` and ``trials.md``, and the best of each algorithm."""
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


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="tune")
def main(settings: DictConfig) -> None:
    """Tune, and write what was found."""
    try:
        check_settings(settings)
        trials = all_trials(settings)
        n_rest = len(settings.seeds) - 1
        runs = len(trials) * (settings.trials + settings.finalists * n_rest)
        print(
            f"{settings.trials} trials of each of {len(trials)}, then {settings.finalists} "
            f"finalists on {n_rest} more seeds: {runs} runs"
        )
        all_scores(trials, settings, partial(carried_out, n_jobs=settings.n_jobs))
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    for path, text in files(trials, settings).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text.encode())
    for some in trials:
        print(f"{some[0].env} {some[0].algo}: trial {best(some).number}, {share(best(some).score)}")
    print(f"Written to {settings.out} and {Path(settings.results) / 'tables'}")


if __name__ == "__main__":
    run.stopping(main)
