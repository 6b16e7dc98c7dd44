"""Curves, runs and completions of language models are what the committed records give."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path("results") / "reference" / "lm"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lang", ROOT / "scripts" / "language_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_those_of_this_project(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


def test_a_changed_digit_is_seen(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / RECORDS, tmp_path / RECORDS)
    shutil.copy(ROOT / "results" / "reference" / "lm_memory.csv", tmp_path / RECORDS.parent)
    page = tmp_path / RECORDS / "curves.md"
    whole = page.read_text(encoding="utf-8")
    page.write_text(whole.replace("0.18", "0.19"), encoding="utf-8")
    assert script.main(["--check"], tmp_path) == 1
    assert "curves.md: not what the records give" in capsys.readouterr().out
    assert script.main([], tmp_path) == 0
    assert page.read_text(encoding="utf-8") == whole


def test_a_line_ends_where_json_says_so(script: ModuleType, tmp_path: Path) -> None:
    asked = script.Asked({"id": "GRPO-Arithmetic-v0", "kwargs": {}, "examples": 0})
    entry = {
        "split": "validation",
        "problem_id": 7,
        "reward": 1.0,
        "completion": "3\u2028, I think",
    }
    line = json.dumps(entry, ensure_ascii=False)
    (tmp_path / "completions.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    (row,) = script.pairs(tmp_path, asked)
    assert row["before"] == row["after"] == "✓ `3 , I think`"


def test_language_models_learned_and_the_control_did_not(script: ModuleType) -> None:
    """What the pages say in words: greedy success on problems that are never trained on."""
    table = script.curves(ROOT / RECORDS)
    last = table.sort_values("evaluation").groupby(["env", "algo"]).last()
    first = table[table["evaluation"] == 0].set_index(["env", "algo"])
    for algo in ("grpo", "ppo"):
        assert first.loc[("arithmetic_text", algo), "success"] < 0.25
        assert last.loc[("arithmetic_text", algo), "success"] >= 0.6
        before, after = (t.loc[("format_text", algo), "success"] for t in (first, last))
        assert after - before >= 0.2
    control = ("arithmetic_text_shuffled", "grpo")
    assert last.loc[control, "success"] <= first.loc[control, "success"]
    assert (last["seeds"] >= 3).all()
