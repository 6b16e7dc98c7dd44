"""The log of an update: sums over its micro-batches, means at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_bench.grpo.kl import k1, k3
from grpo_bench.grpo.loss import Loss
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.parallel import World
from grpo_bench.lm.signals import Signal


class StepLog:
    """Sums over the tokens of an update's micro-batches, on the device until the end.

    Groups without a gradient are skipped, so ``approx_kl`` and ``logp_mismatch`` are means over the
    tokens of the others.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] = {}  # of the micro-batches before the first step
        self.grad_norms: list[Tensor] = []

    def add_minibatch(self, mask: Tensor) -> None:
        """The tokens of a step, (n, T) bool, including skipped groups: their advantages are 0, so
        none of their tokens is clipped."""
        self._count("step_tokens", mask.sum())

    def add(
        self,
        logp: Tensor,
        completions: Completions,
        signal: Signal,
        loss: Loss,
    ) -> None:
        """A micro-batch: log-probabilities (n, T) of its completions now."""
        mask = signal.mask
        tokens = mask.sum()
        log_ratio = (logp - completions.logp)[mask]
        self._count("loss", loss.total)
        self._count("policy_gradient_loss", loss.surrogate)
        self._count("tokens", tokens)
        self._count("clipped", loss.clip_fraction * tokens)
        self._count("kl", k3(torch.zeros_like(log_ratio), log_ratio).sum())
        if signal.ref_logp is not None:
            ref_logp = signal.ref_logp[mask]
            self._count("kl_ref_k1", k1(logp[mask], ref_logp).sum())
            self._count("kl_ref_k3", k3(logp[mask], ref_logp).sum())
        if not self.grad_norms:
            off = log_ratio.abs()
            self._count("mismatch", off.sum(), self.first)
            self._count("tokens", tokens, self.first)

    def add_value(self, loss: Tensor) -> None:
        """The critic's loss in a micro-batch."""
        self._count("value_loss", loss)

    def add_loss(self, loss: Tensor) -> None:
        """The loss of a separate critic in a micro-batch."""
        self._count("loss", loss)

    def add_step(self, grad_norm: Tensor) -> None:
        """The end of an optimiser step."""
        self.grad_norms.append(grad_norm)

    def means(self, world: World) -> dict[str, float]:
        """Metrics of the update, over all ranks."""
        names = [*self.sums, *(f"first_{name}" for name in self.first)]
        mine = torch.stack([t.double() for t in (*self.sums.values(), *self.first.values())])
        summed = dict(zip(names, world.gather(mine[None]).sum(dim=0).tolist(), strict=True))
        steps = len(self.grad_norms)
        tokens = max(summed["tokens"], 1.0)
        metrics = {
            "loss": summed["loss"] / steps,
            "policy_gradient_loss": summed["policy_gradient_loss"] / steps,
            "clip_fraction": summed["clipped"] / max(summed["step_tokens"], 1.0),
            "approx_kl": summed["kl"] / tokens,
            "grad_norm": float(torch.stack(self.grad_norms).float().mean()),
            "logp_mismatch": summed["first_mismatch"] / max(summed["first_tokens"], 1.0),
        }
        for name in ("kl_ref_k1", "kl_ref_k3"):
            if name in summed:
                metrics[name] = summed[name] / tokens
        if "value_loss" in summed:
            metrics["value_loss"] = summed["value_loss"] / steps
        return {f"train/{name}": value for name, value in metrics.items()}

    def _count(self, name: str, value: Tensor, into: dict[str, Tensor] | None = None) -> None:
        sums = self.sums if into is None else into
        value = value.detach()
        sums[name] = sums[name] + value if name in sums else value
