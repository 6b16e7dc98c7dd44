"""``python -m grpo_bench.audit``: records that are broken in one way each."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.configs import config, evaluate_few_problems

from grpo_bench import audit
from grpo_bench.records import plan
from grpo_bench.records.audit import problems
from grpo_bench.records.files import parquet_bytes
from grpo_bench.runs.job import execute

SMALL = ["env=vlm_synthetic", "env.train.episodes=64", "budget.transitions=128", "seed=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good record."""
    results = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        evaluate_few_problems("vlm_synthetic", patch)
        execute(config(results, *SMALL))
    return results


@pytest.fixture
def results(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def run_of(results: Path) -> Path:
    (folder,) = results.glob("*/*/*")
    return folder


def rewritten(file: Path, change) -> None:
    table = pq.ParquetFile(file).read()
    file.write_bytes(parquet_bytes(change(table.to_pandas(), table.schema)))


def edit(column, value):
    """Replace a column's last value."""

    def change(frame, schema):
        frame.loc[frame.index[-1], column] = value
        return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)

    return change


def cut_off(folder: Path) -> None:
    """As if its process had been killed before the end."""
    for name, changes in (("manifest", {"status": "running"}), ("attempt-1", {"started": 0.0})):
        file = folder / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGE = {
    "no metrics": (lambda run: (run / "metrics.parquet").unlink(), "metrics.parquet: missing"),
    "half of a table": (lambda run: halve(run / "eval.parquet"), "eval.parquet: not readable"),
    "no manifest": (lambda run: (run / "manifest.json").unlink(), "manifest.json: missing"),
    "half of a model": (lambda run: halve(run / "checkpoint" / "model.zip"), "damaged"),
    "other rewards": (
        lambda run: rewritten(run / "eval.parquet", edit("reward", 99.0)),
        "eval/test/reward is .*, and the mean of its rows",
    ),
    "not finite": (
        lambda run: rewritten(run / "metrics.parquet", edit("value", float("inf"))),
        "not finite at the end",
    ),
    "out of order": (
        lambda run: rewritten(run / "metrics.parquet", edit("transitions", 0)),
        "transitions go back",
    ),
    "cut off": (cut_off, "cut off; the same command goes on"),
    "left over": (lambda run: (run / ".metrics.parquet.1.tmp").write_text(""), "left by a process"),
    "another place": (
        lambda run: run.rename(run.with_name("smoke-seed9-01234567")),
        "its configuration is that of smoke-seed1",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_wrong_is_named(results, kind, monkeypatch, capsys):
    damage, words = DAMAGE[kind]
    damage(run_of(results))
    before = {file: file.read_bytes() for file in results.rglob("*") if file.is_file()}
    monkeypatch.setattr(sys, "argv", ["audit", f"results='{results}'"])
    with pytest.raises(SystemExit) as ended:
        audit.main()
    assert ended.value.code == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert any(re.search(words, line) for line in lines), lines
    assert summary.startswith("1 runs (") and summary.endswith("1 with problems")
    assert before == {f: f.read_bytes() for f in results.rglob("*") if f.is_file()}


def test_a_good_record_and_one_that_has_not_begun(results, monkeypatch, capsys):
    assert list(problems(run_of(results), results)) == []
    plan(results, config(results, "seed=2").plain)
    monkeypatch.setattr(sys, "argv", ["audit", f"results='{results}'"])
    audit.main()
    assert capsys.readouterr().out == "2 runs (1 ok, 1 planned): 0 with problems\n"


def test_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["audit", f"results='{tmp_path}'"])
    with pytest.raises(SystemExit, match="no records there"):
        audit.main()
