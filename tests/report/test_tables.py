"""Tables from records with hand-worked values: what is compared, and how it comes out."""

import math
from dataclasses import replace

import pytest
from support.curves import run, summaries_of
from support.run_records import ORIGIN, cells, record, values

from grpo_bench.records import plan
from grpo_bench.report import build_tables, display, latex, markdown
from grpo_bench.report.folder import make_tables
from grpo_bench.report.rows.cells import verdict
from grpo_bench.stats import Interval
from grpo_bench.tables import write_tables


def test_rows_stand_side_by_side(tables):
    assert list(tables) == [
        *("trades", "summary", "accuracy", "equal", "reach", "speed", "memory", "paired")
    ]  # of two environments, but none beside PPO on both
    for name in ("summary", "accuracy", "speed", "memory"):
        names = list(zip(tables[name]["env"], tables[name]["algo"], strict=True))
        reference = [] if name == "summary" else [("vlm", "ppo")]
        assert names == [("format", "grpo"), ("vlm", "grpo"), *reference]


def test_summary_by_hand(tables):
    # The other tables, below, have the arithmetic. Of two seeds there is no interval. Ratios of
    # speed 2 and 8: geometric mean 4.
    assert cells(tables, "summary", "vlm", "grpo") == {
        "env": "vlm",
        "budget": "smoke",
        "algo": "grpo",
        "ok": "2/3",
        "success": "0.85",
        "PPO success": "0.60\n[0.35, 0.85]",
        "verdict": "cannot tell\n(needs 5)",
        "speed ×": "4.00",
        "peak mem ×": "0.50",
        "static mem ×": "0.500",
    }
    alone = cells(tables, "summary", "format", "grpo")
    assert alone["success"] == "0.50"
    assert {alone[title] for title in ("PPO success", "verdict", "speed ×", "peak mem ×")} == {"–"}
    row = tables["summary"].loc[1]
    assert row["difference"] == pytest.approx(0.3)  # in the file, where there is room
    assert row["reference_success_high"] == pytest.approx(0.848, abs=1e-3)


def test_no_summary_of_the_reference_alone(tmp_path):
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6))
    assert list(make_tables(tmp_path)) == ["accuracy", "equal", "speed", "memory"]


def test_accuracy_by_hand(tables):
    # t(2) at 97.5 % is 4.302653; grpo 0.9, 0.8: two seeds, no interval
    # ppo 0.5, 0.6, 0.7: s = 0.1, half width 4.302653 * 0.1 / sqrt(3) = 0.248
    # differences 0.4, 0.2 over seeds 1, 2
    # normalised: (1.5 x - 0.5 + 0.125) / 1.125, so 0.85 -> 0.8
    # the differences' s = 0.141421, effect 0.3 / 0.141421 = 2.12: a power of 0.798 with 4 pairs,
    # 0.936 with 5
    assert cells(tables, "accuracy", "vlm", "grpo") == {
        "env": "vlm",
        "budget": "smoke",
        "algo": "grpo",
        "ok": "2/3",
        "k transitions": "2.05",
        "start": "0.250",
        "validation success": "0.900",
        "test success": "0.850",
        "well formed": "–",
        "test reward": "0.775",
        "normalised": "0.800",
        "difference to PPO": "+0.300",
        "verdict": "cannot tell\n(needs 5)",
    }
    ppo = cells(tables, "accuracy", "vlm", "ppo")
    assert ppo["ok"] == "3/3"
    assert ppo["test success"] == "0.600\n[0.352, 0.848]"
    assert math.isnan(tables["accuracy"]["test_success_high"][1])
    assert list(tables["accuracy"]["test_success_sd"][1:]) == pytest.approx([0.0707107, 0.1])
    assert (ppo["difference to PPO"], ppo["verdict"]) == ("–", "reference")
    alone = cells(tables, "accuracy", "format", "grpo")
    assert alone["well formed"] == "0.750"  # of the last evaluation: 1 and 0.5
    assert alone["test success"] == "0.500"
    assert (alone["difference to PPO"], alone["verdict"]) == ("–", "–")


