"""Packed records are the records: the same tables, the same numbers to the last bit."""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.run_records import ORIGIN, record, values

from grpo_bench import pack as command
from grpo_bench.records import RecordError, claim, plan, run_folder
from grpo_bench.records.load import has_records, load_problems, load_results, load_summaries
from grpo_bench.records.packing import pack
from grpo_bench.records.schema import METRIC_SCHEMA
from grpo_bench.records.wide import lengthened, widened
from grpo_bench.report.folder import make_tables
from grpo_bench.report.text.writers import written

FILES = ("runs.parquet", "metrics.parquet", "problems.parquet")


def config(seed, algo="grpo", env="vlm"):
    names = {"env": {"name": env}, "algo": {"name": algo}, "budget": {"name": "smoke"}}
    return {**names, "seed": seed}


def start(results, seed, **names):
    chosen = config(seed, **names)
    return claim(plan(results, chosen), chosen, seeds={"policy": seed}, provenance=ORIGIN)


def files(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def by_moment(metrics):
    """The order of rows of the same moment does not matter."""
    return metrics.sort_values([*metrics.columns[:-1]], kind="stable", ignore_index=True)


@pytest.fixture
def everything(tmp_path):
    """Records of every kind under ``runs``."""
    runs = tmp_path / "runs"
    for seed in (1, 2, 10):
        record(runs, "ppo", seed, values(0.5 + seed / 100, 1000, 4e8, critic=4e4))
        record(runs, "grpo", seed, values(0.9 - seed / 50, 2000, 2e8), findings=["flat: 1 of 2"])
    record(runs, "grpo", 3, values(0.0, 1, 9e8), status="oom")
    record(runs, "grpo", 1, values(0.5, 1000, 2e8), env="format", components=["format"])
    plan(runs, config(4, algo="dapo"))  # planned
    going = start(runs, 5)
    going.log(8, 1, 0.5, 10, {"train/loss": 0.25})
    going.flush()
    start(runs, 6).finish("failed", "Traceback\nValueError: ß")
    (plan(runs, config(7)) / "manifest.json").write_text("{")
    damaged = start(runs, 8)
    damaged.finish()
    (damaged.folder / "metrics.parquet").write_bytes(b"PAR1 no more")
    return runs


def test_tables_and_frames_are_the_same(everything, tmp_path):
    out = tmp_path / "packed"
    assert pack(everything, out) == 13
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    assert written(make_tables(out)) == written(make_tables(everything))
    theirs, ours = load_summaries(everything), load_summaries(out)
    pd.testing.assert_frame_equal(ours.runs, theirs.runs)
    pd.testing.assert_frame_equal(ours.values, theirs.values, check_like=True, check_exact=True)
    assert list(ours.values.index) == list(theirs.values.index)
    pd.testing.assert_frame_equal(ours.curves, theirs.curves, check_exact=True)
    pd.testing.assert_frame_equal(load_problems(out), load_problems(everything))
    theirs, ours = load_results(everything), load_results(out)
    pd.testing.assert_frame_equal(ours.runs, theirs.runs)
    pd.testing.assert_frame_equal(by_moment(ours.metrics), by_moment(theirs.metrics))
    assert list(ours.runs["status"]).count("planned") == 3
    last = theirs.evaluations[theirs.evaluations["transitions"] == 2048]
    pd.testing.assert_frame_equal(ours.evaluations, last.reset_index(drop=True))


def test_a_folder_has_records_of_either_kind_or_none(everything, tmp_path):
    pack(everything, tmp_path / "packed")
    assert has_records(everything)
    assert has_records(tmp_path / "packed")
    (tmp_path / "tables" / "a" / "b" / "c").mkdir(parents=True)
    assert not has_records(tmp_path / "tables")
    assert not has_records(tmp_path / "nowhere")


def test_what_the_files_hold(everything, tmp_path):
    pack(everything, tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet").set_index("run")
    failed = runs.loc[run_folder(Path(), config(6)).as_posix()]
    assert failed["error"] == "Traceback\nValueError: ß"
    manifest = run_folder(everything, config(6)) / "manifest.json"
    assert failed["manifest"] == manifest.read_text(encoding="utf-8")
    assert json.loads(failed["manifest"])["seeds"] == {"policy": 6}
    unreadable = runs.loc[run_folder(Path(), config(8)).as_posix()]
    assert pd.isna(unreadable["manifest"])
    assert "metrics.parquet: not readable" in unreadable["problem"]
    metrics = pd.read_parquet(tmp_path / "metrics.parquet")
    assert list(metrics.columns[:5]) == ["run", *METRIC_SCHEMA.names[:4]]
    assert sorted(metrics.columns[5:]) == list(metrics.columns[5:])


def test_packing_again_changes_no_byte(everything, tmp_path):
    out = tmp_path / "packed"
    pack(everything, out)
    first = files(out)
    pack(everything, out)
    assert files(out) == first
    pack(out, tmp_path / "copy")
    assert files(tmp_path / "copy") == first


def test_packed_in_two_parts_as_at_once(everything, tmp_path):
    for folder in everything.glob("*/grpo"):
        later = tmp_path / "later" / folder.relative_to(everything)
        later.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(later)
    pack(everything, tmp_path / "parts")
    pack(tmp_path / "later", tmp_path / "parts")
    for folder in (tmp_path / "later").glob("*/grpo"):
        (everything / folder.relative_to(tmp_path / "later")).parent.mkdir(exist_ok=True)
        folder.rename(everything / folder.relative_to(tmp_path / "later"))
    pack(everything, tmp_path / "whole")
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def ended(results, status, loss, when):
    """Seed 1 with this end, and its own start."""
    run = start(results, 1)
    run.log(1, 1, 0.1, 1, {"train/loss": loss})
    run.finish(status)
    path = run.folder / "manifest.json"
    path.write_text(path.read_text().replace(run.manifest.start, f"2026-01-0{when}T00:00:00+00:00"))


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (("ok", 1.0, 1), ("ok", 2.0, 2), 2.0),
        (("ok", 1.0, 2), ("ok", 2.0, 1), 1.0),
        (("ok", 1.0, 1), ("failed", 2.0, 2), 1.0),
        (("killed", 1.0, 2), ("ok", 2.0, 1), 2.0),
        (("killed", 1.0, 1), ("failed", 2.0, 2), 2.0),
    ],
)
def test_one_of_two_records_of_a_run_counts(tmp_path, first, second, stays):
    ended(tmp_path / "first", *first)
    ended(tmp_path / "second", *second)
    pack(tmp_path / "first", tmp_path / "second")  # an archive next to the folders
    for load in (load_results, load_summaries):
        assert len(load(tmp_path / "second").runs) == 1
    assert list(load_results(tmp_path / "second").metrics["value"]) == [stays]
    assert list(load_summaries(tmp_path / "second").values["train/loss"]) == [stays]
    assert pack(tmp_path / "second", tmp_path / "both") == 1
    assert list(load_results(tmp_path / "both").metrics["value"]) == [stays]


