"""From the Hydra configuration to the configuration of a run, and where its files are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_bench.config.content import content_of
from grpo_bench.config.imports import digests
from grpo_bench.config.rules import Plain, read
from grpo_bench.config.schema import ControlConfig, GymConfig, LanguageConfig
from grpo_bench.grpo.settings import Settings


@dataclass
class ProcessLauncherConf:
    """``hydra.launcher``: see ``grpo_bench.runs.launcher``."""

    _target_: str = "grpo_bench.runs.launcher.ProcessLauncher"
    n_jobs: int | None = None  # processes at a time; None: as many as the cores have room for


# conf/config.yaml names it, so whoever composes a configuration needs it.
ConfigStore.instance().store(
    group="hydra/launcher", name="processes", node=ProcessLauncherConf, provider="grpo_bench"
)


def name_of(id: str) -> str:
    """``Mine-v0`` of ``my.module:Mine-v0``: the name of an environment in tables and folders."""
    return id.rpartition(":")[2].replace("/", "-")


OmegaConf.register_new_resolver("name_of", name_of, replace=True)

_package = Path(__file__).resolve().parents[1]
# In the wheel inside the package, in a checkout beside it.
CONF: Path = next(
    folder for folder in (_package / "conf", _package.parent / "conf") if folder.is_dir()
)


def composed(*overrides: str) -> GymConfig | ControlConfig | LanguageConfig:
    """The configuration of ``python -m grpo_bench.run`` with these words on its command line.

    Raises:
        ValueError: see ``resolved``.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolved(compose("config", with_signs(overrides)))


def key_of(word: str) -> str:
    """``algo.kl`` of ``++algo.kl=k3``."""
    return word.lstrip("+~").partition("=")[0]


def with_signs(words: Iterable[str]) -> list[str]:
    """The words of a command line, those for settings of algorithms as Hydra wants them:
    ``algo.kl_coef=0.1`` becomes ``++algo.kl_coef=0.1``. The files in ``conf/algo`` leave options at
    their defaults, and in a sweep not every algorithm has every setting."""
    words = list(words)
    if not any(word.startswith("algo.") for word in words):
        return words
    names = {each.name for each in fields(Settings)}
    for folder in config_folders():
        for file in (folder / "algo").rglob("*.yaml"):
            names |= {str(key) for key in OmegaConf.load(file)}
    options = tuple(f"algo.{name}=" for name in names)
    return [f"++{word}" if word.startswith(options) else word for word in words]


def resolved(config: DictConfig) -> GymConfig | ControlConfig | LanguageConfig:
    """The configuration of a run, with all interpolations resolved and all values checked.

    Raises:
        ValueError: names the first key that is wrong or missing, and what would be right.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ValueError(explained(str(error).splitlines()[0])) from None
    model = plain.get("model")
    if isinstance(model, dict) and (content := content_of(str(model.get("source")))):
        model["content"] = content
    for group in ("env", "algo"):
        if own := digests(plain.get(group)):
            plain[group]["code"] = own
    return from_plain(plain)


def explained(line: str) -> str:
    """What a missing value means, for the keys that a user has to give."""
    if missing := re.search(r"Missing mandatory value: (\S+)", line):
        name = "=package.module:Name" if missing[1].endswith(".id") else "=..."
        return f"{missing[1]}: missing, expected {missing[1]}{name}"
    if "env.zoo" in line:
        return "algo=ppo_zoo: RL Baselines3 Zoo has no settings for this environment (env.zoo)"
    return line


def from_plain(plain: Plain) -> GymConfig | ControlConfig | LanguageConfig:
    """As ``resolved``, from plain values such as those in a record. It keeps ``plain`` and replaces
    in it numbers such as 1e6 by whole ones.

    Raises:
        ValueError: as ``resolved``.
    """
    for group in ("env", "algo", "budget"):
        if not isinstance(plain.get(group), dict):
            raise ValueError(f"{group}: missing, expected a choice such as {group}=...")
    env, asks, has = plain["env"], "generation" in plain["env"], "model" in plain
    if asks and not has:
        raise ValueError(
            f"env={env.get('name')} needs a language model: expected one, such as "
            "model=smollm2_135m"
        )
    if has and not asks:
        raise ValueError(
            f"env={env.get('name')} with a language model: expected an environment for one, such "
            "as env=arithmetic_text, or no model"
        )
    if has:
        return read(LanguageConfig, plain)
    return read(ControlConfig, plain) if "workers" in env else read(GymConfig, plain)


def config_folders() -> list[Path]:
    """Where configuration is looked for; the first folder wins, the last is ours.

    Before ours come ``--config-dir`` and a folder ``conf`` in the current folder, so that runs find
    what ``tune`` wrote there. A folder with a ``config.yaml`` belongs to another program.
    """
    words = sys.argv[1:]
    given = [after for word, after in pairwise(words) if word in ("--config-dir", "-cd")]
    given += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    own = [Path("conf")] if not Path("conf/config.yaml").exists() else []
    folders = [folder.resolve() for folder in (*map(Path, given), *own) if folder.is_dir()]
    return list(dict.fromkeys([*folders, CONF]))


def tuned_file(choices: Mapping[str, str | None]) -> Path | None:
    """The file of tuned settings that a run uses; None if there is none for its algorithm.

    Args:
        choices: the choice for each group, as Hydra has them.

    Raises:
        ValueError: ``tuned=`` names a file that does not exist. Hydra lets it pass, since not
            every algorithm has been tuned.
    """
    asked = choices.get("tuned")
    if asked is None or asked == "none":
        return None
    for folder in config_folders():
        if (path := folder / "tuned" / f"{asked}.yaml").is_file():
            return path
    if asked != f"{choices['env']}/{choices['algo']}":  # the default
        raise ValueError(f"tuned={asked}: expected none, or the name of a file in conf/tuned")
    return None


def print_tuned(files: Iterable[Path | None]) -> None:
    """Print which tuned settings are used, a line for each folder that has some."""
    names: dict[Path, list[str]] = {}
    for path in dict.fromkeys(file for file in files if file is not None):
        folder = next(f / "tuned" for f in config_folders() if path.is_relative_to(f))
        names.setdefault(folder, []).append(str(path.relative_to(folder).with_suffix("")))
    for folder, found in names.items():
        near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print(f"Tuned settings from {near}: {', '.join(found)}", flush=True)
