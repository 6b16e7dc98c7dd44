"""The expected step and its variance: by hand, by brute force, and by sampling."""

import itertools
import math

import pytest
import torch
from support.small import close, double, example, random_example, truth

from grpo_bench.enumeration.evaluation import compare, evaluate, listed_moments, moments
from grpo_bench.enumeration.examples import (
    completions,
    moved,
    one_action,
    paid_steps,
    six_actions,
)
from grpo_bench.enumeration.gradients import (
    UNBOUNDED,
    WHOLE_BATCH,
    Estimator,
    batch_gradients,
    double_precision,
)
from grpo_bench.enumeration.groups import enumerate_batches
from grpo_bench.enumeration.tasks import log_probs, one_step, sequences
from grpo_bench.grpo.advantages import BASELINES, baselines_that, group_advantages
from grpo_bench.grpo.credit import BY_STEP
from grpo_bench.grpo.objectives import AGGREGATIONS, RATIOS, SURROGATES, policy_loss

# -- two actions, G = 2, p = 0.25, rewards 1 and 0: all by hand ------------------------------------
# Groups: both right 0.0625, one 0.375, none 0.5625. d log p/dlogits = (0.75, -0.75), and for the
# other action (-0.25, 0.25). Each of the two members has weight 1/2.

TWO = example(one_step([[1, 0]]), double([[0.25, 0.75]]).log())
# baseline, options: first component of the expected step, mean of its square over the groups
BY_HAND = {
    # A = 1, -1 in the mixed group: (0.75 + 0.25) / 2 = 0.5
    ("rloo",): (0.375 * 0.5, 0.375 * 0.25),
    # A = 0.5, -0.5: 0.25
    ("group_mean",): (0.375 * 0.25, 0.375 * 0.0625),
    # the same over a standard deviation of 0.5, and eps 0.5 makes that 1
    ("group", 0, 0.5): (0.375 * 0.25, 0.375 * 0.0625),
    # over 0.5: 0.5; with ddof 1 over sqrt((0.25 + 0.25) / 1)
    ("group", 0, 0.0): (0.375 * 0.5, 0.375 * 0.25),
    ("group", 1, 0.0): (0.375 * 0.25 / math.sqrt(0.5), 0.375 * 0.0625 / 0.5),
    # ranks 2 and 1 of 2: 1, -1
    ("rank",): (0.375 * 0.5, 0.375 * 0.25),
    # A = 1, 1: 0.75; A = 1, 0: 0.375
    ("none",): (0.0625 * 0.75 + 0.375 * 0.375, 0.0625 * 0.5625 + 0.375 * 0.140625),
}


@pytest.mark.parametrize("options", BY_HAND)
def test_mean_and_variance_by_hand(options):
    names = ("baseline", "ddof", "eps")
    estimator = Estimator(**dict(zip(names, options, strict=False)))
    mean, square = BY_HAND[options]
    found = listed_moments(TWO, estimator, 2)
    close(found.mean, double([mean, -mean]))
    # two components that are alike, two rollouts
    assert found.variance == pytest.approx(2 * 2 * (square - mean**2), rel=1e-12)
    assert found.flat == pytest.approx(0.0625 + 0.5625)


def test_comparison_by_hand():
    found = listed_moments(TWO, Estimator(baseline="group_mean"), 2)
    # E = (0.09375, -0.09375), g = (0.1875, -0.1875): |g|^2 = 0.0703125
    shown = compare(found, truth(TWO))
    variance = 4 * (0.375 * 0.0625 - 0.09375**2)
    assert shown.scale == pytest.approx(0.5)
    assert shown.cosine == pytest.approx(1)
    assert shown.error == pytest.approx(0.5)
    assert shown.turned == pytest.approx(0, abs=1e-12)
    assert shown.variance == pytest.approx(variance / 0.0703125)
    assert shown.noise == pytest.approx(4 * variance / 0.0703125)
    # across it: (3, 4) against (5, 0) has cosine 0.6, sine 0.8, |(-2, 4)| / 5
    shown = compare(found._replace(mean=double([3, 4]), variance=50.0), double([5, 0]))
    expected = (0.6, 0.6, math.sqrt(20) / 5, 0.8, 2.0, 2.0, found.flat)
    assert tuple(shown) == pytest.approx(expected)
    shown = compare(found._replace(mean=double([0, 1e-17])), double([5, 0]))
    assert (shown.scale, shown.error, shown.turned) == (0, 1, 1)
    assert math.isnan(shown.cosine) and math.isnan(shown.noise)


