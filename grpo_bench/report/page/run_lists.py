"""The runs behind the numbers: every run with its status, the failed runs, machines and code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd

from grpo_bench.report.contents import Report, Section
from grpo_bench.report.figures.panels import slug
from grpo_bench.report.page.elements import Markup, element, join
from grpo_bench.report.page.sortable_table import Cell, sortable_table
from grpo_bench.report.rows.comparison import Group, rival
from grpo_bench.report.text.numbers import ABSENT, share

Place = tuple[str, str, str]  # environment, budget and label: they name a row of a table
TEST_SUCCESS = "eval/test/success"
NO_REASON = {  # the reason to show for a run that left none, by its status
    "planned": "not started",
    "running": "still running, or interrupted",
    "failed": "ended with an error",
    "oom": "out of memory",
    "nan": "a number was not finite",
    "killed": "killed",
    "timeout": "out of time",
}


def section_anchor(section: Section) -> str:
    """The id of a section's part of the page."""
    return slug("section", section.name)


def run_anchor(section: Section, run: str) -> str:
    """The id of a run."""
    return slug("run", section.name, run)


def runs_anchor(section: Section) -> str:
    """The id of the list of a section's runs."""
    return slug("runs", section.name)


def group_anchors(section: Section) -> dict[Place, str]:
    """The ids of the groups' lists of runs, by environment, budget and algorithm."""
    return {
        _place(group): slug("runs", section.name, str(i)) for i, group in enumerate(section.groups)
    }


def run_lists(report: Report) -> Markup:
    """All runs of all sections, by group."""
    parts = []
    for section in report.sections:
        heading = f"Records of {section.name}"
        parts.append(element("h3", heading, id=runs_anchor(section)))
        anchors = group_anchors(section)
        parts += [_group(section, group, anchors) for group in section.groups]
    return join(*parts)


def failed_runs(report: Report) -> Markup:
    """The runs that did not end ok, or a sentence that all did."""
    rows = []
    total = 0
    for section in report.sections:
        for group in section.groups:
            total += len(group.runs)
            rows += [list(_failure(section, group, run)) for run in _not_ok(group)]
    if not rows:
        return element("p", f"None: all {total:,} runs ended ok.")
    caption = f"{len(rows):,} of {total:,} runs; every table counts them in its denominator"
    return sortable_table(
        ["records", "env", "budget", "algo", "seed", "status", "reason", "run"], rows, caption
    )


def machine_table(report: Report) -> Markup:
    """The machines, versions and code of the runs."""
    columns = [
        *("processor", "cores", "accelerator", "threads", "concurrency"),
        *("platform", "python", "versions", "commit", "dirty", "code_digest"),
    ]
    counts: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
    for section in report.sections:
        for group in section.groups:
            for run in group.runs[columns].to_dict("records"):
                if pd.isna(run["processor"]):  # never started
                    continue
                _, seen = counts.setdefault(json.dumps(run, sort_keys=True), (run, {}))
                seen[section.name] = seen.get(section.name, 0) + 1
    rows = [[*_machine(run), _seen(seen)] for run, seen in counts.values()]
    titles = ["machine", "threads", "runs at once", "system", "versions", "code", "runs"]
    return sortable_table(titles, rows, "Hardware, versions and commits of the runs")


def _group(section: Section, group: Group, ids: dict[Place, str]) -> Markup:
    place = f"{group.env}, {group.budget}, {group.label}"
    ok = f"{len(group.values)}/{len(group.runs)} ok"
    rows = [list(_run(group, run)) for run in group.runs.to_dict("records")]
    anchors = [run_anchor(section, run) for run in group.runs["run"]]
    references = [g for g in section.groups if g.is_reference and g.place == group.place]
    compared, other = None, rival(group, references)
    if other is not None and not group.is_reference:
        link = element("a", other.label, href=f"#{ids[_place(other)]}")
        compared = element("p", "Compared with the runs of ", link, ", by seed.")
    config = {k: v for k, v in group.runs["config"].iloc[0].items() if k not in ("seed", "results")}
    settings = element(
        "details",
        element("summary", "Settings"),
        element("pre", json.dumps(config, indent=1, sort_keys=True)),
    )
    titles = ["seed", "status", "test success", "attempt", "code", "started", "run"]
    return element(
        "details",
        element("summary", f"{place}: {ok}"),
        sortable_table(titles, rows, f"Runs of {place}", anchors=anchors),
        compared,
        settings,
        id=ids[_place(group)],
        class_="runs",
    )


def _run(group: Group, run: dict[Any, Any]) -> Iterator[Cell]:
    is_ok = run["status"] == "ok"
    success = float("nan")
    if is_ok and TEST_SUCCESS in group.values.columns:
        success = float(group.values.loc[run["run"], TEST_SUCCESS])
    yield Cell(str(run["seed"]), run["seed"])
    yield Cell(run["status"], kind="" if is_ok else "missing")
    yield Cell(share(success), success)
    yield Cell(str(run["attempt"]), run["attempt"])
    yield Cell(_code(run))
    yield Cell(ABSENT if pd.isna(run["start"]) else run["start"])
    yield Cell(run["run"])


def _failure(section: Section, group: Group, run: dict[Any, Any]) -> Iterator[Cell]:
    yield Cell(section.name, link=f"#{section_anchor(section)}")
    yield from map(Cell, (group.env, group.budget, group.label))
    yield Cell(str(run["seed"]), run["seed"])
    yield Cell(run["status"], kind="missing")
    yield Cell(run["reason"] or NO_REASON[run["status"]])
    yield Cell(run["run"], link=f"#{run_anchor(section, run['run'])}")


def _place(group: Group) -> Place:
    return group.env, group.budget, group.label


def _not_ok(group: Group) -> list[dict[Any, Any]]:
    return group.runs[group.runs["status"] != "ok"].to_dict("records")


def _machine(run: dict[str, Any]) -> Iterator[Cell]:
    card = f", {run['accelerator']}" if not pd.isna(run["accelerator"]) else ""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run["versions"].items()))
    yield Cell(f"{run['processor']} ({run['cores']:.0f} cores{card})")
    yield Cell(f"{run['threads']:.0f}", run["threads"])
    yield Cell(f"{run['concurrency']:.0f}", run["concurrency"])
    yield Cell(f"{run['platform']}, Python {run['python']}")
    yield Cell(versions)
    yield Cell(_code(run))


def _seen(counts: dict[str, int]) -> Cell:
    total = sum(counts.values())
    where = ", ".join(f"{n} of {name}" for name, n in counts.items())
    return Cell(f"{total:,}\n{where}", total)


def _code(run: dict[Any, Any]) -> str:
    """The commit, or the digest of code that was not committed."""
    if pd.isna(run["code_digest"]):
        return ABSENT
    digest = f"code {run['code_digest'][:8]}"
    if pd.isna(run["commit"]):
        return digest
    return f"{run['commit'][:10]}{f' with changes, {digest}' if run['dirty'] else ''}"
