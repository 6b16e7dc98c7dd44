"""A rollout holds the environment's data: replayed step by step, on every layout."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from support.toys import OneStep, Puzzle, Walk, collected

from grpo_bench import GRPO
from grpo_bench.grpo.collect import collect_groups, to_env
from grpo_bench.grpo.rollout import occurrence
from grpo_bench.grpo.vec_env import VectorEnvAdapter

G, P = 4, 4  # members, problems
WIDTHS = [1, G // 2, G, 4 * G]
TASKS = {
    "walk": Walk,
    "cartpole": lambda: gym.make("CartPole-v1"),
    "vlm": lambda: gym.make("GRPO-VLM-v0", source="synthetic"),
    "arithmetic": lambda: gym.make("GRPO-Arithmetic-v0", max_tokens=5),
}
NATIVE = {
    "vlm": ("GRPO-VLM-v0", {"source": "synthetic"}),
    "arithmetic": ("GRPO-Arithmetic-v0", {"max_tokens": 5}),
}


def dummy(task, n):
    return DummyVecEnv([TASKS[task]] * n)


def sync(task, n, mode):
    return SyncVectorEnv([TASKS[task]] * n, autoreset_mode=mode)


def native(task, n, mode):
    name, options = NATIVE[task]
    return gym.make_vec(name, n, autoreset_mode=mode, **options)


def every_layout():
    """(name, task, environment) of each kind of environment, autoreset mode and width."""
    for task in TASKS:
        for n in WIDTHS:
            yield f"{task} dummy {n}", task, lambda task=task, n=n: dummy(task, n)
        for mode in AutoresetMode:
            for n in (G // 2, 4 * G):
                name = f"{task} {{}} {mode.name} {n}"
                how = {"task": task, "n": n, "mode": mode}
                yield name.format("sync"), task, lambda how=how: sync(**how)
                if task in NATIVE:
                    yield name.format("native"), task, lambda how=how: native(**how)


LAYOUTS = list(every_layout())
on_every_layout = pytest.mark.parametrize(
    ("task", "make"), [layout[1:] for layout in LAYOUTS], ids=[layout[0] for layout in LAYOUTS]
)


def model_on(env, task="walk", **settings):
    policy = "MultiInputPolicy" if task == "arithmetic" else "MlpPolicy"
    return GRPO(policy, env, group_size=G, n_problems=P, seed=0, **settings)


def row(observations, index):
    if isinstance(observations, dict):
        return {name: values[index].numpy() for name, values in observations.items()}
    return observations[index].numpy()


def same(one, two):
    if isinstance(one, dict):
        return all(np.array_equal(one[name], two[name]) for name in two)
    return np.array_equal(one, two)


@on_every_layout
def test_a_naive_replay_gives_the_same_episodes(task, make):
    model = model_on(make(), task)
    rollout = collected(model)
    kind = model._source.kind
    by_seed = task in ("walk", "cartpole") or isinstance(
        getattr(model.env, "env", None), SyncVectorEnv
    )
    assert kind == ("seed" if by_seed else "problem_id")
    lengths = rollout.lengths.tolist()
    if task in ("walk", "cartpole", "arithmetic"):
        assert len(set(lengths)) > 1, "ragged"
    naive = TASKS[task]()
    for episode, length in enumerate(lengths):
        start = rollout.starts[episode // G].item()
        how = {"seed": start} if kind == "seed" else {"options": {"problem_id": start}}
        observation, _ = naive.reset(**how)
        assert rollout.mask[episode].tolist() == [t < length for t in range(len(rollout.mask[0]))]
        for t in range(length):
            assert same(row(rollout.observations, rollout.rows[episode, t]), observation)
            action = rollout.actions[episode, t].item()
            observation, reward, terminated, truncated, info = naive.step(np.int64(action))
            assert rollout.rewards[episode, t].item() == pytest.approx(reward)
            assert (terminated or truncated) == (t == length - 1), "whole episodes, no more"
        assert rollout.truncated[episode].item() == (truncated and not terminated)
        success = rollout.success[episode]
        assert np.isnan(success) if "is_success" not in info else success == info["is_success"]
    outside = ~rollout.mask
    assert (rollout.rewards[outside] == 0).all() and (rollout.old_logp[outside] == 0).all()
    assert rollout.returns.shape == (P, G)
    assert rollout.returns.sum() == pytest.approx(rollout.rewards.sum().item())
    assert model.num_timesteps == sum(lengths), "real transitions only"


@pytest.mark.parametrize("task", TASKS)
def test_old_logp_is_the_policys_and_members_share_their_first_row(task):
    model = model_on(dummy(task, G // 2), task)
    rollout = collected(model)
    firsts = rollout.rows[:, 0].view(P, G)
    assert (firsts == firsts[:, :1]).all() and firsts[:, 0].unique().numel() == P
    later = rollout.rows[:, 1:][rollout.mask[:, 1:]]
    assert later.unique().numel() == later.numel() and not torch.isin(later, firsts).any()
    assert rollout.rows.unique().numel() == P + later.numel(), "and no row is left over"
    for episode, t in rollout.mask.nonzero().tolist():
        observation = row(rollout.observations, [rollout.rows[episode, t].item()])
        with torch.no_grad():
            distribution = model.policy.get_distribution(obs_as_tensor(observation, model.device))
            logp = distribution.log_prob(rollout.actions[episode, t][None])
        assert rollout.old_logp[episode, t].item() == pytest.approx(logp.item(), abs=1e-5)


def test_one_step_tasks_keep_one_observation_for_each_problem():
    rollout = collected(model_on(native("vlm", 4 * G, AutoresetMode.DISABLED), "vlm"))
    assert rollout.observations.shape == (P, 128) and rollout.mask.shape == (P * G, 1)


@pytest.mark.parametrize("task", ["walk", "vlm", "arithmetic"])
def test_a_deterministic_policy_plays_the_same_on_every_layout(task):
    """Logits so steep that sampling cannot differ, the same starts, and any number of
    sub-environments."""
    makes = [dummy(task, n) for n in WIDTHS]
    makes += [sync(task, 4 * G, mode) for mode in AutoresetMode]
    if task in NATIVE:
        makes += [native(task, 4 * G, mode) for mode in AutoresetMode]
    rollouts = {}
    for env in makes:
        model = model_on(env, task)
        with torch.no_grad():
            model.policy.action_net.weight *= 1e8
        model._setup_learn(1000)
        if model._source.kind == "seed":
            starts = np.array([3, 1, 4, 15])
        else:
            starts = np.array([7, 1120, 40, 190])  # arithmetic's own ids for its problems
        model._source.draw = lambda n, starts=starts: starts
        got = collect_groups(model._source, model.policy, P, G, lambda n, infos: True)
        first = rollouts.setdefault(model._source.kind, got)
        for name in ("actions", "rewards", "mask", "old_logp"):
            torch.testing.assert_close(getattr(got, name), getattr(first, name))
        np.testing.assert_array_equal(got.success, first.success)
        np.testing.assert_array_equal(got.starts, first.starts)
        for t in range(got.mask.shape[1]):
            inside = got.mask[:, t].nonzero().flatten()
            ours, theirs = (row(r.observations, r.rows[inside, t]) for r in (got, first))
            assert same(ours, theirs)


# -- groups that do not start alike ---------------------------------------------------------------


class Drifting(Walk):
    """Starts somewhere else every time, whatever the seed."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset()
        return observation, info


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("kind", ["dummy", "sync"])
def test_different_first_observations_are_an_error_unless_asked_for(kind, n):
    def make():
        if kind == "dummy":
            return DummyVecEnv([Drifting] * n)
        return SyncVectorEnv([Drifting] * n)

    with pytest.raises(ValueError, match=r"different observations.*mixed_start=True"):
        collected(model_on(make()))
    model = model_on(make(), mixed_start=True)
    rollout = collected(model)
    assert model._source.kind == "mixed_start"
    firsts = rollout.rows[:, 0]
    assert firsts.unique().numel() == P * G, "every member keeps its own first observation"
    assert rollout.observations[firsts, 1].eq(0).all()