def test_speed_by_hand(tables):
    grpo = cells(tables, "speed", "vlm", "grpo")
    assert grpo["gradient steps"] == "16"
    assert grpo["k transitions/s"] == "5.00"  # of 2000 and 8000
    assert (grpo["rollout s"], grpo["update s"], grpo["set-up s"]) == ("0.250", "0.750", "3.00")
    # Ratios 2 and 8: geometric mean 4
    assert tables["speed"]["ratio"][1] == pytest.approx(4)
    assert math.isnan(tables["speed"]["ratio_high"][1])
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


def test_no_bound_of_three_seeds_is_where_the_quantity_cannot_be(tmp_path):
    """Rates from 100 to 10,000, and success from 0.1 to 1: Student's t itself would give bounds
    below 0 and above 1."""
    for seed, success, rate in [(1, 0.1, 100.0), (2, 0.9, 1000.0), (3, 1.0, 10000.0)]:
        record(tmp_path, "grpo", seed, values(success, rate, rate))
    tables = make_tables(tmp_path)
    rate, success = tables["speed"].iloc[0], tables["accuracy"].iloc[0]
    # mean 3700, s = 5474.5, w = exp(4.302653 * 5474.5 / sqrt(3) / 3700) = exp(3.6755) = 39.47
    assert rate["transitions_per_second"] == pytest.approx(3700)
    assert rate["transitions_per_second_low"] == pytest.approx(3700 / 39.47, rel=1e-3)
    assert rate["transitions_per_second_high"] == pytest.approx(3700 * 39.47, rel=1e-3)
    assert (success["test_success_low"], success["test_success_high"]) == (0.0, 1.0)
    assert tables["memory"].iloc[0]["peak_bytes_low"] > 0


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
        # The least p of five equal differences is 2 / 2^5 = 0.0625, of six 0.03125.
        (Interval(0.1, 0.1, 0.1 + 1e-17), 5, 2, "cannot tell (needs 6)"),
        (Interval(0.1, 0.1, 0.1), 6, 2, "grpo better"),
        (Interval(-0.1, -0.1, -0.1), 6, 2, "ppo better"),
        (Interval(math.nan, math.nan, math.nan), 0, 3, ""),
    ],
)
def test_verdict(interval, n, seeds, expected):
    assert verdict("grpo", "ppo", interval, n, seeds) == expected


# -- what is compared with what -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algos", "expected"),
    [
        (["dapo", "grpo", "ppo"], "PPO"),
        (["ppo_shared", "ppo"], "PPO"),
        (["dapo", "grpo"], "grpo"),
        (["grpo", "ppo_shared"], "grpo"),
    ],
)
def test_ppo_is_the_reference_and_grpo_without_it(tmp_path, algos, expected):
    for algo in algos:
        record(tmp_path, algo, 1, values(0.5, 1000, 1e6))
    for table in make_tables(tmp_path).values():
        assert table.attrs["reference"] == expected


def test_a_run_of_ppo_that_gave_nothing_is_one(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6))
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6), status="failed")
    tables = make_tables(tmp_path)
    assert tables["summary"].attrs["caption"] == "Summary: GRPO against PPO"
    assert list(tables["accuracy"]["verdict"]) == ["", "reference"]


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """Two seeds each of dapo (+0.2, twice as fast), grpo and rloo (-0.1, twice the memory)."""
    folder = tmp_path_factory.mktemp("presets")
    for seed, success in [(1, 0.5), (2, 0.6)]:
        for algo, gain, rate, peak in [
            ("dapo", 0.2, 2000, 1e6),
            ("grpo", 0.0, 1000, 1e6),
            ("rloo", -0.1, 1000, 2e6),
        ]:
            record(folder, algo, seed, values(success + gain, rate, peak), kind="grpo")
    return folder


