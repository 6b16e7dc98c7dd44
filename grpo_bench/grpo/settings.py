"""The options of an update: name, type, default, meaning and valid values, once for all tracks.

``GRPO`` takes its keywords from ``Settings``, the language track extends it, and the configuration
is read into it. To add an option, add one field here; its formula goes to ``grpo.loss`` or to the
module that its meaning names.

The formulas are imported late: they need torch, and a program that only reads options does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from grpo_bench.grpo.choices import check_choice, choice, label

if TYPE_CHECKING:
    from grpo_bench.grpo.advantages import BaselineFunction
    from grpo_bench.grpo.objectives import Aggregation, Clip, Ratio, Surrogate

Schedule = Callable[[float], float]  # of the remaining progress, from 1 to 0
Check = Callable[[str, Any], None]  # of name and value; raises ValueError


def option(default: Any, meaning: str, check: Check) -> Any:
    """A field of settings: its default, what it means in one line, and which values are valid."""
    return field(default=default, metadata={"meaning": meaning, "check": check})


# -- checks of one value --------------------------------------------------------------------------


def number(
    expected: str,
    valid: Callable[[Any], bool],
    kind: type = Real,
    optional: bool = False,
    schedule: bool = False,
) -> Check:
    """A number for which ``valid`` holds; with ``optional`` None, with ``schedule`` a function."""

    def check(name: str, value: Any) -> None:
        """Raises ValueError for another value."""
        if (optional and value is None) or (schedule and callable(value)):
            return
        if isinstance(value, bool) or not (isinstance(value, kind) and valid(value)):
            raise ValueError(f"{name}={value}: expected {expected}")

    return check


def whole(least: int, optional: bool = False) -> Check:
    """A whole number."""
    return number(f"a whole number, at least {least}", lambda x: x >= least, Integral, optional)


def positive(optional: bool = False, schedule: bool = False) -> Check:
    """A number above 0."""
    return number("a number, more than 0", lambda x: x > 0, Real, optional, schedule)


def one_of(*names: str) -> Check:
    """One of these names."""
    return lambda name, value: check_choice(name, value, names)


def named(name: str, value: Any) -> None:
    """A name that is in the table of this option now, or a function in place of one."""
    choice(name, value, tables()[name])


def name_only(name: str, value: Any) -> None:
    """A name that is in the table of this option now."""
    check_choice(name, value, tables()[name])


def flag(name: str, value: Any) -> None:
    """True or False."""
    if type(value) is not bool:
        raise ValueError(f"{name}={value!r}: expected True or False")


not_negative = number("a finite number, 0 or more", lambda x: 0 <= x < math.inf)
bessel = number("0 (population) or 1 (Bessel)", lambda x: x in (0, 1), Integral)
above_1 = number("more than 1, or none", lambda x: x > 1, optional=True)
factor = number("a number from 0 to 1", lambda x: 0 <= x <= 1)
share = number("more than 0, at most 1", lambda x: 0 < x <= 1)
count, count_or_none = whole(1), whole(1, optional=True)


def tables() -> dict[str, Mapping[str, Any]]:
    """The tables of formulas, by the option that chooses from them."""
    from grpo_bench.grpo.advantages import BASELINES
    from grpo_bench.grpo.credit import BY_STEP
    from grpo_bench.grpo.kl import FORMS
    from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES

    return {
        "surrogate": SURROGATES,
        "ratio": RATIOS,
        "aggregation": AGGREGATIONS,
        "baseline": BASELINES,
        "supervision": {"outcome": None, **BY_STEP},
        "kl": {"none": None, **FORMS},
    }


# -- the options ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The options of an update.

    Raises:
        ValueError: an option is out of range, or two options contradict each other.
    """

    # the rollouts of an iteration, and the steps on them
    group_size: int = option(8, "G, rollouts of each problem", whole(2))
    n_problems: int | None = option(
        None, "groups per iteration; None: 2, or as many as fill the environments", count_or_none
    )
    batch_size: int | None = option(
        None, "rollouts per gradient step, in whole groups; None: all", count_or_none
    )
    n_epochs: int = option(8, "passes over the rollouts", count)
    target_kl: float | None = option(
        None, "an update ends where approx_kl exceeds 1.5 times this; None: never", positive(True)
    )
    max_grad_norm: float = option(0.5, "the gradient's norm is clipped to it", positive())
    # the surrogate: grpo.objectives
    clip_range: float | Schedule = option(  # noqa: RUF009 (it makes a field)
        0.2,
        "the ratio is clipped to [1 - clip_range, 1 + clip_range_high]",
        positive(schedule=True),
    )
    clip_range_high: float | Schedule | None = option(  # noqa: RUF009
        None, "None: the same as clip_range", positive(schedule=True, optional=True)
    )
    clip_dual: float | None = option(
        None, "the surrogate of a bad action is at least this times its advantage", above_1
    )
    surrogate: str | Surrogate = option(  # noqa: RUF009
        "clip", "the objective of an action, in SURROGATES or a function", named
    )
    ratio: str | Ratio = option(  # noqa: RUF009
        "token", "the importance ratio, in RATIOS or a function", named
    )
    aggregation: str | Aggregation = option(  # noqa: RUF009
        "sequence_mean", "the weights of actions, in AGGREGATIONS or a function", named
    )
    max_len: int | None = option(None, "the length by which constant_length divides", count_or_none)
    # the advantages: grpo.advantages, grpo.credit
    baseline: str | BaselineFunction = option(  # noqa: RUF009
        "group", "makes advantages of rewards, in BASELINES or a function", named
    )
    ddof: int = option(0, "deviations divide by G - ddof: 0 (population) or 1 (Bessel)", bessel)
    eps: float = option(1e-4, "added to the deviation", not_negative)
    supervision: str = option(
        "outcome",
        "which rewards an action is credited with: outcome, or one of grpo.credit.BY_STEP",
        name_only,
    )
    gamma: float = option(0.99, "discount of the rewards, by step; 1: none", factor)
    mask_truncated: bool = option(
        False, "rollouts that a time limit cut off count in the baseline, but not in the loss", flag
    )
    nan_reward: str = option(
        "error", "for a return that is not finite; or drop the rollout", one_of("error", "drop")
    )
    # the other terms of the loss: grpo.loss, grpo.kl
    ent_coef: float = option(0.0, "weight of the entropy bonus", not_negative)
    kl: str = option(
        "none", "the KL to the reference policy: none, or one of grpo.kl.FORMS", name_only
    )
    kl_coef: float = option(0.0, "weight of the KL; 0: it is only logged", not_negative)
    ref_update_interval: int | None = option(
        None, "iterations between moves of the reference to the policy; None: never", count_or_none
    )
    ref_tau: float = option(1.0, "how far it moves; below 1: a moving average", share)
    # the groups: grpo.dynamic, grpo.groups
    max_refills: int = option(0, "at most so many rounds replace groups without spread", whole(0))
    spread_tol: float = option(0.0, "a deviation of outcomes that counts as none", not_negative)
    max_episode_steps: int | None = option(
        None,
        "a longer episode is an error; None: the limit in the environment's spec, or 5,000",
        count_or_none,
    )
    mixed_start: bool = option(False, "accept groups whose members start differently", flag)

    def __post_init__(self) -> None:
        for each in fields(self):
            if "check" in each.metadata:
                each.metadata["check"](each.name, getattr(self, each.name))
        for reason in _contradictions(self):
            raise ValueError(reason)

    def kl_in(self, place: Literal["loss", "return"]) -> bool:
        """Whether training uses the KL as a term of the loss, or subtracts it from the return.
        Without a weight it does neither: 0 times an infinite KL would not be 0."""
        return self.kl_coef > 0 and tables()["kl"][self.kl].place == place

    def clip(self, progress: float = 1.0) -> Clip:
        """The bounds of the ratio at the remaining progress."""
        from grpo_bench.grpo.objectives import Clip

        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        return Clip(_at(progress, self.clip_range), _at(progress, high), self.clip_dual)