def test_an_archive_and_folders_next_to_it(everything, tmp_path):
    whole = written(make_tables(everything))
    results = load_results(everything)
    some = tmp_path / "some"
    some.mkdir()
    (everything / "vlm").rename(some / "vlm")
    pack(some, everything)
    assert written(make_tables(everything)) == whole
    together = load_results(everything)
    pd.testing.assert_frame_equal(by_moment(together.metrics), by_moment(results.metrics))
    pd.testing.assert_frame_equal(together.runs, results.runs)


ODD = [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1 / 3, math.nan]


def test_numbers_are_kept_to_the_last_bit(tmp_path):
    run = start(tmp_path / "runs", 1)
    for i, value in enumerate(ODD):
        run.log(2**53 + i, i, value if value > 0 else 0.0, 2**62 + i, {"odd": value, "one": 1.0})
    run.finish()
    pack(tmp_path / "runs", tmp_path)
    metrics = load_results(tmp_path).metrics
    assert list(metrics["transitions"].unique()) == [2**53 + i for i in range(len(ODD))]
    assert list(metrics["peak_bytes"].unique()) == [2**62 + i for i in range(len(ODD))]
    found = metrics["value"][metrics["metric"] == "odd"]
    assert [struct.pack("d", x) for x in found] == [struct.pack("d", x) for x in ODD]


# -- wide -----------------------------------------------------------------------------------------


def long(*rows):
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(METRIC_SCHEMA.names, map(list, columns), strict=True)), METRIC_SCHEMA)


