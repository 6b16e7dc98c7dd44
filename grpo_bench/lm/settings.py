"""What an algorithm of a configuration is to a language model, and what it cannot be."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any

from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import Clip
from grpo_bench.grpo.settings import check_settings
from grpo_bench.lm import critics

COMMON = (
    *("learning_rate", "n_epochs", "minibatches", "group_size", "clip_range", "ent_coef"),
    *("max_grad_norm", "kl", "kl_coef", "aggregation", "max_len"),
)
OF_GRPO = (
    *("clip_range_high", "clip_dual", "surrogate", "ratio", "baseline", "ddof", "eps"),
    *("mask_truncated", "max_refills", "spread_tol"),
)
OF_PPO = ("critic", "critic_rank", "gamma", "gae_lambda", "vf_coef", "clip_range_vf")


@dataclass(frozen=True)
class Settings:
    """GRPO's have the names and defaults of ``grpo_bench.GRPO``; PPO's those of SB3, but that its
    values are clipped as well, and that both may have a reference."""

    kind: str  # grpo or ppo
    learning_rate: float
    n_epochs: int
    minibatches: int
    group_size: int
    clip_range: float = 0.2
    ent_coef: float = 0.0
    max_grad_norm: float = 0.5
    kl: str = "none"
    kl_coef: float = 0.0
    aggregation: str = "sequence_mean"
    max_len: int | None = None
    # GRPO
    clip_range_high: float | None = None
    clip_dual: float | None = None
    surrogate: str = "clip"
    ratio: str = "token"
    baseline: str = "group"
    ddof: int = 0
    eps: float = 1e-4
    mask_truncated: bool = False
    max_refills: int = 0
    spread_tol: float = 0.0
    # PPO
    critic: str = "separate"
    critic_rank: int = 16  # of the adapters of a LoRA critic
    gamma: float = 1.0
    gae_lambda: float = 0.95
    vf_coef: float = 0.5
    clip_range_vf: float | None = 0.2

    @property
    def clip(self) -> Clip:
        """The bounds of the ratio."""
        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        return Clip(self.clip_range, high, self.clip_dual)


def settings_of(algo: dict[str, Any], train: dict[str, Any], max_new_tokens: int) -> Settings:
    """The settings of an ``algo`` group.

    PPO plays the groups of GRPO, which it does not know from single completions, and takes the mean
    over tokens, as SB3 does over transitions.

    Raises:
        ValueError: a value out of range, or a setting that language models do not have.
    """
    given = {name: value for name, value in algo.items() if name != "name"}
    kind = given["kind"]
    if kind not in ("grpo", "ppo"):
        raise ValueError(f"algo.kind={kind!r} with a language model: expected grpo or ppo")
    if kind == "ppo":
        given = {"group_size": train["group_size"], "aggregation": "token_mean", **given}
    if given.get("aggregation") == "constant_length":
        given.setdefault("max_len", max_new_tokens)
    known = {"kind", *COMMON, *(OF_GRPO if kind == "grpo" else OF_PPO)}
    for name, value in given.items():
        if name not in known and value != _default_of_grpo(name):
            raise ValueError(
                f"algo.{name}={value!r} with a language model: {kind} has only "
                f"{', '.join(sorted(known))} there"
            )
    settings = Settings(**{name: value for name, value in given.items() if name in known})
    _check(settings)
    if train["episodes"] % settings.group_size:
        raise ValueError(
            f"env.train.episodes={train['episodes']}: expected a multiple of "
            f"group_size={settings.group_size}"
        )
    groups = train["episodes"] // settings.group_size
    if groups % settings.minibatches:
        raise ValueError(
            f"algo.minibatches={settings.minibatches}: expected a divisor of the {groups} groups "
            "of an iteration"
        )
    return settings


def _check(settings: Settings) -> None:
    """Everything that GRPO would refuse, in PPO's settings too, and what is PPO's alone."""
    mine = {field.name: getattr(settings, field.name) for field in fields(settings)}
    others = {name: _default_of_grpo(name) for name in inspect.signature(GRPO).parameters}
    check_settings(others | mine)
    if settings.kl != "none" and FORMS[settings.kl].term is None:
        sampled = [name for name, form in FORMS.items() if form.term is not None]
        raise ValueError(
            f"kl={settings.kl!r} with a language model, whose tokens are too many to sum over: "
            f"expected one of none, {', '.join(sampled)}"
        )
    if settings.kind == "grpo":
        return
    if settings.critic not in critics.KINDS:
        raise ValueError(f"critic={settings.critic!r}: expected one of {', '.join(critics.KINDS)}")
    if type(settings.critic_rank) is not int or settings.critic_rank < 1:
        raise ValueError(f"critic_rank={settings.critic_rank}: expected a whole number, at least 1")
    for name in ("gamma", "gae_lambda"):
        value = mine[name]
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: expected a number from 0 to 1")
    for name in ("vf_coef", "clip_range_vf"):
        value = mine[name]
        absent = value is None and name == "clip_range_vf"
        if not (absent or (isinstance(value, int | float) and value > 0)):
            raise ValueError(f"{name}={value}: expected a number, more than 0")


def _default_of_grpo(name: str) -> Any:
    parameter = inspect.signature(GRPO).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default
