"""From records to what is compared: groups of runs that differ in their seed alone, and pairs.

A row of a table is a ``Group``. Runs of one algorithm with different settings are never pooled:
they make rows of their own, labelled by the settings in which they differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_bench.records import TRAINING
from grpo_bench.records.labels import ABSENT, flat, labels
from grpo_bench.records.load import RunSummaries

FAMILIES = ("grpo", "ppo")  # in the order of their rows
CRITICS = ("separate", "shared", "lora")  # the same
COMPONENTS = ("policy", "critic", "reference", "gradient", "optimizer", "rollout")
STATIC = [f"memory/{part}_bytes" for part in COMPONENTS[:-1]]  # what is there whatever the batch
MACHINE = ["processor", "cores", "accelerator", "threads"]


@dataclass(frozen=True)
class Group:
    """Runs of one environment, budget and algorithm with the same settings.

    runs: all that were planned.
    values: of those that ended ok, their rows of ``final_values``.
    is_reference: the others at its ``place`` are compared with it, or with the one like it that has
        their values of what differs between references (``rival``).
    """

    env: str
    budget: str
    algo: str
    label: str
    setting: str
    runs: pd.DataFrame
    values: pd.DataFrame
    is_reference: bool = False

    @property
    def of_language_model(self) -> bool:
        """Whether a transition is a token of a language model."""
        return any("model" in config for config in self.runs["config"])

    @property
    def place(self) -> tuple[str, str, str]:
        """Environment, budget and other settings: what groups must share to be compared."""
        return self.env, self.budget, self.setting

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that all its runs have, but for the seed."""
        config: dict[str, Any] = self.runs["config"].iloc[0]
        return config

    def column(self, metric: str) -> NDArray[np.float64]:
        """A metric of the runs that have it, one value per seed, (n,)."""
        if metric not in self.values.columns:
            return np.empty(0)
        column = self.values[metric].to_numpy(dtype=np.float64)
        return column[~np.isnan(column)]


def reference_algorithm(results: RunSummaries, chosen: str | None) -> str:
    """The algorithm that the others are compared with: the chosen one, or without a choice the
    first of ``ppo``, ``ppo_zoo`` and ``grpo`` that has a run.

    Raises:
        ValueError: there is no run of the chosen one.
    """
    algos = sorted(set(results.runs["algo"]))
    if chosen is None:
        return next((name for name in ("ppo", "ppo_zoo") if name in algos), "grpo")
    if chosen not in algos:
        raise ValueError(
            f"reference={chosen}: expected an algorithm that has runs here: {', '.join(algos)}"
        )
    return chosen


def group_runs(results: RunSummaries, reference: str) -> list[Group]:
    """All groups: by environment, then budget, then GRPO's family, PPO's, the others, and the plain
    one of a family first; the settings of one algorithm in the order of their numbers. Those of the
    algorithm ``reference`` are the references of their places."""
    values = final_values(results)
    groups = []
    for (env, budget, algo), runs in results.runs.groupby(["env", "budget", "algo"]):
        readable = runs[runs["problem"] == ""]
        label_of = labels(dict(zip(readable["variant"], readable["config"], strict=True)))
        variant_of = runs["variant"]
        if len(label_of) == 1:  # then a record that cannot be read can only belong there
            variant_of = variant_of.replace("", next(iter(label_of)))
        for variant, rows in runs.groupby(variant_of):
            differs = label_of.get(variant, "settings not readable")
            label = f"{algo} ({differs})" if differs else str(algo)
            _, setting = min(zip(rows["problem"], rows["setting"], strict=True))  # a readable one's
            ok = values.loc[rows.loc[rows["status"] == "ok", "run"]]
            groups.append(Group(env, budget, algo, label, setting, rows, ok))
    several = Counter(group.place for group in groups if group.algo == reference)
    others = {group.place for group in groups if group.algo != reference}
    marked = [
        replace(
            g, is_reference=g.algo == reference and (several[g.place] == 1 or g.place in others)
        )
        for g in groups
    ]
    return sorted(marked, key=_order)


