"""How a run on the Gym track goes on after it was cut off.

GRPO's iterations begin with new episodes, so between two of them its state is the model with its
optimiser, the random streams, and what has been recorded. SB3's other algorithms stop in the middle
of episodes, whose environments cannot be saved: their runs start over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.records.checkpoints import Checkpoint

MODEL, NORMALIZE = "model.zip", "normalize.pkl"


@dataclass
class Counts:
    """What the recorder has counted."""

    gradient_steps: int = 0
    evaluated: int = 0
    evaluated_at: int = 0  # transitions
    success: float = float("nan")
    rollout_bytes: int = 0
    start_bytes: int = 0
    peak_before: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase
    doctor: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)  # metrics for the end


def can_resume(model: BaseAlgorithm) -> bool:
    """Whether a run of it goes on from a checkpoint; others start over."""
    return isinstance(model, GRPO)


def write_model(model: BaseAlgorithm, folder: Path) -> None:
    """Put the model, and the statistics of its ``VecNormalize``, into a folder."""
    model.save(folder / MODEL)
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        normalize.save(str(folder / NORMALIZE))


def resumed(model: BaseAlgorithm, checkpoint: Checkpoint) -> tuple[BaseAlgorithm, Counts]:
    """The model of a checkpoint, on the environment of a new one, and its counts."""
    env = model.env
    assert env is not None
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        saved = VecNormalize.load(str(checkpoint.folder / NORMALIZE), normalize.venv)
        normalize.obs_rms, normalize.ret_rms = saved.obs_rms, saved.ret_rms
    found = type(model).load(checkpoint.folder / MODEL, env=env, device=model.device)
    state = {name: value for name, value in checkpoint.state.items() if name != "rows"}
    counts = Counts(**state)
    if isinstance(found, GRPO):
        vars(found.doctor).update(counts.doctor)
    return found, counts
