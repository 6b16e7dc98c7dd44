"""The tables, in numbers: a row per environment, budget and algorithm; some tables have a row for
each of several budgets or scores. ``summary`` has the main numbers of the other tables.

A column ``x`` with an interval is a mean over seeds; ``x_low`` and ``x_high`` are its 95 % bounds
(``rows.cells``), empty below three seeds. ``x_sd`` and ``x_kurtosis`` are the ``stats.spread``.
Differences and ratios are paired by seed with the reference. The transitions of a language model
are tokens, which have columns of their own.
A table's ``attrs`` hold ``caption``, ``header``, ``reading``, ``short_reading`` (for ``brief``
columns), ``footnotes`` (a list), ``reference``, the name of the algorithm compared with as texts
have it, and ``unit``, of the bytes of components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from grpo_bench import stats
from grpo_bench.records import TRAINING
from grpo_bench.records.load import START, RunSummaries
from grpo_bench.report.rows.aggregate import aggregate
from grpo_bench.report.rows.budgets import equal, reach
from grpo_bench.report.rows.cells import (
    RATE,
    TEST_SUCCESS,
    Row,
    beside_references,
    difference,
    experience,
    mean,
    mean_columns,
    memory_ratios,
    names,
    normalised,
    positive_columns,
    ratio,
    share_columns,
)
from grpo_bench.report.rows.comparison import COMPONENTS, Group, group_runs, reference_algorithm
from grpo_bench.report.rows.curves import run_curves
from grpo_bench.report.rows.paired import paired
from grpo_bench.report.rows.trades import critic_of, trades
from grpo_bench.report.text.origin import footnotes, header
from grpo_bench.report.text.words import captions, in_text, readings, short_reading


def build_tables(
    results: RunSummaries, reference: str | None = None, problems: pd.DataFrame | None = None
) -> dict[str, pd.DataFrame]:
    """``trades``, ``summary``, ``accuracy``, ``equal``, ``reach``, ``speed``, ``memory``,
    ``aggregate`` and ``paired``, without those that would have no row: ``trades`` without GRPO or
    without PPO, ``summary`` and ``paired`` where all are references, ``reach`` where no run comes
    to a score, ``aggregate`` of a single environment.

    Args:
        reference: the algorithm to compare with; None: ``ppo``, or ``grpo`` without a run of that.
        problems: what ``load_problems`` gives; None: without ``paired``.

    Raises:
        ValueError: there is no run of ``reference``.
    """
    algo = reference_algorithm(results, reference)
    groups = group_runs(results, algo)
    curves = run_curves(results)
    makers: dict[str, Callable[[Sequence[Group]], list[Row]]] = {
        "trades": partial(trades, curves=curves),
        "summary": _summaries,
        "accuracy": partial(_each, _accuracy),
        "equal": partial(equal, curves=curves),
        "reach": partial(reach, curves=curves),
        "speed": partial(_each, _speed),
        "memory": partial(_each, _memory),
        "aggregate": aggregate,
    }
    if problems is not None:
        makers["paired"] = partial(paired, problems=problems)
    steps = sorted({experience(group) for group in groups}, reverse=True)
    about = {
        "header": header(results.runs),
        "footnotes": [*results.notes, *footnotes(groups, algo)],
        "reference": in_text(algo),
        "unit": _unit(groups),
        "short_reading": short_reading(algo, steps),
    }
    all_captions, all_readings = captions(algo), readings(algo, steps)
    tables = {}
    for name, make in makers.items():
        table = pd.DataFrame(make(groups))
        if table.empty:
            continue
        table.attrs = about | {"caption": all_captions[name], "reading": all_readings[name]}
        if name == "trades":  # without findings in other algorithms
            its = [g for g in groups if g.algo == "grpo" or critic_of(g) is not None]
            table.attrs["footnotes"] = [*results.notes, *footnotes(its, algo)]
        tables[name] = table
    return tables


def _each(row: Callable[[Group, Group | None], Row], groups: Sequence[Group]) -> list[Row]:
    """One row for each group."""
    return [names(group) | row(group, other) for group, other in beside_references(groups)]


def _summaries(groups: Sequence[Group]) -> list[Row]:
    """One row for each group but the references, which stand in columns of the others."""
    both = [(g, other) for g, other in beside_references(groups) if not g.is_reference]
    return [names(group) | _summary(group, other) for group, other in both]


def _summary(group: Group, reference: Group | None) -> Row:
    its = np.empty(0) if reference is None else reference.column(TEST_SUCCESS)
    return {
        **share_columns("test_success", group.column(TEST_SUCCESS)),
        **share_columns("reference_success", its),
        **difference(group, reference, TEST_SUCCESS),
        **ratio("speed_ratio", group, reference, RATE),
        **memory_ratios(group, reference),
    }


def _accuracy(group: Group, reference: Group | None) -> Row:
    apart = stats.spread(group.column(TEST_SUCCESS))
    completed = group.column("eval/test/completed")  # of language models
    return {
        experience(group): mean(group, "transitions"),
        **share_columns("validation_success", group.column("eval/validation/success")),
        **share_columns("test_success", group.column(TEST_SUCCESS)),
        "test_success_sd": apart.deviation,
        "test_success_kurtosis": apart.kurtosis,
        **share_columns("sampled_success", group.column("eval/test_sampled/success")),
        **mean_columns("test_reward", group.column("eval/test/reward")),
        **mean_columns("normalised", normalised(group)),
        "start_success": mean(group, f"{START}eval/validation/success"),
        "well_formed": mean(group, "eval/test/format"),
        **({"completed": completed.mean()} if completed.size else {}),
        **difference(group, reference, TEST_SUCCESS),
    }


def _speed(group: Group, reference: Group | None) -> Row:
    parts = (*TRAINING, "setup", "warmup", "evaluation")
    return {
        "gradient_steps": mean(group, "gradient_steps"),
        **positive_columns(f"{experience(group)}_per_second", group.column(RATE)),
        **{f"{part}_seconds": mean(group, f"time/{part}_seconds") for part in parts},
        **ratio("ratio", group, reference, RATE),
        "critic_share": mean(group, "critic_share"),
        "bound": _bound(group, reference),
    }


def _bound(group: Group, reference: Group | None) -> float:
    """What leaving out the reference's critic can gain, for those that have none."""
    if reference is None or len(group.column("critic_share")):
        return math.nan
    return mean(reference, "bound")


def _memory(group: Group, reference: Group | None) -> Row:
    return {
        **positive_columns("peak_bytes", group.column("memory/peak_bytes")),
        "growth_bytes": mean(group, "growth"),
        **{f"{part}_bytes": mean(group, f"memory/{part}_bytes") for part in COMPONENTS},
        **memory_ratios(group, reference),
    }


def _unit(groups: list[Group]) -> str:
    """The unit in which the bytes of all components can be read."""
    largest = [mean(group, f"memory/{part}_bytes") for group in groups for part in COMPONENTS]
    return "MB" if any(size >= 10e6 for size in largest) else "KB"