@pytest.mark.parametrize("baseline", ["group", "batch"])
def test_flat_groups_of_every_problem_count_alike(baseline):
    """Also where a batch has two of the three problems."""
    rates = [0.25, 0.5, 0.9]
    at = example(one_step([[1, 0]] * 3), double([[p, 1 - p] for p in rates]).log())
    found = listed_moments(at, Estimator(baseline=baseline), 3)
    assert found.flat == pytest.approx(sum(p**3 + (1 - p) ** 3 for p in rates) / 3)


def test_the_truth_is_that_of_the_policy_that_learns_with_the_kl():
    """Off-policy with one action and no bounds, rloo and k3_ratio are right."""
    at = random_example(one_step([[1, 0, 0.3], [0, 1, 0]]), seed=5)
    estimator = Estimator(baseline="rloo", kl="k3_ratio", kl_coef=0.7, clip=UNBOUNDED)
    found = evaluate(at, estimator, 3)
    assert (found.scale, found.error) == pytest.approx((1, 0), abs=1e-10)


@pytest.mark.parametrize(("at", "kl_coef"), [(one_action(), 0.0), (six_actions(), 1.0)])
def test_a_step_off_the_policy_that_sampled(at, kl_coef):
    """Up the gradient of the rewards; where nothing is paid, towards the reference."""
    up = truth(at, kl_coef)
    away = moved(at, 0.5).policies
    close((away.new - away.old).flatten(), 0.5 * up / up.norm())
    close(away.old, at.policies.old)


