"""Every id with the tools that users combine it with: Gymnasium's constructors and wrappers,
Stable-Baselines3's vector environments and algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import grpo_envs  # noqa: F401  (registers the ids)
from grpo_envs.task import Task

IDS = sorted(name for name in gym.registry if name.startswith("GRPO-"))
EACH_ID = pytest.mark.parametrize("env_id", IDS)
pytestmark = pytest.mark.filterwarnings("error")


def test_ids() -> None:
    assert {"GRPO-Arithmetic-v0", "GRPO-Format-v0", "GRPO-VLM-v0"} <= set(IDS)


def task_of(env: gym.Env[Any, Any]) -> Task:
    return env.unwrapped.task  # type: ignore[attr-defined]


def play(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], steps: int = 40) -> list[Any]:
    """Random actions; every observation must be in its space. Returns the results of the steps."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    given = []
    for _ in range(steps):
        given.append(env.step(env.action_space.sample()))
        assert env.observation_space.contains(given[-1][0])
        if not isinstance(env, VectorEnv) and (given[-1][2] or given[-1][3]):
            env.reset()
    env.close()
    return given


# -- Gymnasium, one environment -------------------------------------------------------------------

WRAPPERS: dict[str, Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = {
    "flatten": wrappers.FlattenObservation,
    "autoreset": wrappers.Autoreset,
    "stack": lambda env: wrappers.FrameStackObservation(env, 3),
    "normalise": lambda env: wrappers.NormalizeObservation(wrappers.FlattenObservation(env)),
    "reward": wrappers.NormalizeReward,
    "sticky": lambda env: wrappers.StickyAction(env, 0.2),
}


@EACH_ID
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers(env_id: str, name: str) -> None:
    assert play(WRAPPERS[name](gym.make(env_id)))


@EACH_ID
def test_a_time_limit_truncates_and_an_end_terminates(env_id: str) -> None:
    for limited in (
        wrappers.TimeLimit(gym.make(env_id), 2),
        gym.make(env_id, max_episode_steps=2),
    ):
        limited.reset(seed=0)
        zero = int(limited.action_space.start)  # type: ignore[attr-defined]
        _, _, terminated, truncated, _ = limited.step(zero)  # in the token tasks: <pad>
        assert (terminated, truncated) == (task_of(limited).max_steps == 1, False)
        if not terminated:
            assert limited.step(zero)[2:4] == (False, True)


@EACH_ID
def test_episode_statistics(env_id: str) -> None:
    """One environment, and a vector of them with autoreset, against sums made by hand."""
    rewards: list[float] = []
    for _, reward, terminated, _, info in play(wrappers.RecordEpisodeStatistics(gym.make(env_id))):
        rewards.append(float(reward))
        if terminated:
            assert info["episode"]["r"] == sum(rewards)
            assert info["episode"]["l"] == len(rewards)
            rewards.clear()

    total, length = np.zeros(5), np.zeros(5)
    vector = vector_wrappers.RecordEpisodeStatistics(gym.make_vec(env_id, num_envs=5))
    for _, reward, terminated, _, info in play(vector):
        total, length = total + reward, length + 1
        if terminated.any():
            assert info["_episode"].tolist() == terminated.tolist()
            assert info["episode"]["r"][terminated].tolist() == total[terminated].tolist()
            assert info["episode"]["l"][terminated].tolist() == length[terminated].tolist()
        total[terminated], length[terminated] = 0, 0


@EACH_ID
def test_cards_can_be_frames(env_id: str) -> None:
    """All cards have one size, with or without a verdict and for every problem. They can be frames
    of a video, observations and tiles."""
    frames = wrappers.RenderCollection(gym.make(env_id, render_mode="rgb_array"), pop_frames=False)
    play(frames, 12)
    shapes = {frame.shape for frame in frames.render()}  # type: ignore[union-attr]
    assert len(shapes) == 1
    play(wrappers.AddRenderObservation(gym.make(env_id, render_mode="rgb_array")), 12)
    vector = gym.make_vec(env_id, num_envs=3, render_mode="rgb_array")
    vector.reset(seed=0)
    cards: Any = vector.render()
    assert {card.shape for card in cards} == shapes
    assert vector.metadata["render_fps"] == 1


# -- Gymnasium, vectors ---------------------------------------------------------------------------


@EACH_ID
@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync", "async"])
def test_make_vec(env_id: str, mode: str | None) -> None:
    env = gym.make_vec(env_id, num_envs=2, vectorization_mode=mode, split="test")
    assert env.observation_space == gym.make_vec(env_id, num_envs=2).observation_space
    play(env, 12)


@EACH_ID
def test_vector_wrappers(env_id: str) -> None:
    play(vector_wrappers.NormalizeReward(gym.make_vec(env_id, num_envs=3)))
    flat = gym.make_vec(env_id, num_envs=3, autoreset_mode=AutoresetMode.NEXT_STEP)
    play(vector_wrappers.FlattenObservation(flat))
    for *_, infos in play(vector_wrappers.DictInfoToList(gym.make_vec(env_id, num_envs=3)), 5):
        assert len(infos) == 3
        assert all(info["problem_id"] >= 0 for info in infos)


# -- Stable-Baselines3 ----------------------------------------------------------------------------


@EACH_ID
@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_sb3_trains_on_the_scalar_environments(env_id: str, algorithm: type[PPO]) -> None:
    env = make_vec_env(env_id, n_envs=4, seed=1)
    is_dict = isinstance(env.observation_space, gym.spaces.Dict)
    policy = "MultiInputPolicy" if is_dict else "MlpPolicy"
    settings: dict[str, Any] = {"n_steps": 64, "batch_size": 64, "n_epochs": 1, "device": "cpu"}
    model = algorithm(policy, env, seed=1, **settings).learn(1_000)
    assert model.num_timesteps == 1_024
    assert model.ep_info_buffer
    best = env.get_attr("task")[0].oracle_score
    assert all(episode["r"] <= best for episode in model.ep_info_buffer)
    assert evaluate_policy(model, env, 20, warn=False)[0] <= best


@EACH_ID
def test_masks_for_sb3(env_id: str) -> None:
    env = make_vec_env(env_id, n_envs=2, seed=1)
    with pytest.raises(RuntimeError, match=r"action_masks\(\) before reset\(\)"):
        get_action_masks(env)
    env.reset()
    masks = get_action_masks(env)
    assert masks.shape == (2, env.action_space.n)  # type: ignore[attr-defined]
    assert masks.dtype == bool
    knows_better = type(env.get_attr("task")[0]).action_masks is not Task.action_masks
    assert masks.all() != knows_better


@EACH_ID
def test_sb3_tiles_the_cards(env_id: str) -> None:
    env = make_vec_env(env_id, n_envs=3, seed=1, env_kwargs={"render_mode": "rgb_array"})
    env.reset()
    one = env.get_images()[0]
    tiles = env.render()
    assert one is not None
    assert tiles is not None
    assert tiles.shape == (2 * one.shape[0], 2 * one.shape[1], 3)
