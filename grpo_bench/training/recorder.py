"""What is measured while an algorithm learns: an SB3 callback, the same for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from grpo_bench.config.schema import BudgetConfig
from grpo_bench.fast.gradients import check_gradient
from grpo_bench.grpo.algorithm import GRPO
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import (
    gradient_bytes,
    module_bytes,
    optimizer_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from grpo_bench.meter.schedule import is_due
from grpo_bench.records import Run
from grpo_bench.records.checkpoints import Pace
from grpo_bench.training.baselines import critic_modules
from grpo_bench.training.checkup import Checkup
from grpo_bench.training.resume import Counts, can_resume, write_model
from grpo_envs.task import Split

# Called with the share of the budget that is spent, and the latest success rate.
Progress = Callable[[float, float], None]
Evaluation = Callable[[BaseAlgorithm, Split], dict[str, np.ndarray]]
# SB3 logs these as well; the record has them in other columns, or only settings in them.
NOT_RECORDED = ("time/iterations", "time/time_elapsed", "time/total_timesteps", "time/fps")


class Recorder(BaseCallback):
    """Writes the run record: SB3's log, evaluations, where time and memory go.

    Time counts in phases: ``rollout``, ``update``, and ``evaluation`` apart from both. The
    algorithm's own log lines become metrics under their own names.

    Args:
        run: the record.
        evaluation: plays a split with a model; columns (n,), see ``training.evaluation``.
        budget: its evaluations (see ``schedule``), on its split, do not count the one before
            training.
        phases: the clock, which may have phases from before training.
        progress: called after every iteration.
        minutes: between two checkpoints, at most.
    """

    def __init__(
        self,
        run: Run,
        evaluation: Evaluation,
        budget: BudgetConfig,
        phases: Phases,
        progress: Progress,
        minutes: float = math.inf,
    ) -> None:
        super().__init__()
        self.run, self.play, self.phases, self.progress = run, evaluation, phases, progress
        self.evaluations, self.split, self.test = budget.evaluations, budget.split, budget.test
        self.counts = Counts()
        self.pace = Pace(minutes)
        self.norms: list[torch.Tensor] = []  # of the gradients of an update
        self.checkup: Checkup | None = None  # of an algorithm without a doctor of its own
        self._phase = ExitStack()

    # -- SB3's hooks, in the order of a run -------------------------------------------------------

    def _init_callback(self) -> None:
        self.model.set_logger(Logger(folder=None, output_formats=[RecordWriter(self)]))
        for optimizer in optimizers(self.model):
            optimizer.register_step_post_hook(self._count_step)
        if not isinstance(self.model, GRPO):
            self.checkup = Checkup(self.model)

    def _on_training_start(self) -> None:
        counts = self.counts
        if self.run.checkpoint is None:
            self.evaluate(self.split)
        counts.peak_before = max(counts.peak_before, peak_bytes(self.model.device))
        counts.start_bytes = resident_bytes()
        reset_peak(self.model.device)

    def _on_rollout_start(self) -> None:
        self._phase.close()
        self._log_update()
        share = self.model.num_timesteps / self.model._total_timesteps
        if self.model.num_timesteps > self.counts.evaluated_at:  # not again where it goes on
            due = is_due(share, self.counts.evaluated, self.evaluations)
            if due:
                self.evaluate(self.split)
            if can_resume(self.model):
                self._save_checkpoint(due)
        self.progress(min(share, 1.0), self.counts.success)
        self._phase.enter_context(self.phases("rollout"))

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._phase.close()
        if not self.counts.rollout_bytes:
            buffers = (
                getattr(self.model, f"{name}_buffer", None) for name in ("rollout", "replay")
            )
            kept = self.locals.get("rollout") or next(filter(None, buffers), None)
            self.counts.rollout_bytes = 0 if kept is None else array_bytes(vars(kept))
        self._phase.enter_context(self.phases("update"))

    def _on_training_end(self) -> None:
        self._phase.close()
        self._log_update()

    def _log_update(self) -> None:
        """Log an update now: SB3 does so after the next rollout only, so never for the last one."""
        if self.norms:
            self.model.logger.record("train/grad_norm", torch.stack(self.norms).mean().item())
            self.norms.clear()
        self.model.logger.dump(self.model.num_timesteps)

    def _save_checkpoint(self, evaluated: bool) -> None:
        """Save all that it takes to go on from here, after an evaluation and now and then."""
        if not self.pace.due(evaluated):
            return
        assert isinstance(self.model, GRPO)
        self.counts.seconds = dict(self.phases.seconds)
        self.counts.doctor = vars(self.model.doctor)
        with self.pace.saving():
            self.run.save_checkpoint(asdict(self.counts), partial(write_model, self.model))

    # -- what they write --------------------------------------------------------------------------

    def log(self, metrics: dict[str, float]) -> None:
        """Metrics at this moment of training."""
        peak = max(self.counts.peak_before, peak_bytes(self.model.device))
        seconds = self.train_seconds
        self.run.log(self.model.num_timesteps, self.counts.gradient_steps, seconds, peak, metrics)

    def evaluate(self, split: Split) -> None:
        """Play all problems of the split, and write the rows and their means."""
        with self.phases("evaluation"):
            columns = self.play(self.model, split)
        self.run.evaluation(split, self.model.num_timesteps, columns)
        means = {name: float(columns[name].mean()) for name in columns if name != "problem_id"}
        self.log({f"eval/{split}/{name}": value for name, value in means.items()})
        if split == self.split:
            self.counts.success = means["success"]
            self.counts.evaluated += 1
            self.counts.evaluated_at = self.model.num_timesteps
            self.run.flush()

    def finish(self) -> None:
        """The last evaluations, and the totals of time and memory."""
        memory = {
            "memory/start_bytes": self.counts.start_bytes,
            "memory/train_peak_bytes": peak_bytes(self.model.device),
            "memory/rollout_bytes": self.counts.rollout_bytes,
            **component_bytes(self.model),
        }
        memory["memory/peak_bytes"] = max(
            self.counts.peak_before, memory["memory/train_peak_bytes"]
        )
        self.evaluate(self.split)
        if self.test:
            self.evaluate("test")
        seconds = {f"time/{name}_seconds": value for name, value in self.phases.seconds.items()}
        speed = self.model.num_timesteps / self.train_seconds
        self.log({**memory, **seconds, "time/transitions_per_second": speed})
        self.log(self.counts.extra)

    @property
    def findings(self) -> list[str]:
        """Of the doctor, so far; none where training has not begun."""
        who = self.checkup or getattr(self, "model", None)
        return list(who.doctor.findings.values()) if isinstance(who, GRPO | Checkup) else []

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far: rollouts and updates, nothing else."""
        return sum(self.phases.seconds.get(name, 0.0) for name in ("rollout", "update"))

    def _count_step(self, *_: Any) -> None:
        self.counts.gradient_steps += 1

    def see_norm(self, norm: torch.Tensor) -> None:
        """The norm of a gradient, (), before its step."""
        check_gradient(norm, self.counts.gradient_steps + 1)
        self.norms.append(norm)


