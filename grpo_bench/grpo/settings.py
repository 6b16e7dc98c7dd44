"""Refuse settings that cannot be meant, with what would be right, before anything is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from grpo_bench.grpo.advantages import find_baseline
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIO_LEVELS


def check_settings(s: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first of GRPO's settings, by name, that is out of range."""
    _whole("group_size", s["group_size"], 2)
    for name in ("n_problems", "batch_size", "max_len"):
        if s[name] is not None:
            _whole(name, s[name], 1)
    _whole("n_epochs", s["n_epochs"], 1)
    find_baseline(s["baseline"])
    _one_of("aggregation", s["aggregation"], AGGREGATIONS)
    _one_of("ratio", s["ratio"], RATIO_LEVELS)
    _one_of("kl", s["kl"], FORMS)
    _one_of("nan_reward", s["nan_reward"], ("error", "drop"))
    if s["ddof"] not in (0, 1):
        raise ValueError(f"ddof={s['ddof']}: expected 0 (population) or 1 (Bessel)")
    if (s["aggregation"] == "constant_length") != (s["max_len"] is not None):
        raise ValueError(
            f"aggregation={s['aggregation']!r} with max_len={s['max_len']}: constant_length needs "
            "the length limit as max_len, and nothing else reads it"
        )
    if s["kl"] == "none" and s["kl_coef"]:
        raise ValueError(f"kl_coef={s['kl_coef']} with kl='none': choose a form among {FORMS[1:]}")
    for name in ("eps", "kl_coef", "ent_coef"):
        if not 0 <= s[name] < math.inf:
            raise ValueError(f"{name}={s[name]}: expected a finite number, 0 or more")
    for name in ("clip_range", "clip_range_high", "max_grad_norm"):
        value = s[name]
        if value is not None and not callable(value) and not value > 0:
            raise ValueError(f"{name}={value}: expected more than 0")


def check_spaces(action_space: spaces.Space[Any]) -> None:
    """Raises ValueError for actions that SB3's distributions would number wrongly: they are
    numbered from 0, and MultiDiscrete's stand in one row."""
    start = np.asarray(getattr(action_space, "start", 0))
    if start.any():
        raise ValueError(
            f"action space {action_space}: policies number actions from 0, so wrap the environment "
            "in one that adds start to the action"
        )
    if isinstance(action_space, spaces.MultiDiscrete) and len(action_space.shape) > 1:
        raise ValueError(f"action space {action_space}: expected one row, so flatten it")


def _whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value}: expected a whole number, at least {least}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
