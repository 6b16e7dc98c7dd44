"""KL forms against enumeration: what each estimates, and what its gradient does."""

import itertools

import numpy as np
import pytest
import torch
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)

from grpo_bench.grpo import kl

N = 3  # states


def pair(make):
    """(policy, reference) of two random parametrisations."""
    generator = torch.Generator().manual_seed(0)
    return tuple(make(lambda *shape: torch.randn(N, *shape, generator=generator)) for _ in range(2))


def enumerated(policy, reference, actions):
    """sum_a pi(a) (log pi(a) - log ref(a)) over a list of all actions, (N,)."""
    total = torch.zeros(N)
    for action in actions:
        batch = torch.tensor(action).expand(N, *np.shape(action))
        logp, ref_logp = policy.log_prob(batch), reference.log_prob(batch)
        total += logp.exp() * (logp - ref_logp)
    return total


def test_exact_categorical():
    pi, ref = pair(lambda normal: CategoricalDistribution(5).proba_distribution(normal(5)))
    torch.testing.assert_close(kl.exact(pi, ref), enumerated(pi, ref, range(5)))
    both = pi.distribution, ref.distribution
    torch.testing.assert_close(kl.exact(pi, ref), torch.distributions.kl_divergence(*both))


def test_exact_multi_categorical():
    pi, ref = pair(
        lambda normal: MultiCategoricalDistribution([2, 3, 2]).proba_distribution(normal(7))
    )
    actions = itertools.product(range(2), range(3), range(2))
    torch.testing.assert_close(kl.exact(pi, ref), enumerated(pi, ref, actions))


def test_exact_bernoulli():
    pi, ref = pair(lambda normal: BernoulliDistribution(3).proba_distribution(normal(3)))
    actions = itertools.product((0.0, 1.0), repeat=3)
    torch.testing.assert_close(kl.exact(pi, ref), enumerated(pi, ref, actions))


def test_exact_gaussian():
    """log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, added up over the dimensions."""
    pi, ref = pair(
        lambda normal: DiagGaussianDistribution(2).proba_distribution(normal(2), normal(2)[0])
    )
    m1, s1 = pi.distribution.mean, pi.distribution.stddev
    m2, s2 = ref.distribution.mean, ref.distribution.stddev
    per_dimension = (s2 / s1).log() + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5
    torch.testing.assert_close(kl.exact(pi, ref), per_dimension.sum(dim=1))


def test_estimators_by_hand():
    logp, ref_logp = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()  # x = log 2
    x = np.log(2)
    expected = {"k1": x, "k2": x**2 / 2, "k3": 0.25 / 0.5 - 1 + x, "tutorial": -x}
    for name, value in expected.items():
        assert kl.ESTIMATORS[name](logp, ref_logp).item() == pytest.approx(value)


def test_every_form_that_can_be_chosen_exists():
    assert set(kl.FORMS) - {"none", "exact"} <= set(kl.ESTIMATORS)


# -- gradients on a softmax policy over 6 actions -------------------------------------------------


def softmax_pair():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64)
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0)
    return logits.requires_grad_(), reference


def expected_gradient(form, logits, ref_logp):
    """Expectation over sampled actions of the gradient of a loss term: sum_a pi(a) d form(a)."""
    logp = logits.log_softmax(0)
    sampling = logp.detach().exp()  # the draw itself is not differentiated
    return torch.autograd.grad((sampling * form(logp, ref_logp)).sum(), logits)[0]


def forward_and_reverse():
    """Gradients of KL(pi || ref) and of KL(ref || pi), by automatic differentiation of the sums."""
    logits, ref_logp = softmax_pair()
    logp = logits.log_softmax(0)
    forward = torch.autograd.grad((logp.exp() * (logp - ref_logp)).sum(), logits)[0]
    logp = logits.log_softmax(0)
    reverse = torch.autograd.grad((ref_logp.exp() * (ref_logp - logp)).sum(), logits)[0]
    return forward, reverse


@pytest.mark.parametrize("name", ["tutorial", "k1"])
def test_as_a_loss_tutorial_and_k1_push_nowhere(name):
    gradient = expected_gradient(kl.ESTIMATORS[name], *softmax_pair())
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_as_a_loss_k2_is_right():
    gradient = expected_gradient(kl.k2, *softmax_pair())
    torch.testing.assert_close(gradient, forward_and_reverse()[0])


def test_as_a_loss_k3_is_the_reverse_direction():
    gradient = expected_gradient(kl.k3, *softmax_pair())
    forward, reverse = forward_and_reverse()
    torch.testing.assert_close(gradient, reverse)
    assert (gradient - forward).norm() > 0.1 * forward.norm()


def test_exact_is_right():
    logits, ref_logp = softmax_pair()
    policy = CategoricalDistribution(6).proba_distribution(logits[None])
    reference = CategoricalDistribution(6).proba_distribution(ref_logp[None])
    gradient = torch.autograd.grad(kl.exact(policy, reference).sum(), logits)[0]
    torch.testing.assert_close(gradient, forward_and_reverse()[0])


def test_tutorial_estimates_minus_the_kl():
    logits, ref_logp = softmax_pair()
    logp = logits.log_softmax(0)
    true = (logp.exp() * (logp - ref_logp)).sum()
    torch.testing.assert_close((logp.exp() * kl.tutorial(logp, ref_logp)).sum(), -true)
    torch.testing.assert_close((logp.exp() * kl.k3(logp, ref_logp)).sum(), true)
    assert (kl.k3(logp, ref_logp) >= 0).all()
