"""Changes that leave the loss and its gradient as they are, for every combination of the options.

Hypothesis draws the shapes, the masks (some rollouts are fully masked) and the splits. Each example
tries all the options.
"""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.optimiser_steps import (
    ALL,
    Batch,
    Options,
    advantages_of,
    batches,
    kl_of_step,
    loss_of,
    make,
    weights_of,
    whole,
)
from support.properties import properties_of
from torch.testing import assert_close

from grpo_bench.grpo import kl
from grpo_bench.grpo.advantages import BASELINES, baselines_that
from grpo_bench.grpo.credit import process_advantages, return_to_go_advantages
from grpo_bench.grpo.objectives import policy_loss


@pytest.fixture(autouse=True, scope="module")
def _double() -> object:
    """Weights are made in the default type: with float64 the only error is its rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def same(actual, expected, o: Options, **tolerance) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, msg=lambda m: f"{o}: {m}", **tolerance)


# The examples are the same every time: random ones would put a ratio on a bound now and then. They
# are not shrunk: they are small, and each is a pass over all the options.
PHASES = (Phase.explicit, Phase.generate)
few = settings(max_examples=6, deadline=None, derandomize=True, phases=PHASES)
many = settings(max_examples=60, deadline=None, derandomize=True)

supervisions = st.one_of(
    st.tuples(st.sampled_from(sorted(BASELINES)), st.sampled_from(["outcome", "return_to_go"])),
    st.tuples(st.sampled_from(baselines_that("by_step")), st.just("process")),
)

# -- the loss -------------------------------------------------------------------------------------


@few
@given(batches(), supervisions, st.randoms(use_true_random=False))
def test_the_order_of_groups_and_members(b, how, random):
    groups, members = b.mask.shape[:2]
    rows = torch.tensor(random.sample(range(groups), groups))[:, None]
    columns = torch.tensor([random.sample(range(members), members) for _ in range(groups)])
    moved = b.map(lambda x: x[rows, columns])
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        same(whole(moved, o, *how), (loss, gradient[rows, columns]), o)


@few
@given(batches(), supervisions, st.integers(1, 3), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_padding_and_its_contents(b, how, extra, poison):
    wider = b.map(lambda x: torch.nn.functional.pad(x, (0, extra))).poisoned(poison)
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        expected = torch.nn.functional.pad(gradient, (0, extra))
        same(whole(wider, o, *how), (loss, expected), o)
        assert (gradient[~b.mask] == 0).all(), o


@few
@given(batches(), supervisions, st.data())
def test_micro_batches_with_the_weights_of_the_step(b, how, data):
    """Gradients accumulate over any split, each part cut to its own longest rollout."""
    n = b.mask.shape[0] * b.mask.shape[1]
    part = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    for o in ALL:
        expected = whole(b, o, *how)
        advantages, weights = advantages_of(b, o.kl, *how), weights_of(b, o)
        leaf = b.logp.detach().requires_grad_()
        loss = 0.0
        for i in part.unique():
            pieces = [
                x.flatten(0, 1)[part == i][None]
                for x in (*b._replace(logp=leaf), advantages, weights)
            ]
            longest = int(pieces[4].sum(dim=2).max())
            *columns, a, w = (x[..., :longest] for x in pieces)
            one = loss_of(Batch(*columns), a, w, o)
            one.backward()
            loss = loss + one.detach()
        same((loss, leaf.grad), expected, o)


@few
@given(batches(), supervisions)
def test_a_fully_masked_rollout_changes_nothing(b, how):
    there = b.mask.flatten(0, 1).any(dim=1)
    kept = b.map(lambda x: x.flatten(0, 1)[there][None])
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        weights = weights_of(kept, o)
        advantages = advantages_of(b, o.kl, *how).flatten(0, 1)[there][None]
        leaf = kept.logp.detach().requires_grad_()
        alone = loss_of(kept._replace(logp=leaf), advantages, weights, o)
        expected = torch.autograd.grad(alone, leaf)[0][0]
        same((loss, gradient.flatten(0, 1)[there]), (alone.detach(), expected), o)


@few
@given(batches(), supervisions, st.integers(1, 2))
def test_fully_masked_members_are_in_no_mean(b, how, extra):
    larger = b.map(lambda x: torch.nn.functional.pad(x, (0, 0, 0, extra))).poisoned(math.nan)
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        same(whole(larger, o, *how), (loss, torch.nn.functional.pad(gradient, (0, 0, 0, extra))), o)


@few
@given(batches(), supervisions, st.integers(2, 3))
def test_a_batch_twice_over_has_the_same_loss(b, how, times):
    """All aggregations are means: of rollouts or of tokens."""
    longer = b.map(lambda x: x.repeat(times, 1, 1))
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        same(whole(longer, o, *how), (loss, gradient.repeat(times, 1, 1) / times), o)


@few
@given(batches(), st.sampled_from(sorted(BASELINES)))
def test_on_policy_the_ratio_is_one_and_the_gradient_is_that_of_reinforce(b, baseline):
    b = b._replace(old_logp=b.logp)
    for o in ALL:
        advantages, weights = advantages_of(b, o.kl, baseline, "outcome"), weights_of(b, o)
        flat = (x.flatten(0, 1) for x in (b.logp, b.old_logp, advantages, b.mask, weights))
        logp, old, a, mask, w = flat
        leaf = logp.clone().requires_grad_()
        out = policy_loss(
            *(leaf, old, a, mask),
            weights=w,
            ratio=o.ratio,
            surrogate=o.surrogate,
            clip=o.clip,
        )
        assert (out.ratio == 1).all() and out.clip_fraction == 0, o
        same([torch.autograd.grad(out.loss, leaf)[0]], [-w * torch.where(mask, a, 0.0)], o)


def test_on_policy_a_loss_of_zero_has_a_gradient():
    b = make(1, torch.ones(2, 4, 3, dtype=torch.bool))
    b = b._replace(old_logp=b.logp, ref_logp=b.logp)
    for o in ALL:
        if o.surrogate == "clip":
            loss, gradient = whole(b, o)
            assert abs(loss) < 1e-12 and gradient.abs().sum() > 0.1, o


@few
@given(batches(), supervisions)
def test_float32_agrees_to_rounding(b, how):
    single = Batch(*[x.float() for x in b[:4]], b.mask)
    for o in ALL:
        loss, gradient = whole(b, o, *how)
        actual = whole(single, o, *how)
        assert actual[1].dtype == torch.float32
        same([x.double() for x in actual], (loss, gradient), o, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_the_loss():
    """By finite differences, where the loss is smooth: away from the bounds."""
    mask = torch.tensor([[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]]], dtype=torch.bool)
    b = make(3, mask, spread=1.5)
    for o in ALL:
        if o.surrogate == "cispo":  # its gradient is on purpose not that of its value
            continue
        log_ratio = torch.where(mask, b.logp - b.old_logp, 0.0).sum(dim=2) / 3
        bounds = torch.tensor([0.8, 1.2, 1.3, 2.0]).log()
        for ratios in (b.logp - b.old_logp, log_ratio):
            assert ((ratios[..., None] - bounds).abs() > 1e-3).all()
        advantages, weights = advantages_of(b, o.kl, "group", "outcome"), weights_of(b, o)

        def of_logp(x, o=o, a=advantages, w=weights):
            return loss_of(b._replace(logp=x), a, w, o)

        assert torch.autograd.gradcheck(of_logp, b.logp.detach().requires_grad_()), o


@few
@given(batches())
def test_at_the_reference_every_kl_is_exactly_zero(b):
    b = b._replace(ref_logp=b.logp)
    for form in kl.FORMS:
        assert (kl_of_step(form, b) == 0).all(), form


# -- the advantages of single actions. Those of rollouts are in test_advantages.py ----------------


@many
@given(batches(), st.integers(-50, 50), st.sampled_from([0.25, 2.0, 16.0]))
def test_shift_and_scale_of_the_step_rewards(b, shift, scale):
    for baseline in baselines_that("by_step"):
        found = properties_of(baseline)
        before = process_advantages(b.rewards, b.mask, baseline, eps=0.0)
        after = process_advantages(b.rewards * scale, b.mask, baseline, eps=0.0)
        assert_close(after, before * (1.0 if "ignores the scale" in found else scale))
        if "ignores a shift" in found:
            assert_close(process_advantages(b.rewards + shift, b.mask, baseline, eps=0.0), before)


@many
@given(batches(), st.sampled_from([1.0, 0.5]), st.sampled_from([0.25, 2.0, 16.0]))
def test_returns_to_go_sum_to_zero_at_each_step_and_scale(b, gamma, scale):
    for baseline in BASELINES:
        found = properties_of(baseline)
        before = return_to_go_advantages(b.rewards, b.mask, baseline, 0, 0.0, gamma)
        after = return_to_go_advantages(b.rewards * scale, b.mask, baseline, 0, 0.0, gamma)
        assert_close(after, before * (1.0 if "ignores the scale" in found else scale))
        if "sums to 0 in a group" in found:
            assert_close(before.sum(dim=1), torch.zeros(before[:, 0].shape), rtol=0, atol=1e-9)


@many
@given(batches(), st.integers(-50, 50))
def test_a_reward_before_a_step_changes_nothing_after_it(b, extra):
    """What process supervision does not have: its mean is over all steps."""
    more = b.rewards.clone()
    more[..., 0] += extra * torch.arange(b.mask.shape[1])  # another one for each member
    for baseline in BASELINES:
        before, after = (
            return_to_go_advantages(rewards, b.mask, baseline)[..., 1:]
            for rewards in (b.rewards, more)
        )
        assert_close(before, after, rtol=0, atol=0)