def _at(progress: float, value: float | Schedule) -> float:
    return float(value(progress) if callable(value) else value)


def _contradictions(s: Settings) -> Iterator[str]:
    """The reason why each combination of options that makes no sense is one."""
    from grpo_bench.grpo.advantages import baseline_of, baselines_that

    baseline, name = baseline_of(s.baseline), label(s.baseline)

    needs_limit = s.aggregation == "constant_length" and s.max_len is None
    if needs_limit or (s.aggregation in ("sequence_mean", "token_mean") and s.max_len is not None):
        yield (
            f"aggregation={s.aggregation!r} with max_len={s.max_len}: constant_length needs the "
            "length limit as max_len, and nothing else reads it"
        )
    if s.ddof and not baseline.divides:
        yield (
            f"ddof={s.ddof} with baseline={name}, which divides by no standard deviation: "
            f"leave it at 0, or take one of {', '.join(baselines_that('divides'))}"
        )
    if s.supervision == "process" and not baseline.by_step:
        yield (
            f"supervision='process' with baseline={name}, which compares whole rollouts, "
            f"not steps: expected one of {', '.join(baselines_that('by_step'))}"
        )
    if s.supervision != "outcome" and s.ratio == "sequence":
        yield (
            f"supervision={s.supervision!r} with ratio='sequence': a ratio of the whole sequence "
            "spreads each action's advantage over all actions; expected ratio='token'"
        )
    if s.surrogate == "cispo" and s.clip_dual is not None:
        yield (
            f"clip_dual={s.clip_dual} with surrogate='cispo', whose weight is bounded already: "
            "expected none, or surrogate='clip'"
        )
    if s.max_refills and not baseline.needs_spread:
        yield (
            f"max_refills={s.max_refills} with baseline={name}, to which a group without "
            "spread teaches something: expected 0, or a baseline among "
            f"{', '.join(baselines_that('needs_spread'))}"
        )
    if s.max_refills and s.supervision != "outcome":
        yield (
            f"max_refills={s.max_refills} with supervision={s.supervision!r}: a group without "
            "spread still teaches by its steps; expected 0, or supervision='outcome'"
        )
    if s.spread_tol and not s.max_refills:
        yield f"spread_tol={s.spread_tol} with max_refills=0: nothing is refilled"
    if s.kl == "none":
        if s.kl_coef:
            forms = ", ".join(list(tables()["kl"])[1:])
            yield f"kl_coef={s.kl_coef} with kl='none': choose a form among {forms}"
        if s.ref_update_interval is not None:
            interval = f"ref_update_interval={s.ref_update_interval}"
            yield f"{interval} with kl='none': there is no reference to move"
    if s.ref_tau < 1 and s.ref_update_interval is None:
        yield (
            f"ref_tau={s.ref_tau} without ref_update_interval: the reference never moves; a "
            "moving average is ref_update_interval=1"
        )
