"""Tables from records with hand-worked values."""

import csv
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from grpo_bench.meter import Provenance
from grpo_bench.records import claim, plan
from grpo_bench.report import block, display, latex, markdown
from grpo_bench.report.numbers import (
    difference,
    hundredths,
    in_units,
    ratio,
    share,
    significant,
    whole,
)
from grpo_bench.report.tables import verdict
from grpo_bench.report.writers import COLUMNS
from grpo_bench.stats import Interval
from grpo_bench.tables import SPARE, fit, make_tables, print_tables, write_tables

ORIGIN = Provenance(
    commit="0123456789abcdef",
    dirty=False,
    code_digest="c0de" * 16,
    versions={"torch": "2.13.0", "numpy": "2.4.6"},
    python="3.11.7",
    platform="Linux",
    processor="Processor_X 3 & 4",
    cores=2,
    accelerator=None,
    threads=1,
)


def record(
    results, algo, seed, last, *, status="ok", env="vlm", origin=ORIGIN, components=(), **others
):
    """One run that logs 0 for everything at first, then ``last``."""
    names = {"env": {"name": env}, "algo": {"name": algo} | others, "budget": {"name": "smoke"}}
    config = {**names, "seed": seed, "results": str(results)}
    run = claim(plan(results, config), config, seeds={}, provenance=origin, concurrency=2)
    run.log(0, 0, 0.0, 1, dict.fromkeys(last, 0.0) | {"eval/validation/success": 0.25})
    run.log(2048, 16, 1.0, 2, last)
    for step, value in [(0, 0.0), (2048, 1.0)]:
        table = pd.DataFrame(
            {"problem_id": [0, 1], "reward": 1.0, "success": 1.0, "length": 1}
            | {name: [value, 0.5] for name in components}
        )
        run.evaluation("test", step, table)
    run.finish(status)


def values(success, rate, peak, critic=None):
    critics = {} if critic is None else {"memory/critic_bytes": critic}
    return {
        "eval/validation/success": success + 0.05,
        "eval/test/success": success,
        "eval/test/reward": 1.5 * success - 0.5,  # +1 right, -0.5 wrong
        "task/random_score": -0.125,
        "task/oracle_score": 1.0,
        "time/transitions_per_second": rate,
        "time/rollout_seconds": 0.25,
        "time/update_seconds": 0.75,
        "time/setup_seconds": 3.0,
        "memory/peak_bytes": peak,
        "memory/start_bytes": 100e6,
        "memory/train_peak_bytes": 112e6,
        "memory/policy_bytes": 10e3,
        "memory/gradient_bytes": 10e3,
        "memory/optimizer_bytes": 20e3,
        **critics,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """GRPO with seeds 1 and 2, seed 3 failed; PPO with seeds 1 to 3; GRPO alone on format."""
    folder = tmp_path_factory.mktemp("records")
    record(folder, "ppo", 1, values(0.5, 1000, 400e6, critic=40e3))
    record(folder, "ppo", 2, values(0.6, 1000, 400e6, critic=40e3))
    record(folder, "ppo", 3, values(0.7, 1000, 400e6, critic=40e3))
    record(folder, "grpo", 1, values(0.9, 2000, 200e6))
    record(folder, "grpo", 2, values(0.8, 8000, 200e6))
    record(folder, "grpo", 3, values(0.0, 1, 900e6), status="oom")
    record(folder, "grpo", 1, values(0.5, 1000, 200e6), env="format", components=["format"])
    return folder


@pytest.fixture(scope="module")
def tables(results):
    return make_tables(results)


def cells(tables, name, env, algo):
    shown = display(name, tables[name])
    (row,) = shown[(shown["env"] == env) & (shown["algo"] == algo)].to_dict("records")
    return row


def test_rows_stand_side_by_side(tables):
    assert list(tables) == ["summary", "accuracy", "speed", "memory"]
    for name, table in tables.items():
        names = list(zip(table["env"], table["algo"], strict=True))
        reference = [] if name == "summary" else [("vlm", "ppo")]
        assert names == [("format", "grpo"), ("vlm", "grpo"), *reference]


def test_summary_by_hand(tables):
    # The sources of these numbers stand with the other tables, below. Ratios of speed 2 and 8:
    # geometric mean 4, bounds 4 * 2 ** -12.706 = 0.000599 and 4 * 2 ** 12.706 = 26,700
    assert cells(tables, "summary", "vlm", "grpo") == {
        "env": "vlm",
        "budget": "smoke",
        "algo": "grpo",
        "ok": "2/3",
        "success": "0.85\n[0.21, 1.00]",
        "PPO success": "0.60\n[0.35, 0.85]",
        "verdict": "cannot tell\n(needs 4)",
        "speed ×": "4.00\n[0.000599, 26,700]",
        "peak mem ×": "0.50",
        "static mem ×": "0.500",
    }
    alone = cells(tables, "summary", "format", "grpo")
    assert alone["success"] == "0.50\n[–]"
    assert {alone[title] for title in ("PPO success", "verdict", "speed ×", "peak mem ×")} == {"–"}
    row = tables["summary"].loc[1]
    assert row["difference"] == pytest.approx(0.3)  # in the file, where there is room
    assert row["reference_success_high"] == pytest.approx(0.848, abs=1e-3)


def test_no_summary_of_the_reference_alone(tmp_path):
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6))
    assert list(make_tables(tmp_path)) == ["accuracy", "speed", "memory"]


