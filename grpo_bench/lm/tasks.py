"""The text view of a task for one model: chats as token ids, completions as judged texts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from grpo_bench.config.schema import EnvConfig, TextEnvConfig
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.models import LanguageModel
from grpo_envs.task import BoolArray, IntArray, Outcome, Split, Task

SAMPLED = 256  # problems, the longest prompt of which stands for all


class TextTask:
    """A task as this model reads and answers it.

    Args:
        env: the environment.
        lm: its tokenizer and chat template are used.

    Raises:
        ValueError: the model has no chat template, or the task not so many examples.
    """

    def __init__(self, env: TextEnvConfig, lm: LanguageModel) -> None:
        self.task = task_of(env)
        self.examples = env.examples
        self.pay_truncated = env.pay_truncated
        self.tokenizer: Any = lm.tokenizer
        if self.tokenizer.chat_template is None:
            raise ValueError("model: its tokenizer has no chat template, expected a chat model")
        self.prompts(self.task.problem_ids("train")[:1])

    def prompts(self, ids: IntArray) -> list[list[int]]:
        """The tokens that each problem's completion follows."""
        chats = self.task.chats(ids, self.examples)
        texts = [
            self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
        encoded: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return encoded

    def longest_prompt(self) -> list[int]:
        """The longest of ``SAMPLED`` training problems."""
        ids = self.problem_ids("train")
        return max(self.prompts(ids[:: max(1, len(ids) // SAMPLED)]), key=len)

    def texts(self, completions: Completions) -> list[str]:
        """Each completion without its special tokens."""
        rows = zip(completions.ids.tolist(), completions.length.tolist(), strict=True)
        tokens = [ids[:length] for ids, length in rows]
        texts: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts

    def judge(self, ids: IntArray, texts: list[str], truncated: BoolArray) -> Outcome:
        """Score texts (n,) as replies to as many problems (n,). One that was ``truncated`` (n,)
        earns what an empty reply does, unless ``pay_truncated``: its last number is no answer."""
        if not self.pay_truncated:
            texts = ["" if cut else text for text, cut in zip(texts, truncated, strict=True)]
        return self.task.score_replies(ids, texts)

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """n training problems, independently and with replacement."""
        return self.task.sample(rng, n, "train")

    def problem_ids(self, split: Split) -> IntArray:
        """The frozen list of a split."""
        return self.task.problem_ids(split)


def task_of(env: EnvConfig) -> Task:
    """The task of an environment."""
    vector = gym.make_vec(env.id, 1, **env.kwargs)
    task: Task = vector.unwrapped.task  # type: ignore[attr-defined]
    return task
