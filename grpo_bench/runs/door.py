"""The door of every program that Hydra configures: what is wrong with a command is one line."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_bench.config.resolve import CONF, config_folders, key_of, with_signs
from grpo_bench.grpo.settings import Settings
from grpo_bench.runs.hydra_setup import register

SEVERAL = re.compile(r"Ambiguous value for argument|Sweep parameters '")
UNKNOWN = re.compile(r"Could not (?:override|delete from config\.) '(.+?)'")
TWICE = re.compile(r"An item is already at '(.+?)'")
CLOSE = 0.6  # how alike two names are that may have been meant for each other


def program(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """As ``hydra.main``, but a wrong command ends with exit status 1 and one line on stderr, which
    names the key or the choice that may have been meant. Hydra prints 7 to 24 lines.

    ``HYDRA_FULL_ERROR=1`` in the environment still shows the traceback.
    """

    def decorate(task: Callable[[DictConfig], Any]) -> Callable[[], None]:
        register()
        configured = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(
            task
        )

        @functools.wraps(task)
        def main() -> None:
            if not {"", os.getcwd()} & {*sys.path}:  # as for python -m: modules of the user's own
                sys.path.insert(0, os.getcwd())
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                return configured()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and prints nothing
            words = [word for word in sys.argv[1:] if "=" in word or word.startswith("~")]
            try:
                check_once(words)
                if config_name in ("config", "plan"):  # those of a run
                    sys.argv[1:] = with_signs(sys.argv[1:])
                configured()
            except (HydraException, OmegaConfBaseException) as error:
                raise SystemExit(explained(error, words, config_name)) from None
            finally:
                del os.environ["HYDRA_FULL_ERROR"]

        return main

    return decorate


def check_once(words: Sequence[str]) -> None:
    """Stop where a key is given twice: Hydra takes the last value without a word."""
    seen: dict[str, str] = {}
    for word in words:
        key = key_of(word)
        if key in seen and not word.startswith("-"):
            raise SystemExit(f"{seen[key]} {word}: {key} is given twice, expected one value")
        seen[key] = word


def explained(error: Exception, words: Sequence[str], config_name: str) -> str:
    """One line about what Hydra raised."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: expected key=value ({text.splitlines()[0]})"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return unknown_choice(error.missing_cfg_file, error.options or ())
    if found := UNKNOWN.search(text):
        key = found[1]
        word = next((word for word in words if key_of(word) == key), key)
        return unknown_key(word, words, config_name)
    if found := TWICE.search(text):
        return f"{found[1]} has a value already: expected {found[1]}=value, or ++{found[1]}=value"
    if SEVERAL.search(text):
        word = next((word for word in words if word in text), "")
        return f"{word}: several values, expected -m beside them, or {word.replace('=', '=[')}]"
    cause = "" if error.__cause__ is None else str(error.__cause__)
    lines = [part.splitlines()[0].strip() for part in (text, cause) if part.strip()]
    return ": ".join(lines) or type(error).__name__


def unknown_choice(path: str, options: Sequence[str]) -> str:
    """``env=vlmm: unknown, did you mean env=vlm?``"""
    group, _, choice = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    files = {
        str(file.relative_to(folder / group).with_suffix(""))
        for folder in config_folders()
        for file in (folder / group).rglob("*.yaml")
    }
    close = get_close_matches(choice, sorted({*files, *options}), n=1, cutoff=CLOSE)
    if close:
        return f"{group}={choice}: unknown, did you mean {group}={close[0]}?"
    return f"{group}={choice}: unknown, expected one of {', '.join(options)}"


def unknown_key(word: str, words: Sequence[str], config_name: str) -> str:
    """``sed=1: unknown key, did you mean seed=1?``"""
    key = key_of(word)
    sign = word[: len(word) - len(word.lstrip("+~"))]
    value = word[len(sign) + len(key) :]
    names = keys_of(config_name, words)
    if config_name == "tune" and key in keys_of("config", ()):
        return f"{word}: the trials have this key, expected overrides=[{word}]"
    if key in names:
        return f"{word}: not in the configuration, expected +{word}"
    close = closest(key, names)
    if close is None:
        return f"{word}: unknown key, --help lists all keys"
    return f"{word}: unknown key, did you mean {sign}{close}{value}?"


def closest(key: str, names: Sequence[str]) -> str | None:
    """The name most like a key: first among those in the same group, then by their last part."""
    group, _, last = key.rpartition(".")
    beside = [name for name in names if name.rpartition(".")[0] == group]
    if found := get_close_matches(key, beside, n=1, cutoff=CLOSE):
        return found[0]
    parts = {name.rpartition(".")[2]: name for name in names}
    if found := get_close_matches(last, list(parts), n=1, cutoff=CLOSE):
        return parts[found[0]]
    return None


def keys_of(config_name: str, words: Sequence[str]) -> list[str]:
    """The keys of a program, and GRPO's options that its file leaves at their defaults."""
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    chosen = [word for word in words if key_of(word) in groups and "," not in word]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            config = compose(config_name, chosen)
        except HydraException:
            config = compose(config_name)
    names = list(dotted(OmegaConf.to_container(config)))
    if config.get("algo", {}).get("kind") == "grpo":
        names += [f"algo.{each.name}" for each in fields(Settings)]
    return list(dict.fromkeys(names))


def dotted(group: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all values and groups."""
    for key, value in group.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from dotted(value, f"{path}{key}.")