def test_accuracy_by_hand(tables):
    # t(1) at 97.5 % is 12.7062, t(2) 4.302653.
    # grpo 0.9, 0.8: s = 0.0707107, half width 12.7062 * 0.05 = 0.635
    # ppo 0.5, 0.6, 0.7: s = 0.1, half width 4.302653 * 0.1 / sqrt(3) = 0.248
    # differences 0.4, 0.2 over seeds 1, 2: half width 12.7062 * 0.1 = 1.271
    # normalised: (1.5 x - 0.5 + 0.125) / 1.125, so 0.85 -> 0.8; slope 4/3: 0.635 -> 0.847
    # pooled s = sqrt((0.005 + 0.02) / 3) = 0.0913, effect 0.25 / 0.0913 = 2.74: 4 a side
    assert cells(tables, "accuracy", "vlm", "grpo") == {
        "env": "vlm",
        "budget": "smoke",
        "algo": "grpo",
        "ok": "2/3",
        "k transitions": "2.05",
        "start": "0.250",
        "validation success": "0.900\n[0.265, 1.000]",  # a share: not 1.535
        "test success": "0.850\n[0.215, 1.000]",
        "well formed": "–",
        "test reward": "0.775\n[-0.178, 1.728]",
        "normalised": "0.800\n[-0.047, 1.647]",
        "difference to PPO": "+0.300\n[-0.971, +1.571]",
        "verdict": "cannot tell\n(needs 4)",
    }
    ppo = cells(tables, "accuracy", "vlm", "ppo")
    assert ppo["ok"] == "3/3"
    assert ppo["test success"] == "0.600\n[0.352, 0.848]"
    assert tables["accuracy"]["test_success_high"][1] == pytest.approx(1.485, abs=1e-3)  # not cut
    assert (ppo["difference to PPO"], ppo["verdict"]) == ("–", "reference")
    alone = cells(tables, "accuracy", "format", "grpo")
    assert alone["well formed"] == "0.750"  # of the last evaluation: 1 and 0.5
    assert alone["test success"] == "0.500\n[–]"
    assert (alone["difference to PPO"], alone["verdict"]) == ("–", "–")


def test_speed_by_hand(tables):
    grpo = cells(tables, "speed", "vlm", "grpo")
    assert grpo["gradient steps"] == "16"
    # 2000, 8000: mean 5000, half width 12.7062 * 3000 = 38,119
    assert grpo["k transitions/s"] == "5.00\n[-33.1, 43.1]"
    assert (grpo["rollout s"], grpo["update s"], grpo["set-up s"]) == ("0.250", "0.750", "3.00")
    # Ratios 2 and 8: geometric mean 4, logs 1 and 3 times log 2: half width 12.7062 log 2
    assert tables["speed"]["ratio"][1] == pytest.approx(4)
    assert tables["speed"]["ratio_high"][1] == pytest.approx(4 * 2**12.706205)
    assert cells(tables, "speed", "vlm", "ppo")["ratio to PPO"] == "–"
    assert "warm-up s" not in grpo  # no run has one