def test_wide_by_hand():
    table = long(
        (0, 0, 0.0, 1, "b", 1.0),
        (0, 0, 0.0, 1, "a", math.nan),
        (8, 1, 0.5, 1, "b", 2.0),
        (8, 1, 0.5, 1, "b", 3.0),  # a second time at one moment
        (8, 1, 0.5, 1, "a", 4.0),
        (8, 1, 0.5, 2, "a", 5.0),  # the peak has grown: another moment
        (0, 0, 0.0, 1, "c", 6.0),  # the first moment again, but not adjacent
    )
    assert widened(table).to_pydict() == {
        "transitions": [0, 8, 8, 8, 0],
        "gradient_steps": [0, 1, 1, 1, 0],
        "seconds": [0.0, 0.5, 0.5, 0.5, 0.0],
        "peak_bytes": [1, 1, 1, 2, 1],
        "a": [pytest.approx(math.nan, nan_ok=True), 4.0, None, 5.0, None],
        "b": [1.0, 2.0, 3.0, None, None],
        "c": [None, None, None, None, 6.0],
    }
    back = lengthened(widened(table)).to_pydict()
    assert list(back) == METRIC_SCHEMA.names
    assert back["metric"] == ["a", "b", "a", "b", "b", "a", "c"]
    assert back["value"][1:] == [1.0, 4.0, 2.0, 3.0, 5.0, 6.0]
    assert math.isnan(back["value"][0])


def test_there_and_back_keeps_the_order_of_each_metric():
    rng = np.random.default_rng(0)
    rows = [
        (int(t), int(t), float(t), 1, f"m{rng.integers(5)}", rng.normal())
        for t in np.sort(rng.integers(0, 40, 500))
    ]
    table = long(*rows)
    back = lengthened(widened(table)).to_pandas()
    assert len(back) == 500
    for metric, expected in table.to_pandas().groupby("metric"):
        found = back[back["metric"] == metric].astype({"metric": str})
        pd.testing.assert_frame_equal(
            found.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False
        )


@pytest.mark.parametrize("name", ["run", "seconds"])
def test_a_metric_with_the_name_of_a_column_is_named(tmp_path, name):
    run = start(tmp_path, 1)
    run.log(1, 1, 0.1, 1, {name: 1.0})
    run.finish()
    with pytest.raises(ValueError, match=f"seed1.*metric '{name}'"):
        pack(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- what is wrong --------------------------------------------------------------------------------


def test_damaged_evaluations_are_not_silently_left_out(tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 2e8))
    (path,) = tmp_path.rglob("eval.parquet")
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"eval\.parquet: not readable"):
        pack(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_archive_is_named(everything, tmp_path, name):
    pack(everything, tmp_path / "out")
    (tmp_path / "out" / name).write_bytes(b"PAR1 no more")
    with pytest.raises(RecordError, match=rf"{name}: not readable"):
        load_results(tmp_path / "out")
    with pytest.raises(RecordError, match=rf"{name}: not readable"):
        pack(everything, tmp_path / "out")


def test_an_archive_without_its_metrics_is_named(everything, tmp_path):
    pack(everything, tmp_path / "out")
    (tmp_path / "out" / "metrics.parquet").unlink()
    with pytest.raises(RecordError, match=r"metrics\.parquet: missing"):
        load_summaries(tmp_path / "out")


def test_a_packed_manifest_of_another_schema_counts_as_planned(everything, tmp_path):
    pack(everything, tmp_path)
    path = tmp_path / "runs.parquet"
    runs = pd.read_parquet(path)
    runs["manifest"] = runs["manifest"].str.replace('"schema_version": 1', '"schema_version": 0')
    runs.to_parquet(path)
    found = load_summaries(tmp_path).runs
    assert set(found["status"]) == {"planned"}
    assert found["problem"][0].endswith("manifest.json: schema_version 0, expected 1")


def test_nothing_to_pack_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no records"):
        pack(tmp_path / "nowhere", tmp_path / "out")


# -- the command ----------------------------------------------------------------------------------


def test_the_command(everything, tmp_path, monkeypatch, capsys):
    out = tmp_path / "packed"
    monkeypatch.setattr(sys, "argv", ["pack", f"results='{everything}'", f"out='{out}'"])
    command.main()
    size = sum(len(data) for data in files(out).values())
    assert capsys.readouterr().out == f"13 runs, {size / 1e6:.2f} MB in {out}\n"
    monkeypatch.setattr(sys, "argv", ["pack", f"results='{tmp_path / 'nowhere'}'"])
    with pytest.raises(SystemExit, match="no records"):
        command.main()


def test_tables_need_only_a_part_of_the_metrics(everything, tmp_path):
    needed = ["eval/*", "memory/*", "task/*", "time/*"]
    pack(everything, tmp_path / "whole")
    pack(everything, tmp_path / "part", needed)
    assert written(make_tables(tmp_path / "part")) == written(make_tables(everything))
    names = set(load_results(tmp_path / "part").metrics["metric"])
    others = set(load_results(tmp_path / "whole").metrics["metric"]) - names
    assert others and all(name.partition("/")[0] in ("train", "rollout") for name in others)
    assert all(name.partition("/")[0] in ("eval", "memory", "task", "time") for name in names)
