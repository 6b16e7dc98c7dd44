"""KL to the reference policy: estimators from samples, and the exact value.

With x = log pi(a) - log pi_ref(a) and a drawn from pi, KL(pi || pi_ref) = E[x]. The estimators are
Schulman's k1, k2, k3 (http://joschu.net/blog/kl-approx.html). What each does as a loss term is
another question than what it estimates: see ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from stable_baselines3.common.distributions import Distribution, kl_divergence
from torch import Tensor


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """x. Unbiased as an estimate; as a loss term its expected gradient is zero."""
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """x^2 / 2. Biased as an estimate; as a loss term its gradient is right on-policy."""
    return 0.5 * (logp - ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """exp(-x) - 1 + x. Unbiased and never negative as an estimate; as a loss term its gradient is
    that of the reverse direction KL(pi_ref || pi). DeepSeekMath (arXiv 2402.03300), eq. 4."""
    x = logp - ref_logp
    return torch.exp(-x) - 1.0 + x


def tutorial(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """-x, the form beginners meet: it estimates MINUS the KL, and as a loss term its expected
    gradient is zero. Here so that people can see it run."""
    return ref_logp - logp


def exact(policy: Distribution, reference: Distribution) -> Tensor:
    """KL(pi || pi_ref) of each state in closed form, (n,): the sum over all actions (categorical,
    Bernoulli) or the integral (Gaussian), added up over the parts of the action."""
    divergence = kl_divergence(policy, reference)
    return divergence.flatten(1).sum(dim=1) if divergence.dim() > 1 else divergence


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "tutorial": tutorial,
}

# What ``GRPO(kl=...)`` can add to the loss, times kl_coef.
FORMS: tuple[str, ...] = ("none", "tutorial", "k3", "exact")
