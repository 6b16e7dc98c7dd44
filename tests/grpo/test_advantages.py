"""Advantages by hand, the mask of dropped rollouts, and what may not change them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_bench.grpo.advantages import BASELINES, group_advantages, group_std, without_spread

PER_GROUP = ["group", "group_mean", "rloo", "batch_std"]
NAN = math.nan


def advantages(rewards, baseline="group", **options):
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), baseline, **options)


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


# rewards 1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3, squares 4 + 1 + 0 + 9 = 14
def test_group_population():
    std = math.sqrt(14 / 4)
    close(advantages([[1.0, 2, 3, 6]], eps=0.5), [[d / (std + 0.5) for d in (-2, -1, 0, 3)]])


def test_group_bessel():
    std = math.sqrt(14 / 3)
    expected = [[d / (std + 0.5) for d in (-2, -1, 0, 3)]]
    close(advantages([[1.0, 2, 3, 6]], ddof=1, eps=0.5), expected)


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


@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("value", [0.1, -0.5, 1.0, 1e6])
@pytest.mark.parametrize("baseline", BASELINES)
def test_without_spread_it_is_exactly_zero(baseline, value, eps):
    rewards = torch.full((3, 7), value)  # the float32 mean of seven 0.1 is not 0.1
    for ddof in (0, 1):
        assert (group_advantages(rewards, baseline, ddof, eps) == 0).all()
    if baseline != "batch":  # a flat group among others
        rewards[0] = torch.arange(7.0)
        assert (group_advantages(rewards, baseline, 0, eps)[1:] == 0).all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_an_invalid_rollout_is_as_if_it_had_never_been(baseline):
    rewards = torch.tensor([[1.0, NAN, 2, 6], [0, 3, 5, math.inf]], dtype=torch.float64)
    valid = torch.isfinite(rewards)
    actual = group_advantages(rewards, baseline, valid=valid)
    assert (actual[~valid] == 0).all()
    without = group_advantages(rewards[valid].view(2, 3), baseline)
    torch.testing.assert_close(actual[valid].view(2, 3), without)
    std = group_std(rewards, valid)
    torch.testing.assert_close(std, rewards[valid].view(2, 3).std(1, correction=0, keepdim=True))


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_group_with_one_valid_rollout_or_none_teaches_nothing(baseline):
    rewards = torch.tensor([[1.0, NAN, NAN], [NAN, NAN, NAN]])
    valid = torch.isfinite(rewards)
    for ddof in (0, 1):
        assert (group_advantages(rewards, baseline, ddof, valid=valid) == 0).all()
    assert without_spread(rewards, valid).all()


def test_without_spread():
    rewards = torch.tensor([[1.0, 1, 1], [1, 1, 0], [0.5, 0.5, NAN]])
    assert without_spread(rewards, torch.isfinite(rewards)).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        ([[1.0]], {}, r"shape \(1, 1\).*at least 2"),
        ([1.0, 2.0], {}, r"shape \(2,\)"),
        ([[0.0, 1]], {"baseline": "median"}, "'median'.*group, group_mean, rloo"),
        ([[0.0, 1]], {"ddof": 2}, "ddof=2.*0 .*or 1"),
        ([[0.0, 1], [2, NAN]], {}, "nan of member 1 of group 1"),
        ([[0.0, -math.inf]], {}, "-inf of member 1 of group 0"),
    ],
)
def test_errors_name_the_value(rewards, options, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor(rewards), **options)


# -- invariants -----------------------------------------------------------------------------------

groups = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(2, 6)), elements=st.integers(-8, 8)
)
baselines = st.sampled_from(sorted(BASELINES))
quick = settings(max_examples=40, deadline=None)


@quick
@given(groups, baselines, st.integers(0, 1), st.randoms(use_true_random=False))
def test_permuting_groups_and_members_permutes_advantages(rewards, baseline, ddof, random):
    rows = random.sample(range(rewards.shape[0]), rewards.shape[0])
    columns = random.sample(range(rewards.shape[1]), rewards.shape[1])
    before = group_advantages(torch.from_numpy(rewards), baseline, ddof)
    after = group_advantages(torch.from_numpy(rewards[rows][:, columns]), baseline, ddof)
    torch.testing.assert_close(after, before[rows][:, columns])


@quick
@given(groups, st.sampled_from(PER_GROUP))
def test_advantages_sum_to_zero_in_each_group(rewards, baseline):
    sums = group_advantages(torch.from_numpy(rewards), baseline).sum(dim=1)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-9)


@quick
@given(groups, baselines, st.integers(-50, 50), st.sampled_from([0.25, 2.0, 16.0]))
def test_shift_changes_nothing_and_scale_only_what_does_not_divide(rewards, baseline, shift, scale):
    rewards = torch.from_numpy(rewards)
    before = group_advantages(rewards, baseline, eps=0.0)
    torch.testing.assert_close(group_advantages(rewards + shift, baseline, eps=0.0), before)
    factor = scale if baseline in ("group_mean", "rloo") else 1.0
    torch.testing.assert_close(
        group_advantages(rewards * scale, baseline, eps=0.0), before * factor
    )


@quick
@given(groups, st.sampled_from(["group", "group_mean", "rloo"]))
def test_a_group_knows_nothing_of_the_others(rewards, baseline):
    together = group_advantages(torch.from_numpy(rewards), baseline)
    alone = [group_advantages(torch.from_numpy(row[None]), baseline) for row in rewards]
    torch.testing.assert_close(together, torch.cat(alone))
