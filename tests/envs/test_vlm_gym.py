"""GRPO-VLM under Gymnasium and SB3: their checkers, registration, autoreset, rendering."""

import pickle
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from grpo_envs.vlm import VLMEnv, VLMVectorEnv

OPTIONS: list[dict[str, Any]] = [
    {},
    {"split": "validation"},
    {"split": "test"},
    {"source": "synthetic"},
    {"source": "synthetic", "difficulty": 0.0, "n_choices": 2, "embed_dim": 6},
    {"source": "synthetic", "difficulty": 2.0, "n_choices": 7, "embed_dim": 61, "split": "test"},
]
SOURCES = ["easy_vqa", "synthetic"]
KEYS = ["problem_id", "is_success", "accuracy"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_both_checkers_pass(options, render_mode):
    check_env(gym.make("GRPO-VLM-v0", render_mode=render_mode, **options).unwrapped)
    sb3_check_env(gym.make("GRPO-VLM-v0", render_mode=render_mode, **options))


def test_every_way_to_make_it():
    env = gym.make("grpo_envs:GRPO-VLM-v0", source="synthetic", embed_dim=64)
    assert env.observation_space.shape == (64,)
    assert "synthetic" in env.spec.to_json()
    vector = gym.make_vec("GRPO-VLM-v0", num_envs=3, split="test")
    assert isinstance(vector.unwrapped, VLMVectorEnv)
    assert vector.observation_space.shape == (3, 128)
    observations, infos = vector.reset(seed=1)
    assert vector.observation_space.contains(observations)
    assert all(infos[key].dtype == np.float64 for key in KEYS)


@pytest.mark.parametrize("source", SOURCES)
def test_a_seed_fixes_everything_and_a_pickle_continues_alike(source):
    def play(env, steps):
        return np.array([[*env.reset()[0], env.step(1)[1]] for _ in range(steps)])

    one, two, other = (VLMEnv(source=source) for _ in range(3))
    for env, seed in ((one, 5), (two, 5), (other, 6)):
        env.reset(seed=seed)
    first = play(one, 20)
    np.testing.assert_array_equal(first, play(two, 20))
    assert not np.array_equal(first, play(other, 20))
    copy = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(play(copy, 20), play(one, 20))
    if source == "easy_vqa":
        assert len(pickle.dumps(one)) < 10_000  # without the tables


@pytest.mark.parametrize("source", SOURCES)
def test_results_share_no_memory_with_the_environment(source):
    env = VLMVectorEnv(4, source=source, autoreset_mode="Disabled")
    ids = np.arange(4)
    before, _ = env.reset(options={"problem_id": ids})
    expected = before.copy()
    before[:] = 0
    ids[:] = 9
    actions = np.arange(4)
    after, *_ = env.step(actions)
    actions[:] = 0
    np.testing.assert_array_equal(after, expected)
    assert env._state["choice"].tolist() == [0, 1, 2, 3]


# -- autoreset: the native environment against Gymnasium's, on the same problems --------------


class Scripted(gym.Wrapper):
    """The scalar environment, started on the problems of a list in order."""

    def __init__(self, ids: list[float], source: str) -> None:
        super().__init__(VLMEnv(source=source))
        self.ids = iter(ids)

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed, options={"problem_id": next(self.ids)})


def compare(native: tuple, peer: tuple) -> None:
    for ours, theirs in zip(native[:-1], peer[:-1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(native[-1]["problem_id"], peer[-1]["problem_id"])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_is_gymnasiums(mode, source):
    n, steps = 5, 12
    actions = np.random.default_rng(3).integers(4, size=(steps, n))
    env = VLMVectorEnv(n, source=source, autoreset_mode=mode)

    def roll(env):
        yield env.reset(seed=0)
        for step in range(steps):
            if mode is AutoresetMode.DISABLED and step:
                yield env.reset(options={"reset_mask": np.ones(n, dtype=bool)})
            yield env.step(actions[step])

    ours = list(roll(env))
    starts = {  # the calls that begin problems
        AutoresetMode.SAME_STEP: range(steps + 1),
        AutoresetMode.NEXT_STEP: range(0, steps + 1, 2),
        AutoresetMode.DISABLED: range(0, 2 * steps, 2),
    }[mode]
    script = np.array([ours[i][-1]["problem_id"] for i in starts]).T.tolist()
    peer = SyncVectorEnv(
        [lambda ids=ids: Scripted(ids, source) for ids in script], autoreset_mode=mode
    )
    theirs = list(roll(peer))
    assert len(ours) == len(theirs)
    for native, gymnasiums in zip(ours, theirs, strict=True):
        compare(native, gymnasiums)
        if mode is AutoresetMode.SAME_STEP and len(native) == 5:
            final, expected = native[-1], gymnasiums[-1]
            np.testing.assert_array_equal(final["_final_obs"], expected["_final_obs"])
            np.testing.assert_array_equal(final["final_obs"], np.stack(expected["final_obs"]))
            for key in KEYS:
                np.testing.assert_array_equal(final["final_info"][key], expected["final_info"][key])


@pytest.mark.parametrize("source", SOURCES)
def test_disabled_autoreset_lets_the_others_wait(source):
    env = VLMVectorEnv(4, source=source, autoreset_mode="Disabled")
    env.reset(options={"problem_id": np.arange(4)})
    env.step(np.zeros(4, dtype=int))
    mask = np.array([True, False, False, True])
    _, infos = env.reset(options={"problem_id": np.arange(10, 14), "reset_mask": mask})
    assert infos["problem_id"].tolist() == [10, 1, 2, 13]
    places = env.task.source.place(np.array([10, 1, 2, 13]))
    _, rewards, terminated, _, _ = env.step(places)
    assert rewards.tolist() == [1, 0, 0, 1]
    assert terminated.all()


# -- rendering --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_the_card_shows_the_verdict_after_the_step(source):
    env = VLMEnv(source=source, render_mode="rgb_array")
    env.reset(options={"problem_id": 17})
    right = int(env.task.source.place(np.array([17]))[0])
    cards = [env.render()]
    for action in (right, (right + 1) % 4):
        env.reset(options={"problem_id": 17})
        env.step(action)
        cards.append(env.render())
    assert all(card.dtype == np.uint8 and card.shape == cards[0].shape for card in cards)
    assert (cards[0][-1] == 255).all()  # no verdict yet
    green, red = (tuple(card[-1, 0].tolist()) for card in cards[1:])
    assert green[1] > max(green[0], green[2])
    assert red[0] > max(red[1], red[2])


def test_the_text_shows_the_verdict_after_the_step():
    env = VLMEnv(render_mode="ansi")
    env.reset(options={"problem_id": 0})
    assert env.render() == (
        "Question: what is the blue shape?\nA) rectangle\nB) brown\nC) triangle\nD) circle"
    )
    env.step(2)
    assert env.render().endswith("D) circle\nWrong: C, right is A, reward -0.5")
    env.reset(options={"problem_id": 0})
    env.step(0)
    assert env.render().endswith("\nRight: A, reward +1.0")
    vector = VLMVectorEnv(2, render_mode="ansi")
    vector.reset(options={"problem_id": [0, 0]})
    assert len(set(vector.render())) == 1
    assert VLMEnv().render() is None


def test_playing_needs_neither_pillow_nor_torch_nor_sb3():
    code = (
        "import sys, gymnasium, grpo_envs\n"
        "env = gymnasium.make('GRPO-VLM-v0'); env.reset(seed=0); env.step(0)\n"
        "sys.exit(str([m for m in ('PIL', 'torch', 'stable_baselines3') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
