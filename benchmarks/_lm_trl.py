"""A side of ``lm_step.py``: TRL's GRPOTrainer in its own loop, with the same settings as ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _lm_sides import Settings, Turns, by_turns, configuration, problems, serve
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_bench.lm.models import SMOLLM2, LanguageModel, load_model
from grpo_bench.lm.optimizer import make_optimizer
from grpo_bench.lm.smollm2 import cache_folder, converted, gguf_file
from grpo_bench.lm.tasks import task_of
from grpo_bench.meter import Phases
from grpo_envs.task import Task

STEPS = 1000  # steps in the data set; then the problems repeat


def trl(settings: Settings, turns: Turns) -> None:
    """Train until no more steps are requested."""
    task = task_of(configuration(settings).env)
    lm = load_model(settings.model)
    with tempfile.TemporaryDirectory() as folder:
        model = reloaded(settings, lm, Path(folder))
        trainer = GRPOTrainer(
            model=model,
            args=arguments(settings, folder),
            processing_class=lm.tokenizer,
            reward_funcs=reward_of(task, settings, turns),
            train_dataset=data(task, settings),
            callbacks=[InTurns(turns)],
            optimizers=(optimizer(settings, model), None),
        )
        time_parts(trainer, turns.phases)
        trainer.train()


class InTurns(TrainerCallback):
    """Waits for the next request after each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = not self.turns.stepped()


def arguments(settings: Settings, folder: str) -> GRPOConfig:
    """The same settings as ours: loss, one gradient step on all completions in one pass, no
    checkpointing."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=settings.precision == "autocast",
        per_device_train_batch_size=settings.completions,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_iterations=1,
        num_generations=settings.group_size,
        max_completion_length=settings.new_tokens,
        generation_kwargs={"min_new_tokens": settings.new_tokens} if settings.whole else None,
        temperature=settings.temperature,
        beta=settings.beta,
        loss_type="grpo",
        scale_rewards="group",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=10**6,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )


def data(task: Task, settings: Settings) -> Dataset:
    """The problems in the order of all sides."""
    ids = np.concatenate(list(islice(problems(task, settings), STEPS)))
    return Dataset.from_dict({"prompt": task.chats(ids), "problem": ids})


def reward_of(task: Task, settings: Settings, turns: Turns) -> Callable[..., list[float]]:
    """The task's reward in TRL's interface."""

    def reward(completions: list[Any], problem: list[int], **_: Any) -> list[float]:
        replies = [completion[0]["content"] for completion in completions]
        rewards = task.score_replies(np.array(problem), replies).reward
        turns.rewards.append(float(rewards.mean()))
        return (by_turns(rewards) if settings.whole else rewards).tolist()

    return reward


def reloaded(settings: Settings, lm: LanguageModel, folder: Path) -> PreTrainedModel:
    """The model in TRL's precision, from a folder that TRL also reads its reference from."""
    if settings.model == SMOLLM2:
        folder = converted(gguf_file(), cache_folder())
    else:
        lm.model.save_pretrained(folder)
    dtype = torch.float32 if settings.precision == "autocast" else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)  # type: ignore[no-any-return]


def optimizer(settings: Settings, model: PreTrainedModel) -> torch.optim.Optimizer | None:
    """Our optimiser, or None for TRL's own."""
    if settings.precision != "same":
        return None
    return make_optimizer("adamw", model.parameters(), settings.learning_rate)


def time_parts(trainer: GRPOTrainer, phases: Phases) -> None:
    """Time the trainer's methods: generation, scoring, and log-probabilities without a gradient
    (the reference's). The policy's log-probabilities belong to the passes."""

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with phases(name):
                return method(*args, **kwargs)

        return call

    logprobs = trainer._get_per_token_logps_and_entropies
    without_gradient = timed("logprobs", logprobs)

    def either(*args: Any, **kwargs: Any) -> Any:
        return (logprobs if torch.is_grad_enabled() else without_gradient)(*args, **kwargs)

    trainer._generate = timed("generation", trainer._generate)
    trainer._calculate_rewards = timed("scoring", trainer._calculate_rewards)
    trainer._get_per_token_logps_and_entropies = either


if __name__ == "__main__":
    serve(trl)
