"""Rewards and advantages of single tokens, for PPO: generalised advantage estimation.

Pure functions of (n, T) tensors, one row for each completion, padded on the right; ``mask`` marks
the real tokens. Values outside the mask are ignored, even NaN, and results are 0 there. The last
token of a row ends its episode, with or without an EOS. Running out of tokens is part of the task,
so nothing is bootstrapped.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-8  # added to a standard deviation, as in SB3


def token_rewards(outcome: Tensor, penalties: Tensor | None, mask: Tensor) -> Tensor:
    """Rewards of tokens (n, T): the outcome at the last token, minus the penalty of each token.

    Args:
        outcome: (n,) the reward of each completion.
        penalties: (n, T) such as kl_coef (log pi - log pi_ref), or None. With them the return of a
            token includes the KL of all later tokens, unlike a KL term in the loss.
        mask: (n, T) bool.

    Raises:
        ValueError: the outcome of a completion is not finite.
    """
    finite = outcome.isfinite()
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ValueError(f"outcome[{row}]={float(outcome[row])}: expected a finite reward")
    last = mask.clone()
    last[:, :-1] &= ~mask[:, 1:]
    rewards = torch.where(last, outcome[:, None], 0.0)
    return rewards if penalties is None else rewards - torch.where(mask, penalties, 0.0)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates, and the returns for the critic.

        delta_t = r_t + gamma V_{t+1} - V_t                   V = 0 after the last token
        A_t     = delta_t + gamma lambda A_{t+1}              arXiv 1506.02438, eq. 16
        R_t     = A_t + V_t                                   the lambda-return, as in SB3

    With lambda = 1, A_t is the discounted sum of the following rewards minus V_t; with lambda = 0
    it is delta_t.

    Args:
        rewards: (n, T) for each token.
        values: (n, T) of the state before each token.
        mask: (n, T) bool.
        gamma, gae_lambda: from 0 to 1.

    Returns:
        advantages (n, T), returns (n, T), without gradient.

    Raises:
        ValueError: gamma or lambda is out of its range, or a row is not padded on the right.
    """
    for name, factor in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0 <= factor <= 1:
            raise ValueError(f"{name}={factor}: expected a number from 0 to 1")
    holes = (mask[:, 1:] & ~mask[:, :-1]).any(dim=1)
    if holes.any():
        raise ValueError(f"mask[{int(holes.nonzero()[0])}]: expected tokens first, then padding")
    rewards = torch.where(mask, rewards, 0.0)
    values = torch.where(mask, values.detach(), 0.0)
    following = torch.nn.functional.pad(values[:, 1:], (0, 1))  # (n, T) V_{t+1}
    delta = rewards + gamma * following - values
    advantages = torch.zeros_like(delta)
    running = delta.new_zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        # outside the mask delta is 0, so the sum starts at 0 at the last token
        running = delta[:, t] + gamma * gae_lambda * running
        advantages[:, t] = running
    return advantages, advantages + values


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) over all tokens, (n, T), as SB3's ``normalize_advantage``: the
    deviation has Bessel's correction, and a single token stays unchanged.

    With several processes, pass the advantages of all of them, since the mean is over all.
    """
    count = mask.sum()
    kept = torch.where(mask, advantages, 0.0)
    centred = torch.where(mask, kept - kept.sum() / count.clamp(min=1), 0.0)
    deviation = (centred.square().sum() / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count > 1, centred / (deviation + EPS), kept)
