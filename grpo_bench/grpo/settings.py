"""Refuse settings that cannot be meant, with what would be right, before anything is made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from grpo_bench.grpo.advantages import BASELINES, DIVIDING, STEP_BASELINES, WITHIN_GROUP
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES

CHOICES: dict[str, tuple[str, ...]] = {
    "baseline": tuple(BASELINES),
    "surrogate": tuple(SURROGATES),
    "ratio": tuple(RATIOS),
    "aggregation": tuple(AGGREGATIONS),
    "supervision": ("outcome", "process"),
    "kl": ("none", *FORMS),
    "nan_reward": ("error", "drop"),
}


def check_settings(s: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first of GRPO's settings, by name, that is out of range, or the
    first combination that cannot be meant."""
    _check_values(s)
    for wrong, reason in _combinations(s):
        if wrong:
            raise ValueError(reason)


def _check_values(s: Mapping[str, Any]) -> None:
    _whole("group_size", s["group_size"], 2)
    _whole("n_epochs", s["n_epochs"], 1)
    _whole("max_refills", s["max_refills"], 0)
    for name in ("n_problems", "batch_size", "max_len", "ref_update_interval"):
        if s[name] is not None:
            _whole(name, s[name], 1)
    for name, allowed in CHOICES.items():
        if s[name] not in allowed:
            raise ValueError(f"{name}={s[name]!r}: expected one of {', '.join(allowed)}")
    if type(s["ddof"]) is not int or s["ddof"] not in (0, 1):
        raise ValueError(f"ddof={s['ddof']}: expected 0 (population) or 1 (Bessel)")
    for name in ("mask_truncated", "mixed_start"):
        if type(s[name]) is not bool:
            raise ValueError(f"{name}={s[name]!r}: expected True or False")
    for name in ("eps", "kl_coef", "ent_coef", "spread_tol"):
        if not _is_number(s[name]) or not 0 <= s[name] < math.inf:
            raise ValueError(f"{name}={s[name]}: expected a finite number, 0 or more")
    for name in ("clip_range", "clip_range_high", "max_grad_norm"):
        value = s[name]
        schedule = name != "max_grad_norm" and callable(value)
        absent = name == "clip_range_high" and value is None
        if not (schedule or absent or (_is_number(value) and value > 0)):
            raise ValueError(f"{name}={value}: expected a number, more than 0")
    if s["clip_dual"] is not None and not (_is_number(s["clip_dual"]) and s["clip_dual"] > 1):
        raise ValueError(f"clip_dual={s['clip_dual']}: expected more than 1, or none")
    if not _is_number(s["ref_tau"]) or not 0 < s["ref_tau"] <= 1:
        raise ValueError(f"ref_tau={s['ref_tau']}: expected more than 0, at most 1")


def _combinations(s: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Each combination that makes no sense: whether it is there, and the reason."""
    baseline, kl = f"baseline={s['baseline']!r}", f"kl={s['kl']!r}"
    yield (
        (s["aggregation"] == "constant_length") != (s["max_len"] is not None),
        f"aggregation={s['aggregation']!r} with max_len={s['max_len']}: constant_length needs "
        "the length limit as max_len, and nothing else reads it",
    )
    yield (
        s["ddof"] != 0 and s["baseline"] not in DIVIDING,
        f"ddof={s['ddof']} with {baseline}, which divides by no standard deviation: leave it at 0, "
        f"or take one of {', '.join(DIVIDING)}",
    )
    yield (
        s["supervision"] == "process" and s["baseline"] not in STEP_BASELINES,
        f"supervision='process' with {baseline}, which compares whole rollouts, not steps: "
        f"expected one of {', '.join(STEP_BASELINES)}",
    )
    yield (
        s["supervision"] == "process" and s["ratio"] == "sequence",
        "supervision='process' with ratio='sequence': a ratio of the whole sequence spreads each "
        "action's advantage over all actions; expected ratio='token'",
    )
    yield (
        s["surrogate"] == "cispo" and s["clip_dual"] is not None,
        f"clip_dual={s['clip_dual']} with surrogate='cispo', whose weight is bounded already: "
        "expected none, or surrogate='clip'",
    )
    yield (
        s["max_refills"] > 0 and s["baseline"] not in WITHIN_GROUP,
        f"max_refills={s['max_refills']} with {baseline}, to which a group whose outcomes are all "
        f"alike teaches something: expected 0, or a baseline among {', '.join(WITHIN_GROUP)}",
    )
    yield (
        s["max_refills"] > 0 and s["supervision"] == "process",
        f"max_refills={s['max_refills']} with supervision='process': a group whose outcomes are "
        "all alike still teaches by its steps; expected 0, or supervision='outcome'",
    )
    yield (
        s["spread_tol"] > 0 and s["max_refills"] == 0,
        f"spread_tol={s['spread_tol']} with max_refills=0: nothing is refilled that it would judge",
    )
    yield (
        s["kl"] == "none" and s["kl_coef"] > 0,
        f"kl_coef={s['kl_coef']} with kl='none': choose a form among {', '.join(FORMS)}",
    )
    yield (
        s["kl"] == "none" and s["ref_update_interval"] is not None,
        f"ref_update_interval={s['ref_update_interval']} with {kl}: there is no reference to move",
    )
    yield (
        s["ref_tau"] < 1 and s["ref_update_interval"] is None,
        f"ref_tau={s['ref_tau']} without ref_update_interval: the reference never moves; a moving "
        "average is ref_update_interval=1",
    )


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _whole(name: str, value: Any, least: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name}={value}: expected a whole number, at least {least}")
