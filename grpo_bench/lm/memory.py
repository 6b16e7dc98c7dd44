"""How much memory a step of training takes, by component, before anything is trained.

The trainer itself takes a step, on tensors that have shapes and no numbers: what they would hold is
counted when they come and go (``meter.tensors``). So full fine-tuning and adapters, critics,
optimisers and checkpointed activations need no formulas of their own. It is the worst step of a
run: all prompts as long as the longest, no completion ends before its limit, and every group has
something to learn. The optimiser has its state already, as from the second step on.

Two things are no tensors. ``process`` is the interpreter with its libraries, measured in a process
of its own, which takes a step of a tiny model. ``malloc`` is what glibc keeps of freed activations;
see ``MALLOC``. On a CUDA card neither counts, nor does the file of the weights: its allocator is
asked for tensors alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_bench.config import LanguageConfig
from grpo_bench.lm import generation
from grpo_bench.lm.completions import Completions, group_tokens, pad_prompts
from grpo_bench.lm.models import stored_dtype
from grpo_bench.lm.optimizer import EightBitShapes
from grpo_bench.lm.rollout import Rollout
from grpo_bench.lm.sampling import draw
from grpo_bench.lm.setup import Networks, make_networks, with_networks
from grpo_bench.lm.trainer import Trainer
from grpo_bench.meter.clock import Phases
from grpo_bench.meter.tensors import Composition, LiveBytes, make_fake
from grpo_envs.task import Outcome

COMPONENTS = (  # in the order of tables
    *("process", "file", "weights", "reference", "critic", "gradients", "optimizer"),
    *("activations", "logits", "kv_cache", "rollout", "malloc"),
)

# glibc keeps freed blocks of its heap, and small ones that live on make holes that no activation
# fits into. Measured with 135m and 360m: at the peak of an update it holds 0.8 to 1.0 bytes of that
# for each byte of activations in blocks of less than 32 MiB (larger ones go back at once).
MALLOC = 0.9
OWN_MAPPING = 32 * 2**20  # bytes; DEFAULT_MMAP_THRESHOLD_MAX of glibc's malloc.c
MALLOC_VARIABLE = "MALLOC_MMAP_THRESHOLD_"  # a number of bytes there: freed blocks go back at once


@dataclass(frozen=True)
class Prediction:
    """What a step takes.

    Attributes:
        moments: bytes by component at the worst point of each moment, in their order: ``load``,
            ``generation``, ``logprobs``, ``critic``, ``update`` and ``optimizer step``.
        group_tokens: of the longest group, which a micro-batch has to hold.
    """

    moments: dict[str, Composition]
    group_tokens: int

    @property
    def moment(self) -> str:
        """The one with the peak."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def components(self) -> Composition:
        """What the peak is made of, in the order of ``COMPONENTS``."""
        peak = self.moments[self.moment]
        return {name: peak[name] for name in COMPONENTS if peak.get(name)}

    @property
    def peak(self) -> int:
        """Bytes."""
        return sum(self.moments[self.moment].values())

    def beside(self, process: int) -> Prediction:
        """The same in a process of so many bytes."""
        return self._with(lambda parts: {"process": process} | parts)

    def without(self, component: str) -> Prediction:
        """The same, but for a component."""
        return self._with(lambda parts: {k: v for k, v in parts.items() if k != component})

    def _with(self, change: Callable[[Composition], Composition]) -> Prediction:
        moments = {name: change(parts) for name, parts in self.moments.items()}
        return replace(self, moments=moments)


def predict(config: LanguageConfig, device: str = "cpu") -> Prediction:
    """The peak of a step of a resolved configuration, but for the process.

    Args:
        device: what is planned for, ``cpu`` or ``cuda``; nothing runs there.

    Raises:
        ValueError: as ``make_trainer``.
    """
    eight_bit = config.model.optimizer == "adamw_8bit"
    if eight_bit:  # needs a card to be made
        config = config.changed({"model.optimizer": "adamw_plain"})
    networks = make_networks(config, "meta")
    make_fake(_modules(networks))
    live = LiveBytes(_namer(networks))
    _label(live, networks)
    load = {"weights": live.live["weights"]}
    if device == "cpu":  # the file of what goes to a card stays on the host
        load["file"] = _file_bytes(config, networks)
    with live:
        trainer = with_networks(networks, config, phases=Moments(live))
        if eight_bit:
            trainer.optimizer = EightBitShapes(trainer.parameters)
            if trainer.critic is not None:
                trainer.critic_optimizer = EightBitShapes(trainer.critic.parameters())
        _count_optimizers(trainer, live)
        rollout = longest_rollout(trainer)
        live.label(_tensors(rollout.completions), "rollout")
        with live.moment("generation"):
            _generate(trainer, rollout)
        trainer.update(rollout)
    kept = _kept(live.peaks.values()) if device == "cpu" and malloc_keeps() else 0
    moments = {name: _whole(peak, kept) for name, peak in live.peaks.items()}
    tokens = group_tokens(rollout.prompts, rollout.completions)
    return Prediction({"load": load, **moments}, max(tokens))


