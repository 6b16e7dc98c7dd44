"""Advantages of single actions: by hand, by a second implementation, and what they have in common.

The update that uses them is in test_update.py, their invariances in test_invariances.py, their bias
in tests/enumeration.
"""

import math

import pytest
import torch
from support.naive import discounted, naive_advantages
from support.properties import OWN

from grpo_bench.grpo.advantages import BASELINES, baselines_that, group_advantages
from grpo_bench.grpo.credit import (
    BY_STEP,
    process_advantages,
    return_to_go_advantages,
    to_go,
)

NAN, INF = math.nan, math.inf


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


# -- returns to go --------------------------------------------------------------------------------


def test_to_go():
    rewards = torch.tensor([[1.0, 20, 300], [0, 0, 8]], dtype=torch.float64)
    close(to_go(rewards), [[321.0, 320, 300], [8, 8, 8]])
    # 1 + 10 + 75, 20 + 150, 300
    close(to_go(rewards, 0.5), [[86.0, 170, 300], [2, 4, 8]])
    close(to_go(rewards, 0.0), rewards.tolist())


# One group of three, of 3, 2 and 1 steps. Returns to go: 6, 5, 3 | 5, 1 | 1. Step 0: mean 4,
# deviations 2, 1, -3. Step 1: mean 3, deviations 2, -2. Step 2: one member.
PAID = torch.tensor([[[1.0, 2, 3], [4, 1, NAN], [1, INF, NAN]]], dtype=torch.float64)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("baseline", ["group", "group_mean", "rloo", "rank", "none"])
def test_return_to_go_by_hand(baseline, ddof):
    eps = 0.1
    first, second = math.sqrt(14 / (3 - ddof)) + eps, math.sqrt(8 / (2 - ddof)) + eps
    expected = {
        "group": [[2 / first, 2 / second, 0], [1 / first, -2 / second, 0], [-3 / first, 0, 0]],
        "group_mean": [[2.0, 2, 0], [1, -2, 0], [-3, 0, 0]],
        "rloo": [[3.0, 4, 0], [1.5, -4, 0], [-4.5, 0, 0]],  # 6 - (5 + 1) / 2, 5 - 1
        "rank": [[1.0, 1, 0], [0, -1, 0], [-1, 0, 0]],
        "none": [[6.0, 5, 3], [5, 1, 0], [1, 0, 0]],
    }[baseline]
    close(return_to_go_advantages(PAID, PAID.isfinite(), baseline, ddof, eps), [expected])


def test_return_to_go_with_a_discount_by_hand():
    # returns to go 1 + 1 + 0.75, 2 + 1.5, 3 | 4.5, 1 | 1: step 0 has the mean 2.75, step 1 2.25
    expected = [[0.0, 1.25, 0], [1.75, -1.25, 0], [-1.75, 0, 0]]
    actual = return_to_go_advantages(PAID, PAID.isfinite(), "group_mean", gamma=0.5)
    close(actual, [expected])


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("baseline", BASELINES)
def test_return_to_go_by_a_second_implementation(baseline, gamma, ddof):
    """Two groups that end at different times; from some step on one has no member, or one."""
    rewards = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).double()
    lengths = torch.tensor([[2, 5, 3], [1, 4, 4]])
    mask = torch.arange(5) < lengths[..., None]
    actual = return_to_go_advantages(
        rewards.masked_fill(~mask, NAN), mask, baseline, ddof, 0.1, gamma
    )
    for t in range(5):
        playing = [
            [
                discounted(rewards[p, i, t : lengths[p, i]].tolist(), gamma)
                for i in range(3)
                if lengths[p, i] > t
            ]
            for p in range(2)
        ]
        expected = naive_advantages(playing, baseline, ddof, 0.1)
        for p in range(2):
            close(actual[p, :, t][mask[p, :, t]], expected[p])
    assert (actual[~mask] == 0).all()


@pytest.mark.parametrize("baseline", sorted(set(BASELINES) - {"none", "batch"}))
def test_an_action_without_another_to_compare_it_with_teaches_nothing(baseline):
    mask = torch.arange(4) < torch.tensor([[[4], [2], [1]]])
    actual = return_to_go_advantages(torch.ones(1, 3, 4), mask, baseline)
    assert (actual[..., 2:] == 0).all() and (actual[..., 0] != 0).any()


