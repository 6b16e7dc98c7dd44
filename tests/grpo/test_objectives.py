"""The clipped surrogate, its gradient and its denominators, by hand and by invariance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_bench.grpo.objectives import (
    AGGREGATIONS,
    RATIO_LEVELS,
    aggregation_weights,
    clipped_surrogate,
    importance_ratio,
    policy_loss,
)

NAN = math.nan


def rollouts(seed, n=5, length=6, full=False):
    """logp, old_logp (n, length), advantages (n,), mask (n, length) with ragged ends."""
    rng = np.random.default_rng(seed)
    old = torch.from_numpy(rng.normal(-1, 0.5, (n, length)))
    logp = old + torch.from_numpy(rng.normal(0, 0.3, (n, length)))
    lengths = np.full(n, length) if full else rng.integers(1, length + 1, n)
    mask = torch.from_numpy(np.arange(length) < lengths[:, None])
    return logp.requires_grad_(), old, torch.from_numpy(rng.normal(0, 1, n)), mask


def gradient(logp, old, advantages, mask, **options):
    """Loss and its gradient by log-probability."""
    options = {"max_len": 9} | options if options.get("aggregation") in LIMITED else options
    loss = policy_loss(logp, old, advantages, mask, **options).loss
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


LIMITED = ("constant_length",)
every_option = [
    pytest.mark.parametrize("aggregation", AGGREGATIONS),
    pytest.mark.parametrize("ratio", RATIO_LEVELS),
]


def with_every_option(test):
    for mark in every_option:
        test = mark(test)
    return test


# -- clip: value, gradient and fraction, with bounds 0.8 and 1.3 ----------------------------------


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "slope", "clipped"),
    [
        (1.0, 2.0, 2.0, 2.0, False),
        (1.2, 2.0, 2.4, 2.0, False),
        (1.5, 2.0, 2.6, 0.0, True),  # 1.3 * 2: already far enough up
        (0.5, 2.0, 1.0, 2.0, False),  # below the bounds, but a good action still learns
        (0.5, -2.0, -1.6, 0.0, True),  # 0.8 * -2: already far enough down
        (0.9, -2.0, -1.8, -2.0, False),
        (1.5, -2.0, -3.0, -2.0, False),  # above the bounds, but a bad action still learns
        (1.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_clipped_surrogate(rho, advantage, value, slope, clipped):
    ratio = torch.tensor([rho], dtype=torch.float64, requires_grad=True)
    surrogate, active = clipped_surrogate(ratio, torch.tensor([advantage]).double(), 0.2, 0.3)
    assert surrogate.item() == pytest.approx(value)
    assert torch.autograd.grad(surrogate.sum(), ratio)[0].item() == pytest.approx(slope)
    assert active.item() is clipped


def test_loss_by_hand():
    # rollout 0: ratios 2 and 0.5 with A = 1: min(2, 1.2) = 1.2 and min(0.5, 0.8) = 0.5
    # rollout 1: ratio 0.5 with A = -2:       min(-1, -1.6) = -1.6
    logp = torch.tensor([[2.0, 0.5], [0.5, 9]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False]])
    advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected = {
        "sequence_mean": -((1.2 + 0.5) / 2 + -1.6 / 1) / 2,
        "token_mean": -(1.2 + 0.5 - 1.6) / 3,
        "constant_length": -(1.2 + 0.5 - 1.6) / (2 * 4),
    }
    for aggregation, value in expected.items():
        result = policy_loss(
            logp,
            torch.zeros(2, 2, dtype=torch.float64),
            advantages,
            mask,
            aggregation=aggregation,
            max_len=4,
        )
        assert result.loss.item() == pytest.approx(value, rel=1e-6)
        assert result.clip_fraction.item() == pytest.approx(2 / 3)
        assert result.ratio.tolist() == [[2.0, 0.5], [0.5, 1.0]]


def test_advantages_may_differ_by_token():
    logp, old, _, mask = rollouts(0, n=1, length=2, full=True)
    per_token = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    parts = [policy_loss(logp[:, [t]], old[:, [t]], per_token[:, t], mask[:, [t]]) for t in (0, 1)]
    whole = policy_loss(logp, old, per_token, mask).loss
    assert whole.item() == pytest.approx((parts[0].loss + parts[1].loss).item() / 2)


def test_sequence_ratio_is_the_geometric_mean():
    logp = torch.tensor([[2.0, 0.5, 3.0], [4.0, 7.0, 7.0]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ratio = importance_ratio(logp, torch.zeros_like(logp), mask, "sequence")
    third = 3 ** (1 / 3)
    expected = torch.tensor([[third] * 3, [4.0, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected)


def test_it_is_the_loss_of_sb3s_ppo():
    """Stable-Baselines3's lines, written out, for equally long rollouts."""
    logp, old, advantages, mask = rollouts(1, full=True)
    each = advantages[:, None].expand_as(logp)
    ratio = torch.exp(logp - old)
    policy_loss_1 = each * ratio
    policy_loss_2 = each * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
    theirs = -torch.min(policy_loss_1, policy_loss_2).mean()
    expected = torch.autograd.grad(theirs, logp)[0]
    for aggregation in AGGREGATIONS:
        loss, ours = gradient(logp, old, advantages, mask, aggregation=aggregation, max_len=6)
        assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-8)


