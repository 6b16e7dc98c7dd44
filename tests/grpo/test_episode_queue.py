"""Every step that is played counts, on every kind of vector environment, and all counts agree."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.results_plotter import load_results
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from support.toys import SMALL, collected

from grpo_bench import GRPO
from grpo_bench.grpo.envs import LONGEST, steps_limit
from grpo_bench.grpo.episode_queue import EpisodeQueue

MODES = list(AutoresetMode)
WORDS = {"info_keywords": ("chosen",)}


class Story(gym.Env):
    """Of 1 to 6 steps, by its start. Observations and rewards name the start and the step, so a
    step in the wrong episode shows."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    started = stepped = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.t, self.started = int(self.np_random.integers(1000)), 0, self.started + 1
        return self._seen(), {}

    def step(self, action):
        self.t, self.stepped = self.t + 1, self.stepped + 1
        done = self.t > self.start % 6
        info = {"counts": self.stepped, "chosen": float(action)}
        return self._seen(), self.start + self.t / 8 + action / 64, done, False, info

    def _seen(self):
        return np.array([self.start, self.t], dtype=np.float64)


class Listener(BaseCallback):
    """What SB3's callbacks look at."""

    def __init__(self):
        super().__init__()
        self.steps, self.episodes, self.sent = 0, [], []

    def _on_step(self):
        seen = self.locals
        assert len(seen["infos"]) == len(seen["rewards"]) == len(seen["dones"])
        self.steps += len(seen["active"])
        self.sent += list(seen["actions"])
        self.episodes += [i["episode"] for i in seen["infos"] if "episode" in i]
        assert len(seen["new_obs"]) == len(seen["infos"])
        return True


def dummy(n):
    return DummyVecEnv([Story] * n)


def processes(n):
    return SubprocVecEnv([Story] * n, start_method="fork")


def sync(mode):
    return lambda n: SyncVectorEnv([Story] * n, autoreset_mode=mode)


def asynchronous(mode, shared_memory=True):
    def make(n):
        return AsyncVectorEnv(
            [Story] * n, autoreset_mode=mode, shared_memory=shared_memory, context="fork"
        )

    return make


KINDS = {
    "dummy": dummy,
    "subproc": processes,
    **{f"sync {mode.name}": sync(mode) for mode in MODES},
    **{f"async {mode.name}": asynchronous(mode) for mode in MODES},
    "async without shared memory": asynchronous(AutoresetMode.NEXT_STEP, shared_memory=False),
}


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_is_whole_episodes_each_in_its_place(kind, n):
    """4 groups of 4, on any number of sub-environments, twice: nothing is left of the first."""
    env = KINDS[kind](n)
    model = GRPO("MlpPolicy", env, group_size=4, n_problems=4, seed=1)
    for _ in range(2):
        rollout = collected(model)
        firsts = rollout.observations[rollout.rows[:, 0]].numpy()
        starts = firsts[:, 0].astype(int)
        assert (firsts[:, 1] == 0).all() and (starts.reshape(4, 4) == starts[::4, None]).all()
        assert rollout.lengths.tolist() == (starts % 6 + 1).tolist()
        for episode, t in rollout.mask.nonzero().tolist():
            seen = rollout.observations[rollout.rows[episode, t]]
            assert seen.tolist() == [starts[episode], t]
            action = rollout.actions[episode, t].item()
            expected = starts[episode] + (t + 1) / 8 + action / 64
            assert rollout.rewards[episode, t].item() == pytest.approx(expected)
        assert rollout.log is None, "logged, and dropped"
        assert model.num_timesteps == rollout.mask.sum()
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_every_step_counts(mode):
    envs = [Story() for _ in range(3)]
    for env in (
        DummyVecEnv([lambda env=env: env for env in envs]),
        SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode),
    ):
        for each in envs:
            each.stepped = 0
        model = GRPO("MlpPolicy", env, **SMALL).learn(150)
        assert sum(each.stepped for each in envs) == model.num_timesteps


def test_monitor_and_model_agree_on_every_episode(tmp_path):
    env = make_vec_env(Story, 3, monitor_dir=str(tmp_path), monitor_kwargs=WORDS)
    listener = Listener()
    model = GRPO("MlpPolicy", env, stats_window_size=10_000, **SMALL)
    model.learn(100, callback=listener)
    csv, ours = load_results(str(tmp_path)), list(model.ep_info_buffer)
    assert model._episode_num == len(csv) == len(ours) == len(listener.episodes)
    assert csv.l.sum() == model.num_timesteps == listener.steps == len(listener.sent)
    assert [e["r"] for e in ours] == [e["r"] for e in listener.episodes], "in the order of the ends"
    for name in ("r", "l", "chosen"):
        assert sorted(csv[name]) == sorted(episode[name] for episode in ours)


@pytest.mark.parametrize("mode", MODES)
def test_the_statistics_of_gymnasium_agree(mode):
    env = RecordEpisodeStatistics(sync(mode)(3), buffer_length=10_000)
    model = GRPO("MlpPolicy", env, stats_window_size=10_000, **SMALL).learn(100)
    ours = list(model.ep_info_buffer)
    assert env.episode_count == len(ours)
    assert sorted(env.length_queue) == sorted(episode["l"] for episode in ours)
    assert sorted(env.return_queue) == pytest.approx(sorted(episode["r"] for episode in ours))


