"""KL forms against enumeration: what each estimates, and what its gradient does."""

import itertools
import math

import numpy as np
import pytest
import torch
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)

from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import return_penalty

N = 3  # states
LOSS = [name for name, form in kl.FORMS.items() if form.place == "loss" and form.term is not None]
RETURN = [name for name, form in kl.FORMS.items() if form.place == "return"]

# -- exact: (a distribution of given parameters, their number, all actions) -----------------------

ENUMERABLE = {
    "Discrete": (lambda p: CategoricalDistribution(5).proba_distribution(p), 5, range(5)),
    "Discrete, ours": (lambda p: LogSoftmaxDistribution(5).proba_distribution(p), 5, range(5)),
    "MultiDiscrete": (
        lambda p: MultiCategoricalDistribution([2, 3, 2]).proba_distribution(p),
        7,
        list(itertools.product(range(2), range(3), range(2))),
    ),
    "MultiBinary": (
        lambda p: BernoulliDistribution(3).proba_distribution(p),
        3,
        list(itertools.product((0.0, 1.0), repeat=3)),
    ),
}


def parameters(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, n, generator=generator, dtype=torch.float64)


def same_value_and_gradient(value, expected, params):
    torch.testing.assert_close(value, expected)
    sums = [v.square().sum() for v in (value, expected)]
    gradients = [torch.autograd.grad(v, params, retain_graph=True)[0] for v in sums]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("make", "n", "actions"), ENUMERABLE.values(), ids=ENUMERABLE)
def test_exact_is_the_sum_over_all_actions(make, n, actions):
    params = parameters(n, 0).requires_grad_()
    policy, reference = make(params), make(parameters(n, 1))
    total = torch.zeros(N, dtype=torch.float64)
    for action in actions:
        batch = torch.tensor(action, dtype=torch.float64).expand(N, *np.shape(action))
        logp, ref_logp = policy.log_prob(batch), reference.log_prob(batch)
        total = total + logp.exp() * (logp - ref_logp)
    value = kl.exact(policy, reference)
    assert value.shape == (N,) and (value > 0.1).all()
    same_value_and_gradient(value, total, params)
    itself = kl.exact(policy, make(params.detach()))
    torch.testing.assert_close(itself, torch.zeros_like(itself), rtol=0, atol=1e-12)


def gaussian(mean, log_std):
    return DiagGaussianDistribution(2).proba_distribution(mean, log_std)


def test_exact_gaussian_is_the_integral():
    """By the trapezoidal rule, which for a Gaussian is exact to rounding on a grid this fine."""
    params = parameters(3, 2).requires_grad_()  # two means, and a logarithm of the deviation
    reference = gaussian(parameters(2, 3), torch.tensor([0.3, -0.2], dtype=torch.float64))
    policy = gaussian(params[:, :2], params[0, 1:])
    grid = torch.linspace(-25, 25, 5001, dtype=torch.float64)
    x = grid[:, None, None].expand(-1, N, 2)
    logp, ref_logp = policy.distribution.log_prob(x), reference.distribution.log_prob(x)
    total = (logp.exp() * (logp - ref_logp)).sum(dim=0).sum(dim=1) * (grid[1] - grid[0])
    same_value_and_gradient(kl.exact(policy, reference), total, params)


def test_exact_gaussian_by_hand():
    """log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, added up over the dimensions."""
    policy = gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, math.log(2)]))
    reference = gaussian(torch.tensor([[3.0, 0.0]]), torch.tensor([math.log(2), 0.0]))
    first = math.log(2) + (1 + (1 - 3) ** 2) / (2 * 4) - 0.5
    second = -math.log(2) + 4 / 2 - 0.5
    assert kl.exact(policy, reference).item() == pytest.approx(first + second)