def test_grpo_as_the_reference_by_hand(presets):
    tables = make_tables(presets)
    assert {name: table.attrs["caption"] for name, table in tables.items()} == {
        "summary": "Summary: each algorithm against grpo",
        "accuracy": "Accuracy: each algorithm against grpo",
        "equal": "At equal budgets: each algorithm against grpo",
        "reach": "What it takes to reach a score: each algorithm against grpo",
        "speed": "Speed: each algorithm against grpo, wall time of training alone",
        "memory": "Memory: each algorithm against grpo, one fresh process per run",
        "paired": "Problem by problem: each algorithm against grpo, on the same test problems",
    }
    assert list(tables["summary"]["algo"]) == ["dapo", "rloo"]
    assert list(tables["accuracy"]["verdict"]) == ["reference", *["cannot tell (needs 6)"] * 2]
    summary = cells(tables, "summary", "vlm", "dapo")
    assert summary["grpo success"] == "0.55"  # of two seeds: no interval
    assert (summary["speed ×"], summary["peak mem ×"]) == ("2.00", "1.00")
    rloo = cells(tables, "accuracy", "vlm", "rloo")
    assert rloo["difference to grpo"] == "-0.100"
    assert cells(tables, "speed", "vlm", "grpo")["ratio to grpo"] == "–"
    assert cells(tables, "memory", "vlm", "rloo")["peak ratio"] == "2.00"
    phrases = {
        "summary": "×: times grpo's",
        "accuracy": "minus grpo's",
        "speed": "faster than grpo.",
        "memory": "less than grpo.",
    }
    for name, phrase in phrases.items():
        assert phrase in tables[name].attrs["reading"]
    for name, table in tables.items():
        shown = display(name, table)
        assert "ppo" not in (markdown(shown) + latex(shown, name)).lower()


def test_a_chosen_reference(presets):
    accuracy = make_tables(presets, "dapo")["accuracy"]
    assert list(accuracy["algo"]) == ["grpo", "dapo", "rloo"]  # in the order of always
    assert list(accuracy["verdict"])[1] == "reference"
    assert list(accuracy["difference"])[::2] == pytest.approx([-0.2, -0.3])
    assert "difference to dapo" in display("accuracy", accuracy).columns


def test_a_reference_without_runs_is_refused(presets):
    with pytest.raises(ValueError, match=r"^reference=ppo: expected .*: dapo, grpo, rloo$"):
        make_tables(presets, "ppo")


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_of_two_references_the_one_with_the_same_value_counts(tmp_path, algo):
    for lr, success in ((0.1, 0.5), (0.02, 0.4)):
        record(tmp_path, algo, 1, values(success, 1000, 1e6), lr=lr)
        record(tmp_path, "rloo", 1, values(0.6, 1000, 1e6), lr=lr)
    accuracy = make_tables(tmp_path)["accuracy"]
    others = [f"{name} (lr={lr})" for name in ("rloo",) for lr in (0.02, 0.1)]
    rows = accuracy.set_index("algo")["difference"]
    assert [label for label in accuracy["algo"] if label.startswith("rloo")] == others
    assert rows[others].tolist() == pytest.approx([0.2, 0.1])
    assert rows[[f"{algo} (lr=0.02)", f"{algo} (lr=0.1)"]].isna().all()


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_two_references_that_fit_alike_are_none(tmp_path, algo):
    record(tmp_path, algo, 1, values(0.5, 1000, 1e6), lr=0.1)
    record(tmp_path, algo, 1, values(0.5, 1000, 1e6), lr=0.2)
    record(tmp_path, "rloo", 1, values(0.6, 1000, 1e6))
    accuracy = make_tables(tmp_path)["accuracy"]
    assert list(accuracy["algo"]) == [f"{algo} (lr=0.1)", f"{algo} (lr=0.2)", "rloo"]
    assert list(accuracy["verdict"]) == ["reference", "reference", ""]
    assert accuracy["difference"].isna().all()
    assert accuracy.attrs["footnotes"] == [
        f"vlm, smoke: rloo is compared with nothing: more than one {algo} fits it"
    ]


def test_settings_are_sorted_as_numbers(tmp_path):
    for size in (16, 2, 4):
        record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), group_size=size)
    labels = list(make_tables(tmp_path)["accuracy"]["algo"])
    assert labels == [f"grpo (group_size={size})" for size in (2, 4, 16)]


def test_families_stand_together_and_the_plain_one_first(tmp_path):
    kinds = {
        **dict.fromkeys(["cispo", "grpo", "grpo_paper"], "grpo"),
        **{"a2c": "a2c", "maskable_ppo": "maskable_ppo", "ppo": "ppo", "shared": "ppo"},
    }
    for algo, kind in kinds.items():
        record(tmp_path, algo, 1, values(0.5, 1000, 1e6), kind=kind)
    (broken,) = tmp_path.glob("vlm/grpo_paper/*/manifest.json")
    broken.write_text("{")  # it has its name only
    algos = [label.split()[0] for label in make_tables(tmp_path)["accuracy"]["algo"]]
    assert algos == ["grpo", "cispo", "grpo_paper", "ppo", "shared", "a2c", "maskable_ppo"]


