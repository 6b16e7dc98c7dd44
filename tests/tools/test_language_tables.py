"""Curves and completions of language models: a line by hand, and the claims of the pages."""

import json
from pathlib import Path

from tools.reference.language_tables import RECORDS, Asked, completion_pairs, curves

ROOT = Path(__file__).resolve().parents[2]


def test_a_line_ends_where_json_says_so(tmp_path: Path) -> None:
    asked = Asked({"id": "GRPO-Arithmetic-v0", "kwargs": {}, "examples": 0})
    entry = {
        "split": "validation",
        "problem_id": 7,
        "reward": 1.0,
        "completion": "3\u2028, I think",
    }
    line = json.dumps(entry, ensure_ascii=False)
    (tmp_path / "completions.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    (row,) = completion_pairs(tmp_path, asked)
    assert row["before"] == row["after"] == "✓ `3 , I think`"


def test_language_models_learned_and_the_control_did_not() -> None:
    """The claims of the pages: greedy success on problems that are never trained on."""
    table = curves(ROOT / RECORDS)
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
