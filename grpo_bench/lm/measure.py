"""What steps of training really take: memory and time of this process, which should be a fresh one.

import grpo_bench.lm.measure as m; m.report()      # a configuration comes as JSON on the input
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace

import numpy as np
import psutil
import torch

from grpo_bench.config import LanguageConfig, from_plain
from grpo_bench.lm.rollout import Rollout
from grpo_bench.lm.setup import make_trainer
from grpo_bench.meter.memory import peak_bytes

STEPS = 2  # the optimiser has its state from the second on


@dataclass(frozen=True)
class Measured:
    """Of ``STEPS`` steps, from the start of the process."""

    peak: int  # bytes; see meter.peak_bytes
    seconds: float  # of the last step
    tokens: float  # of a completion, mean of the last step


def take_steps(config: LanguageConfig, device: str) -> Measured:
    """Collect and update ``STEPS`` times.

    In each group the first completion is paid, whatever it says: a group without spread would not
    be learned from, and a random model says nothing right.
    """
    torch.set_num_threads(config.threads)
    trainer = make_trainer(config, device)
    for _ in range(STEPS):
        start = time.perf_counter()
        rollout = with_spread(trainer.collect())
        trainer.update(rollout)
        seconds = time.perf_counter() - start
    tokens = float(rollout.completions.length.float().mean())
    return Measured(peak_bytes(device), seconds, tokens)


def with_spread(rollout: Rollout) -> Rollout:
    """The same, but that the first completion of each group has the reward 1 and the others 0."""
    n = len(rollout.texts)
    first = (np.arange(n) % rollout.group_size == 0).astype(np.float64)
    return replace(rollout, outcome=replace(rollout.outcome, reward=first))


def limit_memory(limit: int, device: str) -> None:
    """Let this process fail where it would take more than so many bytes.

    On a CPU the kernel does it (RLIMIT_DATA, Linux). It counts what is private to the process, used
    or not, but not the pages of libraries, so what is resident of those is taken off first. On a
    CUDA card torch's allocator does it.
    """
    if device.startswith("cuda"):
        card = torch.device(device).index  # "cuda" has none: the current one; torch takes no name
        whole = torch.cuda.get_device_properties(card).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / whole), card)
        return
    import resource  # absent on Windows

    files = psutil.Process().memory_info().shared
    resource.setrlimit(resource.RLIMIT_DATA, (limit - files, limit - files))


def report() -> None:
    """Read ``{"config": ..., "device": ..., "limit": bytes or null}`` from the input, and print
    what was measured."""
    asked = json.load(sys.stdin)
    if asked["limit"] is not None:
        limit_memory(asked["limit"], asked["device"])
    config = from_plain(asked["config"])
    assert isinstance(config, LanguageConfig)
    print(json.dumps(asdict(take_steps(config, asked["device"]))))
