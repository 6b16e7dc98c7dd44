"""What an iteration of S seeds writes to their logs, under the names of single runs."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from grpo_bench.batched.rollout import StackedRollout
from grpo_bench.grpo.advantages import group_std, without_spread
from grpo_bench.grpo.kl import k3
from grpo_bench.grpo.spread import best_group_size, expected_flat_share
from grpo_bench.grpo.update_log import UpdateLog

best_size = cache(best_group_size)  # success rates are shares of an iteration's rollouts


class StackedLog:
    """``UpdateLog`` of S seeds: one value (S,) per minibatch for each name."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Tensor]] = {}
        self.log_ratios: list[Tensor] = []  # (S, n) of each minibatch

    def add(self, name: str, values: Tensor) -> None:
        """A value of this minibatch for each seed, (S,)."""
        self.columns.setdefault(name, []).append(values.detach())

    def add_ratio(self, logp: Tensor, old_logp: Tensor) -> None:
        """log pi - log pi_old of this minibatch, both (S, k, G)."""
        self.log_ratios.append((logp.detach() - old_logp).flatten(1))

    def means(self) -> dict[str, list[float]]:
        """The mean of each name, and ``approx_kl``, for each seed."""
        means = {name: torch.stack(column).mean(dim=0) for name, column in self.columns.items()}
        log_ratio = torch.cat(self.log_ratios, dim=1)
        means["approx_kl"] = k3(torch.zeros_like(log_ratio), log_ratio).mean(dim=1)
        return {name: values.tolist() for name, values in means.items()}

    def of(self, seed: int) -> UpdateLog:
        """The first minibatch of one seed, by its place: what the doctor looks at."""
        log = UpdateLog()
        log.columns = {
            name: [column[0][seed]] for name, column in self.columns.items() if name == "kl_ref_k3"
        }
        log.log_ratios = [self.log_ratios[0][seed]]
        return log


def rollout_metrics(rollout: StackedRollout) -> dict[str, list[float]]:
    """What GRPO logs of an iteration's episodes, for each seed: ``spread_metrics``, and SB3's means
    over a window that is one iteration. A seed without a value has NaN."""
    n_seeds, n_groups, group_size = rollout.returns.shape
    groups = rollout.returns.flatten(0, 1)  # (S * P, G)
    valid = torch.ones_like(groups, dtype=torch.bool)
    flat = without_spread(groups).view(n_seeds, n_groups).sum(dim=1).tolist()
    success = rollout.success.mean(axis=(1, 2)).tolist()
    transitions = n_groups * group_size
    columns = {
        "zero_std_frac": [n / n_groups for n in flat],
        "group_std": group_std(groups, valid).view(n_seeds, n_groups).mean(dim=1).tolist(),
        "informative_cost": [
            transitions / (n_groups - n) if n < n_groups else float("nan") for n in flat
        ],
        "zero_std_expected": [expected_flat_share(rate, group_size) for rate in success],
        "best_group_size": [best_size(rate) or float("nan") for rate in success],
        "ep_rew_mean": rollout.returns.double().mean(dim=(1, 2)).tolist(),
        "ep_len_mean": [1.0] * n_seeds,
        "success_rate": success,
    }
    return {f"rollout/{name}": values for name, values in columns.items()}
