"""The lines below a table: where its numbers come from, and which runs are missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd

from grpo_bench.report.rows.cells import TEST_SUCCESS, beside_references
from grpo_bench.report.rows.comparison import MACHINE, Group

SHOWN_VERSIONS = ("torch", "gymnasium", "stable-baselines3", "transformers", "numpy")
TEST_REWARD = "eval/test/reward"
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(e[+-]?\d+)?")  # no part of a name, such as k1


def header(runs: pd.DataFrame) -> str:
    """One line: hardware, threads, concurrency, versions and commits of the runs that ended ok."""
    ok = runs[runs["status"] == "ok"]
    if ok.empty:
        return "No run has ended ok yet."
    machines = _distinct(map(_machine, _different(ok, MACHINE)))
    threads = _distinct(f"{n:.0f}" for n in ok["threads"].unique())
    beside = sorted({int(n) for n in ok["concurrency"]})
    versions = ["Python " + " and ".join(_distinct(ok["python"]))]
    for name in SHOWN_VERSIONS:
        found = _distinct(v[name] for v in ok["versions"] if name in v)
        if found:
            versions.append(f"{name} {' and '.join(found)}")
    commits = _distinct(map(_commit, _different(ok, ["commit", "code_digest", "dirty"])))
    mixed = "Mixed hardware, not comparable across machines: " if len(machines) > 1 else ""
    return (
        f"{mixed}{' and '.join(machines)}; {' and '.join(threads)} thread(s) a run, "
        f"{' and '.join(map(str, beside))} run(s) at a time; {', '.join(versions)}; "
        f"{' and '.join(commits)}."
    )


def footnotes(groups: list[Group], reference: str) -> list[str]:
    """Notes on runs without numbers, runs of several processes, rows without a comparison because
    there are several of ``reference``, and the doctor's findings."""
    notes = []
    for group in groups:
        place = f"{group.env}, {group.budget}, {group.label}"
        runs = group.runs[["seed", "status", "problem", "extra"]].to_dict("records")
        missing = [run for run in runs if run["status"] != "ok"]
        for status in sorted({run["status"] for run in missing if not run["problem"]}):
            alike = (run for run in missing if run["status"] == status and not run["problem"])
            seeds = ", ".join(str(run["seed"]) for run in alike)
            notes.append(f"Not in the means: {place}: {status} (seed {seeds})")
        for run in missing:
            if run["problem"]:
                notes.append(
                    f"Not in the means: {place}: seed {run['seed']}, record skipped: "
                    f"{run['problem']}"
                )
        notes += _without_success(group, place)
        ok = [run for run in runs if run["status"] == "ok"]
        counts = sorted({n for run in ok if (n := run["extra"].get("processes", 1)) > 1})
        if counts:
            n = sum("processes" in run["extra"] for run in ok)
            notes.append(
                f"Trained by {' or '.join(map(str, counts))} processes together: {place}: {n} of "
                f"{len(ok)} runs; the memory shown is that of one process"
            )
    several = Counter(group.place for group in groups if group.is_reference)
    for group, other in beside_references(groups):
        if other is None and not group.is_reference and several[group.place] > 1:
            where = f"{group.env}, {group.budget}: {group.label}"
            notes.append(f"{where} is compared with nothing: more than one {reference} fits it")
    return notes + _other_measures(groups) + _findings(groups)


def _other_measures(groups: list[Group]) -> list[str]:
    """What stands for success on environments that report none: the mean return, or a score of it
    (``training.control.evaluate``)."""
    measures: dict[str, list[str]] = {}
    for group in groups:
        reward = group.column(TEST_REWARD)
        settings = group.config.get("env", {})
        if "workers" not in settings or len(reward) != len(group.column(TEST_SUCCESS)):
            continue
        measure, name, low, high = "the mean return", group.env, 0.0, 1.0
        if known := settings.get("returns"):
            low, high = known["random"], known["reference"]
            measure = "the mean return as a score from 0 (random) to 1"
            name = f"{group.env} ({low:g} to {high:g})"
        if not np.allclose((reward - low) / (high - low), group.column(TEST_SUCCESS)):
            continue  # the environment reports success
        if name not in (names := measures.setdefault(measure, [])):
            names.append(name)
    return [f"Success on {', '.join(names)} is {what}" for what, names in measures.items()]


def _without_success(group: Group, place: str) -> list[str]:
    """The runs that ended ok without a success that others of the group have."""
    if len(group.column(TEST_SUCCESS)) in (0, len(group.values)):
        return []
    seeds = group.values.loc[group.values[TEST_SUCCESS].isna(), "seed"]
    return [f"Without success on test: {place}: ok (seed {', '.join(map(str, seeds))})"]


def _findings(groups: list[Group]) -> list[str]:
    """Each finding once, in the words of the first run, with the rows that have it. Texts that
    differ only in their numbers are one finding."""
    texts: dict[str, str] = {}
    places: dict[str, dict[str, list[tuple[str, str]]]] = {}  # of each finding, by row: env, run
    for group in groups:
        for name, extra in zip(group.runs["run"], group.runs["extra"], strict=True):
            for text in extra.get("findings", []):
                key = _NUMBER.sub("#", text)
                texts.setdefault(key, text)
                places.setdefault(key, {}).setdefault(group.label, []).append((group.env, name))
    return [
        f"Finding in {' and '.join(starmap(_place, places[key].items()))}: {text}"
        for key, text in texts.items()
    ]


def _place(label: str, found: list[tuple[str, str]]) -> str:
    envs = ", ".join(dict.fromkeys(env for env, _ in found))
    n = len({run for _, run in found})
    return f"{label} ({envs}; {n} {'run' if n == 1 else 'runs'})"


def _different(runs: pd.DataFrame, columns: list[str]) -> list[dict[Any, Any]]:
    return runs[columns].drop_duplicates().to_dict("records")


def _machine(run: dict[Any, Any]) -> str:
    card = "" if pd.isna(run["accelerator"]) else f", {run['accelerator']}"
    return f"{run['processor']} ({run['cores']:.0f} cores{card})"


def _commit(run: dict[Any, Any]) -> str:
    if pd.isna(run["commit"]):
        return f"no commit (code {run['code_digest'][:8]})"
    # Two dirty trees of one commit may differ, and then their digests do.
    dirty = f" with changes (code {run['code_digest'][:8]})" if run["dirty"] else ""
    return f"commit {run['commit'][:10]}{dirty}"


def _distinct(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values})