def test_aggregations_by_hand():
    """Only "a." is paid, no baseline, G = 2. With q = p(a.), g = q d log q the true gradient and m
    the other member's tokens, a paid token has weight 1 / (2 * 2), 1 / (2 + m) or 1 / (2 * 3)."""
    task = sequences(".a", 3, [{"a.": 1}])
    at = example(task, double([[0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]).log())
    lengths = {1: 0.2, 2: 0.8 * 0.3, 3: 0.8 * 0.7}
    scales = {
        "sequence_mean": 2 / 4,
        "token_mean": 2 * sum(p / (2 + m) for m, p in lengths.items()),
        "constant_length": 1 / 3,
    }
    for aggregation, scale in scales.items():
        found = listed_moments(at, Estimator(baseline="none", aggregation=aggregation), 2)
        close(found.mean, scale * truth(at))


def test_batch_baselines_by_hand():
    """Two problems that are always right and wrong: the batch has rewards 1, 1, 0, 0, so that
    ``batch`` gives 1, 1, -1, -1, the groups have no spread and ``batch_std`` gives 0."""
    at = example(one_step([[1, 1], [0, 0]]), double([[0.25, 0.75], [0.5, 0.5]]).log())
    members = torch.tensor([[[0, 0], [2, 3]]])
    found = batch_gradients(at.task, Estimator(baseline="batch", eps=0.0), at.policies, members)
    # (2 * 0.75, ...) / 4, and -(0.5 - 0.5) / 4
    close(found, double([[0.375, -0.375, 0.0, 0.0]]))
    found = batch_gradients(at.task, Estimator(baseline="batch_std"), at.policies, members)
    close(found, torch.zeros(1, 4, dtype=torch.float64))


# -- brute force: every ordered batch, each through the functions that train -----------------------


def brute_force(at, group_size, n_problems, **options):
    """Mean and variance of the step, one ordered batch at a time, by automatic differentiation."""
    task, policies = at.task, at.policies
    probabilities = log_probs(task, policies.old).sum(1).exp()
    baseline = options.pop("baseline")
    aggregation = options.pop("aggregation")
    means, variances = [], []
    for problems in itertools.combinations(range(task.n_problems), n_problems):
        rollouts = [
            (task.problems == p).nonzero()[:, 0].tolist()
            for p in problems
            for _ in range(group_size)
        ]
        steps, chances = [], []
        for batch in itertools.product(*rollouts):
            rows = torch.tensor(batch)
            logits = policies.new.clone().requires_grad_()
            advantages = group_advantages(
                task.returns[rows].view(n_problems, group_size), baseline, 1, 0.01
            )
            loss = policy_loss(
                log_probs(task, logits)[rows],
                log_probs(task, policies.old)[rows],
                advantages.flatten(),
                task.mask[rows],
                aggregation=aggregation,
                max_len=task.max_len,
                **options,
            ).loss
            steps.append(-torch.autograd.grad(loss, logits)[0].flatten())
            chances.append(probabilities[rows].prod())
        step, chance = torch.stack(steps), torch.stack(chances)[:, None]
        means.append((chance * step).sum(0))
        variances.append((chance * (step - means[-1]).square()).sum())
    return torch.stack(means).mean(0), torch.stack(variances).mean().item()


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("baseline", "group_size"), [("group", 3), ("batch_std", 2)])
def test_brute_force(baseline, group_size, aggregation, surrogate, ratio):
    rewards = [{".": 1}, {"a.": 1, "aa": 0.5}]
    at = random_example(sequences(".a", 2, rewards), seed=3)
    options = {"aggregation": aggregation, "surrogate": surrogate, "ratio": ratio}
    n_problems = 2 if baseline in WHOLE_BATCH else 1
    estimator = Estimator(baseline=baseline, ddof=1, eps=0.01, **options)
    found = listed_moments(at, estimator, group_size)
    with double_precision():
        mean, variance = brute_force(at, group_size, n_problems, baseline=baseline, **options)
    close(found.mean, mean)
    assert found.variance == pytest.approx(n_problems * group_size * variance, rel=1e-10)


@pytest.mark.parametrize("baseline", WHOLE_BATCH)
def test_batches_at_once_are_those_one_by_one(baseline):
    at = one_action()
    members = enumerate_batches(at.task, at.policies.old, 2, 2).members[::7]
    estimator = Estimator(baseline=baseline)
    found = batch_gradients(at.task, estimator, at.policies, members)
    jacobian = torch.autograd.functional.jacobian(
        lambda logits: log_probs(at.task, logits)[:, 0], at.policies.new
    ).flatten(1)
    for batch, step in zip(members, found, strict=True):
        advantages = group_advantages(at.task.returns[batch], baseline)
        close(step, (advantages.flatten()[:, None] * jacobian[batch.flatten()]).mean(0))


SUPPORTED = [("process", name) for name in baselines_that("by_step")]
SUPPORTED += [("return_to_go", name) for name in BASELINES]


@pytest.mark.parametrize(("supervision", "baseline"), SUPPORTED)
def test_the_rewards_of_one_step_are_its_outcome(supervision, baseline):
    """With one step a rollout, every supervision is outcome supervision."""
    at = one_action()
    if baseline in WHOLE_BATCH:
        estimator = Estimator(baseline=baseline, supervision=supervision)
        with pytest.raises(ValueError, match=f"supervision='{supervision}' is not enumerated"):
            listed_moments(at, estimator, 2)
        return
    steps, outcome = (
        listed_moments(at, Estimator(baseline=baseline, supervision=name), 4)
        for name in (supervision, "outcome")
    )
    close(steps.mean, outcome.mean)
    assert steps.variance == pytest.approx(outcome.variance)