def test_an_error_names_the_dict_key_that_differs():
    space = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,)))
    env = OneStep(gym.spaces.Discrete(2), space, lambda seen, action: 0.0)
    original = env.reset

    def reset(**how):
        seen, info = original(**how)
        seen["b"] = np.random.default_rng().uniform(size=2).astype(np.float32)
        return seen, info

    env.reset = reset
    with pytest.raises(ValueError, match="in 'b'"):
        collected(GRPO("MultiInputPolicy", env, group_size=2, n_problems=1))


def test_mixed_start_on_an_environment_with_ids_plays_its_own_problems():
    model = model_on(native("vlm", 4 * G, AutoresetMode.SAME_STEP), "vlm", mixed_start=True)
    assert collected(model).observations.shape == (P * G, 128)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_success_is_unknown_only_where_it_is_not_reported(mode):
    makers = [Puzzle, lambda: Puzzle(reports=False)] * 2
    env = SyncVectorEnv(makers, autoreset_mode=mode)
    rollout = collected(model_on(env))
    assert np.isnan(rollout.success).tolist() == [False, True] * (P * G // 2)


# -- wrappers -------------------------------------------------------------------------------------


def test_frame_stack_and_episode_statistics():
    rollout = collected(model_on(VecFrameStack(dummy("cartpole", G), 2)))
    assert rollout.observations.shape[1] == 8
    assert (rollout.observations[rollout.rows[:, 0], :4] == 0).all()
    for mode in AutoresetMode:
        plain = collected(model_on(sync("walk", G, mode)))
        counted = collected(model_on(RecordEpisodeStatistics(sync("walk", G, mode))))
        torch.testing.assert_close(counted.rewards, plain.rewards)


@pytest.mark.parametrize("n", [1, G // 2, 3, G])
def test_vec_normalize_drifts_within_a_group(n):
    """Members begin alike before they are normalised. They share a row only if they still do."""
    rollout = collected(model_on(VecNormalize(dummy("cartpole", n))))
    firsts = rollout.rows[:, 0].view(P, G)
    alike = [len(group.unique()) == 1 for group in firsts]
    assert alike[0] == (n == G), "where all begin at once"
    assert not all(alike)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_wrapped_adapter_starts_the_problems_it_reports(mode):
    """Infos carry ids, but a SyncVectorEnv takes seeds only; a native environment takes ids."""
    for make, kind in ((sync, "seed"), (native, "problem_id")):
        stacked = VecFrameStack(VectorEnvAdapter(make("vlm", 2 * G, mode)), 2)
        model = model_on(stacked, "vlm")
        rollout = collected(model)
        assert model._source.kind == kind
        naive = TASKS["vlm"]()
        for group, start in enumerate(rollout.starts.tolist()):
            options = {"problem_id": start}
            how = {"seed": start} if kind == "seed" else {"options": options}
            first = rollout.observations[rollout.rows[group * G, 0]].numpy()
            np.testing.assert_array_equal(first[128:], naive.reset(**how)[0])


def test_actions_are_sent_in_the_type_and_the_bounds_of_their_space():
    discrete = to_env(torch.tensor([1, 0]), spaces.Discrete(2, dtype=np.int32))
    assert discrete.dtype == np.int32 and discrete.tolist() == [1, 0]
    binary = to_env(torch.tensor([[1.0, 0.0]]), spaces.MultiBinary(2))
    assert binary.dtype == np.int8 and binary.tolist() == [[1, 0]]
    box = to_env(torch.tensor([[3.0], [-0.5]]), spaces.Box(-1, 1, (1,), np.float64))
    assert box.dtype == np.float64 and box.tolist() == [[1.0], [-0.5]]


# -- stopping, and the counter --------------------------------------------------------------------


def test_an_aborting_callback_stops_and_the_model_can_go_on():
    model = model_on(dummy("walk", G))
    calls = []
    model.learn(1000, callback=lambda locals_, globals_: calls.append(1) or len(calls) < 3)
    assert len(calls) == 3 and model.num_timesteps == 3 * G and model._n_updates == 0
    model.learn(40)
    assert model._n_updates > 0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_callbacks_see_each_episode_once(mode):
    """A member that ended waits; what its sub-environment plays meanwhile is in no episode."""
    layouts = [sync("walk", 4 * G, mode), native("arithmetic", 4 * G, mode)]
    layouts += [sync("walk", G, mode), dummy("walk", 4 * G)]
    for env in layouts:
        heard = {"dones": 0, "rewards": 0.0, "transitions": 0}

        def listen(locals_, globals_, heard=heard):
            heard["dones"] += locals_["dones"].sum()
            heard["rewards"] += locals_["rewards"].sum()
            heard["transitions"] += len(locals_["active"])
            return True

        task = "arithmetic" if env is layouts[1] else "walk"
        model = model_on(env, task)
        _, callback = model._setup_learn(1000, listen)
        callback.on_training_start({}, {})
        model.collect_rollouts(callback)
        rollout = model._rollout
        assert heard["dones"] == P * G == model._episode_num
        assert heard["rewards"] == pytest.approx(rollout.rewards.sum().item())
        assert heard["transitions"] == rollout.mask.sum() == model.num_timesteps


def test_occurrence():
    assert occurrence(np.array([4, 2, 4, 4, 2, 0])).tolist() == [0, 0, 1, 2, 1, 0]
