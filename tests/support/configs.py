"""Configurations for tests, as the command composes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_bench.config import CONF, GymConfig, composed
from grpo_bench.runs.models import task_of
from grpo_envs.task import SPLITS

# Our own tasks. Those of the language track are tested in tests/lm, others in tests/training.
NAMES = sorted(path.stem for path in (CONF / "env").glob("*.yaml") if "_text" not in path.stem)
CONTROL = [name for name in NAMES if "  - gym\n" in (CONF / "env" / f"{name}.yaml").read_text()]
ENVS = [name for name in NAMES if name not in (*CONTROL, "gym")]
ALGOS = sorted(
    path.stem for path in (CONF / "algo").glob("*.yaml") if path.stem not in ("class", "ppo_zoo")
)
SHORT_WARMUP = ["env.warmup.steps=2", "env.warmup.batch_size=8"]


def config(results: Path, *overrides: str) -> GymConfig:
    """The configuration of a run at the smallest budget, with the algorithms' own settings."""
    found = composed("budget=smoke", "tuned=none", f"results='{results}'", *overrides)
    assert isinstance(found, GymConfig)
    return found


def evaluate_few_problems(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 50 problems of each split, for tests that are not about the numbers."""
    task = task_of(config(Path("nowhere"), f"env={env}").env)
    few = {split: task.problem_ids(split) for split in SPLITS}
    few |= {split: few[split][:50] for split in ("validation", "test")}
    monkeypatch.setattr(type(task), "problem_ids", lambda self, split: few[split])
