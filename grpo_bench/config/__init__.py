"""The Hydra configuration: where it lies, and what its values may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

Config = dict[str, Any]


@dataclass
class ProcessLauncherConf:
    """``hydra.launcher``: see ``grpo_bench.runs.launcher``."""

    _target_: str = "grpo_bench.runs.launcher.ProcessLauncher"
    n_jobs: int | None = None  # processes at a time; None: as many as the cores have room for


# conf/config.yaml names it, so whoever composes a configuration needs it.
ConfigStore.instance().store(
    group="hydra/launcher", name="processes", node=ProcessLauncherConf, provider="grpo_bench"
)

_package = Path(__file__).resolve().parents[1]
# In the wheel inside the package, in a checkout beside it.
CONF: Path = next(
    folder for folder in (_package / "conf", _package.parent / "conf") if folder.is_dir()
)


def composed(*overrides: str) -> Config:
    """The configuration of ``python -m grpo_bench.run`` with these words on its command line.

    Raises:
        ValueError: see ``resolved``.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolved(compose("config", [*overrides]))


def resolved(config: DictConfig) -> Config:
    """The configuration of a run as plain values, each of a type that can be meant. Whole numbers
    may be written as ``1e6``: that is the same run as 1000000.

    Raises:
        ValueError: names the first value that is wrong or missing, and what would be right.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from None
    _check_track(plain)
    values = dict(_leaves(plain, ""))
    for name in (*REQUIRED, *(REQUIRED_LM if "model" in plain else REQUIRED_GYM)):
        if name not in values:
            raise ValueError(f"{name}: missing, expected a value")
    return _checked(plain, "")


def check_tuned(choices: Mapping[str, str | None]) -> None:
    """Raises ValueError where ``tuned=`` asks for what is not there. Hydra lets it pass, since not
    every algorithm has been tuned.

    Args:
        choices: of each group the choice, as Hydra has them.
    """
    asked = choices.get("tuned")
    own = f"{choices['env']}/{choices['algo']}"  # what it is without a word
    if asked is not None and asked != own and not (CONF / "tuned" / f"{asked}.yaml").is_file():
        raise ValueError(f"tuned={asked}: expected none, or the name of a file in conf/tuned")


def _check_track(plain: Config) -> None:
    """Raises ValueError unless a language model is there exactly where the environment asks one."""
    env, asks = plain["env"], "generation" in plain["env"]
    if asks and "model" not in plain:
        raise ValueError(
            f"env={env.get('name')} asks a language model: expected one, such as model=smollm2_135m"
        )
    if "model" in plain and not asks:
        raise ValueError(
            f"env={env.get('name')} with model={plain['model'].get('name')}: expected an "
            "environment that asks a language model, such as env=arithmetic_text, or no model"
        )


def _leaves(group: Config, path: str) -> list[tuple[str, Any]]:
    """All values with their dotted names."""
    found = []
    for key, value in group.items():
        inner = isinstance(value, dict)
        found += _leaves(value, f"{path}{key}.") if inner else [(f"{path}{key}", value)]
    return found


def _checked(group: Config, path: str) -> Config:
    """The group, and those in it, with values that follow ``RULES``."""
    good: Config = {}
    for key, value in group.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            good[key] = _checked(value, f"{name}.")
            continue
        rule = next((rule for pattern, rule in RULES.items() if fnmatchcase(name, pattern)), None)
        if rule is None:
            raise ValueError(f"{name}={value}: unknown, nothing would read it")
        expected, accept = rule
        if not accept(value) and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not accept(value):
            raise ValueError(f"{name}={value}: expected {expected}")
        good[key] = value
    return good


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that

TEXT: Rule = ("a name", lambda value: isinstance(value, str) and value != "")
COUNT: Rule = ("a whole number, more than 0", _is_size)
SEED: Rule = ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
RATE: Rule = ("a number, more than 0", lambda value: _is_number(value) and value > 0)
FLAG: Rule = ("true or false", lambda value: isinstance(value, bool))
SETTING: Rule = (
    "a number, true, false or null (only an option that chooses by name takes text: spelt right?)",
    lambda value: value is None or isinstance(value, bool) or _is_number(value),
)

# The first pattern that fits a value's dotted name decides; ``*`` stands for anything.
RULES: dict[str, Rule] = {
    "seed": SEED,
    "env.warmup.seed": SEED,
    "threads": COUNT,
    "budget.transitions": COUNT,
    "budget.evaluations": COUNT,
    "budget.test": FLAG,
    "budget.split": ("validation or tuning", lambda value: value in ("validation", "tuning")),
    "*.learning_rate": RATE,
    **{
        f"env.train.{name}": COUNT
        for name in ("episodes", "n_steps", "minibatches", "n_epochs", "group_size", "max_tokens")
    },
    "env.examples": SEED,
    "env.generation.max_new_tokens": COUNT,
    "env.generation.temperature": RATE,
    "env.generation.backend": TEXT,
    "env.evaluation.batch_size": COUNT,
    "env.shuffled_rewards": FLAG,
    "env.transitions.*": COUNT,
    "env.warmup.noise": (
        "a number from 0 to 1",
        lambda value: _is_number(value) and 0 <= value <= 1,
    ),
    "env.warmup.*": COUNT,
    "env.warmup": ("null, or steps, batch_size and so on", lambda value: value is None),
    "env.network.body": TEXT,
    "env.network.widths": (
        "a list of whole numbers, more than 0, such as [64,64]",
        lambda value: isinstance(value, list) and value != [] and all(map(_is_size, value)),
    ),
    "env.network.*": COUNT,
    "env.kwargs.*": ("anything", lambda value: True),  # the environment checks its own
    "env.kwargs": ("options of the environment", lambda value: False),  # it is no group
    **{f"env.{name}": TEXT for name in ("name", "id", "policy")},
    "budget.name": TEXT,
    "algo.minibatches": COUNT,
    "algo.*_size": COUNT,
    "algo.n_epochs": COUNT,
    **{
        f"algo.{name}": TEXT
        for name in (
            *("name", "kind", "critic", "baseline", "supervision", "surrogate"),
            *("ratio", "aggregation", "kl"),
        )
    },
    "algo.nan_reward": TEXT,
    **{f"algo.{name}": FLAG for name in ("mask_truncated", "mixed_start")},
    "algo.*": SETTING,
    "model": ("a choice such as model=smollm2_135m", lambda value: False),  # it is a group
    "model.lora.rank": SEED,
    "model.lora.alpha": COUNT,
    "model.lora.target_modules": (
        "all-linear, or a list of names of layers",
        lambda value: (
            value == "all-linear"
            or (isinstance(value, list) and value != [] and all(isinstance(v, str) for v in value))
        ),
    ),
    "model.gradient_checkpointing": FLAG,
    "model.save": FLAG,
    "model.sharded": FLAG,
    **{f"model.{name}": TEXT for name in ("name", "source", "dtype", "optimizer")},
    "timeout_s": (
        "a number of seconds, more than 0, or null",
        lambda value: value is None or (_is_number(value) and value > 0),
    ),
    "device": TEXT,
    "tensorboard": FLAG,
    "wandb": (
        "the name of a project, or null",
        lambda value: value is None or (isinstance(value, str) and value != ""),
    ),
    "results": (
        "a folder, in quotes if it is a number",
        lambda value: isinstance(value, str) and value != "",
    ),
}

REQUIRED = (
    *(f"{group}.name" for group in ("env", "algo", "budget")),
    *("env.id", "env.train.episodes"),
    *(f"algo.{name}" for name in ("kind", "learning_rate", "minibatches", "n_epochs")),
    *("budget.transitions", "budget.evaluations", "budget.split", "budget.test"),
    *("seed", "threads", "device", "results", "timeout_s", "tensorboard", "wandb"),
)
REQUIRED_GYM = ("env.policy", "env.network.body", "env.train.n_steps")
REQUIRED_LM = (
    *(f"model.{name}" for name in ("name", "source", "dtype", "optimizer")),
    *(f"model.{name}" for name in ("gradient_checkpointing", "sharded", "save")),
    *(f"model.lora.{name}" for name in ("rank", "alpha", "target_modules")),
    *(f"env.generation.{name}" for name in ("max_new_tokens", "temperature", "backend")),
    *("env.train.group_size", "env.train.max_tokens"),
    *("env.evaluation.batch_size", "env.examples"),
)
