"""Names of runs of one algorithm with different settings: the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from grpo_bench.records.schema import VOLATILE

T = TypeVar("T")

ABSENT = object()  # as a setting: what a variant does not have
# Of a language model; its other settings are named where these two do not tell variants apart.
MODEL, RANK = "model.name", "model.lora.rank"


def labels(configs: Mapping[T, dict[str, Any]]) -> dict[T, str]:
    """For each variant those of its settings that the others do not share; "" where they share all.

    Args:
        configs: the configuration of each, as its record has it.
    """
    all_settings = {variant: flat(config) for variant, config in configs.items()}
    several = list(all_settings.values())
    keys = sorted({key for settings in several for key in settings})
    differing = [key for key in keys if len({repr(s.get(key, ABSENT)) for s in several}) > 1]
    named = _without_what_follows(differing, several)
    return {
        variant: ", ".join(_setting(key, settings[key]) for key in named if key in settings)
        for variant, settings in all_settings.items()
    }


def _without_what_follows(differing: list[str], variants: list[dict[str, Any]]) -> list[str]:
    """The differing settings, a language model's name and rank first, without those others of it
    that are the same wherever these two are."""
    first = [key for key in (MODEL, RANK) if key in differing]

    def follows(key: str) -> bool:
        values: dict[str, set[str]] = {}
        for settings in variants:
            names = repr([settings.get(name, ABSENT) for name in first])
            values.setdefault(names, set()).add(repr(settings.get(key, ABSENT)))
        return key.startswith("model.") and all(len(found) == 1 for found in values.values())

    return first + [key for key in differing if key not in first and not follows(key)]


def _setting(key: str, value: Any) -> str:
    """A setting in a label."""
    if key == MODEL:
        return str(value)
    if key == RANK:
        return f"LoRA {value}" if value else "full"
    return f"{key.removeprefix('algo.')}={value}"


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``group.key``, without what does not make a variant."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in (*VOLATILE, "seed"):
            continue
        if isinstance(value, dict):
            settings |= flat(value, f"{prefix}{key}.")
        else:
            settings[f"{prefix}{key}"] = value
    return settings
