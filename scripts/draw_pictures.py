"""Draw the pictures of README.md: docs/images/vlm-card.png and docs/images/group.svg.

    python scripts/draw_pictures.py

The card is how ``GRPO-VLM-v0`` renders an answer. The group is a real rollout: the warmed-up
policy, from which training on ``arithmetic`` starts, answers one problem eight times.
"""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import grpo_envs  # noqa: F401  (registers the ids)
from grpo_bench.config import composed
from grpo_bench.config.schema import GymEnvConfig
from grpo_bench.grpo.advantages import group_advantages
from grpo_bench.grpo.policies import MultiInputPolicy
from grpo_bench.training.baselines import load_actor
from grpo_bench.training.networks import policy_kwargs
from grpo_bench.training.warmup import warmed_up

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images"
GROUP_SIZE, SEED = 8, 3
CARD, SUM = 18_233, 3_657  # problem ids: "what shape is in the image?" and 36+57
BLUE, ORANGE = "#0072b2", "#d55e00"


def draw_card(out: Path) -> None:
    """Draw the card of one visual problem with the right answer."""
    env = gym.make("GRPO-VLM-v0", render_mode="rgb_array")
    env.reset(options={"problem_id": CARD})
    env.step(1)
    Image.fromarray(env.render()).save(out)


def play_group(config: GymEnvConfig) -> tuple[str, list[str], NDArray[np.float64]]:
    """One problem, G sampled answers to it, and their rewards (G,)."""
    torch.set_num_threads(1)  # as in runs: more threads slow down so small a network
    envs = gym.make_vec(config.id, GROUP_SIZE, autoreset_mode="Disabled", **config.kwargs)
    task = envs.unwrapped.task
    spaces = task.observation_space, task.action_space
    policy = MultiInputPolicy(*spaces, lambda share: 0.0, **policy_kwargs(config.network))
    load_actor(policy, warmed_up(task, config, ROOT / "results" / "runs" / "warmup")[0])
    torch.manual_seed(SEED)
    observations, _ = envs.reset(options={"problem_id": np.full(GROUP_SIZE, SUM)})
    rewards, running = np.zeros(GROUP_SIZE), np.ones(GROUP_SIZE, dtype=bool)
    while running.any():
        actions, _ = policy.predict(observations, deterministic=False)
        observations, paid, ended, _, _ = envs.step(actions)
        rewards, running = rewards + paid, running & ~ended
    cards = [task.describe(envs.unwrapped._state, i) for i in range(GROUP_SIZE)]
    answers = ["".join(re.findall(r"Tokens: (.*) <eos>", card)).replace(" ", "") for card in cards]
    return task.expressions(np.array([SUM]))[0], answers, rewards


def draw_group(problem: str, answers: list[str], rewards: NDArray[np.float64], out: Path) -> None:
    """Draw one row per answer: the answer, its reward, and its advantage as a bar."""
    advantages = group_advantages(torch.tensor(rewards)[None])[0].numpy()  # (G,)
    plt.rcParams.update({"svg.hashsalt": "grpo", "font.size": 11})
    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    rows = np.arange(GROUP_SIZE)
    colours = [BLUE if advantage > 0 else ORANGE for advantage in advantages]
    bars = axes.barh(rows, advantages, color=colours, height=0.72)
    axes.bar_label(bars, [f"{a:+.2f}".replace("-", "−") for a in advantages], padding=4)
    axes.vlines(0, -0.5, GROUP_SIZE - 0.5, color="black", linewidth=0.8)
    for row, (answer, reward, colour) in enumerate(zip(answers, rewards, colours, strict=True)):
        axes.text(-3.4, row, f"{problem} = {answer}", va="center", family="monospace")
        axes.text(-1.95, row, f"{reward:.0f}", va="center", color=colour, weight="bold")
    for x, heading in ((-3.4, "answer"), (-2.1, "reward"), (0, "advantage")):
        axes.text(x, -0.85, heading, color="#555555", ha="left" if x else "center")
    axes.set(xlim=(-3.5, 2), ylim=(GROUP_SIZE - 0.5, -1.3), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    mean, std = rewards.mean(), rewards.std()
    axes.set_title(
        f"One problem, G = {GROUP_SIZE} sampled answers: mean reward {mean:.3g}, "
        f"std {std:.2f}, advantage = (reward − mean) / std",
        fontsize=10,
    )
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    draw_card(PICTURES / "vlm-card.png")
    draw_group(*play_group(composed("env=arithmetic").env), PICTURES / "group.svg")