def rival(group: Group, references: Sequence[Group]) -> Group | None:
    """Which of the references of its place a group is compared with: the only one, or the only one
    that has the same values of those settings in which they differ and that the group has, too. A
    sweep of clip ranges compares each with PPO at that clip range."""
    if len(references) < 2:
        return references[0] if references else None
    theirs = [flat(one.config) for one in references]
    mine = flat(group.config)
    differing = {key for s in theirs for key in s if len({repr(o.get(key)) for o in theirs}) > 1}
    shared = [key for key in differing if key in mine]
    alike = [
        one
        for one, settings in zip(references, theirs, strict=True)
        if shared and all(settings.get(key, ABSENT) == mine[key] for key in shared)
    ]
    return alike[0] if len(alike) == 1 else None


def paired_values(
    group: Group, reference: Group, metric: str, *, same_machine: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A metric of both for each seed that both have, (n,) and (n,); what a clock or the allocator
    measures is only paired on equal machines."""
    mine, its = (_by_seed(g.values, metric, same_machine) for g in (group, reference))
    both = sorted(mine.keys() & its.keys())
    return np.array([mine[key] for key in both]), np.array([its[key] for key in both])


def _by_seed(values: pd.DataFrame, metric: str, same_machine: bool) -> dict[Any, float]:
    """A metric of each run that has it, by seed and machine; plain dictionaries, since joining data
    frames took half of the time of all tables."""
    if metric not in values.columns:
        return {}
    keys = (values[key].tolist() for key in (("seed", "machine") if same_machine else ("seed",)))
    found = zip(zip(*keys, strict=True), values[metric].tolist(), strict=True)
    return {key: value for key, value in found if value == value}  # not NaN


def final_values(results: RunSummaries) -> pd.DataFrame:
    """The ends of the runs that ended ok, indexed by run, and beside them seed, machine, the sums
    ``growth`` and ``static``, in bytes, ``critic_share``, the critic's share c of the seconds of
    training, and ``bound`` = 1 / (1 - c), how many times as fast training would be without it."""
    ok = results.runs[results.runs["status"] == "ok"].set_index("run")
    machines = [" | ".join(map(str, row)) for row in ok[MACHINE].to_numpy().tolist()]
    summaries = results.values
    sums = {}
    if {"memory/train_peak_bytes", "memory/start_bytes"} <= set(summaries.columns):
        sums["growth"] = summaries["memory/train_peak_bytes"] - summaries["memory/start_bytes"]
    there = [name for name in STATIC if name in summaries.columns]
    if there:
        sums["static"] = summaries[there].sum(axis=1, min_count=1)
    if "time/critic_seconds" in summaries.columns:
        seconds = [f"time/{phase}_seconds" for phase in TRAINING]
        training = summaries[[name for name in seconds if name in summaries.columns]].sum(axis=1)
        sums["critic_share"] = summaries["time/critic_seconds"] / training
        sums["bound"] = 1 / (1 - sums["critic_share"])
    return ok[["seed"]].assign(machine=machines).join(summaries.assign(**sums))


def _order(group: Group) -> tuple[Any, ...]:
    algos = [config["algo"] for config in group.runs["config"]]
    # A record that cannot be read has no kind, and its name has to do.
    kind = next((algo["kind"] for algo in algos if "kind" in algo), group.algo)
    family = next((i for i, name in enumerate(FAMILIES) if kind.startswith(name)), len(FAMILIES))
    is_variant = group.algo not in FAMILIES
    critic = next((algo["critic"] for algo in algos if "critic" in algo), CRITICS[0])
    rank = CRITICS.index(critic) if critic in CRITICS else len(CRITICS)
    return group.env, group.budget, family, is_variant, rank, group.algo, _natural(group.label)


def _natural(label: str) -> list[tuple[bool, float, str]]:
    """A key that sorts the numbers in labels by their size: 2 before 16, 1e-3 before 0.02."""
    parts = re.split(r"(?<![\w.])(-?\d+\.?\d*(?:e[-+]?\d+)?)(?![\w.])", label)
    return [(True, float(p), "") if i % 2 else (False, 0.0, p) for i, p in enumerate(parts)]
