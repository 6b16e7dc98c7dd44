"""Which properties a baseline has, found by trying it on groups of rewards."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from grpo_bench.grpo.advantages import BaselineFunction, group_advantages

Of = Callable[[Tensor, Tensor], Tensor]  # advantages of (rewards, valid), both (P, G)


def equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-7, atol=1e-9)


def zero(a: Tensor) -> bool:
    return equal(a, torch.zeros_like(a))


def flat_groups(of: Of, rewards: Tensor, valid: Tensor) -> Tensor:
    """Advantages of groups whose rewards are all equal, among the other groups."""
    flat = torch.cat([rewards, torch.full_like(rewards[:1], 4.0)])
    return of(flat, torch.cat([valid, torch.ones_like(valid[:1])]))[-1]


def apart(of: Of, rewards: Tensor, valid: Tensor) -> Tensor:
    """Each group as a batch of its own."""
    return torch.cat([of(r[None], v[None]) for r, v in zip(rewards, valid, strict=True)])


PROPERTIES: dict[str, Callable[[Of, Tensor, Tensor], bool]] = {
    "sums to 0 in a group": lambda of, r, v: zero(of(r, v).sum(dim=1)),
    "sums to 0 in a batch": lambda of, r, v: zero(of(r, v).sum()),
    "ignores a shift": lambda of, r, v: equal(of(r + 37, v), of(r, v)),
    "ignores the scale": lambda of, r, v: equal(of(r * 4, v), of(r, v)),
    "keeps the scale": lambda of, r, v: equal(of(r * 4, v), 4 * of(r, v)),
    "ignores other groups": lambda of, r, v: equal(of(r, v), apart(of, r, v)),
    "needs spread": lambda of, r, v: zero(flat_groups(of, r, v)),
    "ignores ddof": lambda of, r, v: equal(of(r, v), of(r, v, ddof=1)),  # type: ignore[call-arg]
}

REWARDS = torch.tensor([[0.0, 1, 5, 5], [2, -1, 3, 90], [1, 1, 0, 1]], dtype=torch.float64)
VALID = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)


def advantages_by(baseline: str | BaselineFunction) -> Of:
    """The baseline's advantages with an eps of 0, so that scales can be compared."""

    def of(rewards: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
        return group_advantages(rewards, baseline, ddof, 0.0, valid)

    return of


@cache
def properties_of(baseline: str | BaselineFunction) -> set[str]:
    """The names of ``PROPERTIES`` that the baseline has on ``REWARDS``."""
    of = advantages_by(baseline)
    return {name for name, holds in PROPERTIES.items() if holds(of, REWARDS, VALID)}


# Baselines as a user might write them.


def named(value: object) -> str:
    """The id of a test's parameter, without the address of a function: each process has its own."""
    return re.sub(r" at 0x\w+", "", str(value))


def best_of_group(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """r_i - max(r)."""
    return rewards - rewards.masked_fill(~valid, -torch.inf).amax(dim=1, keepdim=True)


def half(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """r_i / 2."""
    return rewards / 2


def signs(rewards: Tensor, valid: Tensor, ddof: int, eps: float) -> Tensor:
    """The sign of r_i - the mean of the batch."""
    return (rewards - rewards[valid].mean()).sign()


OWN = (best_of_group, half, signs)
