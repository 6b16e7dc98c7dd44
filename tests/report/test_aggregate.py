"""One number over all tasks, and performance profiles."""

import math

import numpy as np
import pytest
from support.curves import groups_of, run, summaries_of

from grpo_bench.report import build_tables, display
from grpo_bench.report.rows.aggregate import TAUS, aggregate, profiles

SEEDS = range(6)  # as many as an interval needs


def scored(algo, env, scores, **others):
    """Runs with these normalised scores: random has 0.5 of reward, perfect 1.5."""
    return [
        run(
            algo,
            seed,
            env=env,
            **{"eval/test/reward": 0.5 + x, "task/random_score": 0.5, "task/oracle_score": 1.5},
            **others,
        )
        for seed, x in enumerate(scores)
    ]


TASKS = [
    *scored("grpo", "a", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    *scored("grpo", "b", [0.7, 0.7, 0.7, 0.9, 0.9, 1.2]),
    *scored("ppo", "a", [0.4] * 6),
    *scored("ppo", "b", [0.6] * 6),
]


def rows(runs):
    return {row["algo"]: row for row in aggregate(groups_of(summaries_of(runs)))}


def test_aggregate_by_hand():
    found = rows(TASKS)
    grpo, ppo = found["grpo"], found["ppo"]
    assert (grpo["env"], grpo["tasks"], grpo["ok"], grpo["planned"]) == ("all", 2, 12, 12)
    assert grpo["mean"] == pytest.approx((0.35 + 0.85) / 2)
    # Of 12 runs the middle 6: 0.4 0.5 0.6 0.7 0.7 0.7
    assert grpo["iqm"] == pytest.approx(3.6 / 6)
    # Gaps 0.65, and (0.3 * 3 + 0.1 * 2 + 0) / 6: more than perfect makes up for nothing
    assert grpo["optimality_gap"] == pytest.approx((0.65 + 1.1 / 6) / 2)
    # Task a: two of six above 0.4, one equal: 2.5 / 6; task b: all
    assert grpo["improvement"] == pytest.approx((2.5 / 6 + 1) / 2)
    for name in ("mean", "iqm", "optimality_gap", "improvement"):
        assert grpo[f"{name}_low"] < grpo[name] < grpo[f"{name}_high"]
    assert ppo["mean"] == ppo["mean_low"] == ppo["mean_high"] == pytest.approx(0.5)
    assert math.isnan(ppo["improvement"])


def test_only_algorithms_with_runs_on_all_tasks_are_set_side_by_side():
    more = [*TASKS, *scored("dapo", "a", [0.5] * 6), *scored("rloo", "b", [0.5] * 6)]
    assert list(rows(more)) == ["grpo", "ppo"]
    without_score = [*TASKS, *scored("dapo", "a", [0.5] * 6), run("dapo", 1, env="b")]
    assert list(rows(without_score)) == ["grpo", "ppo"]


def test_one_task_or_one_algorithm_gives_no_table():
    assert rows([r for r in TASKS if r["row"]["env"] == "a"]) == {}
    assert rows([r for r in TASKS if r["row"]["algo"] == "grpo"]) == {}
    assert rows([run("grpo", 1), run("ppo", 1)]) == {}


def test_failed_runs_of_all_tasks_are_counted():
    failed = [run("grpo", 9, env=env, status="failed") for env in ("a", "b")]
    tables = build_tables(summaries_of(TASKS + failed))
    shown = display("aggregate", tables["aggregate"])
    assert list(shown["ok"]) == ["12/14", "12/12"]
    assert list(shown["env"]) == ["all", "all"]


def test_few_seeds_have_no_interval():
    few = [r for r in TASKS if r["row"]["seed"] < 3]
    row = rows(few)["grpo"]
    assert row["mean"] == pytest.approx((0.2 + 0.7) / 2)
    assert math.isnan(row["mean_low"]) and math.isnan(row["improvement_low"])


def test_profiles_by_hand():
    frame = profiles(groups_of(summaries_of(TASKS)))
    assert list(frame.columns) == ["budget", "algo", "tau", "share", "low", "high"]
    grpo = frame[frame["algo"] == "grpo"]
    np.testing.assert_array_equal(grpo["tau"], TAUS)
    share = dict(zip(np.round(TAUS, 2), grpo["share"], strict=True))
    # Above 0.35 are 3 of 6 on task a and all on b; above 0.85 none and 3 of 6; above 1 one of 6
    assert (share[0.0], share[0.35], share[0.85], share[1.0]) == (1.0, 0.75, 0.25, 1 / 12)
    assert (grpo["share"].diff().dropna() <= 0).all()
    assert (grpo["low"] <= grpo["share"]).all() and (grpo["share"] <= grpo["high"]).all()
    nothing = profiles(groups_of(summaries_of([run("grpo", 1)])))
    assert nothing.empty and list(nothing.columns) == list(frame.columns)
