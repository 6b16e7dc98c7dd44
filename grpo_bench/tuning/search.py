"""The search for an algorithm's settings: its trials, their runs, and their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import DictConfig, ListConfig, OmegaConf

from grpo_bench.config import RunConfig, resolved
from grpo_bench.config.resolve import config_folders
from grpo_bench.records.load import RunSummaries
from grpo_bench.records.schema import run_folder
from grpo_bench.runs.sweep import execute_all
from grpo_bench.tuning.trials import Trial, best, finalists, propose

EXAMPLES = {  # for keys that take a list
    "envs": "vlm",
    "algos": "grpo,ppo",
    "seeds": "1001,1002",
    "overrides": "'threads=2'",
}
Score = Callable[[list[RunConfig]], list[float]]


def check_settings(settings: DictConfig) -> None:
    """Raises ValueError naming the first key of a search that is wrong."""
    for name in ("envs", "algos", "seeds", "overrides"):
        value = settings[name]
        if not isinstance(value, ListConfig) or (not value and name != "overrides"):
            raise ValueError(f"{name}={value}: expected a list such as [{EXAMPLES[name]}]")
    for name in ("trials", "finalists", "n_jobs"):
        value = settings[name]
        if (type(value) is not int or value < 1) and (name != "n_jobs" or value is not None):
            raise ValueError(f"{name}={value}: expected a whole number of at least 1")
    if settings.finalists > settings.trials:
        raise ValueError(
            f"finalists={settings.finalists}: expected at most trials={settings.trials}"
        )
    for name in ("envs", "algos", "seeds"):
        if len(set(settings[name])) < len(settings[name]):
            raise ValueError(f"{name}={settings[name]}: expected each once")
    for seed in settings.seeds:
        if type(seed) is not int or seed < 0:
            raise ValueError(f"seeds={settings.seeds}: expected whole numbers, 0 or more")
    check_spaces(settings)


def check_spaces(settings: DictConfig) -> None:
    """Raises ValueError where an environment, an algorithm or a parameter is not known."""
    for env in settings.envs:
        files = {path.stem for each in config_folders() for path in (each / "env").glob("*.yaml")}
        if env not in files:
            raise ValueError(f"envs={env}: expected one of {', '.join(sorted(files))}")
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
    for name, values in settings.parameters.items():
        factor, choices = values.get("factor"), values.get("choices")
        if bool(factor) == bool(choices) or (factor and not is_factor(list(factor))):
            raise ValueError(
                f"parameters.{name}={values}: expected factor: [low, high], 0 < low < high, or "
                "choices: [one or more]"
            )


def is_factor(bounds: list[Any]) -> bool:
    """Whether these are a lower and an upper bound, both above 0."""
    numbers = all(type(bound) in (int, float) for bound in bounds)
    return len(bounds) == 2 and numbers and 0 < bounds[0] < bounds[1]


def all_trials(settings: DictConfig) -> list[list[Trial]]:
    """The trials of each environment and algorithm, without scores."""
    parameters: Any = OmegaConf.to_container(settings.parameters)
    found = []
    for env in settings.envs:
        for algo in settings.algos:
            base = base_config(env, algo, settings)
            space = settings.spaces[algo]
            tried = fitting(parameters, base) if "group_size" in space else parameters
            proposals = propose(tried, space, base.algo.keywords(), settings.trials)
            found.append([Trial(env, algo, i, each, base) for i, each in enumerate(proposals)])
    return found


def fitting(parameters: Mapping[str, Any], base: RunConfig) -> dict[str, Any]:
    """The parameters with those group sizes alone that fill whole minibatches on an environment.

    Raises:
        ValueError: none does.
    """
    choices = parameters["group_size"]["choices"]
    multiple = base.env.train.episodes // base.algo.minibatches
    fit = [size for size in choices if multiple % size == 0]
    if not fit:
        raise ValueError(
            f"parameters.group_size={choices}: expected some that divide the {multiple} episodes "
            f"of a minibatch on {base.env.name}"
        )
    return {**parameters, "group_size": {"choices": fit}}


def base_config(env: str, algo: str, settings: DictConfig) -> RunConfig:
    """A run of an algorithm with the settings of its file."""
    choices = [f"env={env}", f"algo={algo}", "budget=tuning", "tuned=none"]
    place = f"results='{settings.results}'"
    return resolved(compose("config", [*choices, place, *settings.overrides]))


def all_scores(trials: Sequence[Sequence[Trial]], settings: DictConfig, score: Score) -> None:
    """Record the scores of all trials on the first seed, then of the finalists on the others.

    Args:
        score: gives the scores of runs from their configurations.
    """
    first, *others = settings.seeds
    note([trial for some in trials for trial in some], [first], score)
    final = [trial for some in trials for trial in finalists(some, settings.finalists)]
    note(final, others, score)
    for some in trials:
        if best(some).score == -math.inf:
            raise ValueError(
                f"{some[0].env} {some[0].algo}: no trial has ended ok on all its seeds"
            )


def note(trials: Sequence[Trial], seeds: Sequence[int], score: Score) -> None:
    """Record the scores of trials on some seeds."""
    pairs = [(trial, seed) for seed in seeds for trial in trials]
    scores = score([trial.config(seed) for trial, seed in pairs])
    for (trial, seed), value in zip(pairs, scores, strict=True):
        trial.scores[seed] = value


def run_trials(configs: list[RunConfig], n_jobs: int | None) -> list[float]:
    """Success of runs at their ends; NaN for those that do not end ok."""
    if not configs:
        return []
    seeds = ", ".join(map(str, sorted({config.seed for config in configs})))
    print(f"On seed {seeds}: {len(configs)} runs")
    outcomes = execute_all(configs, n_jobs)
    return [each.score if each.status == "ok" else math.nan for each in outcomes]


def recorded(configs: list[RunConfig], records: RunSummaries) -> list[float]:
    """The same from records; NaN for runs without one."""
    values = records.values.reindex(columns=["eval/tuning/success"])["eval/tuning/success"]
    ok = records.runs.loc[records.runs["status"] == "ok", "run"]
    names = [run_folder(Path(), config.plain).as_posix() for config in configs]
    return values.reindex(ok).reindex(names).tolist()
