"""Groups of a one-step task for S seeds: each draws and samples from the streams of its own run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grpo_bench.batched.policy import StackedMLP
from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.grpo.distributions import LogSoftmaxDistribution
from grpo_bench.vec_env import VectorEnvAdapter
from grpo_envs.task import Task


@dataclass
class StackedRollout:
    """What S seeds played: P problems each, every one G times, one action an episode."""

    observations: Tensor  # (S, P, d)
    actions: Tensor  # (S, P, G)
    old_logp: Tensor  # (S, P, G) log-probability at sampling
    returns: Tensor  # (S, P, G) float64, as ``Rollout.returns``
    success: np.ndarray  # (S, P, G) of 0 and 1


class StackedMinibatch(NamedTuple):
    """k groups of each seed."""

    observations: Tensor  # (S, k, d)
    actions: Tensor  # (S, k, G)
    old_logp: Tensor  # (S, k, G)
    advantages: Tensor  # (S, k, G)
    ref_logits: Tensor | None = None  # (S, k, n_actions), None without KL


def task_of_model(model: GRPO) -> Task:
    """The task that a model made by ``job.make_model`` plays."""
    assert isinstance(model.env, VectorEnvAdapter)
    return model.env.env.unwrapped.task  # type: ignore[attr-defined]


def collect(
    models: Sequence[GRPO], network: StackedMLP, generators: Sequence[torch.Generator]
) -> StackedRollout:
    """An iteration's rollouts of all seeds: ``collect_groups`` for tasks of one step.

    Args:
        models: whose environments' streams the problems come from, set up for learning.
        generators: of each seed, from which its actions are sampled.
    """
    n_problems, group_size = models[0].n_problems, models[0].group_size
    assert n_problems is not None
    task = task_of_model(models[0])
    ids = np.concatenate([_draw(model, n_problems) for model in models])  # (S * P,)
    # the members of a group share their observation: it is made once
    seen = torch.from_numpy(task.observe(task.start(ids)))
    observations = seen.view(len(models), n_problems, -1)
    with torch.no_grad():
        distribution = policy_of(network(observations))
        shape = (len(models), n_problems, group_size)
        actions = _sample(distribution, generators, shape)
        old_logp = log_prob_of(distribution, actions)
    outcome = task.step(task.start(ids.repeat(group_size)), actions.flatten().numpy())
    return StackedRollout(
        observations=observations,
        actions=actions,
        old_logp=old_logp,
        returns=torch.from_numpy(outcome.reward.astype(np.float32)).double().view(shape),
        success=outcome.success.reshape(shape),
    )


def policy_of(logits: Tensor) -> LogSoftmaxDistribution:
    """The distributions of logits (S, n, n_actions), in a row: of S * n states."""
    flat = logits.flatten(0, 1)
    return LogSoftmaxDistribution(flat.shape[-1]).proba_distribution(flat)


def log_prob_of(distribution: LogSoftmaxDistribution, actions: Tensor) -> Tensor:
    """log pi of actions (S, n, G), G in each of the distribution's S * n states: (S, n, G)."""
    rows = actions.flatten(0, 1)
    return distribution.log_probs.gather(1, rows).view(actions.shape)


def _sample(
    distribution: LogSoftmaxDistribution,
    generators: Sequence[torch.Generator],
    shape: tuple[int, int, int],
) -> Tensor:
    """Actions (S, P, G), each seed's drawn as its own run draws them.

    That is what ``torch.multinomial`` does to draw one of each row, argmax p / q with q exponential
    (a race of clocks with rates p), but with one call for all rows of all seeds, and no checks.
    """
    probabilities = distribution.log_probs.exp().view(*shape[:2], 1, -1)  # (S, P, 1, n_actions)
    clocks = probabilities.new_empty((*shape, probabilities.shape[-1]))
    for of_seed, generator in zip(clocks, generators, strict=True):
        of_seed.exponential_(generator=generator)
    return (probabilities / clocks).argmax(dim=-1)


def _draw(model: GRPO, n: int) -> np.ndarray:
    assert model._source is not None
    return model._source.draw(n)
