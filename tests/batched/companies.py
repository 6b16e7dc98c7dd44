"""Companies and single runs of one configuration, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from grpo_bench import GRPO
from grpo_bench.batched.run import make_grpo
from grpo_bench.batched.train import Company
from grpo_bench.config import CONF, resolved
from grpo_bench.grpo.rollout import Rollout

EPISODES = 128  # of an iteration
SMALL = [f"env.train.episodes={EPISODES}", "env.network.widths=[16,8]"]


def config(results: Path, *overrides: str) -> dict[str, Any]:
    """A resolved configuration of a small network on the VLM task, at the smallest budget."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        fixed = ["budget=smoke", "tuned=none", f"results='{results}'", *SMALL]
        return resolved(compose("config", [*fixed, *overrides]))


def make_company(seeds: Sequence[int], iterations: int, *overrides: str) -> Company:
    """Seeds of one configuration, not trained yet."""
    configs = [config(Path("nowhere"), *overrides, f"seed={seed}") for seed in seeds]
    return Company([partial(make_grpo, each) for each in configs], iterations * EPISODES)


class Single(BaseCallback):
    """A run of its own: its model, its last rollout, what it logged last, and torch's generator."""

    def __init__(self, seed: int, iterations: int, *overrides: str) -> None:
        super().__init__()
        self.rollout: Rollout
        self.logged: dict[str, float] = {}
        self.trained: GRPO = make_grpo(config(Path("nowhere"), *overrides, f"seed={seed}"))
        self.trained.set_logger(Logger(folder=None, output_formats=[Keep(self.logged)]))
        self.trained.learn(iterations * EPISODES, self)
        self.generator_state = torch.get_rng_state()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollout = self.locals["rollout"]


class Keep(KVWriter):
    """Keeps what is logged of rollouts and updates."""

    def __init__(self, into: dict[str, float]) -> None:
        self.into = into

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        mine = {name: v for name, v in key_values.items() if not name.startswith("time/")}
        self.into.update(mine)

    def close(self) -> None:
        pass
