"""Supervised warm-up on noisy demonstrations: the "cold start" of DeepSeek-R1 (2501.12948, 2.3.1).

Where random tokens never earn a reward there is nothing to learn from, so both algorithms start
from the same briefly pre-trained policy; it is also the reference of the KL. It is made once for
each (task, network, settings), kept in a cache, and its cost is part of every record.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from stable_baselines3.common.utils import update_learning_rate
from torch import Tensor

from grpo_bench.config.schema import GymEnvConfig, NetworkConfig, WarmupConfig
from grpo_bench.fast.optimizer import EagerAdam
from grpo_bench.grpo.policies import MultiInputPolicy
from grpo_bench.grpo.seeds import stream
from grpo_bench.records.files import write_atomically
from grpo_bench.training.baselines import actor_modules
from grpo_bench.training.networks import TokenTransformer, policy_kwargs
from grpo_envs.task import Task
from grpo_envs.tokens.task import TokenTask

VERSION = 2  # part of the cache's key: raise it when the same settings give other weights
Progress = Callable[[float], None]


def check_warmup(task: Task, env: GymEnvConfig) -> TokenTask:
    """The task, if it has demonstrations and the network can read them.

    Raises:
        ValueError: the warm-up cannot be made.
    """
    body = env.network.body
    if not isinstance(task, TokenTask) or body != "transformer":
        raise ValueError(
            f"env.warmup with {env.id} and network.body={body}: expected null, or a task "
            "of tokens and a transformer"
        )
    return task


def warmed_up(
    task: Task,
    env: GymEnvConfig,
    cache: Path,
    progress: Progress = lambda fraction: None,
) -> tuple[dict[str, dict[str, Tensor]], float]:
    """The warmed-up actor's weights and the seconds that it took to make them.

    Args:
        task: whose demonstrations to imitate.
        env: its ``id``, ``kwargs``, ``network`` and ``warmup`` decide the weights, and make the
            cache's key.
        cache: folder; runs that need the same warm-up wait for the first to make it.

    Raises:
        ValueError: as ``check_warmup``.
    """
    task = check_warmup(task, env)
    assert env.warmup is not None
    network = {"body": env.network.body, **env.network.arguments}
    decisive = {"id": env.id, "kwargs": env.kwargs, "network": network}
    decisive["warmup"] = asdict(env.warmup)
    rounding = (torch.__version__, torch.get_num_threads())
    text = json.dumps([VERSION, *rounding, decisive], sort_keys=True)
    path = cache / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"
    cache.mkdir(parents=True, exist_ok=True)
    progress(0.0)
    with FileLock(path.with_suffix(".lock")):  # the system takes it from a process that dies
        made = _load(path)
        if made is None:
            start = time.perf_counter()
            weights = imitate(task, env.network, env.warmup, progress)
            made = {"weights": weights, "seconds": time.perf_counter() - start}
            content = BytesIO()
            torch.save(made, content)
            write_atomically(path, content.getvalue())
    return made["weights"], made["seconds"]


def _load(path: Path) -> dict[str, Any] | None:
    """What is in the cache; None if it is empty or broken. Made again, it is the same."""
    try:
        return torch.load(path, weights_only=True)
    except (FileNotFoundError, EOFError, KeyError, RuntimeError, UnpicklingError):
        return None


@torch.random.fork_rng(devices=[])  # a run goes on alike whether it makes its warm-up or finds it
def imitate(
    task: TokenTask, network: NetworkConfig, settings: WarmupConfig, progress: Progress
) -> dict[str, dict[str, Tensor]]:
    """Train an actor to predict demonstrations of the training split, token by token."""
    sequence = stream(settings.seed, "warmup")
    torch.manual_seed(int(sequence.generate_state(1)[0]))
    rng = np.random.default_rng(sequence)
    policy = MultiInputPolicy(
        task.observation_space,
        task.action_space,
        lambda remaining: 0.0,
        **policy_kwargs(network),
    )
    body = policy.features_extractor
    assert isinstance(body, TokenTransformer), "the warm-up wants features after every token"
    optimizer = EagerAdam(policy.parameters(), lr=0.0, fused=True)
    steps = settings.steps
    for step in range(steps):
        rise, fall = 10 * (step + 1) / steps, 1 - step / steps  # up over a tenth, then down to 0
        update_learning_rate(optimizer, settings.learning_rate * min(rise, fall))
        ids = task.sample(rng, settings.batch_size, "train")
        arrays = task.demonstrations(ids, rng, settings.noise)
        tokens, mask = (torch.as_tensor(array) for array in arrays)  # (n, L)
        wanted = mask[:, 1:]  # (n, L - 1), m of them true
        logits = policy.action_net(body.after(tokens[:, :-1], wanted))  # (m, V)
        loss = F.cross_entropy(logits, tokens[:, 1:][wanted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        progress((step + 1) / steps)
    return {name: module.state_dict() for name, module in actor_modules(policy).items()}