@pytest.mark.parametrize(("supervision", "baseline"), SUPPORTED)
def test_paid_steps_one_by_one(supervision, baseline):
    """Each group through the functions that train, by automatic differentiation."""
    if baseline in WHOLE_BATCH:
        return
    at = random_example(paid_steps().task, seed=4)
    options = {"ddof": 1, "eps": 0.01, "gamma": 0.6}
    estimator = Estimator(baseline, supervision=supervision, aggregation="token_mean", **options)
    members = enumerate_batches(at.task, at.policies.old, 3).members
    found = batch_gradients(at.task, estimator, at.policies, members)
    with double_precision():
        for group, step in zip(members[:, 0], found, strict=True):
            logits = at.policies.new.clone().requires_grad_()
            mask = at.task.mask[group]
            rewards = at.task.rewards[group][None]
            advantages = BY_STEP[supervision](rewards, mask[None], baseline, **options)[0]
            loss = policy_loss(
                log_probs(at.task, logits)[group],
                log_probs(at.task, at.policies.old)[group],
                advantages,
                mask,
                aggregation="token_mean",
            ).loss
            close(step, -torch.autograd.grad(loss, logits)[0].flatten())


def test_a_batch_baseline_needs_a_batch():
    at = one_action()
    members = enumerate_batches(at.task, at.policies.old, 2).members
    with pytest.raises(ValueError, match="baseline='batch': expected batches of at least 2"):
        batch_gradients(at.task, Estimator(baseline="batch"), at.policies, members)


def test_the_default_type_is_put_back():
    at = one_action()
    members = enumerate_batches(at.task, at.policies.old, 2).members
    with double_precision():
        assert torch.get_default_dtype() == torch.float64
    with pytest.raises(ValueError, match="baseline='x'"):
        batch_gradients(at.task, Estimator(baseline="x"), at.policies, members)
    assert torch.get_default_dtype() == torch.float32


# -- sampled --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "estimator", "size"),
    [
        (one_action(), Estimator(), 4),
        (
            moved(completions(), 0.75),
            Estimator(
                baseline="rloo", aggregation="token_mean", ratio="sequence", kl="k3", kl_coef=0.1
            ),
            4,
        ),
        (moved(completions(), 0.75), Estimator(kl="k1_reward", kl_coef=0.3, clip=UNBOUNDED), 8),
    ],
    ids=["one action", "completions", "penalty"],
)
def test_sampled_groups_agree(at, estimator, size):
    """Mean and variance of steps on sampled groups, within 4 of their standard errors."""
    n = 40_000
    generator = torch.Generator().manual_seed(0)
    task, policies = at.task, at.policies
    probabilities = log_probs(task, policies.old).sum(1).exp()
    of_problem = torch.where(
        task.problems == torch.arange(task.n_problems)[:, None], probabilities, 0.0
    )
    problems = torch.arange(n) % task.n_problems  # each equally often
    drawn = torch.multinomial(of_problem, n * size, replacement=True, generator=generator)
    members = drawn.view(task.n_problems, n, size)[problems, torch.arange(n)][:, None]
    steps = batch_gradients(task, estimator, policies, members)
    batches = enumerate_batches(task, policies.old, size)
    exact = moments(task, estimator, policies, batches)
    means, squares, errors = [], [], []
    for problem in range(task.n_problems):
        of_it = steps[problems == problem]
        means.append(of_it.mean(0))
        away = (of_it - means[-1]).square().sum(1)
        squares.append(away.mean())
        errors.append((of_it.var(0) / len(of_it), away.var() / len(of_it)))
    mean_error = torch.stack([e for e, _ in errors]).sum(0).sqrt() / task.n_problems
    square_error = torch.stack([e for _, e in errors]).sum().sqrt() / task.n_problems
    sampled = torch.stack(means).mean(0)
    assert ((sampled - exact.mean).abs() <= 4 * mean_error + 1e-12).all()
    assert (mean_error < 0.1 * exact.mean.norm()).all(), "or it would show nothing"
    variance = torch.stack(squares).mean()
    assert abs(variance - exact.variance / size) <= 4 * square_error
    assert square_error < 0.05 * variance