@pytest.mark.parametrize(
    ("variants", "labels"),
    [
        ([{"kl": "k3"}, {"kl": "k3", "eps": 0.1}], ["grpo", "grpo (eps=0.1)"]),
        (
            [{"kl": "k2"}, {"kl": "k3", "kl_coef": 0.1}],
            ["grpo (kl=k2)", "grpo (kl=k3, kl_coef=0.1)"],
        ),
        ([{}, {"a": None}], ["grpo", "grpo (a=None)"]),
        # null is a setting too; none of the six reads like another
        (
            [{**a, **b} for a in ({}, {"a": None}, {"a": 1}) for b in ({}, {"b": 2})],
            [f"grpo{x}" for x in ["", " (a=1)", " (a=1, b=2)", " (a=None)"]]
            + [f"grpo{x}" for x in [" (a=None, b=2)", " (b=2)"]],
        ),
    ],
)
def test_labels_leave_out_what_a_variant_does_not_have(tmp_path, variants, labels):
    for variant in variants:
        record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), **variant)
    assert list(make_tables(tmp_path)["speed"]["algo"]) == labels


# -- what must not be mixed -----------------------------------------------------------------------


def test_settings_are_not_pooled(tmp_path):
    for seed in range(6):
        record(tmp_path, "ppo", seed, values(0.5, 1000, 1e6))
        record(tmp_path, "grpo", seed, values(0.6, 1000, 1e6), lr=0.1, group_size=8)
        record(tmp_path, "grpo", seed, values(0.4, 1000, 1e6), lr=0.2, group_size=8)
    table = make_tables(tmp_path)["accuracy"]
    assert list(table["algo"]) == ["grpo (lr=0.1)", "grpo (lr=0.2)", "ppo"]
    assert list(table["verdict"]) == ["grpo better", "ppo better", "reference"]
    assert list(table["difference"])[:2] == pytest.approx([0.1, -0.1])


@pytest.mark.parametrize("status", ["failed", "oom", "nan", "killed", "timeout", "planned"])
@pytest.mark.parametrize("unlucky", ["grpo", "ppo"])
def test_a_winner_of_the_survivors_is_called_so(status, unlucky):
    """A run without a result may be one that the winner would have lost."""
    score = "eval/test/success"
    runs = [run("grpo", s, **{score: 0.8 + s / 1000}) for s in range(9)]
    runs += [run("ppo", s, **{score: 0.7}) for s in range(9)]
    whole = build_tables(summaries_of(runs))
    assert list(whole["accuracy"]["verdict"]) == ["grpo better", "reference"]
    tables = build_tables(summaries_of([*runs, run(unlucky, 9, status=status)]))
    for name in ("trades", "summary", "accuracy"):
        assert tables[name]["verdict"][0] == "grpo better (of those ok)"
        assert "of those ok: some runs failed" in tables[name].attrs["reading"]


def test_an_ok_run_without_the_number_of_the_others_is_told(tmp_path):
    for seed, success in [(1, 0.5), (2, math.nan), (3, 0.7)]:
        record(tmp_path, "grpo", seed, values(success, 1000, 1e6))
    table = make_tables(tmp_path)["accuracy"]
    assert table["test_success"][0] == pytest.approx(0.6)
    assert table.attrs["footnotes"] == ["Without success on test: vlm, smoke, grpo: ok (seed 2)"]


def test_what_stands_for_success_is_named(tmp_path):
    """A return, a score, and a success that the environment reports."""
    returns = {"random": 20, "reference": 500}
    measured = {
        "pole": (returns, 260.0, 0.5),
        "hike": (None, -21.0, -21.0),
        "maze": (None, 0.9, 1.0),
        "lock": (returns, 260.0, 1.0),
    }
    for env, (known, reward, success) in measured.items():
        last = values(success, 1000, 1e6) | {"eval/test/reward": reward}
        settings = {"workers": 1, "returns": known}
        record(tmp_path, "grpo", 1, last, env=env, settings=settings)
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6) | {"eval/test/reward": 0.5})
    assert make_tables(tmp_path)["accuracy"].attrs["footnotes"] == [
        "Success on hike is the mean return",
        "Success on pole (20 to 500) is the mean return as a score from 0 (random) to 1",
    ]


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
