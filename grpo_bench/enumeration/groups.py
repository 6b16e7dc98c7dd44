"""Every batch of groups that a policy can sample from a task, with its probability."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grpo_bench.enumeration.tasks import Task, log_probs

MOST_ROLLOUTS = 20_000_000  # over all batches; a few GB at three numbers a rollout


class Batches(NamedTuple):
    """B batches of P different problems with G rollouts each."""

    members: Tensor  # (B, P, G) int64, rollouts of the task by number
    weights: Tensor  # (B,) probability of the batch given its problems
    draws: Tensor  # (B,) int64, which problems: each draw is equally likely


def multisets(n: int, size: int) -> Tensor:
    """All unordered samples of ``size`` of n things with repetition, (C, size), each ascending."""
    listed = itertools.combinations_with_replacement(range(n), size)
    flat = np.fromiter(itertools.chain.from_iterable(listed), dtype=np.int64)
    return torch.from_numpy(flat).view(-1, size)


def multinomial(groups: Tensor, probabilities: Tensor) -> Tensor:
    """(C,) probability of each row of ``multisets`` when it is drawn one by one, in any order:
    G! / prod_n c_n! times prod_n p_n^c_n, where c_n is how often n is in the row."""
    things = torch.arange(len(probabilities))
    counts = (groups[:, :, None] == things).sum(dim=1).to(probabilities.dtype)  # (C, N)
    orders = math.lgamma(groups.shape[1] + 1) - torch.lgamma(counts + 1).sum(dim=1)
    return (orders + torch.xlogy(counts, probabilities).sum(dim=1)).exp()


def enumerate_batches(task: Task, logits: Tensor, group_size: int, n_problems: int = 1) -> Batches:
    """All batches of ``n_problems`` different problems with one group of ``group_size`` rollouts
    each, sampled by the policy of ``logits``. Every choice of problems is one draw.

    Raises:
        ValueError: the task has fewer problems, or the batches would not fit in memory.
    """
    if not 1 <= n_problems <= task.n_problems:
        raise ValueError(f"n_problems={n_problems}: expected from 1 to {task.n_problems}")
    probabilities = log_probs(task, logits.detach()).sum(dim=1).exp()  # (M,)
    of_problem = [(task.problems == p).nonzero()[:, 0] for p in range(task.n_problems)]
    draws = list(itertools.combinations(range(task.n_problems), n_problems))
    sizes = [math.comb(len(rollouts) + group_size - 1, group_size) for rollouts in of_problem]
    total = sum(math.prod(sizes[p] for p in draw) for draw in draws) * n_problems * group_size
    if total > MOST_ROLLOUTS:
        raise ValueError(
            f"group_size={group_size} with n_problems={n_problems}: {total:,} rollouts in all "
            f"batches, expected at most {MOST_ROLLOUTS:,}; choose smaller ones"
        )
    groups, weights = [], []
    for rollouts in of_problem:
        places = multisets(len(rollouts), group_size)
        groups.append(rollouts[places])
        weights.append(multinomial(places, probabilities[rollouts]))
    members, chances, drawn = [], [], []
    for number, draw in enumerate(draws):
        choice = torch.cartesian_prod(*(torch.arange(sizes[p]) for p in draw))
        choice = choice.view(-1, n_problems)  # (B of this draw, P)
        pairs = list(zip(draw, choice.T, strict=True))
        members.append(torch.stack([groups[p][of] for p, of in pairs], dim=1))
        chances.append(torch.stack([weights[p][of] for p, of in pairs]).prod(dim=0))
        drawn.append(torch.full((len(choice),), number))
    return Batches(torch.cat(members), torch.cat(chances), torch.cat(drawn))