def test_memory_by_hand(tables):
    grpo, ppo = (cells(tables, "memory", "vlm", algo) for algo in ("grpo", "ppo"))
    assert grpo["peak MB"] == "200"  # of both: no interval
    assert grpo["growth MB"] == "12.0"
    assert (grpo["policy KB"], grpo["critic KB"], ppo["critic KB"]) == ("10.0", "–", "40.0")
    assert grpo["peak ratio"] == "0.50"
    assert grpo["static ratio"] == "0.500"  # 10 + 10 + 20 of 80
    assert "reference KB" not in grpo


def test_markdown_says_where_it_comes_from_and_what_failed(tables):
    text = markdown(display("accuracy", tables["accuracy"]))
    assert (
        "Processor_X 3 & 4 (2 cores); 1 thread(s) a run, 2 run(s) at a time; "
        "Python 3.11.7, torch 2.13.0, numpy 2.4.6; commit 0123456789." in text
    )
    assert "- Not in the means: vlm, smoke, grpo: oom (seed 3)\n" in text
    grid = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in grid}) == 1  # aligned
    assert len({tuple(i for i, c in enumerate(line) if c == "|") for line in grid}) == 1
    assert len(grid) == 2 + 2 + 2 + 2  # titles and rule; a row and its intervals for each


def test_markdown_of_the_summary_by_hand(tables):
    assert markdown(display("summary", tables["summary"])).split("\n\n")[2] == (
        "|env   |budget|algo| ok|     success| PPO success|verdict    "
        "|           speed ×|peak mem ×|static mem ×|\n"
        "|:-----|:-----|:---|--:|-----------:|-----------:|:----------"
        "|-----------------:|---------:|-----------:|\n"
        "|format|smoke |grpo|1/1|        0.50|           –|–          "
        "|                 –|         –|           –|\n"
        "|      |      |    |   |         [–]|            |           "
        "|                  |          |            |\n"
        "|vlm   |smoke |grpo|2/3|        0.85|        0.60|cannot tell"
        "|              4.00|      0.50|       0.500|\n"
        "|      |      |    |   |[0.21, 1.00]|[0.35, 0.85]|(needs 4)  "
        "|[0.000599, 26,700]|          |            |"
    )


def test_block_for_a_page_has_all_the_words(tables):
    shown = display("memory", tables["memory"])
    text = block(shown)
    grid = markdown(shown).split("\n\n")[2]
    assert text.startswith(
        f"**Memory: GRPO beside PPO, one fresh process per run**\n\n{grid}\n\n<sub>"
    )
    assert "\nNot in the means: vlm, smoke, grpo: oom (seed 3).\nProcessor_X" in text
    assert shown.attrs["reading"] in text
    assert text.endswith("commit 0123456789.</sub>\n")


def test_bars_in_a_label_do_not_make_columns(tmp_path):
    for kind in ("a|b", "c"):
        record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), kind=kind)
    text = markdown(display("speed", make_tables(tmp_path)["speed"]))
    assert r"|grpo (kind=a\|b)|" in text


def test_latex_is_escaped(tables):
    text = latex(display("accuracy", tables["accuracy"]), "accuracy")
    assert r"Processor\_X 3 \& 4" in text
    assert r"95 \% Student" in text
    assert r"vlm & smoke & grpo & 2/3 & 2.05 & 0.250 & 0.900 & 0.850" in text
    assert r" &  &  &  &  &  & [0.265, 1.000] & [0.215, 1.000]" in text
    assert r"\label{tab:accuracy}" in text
    assert "–" not in text
    assert text.count(r"\begin") == text.count(r"\end") == 2
    assert r"speed $\times$" in latex(display("summary", tables["summary"]), "summary")


def test_csv_has_full_precision_and_empty_fields(tables, tmp_path):
    write_tables(tables, tmp_path)
    with (tmp_path / "accuracy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["test_success_high"]) == tables["accuracy"]["test_success_high"][1]
    assert rows[2]["difference"] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.{ending}"
        for name in ("accuracy", "memory", "speed", "summary")
        for ending in _ENDINGS
    ]


