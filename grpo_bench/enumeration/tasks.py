"""Tasks small enough to list every rollout, with tabular softmax policies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

END = "."  # the token that ends a completion


@dataclass(frozen=True)
class Task:
    """All M rollouts of all problems, of at most T steps, and the states they visit.

    A policy is a table of logits (S, A) with one row per state; problems share no state. Outside
    the mask every number is 0.
    """

    problems: Tensor  # (M,) int64, of each rollout
    states: Tensor  # (M, T) int64, the row of the logits in which each action is chosen
    actions: Tensor  # (M, T) int64
    mask: Tensor  # (M, T) bool, which steps exist
    rewards: Tensor  # (M, T) float64, of each step

    @property
    def n_problems(self) -> int:
        """Number of problems, each drawn equally often."""
        return int(self.problems.max()) + 1

    @property
    def shape(self) -> tuple[int, int]:
        """(S, A) of the logits."""
        return int(self.states.max()) + 1, int(self.actions.max()) + 1

    @property
    def max_len(self) -> int:
        """T, the length limit in steps."""
        return self.mask.shape[1]

    @property
    def returns(self) -> Tensor:
        """(M,) sum of the rewards of each rollout: its outcome."""
        return self.rewards.sum(dim=1)


def one_step(rewards: Sequence[Sequence[float]]) -> Task:
    """A one-step task: ``rewards[p][a]`` is the reward of action a in problem p.

    Raises:
        ValueError: the problems differ in their number of actions.
    """
    n_actions = len(rewards[0])
    if any(len(row) != n_actions for row in rewards):
        raise ValueError(
            f"rewards of {[len(row) for row in rewards]} actions: expected as many in every problem"
        )
    problems = torch.arange(len(rewards)).repeat_interleave(n_actions)
    actions = torch.arange(n_actions).repeat(len(rewards))[:, None]
    return Task(
        problems=problems,
        states=problems[:, None],
        actions=actions,
        mask=torch.ones_like(actions, dtype=torch.bool),
        rewards=torch.tensor(rewards, dtype=torch.float64).reshape(-1, 1),
    )


def completions(alphabet: str, max_len: int) -> list[str]:
    """All completions over an alphabet: up to the first ``END``, or cut at ``max_len`` tokens."""
    inner = [token for token in alphabet if token != END]
    found: list[str] = []
    for length in range(max_len):
        last = alphabet if length == max_len - 1 else END
        prefixes = map("".join, itertools.product(inner, repeat=length))
        found += [prefix + token for prefix in prefixes for token in last]
    return found


def sequences(alphabet: str, max_len: int, rewards: Sequence[Mapping[str, float]]) -> Task:
    """A task of completions, one problem for each of ``rewards``.

    Args:
        alphabet: the tokens, one character each, ``END`` among them.
        max_len: tokens after which a completion is cut.
        rewards: for each problem, the reward of a step by the text up to and including its token;
            0 for texts not listed. ``{"ab.": 1}`` rewards one completion.

    Raises:
        ValueError: no ``END`` in the alphabet, or a text that no completion begins with.
    """
    if END not in alphabet:
        raise ValueError(f"alphabet={alphabet!r}: expected {END!r}, which ends, among the tokens")
    texts = completions(alphabet, max_len)
    prefixes = sorted({text[:t] for text in texts for t in range(len(text))}, key=_by_length)
    known = {text[: t + 1] for text in texts for t in range(len(text))}
    if unknown := [text for paid in rewards for text in paid if text not in known]:
        raise ValueError(f"reward of {unknown[0]!r}: expected the beginning of one of {texts}")
    shape = (len(rewards) * len(texts), max_len)
    states, actions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    paid_each = torch.zeros(shape, dtype=torch.float64)
    for row, (problem, text) in enumerate(itertools.product(range(len(rewards)), texts)):
        for t, token in enumerate(text):
            states[row, t] = problem * len(prefixes) + prefixes.index(text[:t])
            actions[row, t] = alphabet.index(token)
            mask[row, t] = True
            paid_each[row, t] = rewards[problem].get(text[: t + 1], 0.0)
    problems = torch.arange(len(rewards)).repeat_interleave(len(texts))
    return Task(problems, states, actions, mask, paid_each)


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


def log_probs(task: Task, logits: Tensor) -> Tensor:
    """(M, T) log-probability of each step of each rollout under logits (S, A); 0 outside the
    mask."""
    chosen = logits.log_softmax(dim=-1)[task.states, task.actions]
    return torch.where(task.mask, chosen, torch.zeros_like(chosen))


def objective(task: Task, logits: Tensor, ref_logits: Tensor, kl_coef: float) -> Tensor:
    """J = E_x E_y [R(x, y)] - kl_coef KL(pi || ref), (), differentiable. Problems x are drawn
    uniformly; the KL is that of whole rollouts y; the expectation is the sum over all of them."""
    logp = log_probs(task, logits).sum(dim=1)  # (M,)
    divergence = logp - log_probs(task, ref_logits).sum(dim=1)
    return (logp.exp() * (task.returns - kl_coef * divergence)).sum() / task.n_problems


def true_gradient(task: Task, logits: Tensor, ref_logits: Tensor, kl_coef: float = 0.0) -> Tensor:
    """(S * A,) gradient of ``objective`` at ``logits``, by automatic differentiation."""
    at = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(objective(task, at, ref_logits, kl_coef), at)[0].flatten()


def reverse_gradient(task: Task, logits: Tensor, ref_logits: Tensor) -> Tensor:
    """(S * A,) gradient of - KL(ref || pi), the KL of whole rollouts in the other direction."""
    at = logits.detach().clone().requires_grad_()
    ref_logp = log_probs(task, ref_logits).sum(dim=1)  # (M,)
    divergence = (ref_logp.exp() * (ref_logp - log_probs(task, at).sum(dim=1))).sum()
    return torch.autograd.grad(-divergence / task.n_problems, at)[0].flatten()
