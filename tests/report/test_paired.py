"""The same problems answered by two algorithms, and tests that know what a replication is."""

import math

import pandas as pd
import pytest
from support.curves import groups_of, run, summaries_of

from grpo_bench.report import build_tables, display, folder
from grpo_bench.report.rows.paired import paired

NAMES = ["run", "problem_id", "success"]


def answered(algo, seed, right, wrong=(), first=0):
    """Rows of a run that solves the problems ``right`` and not the others of 0 to 9."""
    problems = range(first, 10)
    return pd.DataFrame(
        {"run": f"vlm/{algo}/{seed}", "problem_id": problems}
        | {"success": [float(p in right) for p in problems]}
    )


def rows(runs, problems):
    found = paired(groups_of(summaries_of(runs)), pd.concat(problems))
    return {row["algo"]: row for row in found}


RUNS = [run(algo, seed) for algo in ("grpo", "ppo") for seed in (1, 2, 3)]
PROBLEMS = [
    answered("grpo", 1, range(8)),  # 7 that PPO has not, PPO none: p = 2 / 2^7
    answered("grpo", 2, range(2)),  # 2 and none: p = 2 / 2^2
    answered("grpo", 3, {0, 2, 3}),  # 2 and 1: p = 1
    answered("ppo", 1, {0}),
    answered("ppo", 2, {}),
    answered("ppo", 3, {0, 1}),
]


def test_paired_by_hand():
    (row,) = rows(RUNS, PROBLEMS).values()
    assert (row["algo"], row["ok"], row["n"], row["problems"]) == ("grpo", 3, 3, 10)
    assert (row["only_mine"], row["only_its"]) == (2, 0)  # medians of 7, 2, 2 and 0, 0, 1
    assert row["mcnemar_p"] == pytest.approx(0.5)  # of 0.0156, 0.5, 1
    assert (row["seeds_better"], row["seeds_worse"]) == (1, 0)
    # Leads 7, 2, 1 of one sign: of 8 ways to swap, two are as far from 0
    assert row["p"] == row["smallest_p"] == pytest.approx(0.25)


def test_many_problems_of_few_seeds_do_not_make_a_small_p():
    right = [
        answered(a, s, range(10) if a == "grpo" else {}) for a in ("grpo", "ppo") for s in (1, 2)
    ]
    (row,) = rows([r for r in RUNS if r["row"]["seed"] < 3], right).values()
    assert row["mcnemar_p"] == pytest.approx(2 / 2**10)
    assert (row["seeds_better"], row["p"]) == (2, 0.5)


def test_the_order_of_rows_and_missing_problems_do_not_matter():
    shuffled = [frame.iloc[::-1] for frame in PROBLEMS[::-1]]
    assert rows(RUNS, shuffled) == rows(RUNS, PROBLEMS)
    short = [answered("grpo", 1, range(8), first=2), *PROBLEMS[1:]]
    assert rows(RUNS, short)["grpo"]["problems"] == 8


def test_only_seeds_that_both_have_are_pairs():
    (row,) = rows(RUNS, PROBLEMS[:-1]).values()
    assert (row["ok"], row["n"]) == (3, 2)
    (row,) = rows(RUNS, PROBLEMS[:3]).values()
    assert (row["n"], row["problems"], row["seeds_better"]) == (0, 0, 0)
    assert "p" not in row


def test_in_the_tables():
    failed = run("grpo", 4, status="failed")
    summaries = summaries_of([*RUNS, failed])
    tables = build_tables(summaries, problems=pd.concat(PROBLEMS))
    assert list(tables)[-1] == "paired"
    (row,) = display("paired", tables["paired"]).to_dict("records")
    assert (row["ok"], row["permutation p"], row["smallest p"]) == ("3/4", "0.250", "0.250")
    assert (row["only this right"], row["only PPO right"], row["McNemar p"]) == ("2", "0", "0.500")
    assert "paired" not in build_tables(summaries)
    nothing = build_tables(summaries, problems=pd.DataFrame(columns=NAMES))
    (row,) = display("paired", nothing["paired"]).to_dict("records")
    assert row["seeds"] == "0" and "permutation p" not in row
    alone = summaries_of([run("grpo", 1)])
    assert "paired" not in build_tables(alone, problems=pd.DataFrame(columns=NAMES))
    assert math.isnan(nothing["paired"].get("p", pd.Series([math.nan]))[0])


def test_the_problems_of_very_many_runs_are_not_read(results, monkeypatch):
    assert "paired" in folder.make_tables(results)
    monkeypatch.setattr(folder, "MOST_PAIRED", 6)  # one fewer than there are
    assert "paired" not in folder.make_tables(results)
