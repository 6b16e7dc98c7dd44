"""What the page and the figures show: records of some folders with their tables and curves, and the
claims judged by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pandas as pd

from grpo_bench.records.errors import load_errors
from grpo_bench.records.load import RunSummaries
from grpo_bench.report.claims.judge import Judged
from grpo_bench.report.folder import read_records
from grpo_bench.report.rows.aggregate import profiles
from grpo_bench.report.rows.comparison import Group, group_runs, reference_algorithm
from grpo_bench.report.rows.curves import learning_curves
from grpo_bench.report.rows.memory_parts import PARTS
from grpo_bench.report.tables import build_tables

# What an algorithm holds all the time: its name in the records, and on the page.
OWN = {
    "policy": "policy",
    "critic": "critic",
    "reference": "reference",
    "gradient": "gradients",
    "optimizer": "optimiser",
    "rollout": "rollout",
}
OWNED = {"grpo": 0, "ppo": 1, "ppo_shared": 2}  # the algorithms that own a colour: its place
TITLE = "What GRPO trades against PPO in memory, speed and accuracy"
REST = "rest of the process"


@dataclass(frozen=True)
class Section:
    """The records of one folder.

    name: of the folder; no two sections of a report share it.
    groups: in the order of the tables' rows. Their runs have a column ``reason``: why a run did not
        end ok, as far as it is known; "".
    tables: as ``build_tables`` gives them.
    curves: as ``learning_curves`` gives them.
    profiles: as ``profiles`` of several tasks gives them; no rows of a single environment.
    notes: what whoever made the records says of all of them.
    order: the labels of algorithms in the order of the tables, with the places of their colours.
    """

    name: str
    groups: Sequence[Group]
    tables: dict[str, pd.DataFrame]
    curves: pd.DataFrame
    profiles: pd.DataFrame
    notes: tuple[str, ...]
    order: dict[str, int]


@dataclass(frozen=True)
class Report:
    """sections: the first has the main comparison.
    claims: the ledger; none: there is no such part.
    memory: what one process each held at its peak, measured apart from the records: columns env,
        algo, component, bytes, the components called as in ``OWN``. None: not measured.
    """

    title: str
    sections: Sequence[Section]
    claims: Sequence[Judged]
    memory: pd.DataFrame | None


def recorded_parts(table: pd.DataFrame) -> pd.DataFrame:
    """The components of a table ``memory``, and what its peak holds beside them.

    Returns:
        Columns env, budget, algo, component, bytes: a row for each component that is there.
    """
    rows = []
    for row in table.to_dict("records"):
        sizes = {words: row[f"{name}_bytes"] for name, words in OWN.items()}
        parts = {words: size for words, size in sizes.items() if size > 0}
        rest = row["peak_bytes"] - sum(parts.values())
        for name, size in (parts | {REST: rest}).items():
            place = {key: row[key] for key in ("env", "budget", "algo")}
            rows.append(place | {"component": name, "bytes": size})
    frame = pd.DataFrame(rows, columns=["env", "budget", "algo", "component", "bytes"])
    return frame[frame["bytes"] > 0]


def gather(
    folders: Sequence[Path],
    claims: Sequence[Judged] = (),
    memory: pd.DataFrame | None = None,
    title: str = TITLE,
) -> Report:
    """Read records from disk.

    Args:
        folders: of records, the main comparison first; a section is called as its folder.
        claims: the ledger.
        memory: as ``memory_parts`` gives it; None: not measured.

    Raises:
        FileNotFoundError: there is no run in one of the folders.
        ValueError: two folders have the same name, or there is none.
    """
    names = [folder.resolve().name for folder in folders]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"folders={names}: expected one at least, of different names")
    sections = [read_section(name, path) for name, path in zip(names, folders, strict=True)]
    return assemble(sections, claims, memory, title)


def assemble(
    sections: Sequence[Section],
    claims: Sequence[Judged] = (),
    memory: pd.DataFrame | None = None,
    title: str = TITLE,
) -> Report:
    """A report of sections, with colours that fit together; see ``gather``."""
    orders = coloured([list(section.order) for section in sections])
    sections = [replace(s, order=order) for s, order in zip(sections, orders, strict=True)]
    if memory is not None:
        memory = memory.assign(component=memory["component"].map(PARTS))
    return Report(title, sections, claims, memory)


def coloured(sections: Sequence[Sequence[str]]) -> Iterator[dict[str, int]]:
    """The places of the algorithms' colours, section by section. No two algorithms of a section
    share one. An algorithm keeps its first colour, unless another of its section has it; GRPO and
    PPO have the same colours everywhere."""
    first = dict(OWNED)
    for labels in sections:
        taken: dict[int, str] = {}
        for label in labels:
            if label in first:
                taken.setdefault(first[label], label)
        kept = set(taken.values())
        free = (i for i in count(len(OWNED)) if i not in taken)
        places = {label: first[label] if label in kept else next(free) for label in labels}
        first = places | first
        yield places


def read_section(name: str, folder: Path) -> Section:
    """The records of a folder, with what is made of them.

    Raises:
        FileNotFoundError: there is no run in it.
    """
    summaries, problems = read_records(folder)
    return make_section(
        name, summaries, build_tables(summaries, None, problems), load_errors(folder)
    )


def make_section(
    name: str,
    summaries: RunSummaries,
    tables: dict[str, pd.DataFrame],
    errors: dict[str, str],
) -> Section:
    """A section from records that have been read, and from their tables.

    Args:
        errors: why runs failed, as ``load_errors`` gives it.
    """
    runs = summaries.runs
    problems = zip(runs["run"], runs["problem"], strict=True)
    reasons = [problem or errors.get(run, "") for run, problem in problems]
    summaries = replace(summaries, runs=runs.assign(reason=reasons))
    groups = group_runs(summaries, reference_algorithm(summaries, None))
    return Section(
        name=name,
        groups=groups,
        tables=tables,
        curves=learning_curves(groups, summaries),
        profiles=profiles(groups),
        notes=summaries.notes,
        order={label: i for i, label in enumerate(dict.fromkeys(g.label for g in groups))},
    )
