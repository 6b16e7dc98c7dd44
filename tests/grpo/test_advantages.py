"""Advantages by hand, against a second implementation, and the mask of dropped rollouts.

Their invariances are in test_invariances.py.
"""

import math
from statistics import fmean, pstdev, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_bench.grpo.advantages import (
    BASELINES,
    baselines_that,
    group_advantages,
    group_std,
    process_advantages,
    return_penalty,
    without_spread,
)

NAN, INF = math.nan, math.inf


def advantages(rewards, baseline="group", **options):
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), baseline, **options)


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


# rewards 1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3, squares 4 + 1 + 0 + 9 = 14
@pytest.mark.parametrize(("ddof", "std"), [(0, math.sqrt(14 / 4)), (1, math.sqrt(14 / 3))])
def test_group(ddof, std):
    expected = [[d / (std + 0.5) for d in (-2, -1, 0, 3)]]
    close(advantages([[1.0, 2, 3, 6]], ddof=ddof, eps=0.5), expected)


def test_the_defaults_are_the_papers_group_with_1e_4():
    rewards = torch.tensor([[1.0, 2, 3, 6]], dtype=torch.float64)
    expected = [d / (math.sqrt(14 / 4) + 1e-4) for d in (-2, -1, 0, 3)]
    close(group_advantages(rewards), [expected])
    steps = process_advantages(rewards[..., None], torch.ones(1, 4, 1).bool())
    close(steps[..., 0], [expected])


def test_group_mean_divides_by_nothing():
    close(advantages([[1.0, 2, 3, 6]], "group_mean", eps=0.5), [[-2.0, -1, 0, 3]])


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others():
    others = [(2 + 3 + 6) / 3, (1 + 3 + 6) / 3, (1 + 2 + 6) / 3, (1 + 2 + 3) / 3]
    expected = [[r - o for r, o in zip((1, 2, 3, 6), others, strict=True)]]
    close(advantages([[1.0, 2, 3, 6]], "rloo"), expected)


# groups (0, 2) and (4, 6): batch mean 3, deviations -3, -1, 1, 3, squares 9 + 1 + 1 + 9 = 20
@pytest.mark.parametrize(("ddof", "std"), [(0, math.sqrt(20 / 4)), (1, math.sqrt(20 / 3))])
def test_batch_baselines(ddof, std):
    rewards = [[0.0, 2], [4, 6]]
    close(
        advantages(rewards, "batch", ddof=ddof, eps=0.1),
        [[-3 / (std + 0.1), -1 / (std + 0.1)], [1 / (std + 0.1), 3 / (std + 0.1)]],
    )
    close(
        advantages(rewards, "batch_std", ddof=ddof, eps=0.1),
        [[-1 / (std + 0.1), 1 / (std + 0.1)]] * 2,
    )


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        # ranks 2, 1, 3, 4, minus their mean 2.5, over (G - 1) / 2 = 1.5
        ([2.0, -1, 3, 90], [-1 / 3, -1, 1 / 3, 1]),
        # 5 and 5 share the ranks 2 and 3
        ([1.0, 5, 5, 8], [-1, 0, 0, 1]),
        # three 0 share 1, 2, 3: rank 2; two 1 share 4, 5: rank 4.5; the mean is 3, half is 2
        ([0.0, 1, 0, 1, 0], [-1 / 2, 3 / 4, -1 / 2, 3 / 4, -1 / 2]),
        # a three-way tie at the top: ranks 1 and 3, 3, 3, mean 2.5
        ([0.0, 7, 7, 7], [-1, 1 / 3, 1 / 3, 1 / 3]),
        # an invalid rollout has no rank: 4 and 6 are the only two
        ([NAN, 4, INF, 6], [0, -1, 0, 1]),
        ([4.0, NAN, 4, 6], [-1 / 2, 0, -1 / 2, 1]),
    ],
)
def test_ranks(rewards, expected):
    valid = torch.tensor([rewards]).isfinite()
    close(advantages([rewards], "rank", valid=valid), [[float(a) for a in expected]])


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.integers(-9, 9), st.integers(1, 9))
def test_ranks_of_two_values_are_leave_one_out_over_their_distance(high, low, distance):
    rewards = [[low + distance * float(h) for h in high]]
    torch.testing.assert_close(advantages(rewards, "rank"), advantages(rewards, "rloo") / distance)


