"""Advantages by hand, against a second implementation, and the mask of dropped rollouts.

Their invariances are in test_invariances.py, advantages of single actions in test_credit.py.
"""

import math
from statistics import fmean, pstdev, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.optimiser_steps import batches
from support.properties import OWN, PROPERTIES, advantages_by, best_of_group, named, properties_of

from grpo_bench.grpo.advantages import (
    BASELINES,
    Baseline,
    baseline_of,
    group_advantages,
    group_std,
    return_penalty,
    without_spread,
)
from grpo_bench.grpo.credit import BY_STEP

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
    for of_steps in BY_STEP.values():
        steps = of_steps(rewards[..., None], torch.ones(1, 4, 1).bool())
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


@pytest.mark.parametrize("baseline", REFERENCE)
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


FLAT_IS_0 = [name for name in BASELINES if "sums to 0 in a batch" in properties_of(name)]


@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("value", [0.1, -0.5, 1.0, 1e6])
@pytest.mark.parametrize("baseline", FLAT_IS_0)
def test_without_spread_it_is_exactly_zero(baseline, value, eps):
    rewards = torch.full((3, 7), value, dtype=torch.float64)  # the mean of seven 0.1 is not 0.1
    one_less = torch.ones(3, 7, dtype=torch.bool)
    one_less[:, 6] = False
    for ddof in (0, 1):
        assert (group_advantages(rewards, baseline, ddof, eps) == 0).all()
        assert (group_advantages(rewards, baseline, ddof, eps, one_less) == 0).all()
    rewards[0] = torch.arange(7.0)  # flat groups among others
    flat = group_advantages(rewards, baseline, 0, eps)[1:] == 0
    assert flat.all() if baseline_of(baseline).needs_spread else not flat.any()


@pytest.mark.parametrize("baseline", FLAT_IS_0)
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


# -- properties, of our baselines and of those that a user adds ------------------------------------

CENTRED = {"sums to 0 in a group", "sums to 0 in a batch", "ignores a shift", "needs spread"}
EXPECTED = {  # by the formulas
    "group": CENTRED | {"ignores the scale", "ignores other groups"},
    "group_mean": CENTRED | {"keeps the scale", "ignores other groups", "ignores ddof"},
    "rloo": CENTRED | {"keeps the scale", "ignores other groups", "ignores ddof"},
    "batch": {"sums to 0 in a batch", "ignores a shift", "ignores the scale"},
    "batch_std": CENTRED | {"ignores the scale"},
    "rank": CENTRED | {"ignores the scale", "ignores other groups", "ignores ddof"},
    "none": {"keeps the scale", "ignores other groups", "ignores ddof"},
}
ALL = [*BASELINES, *OWN]


@pytest.mark.parametrize("baseline", EXPECTED)
def test_the_properties_of_our_baselines(baseline):
    assert properties_of(baseline) == EXPECTED[baseline]


@pytest.mark.parametrize("baseline", ALL, ids=named)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(b=batches())
def test_a_property_holds_whatever_the_rewards(baseline, b):
    """Those found on one batch hold on every batch, and the flags agree with them."""
    found, valid = properties_of(baseline), b.mask.any(dim=2)
    if not valid.any():
        return
    returns = torch.where(b.mask, b.rewards, 0.0).sum(dim=2)
    for name in found:
        assert PROPERTIES[name](advantages_by(baseline), returns, valid), name
    flags = baseline_of(baseline)
    assert flags.divides == ("ignores ddof" not in found)
    assert flags.needs_spread == ("needs spread" in found)
    assert flags.across_groups == ("ignores other groups" not in found)


def test_a_baseline_may_be_a_function_or_a_name_given_later(monkeypatch):
    rewards = [[1.0, 2, 3, 6]]
    close(advantages(rewards, best_of_group), [[-5.0, -4, -3, 0]])
    close(advantages(rewards, Baseline(best_of_group)), [[-5.0, -4, -3, 0]])
    for entry in (best_of_group, Baseline(best_of_group, by_step=True)):
        monkeypatch.setitem(BASELINES, "best", entry)
        close(advantages(rewards, "best"), [[-5.0, -4, -3, 0]])
        assert baseline_of("best").by_step == isinstance(entry, Baseline)
    assert not baseline_of(best_of_group).divides and not baseline_of(best_of_group).across_groups
    with pytest.raises(
        ValueError, match=r"<lambda> made advantages of shape \(1,\).*the same shape"
    ):
        advantages(rewards, lambda rewards, valid, ddof, eps: rewards.sum(dim=1))


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


@pytest.mark.parametrize("baseline", FLAT_IS_0)
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e37])
def test_rewards_of_any_size_in_float32(baseline, size):
    """Their squares overflow or vanish in float32."""
    rewards = torch.tensor([[0.0, 1.0, 2.0, 5.0]])
    scaled = group_advantages(rewards * size, baseline, eps=0.0)
    factor = size if "keeps the scale" in properties_of(baseline) else 1.0
    torch.testing.assert_close(scaled / factor, group_advantages(rewards, baseline, eps=0.0))
