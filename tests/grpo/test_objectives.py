"""The policy loss by hand: surrogates, ratios, aggregations, and what is logged of it.

Its invariances are in test_invariances.py.
"""

import math

import pytest
import torch

from grpo_bench.grpo.objectives import (
    AGGREGATIONS,
    RATIOS,
    SURROGATES,
    Clip,
    aggregation_weights,
    importance_ratio,
    policy_loss,
)

NAN = math.nan
SYMMETRIC, HIGHER, DUAL = Clip(0.2, 0.2), Clip(0.2, 0.3), Clip(0.2, 0.3, 3.0)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def one_token(surrogate, rho, advantage, clip, logp=-0.7):
    """(surrogate, its slope by log pi, whether it is bounded) of one token, through policy_loss."""
    now = double([[logp]]).requires_grad_()
    old = double([[logp - math.log(rho)]])
    result = policy_loss(
        now, old, double([advantage]), torch.ones(1, 1).bool(), surrogate=surrogate, clip=clip
    )
    slope = torch.autograd.grad(result.loss, now)[0].item()
    assert result.ratio.item() == pytest.approx(rho)
    return -result.loss.item(), -slope, bool(result.clip_fraction.item())


# -- clip: d/dlogp of rho A is rho A; bounds 0.8 and 1.2 or 1.3, dual 3 ---------------------------


@pytest.mark.parametrize(
    ("clip", "rho", "advantage", "value", "slope", "bounded"),
    [
        (HIGHER, 1.0, 2.0, 2.0, 2.0, False),
        (HIGHER, 1.25, 2.0, 2.5, 2.5, False),
        (SYMMETRIC, 1.25, 2.0, 1.2 * 2, 0.0, True),  # what clip-higher lets through
        (HIGHER, 1.5, 2.0, 1.3 * 2, 0.0, True),  # already far enough up
        (DUAL, 5.0, 2.0, 1.3 * 2, 0.0, True),  # dual is for bad actions only
        (HIGHER, 0.5, 2.0, 1.0, 1.0, False),  # below the bounds, but a good action still learns
        (DUAL, 0.5, 2.0, 1.0, 1.0, False),
        (HIGHER, 0.5, -2.0, 0.8 * -2, 0.0, True),  # already far enough down
        (DUAL, 0.5, -2.0, 0.8 * -2, 0.0, True),
        (HIGHER, 0.9, -2.0, -1.8, -1.8, False),
        (DUAL, 0.9, -2.0, -1.8, -1.8, False),
        (HIGHER, 1.5, -2.0, -3.0, -3.0, False),  # above the bounds, but a bad action still learns
        (DUAL, 2.9, -2.0, -5.8, -5.8, False),  # as far as dual lets it
        (DUAL, 3.1, -2.0, 3 * -2, 0.0, True),
        (HIGHER, 3.1, -2.0, -6.2, -6.2, False),
        (HIGHER, 1.5, 0.0, 0.0, 0.0, False),
        (DUAL, 5.0, 0.0, 0.0, 0.0, False),
        (Clip(low=1.0), 0.01, -2.0, -0.02, -0.02, False),  # no lower bound
    ],
)
def test_clipped_surrogate(clip, rho, advantage, value, slope, bounded):
    actual = one_token("clip", rho, advantage, clip)
    assert actual == (pytest.approx(value), pytest.approx(slope), bounded)


def test_the_default_is_ppos_clip():
    assert Clip() == (0.2, 0.2, None)
    logp, old = double([[1.5, 0.5]]).log(), torch.zeros(1, 2, dtype=torch.float64)
    for advantage, value in ((1.0, 1.2 + 0.5), (-1.0, -1.5 - 0.8)):
        loss = policy_loss(logp, old, double([advantage]), torch.ones(1, 2).bool()).loss
        assert loss.item() == pytest.approx(-value / 2)


# -- cispo: sg(clip(rho)) A log pi, whose slope by log pi is clip(rho) A everywhere ---------------


@pytest.mark.parametrize(
    ("rho", "advantage", "weight", "bounded"),
    [
        (1.0, 2.0, 1.0, False),
        (1.25, 2.0, 1.25, False),
        (1.5, 2.0, 1.3, True),  # bounded, but it still learns
        (1.5, -2.0, 1.3, False),  # pushed back, not on
        (0.5, 2.0, 0.8, False),
        (0.5, -2.0, 0.8, True),
        (0.9, -2.0, 0.9, False),
        (1.5, 0.0, 1.3, False),
    ],
)
def test_cispo_surrogate(rho, advantage, weight, bounded):
    for logp in (-0.7, -3.0):
        actual = one_token("cispo", rho, advantage, HIGHER, logp)
        value, slope = weight * advantage * logp, weight * advantage
        assert actual == (pytest.approx(value), pytest.approx(slope), bounded)


