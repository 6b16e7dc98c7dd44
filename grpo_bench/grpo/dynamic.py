"""Dynamic sampling: replace groups whose outcomes are all alike by groups of other problems.

DAPO (arXiv 2503.14476, section 3.2). Outcomes decide, not shaped rewards, which can differ where
there is nothing to learn. The number of rounds is limited, since in a task that is solved, or
hopeless, all groups are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from grpo_bench.grpo.advantages import group_std, without_spread
from grpo_bench.grpo.rollout import Rollout, TensorObs, take, upload

Play = Callable[[int], Rollout | None]  # plays so many groups of new problems; None: stopped


def refilled(play: Play, n_problems: int, max_refills: int, spread_tol: float) -> Rollout | None:
    """``n_problems`` groups, of which those without spread were replaced in at most
    ``max_refills`` rounds.

    Each round plays one new group for each group without spread. Those left after the last round
    stay, so every update has the same number of groups.
    """
    rollout = play(n_problems)
    for _ in range(max_refills):
        if rollout is None:
            return None
        flat = without_outcome_spread(rollout, spread_tol)
        if not flat.any():
            break
        fresh = play(int(flat.sum()))
        rollout = None if fresh is None else join(select(rollout, ~flat), fresh)
    return rollout


def without_outcome_spread(rollout: Rollout, tol: float) -> Tensor:
    """Groups whose outcomes have a standard deviation of at most ``tol``, (n_problems,) bool.
    Groups with outcomes or returns that are not finite are not among them: the update reports
    those."""
    outcomes = rollout.outcomes
    finite = torch.isfinite(outcomes) & torch.isfinite(rollout.returns)
    close = group_std(outcomes, finite).squeeze(1) <= tol
    # also equal outcomes: by rounding, the deviation of seven times 0.1 is not exactly 0
    return finite.all(dim=1) & (close | without_spread(outcomes))


def select(rollout: Rollout, groups: Tensor) -> Rollout:
    """The chosen groups, (n_problems,) bool, and only their observations."""
    groups = groups.cpu()
    episodes = groups.repeat_interleave(rollout.group_size).nonzero().flatten()
    mask = rollout.mask[episodes]
    used, rows = torch.unique(rollout.rows[episodes][mask], return_inverse=True)
    there = upload(episodes, rollout.rewards.device)
    return replace(
        rollout,
        observations=take(rollout.observations, upload(used, there.device)),
        rows=torch.zeros_like(mask, dtype=torch.long).masked_scatter(mask, rows),
        actions=rollout.actions[there],
        old_logp=rollout.old_logp[there],
        rewards=rollout.rewards[there],
        mask=mask,
        truncated=rollout.truncated[episodes],
        success=rollout.success[episodes.numpy()],
        starts=rollout.starts[groups.numpy()],
        log=None,
    )


def join(first: Rollout, second: Rollout) -> Rollout:
    """The groups of both, padded to the longer one."""
    length = max(first.mask.shape[1], second.mask.shape[1])
    observations, n_first = _concatenate(first.observations, second.observations)
    return replace(
        first,
        observations=observations,
        rows=_stack(first.rows, torch.where(second.mask, second.rows + n_first, 0), length),
        actions=_stack(first.actions, second.actions, length),
        old_logp=_stack(first.old_logp, second.old_logp, length),
        rewards=_stack(first.rewards, second.rewards, length),
        mask=_stack(first.mask, second.mask, length),
        truncated=torch.cat([first.truncated, second.truncated]),
        success=np.concatenate([first.success, second.success]),
        starts=np.concatenate([first.starts, second.starts]),
        log=None,
    )


def _stack(first: Tensor, second: Tensor, length: int) -> Tensor:
    """(n, t, ...) over (m, u, ...), both padded with 0 to (n + m, length, ...)."""
    stacked = first.new_zeros((len(first) + len(second), length, *first.shape[2:]))
    stacked[: len(first), : first.shape[1]] = first
    stacked[len(first) :, : second.shape[1]] = second
    return stacked


def _concatenate(first: TensorObs, second: TensorObs) -> tuple[TensorObs, int]:
    """Both, one after the other, and the number of rows of the first."""
    if isinstance(first, dict):
        assert isinstance(second, dict)
        joined = {name: torch.cat([first[name], second[name]]) for name in first}
        return joined, len(next(iter(first.values())))
    assert isinstance(second, Tensor)
    return torch.cat([first, second]), len(first)
