"""One process of ``memory.py``: trains a configuration for some iterations and prints bytes.

    python benchmarks/_memory_run.py whole|first_use|counted       # the configuration on stdin

``whole`` measures a run without instruments. ``first_use`` finds the memory that does not depend on
the batch size, ``counted`` the live memory at the worst moment.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from grpo_bench.config import GymConfig, from_plain
from grpo_bench.meter import (
    gradient_bytes,
    module_bytes,
    optimizer_bytes,
    peak_resident_bytes,
    resident_bytes,
)
from grpo_bench.meter.tensors import LiveBytes
from grpo_bench.runs.job import ignore_progress, warm_up
from grpo_bench.runs.models import make_model, task_of
from grpo_bench.training.baselines import actor_modules
from grpo_bench.training.recorder import optimizers

ITERATIONS = 8  # enough for the heap to settle; the optimiser has its state from the second on
FEW = 16  # episodes of a nearly empty iteration
FOR_EVER = 10**9  # transitions: the iterations end the training
Bytes = dict[str, int]


class Iterations(BaseCallback):
    """Ends training after ``ITERATIONS``."""

    begun = 0

    def _on_rollout_start(self) -> None:
        self.begun += 1

    def _on_step(self) -> bool:
        return self.begun <= ITERATIONS


class Moments(Iterations):
    """Labels tensors by component, and marks the moments of an iteration.

    Attributes:
        arrays: bytes of the rollout in numpy arrays now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays = 0
        self.live = LiveBytes(component_of, self.no_tensors)

    def no_tensors(self) -> Bytes:
        """Bytes that Python and numpy have allocated since the start of the count."""
        traced, _ = tracemalloc.get_traced_memory()
        return {"rollout": self.arrays, "objects": traced - self.arrays}

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        if self.begun == 1:
            return
        if self.begun == 2:  # now the optimisers have their state
            self.live.label(state_of(self.model), "optimizer")
        self._hold(getattr(self.model, "rollout_buffer", None))
        self.live.begin("rollout")

    def _on_rollout_end(self) -> None:
        self._hold(self.locals.get("rollout") or getattr(self.model, "rollout_buffer", None))
        if self.begun > 1:
            self.live.begin("update")

    def _hold(self, rollout: Any) -> None:
        self.arrays = 0
        for values in leaves({} if rollout is None else vars(rollout)):
            if isinstance(values, Tensor) and component_of(values) is not None:
                self.live.label([values], "rollout")
            else:
                self.arrays += values.nbytes


def whole(config: GymConfig) -> Bytes:
    """Resident bytes before the model was made, the peak, and the growth of mapped files (code of
    libraries) in between."""
    start, files = resident_bytes(), file_bytes()
    learn(prepared(config), Iterations())
    return {"start": start, "peak": peak_resident_bytes(), "code": file_bytes() - files}


def first_use(config: GymConfig) -> Bytes:
    """Private memory of the environment with its data, and memory that libraries take on first use:
    that of a run of a few episodes without its own tensors."""
    before = private_bytes()
    env = make_env(config)
    environment = private_bytes() - before
    model = prepared(with_few(config))
    learn(model, Iterations())
    taken = private_bytes() - before - environment
    env.close()
    own = module_bytes(model.policy) + gradient_bytes(model.policy) + optimizer_bytes_of(model)
    reference = reference_of(model)
    return {
        "environment": environment,
        "first_use": taken - own - (0 if reference is None else module_bytes(reference)),
    }


def counted(config: GymConfig) -> dict[str, Any]:
    """The moment with the most live memory, and its parts: tensors by component, the rollout, and
    other arrays and Python objects."""
    env = make_env(config)
    watched(with_few(config))  # ``first_use`` counts what this leaves behind
    tracemalloc.start()
    peaks = watched(config)
    env.close()
    moment = max(peaks, key=lambda name: sum(peaks[name].values()))
    return {"moment": moment, **peaks[moment]}


def watched(config: GymConfig) -> dict[str, Bytes]:
    """Live bytes by component at the worst point of each moment of a run."""
    model, moments = prepared(config), Moments()
    label_networks(moments.live, model)
    with moments.live:
        learn(model, moments)
    return moments.live.peaks


def prepared(config: GymConfig) -> BaseAlgorithm:
    """The model, warmed up if the task has a warm-up."""
    torch.set_num_threads(config.threads)
    model = make_model(config, "cpu")
    if config.env.warmup is not None:
        warm_up(model, task_of(config.env), config, ignore_progress)
    return model


def with_few(config: GymConfig) -> GymConfig:
    """The configuration with iterations of ``FEW`` episodes in one minibatch."""
    few = {"env.train.episodes": FEW, "algo.minibatches": 1}
    if "group_size" in config.algo.options:
        few["algo.group_size"] = FEW // 2
    return config.changed(few)


def learn(model: BaseAlgorithm, callback: BaseCallback) -> None:
    """Train until the callback stops."""
    model.learn(FOR_EVER, callback, log_interval=None)  # type: ignore[arg-type]


def make_env(config: GymConfig) -> Any:
    """The environment of a configuration, with the sub-environments of its training."""
    env = config.env
    return gym.make_vec(env.id, env.train.episodes, **env.kwargs)


def component_of(tensor: Tensor) -> str | None:
    """The component of a new tensor; None if numpy owns its memory, which tracemalloc counts."""
    return "activations" if tensor.untyped_storage().resizable() else None


def label_networks(live: LiveBytes, model: BaseAlgorithm) -> None:
    """Label the weights, and the gradients when they appear."""
    policy, reference = model.policy, reference_of(model)
    live.label(tensors_of(policy), "critic")  # all that are not the actor's
    for module in actor_modules(policy).values():
        live.label(tensors_of(module), "policy")
    live.label([] if reference is None else tensors_of(reference), "reference")
    for weight in policy.parameters():
        weight.register_post_accumulate_grad_hook(
            lambda w: live.label([] if w.grad is None else [w.grad], "gradients")
        )


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def reference_of(model: BaseAlgorithm) -> nn.Module | None:
    """The frozen reference policy of the KL, if any."""
    return getattr(model, "reference", None)


def state_of(model: BaseAlgorithm) -> list[Tensor]:
    """The tensors of the optimisers' state."""
    states = [state for each in optimizers(model) for state in each.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def optimizer_bytes_of(model: BaseAlgorithm) -> int:
    """The bytes of the optimisers' state."""
    return sum(map(optimizer_bytes, optimizers(model)))


def leaves(values: dict[str, Any]) -> Iterator[Any]:
    """The arrays and tensors among the values, and in dicts of them."""
    for value in values.values():
        if isinstance(value, dict):
            yield from leaves(value)
        elif isinstance(value, Tensor | np.ndarray):
            yield value


def file_bytes() -> int:
    """Resident bytes of mapped files: the code of libraries (RssFile in man 5 proc)."""
    return int(psutil.Process().memory_info().shared)


def private_bytes() -> int:
    """Resident bytes that belong to no file."""
    info = psutil.Process().memory_info()
    return int(info.rss - info.shared)


KINDS: dict[str, Callable[[GymConfig], dict[str, Any]]] = {
    "whole": whole,
    "first_use": first_use,
    "counted": counted,
}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](from_plain(json.load(sys.stdin)))))