def test_exact_is_finite_where_a_probability_of_the_reference_underflows():
    """exp(-110) is 0 in float32: sum_a p (log p - log q), with q = 0 for one a."""
    logits = torch.tensor([[0.0, -80.0]], requires_grad=True)
    policy = LogSoftmaxDistribution(2).proba_distribution(logits)
    reference = LogSoftmaxDistribution(2).proba_distribution(torch.tensor([[0.0, -110.0]]))
    value = kl.exact(policy, reference)
    assert value.item() == pytest.approx(math.exp(-80) * 30, rel=1e-4, abs=0)
    gradient = torch.autograd.grad(value.sum(), logits)[0]  # p (log p - log q - KL)
    assert gradient.isfinite().all()
    assert gradient[0, 1].item() == pytest.approx(math.exp(-80) * 30, rel=1e-4, abs=0)


# -- estimates ------------------------------------------------------------------------------------


def test_estimators_by_hand():
    logp, ref_logp = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()  # x = log 2
    x = math.log(2)
    expected = {"k1": x, "k2": x**2 / 2, "k3": 0.25 / 0.5 - 1 + x, "tutorial": -x}
    assert set(expected) == set(kl.ESTIMATORS)
    for name, value in expected.items():
        assert kl.ESTIMATORS[name](logp, ref_logp).item() == pytest.approx(value)


@pytest.mark.parametrize("x", [1e-2, 1e-4, 1e-6, 1e-7, -1e-7, -1e-3])
def test_k3_keeps_its_digits_and_its_sign_near_the_reference(x):
    """x^2 / 2 - x^3 / 6 + ..., where exp(-x) - 1 + x has no digit left in float32."""
    logp = torch.tensor([x], requires_grad=True)
    value = kl.k3(logp, torch.zeros(1))
    assert value.item() >= 0
    assert value.item() == pytest.approx(x**2 / 2, rel=5e-3, abs=abs(x) * 1e-7)
    gradient = torch.autograd.grad(value, logp)[0].item()
    assert gradient == pytest.approx(-math.expm1(-x), abs=1e-7)


def test_k3_ratio_by_hand():
    logp, ref_logp, old_logp = (torch.tensor([p]).log() for p in (0.5, 0.25, 0.2))
    expected = 0.5 / 0.2 * (0.25 / 0.5 - 1 + math.log(2))
    assert kl.k3_ratio(logp, ref_logp, old_logp).item() == pytest.approx(expected)


# -- sampled terms --------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", LOSS + RETURN)
def test_a_sample_term_is_its_formula_inside_the_mask_and_zero_outside(form, poison):
    mask = torch.tensor([[True, False, True], [False, False, False]])
    values = [torch.full((2, 3), poison).masked_fill(mask, x) for x in (-0.5, -1.5, -0.9)]
    values[0].requires_grad_()
    terms = kl.sample_term(form, *values, mask)
    x, rho = -0.5 + 1.5, math.exp(-0.5 + 0.9)
    k3 = math.exp(-x) - 1 + x
    expected, slope = {
        "k1": (x, 1.0),
        "k2": (x**2 / 2, x),
        "k3": (k3, 1 - math.exp(-x)),
        "k3_ratio": (rho * k3, rho * k3 + rho * (1 - math.exp(-x))),
        "tutorial": (-x, -1.0),
        "k1_reward": (x, 1.0),
        "tutorial_reward": (-x, -1.0),
    }[form]
    torch.testing.assert_close(terms, torch.zeros(2, 3).masked_fill(mask, expected))
    gradient = torch.autograd.grad(terms.sum(), values[0])[0]
    torch.testing.assert_close(gradient, torch.zeros(2, 3).masked_fill(mask, slope))


@pytest.mark.parametrize("form", ["exact", "k4"])
def test_a_form_without_a_sample_term_is_refused(form):
    with pytest.raises(ValueError, match=f"kl='{form}': expected one of k1, k2, k3"):
        kl.sample_term(form, *[torch.zeros(1, 1)] * 3, torch.ones(1, 1, dtype=torch.bool))


# -- gradients on a softmax policy over 6 actions, by enumeration ---------------------------------


def softmax_pair():
    """Logits of the policy, and the log-probabilities of the reference; KL about 0.5."""
    logits = parameters(6, 4)[0]
    return logits.requires_grad_(), parameters(6, 5)[0].log_softmax(0)


