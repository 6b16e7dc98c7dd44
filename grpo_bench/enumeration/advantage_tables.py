"""Properties of the advantages themselves, for any policy: their sum, and the effect of the
rewards' scale."""

from __future__ import annotations

from itertools import product

import torch

from grpo_bench.enumeration.table import Table, number
from grpo_bench.grpo.advantages import BASELINES, group_advantages
from grpo_bench.report.text.writers import Column

GROUP_SIZE = 8
SIZES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 1000.0)  # of the rewards


def advantages_table() -> Table:
    """Each baseline on all groups of rewards 0 and 1, and on the same rewards rescaled."""
    table = Table(
        "advantages",
        "Advantages: what they add up to in a group, and what the size of the rewards does to them",
        ["baseline", "size"],
        [Column("sum", "sum", number), Column("change", "change", number)],
        f"Size: rewards are 0 and size, in groups of {GROUP_SIZE} with 0 to {GROUP_SIZE} right "
        "answers, all in one batch; eps is 1e-4. Sum: the largest, but for its sign, of a group's "
        "advantages, over their largest. Change: the largest against the advantages of size 1, "
        "over their largest.",
    )
    members = torch.arange(GROUP_SIZE)
    # row k: a group with k right answers; their order changes nothing
    rewards = (members < torch.arange(GROUP_SIZE + 1)[:, None]).double()
    for baseline, size in product(BASELINES, SIZES):
        usual, found = (group_advantages(unit * rewards, baseline) for unit in (1.0, size))
        total = found.sum(dim=1).abs().max() / found.abs().max()
        change = (found - usual).abs().max() / usual.abs().max()
        numbers = {"sum": float(total), "change": float(change)}
        table.add({"baseline": baseline, "size": size}, numbers)
    return table
