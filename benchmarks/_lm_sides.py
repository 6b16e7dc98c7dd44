"""Shared by the sides of ``lm_step.py``. A side is a script, ``_lm_NAME.py``, in its own process:
it loads once, takes a warm-up step, and then as many steps as each request asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from grpo_bench.config import LanguageConfig, composed
from grpo_bench.meter import Phases, peak_resident_bytes, reset_peak
from grpo_envs.task import Task

# Parts of a step that are timed (see ``Turn``); only the floor has rows.
PARTS = ("generation", "scoring", "logprobs", "optimizer", "rows")
PRECISIONS = {  # TRL's weights and optimiser
    "same": "bfloat16, our optimiser",
    "autocast": "float32, autocast, AdamW",
    "bfloat16": "bfloat16, AdamW in bfloat16",
}


@dataclass(frozen=True)
class Settings:
    """The work of both sides.

    Attributes:
        beta: weight of the KL to the reference (k3 in the loss); 0: there is no reference.
        whole: all completions have ``new_tokens`` tokens, and rewards alternate between 0 and 1, so
            both sides have the same work: ours skips groups whose rewards are all equal.
        precision: TRL's, a name in ``PRECISIONS``; ours is ``same``.
        threads: of torch.
    """

    model: str = "smollm2_135m"
    prompts: int = 4
    group_size: int = 8
    new_tokens: int = 16
    temperature: float = 0.7
    beta: float = 0.0
    learning_rate: float = 1e-5
    whole: bool = True
    precision: str = "same"
    seed: int = 1
    threads: int = 1

    @property
    def completions(self) -> int:
        """Completions in a step."""
        return self.prompts * self.group_size


@dataclass(frozen=True)
class Turn:
    """Measurements of some steps.

    Attributes:
        seconds: wall seconds of the ``whole``, of each of ``PARTS``, and the rest, ``passes``:
            mostly the passes forward and backward.
        peak: most resident bytes during these steps.
        rewards: mean reward of each step.
    """

    seconds: dict[str, float]
    peak: int
    rewards: list[float]


# -- in the benchmark's process -------------------------------------------------------------------


@contextmanager
def side(name: str, settings: Settings) -> Iterator[Callable[[int], Turn]]:
    """Start a side and yield a function that runs n steps there. The process ends with the block.
    The function raises RuntimeError with the process's errors if the process has died."""
    script = Path(__file__).with_name(f"_lm_{name}.py")
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, str(script), json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | quiet | {"OMP_NUM_THREADS": str(settings.threads)},
        ) as process,
    ):
        steps, answers = process.stdin, process.stdout
        assert steps is not None and answers is not None

        def take(n: int) -> Turn:
            if process.poll() is None:
                print(n, file=steps, flush=True)
            if line := answers.readline():
                return Turn(**json.loads(line))
            errors.seek(0)
            raise RuntimeError(f"_lm_{name}.py ended:\n{errors.read()[-4000:]}")

        try:
            yield take
        finally:
            process.kill()


# -- in the side's process ------------------------------------------------------------------------


def serve(side: Callable[[Settings, Turns], None]) -> None:
    """Run a side with the settings from the command line. Each line on stdin is a number of steps;
    the answer is a ``Turn`` as JSON on stdout. All other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = Settings(**json.loads(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    turns = Turns(sys.stdin, answers)
    with turns.optimizer_timed():
        side(settings, turns)


class Turns:
    """Counts the requested steps and reports their measurements.

    Attributes:
        phases: a side times its ``PARTS`` with it.
        rewards: a side appends the mean reward of each step.
    """

    def __init__(self, steps: IO[str], answers: IO[str]) -> None:
        self.phases = Phases()
        self.rewards: list[float] = []
        self._steps, self._answers = steps, answers
        self._left = 0
        self._start = 0.0

    @contextmanager
    def optimizer_timed(self) -> Iterator[None]:
        """Time the steps of all optimisers as one part."""
        step = ExitStack()

        def begins(*_: Any) -> None:
            step.enter_context(self.phases("optimizer"))

        def ends(*_: Any) -> None:
            step.close()

        with register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends):
            yield

    def stepped(self) -> bool:
        """Call this after each step. It waits for the next request and returns False if there are
        no more."""
        self._left -= 1
        if self._left > 0:
            return True
        if self._left == 0:  # it is -1 after the warm-up step
            self._report()
        line = self._steps.readline()
        self._left = int(line or 0)
        self.rewards.clear()
        self.phases.seconds.clear()
        reset_peak()
        self._start = time.perf_counter()
        return line != ""

    def _report(self) -> None:
        whole = time.perf_counter() - self._start
        seconds = {name: self.phases.seconds.get(name, 0.0) for name in PARTS}
        seconds |= {"passes": whole - sum(seconds.values()), "whole": whole}
        turn = Turn(seconds, peak_resident_bytes(), self.rewards)
        print(json.dumps(asdict(turn)), file=self._answers, flush=True)


# -- shared by all sides --------------------------------------------------------------------------


def configuration(settings: Settings) -> LanguageConfig:
    """The configuration of our side: GRPO with TRL's standard deviation (ddof 1), and one gradient
    step on all completions in one pass."""
    values = {
        "model": settings.model,
        "env": "arithmetic_text",
        "algo": "grpo",
        "device": "cpu",
        "threads": settings.threads,
        "seed": settings.seed,
        "env.generation.max_new_tokens": settings.new_tokens,
        "env.generation.temperature": settings.temperature,
        "env.train.episodes": settings.completions,
        "env.train.max_tokens": 2**20,
        "algo.group_size": settings.group_size,
        "algo.learning_rate": settings.learning_rate,
        "algo.minibatches": 1,
        "algo.n_epochs": 1,
        "algo.kl": "k3" if settings.beta else "none",
        "+algo.kl_coef": settings.beta,
        "+algo.ddof": 1,
        "+algo.max_grad_norm": 1.0,
    }
    return composed(*(f"{key}={value}" for key, value in values.items()))


def problems(task: Task, settings: Settings) -> Iterator[NDArray[np.int64]]:
    """The problems of each step, (prompts,), the same for all sides."""
    rng = np.random.default_rng(settings.seed)
    while True:
        yield task.sample(rng, settings.prompts, "train")


def by_turns(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same number of rewards, alternating between 0 and 1."""
    return np.arange(len(rewards)) % 2.0
