"""What GRPO trades against PPO: a row for each environment and each critic that PPO may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_bench.report.budgets import AT_EQUAL, Curves, at_equal, places
from grpo_bench.report.cells import (
    RATE,
    TEST_SUCCESS,
    Row,
    difference,
    memory_ratios,
    names,
    ratio,
    spread,
)
from grpo_bench.report.comparison import Group

CRITICS = {"separate": "separate", "shared": "shared trunk", "lora": "LoRA"}


def trades(groups: Sequence[Group], curves: Curves) -> list[Row]:
    """GRPO beside every PPO of its place: success at equal transitions and at equal seconds, speed
    and memory. Nothing of other members of GRPO's family, and of a PPO that is there with several
    settings nothing either: which would it be?"""
    rows = []
    for members in places(groups):
        number = Counter(group.algo for group in members)
        rivals = [g for g in members if number[g.algo] == 1 and critic_of(g) is not None]
        mine = [group for group in members if group.algo == "grpo"]
        rows += [_trade(group, ppo, curves) for group in mine for ppo in rivals]
    return rows


def critic_of(group: Group) -> str | None:
    """The critic of a PPO; None of another algorithm."""
    # A record that cannot be read has no kind, and its name has to do.
    algos = [config["algo"] for config in group.runs["config"]]
    algos = [algo for algo in algos if algo.get("kind", group.algo) == "ppo"]
    return algos[0].get("critic", "separate") if algos else None


def _trade(group: Group, ppo: Group, curves: Curves) -> Row:
    at, (mine, its) = at_equal([group, ppo], curves, "seconds")
    in_seconds = difference(mine, its, AT_EQUAL, same_machine=True)
    critic = critic_of(ppo)
    assert critic is not None
    return {
        **names(group),
        "critic": CRITICS.get(critic, critic),
        "ppo": ppo.label,
        "ppo_ok": len(ppo.values),
        "ppo_planned": len(ppo.runs),
        **spread("test_success", group.column(TEST_SUCCESS)),
        **spread("ppo_success", ppo.column(TEST_SUCCESS)),
        **difference(group, ppo, TEST_SUCCESS),
        "seconds": at,
        **{f"seconds_{name}": value for name, value in in_seconds.items()},
        **ratio("speed_ratio", group, ppo, RATE),
        **memory_ratios(group, ppo),
    }