@pytest.mark.parametrize("baseline", OWN)
def test_a_baseline_of_ones_own_is_called_for_each_step(baseline):
    rewards, mask = PAID.nan_to_num(0, posinf=0), PAID.isfinite()
    actual = return_to_go_advantages(PAID, mask, baseline)
    for t in range(3):
        returns, valid = to_go(rewards)[..., t], mask[..., t]
        expected = group_advantages(returns, baseline, valid=valid)
        torch.testing.assert_close(actual[..., t], expected)


# -- both -----------------------------------------------------------------------------------------

SUPPORTED = [("process", name) for name in baselines_that("by_step")]
SUPPORTED += [("return_to_go", name) for name in BASELINES]


@pytest.mark.parametrize(("supervision", "baseline"), SUPPORTED)
def test_with_one_step_it_is_outcome(supervision, baseline):
    rewards = torch.tensor([[1.0, 2, 6], [0, 0, 0], [5, NAN, 4]])
    valid = rewards.isfinite()
    for gamma in (1.0, 0.5):
        steps = BY_STEP[supervision](rewards[..., None], valid[..., None], baseline, 1, 0.2, gamma)
        outcome = group_advantages(rewards, baseline, 1, 0.2, valid)
        torch.testing.assert_close(steps[..., 0], outcome, rtol=0, atol=0)


@pytest.mark.parametrize("supervision", BY_STEP)
@pytest.mark.parametrize(
    ("shape", "baseline", "message"),
    [
        ((2, 3), "group", r"shape \(2, 3\): expected \(n_problems, group_size, length\)"),
        ((2, 1, 3), "group", r"shape \(2, 1, 3\).*at least 2"),
        ((2, 2, 3), "median", "'median': expected one of group, group_mean"),
        ((2, 2, 3), "none", r"inf \(group 1, member 0, step 2\) is not finite"),
    ],
)
def test_errors_of_steps_name_the_value(shape, baseline, message, supervision):
    rewards = torch.zeros(shape)
    rewards[1:] = INF
    mask = (torch.arange(3) == 2).expand(shape)
    with pytest.raises(ValueError, match=message):
        BY_STEP[supervision](rewards, mask, baseline)


def test_process_supervision_needs_a_baseline_of_steps():
    message = "'rloo' compares whole rollouts.*expected one of group, group_mean"
    with pytest.raises(ValueError, match=message):
        process_advantages(STEPS, STEPS.isfinite(), "rloo")
    with pytest.raises(ValueError, match="half compares whole rollouts"):
        process_advantages(STEPS, STEPS.isfinite(), OWN[1])


# -- process supervision: one group, steps (1, 3) and (2), a second whose only steps are 6 and 4 ---
# group 0: mean 2, deviations -1, 1, 0, squares 2; group 1: mean 5, deviations 1, -1, squares 2
# batch: 1, 3, 2, 6, 4, mean 3.2, deviations -2.2, -0.2, -1.2, 2.8, 0.8,
#        squares 4.84 + 0.04 + 1.44 + 7.84 + 0.64 = 14.8

STEPS = torch.tensor([[[1.0, 3], [2, NAN]], [[6, INF], [4, -INF]]], dtype=torch.float64)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("baseline", ["group", "group_mean", "batch", "batch_std", "none"])
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


def test_process_sums_what_follows():
    rewards = torch.tensor([[[1.0, 20, 300, 4000], [0, 0, 0, 7]]])
    mask = torch.ones_like(rewards, dtype=torch.bool)
    mask[0, 0, 2] = False  # a masked step between real ones
    actual = process_advantages(rewards, mask, "none")
    assert actual.tolist() == [[[4021, 4020, 0, 4000], [7, 7, 7, 7]]]
    actual = process_advantages(rewards, mask, "none", gamma=0.1)  # 1 + 2 + 0 + 4, 20 + 0 + 40
    close(actual.double(), [[[7.0, 60, 0, 4000], [0.007, 0.07, 0.7, 7]]])


@pytest.mark.parametrize("baseline", sorted(set(baselines_that("by_step")) - {"none"}))
def test_steps_without_spread_are_exactly_zero(baseline):
    rewards, mask = torch.full((2, 2, 3), 0.1), torch.ones(2, 2, 3, dtype=torch.bool)
    mask[0, 1, 1:] = False  # a shorter rollout, whose return is lower
    assert (process_advantages(rewards, mask, baseline, eps=0.0) == 0).all()
