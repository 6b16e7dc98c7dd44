"""Which expected steps are the true gradient, and how far off the others are."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import close, double, example, random_example, truth

from grpo_bench.enumeration.evaluation import listed_moments
from grpo_bench.enumeration.examples import completions, paid_steps, six_actions, three_steps
from grpo_bench.enumeration.gradients import (
    SUMMED,
    UNBOUNDED,
    WHOLE_BATCH,
    Estimator,
    batch_gradients,
    kl_estimate,
)
from grpo_bench.enumeration.groups import enumerate_batches
from grpo_bench.enumeration.tasks import log_probs, one_step, reverse_gradient, sequences
from grpo_bench.grpo.advantages import BASELINES
from grpo_bench.grpo.credit import BY_STEP
from grpo_bench.grpo.kl import FORMS
from grpo_bench.grpo.objectives import RATIOS, SURROGATES, Clip

# -- what is unbiased -----------------------------------------------------------------------------

FACTORS = {"rloo": lambda size: 1.0, "none": lambda size: 1.0, "group_mean": lambda g: (g - 1) / g}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(FACTORS)),
    st.integers(2, 5),
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.integers(0, 1000),
)
def test_unbiased_on_policy_whatever_the_rewards(baseline, size, rewards, seed):
    at = random_example(one_step([rewards]), seed, off_policy=False)
    found = listed_moments(at, Estimator(baseline=baseline), size)
    close(found.mean, FACTORS[baseline](size) * truth(at))


@pytest.mark.parametrize("baseline", FACTORS)
@pytest.mark.parametrize("size", [2, 4])
def test_unbiased_on_sequences_with_a_constant_length(baseline, size):
    at = completions()
    estimator = Estimator(baseline=baseline, aggregation="constant_length")
    close(listed_moments(at, estimator, size).mean, FACTORS[baseline](size) / 3 * truth(at))
    estimator = replace(SUMMED, baseline=baseline)
    close(listed_moments(at, estimator, size).mean, FACTORS[baseline](size) * truth(at))


@pytest.mark.parametrize("baseline", ["none", "rloo"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_unbiased_off_policy_with_one_action_and_no_bounds(baseline, surrogate):
    at = random_example(one_step([[1, 0, 0.3], [0, 1, 0]]), seed=5)
    estimator = Estimator(baseline=baseline, surrogate=surrogate, clip=UNBOUNDED)
    close(listed_moments(at, estimator, 3).mean, truth(at))
    bounded = listed_moments(at, replace(estimator, clip=Clip()), 3).mean
    assert (bounded - truth(at)).norm() > 0.05 * truth(at).norm()


def test_on_policy_ratios_and_surrogates_are_one():
    at = completions()
    members = enumerate_batches(at.task, at.policies.old, 4).members
    expected = batch_gradients(at.task, Estimator(), at.policies, members)
    for ratio, surrogate in itertools.product(RATIOS, SURROGATES):
        estimator = Estimator(ratio=ratio, surrogate=surrogate)
        close(batch_gradients(at.task, estimator, at.policies, members), expected)


@pytest.mark.parametrize("supervision", BY_STEP)
def test_steps_without_a_baseline_are_right_and_less_noisy(supervision):
    at = paid_steps()
    outcome, steps = (
        listed_moments(at, replace(SUMMED, baseline="none", supervision=name), 2)
        for name in ("outcome", supervision)
    )
    close(outcome.mean, truth(at))
    close(steps.mean, truth(at))
    assert steps.variance < 0.9 * outcome.variance


def parts_of_the_gradient(at, gamma=1.0):
    """For each problem p and step t, E[G_t grad log pi(a_t)], (P, T, S * A), and the probability
    q that a rollout has a step t, (P, T). At gamma 1 the parts add up to the true gradient."""
    task, new = at.task, at.policies.new
    logits = new.clone().requires_grad_()
    chance = log_probs(task, new).sum(1).exp()  # (M,)
    by_step = log_probs(task, logits)  # (M, T)
    discounts = gamma ** torch.arange(task.max_len).double()
    parts, played = [], []
    for p, t in itertools.product(range(task.n_problems), range(task.max_len)):
        here = (task.problems == p) & task.mask[:, t]
        left = task.rewards[:, t:] @ discounts[: task.max_len - t]
        total = (chance * left * by_step[:, t])[here].sum()
        parts.append(torch.autograd.grad(total, logits, retain_graph=True)[0].flatten())
        played.append(chance[here].sum())
    shape = (task.n_problems, task.max_len)
    return torch.stack(parts).view(*shape, -1), torch.stack(played).view(shape)


def factor_of_a_step(baseline, q, size):
    """k ~ Bin(G - 1, q) others play at this step. rloo subtracts their mean if there is one;
    group_mean is k / (k + 1) of that."""
    total = 0.0
    for k in range(1, size):
        chance = math.comb(size - 1, k) * q**k * (1 - q) ** (size - 1 - k)
        total = total + chance * (1.0 if baseline == "rloo" else k / (k + 1))
    return torch.ones_like(q) if baseline == "none" else total


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("baseline", FACTORS)
def test_return_to_go_counts_a_step_as_often_as_another_member_plays_it(baseline, size, gamma):
    at = paid_steps()
    parts, q = parts_of_the_gradient(at, gamma)
    if gamma == 1:
        close(parts.sum(dim=(0, 1)) / at.task.n_problems, truth(at))
    estimator = replace(SUMMED, baseline=baseline, supervision="return_to_go", gamma=gamma)
    factors = factor_of_a_step(baseline, q, size)
    if baseline == "rloo":
        close(factors, 1 - (1 - q) ** (size - 1))
    expected = (factors[..., None] * parts).sum(dim=(0, 1)) / at.task.n_problems
    close(listed_moments(at, estimator, size).mean, expected)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("p", [0.03, 0.5, 0.8])
def test_dividing_by_the_deviation_against_the_binomial(p, size, ddof):
    """k of G right, k ~ Bin(G, p): the step is dp/dtheta times (k/G) (1 - k/G) / (s + eps) over
    p (1 - p), with s^2 = G / (G - ddof) (k/G) (1 - k/G)."""
    eps = 0.01
    factor = 0.0
    for k in range(1, size):
        spread = k / size * (1 - k / size)
        deviation = math.sqrt(size / (size - ddof) * spread) + eps
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        factor += chance * spread / deviation / (p * (1 - p))
    at = example(one_step([[1, 0]]), double([[p, 1 - p]]).log())
    found = listed_moments(at, Estimator(ddof=ddof, eps=eps), size)
    close(found.mean, factor * truth(at))
    assert found.flat == pytest.approx(p**size + (1 - p) ** size)


# -- KL -------------------------------------------------------------------------------------------


def kl_step(at, form, size=2, coef=1.0):
    estimator = replace(SUMMED, baseline="none", kl=form, kl_coef=coef, clip=UNBOUNDED)
    return listed_moments(at, estimator, size).mean


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FORMS)
def test_the_labels_of_the_forms(name, seed):
    at = random_example(one_step([[0.0] * 5]), seed, off_policy=False)
    right = truth(at, kl_coef=1.0)
    expected = {
        "right": right,
        "opposite": -right,
        "zero": torch.zeros_like(right),
        "reverse": reverse_gradient(at.task, at.policies.new, at.policies.reference),
    }
    assert len({tuple(v.tolist()) for v in expected.values()}) == 4
    close(kl_step(at, name), expected[FORMS[name].gradient])
    close(kl_step(at, name, size=3, coef=0.5), 0.5 * expected[FORMS[name].gradient])


@pytest.mark.parametrize("name", FORMS)
def test_off_policy_two_forms_are_right(name):
    at = random_example(one_step([[0.0] * 5]), seed=1)
    away = (kl_step(at, name) - truth(at, kl_coef=1.0)).norm() / truth(at, kl_coef=1.0).norm()
    assert away < 1e-10 if name in ("exact", "k3_ratio") else away > 0.1


@pytest.mark.parametrize("baseline", [b for b in BASELINES if b not in WHOLE_BATCH])
@pytest.mark.parametrize("name", ["k1_reward", "tutorial_reward", "exact", "k3"])
def test_the_kl_adds_to_the_step_of_the_rewards(name, baseline):
    """Whatever the baseline does to the rewards: without rewards the same step is added."""
    at = random_example(sequences(".a", 2, [{"a.": 1}]), seed=2, off_policy=False)
    nothing = at._replace(task=sequences(".a", 2, [{}]))
    with_kl, without = (
        listed_moments(at, Estimator(baseline=baseline, kl=name, kl_coef=c), 3).mean
        for c in (0.7, 0.0)
    )
    alone = listed_moments(nothing, Estimator(baseline="group", kl=name, kl_coef=0.7), 3).mean
    close(with_kl - without, alone)


def test_on_sequences_only_the_return_has_the_future():
    """A term of the loss takes the visited states as given: its step is the gradient of the sum of
    their KLs with the probability of a visit held fixed."""
    at = three_steps()
    right = truth(at, kl_coef=1.0)
    close(kl_step(at, "k1_reward"), right)
    close(kl_step(at, "tutorial_reward"), -right)
    task, logits = at.task, at.policies.new.clone().requires_grad_()
    reached = log_probs(task, at.policies.new).sum(1).exp()[:, None] * task.mask
    log_ratio = logits.log_softmax(1) - at.policies.reference.log_softmax(1)
    of_state = (logits.softmax(1) * log_ratio).sum(1)
    held = -torch.autograd.grad((reached * of_state[task.states]).sum(), logits)[0].flatten()
    for name in ("exact", "k2", "k3_ratio"):
        close(kl_step(at, name), held)
    assert (held - right).norm() > 0.1 * right.norm()
    close(kl_step(at, "k1"), torch.zeros_like(right))
    close(kl_step(at, "tutorial"), torch.zeros_like(right))


@pytest.mark.parametrize("at", [six_actions(), three_steps()], ids=["one action", "completions"])
def test_estimates(at):
    """The mean over rollouts is plus or minus the KL for all but k2, whatever the gradient does."""
    logp, ref = (log_probs(at.task, table).sum(1) for table in at.policies[1:])
    kl = (logp.exp() * (logp - ref)).sum().item()
    for name in FORMS:
        expected = -kl if "tutorial" in name else kl
        found = kl_estimate(at.task, name, at.policies)
        assert found == pytest.approx(expected, rel=1e-10) if name != "k2" else found > 1.1 * kl


def test_estimates_off_policy():
    """Samples of the old policy, as many of each problem: k3_ratio corrects for it, k1 does not."""
    at = random_example(one_step([[0.0] * 4] * 2), seed=3)
    new, old, ref = (table.log_softmax(1) for table in at.policies)
    expected = {"k3_ratio": new.exp() * (new - ref), "k1": old.exp() * (new - ref)}
    for name, terms in expected.items():
        found = kl_estimate(at.task, name, at.policies)
        assert found == pytest.approx(terms.sum(1).mean().item(), rel=1e-10)