def test_no_baseline_is_the_reward():
    rewards = [[3.0, NAN, -2], [1, 1, 1]]  # a group without spread as well
    valid = torch.tensor(rewards).isfinite()
    close(advantages(rewards, "none", valid=valid), [[3.0, 0, -2], [1, 1, 1]])


# -- a second implementation, on lists ------------------------------------------------------------


def scaled(values, mean, deviation, eps):
    flat = min(values) == max(values)
    return [0.0 if flat else (v - mean) / (deviation + eps) for v in values]


def spread(values, ddof):
    if len(values) < 2:
        return 0.0
    return stdev(values) if ddof else pstdev(values)


def rank(values, v):
    return 1 + sum(w < v for w in values) + (values.count(v) - 1) / 2


REFERENCE = {  # (the valid rewards of one group, those of the batch, ddof, eps) -> advantages
    "group": lambda g, batch, ddof, eps: scaled(g, fmean(g), spread(g, ddof), eps),
    "group_mean": lambda g, batch, ddof, eps: [v - fmean(g) for v in g],
    "rloo": lambda g, batch, ddof, eps: [
        v - (sum(g) - v) / (len(g) - 1) if len(g) > 1 else 0.0 for v in g
    ],
    "batch": lambda g, batch, ddof, eps: [
        (v - fmean(batch)) / (spread(batch, ddof) + eps) for v in g
    ],
    "batch_std": lambda g, batch, ddof, eps: scaled(g, fmean(g), spread(batch, ddof), eps),
    "rank": lambda g, batch, ddof, eps: [
        (2 * rank(g, v) - len(g) - 1) / max(len(g) - 1, 1) for v in g
    ],
    "none": lambda g, batch, ddof, eps: g,
}


@pytest.mark.parametrize("baseline", BASELINES)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), ddof=st.integers(0, 1), eps=st.sampled_from([1e-9, 1e-4, 0.5]))
def test_a_second_implementation_agrees(baseline, data, ddof, eps):
    """Any number of valid members in each group, including none."""
    size = data.draw(st.integers(2, 5))
    reward = st.sampled_from([NAN, -INF, -3.0, -0.5, 0.0, 0.0, 1.0, 1.0, 2.5])
    rewards = data.draw(st.lists(st.lists(reward, min_size=size, max_size=size), min_size=1))
    valid = torch.tensor(rewards).isfinite()
    actual = advantages(rewards, baseline, ddof=ddof, eps=eps, valid=valid)
    batch = [r for group in rewards for r in group if math.isfinite(r)]
    for row, group in zip(actual.tolist(), rewards, strict=True):
        inside = [r for r in group if math.isfinite(r)]
        expected = iter(REFERENCE[baseline](inside, batch, ddof, eps) if inside else [])
        expected = [next(expected) if math.isfinite(r) else 0.0 for r in group]
        assert row == pytest.approx(expected, abs=1e-9)


# -- no spread ------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("value", [0.1, -0.5, 1.0, 1e6])
@pytest.mark.parametrize("baseline", sorted(set(BASELINES) - {"none"}))
def test_without_spread_it_is_exactly_zero(baseline, value, eps):
    rewards = torch.full((3, 7), value, dtype=torch.float64)  # the mean of seven 0.1 is not 0.1
    one_less = torch.ones(3, 7, dtype=torch.bool)
    one_less[:, 6] = False
    for ddof in (0, 1):
        assert (group_advantages(rewards, baseline, ddof, eps) == 0).all()
        assert (group_advantages(rewards, baseline, ddof, eps, one_less) == 0).all()
    rewards[0] = torch.arange(7.0)  # flat groups among others
    flat = group_advantages(rewards, baseline, 0, eps)[1:] == 0
    assert flat.all() if BASELINES[baseline].needs_spread else not flat.any()


