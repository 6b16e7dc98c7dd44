"""The learning signal of a rollout: the advantages of its tokens, from groups or from a critic.

Rewards are those of all processes in order, (n_all,), so every mean and deviation is global. A
signal is for this process's own completions, (n, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grpo_bench.grpo.advantages import group_advantages, return_penalty
from grpo_bench.grpo.kl import sample_term
from grpo_bench.lm.completions import Completions, rows_of
from grpo_bench.lm.gae import gae, token_rewards, whiten
from grpo_bench.lm.parallel import World
from grpo_bench.lm.settings import Settings


@dataclass(frozen=True)
class Signal:
    """The advantages of n completions in group order, padded to T tokens."""

    group_size: int
    mask: Tensor  # (n, T) bool, the tokens that are trained on
    advantages: Tensor  # (n,) or (n, T)
    ref_logp: Tensor | None = None  # (n, T) with a reference
    returns: Tensor | None = None  # (n, T) with a critic: its targets
    old_values: Tensor | None = None  # (n, T) with a critic: its values at sampling

    def rows(self, groups: list[int]) -> Tensor:
        """The rows of some groups, in that order."""
        return rows_of(groups, self.group_size)

    def of(self, rows: Tensor) -> Signal:
        """Some of the completions."""
        optional = (self.ref_logp, self.returns, self.old_values)
        parts = [None if each is None else each[rows] for each in optional]
        return Signal(self.group_size, self.mask[rows], self.advantages[rows], *parts)


def group_signal(
    completions: Completions,
    rewards: Tensor,
    penalties: Tensor | None,
    ref_logp: Tensor | None,
    s: Settings,
    world: World,
) -> Signal:
    """For GRPO: one advantage for each completion, from the rewards of its group, and from the KL
    if that is subtracted from the return."""
    groups = rewards.view(-1, s.group_size)
    advantages = group_advantages(groups, s.baseline, s.ddof, s.eps)  # (P, G)
    if penalties is not None:
        of_rollouts = world.gather(penalties.sum(dim=1)).view_as(advantages)
        advantages = advantages + return_penalty(of_rollouts)
    mask = completions.mask
    if s.mask_truncated:
        mask = mask & ~completions.truncated[:, None]
    return Signal(s.group_size, mask, own_rows(advantages.flatten(), world), ref_logp)


def critic_signal(
    completions: Completions,
    rewards: Tensor,
    penalties: Tensor | None,
    ref_logp: Tensor | None,
    values: Tensor,
    s: Settings,
    world: World,
) -> Signal:
    """For PPO: an advantage for each token by generalised advantage estimation, whitened over the
    tokens of all processes.

    Args:
        values: (n, T) of the critic, before each token.
    """
    mask = completions.mask
    paid = token_rewards(own_rows(rewards, world), penalties, mask)
    advantages, returns = gae(paid, values, mask, s.gamma, s.gae_lambda)
    whitened = whiten(world.gather(advantages), world.gather(mask))
    own = own_rows(whitened, world)[:, : mask.shape[1]]
    return Signal(s.group_size, mask, own, ref_logp, returns, values)


def penalties_of(completions: Completions, ref_logp: Tensor | None, s: Settings) -> Tensor | None:
    """The KL of each token to subtract from the return, (n, T), at sampling; None if the KL is not
    part of the return."""
    if ref_logp is None or not s.kl_in("return"):
        return None
    old = completions.logp
    return s.kl_coef * sample_term(s.kl, old, ref_logp, old, completions.mask)


def own_rows(rows: Tensor, world: World) -> Tensor:
    """This process's rows of the rows of all processes, (n_all, ...)."""
    return rows[world.own(len(rows))]
