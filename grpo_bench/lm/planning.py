"""The memory of a run before it runs, and changes that need less: ``grpo_bench.plan``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_bench.config import LanguageConfig

if TYPE_CHECKING:
    from grpo_bench.lm.memory import Prediction

NO_MEMORY = ("MemoryError", "can't allocate memory", "OutOfMemoryError", "bad_alloc")
# What a run imports, and then its steps.
CHILD = """
import grpo_bench.run, grpo_bench.runs.job, grpo_bench.lm.run, grpo_bench.lm.measure
grpo_bench.lm.measure.report()
"""


class Change(NamedTuple):
    """A change of the configuration, and what it costs."""

    values: dict[str, Any]  # by dotted name
    cost: str

    def __str__(self) -> str:
        return " ".join(f"{name}={str(value).lower()}" for name, value in self.values.items())

    def of(self, config: LanguageConfig) -> LanguageConfig:
        """The configuration with the change."""
        return config.changed(self.values)


def changes(config: LanguageConfig, device: str, group_tokens: int) -> Iterator[Change]:
    """Changes that make a step smaller, the smallest change first: the same numbers in smaller
    parts or with more time, then fewer or shorter completions, then another critic and other
    weights.

    Args:
        group_tokens: tokens of the longest group, which a micro-batch has to hold.
    """
    model, env, train = config.model, config.env, config.env.train
    options, critic = config.algo.options, config.algo.options.get("critic")
    if group_tokens < train.max_tokens:
        yield Change(
            {"env.train.max_tokens": group_tokens}, "smaller micro-batches: a little slower"
        )
    if not model.gradient_checkpointing:
        yield Change({"model.gradient_checkpointing": True}, "about a third more time")
    if model.dtype == "float32":
        yield Change({"model.dtype": "bfloat16"}, "weights are rounded; AdamW keeps float32 ones")
    group_size = options.get("group_size") or train.group_size
    fewest = group_size * config.algo.minibatches
    if fewest < train.episodes:
        yield Change({"env.train.episodes": fewest}, "fewer problems in an iteration")
    tokens = env.generation.max_new_tokens
    if tokens > 1:
        yield Change({"env.generation.max_new_tokens": tokens // 2}, "shorter completions")
    if critic == "separate":
        yield Change({"algo.critic": "lora"}, "the critic learns adapters only")
        yield Change({"algo.critic": "shared"}, "the critic is a layer on the policy")
    if model.optimizer == "adamw" and model.dtype == "bfloat16" and not model.lora.rank:
        smaller = "adamw_8bit" if device == "cuda" else "adamw_plain"
        yield Change({"model.optimizer": smaller}, "no float32 masters: small updates are lost")
    if not model.lora.rank:
        yield Change({"model.lora.rank": 16}, "the policy learns adapters only")


def measured(config: LanguageConfig, device: str, limit: int | None = None) -> dict[str, Any]:
    """Real steps of a configuration in a fresh process: ``lm.measure.Measured`` as a dict.

    Args:
        limit: bytes beyond which the process fails.

    Raises:
        MemoryError: it needs more than the limit, or than the machine has.
        RuntimeError: it failed for another reason; has its output.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps({"config": config.plain, "device": device, "limit": limit}),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(config.threads)},
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise (MemoryError if any(sign in said for sign in NO_MEMORY) else RuntimeError)(said)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def small(config: LanguageConfig) -> LanguageConfig:
    """The same run of a tiny model, one group at a time."""
    tiny = {
        "model.name": "tiny",
        "model.source": "tiny",
        "model.optimizer": "adamw",
        "model.lora.target_modules": "all-linear",  # tiny may lack the layers that are named
        "env.generation.max_new_tokens": 8,
        "env.train.max_tokens": 10**6,
    }
    return Change(tiny, "").of(config)


def process_bytes(config: LanguageConfig) -> int:
    """Bytes of a process without its tensors and what malloc keeps of them: the interpreter, and
    the code and data of libraries. Measured in a process that takes steps of a tiny model."""
    from grpo_bench.lm.memory import predict

    peak: int = measured(small(config), "cpu")["peak"]
    return peak - predict(small(config)).peak


def predicted(config: LanguageConfig, device: str) -> Prediction:
    """The memory of a run, with its process."""
    from grpo_bench.lm.memory import predict

    with ThreadPoolExecutor(1) as other:  # measures a process while this one predicts
        process = other.submit(process_bytes, config) if device == "cpu" else None
        prediction = predict(config, device)
        return prediction if process is None else prediction.beside(process.result())


def alternatives(
    config: LanguageConfig, device: str, prediction: Prediction, memory: int
) -> Iterator[tuple[str, str, int]]:
    """Changes that need less memory: each with its cost and the peak in bytes. First each alone; if
    none fits, the first ones together, as many as are needed."""
    from grpo_bench.lm.memory import MALLOC_VARIABLE, predict

    aside = prediction.components.get("process", 0)
    if "malloc" in prediction.components:
        variable = f"{MALLOC_VARIABLE}=131072 in the environment"
        yield variable, "slower: pages are allocated again", prediction.without("malloc").peak
    possible = list(changes(config, device, prediction.group_tokens))
    fits = False
    for change in possible:
        peak = predict(change.of(config), device).beside(aside).peak
        fits = fits or peak <= memory
        yield str(change), change.cost, peak
    if fits or not possible:
        return
    together = possible[0]
    for change in possible[1:]:
        together = Change(together.values | change.values, "")
        peak = predict(together.of(config), device).beside(aside).peak
        if peak <= memory or change is possible[-1]:
            yield str(together), "all of these", peak
            return