@pytest.mark.parametrize("baseline", sorted(set(BASELINES) - {"none"}))
def test_a_group_with_one_valid_rollout_or_none_teaches_nothing(baseline):
    rewards = torch.tensor([[1.0, NAN, NAN], [NAN, NAN, NAN]])
    valid = torch.isfinite(rewards)
    for ddof in (0, 1):
        assert (group_advantages(rewards, baseline, ddof, valid=valid) == 0).all()
    assert without_spread(rewards, valid).all()


def test_without_spread():
    rewards = torch.tensor([[1.0, 1, 1], [1, 1, 0], [0.5, 0.5, NAN], [NAN, 2, 3]])
    valid = torch.isfinite(rewards)
    assert without_spread(rewards, valid).tolist() == [True, False, True, False]
    assert without_spread(rewards[:2]).tolist() == [True, False]


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_deviation_is_of_the_valid_rollouts(ddof):
    rewards = torch.tensor([[1.0, NAN, 2, 6], [0, 3, 5, INF]], dtype=torch.float64)
    valid = torch.isfinite(rewards)
    expected = rewards[valid].view(2, 3).std(1, correction=ddof, keepdim=True)
    torch.testing.assert_close(group_std(rewards, valid, ddof), expected)
    few = torch.tensor([[True, False, False, False], [False, False, False, False]])
    assert group_std(rewards, few, ddof).tolist() == [[0], [0]]


def test_the_deviation_is_of_the_population_by_default():
    rewards = torch.tensor([[1.0, 2, 3, 6]])
    assert group_std(rewards, torch.ones(1, 4).bool()).item() == pytest.approx(math.sqrt(14 / 4))


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_properties_of_baselines_hold(baseline):
    rewards = [[0.0, 2, 5], [4, 4, 4]]
    by_ddof = [advantages(rewards, baseline, ddof=ddof) for ddof in (0, 1)]
    assert (by_ddof[0] != by_ddof[1]).any() == BASELINES[baseline].divides
    assert (by_ddof[0][1] == 0).all() == BASELINES[baseline].needs_spread


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        ([[1.0]], {}, r"shape \(1, 1\).*at least 2"),
        ([1.0, 2.0], {}, r"shape \(2,\)"),
        ([[0.0, 1]], {"baseline": "median"}, "'median'.*group, group_mean, rloo"),
        ([[0.0, 1]], {"ddof": 2}, "ddof=2.*0 .*or 1"),
        ([[0.0, 1]], {"ddof": -1}, "ddof=-1"),
        ([[0.0, 1], [2, NAN]], {}, r"nan \(group 1, member 1\) is not finite"),
        ([[0.0, -INF]], {}, r"-inf \(group 0, member 1\)"),
    ],
)
def test_errors_name_the_value(rewards, options, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor(rewards), **options)


@pytest.mark.parametrize(
    ("shape", "baseline", "message"),
    [
        ((2, 3), "group", r"shape \(2, 3\): expected \(n_problems, group_size, length\)"),
        ((2, 1, 3), "group", r"shape \(2, 1, 3\).*at least 2"),
        ((2, 2, 3), "rloo", "'rloo' compares whole rollouts.*expected one of group, group_mean"),
        ((2, 2, 3), "median", "'median': expected one of group, group_mean"),
        ((2, 2, 3), "none", r"inf \(group 1, member 0, step 2\) is not finite"),
    ],
)
def test_errors_of_steps_name_the_value(shape, baseline, message):
    rewards = torch.zeros(shape)
    rewards[1:] = INF
    mask = (torch.arange(3) == 2).expand(shape)
    with pytest.raises(ValueError, match=message):
        process_advantages(rewards, mask, baseline)


# -- process supervision: one group, steps (1, 3) and (2), a second whose only steps are 6 and 4 ---
# group 0: mean 2, deviations -1, 1, 0, squares 2; group 1: mean 5, deviations 1, -1, squares 2
# batch: 1, 3, 2, 6, 4, mean 3.2, deviations -2.2, -0.2, -1.2, 2.8, 0.8,
#        squares 4.84 + 0.04 + 1.44 + 7.84 + 0.64 = 14.8

