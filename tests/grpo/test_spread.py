"""How many rollouts can teach: against enumeration, brute force and a toy environment."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import FAILED, SMALL, SPREAD, UNIT, OneStep, Puzzle, collected, rollout_of

from grpo_bench import GRPO
from grpo_bench.grpo.spread import (
    best_group_size,
    expected_flat_share,
    spread_metrics,
    yield_per_rollout,
)

RATES = [0.01, 0.1, 0.18, 0.35, 0.5, 0.7, 0.95]


def enumerated(p, size):
    """(share of groups without spread, information of one rollout), over all 2^G outcomes; a group
    with spread counts as 1 over the variance factor 1 + 1 / (G - 1) of its baseline."""
    flat = informative = 0.0
    for outcome in itertools.product((0, 1), repeat=size):
        probability = math.prod(p if success else 1 - p for success in outcome)
        if len(set(outcome)) == 1:
            flat += probability
        else:
            informative += probability / (1 + 1 / (size - 1))
    return flat, informative / size


@pytest.mark.parametrize("p", [0.0, *RATES, 1.0])
@pytest.mark.parametrize("size", [2, 3, 8, 11])
def test_against_enumeration_of_all_outcomes(p, size):
    flat, information = enumerated(p, size)
    assert expected_flat_share(p, size) == pytest.approx(flat)
    assert yield_per_rollout(p, size) == pytest.approx(information, abs=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.18, 0.35, 0.5, 0.7, 0.9])
def test_the_best_group_size_by_brute_force(p):
    assert best_group_size(p) == max(range(2, 12), key=lambda size: enumerated(p, size)[1])


def test_known_values():
    assert expected_flat_share(0.18, 2) == pytest.approx(0.7048)
    assert best_group_size(0.5) == 3
    assert best_group_size(1e-9) == 1024, "no larger ones are looked at"
    assert best_group_size(0.0) is None and best_group_size(1.0) is None
    for p in (0.01, 0.001):
        assert best_group_size(p) == pytest.approx(math.sqrt(2 / p), rel=0.1)
        assert best_group_size(1 - p) == best_group_size(p), "failures are as good as successes"


class Coin(OneStep):
    """Action 1 succeeds."""

    def __init__(self, reports=True):
        super().__init__(spaces.Discrete(2), UNIT, lambda seen, action: float(action))
        self.reports = reports

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"is_success": bool(action)} if self.reports else info


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 5])
def test_observed_and_expected_shares_of_a_bernoulli_policy(p, size):
    """A policy that succeeds with probability p everywhere, within four standard errors."""
    n = 400
    model = GRPO("MlpPolicy", DummyVecEnv([Coin] * size), group_size=size, n_problems=n, seed=1)
    with torch.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.copy_(torch.tensor([0.0, math.log(p / (1 - p))]))
    rollout = collected(model)
    log = model.logger.name_to_value
    flat, observed = enumerated(p, size)[0], log["rollout/zero_std_frac"]
    returns = rollout.returns.numpy()
    assert observed == np.mean(returns.max(axis=1) == returns.min(axis=1))
    assert abs(observed - flat) < 4 * math.sqrt(flat * (1 - flat) / n)
    rate = float(returns.mean())
    assert abs(rate - p) < 4 * math.sqrt(p * (1 - p) / (n * size))
    assert log["rollout/zero_std_expected"] == pytest.approx(enumerated(rate, size)[0])
    assert log["rollout/best_group_size"] == best_group_size(rate)
    assert log["rollout/informative_cost"] == pytest.approx(n * size / (n * (1 - observed)))


def test_metrics_by_hand():
    """Population deviations 0.5, 1 and 0, and 0 for the rest of the last group; two of the four
    groups have spread, and cost eight transitions."""
    parts = [
        rollout_of([[0.0, 1.0], [1.0, 3.0]], success=False),
        rollout_of([[2.0, 2.0], [math.nan, 1.0]], success=False),
    ]
    expected = {"zero_std_frac": 0.5, "group_std": 1.5 / 4, "informative_cost": 4.0}
    assert spread_metrics(parts) == pytest.approx(expected)


def test_nothing_is_expected_where_success_is_unknown():
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Coin(reports=False)] * 4), **SMALL)
    collected(model)
    names = {name for name in model.logger.name_to_value if name.startswith("rollout/")}
    assert names <= {"rollout/zero_std_frac", "rollout/group_std", "rollout/informative_cost"}


@pytest.mark.parametrize("kinds", [(SPREAD, SPREAD), (SPREAD, FAILED), (FAILED, FAILED)])
def test_the_cost_of_a_group_with_spread_by_hand(kinds):
    """All transitions over the groups with spread; absent where there is none."""
    plays = {}
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Puzzle(plays)] * 4), **SMALL)
    model._setup_learn(1)
    ids = [kind + i for i, kind in enumerate(kinds, start=1)]
    model._source.draw = lambda n: np.array(ids)
    rollout = collected(model)
    log = dict(model.logger.name_to_value)
    n = kinds.count(SPREAD)
    assert rollout.lengths.tolist() == [1 + (i + m) % 3 for i in ids for m in range(4)]
    assert log["rollout/zero_std_frac"] == 1 - n / 2
    assert "rollout/replaced_frac" not in log, "without dynamic sampling"
    if n:
        assert log["rollout/informative_cost"] == sum(rollout.lengths.tolist()) / n
    else:
        assert "rollout/informative_cost" not in log and "rollout/best_group_size" not in log
    assert log["rollout/zero_std_expected"] == pytest.approx(enumerated(n / 4, 4)[0])