_ENDINGS = ("csv", "md", "tex")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_printed_for_people(tables, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(tables)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    assert "Summary: what GRPO trades against PPO; budget smoke" in lines
    assert sum("[0.215, 1.000]" in line for line in lines) == 1  # whole, on one line
    assert sum("(needs 4)" in line for line in lines) == 2
    left_out = sum(line.startswith("Too wide for this screen") for line in lines)
    assert left_out == {80: 4, 100: 1, 200: 0}[width]
    assert sum("Processor_X" in line for line in lines) == 1
    assert sum("oom (seed 3)" in line for line in lines) == 1


def test_piped_as_wide_as_a_page(tables, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_tables(tables)
    assert 90 < max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) <= 100


@pytest.mark.parametrize("name", SPARE)
def test_a_narrow_screen_leaves_out_the_spare_columns_only(tables, name):
    assert set(SPARE[name]) < {column.title for column in COLUMNS[name]}
    shown = display(name, tables[name])
    whole_table, left_out = fit(name, shown, 1000)
    assert left_out == []
    assert list(whole_table.columns) == [t for t in shown.columns if t != "budget"]
    narrow, left_out = fit(name, shown, 1)
    assert left_out == [title for title in SPARE[name] if title in shown.columns]
    assert {*narrow.columns, *left_out, "budget"} == set(shown.columns)
    assert shown.attrs["caption"] == tables[name].attrs["caption"]  # fit has one of its own


def test_two_budgets_stay_apart_on_any_screen(tables):
    shown = display("speed", tables["speed"]).assign(budget=["smoke", "full", "full"])
    narrow, _ = fit("speed", shown, 1)
    assert list(narrow["budget"]) == ["smoke", "full", "full"]
    assert "budget" not in narrow.attrs["caption"]


# -- what must not be mixed -----------------------------------------------------------------------


def test_settings_are_not_pooled(tmp_path):
    for seed in (1, 2):
        record(tmp_path, "ppo", seed, values(0.5, 1000, 1e6))
        record(tmp_path, "grpo", seed, values(0.6, 1000, 1e6), lr=0.1, group_size=8)
        record(tmp_path, "grpo", seed, values(0.4, 1000, 1e6), lr=0.2, group_size=8)
    table = make_tables(tmp_path)["accuracy"]
    assert list(table["algo"]) == ["grpo (lr=0.1)", "grpo (lr=0.2)", "ppo"]
    assert list(table["verdict"]) == ["grpo better", "ppo better", "reference"]
    assert list(table["difference"])[:2] == pytest.approx([0.1, -0.1])


def test_two_references_are_none(tmp_path):
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6), lr=0.1)
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6), lr=0.2)
    record(tmp_path, "grpo", 1, values(0.6, 1000, 1e6))
    table = make_tables(tmp_path)["accuracy"]
    assert math.isnan(table["difference"][0])
    assert "more than one ppo" in table.attrs["footnotes"][0]


def test_machines_are_not_compared(tmp_path):
    other = replace(ORIGIN, processor="Another", commit=None, versions={"torch": "2.6"})
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6))
    record(tmp_path, "grpo", 1, values(0.6, 1000, 1e6), origin=other)
    tables = make_tables(tmp_path)
    assert math.isnan(tables["speed"]["ratio"][0])
    assert math.isnan(tables["memory"]["peak_ratio"][0])
    assert tables["accuracy"]["difference"][0] == pytest.approx(0.1)
    header = tables["speed"].attrs["header"]
    assert "Mixed hardware" in header
    assert "torch 2.13.0 and 2.6" in header
    assert "no commit (code c0dec0de)" in header


def test_changes_to_a_commit_are_told(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6))
    record(tmp_path, "grpo", 2, values(0.5, 1000, 1e6), origin=replace(ORIGIN, dirty=True))
    header = make_tables(tmp_path)["speed"].attrs["header"]
    assert "; commit 0123456789 and commit 0123456789 with changes (code c0dec0de)." in header


def test_files_that_are_not_committed_are_not_needed(results, tables, tmp_path):
    for name in ("manifest.json", "metrics.parquet", "eval.parquet"):
        for path in results.rglob(name):
            copy = tmp_path / "records" / path.relative_to(results)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    for place, there in [("whole", tables), ("stripped", make_tables(tmp_path / "records"))]:
        write_tables(there, tmp_path / place)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "stripped" / path.name).read_bytes()


