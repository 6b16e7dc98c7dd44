"""The log of an update: means over its minibatches, kept on the device until the end."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_bench.grpo.kl import k3


def approx_kl(log_ratio: Tensor) -> Tensor:
    """SB3's estimate of the KL from log pi - log pi_old of some actions, (m,):
    mean(rho - 1 - log rho), k3 of the old policy against this one."""
    return k3(torch.zeros_like(log_ratio), log_ratio).mean()


class UpdateLog:
    """Gathers one value per minibatch for each name, and the ratio of every action."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Tensor]] = {}
        self.log_ratios: list[Tensor] = []  # (m,) of each minibatch

    def add(self, name: str, value: Tensor) -> None:
        """A scalar of this minibatch."""
        self.columns.setdefault(name, []).append(value.detach())

    def add_ratio(self, log_ratio: Tensor) -> None:
        """log pi - log pi_old of this minibatch's actions, (m,)."""
        self.log_ratios.append(log_ratio)

    def means(self) -> dict[str, float]:
        """The mean of each name, and ``approx_kl``; empty without a minibatch."""
        if not self.log_ratios:
            return {}
        means = {name: torch.stack(column).mean().item() for name, column in self.columns.items()}
        means["approx_kl"] = approx_kl(torch.cat(self.log_ratios)).item()
        return means
