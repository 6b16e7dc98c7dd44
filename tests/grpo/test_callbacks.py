"""SB3's callbacks, loggers and log names."""

import csv

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
)
from support.toys import SMALL, Walk, walker

from grpo_bench import GRPO


def test_sb3s_callbacks(tmp_path):
    env = DummyVecEnv([lambda: Monitor(Walk())])
    evaluate = EvalCallback(env, eval_freq=5, n_eval_episodes=3, log_path=str(tmp_path), verbose=0)
    save = CheckpointCallback(save_freq=10, save_path=str(tmp_path))
    model = walker().learn(100, callback=[evaluate, save])
    assert len(evaluate.evaluations_timesteps) == evaluate.n_calls // 5 > 2
    assert np.isfinite(evaluate.last_mean_reward)
    saved = sorted(tmp_path.glob("rl_model_*.zip"))
    assert len(saved) == save.n_calls // 10 > 0
    assert GRPO.load(saved[0]).num_timesteps < model.num_timesteps


@pytest.mark.parametrize("mode", AutoresetMode)
def test_stop_training_on_max_episodes_counts_groups_members_only(mode):
    """Limit 2 for each of 4 sub-environments: exactly one iteration of 8 episodes."""
    stop = StopTrainingOnMaxEpisodes(max_episodes=2)
    model = GRPO("MlpPolicy", SyncVectorEnv([Walk] * 4, autoreset_mode=mode), **SMALL)
    model.learn(10_000, callback=stop)
    assert stop.n_episodes == 8 and model._episode_num <= 8


def test_function_callback_progress_bar_and_verbose(capsys):
    seen = []
    walker(verbose=1).learn(
        30, callback=lambda locals_, _: seen.append(len(locals_["active"])) or True,
        progress_bar=True,
    )  # fmt: skip
    assert sum(seen) >= 30
    assert "ep_rew_mean" in capsys.readouterr().out


def test_the_log_has_sb3s_names_and_only_what_exists(tmp_path):
    model = walker(kl="k3", kl_coef=0.1)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(100)
    with open(tmp_path / "progress.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 2
    wanted = {
        "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/zero_std_frac", "rollout/group_std",
        "rollout/informative_cost", "train/kl_ref",
        "time/fps", "time/total_timesteps", "time/iterations", "time/time_elapsed",
        "train/loss", "train/policy_gradient_loss", "train/clip_fraction", "train/approx_kl",
        "train/grad_norm", "train/entropy_loss", "train/n_updates", "train/clip_range",
        "train/learning_rate", "train/kl_ref_k1", "train/kl_ref_k3",
    }  # fmt: skip
    assert set(rows[-1]) == wanted, "no critic's numbers, and no success that is unknown"
    steps = [int(row["time/total_timesteps"]) for row in rows]
    assert steps == sorted(steps) and steps[-1] == model.num_timesteps
    assert [int(row["train/n_updates"]) for row in rows] == list(range(1, len(rows) + 1))
    episodes = list(model.ep_info_buffer)
    assert float(rows[-1]["rollout/ep_rew_mean"]) == pytest.approx(
        np.mean([episode["r"] for episode in episodes])
    )
    env = gym.make_vec("GRPO-VLM-v0", 8, source="synthetic")
    model = GRPO("MlpPolicy", env, **SMALL)
    model.set_logger(configure(str(tmp_path / "vlm"), ["csv"]))
    model.learn(8)
    with open(tmp_path / "vlm" / "progress.csv") as file:
        row = next(csv.DictReader(file))
    right = float(row["rollout/success_rate"])
    assert float(row["rollout/ep_rew_mean"]) == pytest.approx(1.5 * right - 0.5)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    walker(tensorboard_log=str(tmp_path)).learn(30)
    assert list(tmp_path.glob("GRPO_1/events*"))
