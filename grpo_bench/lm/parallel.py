"""More than one process: each plays and differentiates groups of its own, and the update is that of
one process.

Gradients are summed, never averaged: the weight of each token in the loss is already one of the
whole minibatch, if ``grpo.objectives.aggregation_weights`` is told the masks of all ranks. So the
ranks may have any number of groups, of any length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grpo_bench.lm.optimizer import BUCKET, buckets, local
from grpo_bench.lm.torchrun import n_processes


@dataclass(frozen=True)
class World:
    """The processes that train one model together; by default this one alone, for which every
    method is the identity. All of them have to call the same methods in the same order.

    Attributes:
        rank: the number of this process among them.
        size: how many they are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls, device: str = "cpu") -> World:
        """The world of this process, as ``torchrun`` tells it in the environment; without that, the
        process alone. CUDA devices are dealt out: the one of this process becomes torch's current.

        Raises:
            ValueError: one CUDA device for all of them, or fewer than there are processes here.
        """
        size = n_processes()
        if size == 1:
            return cls()
        backend = "gloo"
        if device.startswith("cuda"):
            backend = "cpu:gloo,cuda:nccl"
            if device != "cuda":
                raise ValueError(f"device={device} in {size} processes: expected cuda, cpu or auto")
            place, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
            if place >= cards:
                raise ValueError(
                    f"torchrun --nproc-per-node: expected at most {cards}, one process for each "
                    "CUDA device of a machine"
                )
            torch.cuda.set_device(place)
        if not dist.is_initialized():
            dist.init_process_group(backend)
        return cls(dist.get_rank(), size)

    def own(self, n: int) -> slice:
        """Those of n things in order that are this rank's: the parts of the ranks are as equal as
        can be, and empty where n is too small."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def check_parts(self, groups: int, minibatches: int) -> None:
        """That all ranks have equal parts of every minibatch.

        Raises:
            ValueError: the groups of an iteration cannot be dealt out so.
        """
        if groups % (minibatches * self.size):
            raise ValueError(
                f"{groups} groups in {minibatches} minibatches on {self.size} processes: expected "
                f"a multiple of {minibatches * self.size} groups"
            )

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks in order, (k, ...) to (sum of k, ...).

        The k of ranks may differ. In the other dimensions, of which the tensors have equally many,
        what is shorter than elsewhere is padded with 0.
        """
        if self.size == 1:
            return rows
        mine = torch.tensor(rows.shape, device=rows.device)
        sizes = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(sizes, mine)
        shapes = torch.stack(sizes).tolist()
        largest = [max(column) for column in zip(*shapes, strict=True)]
        padded = rows.new_zeros(largest)
        padded[tuple(slice(n) for n in rows.shape)] = rows
        parts = [torch.empty_like(padded) for _ in shapes]
        dist.all_gather(parts, padded)
        return torch.cat([part[: shape[0]] for part, shape in zip(parts, shapes, strict=True)])

    def most(self, n: int) -> int:
        """The largest n of all ranks."""
        return int(self.gather(torch.tensor([n])).max())

    @torch.no_grad()
    def sum_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Give every rank the sum of the gradients of all. A rank without one counts as 0; what no
        rank has a gradient of stays without. Weights that are in shards have theirs summed already,
        by the backward pass."""
        if self.size == 1:
            return
        whole = [w for w in weights if w.requires_grad and not isinstance(w, DTensor)]
        if not whole:
            return
        have = torch.tensor([w.grad is not None for w in whole], device=whole[0].device).long()
        dist.all_reduce(have)
        learning = [w for w, ranks in zip(whole, have.tolist(), strict=True) if ranks]
        for dtype in dict.fromkeys(w.dtype for w in learning):
            for bucket in buckets([w for w in learning if w.dtype == dtype], BUCKET):
                _sum_bucket(bucket)

    @torch.no_grad()
    def clip_gradients(self, weights: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Shorten the gradient of all weights together to ``max_norm`` (arXiv 1211.5063).

        To be called after ``sum_gradients``. As ``torch.nn.utils.clip_grad_norm_``, but for weights
        of which some are in shards too.

        Returns:
            () float32, its 2-norm before.
        """
        whole: list[Tensor] = []
        shards: list[Tensor] = []
        for weight in weights:
            if weight.grad is not None:
                part_of = shards if isinstance(weight.grad, DTensor) else whole
                part_of.append(local(weight.grad))
        square = _square(shards)
        if shards:
            dist.all_reduce(square)
        norm = (
            square + _square(whole)
        ).sqrt()  # of none () on the host, which goes with any device
        for gradient in (*whole, *shards):
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def check_equal(self, weights: Iterable[nn.Parameter]) -> None:
        """That all ranks begin with the same weights.

        Raises:
            ValueError: they do not; names the ranks that differ from the first.
        """
        if self.size == 1:
            return
        double = torch.float64
        sums = [
            torch.stack([w.sum(dtype=double), torch.linalg.vector_norm(w, dtype=double)])
            for w in weights
        ]
        found = self.gather(torch.stack(sums)[None].detach())
        if wrong := (found != found[:1]).flatten(1).any(dim=1).nonzero().flatten().tolist():
            raise ValueError(f"ranks {wrong}: their weights are not those of rank 0 at the start")


def _sum_bucket(weights: list[nn.Parameter]) -> None:
    """As ``World.sum_gradients``, of weights of one type, in one message."""
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for weight, gradient, part in zip(weights, gradients, parts, strict=True):
        weight.grad = gradient.copy_(part.view_as(gradient))


def _square(gradients: list[Tensor]) -> Tensor:
    """Sum of the squares of all their elements, () float32."""
    if not gradients:
        return torch.zeros(())
    return (
        torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients])
        .square()
        .sum()
    )