class RecordWriter(KVWriter):
    """SB3's logger writes here: every number it dumps becomes a metric of the record."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        metrics = {
            name: float(value)
            for name, value in key_values.items()
            if name not in NOT_RECORDED and isinstance(value, int | float | np.number)
        }
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if any(name.startswith("train/") and name != "train/explained_variance" for name in bad):
            raise FloatingPointError(f"{bad} not finite after {step} transitions")
        self.recorder.log({name: metrics[name] for name in metrics if name not in bad})
        if self.recorder.checkup is not None and "train/n_updates" in metrics:
            self.recorder.checkup.examine(metrics, self.recorder.counts.gradient_steps)

    def close(self) -> None:
        pass


def optimizers(model: BaseAlgorithm) -> list[torch.optim.Optimizer]:
    """All optimisers of a model."""
    parts = [model.policy, *model.policy.children()]
    found = [getattr(part, "optimizer", None) for part in parts]
    return [each for each in found if isinstance(each, torch.optim.Optimizer)]


def component_bytes(model: BaseAlgorithm) -> dict[str, int]:
    """Bytes of each part that training holds; a part that an algorithm lacks is absent."""
    critic = sum(module_bytes(module) for module in critic_modules(model.policy))
    actor = module_bytes(model.policy) - critic
    parts = {
        "memory/policy_bytes": actor,
        "memory/gradient_bytes": gradient_bytes(model.policy),
        "memory/optimizer_bytes": sum(optimizer_bytes(each) for each in optimizers(model)),
    }
    if critic:
        parts["memory/critic_bytes"] = critic
    reference = getattr(model, "reference", None)
    if reference is not None:
        parts["memory/reference_bytes"] = module_bytes(reference)
    return parts


def array_bytes(values: dict[str, Any]) -> int:
    """Bytes of the arrays and tensors among the values, and in dicts of them."""
    total = 0
    for value in values.values():
        if isinstance(value, dict):
            total += array_bytes(value)
        else:
            total += getattr(value, "nbytes", 0)
    return total
