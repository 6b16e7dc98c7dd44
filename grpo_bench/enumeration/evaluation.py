"""Mean and variance of a gradient step over all batches, compared with the true gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_bench.enumeration.examples import Example
from grpo_bench.enumeration.gradients import WHOLE_BATCH, Estimator, Policies, batch_gradients
from grpo_bench.enumeration.groups import Batches, enumerate_batches
from grpo_bench.enumeration.tasks import Task, true_gradient
from grpo_bench.grpo.advantages import without_spread

AT_ONCE = 500_000  # rollouts in memory
ROUNDING = 1e-12  # a mean this small relative to its terms counts as 0


class Moments(NamedTuple):
    """Of the direction of a step, over all batches."""

    mean: Tensor  # (S * A,)
    # Trace of the covariance given the problems, times the number of rollouts in the batch. A step
    # on n rollouts in independent groups has this variance divided by n.
    variance: float
    flat: float  # share of the groups whose returns are all equal


def moments(task: Task, estimator: Estimator, policies: Policies, batches: Batches) -> Moments:
    """Exact mean and variance of the direction of a step. ``batches`` lists every batch that
    ``policies.old`` can sample."""
    at_once = max(1, AT_ONCE // batches.members[0].numel())
    gradients = torch.cat(
        [batch_gradients(task, estimator, policies, m) for m in batches.members.split(at_once)]
    )
    weights = batches.weights[:, None]
    n_draws = int(batches.draws.max()) + 1
    of_draw = gradients.new_zeros(n_draws, gradients.shape[1])
    of_draw.index_add_(0, batches.draws, weights * gradients)
    away = (weights * (gradients - of_draw[batches.draws]).square()).sum() / n_draws
    flat = without_spread(task.returns[batches.members].flatten(0, 1)).view(len(gradients), -1)
    share = (weights * flat).sum() / n_draws / flat.shape[1]
    return Moments(of_draw.mean(dim=0), batches.members[0].numel() * away.item(), share.item())


class Comparison(NamedTuple):
    """An estimator's moments against the true gradient g; E is the mean of its step."""

    scale: float  # <E, g> / <g, g>: 1 is unbiased, c is c times too long
    cosine: float  # of the angle between E and g; NaN if E is 0
    error: float  # |E - g| / |g|
    turned: float  # the error after the best rescaling of E (a learning rate can do that): the sine
    variance: float  # of one rollout, over |g|^2
    noise: float  # the same over |E|^2: rollouts at which noise equals signal; NaN if E is 0
    flat: float  # share of the groups whose returns are all equal


def compare(found: Moments, truth: Tensor) -> Comparison:
    """Compare moments with the true gradient (S * A,)."""
    length, true_length = found.mean.norm().item(), truth.norm().item()
    along = (found.mean @ truth).item()
    nothing = length < ROUNDING * max(true_length, found.variance**0.5)
    cosine, turned = math.nan, 1.0
    if not nothing:
        cosine = along / (length * true_length)
        turned = (found.mean / length - cosine * truth / true_length).norm().item()
    return Comparison(
        scale=along / true_length**2,
        cosine=cosine,
        error=(found.mean - truth).norm().item() / true_length,
        turned=turned,
        variance=found.variance / true_length**2,
        noise=math.nan if nothing else found.variance / length**2,
        flat=found.flat,
    )


def listed_moments(example: Example, estimator: Estimator, group_size: int) -> Moments:
    """Exact moments of a step on one group. Baselines that use the whole batch get two groups, one
    for each of two problems."""
    n_problems = 2 if estimator.baseline in WHOLE_BATCH else 1
    batches = enumerate_batches(example.task, example.policies.old, group_size, n_problems)
    return moments(example.task, estimator, example.policies, batches)


def evaluate(example: Example, estimator: Estimator, group_size: int) -> Comparison:
    """Compare the estimator with the gradient of the true objective at the current policy."""
    task, policies = example.task, example.policies
    truth = true_gradient(task, policies.new, policies.reference, estimator.kl_coef)
    return compare(listed_moments(example, estimator, group_size), truth)