# -- the whole loss -------------------------------------------------------------------------------
# rollout 0: ratios 2 and 0.5 with A = 1: clip min(2, 1.2) = 1.2 and min(0.5, 0.8) = 0.5
# rollout 1: ratio 0.5 with A = -2:       clip min(-1, -1.6) = -1.6; its second token is padding
# cispo with log pi -1 everywhere: 1.2 * 1 * -1, 0.8 * 1 * -1, 0.8 * -2 * -1
LOGP = double([[-1.0, -1], [-1, 9]])
OLD = LOGP - double([[2.0, 0.5], [0.5, 9]]).log()
ADVANTAGES = double([1.0, -2.0])
MASK = torch.tensor([[True, True], [True, False]])


@pytest.mark.parametrize(
    ("surrogate", "tokens"), [("clip", (1.2, 0.5, -1.6)), ("cispo", (-1.2, -0.8, 1.6))]
)
def test_loss_by_hand(surrogate, tokens):
    a, b, c = tokens
    expected = {
        "sequence_mean": -((a + b) / 2 + c / 1) / 2,
        "token_mean": -(a + b + c) / 3,
        "constant_length": -(a + b + c) / (2 * 4),
    }
    assert set(expected) == set(AGGREGATIONS)
    options = {"surrogate": surrogate, "max_len": 4}
    for name, value in expected.items():
        result = policy_loss(LOGP, OLD, ADVANTAGES, MASK, aggregation=name, **options)
        assert result.loss.item() == pytest.approx(value, rel=1e-6)
        assert result.clip_fraction.item() == pytest.approx(2 / 3)  # 2 up with A > 0, 0.5 down
        assert result.ratio.tolist() == [[pytest.approx(2), 0.5], [0.5, 1.0]]
        weights = aggregation_weights(MASK, name, 4)
        given = policy_loss(LOGP, OLD, ADVANTAGES, MASK, weights=weights, surrogate=surrogate)
        assert given.loss == result.loss


def test_the_default_is_the_papers_objective():
    paper = policy_loss(LOGP, OLD, ADVANTAGES, MASK).loss
    named = policy_loss(
        LOGP,
        OLD,
        ADVANTAGES,
        MASK,
        aggregation="sequence_mean",
        ratio="token",
        surrogate="clip",
        clip=SYMMETRIC,
    )
    assert paper == named.loss


def test_nothing_flows_to_the_old_log_probabilities_or_back_from_a_weight():
    """CISPO's weight is a number: the slope is that of log pi alone, also through a sequence."""
    logp = LOGP.clone().requires_grad_()
    for ratio in RATIOS:
        result = policy_loss(logp, OLD, ADVANTAGES, MASK, ratio=ratio, surrogate="cispo")
        weight = importance_ratio(LOGP, OLD, MASK, ratio).clamp(0.8, 1.2)
        expected = -(aggregation_weights(MASK) * weight * ADVANTAGES[:, None])
        gradient = torch.autograd.grad(result.loss, logp)[0]
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


def test_advantages_may_differ_by_token():
    mask = torch.ones(2, 2).bool()
    advantages = double([[1.0, -1], [0.5, 3]])
    result = policy_loss(LOGP.clamp(max=-1), OLD.clamp(max=-1), advantages, mask)
    ratios = (LOGP.clamp(max=-1) - OLD.clamp(max=-1)).exp()
    tokens = [
        min(rho * a, min(max(rho, 0.8), 1.2) * a)
        for rho, a in zip(ratios.flatten().tolist(), advantages.flatten().tolist(), strict=True)
    ]
    assert result.loss.item() == pytest.approx(-sum(tokens) / 4)


# -- ratios ---------------------------------------------------------------------------------------


def test_sequence_ratio_is_the_geometric_mean():
    logp = double([[2.0, 0.5, 3.0], [4.0, 7.0, 7.0], [NAN, 5.0, 5.0]]).log()
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    ratio = importance_ratio(logp, torch.zeros_like(logp), mask, "sequence")
    third = (2 * 0.5 * 3) ** (1 / 3)
    torch.testing.assert_close(ratio, double([[third] * 3, [4.0, 1, 1], [1, 1, 1]]))
    ratio = importance_ratio(logp, torch.zeros_like(logp), mask, "token")
    torch.testing.assert_close(ratio, double([[2, 0.5, 3], [4, 1, 1], [1, 1, 1]]))


def test_sequence_ratio_is_clipped_whole():
    """Ratios 1.6 and 0.9: the mean is 1.2, inside; the first token alone would be bounded."""
    logp = double([[1.6, 0.9]]).log().requires_grad_()
    mask, options = torch.ones(1, 2).bool(), {"ratio": "sequence", "clip": HIGHER}
    result = policy_loss(logp, torch.zeros(1, 2).double(), double([2.0]), mask, **options)
    assert result.loss.item() == pytest.approx(-1.2 * 2) and result.clip_fraction == 0
    # d(1.2 * 2)/dlogp_t = 2.4 / length
    gradient = torch.autograd.grad(result.loss, logp)[0]
    torch.testing.assert_close(gradient, double([[-1.2, -1.2]]))


