"""Dynamic sampling on problems whose id decides whether their groups have spread."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import (
    FAILED,
    HIDDEN,
    NARROW,
    SHAPED,
    SOLVED,
    SPREAD,
    Puzzle,
    group,
    parameters,
    rollout_of,
)

from grpo_bench import GRPO
from grpo_bench.grpo.dynamic import refilled, without_outcome_spread

G = 4


def model_on(ids, n_problems=2, n_envs=G, env=DummyVecEnv, group_size=G, reports=True, **settings):
    """A model whose groups are these problems, in order; ``asked`` lists how many at a time."""
    plays = {}
    as_dict = settings.pop("as_dict", False)
    policy = "MultiInputPolicy" if as_dict else "MlpPolicy"
    envs = env([lambda: Puzzle(plays, reports, as_dict)] * n_envs)
    settings = {"max_refills": 3, "seed": 0} | settings
    sizes = {"group_size": group_size, "n_problems": n_problems, "n_epochs": 1, "gamma": 1.0}
    model = GRPO(policy, envs, **sizes | settings)
    _, model.callback = model._setup_learn(10_000)
    model.callback.on_training_start({}, {})
    queue, model.asked = list(ids), []

    def draw(n):
        model.asked.append(n)
        return np.array([queue.pop(0) for _ in range(n)])

    model._source.draw = draw
    return model


def play(model):
    assert model.collect_rollouts(model.callback)
    return model._rollout


def plain(ids, **settings):
    """The rollout of these problems without dynamic sampling."""
    return play(model_on(ids, n_problems=len(ids), **settings | {"max_refills": 0}))


# -- which groups are replaced --------------------------------------------------------------------


def test_flat_groups_are_replaced_and_the_others_kept_to_the_bit():
    first = [SPREAD + 1, FAILED + 2, SPREAD + 3, SOLVED + 1]
    model = model_on([*first, FAILED + 5, SPREAD + 6, SPREAD + 8], n_problems=4)
    rollout = play(model)
    assert model.asked == [4, 2, 1]
    assert rollout.starts.tolist() == [SPREAD + 1, SPREAD + 3, SPREAD + 6, SPREAD + 8]
    without = plain(first)
    assert model.seed == 0, "the same stream: the first round plays the same actions"
    for problem in (SPREAD + 1, SPREAD + 3):
        assert group(rollout, problem) == group(without, problem)
    assert set(rollout.observations[:, 0].tolist()) == set(rollout.starts.tolist())


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("reports", [True, False])
def test_kept_and_joined_groups_hold_the_environments_data(as_dict, reports):
    """Every step: the problem and the time in its observation, its reward, how it ended."""
    model = model_on(
        [FAILED + 1, SPREAD + 1, SPREAD + 2, FAILED + 2, SPREAD + 3],
        n_problems=3,
        as_dict=as_dict,
        reports=reports,
    )
    rollout = play(model)
    assert rollout.starts.tolist() == [SPREAD + 1, SPREAD + 2, SPREAD + 3]
    place = rollout.observations["place"] if as_dict else rollout.observations
    assert len(place) == len(rollout.rows[rollout.mask].unique()), "and no row is left over"
    for e in range(len(rollout.mask)):
        problem, member = int(rollout.starts[e // G]), e % G
        length = 1 + (problem + member) % 3
        assert rollout.lengths[e] == length
        for t in range(length):
            assert place[rollout.rows[e, t]].tolist() == [problem, t]
        assert rollout.rewards[e].sum() == rollout.rewards[e, length - 1] == member % 2
        assert rollout.truncated[e].item() == (problem % 2 == 0)
        if reports:
            assert rollout.success[e] == member % 2
        else:
            assert np.isnan(rollout.success[e])
    logp = model.policy.get_distribution(
        {name: values[rollout.rows[rollout.mask]] for name, values in rollout.observations.items()}
        if as_dict
        else rollout.observations[rollout.rows[rollout.mask]]
    ).log_prob(rollout.actions[rollout.mask])
    torch.testing.assert_close(logp.detach(), rollout.old_logp[rollout.mask])


@pytest.mark.parametrize(
    ("kind", "reports", "replaced"),
    [
        (SPREAD, True, False),
        (FAILED, True, True),
        (SOLVED, True, True),
        (SHAPED, True, True),  # by the outcome, not by the shaped reward
        (HIDDEN, True, False),
        (SHAPED, False, False),  # the outcome is unknown: by the return
        (HIDDEN, False, True),
        (FAILED, False, True),  # of four times 0.1
    ],
)
def test_a_group_is_judged_by_its_outcome(kind, reports, replaced):
    model = model_on([SPREAD + 1, kind + 2, SPREAD + 3], reports=reports)
    rollout = play(model)
    assert rollout.starts.tolist() == [SPREAD + 1, SPREAD + 3 if replaced else kind + 2]


@pytest.mark.parametrize(("tol", "replaced"), [(0.0, False), (0.004, False), (0.006, True)])
def test_the_tolerance_is_a_standard_deviation(tol, replaced):
    """Returns 0.10, 0.11, 0.10, 0.11: 0.005."""
    model = model_on([SPREAD + 1, NARROW + 2, SPREAD + 3], reports=False, spread_tol=tol)
    assert play(model).starts.tolist()[1] == (SPREAD + 3 if replaced else NARROW + 2)


def test_the_tolerance_itself_is_within_it():
    rollout = rollout_of([[0.0, 0.5], [0.0, 0.75]], success=False)
    assert without_outcome_spread(rollout, 0.25).tolist() == [True, False]


@pytest.mark.parametrize("size", range(2, 20))
def test_equal_returns_are_flat_though_their_deviation_is_rounded(size):
    rollout = rollout_of([[0.1] * size, [0.1] * (size - 1) + [0.1001]], success=False)
    rollout.rewards = torch.where(rollout.rewards < 0.10005, 0.1, 0.1001).double()
    rollout.rewards[:size] = 0.1  # to all the digits of float64
    assert without_outcome_spread(rollout, 0.0).tolist() == [True, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_groups_with_non_finite_returns_are_not_flat(bad):
    rollout = rollout_of([[bad, 1.0], [bad, bad], [1.0, 1.0]], success=False)
    assert without_outcome_spread(rollout, 10.0).tolist() == [False, False, True]
    rollout.success[:] = 0.0  # equal, but non-finite returns stay: they are an error later
    assert without_outcome_spread(rollout, 0.0).tolist() == [False, False, True]


def test_one_unknown_success_makes_all_outcomes_returns():
    rollout = rollout_of([[1.0, 1.0], [1.0, 2.0]], success=True)
    rollout.success[:] = [0, 1, 1, 1]
    assert without_outcome_spread(rollout, 0.0).tolist() == [False, True]
    rollout.success[3] = np.nan
    assert without_outcome_spread(rollout, 0.0).tolist() == [True, False]


# -- rounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_refills", [0, 1, 3])
def test_rounds_are_bounded_and_the_last_flat_groups_stay(max_refills):
    ids = [FAILED + i for i in range(1, 20)]
    model = model_on(ids, n_problems=3, max_refills=max_refills)
    rollout = play(model)
    assert model.asked == [3] * (1 + max_refills)
    assert rollout.starts.tolist() == ids[3 * max_refills : 3 * max_refills + 3]
    assert rollout.mask.shape[0] == 3 * G
    before = parameters(model)
    model.train()
    assert torch.equal(parameters(model), before) and model._n_updates == 1


def test_no_round_is_played_where_no_group_is_flat():
    model = model_on([SPREAD + 1, SPREAD + 2, SPREAD + 3])
    assert play(model).starts.tolist() == [SPREAD + 1, SPREAD + 2] and model.asked == [2]
    log = model.logger.name_to_value
    assert log["rollout/replaced_frac"] == 0 == log["rollout/zero_std_frac"]


def test_all_groups_are_counted_and_only_kept_ones_are_trained_on():
    ids = [SPREAD + 1, FAILED + 1, SOLVED + 1, SPREAD + 4]
    model = model_on(ids)
    rollout = play(model)
    assert rollout.starts.tolist() == [SPREAD + 1, SPREAD + 4]
    lengths = [1 + (i + m) % 3 for i in ids for m in range(G)]
    assert model.num_timesteps == sum(lengths) > int(rollout.mask.sum())
    assert model._episode_num == 16
    rewards = [r for i in ids for r in {1: [0, 1] * 2, 2: [0.1] * 4, 3: [1] * 4}[i // 100]]
    expected = [(n, float(r == 1), r) for n, r in zip(lengths, rewards, strict=True)]
    logged = zip(model.ep_info_buffer, model.ep_success_buffer, strict=True)
    seen = [(e["l"], success, round(e["r"], 6)) for e, success in logged]
    assert sorted(seen) == sorted(expected), "in the order of their ends"
    log = model.logger.name_to_value
    assert log["rollout/zero_std_frac"] == 2 / 4 == log["rollout/replaced_frac"]
    assert log["rollout/informative_cost"] == sum(lengths) / 2
    assert log["rollout/group_std"] == pytest.approx((0.5 + 0 + 0 + 0.5) / 4)
    assert log["rollout/zero_std_expected"] == pytest.approx(0.5**4 + 0.5**4)
    assert model.callback.locals["rollout"] is rollout
    model.train()
    assert model._n_updates == 1


@pytest.mark.parametrize(
    ("n_envs", "n_problems"), [(1, 2), (2, 2), (4, 3), (8, 4), (16, 4)], ids=str
)
@pytest.mark.parametrize("env", [DummyVecEnv, SyncVectorEnv])
def test_refills_on_every_layout_also_with_idle_sub_environments(env, n_envs, n_problems):
    """A round of one group on up to 16 sub-environments; on a SyncVectorEnv a start is a seed."""
    ids = [SPREAD + 1, SPREAD + 2, SPREAD + 4, FAILED + 1][-n_problems:]
    model = model_on([*ids, SPREAD + 7], n_problems=n_problems, n_envs=n_envs, env=env)
    rollout = play(model)
    assert model.asked == [n_problems, 1]
    assert rollout.starts.tolist() == [*ids[:-1], SPREAD + 7]
    lengths = [1 + (i + m) % 3 for i in rollout.starts for m in range(G)]
    assert rollout.lengths.tolist() == lengths
    assert rollout.success.tolist() == [0, 1] * (2 * n_problems)
    replaced = sum(1 + (FAILED + 1 + m) % 3 for m in range(G))
    assert (
        model.num_timesteps
        == sum(lengths) + replaced
        == sum(episode["l"] for episode in model.ep_info_buffer)
    ), "episodes of idle sub-environments do not count"


def test_idle_sub_environments_are_sent_actions_of_the_space():
    """0 is outside this Box, and the environment refuses such actions. The other sub-environments
    get the actions of the rollout."""
    taken = {}

    class Picky(Puzzle):
        action_space = spaces.Box(1.0, 2.0, (3,), np.float32)

        def step(self, action):
            assert self.action_space.contains(action), action
            taken.setdefault((self.problem, self.member), []).append(action.copy())
            return super().step(action)

    plays = {}
    env = DummyVecEnv([lambda: Picky(plays)] * 8)
    model = GRPO("MlpPolicy", env, group_size=G, n_problems=2, max_refills=1)
    _, callback = model._setup_learn(1000)
    callback.on_training_start({}, {})
    queue = [SPREAD + 1, FAILED + 1, SPREAD + 2]
    model._source.draw = lambda n: np.array([queue.pop(0) for _ in range(n)])
    assert model.collect_rollouts(callback)
    rollout = model._rollout
    assert rollout.starts.tolist() == [SPREAD + 1, SPREAD + 2]
    for e, length in enumerate(rollout.lengths.tolist()):
        sent = taken[rollout.starts[e // G], e % G]
        played = rollout.actions[e, :length].clamp(1, 2)
        np.testing.assert_array_equal(np.stack(sent), played)


def test_minibatches_of_a_joined_rollout_hold_each_group_once():
    model = model_on([FAILED + 1, SPREAD + 1, SPREAD + 3], batch_size=G, kl="exact", kl_coef=0.1)
    rollout = copy.deepcopy(play(model))
    seen = []
    forward = model.policy.forward
    model.policy.forward = lambda obs: seen.append(obs) or forward(obs)
    model.train()
    assert len(seen) == 2 == model._n_updates
    assert sorted(int(obs[0, 0]) for obs in seen) == rollout.starts.tolist()
    assert all(len(obs[:, 0].unique()) == 1 for obs in seen)


@pytest.mark.parametrize("calls", [1, 4, 5])
def test_a_callback_may_stop_in_the_middle_of_a_refill(calls):
    """The first round takes 3 vector steps, and the refill 3 more with calls 4 and 5."""
    model = model_on([FAILED + 1, SPREAD + 1, SPREAD + 2], n_problems=2, n_envs=8)
    heard = []
    _, callback = model._setup_learn(10_000, lambda *_: heard.append(1) or len(heard) < calls)
    callback.on_training_start({}, {})
    assert not model.collect_rollouts(callback)
    assert model._rollout is None and len(heard) == calls
    assert model._episode_num == (0 if calls == 1 else 8), "whole rounds only"
    assert len(model.asked) == (1 if calls == 1 else 2)


def test_refilled_stops_at_once_where_the_first_round_is_stopped():
    asked = []
    assert refilled(lambda n: asked.append(n), 5, 3, 0.0) is None
    assert asked == [5]