STEPS = torch.tensor([[[1.0, 3], [2, NAN]], [[6, INF], [4, -INF]]], dtype=torch.float64)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("baseline", baselines_that("by_step"))
def test_process_advantages(baseline, ddof):
    eps = 0.1
    first, second = math.sqrt(2 / (3 - ddof)) + eps, math.sqrt(2 / (2 - ddof)) + eps
    all_of_them = math.sqrt(14.8 / (5 - ddof)) + eps
    expected = {  # step 0 of the first rollout has its own and that of step 1
        "group": [[(-1 + 1) / first, 1 / first], [0, 0]],
        "group_mean": [[-1 + 1, 1], [0, 0]],
        "batch": [[(-2.2 - 0.2) / all_of_them, -0.2 / all_of_them], [-1.2 / all_of_them, 0]],
        "batch_std": [[(-1 + 1) / all_of_them, 1 / all_of_them], [0, 0]],
        "none": [[1 + 3, 3], [2, 0]],
    }[baseline]
    tail = {
        "group": [1 / second, -1 / second],
        "group_mean": [1, -1],
        "batch": [2.8 / all_of_them, 0.8 / all_of_them],
        "batch_std": [1 / all_of_them, -1 / all_of_them],
        "none": [6, 4],
    }[baseline]
    actual = process_advantages(STEPS, STEPS.isfinite(), baseline, ddof, eps)
    close(actual, [expected, [[float(a), 0.0] for a in tail]])


def test_return_to_go_sums_what_follows():
    rewards = torch.tensor([[[1.0, 20, 300, 4000], [0, 0, 0, 7]]])
    mask = torch.ones_like(rewards, dtype=torch.bool)
    mask[0, 0, 2] = False  # a masked step between real ones
    actual = process_advantages(rewards, mask, "none")
    assert actual.tolist() == [[[4021, 4020, 0, 4000], [7, 7, 7, 7]]]


@pytest.mark.parametrize("baseline", baselines_that("by_step"))
def test_with_one_step_process_is_outcome(baseline):
    rewards = torch.tensor([[1.0, 2, 6], [0, 0, 0], [5, NAN, 4]])
    valid = rewards.isfinite()
    steps = process_advantages(rewards[..., None], valid[..., None], baseline, 1, 0.2)
    outcome = group_advantages(rewards, baseline, 1, 0.2, valid)
    torch.testing.assert_close(steps[..., 0], outcome, rtol=0, atol=0)


@pytest.mark.parametrize("baseline", sorted(set(baselines_that("by_step")) - {"none"}))
def test_steps_without_spread_are_exactly_zero(baseline):
    rewards, mask = torch.full((2, 2, 3), 0.1), torch.ones(2, 2, 3, dtype=torch.bool)
    mask[0, 1, 1:] = False  # a shorter rollout, whose return is lower
    assert (process_advantages(rewards, mask, baseline, eps=0.0) == 0).all()


# -- a penalty subtracted from the return ----------------------------------------------------------


def test_return_penalty():
    penalties = torch.tensor([[1.0, 2, 6], [3, 3, 3], [5, NAN, 4]], dtype=torch.float64)
    expected = [[(2 + 6) / 2 - 1, (1 + 6) / 2 - 2, (1 + 2) / 2 - 6.0], [0.0] * 3, [-1, 0, 1.0]]
    close(return_penalty(penalties, penalties.isfinite()), expected)
    assert return_penalty(torch.tensor([[1.0, 5]])).tolist() == [[4, -4]]
    rewards = torch.tensor([[1.0, 0, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.float64)
    valid = penalties.isfinite()
    whole = group_advantages(rewards - 0.3 * penalties, "rloo", valid=valid)
    parts = group_advantages(rewards, "rloo", valid=valid) + 0.3 * return_penalty(penalties, valid)
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize("baseline", [*baselines_that("needs_spread"), "batch"])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e37])
def test_rewards_of_any_size_in_float32(baseline, size):
    """Their squares overflow or vanish in float32."""
    rewards = torch.tensor([[0.0, 1.0, 2.0, 5.0]])
    scaled = group_advantages(rewards * size, baseline, eps=0.0)
    factor = size if baseline in ("group_mean", "rloo") else 1.0
    torch.testing.assert_close(scaled / factor, group_advantages(rewards, baseline, eps=0.0))
