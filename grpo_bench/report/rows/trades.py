"""What GRPO trades against PPO: a row for each environment and each critic that PPO may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpo_bench.report.rows.budgets import AT_EQUAL, Curves, at_equal, places
from grpo_bench.report.rows.cells import (
    RATE,
    TEST_SUCCESS,
    Row,
    difference,
    memory_ratios,
    names,
    ratio,
    share_columns,
)
from grpo_bench.report.rows.comparison import Group

CRITICS = {"separate": "separate", "shared": "shared trunk", "lora": "LoRA"}


def trades(groups: Sequence[Group], curves: Curves) -> list[Row]:
    """GRPO beside every PPO of its place: success at equal transitions and at equal seconds, speed
    and memory. Nothing of other members of GRPO's family, and of a PPO that is there with several
    settings nothing either: which would it be?"""
    return [
        _trade(group, ppo, curves) | {"critic": critic}
        for members in places(groups)
        for group in members
        if group.algo == "grpo"
        for ppo, critic in _rivals(members)
    ]


def _rivals(members: Sequence[Group]) -> list[tuple[Group, str]]:
    """Each PPO with its critic in words; with its own name as well, where two have the same."""
    algos = Counter(group.algo for group in members)
    once = [(group, critic_of(group)) for group in members if algos[group.algo] == 1]
    found = [(group, CRITICS.get(critic, critic)) for group, critic in once if critic is not None]
    number = Counter(words for _, words in found)
    return [(g, words if number[words] == 1 else f"{words}: {g.label}") for g, words in found]


def critic_of(group: Group) -> str | None:
    """The critic of a PPO; None of another algorithm."""
    # A record that cannot be read has no kind, and its name has to do.
    algos = [config["algo"] for config in group.runs["config"]]
    algos = [algo for algo in algos if algo.get("kind", group.algo) == "ppo"]
    return algos[0].get("critic", "separate") if algos else None


def _trade(group: Group, ppo: Group, curves: Curves) -> Row:
    at, (mine, its) = at_equal([group, ppo], curves, "seconds")
    in_seconds = difference(mine, its, AT_EQUAL, same_machine=True)
    return {
        **names(group),
        "critic": "",  # its place among the columns
        "ppo": ppo.label,
        "ppo_ok": len(ppo.values),
        "ppo_planned": len(ppo.runs),
        **share_columns("test_success", group.column(TEST_SUCCESS)),
        **share_columns("ppo_success", ppo.column(TEST_SUCCESS)),
        **difference(group, ppo, TEST_SUCCESS),
        "seconds": at,
        **{f"seconds_{name}": value for name, value in in_seconds.items()},
        **ratio("speed_ratio", group, ppo, RATE),
        **memory_ratios(group, ppo),
    }
