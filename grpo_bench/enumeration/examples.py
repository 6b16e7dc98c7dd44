"""The tasks and policies of the tables. All are written out; nothing is random."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_bench.enumeration.gradients import Policies
from grpo_bench.enumeration.tasks import Task, one_step, sequences, true_gradient

SMALL, LARGE = 0.75, 1.5  # length, in logits, of a step away from the sampling policy


class Example(NamedTuple):
    """A task and its policies."""

    name: str
    task: Task
    policies: Policies


def one_action() -> Example:
    """Four problems with four answers each: three with rewards as in GRPO-VLM, +1 right and -0.5
    wrong, of success 0.1, 0.5 and 0.9, and one with graded rewards. The reference is uniform."""
    task = one_step([[1, -0.5, -0.5, -0.5]] * 3 + [[1, 0.6, 0.1, 0]])
    probabilities = [
        [0.10, 0.40, 0.30, 0.20],
        [0.50, 0.25, 0.15, 0.10],
        [0.90, 0.05, 0.03, 0.02],
        [0.20, 0.10, 0.40, 0.30],
    ]
    return Example("one action", task, _on_policy(_table(probabilities)))


def completions() -> Example:
    """Three problems whose answer is a number of tokens, at most three: stop at once (success 0.2),
    after one (0.42), never (0.648); reward 1 or 0. The reference is uniform."""
    task = sequences(".a", 3, [{".": 1}, {"a.": 1}, {"aaa": 1}])
    stop = [0.2, 0.5, 0.5, 0.3, 0.6, 0.5, 0.1, 0.1, 0.2]  # by problem, after 0, 1, 2 tokens
    return Example("completions", task, _on_policy(_table([[p, 1 - p] for p in stop])))


def paid_steps() -> Example:
    """Two problems of ``completions`` with rewards for single steps. One rewards each further token
    and then stopping; the other penalises further tokens until the last. The reference is
    uniform."""
    task = sequences(
        ".a", 3, [{"a": 0.5, "aa": 0.25, "aa.": 1}, {".": 0.2, "a": -0.2, "aa": -0.2, "aaa": 1.5}]
    )
    stop = [0.3, 0.4, 0.5, 0.6, 0.5, 0.4]
    return Example("paid steps", task, _on_policy(_table([[p, 1 - p] for p in stop])))


def six_actions() -> Example:
    """One state with six actions, where KL(pi || ref) is 0.529; all rewards are 0."""
    policy = 1.012 * torch.tensor([[1.2, 0.4, 0.0, -0.4, 0.8, -1.0]], dtype=torch.float64)
    reference = 1.012 * torch.tensor([[0.0, 1.0, -0.5, 0.5, -1.0, 0.0]], dtype=torch.float64)
    return Example("one action", one_step([[0.0] * 6]), Policies(policy, policy, reference))


def three_steps() -> Example:
    """Completions of at most three of the tokens ``.ab``, 15 in all; all rewards are 0."""
    task = sequences(".ab", 3, [{}])
    policy, reference = (_scattered(task.shape, root) for root in (5, 2))
    return Example("completions", task, Policies(policy, policy, reference))


def successes(probabilities: list[float]) -> Example:
    """For each success rate, one problem with a right (reward 1) and a wrong answer (reward 0)."""
    task = one_step([[1.0, 0.0]] * len(probabilities))
    return Example("two actions", task, _on_policy(_table([[p, 1 - p] for p in probabilities])))


def moved(example: Example, length: float) -> Example:
    """The same example off-policy: the current policy is one step ahead of the sampling policy.

    The step has length ``length`` in logits and follows the true gradient of the reward, or, where
    all rewards are 0, that of minus the KL.
    """
    task, old = example.task, example.policies
    kl_coef = 0.0 if task.rewards.any() else 1.0
    direction = true_gradient(task, old.old, old.reference, kl_coef)
    step = length * direction / direction.norm()
    return example._replace(policies=old._replace(new=old.old + step.view_as(old.old)))


def _on_policy(logits: Tensor) -> Policies:
    return Policies(logits, logits, torch.zeros_like(logits))


def _table(probabilities: list[list[float]]) -> Tensor:
    """Logits (S, A) of the probabilities of each action in each state."""
    return torch.tensor(probabilities, dtype=torch.float64).log()


def _scattered(shape: tuple[int, int], root: int) -> Tensor:
    """Numbers from -1 to 1 that look random: 2 frac(k sqrt(root)) - 1 for k = 1, 2, ..."""
    numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64) * math.sqrt(root)
    return 2 * numbers.frac().view(shape) - 1
