"""A run of a language model, from its configuration to its record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import Parameter

from grpo_bench.config import LanguageConfig
from grpo_bench.lm.evaluation import Evaluation, evaluate
from grpo_bench.lm.optimizer import local
from grpo_bench.lm.parallel import World
from grpo_bench.lm.resume import can_resume, plain_state, restore, write_tensors
from grpo_bench.lm.rollout import Rollout
from grpo_bench.lm.setup import make_trainer
from grpo_bench.lm.trainer import Trainer
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.memory import (
    module_bytes,
    optimizer_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from grpo_bench.meter.schedule import is_due
from grpo_bench.records import TRAINING, Run
from grpo_bench.records.checkpoints import Checkpoint, Pace
from grpo_envs.task import Split

# Attributes of a recorder that a checkpoint keeps.
COUNTS = ("tokens", "evaluated", "evaluated_at", "success", "peak_before", "start_bytes")
SAMPLE = 24  # characters of a completion that progress shows
Progress = Callable[[str, float, float], None]  # as ``grpo_bench.runs.job.Progress``


def learn(run: Run, config: LanguageConfig, device: str, progress: Progress, world: World) -> None:
    """Train the model of a claimed run, and write its record. In addition to the files of every
    run it has ``completions.jsonl``, some answers of each evaluation; with ``model.save`` also the
    trained model, in ``checkpoint``."""
    phases = Phases(device)
    with phases("setup"):
        trainer = make_trainer(config, device, world, phases)
    if world.size > 1:
        run.extra["processes"] = world.size
    recorder = LanguageRecorder(run, trainer, config)
    total, evaluations = config.budget.transitions, config.budget.evaluations
    try:
        if run.checkpoint is None:
            recorder.start()
        else:
            recorder.go_on(run.checkpoint)
        while recorder.tokens < total:
            share = recorder.tokens / total
            if recorder.tokens > recorder.evaluated_at:  # not again where it goes on
                due = is_due(share, recorder.evaluated, evaluations)
                if due:
                    recorder.evaluate(recorder.split)
                recorder.save_checkpoint(due)
            rollout = trainer.collect()
            recorder.tokens += int(world.gather(torch.tensor([rollout.tokens])).sum())
            recorder.log(trainer.update(rollout, remaining=1.0 - share))
            progress(stage(rollout), min(recorder.tokens / total, 1.0), recorder.success)
    finally:
        if trainer.doctor.findings:
            run.extra["findings"] = list(trainer.doctor.findings.values())
    recorder.finish()


def stage(rollout: Rollout) -> str:
    """An iteration in a few words: mean reward, mean length, a completion."""
    sample = rollout.texts[0].replace("\n", " ")[:SAMPLE]
    return (
        f"reward {rollout.outcome.reward.mean():.2f}, "
        f"{rollout.completions.length.float().mean():.0f} tokens, {sample!r}"
    )


class LanguageRecorder:
    """As ``Recorder`` in the Gym track: metrics, evaluations, time and memory. A transition is
    a token.

    Time counts by phase (see ``Trainer``), and evaluations apart.
    """

    def __init__(self, run: Run, trainer: Trainer, config: LanguageConfig) -> None:
        self.run, self.trainer, self.env = run, trainer, config.env
        self.split = config.budget.split
        self.test = config.budget.test
        self.save = config.model.save
        self.phases = trainer.phases
        self.device = trainer.lm.model.device
        self.pace = Pace(config.checkpoint_minutes)
        self.tokens = 0
        self.evaluated = 0  # evaluations on that split so far
        self.evaluated_at = 0  # tokens then
        self.success = math.nan
        self.peak_before = 0
        self.start_bytes = 0
        self.lines: list[str] = []

    def start(self) -> None:
        """What the model does before it is trained."""
        self.evaluate(self.split)
        self.peak_before, self.start_bytes = peak_bytes(self.device), resident_bytes()
        reset_peak(self.device)

    def save_checkpoint(self, evaluated: bool) -> None:
        """Save all that it takes to go on from here, after an evaluation and now and then."""
        if not can_resume(self.trainer) or not self.pace.due(evaluated):
            return
        counts = {name: getattr(self, name) for name in COUNTS}
        state = {"counts": counts, "seconds": self.phases.seconds, "lines": len(self.lines)}
        with self.pace.saving():
            write = partial(write_tensors, self.trainer)
            self.run.save_checkpoint(state | {"trainer": plain_state(self.trainer)}, write)

    def go_on(self, checkpoint: Checkpoint) -> None:
        """Take up what an earlier attempt has done."""
        state = checkpoint.state
        restore(self.trainer, checkpoint.folder, state["trainer"])
        vars(self).update(state["counts"])
        self.phases.seconds |= state["seconds"]
        text = (self.run.folder / "completions.jsonl").read_text(encoding="utf-8")
        self.lines = text.split("\n")[: state["lines"]]
        self.peak_before = max(self.peak_before, peak_bytes(self.device))
        reset_peak(self.device)

    def log(self, metrics: dict[str, float]) -> None:
        """Metrics at this moment of training."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        peak = max(self.peak_before, peak_bytes(self.device))
        self.run.log(self.tokens, self.trainer.gradient_steps, self.train_seconds, peak, finite)

    def evaluate(self, split: Split) -> None:
        """Greedy answers to all problems of a split; on the test split sampled ones as well."""
        self._record(split, self._answers(split, 0.0))
        if split == self.split:
            self.evaluated += 1
            self.evaluated_at = self.tokens
            self.run.flush()
        else:
            sampled = self._answers(split, self.env.generation.temperature)
            self._record(f"{split}_sampled", sampled)

    def finish(self) -> None:
        """The last evaluations, the totals of time and memory, and the model."""
        memory = {
            "memory/start_bytes": self.start_bytes,
            "memory/train_peak_bytes": peak_bytes(self.device),
            **component_bytes(self.trainer),
        }
        memory["memory/peak_bytes"] = max(self.peak_before, memory["memory/train_peak_bytes"])
        self.evaluate(self.split)
        if self.test:
            self.evaluate("test")
        seconds = {f"time/{name}_seconds": value for name, value in self.phases.seconds.items()}
        speed = self.tokens / self.train_seconds
        task = self.trainer.task.task
        self.log(
            {
                **memory,
                **seconds,
                "time/transitions_per_second": speed,
                "task/oracle_score": task.oracle_score,
            }
        )
        if self.save:
            from grpo_bench.lm.saving import save_pretrained

            folder = self.run.folder / "checkpoint"
            save_pretrained(self.trainer.lm, folder, self.trainer.world)

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far."""
        return sum(self.phases.seconds.get(name, 0.0) for name in TRAINING)

    def _answers(self, split: Split, temperature: float) -> Evaluation:
        trainer = self.trainer
        with self.phases("evaluation"):
            return evaluate(
                trainer.lm,
                trainer.task,
                split,
                max_new_tokens=trainer.max_new_tokens,
                temperature=temperature,
                batch_size=self.env.evaluation.batch_size,
                world=trainer.world,
            )

    def _record(self, split: str, found: Evaluation) -> None:
        columns = found.columns
        self.run.evaluation(split, self.tokens, columns)
        means = {name: float(columns[name].mean()) for name in columns if name != "problem_id"}
        self.log({f"eval/{split}/{name}": value for name, value in means.items()})
        if split == self.split:
            self.success = means["success"]
        ids = columns["problem_id"][: len(found.examples)].astype(np.int64)
        task = self.trainer.task
        questions = [chat[-1]["content"] for chat in task.task.chats(ids, task.examples)]
        for i, text in enumerate(found.examples):
            line = {
                "split": split,
                "transitions": self.tokens,
                "problem_id": int(ids[i]),
                "question": questions[i],
                "completion": text,
                "reward": float(columns["reward"][i]),
            }
            self.lines.append(json.dumps(line, ensure_ascii=False))
        write_lines(self.run.folder / "completions.jsonl", self.lines)


def write_lines(path: Path, lines: list[str]) -> None:
    """A text file, written beside and renamed."""
    from grpo_bench.records.files import write_atomically

    write_atomically(path, ("\n".join(lines) + "\n").encode())


def component_bytes(trainer: Trainer) -> dict[str, int]:
    """Bytes of each part that training holds; a part that an algorithm lacks is absent. Gradients
    are those of a step, of all that is trained: they are gone after it."""
    model, critic = trainer.lm.model, trainer.critic
    parts = {
        "memory/policy_bytes": module_bytes(model),
        "memory/gradient_bytes": _bytes(trainer.parameters),
        "memory/optimizer_bytes": optimizer_bytes(trainer.optimizer),
    }
    if critic is not None:
        assert trainer.critic_optimizer is not None
        parts["memory/critic_bytes"] = _bytes(critic.own_parameters())
        parts["memory/gradient_bytes"] += _bytes(critic.parameters())
        parts["memory/optimizer_bytes"] += optimizer_bytes(trainer.critic_optimizer)
    if trainer.reference is not None and trainer.reference.frozen is not None:
        parts["memory/reference_bytes"] = module_bytes(trainer.reference.frozen)
    return parts


def _bytes(parameters: Iterable[Parameter]) -> int:
    return sum(local(parameter).nbytes for parameter in parameters)
