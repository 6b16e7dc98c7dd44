"""The benchmark of growth: its exponents by hand, its records, and all of its parts at the smallest
sizes. No test asserts a time."""

import numpy as np
import pandas as pd
import pytest

from grpo_bench.records.load import load_results
from grpo_bench.report.folder import make_tables


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_exponent_of_a_power_is_the_power(load, exponent):
    sizes = [1, 3, 10, 50, 64]
    costs = [7.0 * size**exponent for size in sizes]
    assert load("_growth").exponents(sizes, costs) == pytest.approx((exponent, exponent))


def test_exponents_by_hand(load):
    # The upper half of 1, 2, 4, 8 is 4, 8; of 1, 2, 4, 8, 16 it is 4, 8, 16, with log2 of the costs
    # 1, 2, 4: slope (4 - 1) / 2 = 1.5, and 4 - 2 = 2 between the two largest.
    exponents = load("_growth").exponents
    assert exponents([1, 2, 4, 8], [9.0, 9.0, 1.0, 2.0]) == pytest.approx((1.0, 1.0))
    assert exponents([1, 2, 4, 8, 16], [9.0, 9.0, 2.0, 4.0, 16.0]) == pytest.approx((1.5, 2.0))
    assert exponents([1, 2, 4], [9.0, 1.0, 4.0]) == pytest.approx((2.0, 2.0))  # two at least
    with pytest.raises(ValueError, match=r"sizes \[1, 2\]: expected at least three"):
        exponents([1, 2], [1.0, 2.0])


def test_rows_of_two_scales_by_hand(load):
    growth, compare = load("_growth"), load("_compare")
    sizes, squares = (1, 2, 4, 8), (1, 4, 16, 64)
    made = growth.Growth("network", "width", sizes, lambda n, turn: 0.0, {"parameters": squares})
    table = compare.Table("", growth.LABELS, growth.COLUMNS, 3)
    # Three turns: exponents 1, 2 and 3 in the width, half of that in its squares. t(2) at 97.5 % is
    # 4.3027, s = 1: half width 4.3027 / sqrt 3 = 2.4842.
    costs = np.array([[1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, 8.0]])
    growth.add_rows(table, made, costs)
    width, parameters = table.numbers().to_dict("records")
    assert (width["grows with"], width["sizes"]) == ("width", "1 to 8")
    assert width["no worse than linear"] == "see parameters"
    assert parameters["no worse than linear"] == "cannot tell"
    (target,) = table.targets
    assert (target.what, target.verdict) == ("network, exponent of its cost by parameters", "open")
    assert (target.estimate, target.median) == pytest.approx((1.0, 1.0))
    assert (width["cost"], width["cost_low"], width["cost_high"]) == (4.0, 2.0, 8.0)
    assert (width["upper"], width["top"]) == pytest.approx((2.0, 2.0))
    assert width["upper_high"] == pytest.approx(2.0 + 2.4842, abs=1e-4)
    assert parameters["upper"] == pytest.approx(1.0)
    assert parameters["upper_low"] == pytest.approx(1.0 - 2.4842 / 2, abs=1e-4)
    small = made.smallest(3)
    assert (small.sizes, small.judged_by) == ((1, 2, 4), {"parameters": (1, 4, 16)})
    assert made.smallest(None) == made


def test_synthetic_records_are_records(load, tmp_path, monkeypatch):
    records = load("_records")
    monkeypatch.setattr(records, "ITERATIONS", 20)
    monkeypatch.setattr(records, "PROBLEMS", 10)
    records.make_records(tmp_path, 28, seeds=3)  # four of each: seeds 0 to 2, and 0 of another
    results = load_results(tmp_path)
    assert set(results.runs["status"]) == {"ok"}
    assert len(results.runs) == 36
    assert results.runs["seed"].value_counts().to_dict() == {0: 18, 1: 9, 2: 9}
    rows_of_a_run = 21 * len(records.EACH_ITERATION) + 12 * 3 + len(records.AT_THE_END)
    assert len(results.metrics) == 36 * rows_of_a_run
    assert len(results.evaluations) == 36 * 12 * 10
    accuracy = make_tables(tmp_path)["accuracy"]
    assert len(accuracy) == 18
    assert sorted(accuracy["ok"]) == [1] * 9 + [3] * 9


def test_networks_of_both_algorithms_grow_alike(load):
    scaling = load("scaling")
    vlm = scaling.TASKS["vlm"]
    (grpo, ppo) = (
        make(scaling.wider(vlm, 32), 256).make(0).policy for make in (scaling.grpo, scaling.ppo)
    )
    count = {p: sum(x.numel() for x in p.parameters()) for p in (grpo, ppo)}
    body = 128 * 32 + 32 + 32 * 32 + 32
    assert count[grpo] == body + 32 * 4 + 4
    assert count[ppo] == 2 * body + 32 * 4 + 4 + 32 + 1


def scaled(load, out, *parts, turns="2"):
    """The table of some parts at their smallest sizes."""
    arguments = ["--parts", *parts, "--smallest", "3", "--seconds", "0", "--out", str(out)]
    load("scaling").main(["--repeats", turns, *arguments])
    name = f"scaling_{'_'.join(parts)}"  # not that of all parts, whose place it would take
    table = pd.read_csv(out / f"{name}.csv")
    assert (table["cost_low"] <= table["cost"]).all() and (table["cost_low"] > 0).all()
    assert np.isfinite(table[["upper", "top"]]).all(axis=None)
    assert "of 2 turns" in (out / f"{name}.md").read_text()
    return table


def test_environments(load, tmp_path):
    table = scaled(load, tmp_path, "environments")
    assert list(table["sizes"]) == ["64 to 1,024"] * 3


@pytest.mark.slow
def test_learning_runs_and_records(load, tmp_path):
    table = scaled(load, tmp_path, "iterations", "widths", "runs", "records")
    assert list(table["grows with"]) == [
        *(["sub-environments"] * 2 + ["group size"] * 2 + ["width", "parameters"] * 4),
        *(["runs"] * 2 + ["records"] * 2),
    ]
    text = (tmp_path / "scaling_iterations_widths_runs_records.md").read_text()
    assert "tables, 1,000 records, peak MB" in text and "reading the bytes" in text