def true_gradients():
    """Gradients of KL(pi || ref) and KL(ref || pi), by automatic differentiation of the sums."""
    logits, ref_logp = softmax_pair()
    logp = logits.log_softmax(0)
    forward = torch.autograd.grad((logp.exp() * (logp - ref_logp)).sum(), logits)[0]
    logp = logits.log_softmax(0)
    reverse = torch.autograd.grad((ref_logp.exp() * (ref_logp - logp)).sum(), logits)[0]
    return forward, reverse


def expected_gradient(name, old_logp=None):
    """The mean over actions drawn from ``old_logp`` (the policy itself where None)."""
    logits, ref_logp = softmax_pair()
    logp = logits.log_softmax(0)
    old_logp = logp.detach() if old_logp is None else old_logp
    if name == "exact":
        policy = LogSoftmaxDistribution(6).proba_distribution(logits[None])
        reference = LogSoftmaxDistribution(6).proba_distribution(ref_logp[None])
        return torch.autograd.grad(kl.exact(policy, reference).sum(), logits)[0]
    mask = torch.ones(6, 1, dtype=torch.bool)
    columns = [x[:, None] for x in (logp, ref_logp, old_logp)]
    terms = kl.sample_term(name, *columns, mask)[:, 0]
    draw = old_logp.exp()  # not differentiated: the action is drawn, then the loss is made
    if name in LOSS:
        return torch.autograd.grad((draw * terms).sum(), logits)[0]
    # A return: two draws, each with the other's return as its baseline, and the score of each.
    # The loss is minus advantage times logp, so this is the gradient that descent follows.
    total = torch.zeros((), dtype=torch.float64)
    for i, j in itertools.product(range(6), repeat=2):
        advantages = return_penalty(terms.detach()[None, [i, j]])[0]
        total = total - draw[i] * draw[j] * (advantages * logp[[i, j]]).mean()
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("name", kl.FORMS)
def test_the_label_of_each_form_matches_its_expected_gradient(name):
    forward, reverse = true_gradients()
    assert (reverse - forward).norm() > 0.1 * forward.norm()
    assert torch.nn.functional.cosine_similarity(reverse, forward, dim=0) > 0.5
    truth = {"right": forward, "reverse": reverse, "zero": 0 * forward, "opposite": -forward}
    torch.testing.assert_close(expected_gradient(name), truth[kl.FORMS[name].gradient])


def test_off_policy_only_exact_and_k3_ratio_are_right():
    forward, _ = true_gradients()
    old_logp = parameters(6, 6)[0].log_softmax(0)
    for name in ["exact", *LOSS]:
        off = (expected_gradient(name, old_logp) - forward).norm() / forward.norm()
        if name in ("exact", "k3_ratio"):
            assert off < 1e-12, name
        else:
            assert off > 0.1, name


def test_estimates_of_a_whole_policy():
    logits, ref_logp = softmax_pair()
    logp = logits.detach().log_softmax(0)
    true = (logp.exp() * (logp - ref_logp)).sum()

    def mean(name):
        return (logp.exp() * kl.ESTIMATORS[name](logp, ref_logp)).sum()

    torch.testing.assert_close(mean("k1"), true)
    torch.testing.assert_close(mean("k3"), true)
    torch.testing.assert_close(mean("tutorial"), -true)
    assert abs(mean("k2") - true) > 0.01
    assert (kl.k3(logp, ref_logp) >= 0).all()
    old_logp = parameters(6, 6)[0].log_softmax(0)
    estimate = (old_logp.exp() * kl.k3_ratio(logp, ref_logp, old_logp)).sum()
    torch.testing.assert_close(estimate, true)


@pytest.mark.parametrize("form", sorted(set(kl.FORMS) - {"exact"}))
def test_far_from_the_reference_every_form_is_finite(form):
    logp = torch.tensor([[-200.0, -1.0]]).requires_grad_()
    other = torch.tensor([[-1.0, -200.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    terms = kl.sample_term(form, logp, other, other, mask)
    gradient = torch.autograd.grad(terms.sum(), logp)[0]
    assert torch.isfinite(terms).all() and torch.isfinite(gradient).all()
