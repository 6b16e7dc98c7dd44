"""Refuse settings that cannot be meant, with what would be right, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_bench.grpo.advantages import find_baseline
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIO_LEVELS

if TYPE_CHECKING:
    from grpo_bench.grpo.algorithm import GRPO


def check_settings(algorithm: GRPO) -> None:
    """Raises ValueError naming the first setting that is out of range."""
    a = algorithm
    if a.group_size < 2:
        raise ValueError(f"group_size={a.group_size}: a group needs at least 2 rollouts to compare")
    if a.n_problems is not None and a.n_problems < 1:
        raise ValueError(f"n_problems={a.n_problems}: expected at least 1")
    if a.batch_size is not None and a.batch_size < a.group_size:
        raise ValueError(
            f"batch_size={a.batch_size}: expected at least one group of {a.group_size} episodes"
        )
    if a.n_epochs < 1:
        raise ValueError(f"n_epochs={a.n_epochs}: expected at least 1")
    find_baseline(a.baseline)
    _one_of("aggregation", a.aggregation, AGGREGATIONS)
    _one_of("ratio", a.ratio, RATIO_LEVELS)
    _one_of("kl", a.kl, FORMS)
    _one_of("nan_reward", a.nan_reward, ("error", "drop"))
    if (a.aggregation == "constant_length") != (a.max_len is not None):
        raise ValueError(
            f"aggregation={a.aggregation!r} with max_len={a.max_len}: constant_length needs the "
            "length limit as max_len, and nothing else reads it"
        )
    if a.kl == "none" and a.kl_coef:
        raise ValueError(f"kl_coef={a.kl_coef} with kl='none': choose a form among {FORMS[1:]}")
    for name in ("ddof", "eps", "kl_coef", "ent_coef", "max_grad_norm"):
        if getattr(a, name) < 0:
            raise ValueError(f"{name}={getattr(a, name)}: expected 0 or more")
    if a.ddof > 1:
        raise ValueError(f"ddof={a.ddof}: expected 0 (population) or 1 (Bessel)")
    for name in ("clip_range", "clip_range_high"):
        value = getattr(a, name)
        if isinstance(value, float | int) and value <= 0:
            raise ValueError(f"{name}={value}: expected more than 0")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