def test_the_log_has_raw_returns():
    """Whatever a wrapper makes of them, and with or without a Monitor."""
    envs = [
        VecNormalize(dummy(3)),
        VecNormalize(DummyVecEnv([lambda: Monitor(Story())] * 3)),
        VecNormalize(VecFrameStack(VecMonitor(dummy(3)), 2)),
        NormalizeReward(sync(AutoresetMode.SAME_STEP)(3)),
    ]
    for env in envs:
        model = GRPO("MlpPolicy", env, stats_window_size=10_000, **SMALL)
        lengths = sorted(collected(model).lengths.tolist())
        assert sorted(info["l"] for info in model.ep_info_buffer) == lengths
        for info in model.ep_info_buffer:
            length = info["l"]
            least = sum(length - 1 + t / 8 for t in range(1, length + 1))
            start = (info["r"] - sum(t / 8 for t in range(1, length + 1))) // length
            assert info["r"] >= least and start % 6 == length - 1


class Pair(Story):
    """Observations that VecFrameStack stacks one by one, the last one of an episode in place."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-9e9, 9e9, (3,), np.float32) for name in "ab"}
    )

    def _seen(self):
        return {name: np.full(3, self.t, np.float32) for name in "ab"}


@pytest.mark.parametrize("n", [1, 3, 5])
def test_stacked_observations_in_a_dict(n):
    env = VecFrameStack(DummyVecEnv([Pair] * n), 2)
    rollout = collected(GRPO("MultiInputPolicy", env, **SMALL))
    for t in range(rollout.mask.shape[1]):
        played = rollout.mask[:, t].numpy()
        for frames in rollout.observations.values():
            seen = frames[rollout.rows[played, t]].numpy()  # (n, 2 frames x 3)
            assert (seen[:, 3:] == t).all() and (seen[:, :3] == max(t - 1, 0)).all()


def test_the_environment_is_as_it_was_afterwards():
    """Its wrappers and it can be used by another algorithm, and again by this one."""
    env = VecNormalize(dummy(3))
    base = env.venv
    model = GRPO("MlpPolicy", env, **SMALL).learn(50)
    assert env.venv is base and model.env is env
    wrapped = RecordEpisodeStatistics(sync(AutoresetMode.SAME_STEP)(3))
    below = wrapped.env
    GRPO("MlpPolicy", wrapped, **SMALL).learn(50)
    assert wrapped.env is below
    with pytest.raises(KeyError):
        GRPO("MlpPolicy", env, **SMALL).learn(50, callback=lambda locals_, _: locals_["nothing"])
    assert env.venv is base, "also after an error"


class Endless(Story):
    def step(self, action):
        seen, reward, _, _, info = super().step(action)
        return seen, reward, False, False, info


def test_an_episode_that_never_ends_is_an_error():
    for env in (DummyVecEnv([Endless] * 2), SyncVectorEnv([Endless] * 2)):
        model = GRPO("MlpPolicy", env, max_episode_steps=20, **SMALL)
        with pytest.raises(ValueError, match=r"not ended after 20 .*TimeLimit.*max_episode_steps"):
            model.learn(100)
    model = GRPO("MlpPolicy", DummyVecEnv([Story] * 2), max_episode_steps=6, **SMALL)
    assert model.learn(50).num_timesteps >= 50, "as long as allowed"
    with pytest.raises(ValueError, match="after 5 steps"):
        GRPO("MlpPolicy", DummyVecEnv([Story] * 2), max_episode_steps=5, **SMALL).learn(500)


def test_the_limit_is_that_of_the_spec():
    assert steps_limit(make_vec_env("CartPole-v1", 2)) == 500
    assert steps_limit(DummyVecEnv([Story])) == LONGEST


def test_episodes_are_given_out_in_order():
    queue = EpisodeQueue(np.array([7, 7, 8, 8, 9]), 3, "seed")
    assert queue.advance(np.arange(3)).tolist() == [0, 1, 2] and queue.left == 2
    assert queue.resets(np.array([0, 2])) == [(7, None), (8, None)]
    assert queue.advance(np.array([1])).tolist() == [1]
    assert queue.playing.tolist() == [0, 3, 2]
    assert queue.advance(np.array([0, 2])).tolist() == [0], "one is left, and the first gets it"
    assert queue.playing.tolist() == [4, 3, -1] and queue.active().tolist() == [0, 1]
    assert EpisodeQueue(np.array([1.5]), 1, "problem_id").kind == "problem_id"


def test_the_progress_bar_counts_transitions(monkeypatch):
    bars = []
    monkeypatch.setattr(
        "grpo_bench.grpo.base.Progress.on_training_end", lambda bar: bars.append(bar.pbar.n)
    )
    model = GRPO("MlpPolicy", dummy(3), **SMALL)
    model.learn(60, progress_bar=True)
    first = model.num_timesteps
    model.learn(60, progress_bar=True, reset_num_timesteps=False)
    assert bars == [first, model.num_timesteps - first]
