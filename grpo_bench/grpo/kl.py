"""KL to the reference policy: its estimates, and the effect of training on each.

With x = log pi(a) - log pi_ref(a) and a drawn from pi, KL(pi || pi_ref) = E[x]. ``k1`` and ``k3``
estimate it from samples without bias (Schulman, http://joschu.net/blog/kl-approx.html), and
``exact`` computes it. As a *loss* a term can act differently: its gradient is not the gradient of
the estimate, because the actions depend on the policy too. ``FORMS`` has every form that can be
trained on, and the direction of its gradient. ``python -m grpo_bench.oracle`` proves these labels
by enumeration.

On sequences a term of the loss ignores that an action changes the KL of later states. k1 subtracted
from the return does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from stable_baselines3.common.distributions import Distribution, kl_divergence
from torch import Tensor

from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.grpo.choices import choice
from grpo_bench.grpo.objectives import LARGEST_LOG

Term = Callable[[Tensor, Tensor, Tensor], Tensor]  # (logp, ref_logp, old_logp), all of one shape


# -- estimates ------------------------------------------------------------------------------------


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """x. Unbiased as an estimate; as a loss term its expected gradient is zero."""
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """x^2 / 2. Biased as an estimate; as a loss term its gradient is right on-policy."""
    return 0.5 * (logp - ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """exp(-x) - 1 + x. Unbiased and never negative as an estimate; as a loss term its gradient is
    that of the reverse direction KL(pi_ref || pi). DeepSeekMath (arXiv 2402.03300), eq. 4."""
    x = (logp - ref_logp).clamp(min=-LARGEST_LOG)  # exp(-x) would overflow
    return torch.expm1(-x) + x  # exp(-x) - 1 loses x^2 / 2 to rounding near the reference


def tutorial(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """-x, the form that tutorials show. It estimates MINUS the KL. As a loss term its expected
    gradient is zero; subtracted from the reward, it rewards leaving the reference."""
    return ref_logp - logp


def exact(policy: Distribution, reference: Distribution) -> Tensor:
    """KL(pi || pi_ref) of each state in closed form, (n,): the sum over all actions (categorical,
    Bernoulli) or the integral (Gaussian), summed over the parts of the action."""
    if isinstance(policy, LogSoftmaxDistribution) and isinstance(reference, LogSoftmaxDistribution):
        # torch's version is infinite where a probability of the reference underflows
        logp, ref_logp = policy.log_probs, reference.log_probs  # (n, n_actions)
        return (logp.exp() * (logp - ref_logp)).sum(dim=1)
    divergence = kl_divergence(policy, reference)
    return divergence.flatten(1).sum(dim=1) if divergence.dim() > 1 else divergence


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "tutorial": tutorial,
}


# -- forms to train on ----------------------------------------------------------------------------


def k3_ratio(logp: Tensor, ref_logp: Tensor, old_logp: Tensor) -> Tensor:
    """rho (exp(-x) - 1 + x) with rho = pi(a) / pi_old(a), both differentiated: its expectation over
    pi_old is KL(pi || pi_ref), so its gradient is right off-policy too (arXiv 2505.17508)."""
    return (logp - old_logp).clamp(max=LARGEST_LOG).exp() * k3(logp, ref_logp)


def _of_sample(estimator: Callable[[Tensor, Tensor], Tensor]) -> Term:
    return lambda logp, ref_logp, old_logp: estimator(logp, ref_logp)


class Form(NamedTuple):
    """One way to train on the KL."""

    place: Literal["loss", "return"]  # a term of the loss, or subtracted from the return
    term: Term | None  # None: ``exact``, from the distributions
    # The expected on-policy gradient in one state: that of KL(pi || ref), of KL(ref || pi), zero,
    # or that of minus the KL.
    gradient: Literal["right", "reverse", "zero", "opposite"]


FORMS: dict[str, Form] = {
    "exact": Form("loss", None, "right"),
    "k1": Form("loss", _of_sample(k1), "zero"),
    "k2": Form("loss", _of_sample(k2), "right"),
    "k3": Form("loss", _of_sample(k3), "reverse"),
    "k3_ratio": Form("loss", k3_ratio, "right"),
    "tutorial": Form("loss", _of_sample(tutorial), "zero"),
    "k1_reward": Form("return", _of_sample(k1), "right"),
    "tutorial_reward": Form("return", _of_sample(tutorial), "opposite"),
}


def sample_term(
    form: str, logp: Tensor, ref_logp: Tensor, old_logp: Tensor, mask: Tensor
) -> Tensor:
    """A form's value for each sampled action, (n_rollouts, length), 0 outside the mask.

    Args:
        form: a name in ``FORMS``.
        logp, ref_logp, old_logp: (n_rollouts, length) log-probability of each action now, under
            the reference, and at sampling.
        mask: (n_rollouts, length) bool.

    Raises:
        ValueError: an unknown form, or ``exact``, which needs the distributions.
    """
    sampled = {name: term for name, (_, term, _) in FORMS.items() if term is not None}
    term = choice("kl", form, sampled)
    zeros = torch.zeros_like(logp)
    inside = [torch.where(mask, values, zeros) for values in (logp, ref_logp, old_logp)]
    return term(*inside)  # 0 where all three are: no form has a term at the reference