def test_under_a_sequence_ratio_advantages_of_tokens_count_by_their_mean():
    logp, mask = double([[-1.0, -2, -3]]).requires_grad_(), torch.tensor([[True, True, False]])
    advantages = double([[5.0, 1.0, NAN]])
    loss = policy_loss(logp, logp.detach(), advantages, mask, ratio="sequence").loss
    gradient = torch.autograd.grad(loss, logp)[0]
    torch.testing.assert_close(gradient, double([[-3 / 2, -3 / 2, 0]]))


# -- denominators ---------------------------------------------------------------------------------


def test_aggregation_weights_by_hand():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    third = 1 / (2 * 3)  # two rollouts count: the third has no token
    expected = {
        "sequence_mean": [[third, third, third, 0], [1 / 2, 0, 0, 0], [0] * 4],
        "token_mean": [[1 / 4, 1 / 4, 1 / 4, 0], [1 / 4, 0, 0, 0], [0] * 4],
        "constant_length": [[1 / 20, 1 / 20, 1 / 20, 0], [1 / 20, 0, 0, 0], [0] * 4],
    }
    assert set(expected) == set(AGGREGATIONS)
    steps = torch.stack([mask, mask[[1, 2, 2]]])  # (2, 3, 4): two steps, each by itself
    alone = {"sequence_mean": 1, "token_mean": 1, "constant_length": 1 / 10}
    for name, weights in expected.items():
        torch.testing.assert_close(aggregation_weights(mask, name, 10), torch.tensor(weights))
        second = torch.zeros(3, 4)
        second[0, 0] = alone[name]
        both = aggregation_weights(steps, name, 10)
        torch.testing.assert_close(both, torch.stack([torch.tensor(weights), second]))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_on_one_step_episodes_all_aggregations_are_one(aggregation):
    mask = torch.tensor([[True], [False], [True], [True]])
    expected = torch.tensor([[1 / 3], [0], [1 / 3], [1 / 3]])
    torch.testing.assert_close(aggregation_weights(mask, aggregation, 1), expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_without_any_token_loss_and_gradient_are_zero(aggregation, surrogate):
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert (aggregation_weights(mask, aggregation, 3) == 0).all()
    logp = torch.full((2, 3), NAN, requires_grad=True)
    options = {"aggregation": aggregation, "max_len": 3, "surrogate": surrogate}
    result = policy_loss(logp, logp.detach(), torch.full((2,), NAN), mask, **options)
    assert result.loss == 0 and result.clip_fraction == 0 and (result.ratio == 1).all()
    assert (torch.autograd.grad(result.loss, logp)[0] == 0).all()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_clip_fraction_counts_only_tokens_inside_the_mask(surrogate):
    logp = double([[2.0, 2, 2, 2]]).log()
    mask = torch.tensor([[True, True, False, False]])
    per_token = double([[1.0, -1, 1, 1]])
    result = policy_loss(logp, torch.zeros_like(logp), per_token, mask, surrogate=surrogate)
    assert result.clip_fraction == 0.5


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": "word"}, "ratio='word': expected one of token, sequence"),
        ({"surrogate": "ppo"}, "surrogate='ppo': expected one of clip, cispo"),
        ({"aggregation": "sum"}, "aggregation='sum': expected one of sequence_mean"),
        ({"aggregation": "constant_length"}, "max_len=None.*at least 1"),
        ({"aggregation": "constant_length", "max_len": 0}, "max_len=0"),
    ],
)
def test_errors_name_the_value(options, message):
    with pytest.raises(ValueError, match=message):
        policy_loss(LOGP, OLD, ADVANTAGES, MASK, **options)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_what_is_bounded_has_no_gradient_however_far_the_policy_has_moved(surrogate, ratio, gap):
    """exp(100) is infinite in float32, and 0 times that is NaN."""
    logp = torch.full((3, 1), -1.0).requires_grad_()
    advantages = torch.tensor([0.0, 1.0, -1.0])
    clip = Clip(0.2, 0.3, dual=3.0)
    result = policy_loss(
        logp, logp.detach() - gap, advantages, torch.ones(3, 1, dtype=torch.bool),
        ratio=ratio, surrogate=surrogate, clip=clip,
    )  # fmt: skip
    gradient = torch.autograd.grad(result.loss, logp)[0].flatten()
    assert torch.isfinite(result.loss) and torch.isfinite(gradient).all()
    assert gradient[0] == 0
    if surrogate == "clip" and gap > 0:  # 1.3 for the good action, 3 times -1 for the bad one
        assert result.loss.item() == pytest.approx((-0.0 - 1.3 + 3.0) / 3)
        assert gradient.tolist() == [0.0, 0.0, 0.0]
