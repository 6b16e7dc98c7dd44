"""What one iteration plays: groups of completions of problems, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_bench.lm.completions import Completions, joined, rows_of
from grpo_bench.lm.parallel import World
from grpo_envs.task import IntArray, Outcome


@dataclass(frozen=True)
class Rollout:
    """P problems, ``group_size`` completions of each, n in all, in group order."""

    problem_ids: IntArray  # (P,)
    prompts: list[list[int]]  # token ids of each problem
    completions: Completions  # n
    texts: list[str]  # n
    outcome: Outcome  # of (n,) arrays
    replaced: tuple[Rollout, ...] = ()  # groups that were played and taught nothing

    @property
    def tokens(self) -> int:
        """Tokens that were drawn, also for what was replaced."""
        own = int(self.completions.length.sum())
        return own + sum(part.tokens for part in self.replaced)

    @property
    def group_size(self) -> int:
        """G."""
        return self.completions.group_size

    @property
    def success(self) -> NDArray[np.float64]:
        """1.0 where a completion is right, (n,)."""
        return self.outcome.success

    def of_groups(self, groups: list[int]) -> Rollout:
        """Some of the groups, in that order."""
        rows = rows_of(groups, self.group_size).numpy()
        outcome = self.outcome
        return Rollout(
            self.problem_ids[groups],
            [self.prompts[g] for g in groups],
            self.completions.of_groups(groups),
            [self.texts[row] for row in rows],
            Outcome(
                outcome.reward[rows],
                outcome.terminated[rows],
                outcome.success[rows],
                {name: values[rows] for name, values in outcome.components.items()},
            ),
        )


def joined_rollouts(first: Rollout, second: Rollout) -> Rollout:
    """The groups of both."""
    a, b = first.outcome, second.outcome
    return Rollout(
        np.concatenate([first.problem_ids, second.problem_ids]),
        first.prompts + second.prompts,
        joined(first.completions, second.completions),
        first.texts + second.texts,
        Outcome(
            np.concatenate([a.reward, b.reward]),
            np.concatenate([a.terminated, b.terminated]),
            np.concatenate([a.success, b.success]),
            {
                name: np.concatenate([a.components[name], b.components[name]])
                for name in a.components
            },
        ),
        first.replaced + second.replaced,
    )


def without_spread_of_success(rollout: Rollout, tol: float) -> NDArray[np.bool_]:
    """Groups whose outcomes have a standard deviation of at most ``tol``, (P,)."""
    outcomes = rollout.success.reshape(-1, rollout.group_size)
    flat: NDArray[np.bool_] = outcomes.std(axis=1) <= tol + 1e-12
    return flat


@dataclass(frozen=True)
class Played:
    """What is logged of the n completions of all ranks, on the host."""

    returns: Tensor  # (P, G) float32
    length: Tensor  # (n,) tokens
    success: NDArray[np.float64]  # (n,)
    truncated: Tensor  # (n,)

    @property
    def mask(self) -> Tensor:
        """The tokens that were drawn, (n, T) bool."""
        return torch.arange(int(self.length.max())) < self.length[:, None]


def played_by_all(rollout: Rollout, world: World) -> Played:
    """The rollouts of all ranks, in order."""
    reward, success = (torch.from_numpy(x) for x in (rollout.outcome.reward, rollout.success))
    length, truncated = (
        x.cpu() for x in (rollout.completions.length, rollout.completions.truncated)
    )
    columns = torch.stack([x.double() for x in (reward, success, length, truncated)], dim=1)
    reward, success, length, truncated = world.gather(columns).unbind(dim=1)  # (n,) each
    returns = reward.float().view(-1, rollout.group_size)
    return Played(returns, length, success.numpy(), truncated)


def rollout_metrics(played: Played) -> dict[str, float]:
    """Means over the completions; names as SB3's, tokens for steps."""
    return {
        "rollout/ep_rew_mean": float(played.returns.double().mean()),
        "rollout/ep_len_mean": float(played.length.mean()),
        "rollout/success_rate": float(played.success.mean()),
        "rollout/truncated_frac": float(played.truncated.mean()),
    }
