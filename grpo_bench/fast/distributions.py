"""SB3's categorical distribution, without the overhead that dominates a small update."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor
from torch.distributions import Categorical


class LogSoftmaxDistribution(CategoricalDistribution):
    """The same distribution, computed from one ``log_softmax``.

    torch's ``Categorical`` normalises, checks and broadcasts in a dozen more operations, which take
    as long as the layers of a small network. It is made only on request. Nothing is checked: NaN
    logits raise when actions are sampled.
    """

    log_probs: Tensor  # (n, n_actions)

    def proba_distribution(
        self, action_logits: Tensor, rows: Tensor | None = None
    ) -> LogSoftmaxDistribution:
        """Set logits (n, n_actions), or with ``rows`` (m,) those rows of them. Each row is
        normalised once, even if ``rows`` repeats it."""
        log_probs = F.log_softmax(action_logits, dim=-1)
        self.log_probs = log_probs if rows is None else log_probs.index_select(0, rows)
        return self

    @property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """The same distribution as torch's ``Categorical``."""
        return Categorical(logits=self.log_probs, validate_args=False)

    def sample(self) -> Tensor:
        """One action for each row, (n,)."""
        return torch.multinomial(self.log_probs.exp(), 1).squeeze(-1)

    def mode(self) -> Tensor:
        """The most probable action of each row, (n,)."""
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """log pi(a) of actions (n,), (n,)."""
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """(n,), in nats. (The gradient of ``torch.special.entr`` is NaN where exp underflows.)"""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)