@with_every_option
def test_on_policy_the_ratio_is_one_and_the_gradient_is_not_zero(aggregation, ratio):
    logp, _, _, mask = rollouts(2, n=4)
    advantages = torch.tensor([1.0, -1, 2, -2], dtype=torch.float64)
    options = {"aggregation": aggregation, "ratio": ratio, "max_len": 9}
    result = policy_loss(logp, logp.detach(), advantages, mask, **options)
    assert (result.ratio == 1).all() and result.clip_fraction == 0
    if aggregation == "sequence_mean":
        assert result.loss.item() == pytest.approx(0, abs=1e-7)  # advantages sum to 0
    grad = torch.autograd.grad(result.loss, logp)[0]
    weights = aggregation_weights(mask, aggregation, 9)
    torch.testing.assert_close(grad, -(weights * advantages[:, None]), rtol=1e-6, atol=1e-9)
    assert grad.abs().sum() > 0.1


# -- denominators ---------------------------------------------------------------------------------


def test_aggregation_weights_by_hand():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    third = 1 / (2 * 3)  # two rollouts count: the third has no token
    expected = {
        "sequence_mean": [[third, third, third, 0], [1 / 2, 0, 0, 0], [0] * 4],
        "token_mean": [[1 / 4, 1 / 4, 1 / 4, 0], [1 / 4, 0, 0, 0], [0] * 4],
        "constant_length": [[1 / 20, 1 / 20, 1 / 20, 0], [1 / 20, 0, 0, 0], [0] * 4],
    }
    for aggregation, weights in expected.items():
        torch.testing.assert_close(
            aggregation_weights(mask, aggregation, 10), torch.tensor(weights)
        )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_to_train_on_weighs_nothing(aggregation):
    weights = aggregation_weights(torch.zeros(2, 3, dtype=torch.bool), aggregation, 3)
    assert (weights == 0).all()


seeds = st.integers(0, 10_000)
quick = settings(max_examples=15, deadline=None)


@with_every_option
@quick
@given(seed=seeds)
def test_micro_batches_with_the_steps_weights_add_up(aggregation, ratio, seed):
    logp, old, advantages, mask = rollouts(seed)
    weights = aggregation_weights(mask, aggregation, 9)
    whole = gradient(logp, old, advantages, mask, aggregation=aggregation, ratio=ratio)
    parts = [
        policy_loss(logp[i], old[i], advantages[i], mask[i], weights=weights[i], ratio=ratio).loss
        for i in torch.arange(5).split([2, 1, 2])
    ]
    torch.testing.assert_close(sum(parts), whole[0])
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logp)[0], whole[1])


@with_every_option
@quick
@given(seed=seeds, extra=st.integers(1, 4))
def test_padding_and_order_change_nothing(aggregation, ratio, seed, extra):
    logp, old, advantages, mask = rollouts(seed)
    options = {"aggregation": aggregation, "ratio": ratio}
    loss, grad = gradient(logp, old, advantages, mask, **options)

    def pad(x, value):
        return torch.nn.functional.pad(x.detach(), (0, extra), value=value)

    padded = [pad(logp, -3.0).requires_grad_(), pad(old, 5.0), advantages, pad(mask, False)]
    padded_loss, padded_grad = gradient(*padded, **options)
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_grad[:, :6], grad)
    assert (padded_grad[:, 6:] == 0).all()

    order = torch.from_numpy(np.random.default_rng(seed).permutation(5))
    moved = [x.detach()[order] for x in (logp, old, advantages, mask)]
    moved_loss, moved_grad = gradient(moved[0].requires_grad_(), *moved[1:], **options)
    torch.testing.assert_close(moved_loss, loss)
    torch.testing.assert_close(moved_grad, grad[order])


@with_every_option
@pytest.mark.parametrize("poison", [NAN, math.inf, -math.inf])
def test_what_is_outside_the_mask_cannot_poison(aggregation, ratio, poison):
    logp, old, advantages, mask = rollouts(3)
    mask[4] = False  # a rollout that was dropped
    options = {"aggregation": aggregation, "ratio": ratio}
    loss, grad = gradient(logp, old, advantages, mask, **options)
    advantages = torch.where(mask, advantages[:, None], poison)
    logp = logp.detach().masked_fill(~mask, poison).requires_grad_()
    for other in (old.masked_fill(~mask, poison), old.masked_fill(~mask, -poison)):
        dirty_loss, dirty_grad = gradient(logp, other, advantages, mask, **options)
        torch.testing.assert_close(dirty_loss, loss)
        torch.testing.assert_close(dirty_grad, grad)


def test_clip_fraction_counts_only_tokens_inside_the_mask():
    logp = torch.tensor([[2.0, 2, 2, 2]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True, False, False]])
    per_token = torch.tensor([[1.0, -1, 1, 1]], dtype=torch.float64)
    assert policy_loss(logp, torch.zeros_like(logp), per_token, mask).clip_fraction == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": "word"}, "ratio='word': expected one of token, sequence"),
        ({"aggregation": "sum"}, "aggregation='sum': expected one of sequence_mean"),
        ({"aggregation": "constant_length"}, "max_len=None.*at least 1"),
        ({"aggregation": "constant_length", "max_len": 0}, "max_len=0"),
    ],
)
def test_errors_name_the_value(options, message):
    with pytest.raises(ValueError, match=message):
        policy_loss(*rollouts(0), **options)