def test_records_without_numbers_are_counted(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), status="nan")
    plan(
        tmp_path,
        {"env": {"name": "vlm"}, "algo": {"name": "ppo"}, "budget": {"name": "s"}, "seed": 1},
    )
    tables = make_tables(tmp_path)
    assert list(tables["accuracy"]["planned"]) == [1, 1]
    assert list(tables["accuracy"]["ok"]) == [0, 0]
    assert "No run has ended ok yet." in markdown(display("speed", tables["speed"]))


def test_unreadable_record_counts_with_its_group(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6))
    record(tmp_path, "grpo", 2, values(0.5, 1000, 1e6))
    (broken,) = tmp_path.glob("vlm/grpo/smoke-seed2-*/manifest.json")
    broken.write_text("{")
    table = make_tables(tmp_path)["accuracy"]
    assert (list(table["ok"]), list(table["planned"])) == ([1], [2])
    (note,) = table.attrs["footnotes"]
    assert "grpo: seed 2, record skipped: vlm/grpo/smoke-seed2-" in note
    assert "not JSON" in note


def test_nan_at_the_end_is_not_replaced_by_an_earlier_value(tmp_path):
    record(tmp_path, "grpo", 1, values(math.nan, 1000, 1e6))
    assert cells(make_tables(tmp_path), "accuracy", "vlm", "grpo").get("test success", "–") == "–"


# -- words and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "n", "seeds", "expected"),
    [
        (Interval(0.2, 0.1, 0.3), 3, 2, "grpo better"),
        (Interval(-0.2, -0.3, -0.1), 3, 2, "ppo better"),
        (Interval(0.1, -0.1, 0.3), 3, 12.0, "cannot tell (needs 12)"),
        (Interval(0.1, -0.1, 0.3), 3, 2, "cannot tell (needs 4)"),
        (Interval(0.1, -0.1, 0.3), 3, math.inf, "cannot tell"),
        (Interval(0.1, math.nan, math.nan), 1, math.nan, "cannot tell"),
        (Interval(0.0, 0.0, 0.0), 3, math.inf, "equal"),
        (Interval(math.nan, math.nan, math.nan), 0, 3, ""),
    ],
)
def test_verdict(interval, n, seeds, expected):
    assert verdict("grpo", interval, n, seeds) == expected


@pytest.mark.parametrize(
    ("form", "x", "expected"),
    [
        (significant, 1234567, "1,230,000"),
        (significant, 9.996, "10.0"),
        (significant, 0.0123456, "0.0123"),
        (significant, -12.34, "-12.3"),
        (significant, 0, "0"),
        (significant, math.nan, "–"),
        (significant, math.inf, "inf"),
        (whole, 1234567, "1,234,567"),
        (share, -0.0001, "0.000"),
        (difference, 0.0514, "+0.051"),
        (difference, -0.0001, "+0.000"),
        (hundredths, 0.9951, "1.00"),
        (hundredths, -0.001, "0.00"),
        (hundredths, math.nan, "–"),
        (ratio, 0.1, "0.10"),
        (ratio, 0.996, "1.00"),
        (ratio, 9.994, "9.99"),
        (ratio, 9.996, "10.0"),
        (ratio, 0.0456, "0.0456"),
        (ratio, math.nan, "–"),
        (in_units(1e3), 152_345, "152"),
    ],
)
def test_numbers(form, x, expected):
    assert form(x) == expected
    assert form(np.float64(x)) == expected


# -- the command ----------------------------------------------------------------------------------


def command(folder, *arguments):
    whole = [sys.executable, "-m", "grpo_bench.tables", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, cwd=folder)


def test_command_twice_gives_the_same_bytes_and_nothing_else(results, tmp_path):
    first = command(tmp_path, f"results={results}", "out=one")
    assert first.returncode == 0, first.stderr
    assert "Memory: GRPO beside PPO" in first.stdout
    assert command(tmp_path, f"results={results}", "out=two").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    contents = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two")]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 12


def test_command_without_runs_says_so(tmp_path):
    done = command(tmp_path, "results=empty")
    assert done.returncode == 1
    assert done.stderr.startswith("no runs under empty: expected folders")
    assert not list(tmp_path.iterdir())
