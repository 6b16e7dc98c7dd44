"""The summaries of records: the values that tables need, read without the rest."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.run_records import ORIGIN, record, values

from grpo_bench.records import claim, plan, run_folder
from grpo_bench.records.load import (
    BUDGETS,
    CURVE,
    START,
    load_problems,
    load_results,
    load_summaries,
)
from grpo_bench.records.schema import METRIC_SCHEMA
from grpo_bench.report.folder import make_tables


def config(seed, algo="grpo"):
    names = {"env": {"name": "vlm"}, "algo": {"name": algo}, "budget": {"name": "smoke"}}
    return {**names, "seed": seed}


def run_with(results, seed, rows):
    """The folder of a run that logs ``rows``: (transitions, gradient steps, metrics)."""
    run = claim(plan(results, config(seed)), config(seed), seeds={}, provenance=ORIGIN)
    for transitions, steps, metrics in rows:
        run.log(transitions, steps, 0.0, 0, metrics)
    run.finish()
    return run.folder


def test_first_and_last_values_by_hand(tmp_path):
    rows = [(0, 0, {"a": 1.0}), (8, 2, {"b": 2.0, "a": 3.0}), (16, 4, {"b": math.nan})]
    folder = run_with(tmp_path, 1, rows)
    summaries = load_summaries(tmp_path).values
    assert list(summaries.index) == [folder.relative_to(tmp_path).as_posix()]
    expected = {
        **{"transitions": 16, "gradient_steps": 4, "a": 3.0, "b": math.nan},
        **{f"{START}a": 1.0, f"{START}b": 2.0},
    }
    pd.testing.assert_frame_equal(
        summaries, pd.DataFrame(expected, index=summaries.index, dtype=float)
    )


@pytest.mark.parametrize("rows_of_a_group", [1000, 7])
def test_ends_are_those_of_the_whole_table(tmp_path, rows_of_a_group):
    rng = np.random.default_rng(0)
    names = [f"m{i}" for i in range(30)]
    for seed in range(4):
        chosen = [rng.choice(names, rng.integers(1, 6), replace=False) for _ in range(40)]
        rows = [(i, 2 * i, {name: rng.normal() for name in some}) for i, some in enumerate(chosen)]
        path = run_with(tmp_path, seed, rows) / "metrics.parquet"
        # Long tables are written in several groups of rows, each with a dictionary of its own.
        pq.write_table(pq.read_table(path), path, row_group_size=rows_of_a_group)
    whole, summaries = load_results(tmp_path), load_summaries(tmp_path)
    pd.testing.assert_frame_equal(whole.runs, summaries.runs)
    by_metric = whole.metrics.groupby(["run", "metric"])["value"]
    expected = by_metric.last().unstack().join(by_metric.first().unstack().add_prefix(START))
    expected = expected.join(whole.metrics.groupby("run")[["transitions", "gradient_steps"]].max())
    assert set(summaries.values.columns) == set(expected.columns)
    assert list(summaries.values.index) == list(whole.runs["run"])
    found = summaries.values[expected.columns].to_numpy()
    np.testing.assert_array_equal(found, expected.to_numpy(dtype=float))


def test_a_run_without_metrics_has_a_row_among_the_runs_only(tmp_path):
    plan(tmp_path, config(1))
    empty = run_with(tmp_path, 2, [])
    assert pq.read_table(empty / "metrics.parquet").num_rows == 0
    full = run_with(tmp_path, 3, [(1, 1, {"a": 1.0})])
    damaged = run_with(tmp_path, 4, [(1, 1, {"a": 1.0})])
    (damaged / "metrics.parquet").write_bytes(b"PAR1 no more")
    summaries = load_summaries(tmp_path)
    assert list(summaries.runs["status"]) == ["planned", "ok", "ok", "planned"]
    assert "metrics.parquet: not readable" in summaries.runs["problem"][3]
    assert list(summaries.values.index) == [full.relative_to(tmp_path).as_posix()]


def test_tables_do_not_open_the_evaluations(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), components=["format"])
    (path,) = tmp_path.rglob("eval.parquet")
    path.write_bytes(b"not looked at")
    table = make_tables(tmp_path)["accuracy"]
    assert (table["ok"][0], table["test_success"][0], table["well_formed"][0]) == (1, 0.5, 0.75)
    assert load_results(tmp_path).runs["status"][0] == "planned"


def test_metrics_that_lack_a_column_are_named(tmp_path):
    folder = run_with(tmp_path, 1, [(1, 1, {"a": 1.0})])
    table = pa.table({"metric": ["a"]}, schema=pa.schema([METRIC_SCHEMA.field("metric")]))
    pq.write_table(table, folder / "metrics.parquet")
    problem = load_summaries(tmp_path).runs["problem"][0]
    assert "metrics.parquet: columns ['metric'], expected" in problem


def test_curves_by_hand(tmp_path):
    run_with(tmp_path, 1, [(0, 0, {"a": 1.0})])  # never evaluated
    run = claim(plan(tmp_path, config(2)), config(2), seeds={}, provenance=ORIGIN)
    run.log(0, 0, 0.0, 100, {CURVE: 0.25})
    run.log(8, 2, 1.5, 200, {"a": 1.0, CURVE: 0.5, "eval/test/success": 0.9})
    run.log(16, 4, 3.0, 200, {CURVE: 0.625})
    run.log(16, 4, 3.25, 300, {CURVE: 0.75})  # the last evaluation, at a moment that had one
    run.finish("killed")
    curves = load_summaries(tmp_path).curves
    expected = {
        "run": [run_folder(Path(), config(2)).as_posix()] * 3,
        "transitions": [0, 8, 16],
        "gradient_steps": [0, 2, 4],
        "seconds": [0.0, 1.5, 3.25],
        "peak_bytes": [100, 200, 300],
        "success": [0.25, 0.5, 0.75],
    }
    pd.testing.assert_frame_equal(curves, pd.DataFrame(expected))


def test_curves_of_no_evaluation_have_their_columns(tmp_path):
    plan(tmp_path, config(1))
    curves = load_summaries(tmp_path).curves
    assert list(curves.columns) == ["run", *BUDGETS, "success"]
    assert curves.empty


def evaluated(results, seed, evaluations, status="ok"):
    """A run with (split, transitions, successes of problems 10, 11, ...)."""
    run = claim(plan(results, config(seed)), config(seed), seeds={}, provenance=ORIGIN)
    for split, transitions, successes in evaluations:
        columns = {name: np.array(successes, dtype=float) for name in ("reward", "success")}
        ids = np.arange(10, 10 + len(successes))
        run.evaluation(split, transitions, {**columns, "problem_id": ids, "length": ids})
    run.finish(status)
    return run_folder(Path(), config(seed)).as_posix()


def test_problems_are_those_of_the_last_evaluation_on_test(tmp_path):
    early = evaluated(
        tmp_path, 1, [("test", 0, [0, 0]), ("validation", 9, [1]), ("test", 8, [1, 0])]
    )
    plan(tmp_path, config(2))
    evaluated(tmp_path, 3, [("test", 8, [1])], status="failed")
    evaluated(tmp_path, 4, [("validation", 8, [1])])
    expected = {"run": [early] * 2, "problem_id": [10, 11], "success": [1.0, 0.0]}
    pd.testing.assert_frame_equal(load_problems(tmp_path), pd.DataFrame(expected))


def test_no_problems_have_their_columns(tmp_path):
    plan(tmp_path, config(1))
    found = load_problems(tmp_path)
    assert list(found.columns) == ["run", "problem_id", "success"]
    assert found.empty


def test_the_notes_of_records_are_in_every_table(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6))
    assert load_summaries(tmp_path).notes == ()
    (tmp_path / "notes.txt").write_text("Other work ran beside.\nA second note.\n")
    assert load_summaries(tmp_path).notes == ("Other work ran beside.", "A second note.")
    for table in make_tables(tmp_path).values():
        assert table.attrs["footnotes"] == ["Other work ran beside.", "A second note."]