class Moments(Phases):
    """The phases of a trainer as moments: ``generation``, ``logprobs`` and so on."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()
        self.live = live

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """One phase."""
        with super().__call__(name), self.live.moment(name):
            yield


def malloc_keeps() -> bool:
    """Whether the C library of this process is one that keeps freed activations."""
    return platform.libc_ver()[0] == "glibc" and MALLOC_VARIABLE not in os.environ


def longest_rollout(trainer: Trainer) -> Rollout:
    """What no rollout is longer than: its prompts are as long as the task's longest and begin
    differently, so that they share nothing; its completions reach their limit.
    In each group the first completion is paid, so that all groups have something to learn."""
    group_size = trainer.settings.group_size
    shape = trainer.n_problems * group_size, trainer.max_new_tokens
    completions = Completions(
        torch.zeros(shape, dtype=torch.long),
        torch.full(shape[:1], shape[1]),
        torch.zeros(shape),
        torch.ones(shape[:1], dtype=torch.bool),
        group_size,
    )
    paid = (np.arange(shape[0]) % group_size == 0).astype(np.float64)
    outcome = Outcome(paid, np.ones(shape[0], dtype=bool), paid, {})
    problem_ids = np.resize(trainer.task.problem_ids("train"), trainer.n_problems)
    _, *rest = trainer.task.longest_prompt()
    longest = [[first, *rest] for first in range(trainer.n_problems)]
    return Rollout(problem_ids, longest, completions, [""] * shape[0], outcome)


def _generate(trainer: Trainer, rollout: Rollout) -> None:
    """The two moments of generation that may be its worst: the prompts, and the last token."""
    model, group_size = trainer.lm.model, rollout.group_size
    n, room = len(rollout.texts), trainer.max_new_tokens - 1
    ids, length = pad_prompts(rollout.prompts, torch.device("cpu"))
    with torch.no_grad():
        logits, cache = generation._prefill(model, ids, length, group_size, room)
        draw(logits, trainer.temperature, torch.zeros(len(ids), group_size))
        if room:
            del logits
            cache.filled += room - 1
            logits = generation._decode(model, cache, torch.zeros(n, dtype=torch.long))
            draw(logits, trainer.temperature, torch.zeros(n, 1))


def _modules(networks: Networks) -> list[nn.Module]:
    lm, reference, critic = networks
    frozen = [] if reference is None or reference.frozen is None else [reference.frozen]
    return [lm.model, *frozen, *([] if critic is None else [critic.trunk, critic.head])]


def _label(live: LiveBytes, networks: Networks) -> None:
    """Say whose the weights are, and that the gradients of those that are trained are such."""
    lm, reference, critic = networks
    owners: dict[str, list[Tensor]] = {}
    if critic is not None:
        owners["critic"] = [*critic.trunk.buffers(), *critic.own_parameters()]
    if reference is not None and reference.frozen is not None:
        owners["reference"] = [*reference.frozen.parameters(), *reference.frozen.buffers()]
    owners["weights"] = [*lm.model.parameters(), *lm.model.buffers()]  # last: lent ones are its own
    for name, tensors in owners.items():
        live.label(tensors, name)
    for weight in _trained(networks):
        weight.register_post_accumulate_grad_hook(
            lambda w: live.label([] if w.grad is None else [w.grad], "gradients")
        )


def _namer(networks: Networks) -> Callable[[Tensor], str]:
    """Of new tensors: what has the size of the vocabulary is logits, what has the shape of a matrix
    that is trained is a part of its gradient, what is by problem, member, head, column and size is
    the cache of generation, and all else is activations."""
    vocabulary = networks.lm.model.get_output_embeddings().weight.shape[0]
    matrices = {tuple(w.shape) for w in _trained(networks) if w.dim() == 2}

    def name(tensor: Tensor) -> str:
        shape, size = tuple(tensor.shape), tensor.untyped_storage().nbytes()
        if shape in matrices:
            return "gradients"
        if len(shape) == 5:
            return "kv_cache"
        if shape and shape[-1] == vocabulary:
            return "logits" if size < OWN_MAPPING else "large logits"
        return "activations" if size < OWN_MAPPING else "large activations"

    return name


def _trained(networks: Networks) -> list[nn.Parameter]:
    weights = [p for module in _modules(networks) for p in module.parameters() if p.requires_grad]
    return list({id(weight): weight for weight in weights}.values())


def _count_optimizers(trainer: Trainer, live: LiveBytes) -> None:
    """Let the optimisers make their state, with gradients that go again."""
    for optimizer in filter(None, (trainer.optimizer, trainer.critic_optimizer)):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.empty_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        live.label(_state_tensors(optimizer), "optimizer")
        _give_moment(optimizer, live)


def _give_moment(optimizer: Optimizer, live: LiveBytes) -> None:
    """Have what an optimiser does in a moment of its own, in the middle of another."""
    interrupted = ""

    def begin(*_: Any) -> None:
        nonlocal interrupted
        interrupted = live.begin("optimizer step")

    def end(*_: Any) -> None:
        live.begin(interrupted)

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)


def _state_tensors(optimizer: Optimizer) -> list[Tensor]:
    states = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in states if isinstance(value, Tensor)]


def _tensors(completions: Completions) -> list[Tensor]:
    return [completions.ids, completions.length, completions.logp, completions.truncated]


def _file_bytes(config: LanguageConfig, networks: Networks) -> int:
    """Of a file that is mapped while its weights are read and turned into another type. (Those of
    the same type are the file's pages themselves.)"""
    stored = stored_dtype(config.model.source)
    if stored is None or stored == networks.lm.model.dtype:
        return 0
    frozen = {id(w): w for w in networks.lm.model.parameters()}
    return sum(w.numel() for w in frozen.values()) * stored.itemsize


def _kept(peaks: Iterable[Composition]) -> int:
    """What malloc keeps, once the moment with the most activations has been there."""
    return round(MALLOC * max(p.get("activations", 0) + p.get("logits", 0) for p in peaks))


def _whole(peak: Composition, kept: int) -> Composition:
    """A peak with what malloc keeps, its large blocks together with the others."""
    whole = {name: size for name, size in peak.items() if not name.startswith("large ")}
    for name in ("activations", "logits"):
        whole[name] = whole.get(name, 0) + peak.get(f"large {name}", 0)
    return {name: size for name, size in (whole | {"malloc": kept}).items() if size}
