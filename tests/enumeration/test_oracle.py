"""The tables: their contents, and the committed ones match the code."""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from grpo_bench import oracle
from grpo_bench.enumeration import tables
from grpo_bench.enumeration.table import Table, number
from grpo_bench.grpo.kl import FORMS
from grpo_bench.report import markdown

COMMITTED = Path(__file__).parents[2] / "results" / "reference" / "oracle"


@cache
def built(name: str) -> Table:
    return tables.TABLES[name]()


def rows(name: str, **labels) -> pd.DataFrame:
    """The rows of a table with those labels."""
    found = built(name).numbers()
    for label, value in labels.items():
        found = found[found[label] == value]
    assert len(found)
    return found


def agree(found: pd.DataFrame, committed: pd.DataFrame, rtol: float = 1e-6) -> None:
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True),
        committed.reset_index(drop=True),
        rtol=rtol,
        atol=1e-8,
        check_dtype=False,
    )


# -- the committed tables -------------------------------------------------------------------------


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_committed_table_matches_the_code(name):
    table = built(name)
    agree(table.numbers(), pd.read_csv(COMMITTED / f"{name}.csv"))
    text = (COMMITTED / f"{name}.md").read_text(encoding="utf-8")
    now = markdown(table.shown())
    words, words_now = ([x for x in t.splitlines() if x[:1] != "|"] for t in (text, now))
    assert words == words_now
    shape, shape_now = ([len(x.split("|")) for x in t.splitlines()] for t in (text, now))
    assert shape == shape_now
    assert "|:|" not in text, "no table in Markdown: a rule needs a hyphen"


def test_the_committed_combinations_match_the_code():
    every = 29
    committed = pd.read_csv(COMMITTED / "everything.csv", keep_default_na=False, na_values=[""])
    assert len(committed) == sum(1 for _ in tables.combinations())
    labels = ["task", "policy", "baseline", "aggregation", "ratio", "surrogate", "kl", "G"]
    assert not committed[labels].duplicated().any()
    agree(tables.everything(every), committed.iloc[::every], rtol=2e-3)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(oracle, "TABLES", {"process": lambda: built("process")})
    monkeypatch.setattr(oracle, "everything", lambda: tables.everything(500))
    oracle.main(["--out", str(tmp_path / "new" / "folder")])
    printed = capsys.readouterr()
    assert "Credit over time" in printed.out and "process ..." in printed.err
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {"process.md", "process.csv", "everything.csv"}


# -- their contents --------------------------------------------------------------------------------


def test_the_field_notes_of_the_kl_forms():
    """1.00 without a direction, 2.00 with -1, 0 with 1, and for k3 about 0.28 with 0.96."""
    assert "KL(pi || ref) 0.529" in " ".join(built("kl").footnotes)
    for name, form in FORMS.items():
        (row,) = rows("kl", task="one action", form=name).to_dict("records")
        assert row["label"] == form.gradient
        error, cosine = {
            "right": (0, 1),
            "opposite": (2, -1),
            "zero": (1, float("nan")),
            "reverse": (0.276, 0.962),
        }[form.gradient]
        assert row["error"] == pytest.approx(error, abs=5e-4)
        assert row["cosine"] == pytest.approx(cosine, abs=5e-4, nan_ok=True)
        assert (row["to_reverse"] < 1e-9) == (name == "k3")
        assert (row["error_off"] < 1e-9) == (name in ("exact", "k3_ratio"))
    of_completions = rows("kl", task="completions").set_index("form")
    assert of_completions["error"]["k1_reward"] < 1e-9
    assert (of_completions["error"][["exact", "k2", "k3", "k3_ratio"]] > 0.1).all()


def test_which_are_unbiased_in_the_table():
    for name, scale in {"one action": 1.0, "completions": 1 / 3}.items():
        aggregation = "any" if name == "one action" else "constant_length"
        found = rows("policy_gradient", task=name, aggregation=aggregation)
        for baseline, of_it in found.groupby("baseline"):
            if baseline in ("rloo", "none"):
                assert of_it["scale"].tolist() == pytest.approx([scale] * len(of_it))
            if baseline == "group_mean":
                expected = scale * (of_it["G"] - 1) / of_it["G"]
                assert of_it["scale"].tolist() == pytest.approx(expected.tolist())
            if baseline in ("rloo", "none", "group_mean"):
                assert (of_it["turned"] < 1e-9).all()
            if baseline in ("batch", "batch_std"):
                assert (of_it["turned"] > 1e-3).all()
    uneven = rows("policy_gradient", task="completions", aggregation="sequence_mean")
    assert (uneven["turned"] > 0.1).all()


def test_what_the_deviation_does_to_difficulty():
    found = rows("group_std", ddof=0).set_index("p")
    assert found["G=2"].tolist() == pytest.approx([1.0] * len(found), abs=1e-3)  # std 0.5, always
    assert found["infinite"][0.5] == pytest.approx(2)
    sizes = [f"G={size}" for size in (2, 4, 8, 16, 64)]
    assert (found[[*sizes, "infinite"]].diff(axis=1).iloc[:, 1:] > 0).all(axis=None)
    # ddof 1 is sqrt((G - 1) / G) of it, up to eps
    other = rows("group_std", ddof=1).set_index("p")
    for size in (2, 4, 8, 16, 64):
        share = other[f"G={size}"] / found[f"G={size}"]
        assert share.tolist() == pytest.approx([(1 - 1 / size) ** 0.5] * len(found), abs=1e-3)
    assert found["flat G=2"][0.1] == pytest.approx(0.82)


def test_bounds_bind_only_where_ratios_are_outside():
    found = rows("off_policy", task="one action", baseline="rloo", bounds="none")
    assert (found["error"] < 1e-9).all()
    bounded = rows("off_policy", bounds="0.2")
    assert (bounded["outside"] > 0.05).all() and (bounded["error"] > 0.05).all()


def test_numbers_as_text():
    assert [number(x) for x in (0.0, 1e-9, 0.0123, 0.5, 0.99999, 12.34, -0.529)] == [
        *("0", "0.0000", "0.0123", "0.500", "1.00", "12.3", "-0.529"),
    ]


def test_advantages_by_hand():
    # one right answer of 8: mean 1/8, std sqrt(7)/8 = 0.330719, the largest advantage of size s is
    # 7/8 s / (0.330719 s + 1e-4): 2.644951 of size 1, 2.031488 of size 0.001
    found = rows("advantages", baseline="group").set_index("size")
    assert found["change"][0.001] == pytest.approx(1 - 2.031488 / 2.644951, abs=1e-6)
    assert found["change"][1.0] == 0
    assert (found["sum"] < 1e-9).all()
    # without a division by the deviation, ten times the reward is ten times the advantage
    assert rows("advantages", baseline="rloo", size=10.0)["change"].item() == pytest.approx(9)
    assert rows("advantages", baseline="rank")["change"].max() == 0
    # of rewards that are all 1 the sum is 8 times the largest
    assert rows("advantages", baseline="none")["sum"].unique() == pytest.approx([8])
