"""Transitions per second on control tasks: GRPO with and without its episode queue, and SB3's PPO.

    python benchmarks/control_speed.py --repeats 5

Without the queue, as on vector environments whose sub-environments cannot be stepped one by one,
all episodes of a batch begin together, and those that have ended go on with steps that count
nowhere. Each subject trains for the same number of transitions from the same seed, in turns, with
the same network, sub-environments, passes and minibatches. LunarLander and MiniGrid need the extra
``control``, and are left out without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import gymnasium as gym
import torch
from _compare import Table, interleaved, parser, progress, ratio, ratio_columns, spread, verdict
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from grpo_bench import GRPO
from grpo_bench.grpo import groups
from grpo_bench.report.text.numbers import significant
from grpo_bench.report.text.writers import Column

ENVS = {
    "CartPole-v1": "CartPole-v1",
    "LunarLander-v3": "LunarLander-v3",
    "MiniGrid-Empty-8x8-v0": "minigrid:MiniGrid-Empty-8x8-v0",
}
SUB_ENVS = 8
TRANSITIONS = 20_000
PASSES = {"n_epochs": 8, "seed": 0, "device": "cpu"}


class Counted(gym.Wrapper):
    """Counts the steps that are really played."""

    played = 0

    def step(self, action: Any) -> Any:
        Counted.played += 1
        return super().step(action)


def make(env_id: str) -> VecEnv:
    """The sub-environments; flat observations for MiniGrid."""

    def wrapped(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        if "MiniGrid" in env_id:
            from minigrid.wrappers import FlatObsWrapper

            env = FlatObsWrapper(env)
        return Counted(env)

    return make_vec_env(env_id, SUB_ENVS, seed=0, wrapper_class=wrapped)


def measured(make_model: Callable[[], BaseAlgorithm], queue: bool = True) -> tuple[float, float]:
    """Counted transitions per second of training, and steps played for each."""
    model = make_model()
    Counted.played = 0
    patch = nullcontext() if queue else mock.patch.object(groups, "sub_envs_of", return_value=None)
    with patch:
        began = time.perf_counter()
        model.learn(TRANSITIONS)
        seconds = time.perf_counter() - began
    assert model.env is not None
    model.env.close()
    return model.num_timesteps / seconds, Counted.played / model.num_timesteps


def installed(env_id: str) -> bool:
    """Whether the environment can be made here."""
    try:
        make(env_id).close()
    except (ImportError, gym.error.Error) as error:
        progress(f"{env_id}: left out ({str(error).splitlines()[0]})")
        return False
    return True


def main() -> None:
    """Print the table, and write ``control_speed.md`` and ``.csv``."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    table = Table(
        "Transitions per second on control tasks",
        ("environment", "subject", "against"),
        (
            Column("transitions/s", "rate", significant, interval=True),
            Column("of the other", "other_rate", significant, interval=True),
            *ratio_columns("times the other"),
            Column("steps played for each counted", "played", significant),
            Column("of the other", "other_played", significant),
        ),
        options.repeats,
    )
    for name, env_id in ENVS.items():
        if not installed(env_id):
            continue

        def grpo(turn: int, env_id: str = env_id, queue: bool = True) -> tuple[float, float]:
            return measured(lambda: GRPO("MlpPolicy", make(env_id), **PASSES), queue)

        def ppo(turn: int, env_id: str = env_id) -> tuple[float, float]:
            # of an iteration: 2 minibatches here, and 2 of a group of 8 episodes each in GRPO
            batch: dict[str, Any] = {"n_steps": 128, "batch_size": 512}
            return measured(lambda: PPO("MlpPolicy", make(env_id), **batch, **PASSES))

        subjects = {
            "GRPO": grpo,
            "GRPO without the queue": lambda turn: grpo(turn, queue=False),
            "PPO": ppo,
        }
        progress(f"{name}: {options.repeats} turns of {len(subjects)} subjects")
        found = interleaved(subjects, options.repeats)
        ours, played = zip(*found["GRPO"], strict=True)
        for other in ("GRPO without the queue", "PPO"):
            rates, its = zip(*found[other], strict=True)
            times = ratio(ours, rates)
            table.add(
                {"environment": name, "subject": "GRPO", "against": other},
                *(spread("rate", ours), spread("other_rate", rates), times),
                {"played": max(played), "other_played": max(its)},
            )
            if "queue" in other:
                table.targets.append(verdict(f"{name}: queue", times, at_least=1.0))
    table.write(options.out, "control_speed")


if __name__ == "__main__":
    main()
