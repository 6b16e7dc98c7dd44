"""Do the members of a group play the same problem? Found from what they did anyway.

Members that took the same actions from the same start must have seen and earned the same. A goal
from a global random generator, or an environment that ignores ``problem_id``, looks alike at the
start and differs here. The comparison costs no step, and needs members that act alike: in a group
of 8 with two actions several do at the first step, with continuous actions none do.
``grpo_envs.check_group_env`` plays for the purpose, and sees more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from grpo_bench.grpo.rollout import Rollout, take

MOST = 100_000  # steps that are looked at


class Difference(NamedTuple):
    """The first difference between two members that acted alike."""

    group: int
    step: int
    what: str  # "reward", "end" or "observation"


def difference(rollout: Rollout) -> Difference | None:
    """The first group, and in it the first step, at which two members differ that took the same
    actions until then; None if there is none among the first ``MOST`` steps. Observations that a
    wrapper may have changed are left out."""
    lengths = rollout.lengths.numpy()
    actions = (
        rollout.actions.flatten(2) if rollout.actions.dim() > 2 else rollout.actions[..., None]
    )
    acts, rewards = actions.cpu().numpy(), rollout.rewards.cpu().numpy()
    looked_at = 0
    for group in range(len(rollout.starts)):
        members = np.arange(group * rollout.group_size, (group + 1) * rollout.group_size)
        parts = [members]  # of members that have acted alike so far
        for t in range(int(lengths[members].max())):
            parts = [split for part in parts for split in _by_action(part, acts[:, t])]
            for part in parts:
                if what := _differs(rollout, part, t, lengths, rewards):
                    return Difference(group, t, what)
                looked_at += len(part)
            parts = [part for part in parts if lengths[part[0]] > t + 1]
            if not parts:
                break
        if looked_at > MOST:
            break
    return None


def _by_action(part: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
    """Members (n,) in parts of two and more that took the same action of (N, k)."""
    _, which = np.unique(actions[part], axis=0, return_inverse=True)
    which = which.reshape(-1)
    parts = [part[which == value] for value in range(which.max() + 1)]
    return [each for each in parts if len(each) > 1]


def _differs(
    rollout: Rollout, part: np.ndarray, t: int, lengths: np.ndarray, rewards: np.ndarray
) -> str | None:
    """What differs after step t among members that took the same actions until then."""
    earned = rewards[part, t]
    if not ((earned == earned[0]) | (np.isnan(earned) & np.isnan(earned[0]))).all():
        return "reward"
    ends = lengths[part] == t + 1
    if ends.any() != ends.all():
        return "end"
    if not ends[0] and not (rollout.log is not None and rollout.log.wrapped):
        rows = rollout.rows[torch.as_tensor(part), t + 1]
        seen = take(rollout.observations, rows.to(rollout.rewards.device))
        for values in seen.values() if isinstance(seen, dict) else [seen]:
            if not (values == values[:1]).all():
                return "observation"
    return None
