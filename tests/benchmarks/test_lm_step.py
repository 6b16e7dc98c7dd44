"""The benchmark beside TRL: what it counts, what it says of it, and that it runs. No test asserts a
time."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")


def test_turns_count_the_steps_that_were_asked_for(load):
    """Two, then one; the first step of all is nobody's."""
    answers = io.StringIO()
    turns = load("_lm_sides").Turns(io.StringIO("2\n1\n"), answers)
    more, step = True, 0
    while more:
        with turns.phases("generation"):
            turns.rewards.append(float(step))
        step += 1
        more = turns.stepped()
    told = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [turn["rewards"] for turn in told] == [[1.0, 2.0], [3.0]]
    for turn in told:
        parts = {name: value for name, value in turn["seconds"].items() if name != "whole"}
        assert sum(parts.values()) == pytest.approx(turn["seconds"]["whole"])
        assert parts["generation"] > 0 == parts["optimizer"]
        assert turn["peak"] > 2**20


def test_the_optimiser_is_timed_whichever_it_is(load):
    answers = io.StringIO()
    turns = load("_lm_sides").Turns(io.StringIO("1\n"), answers)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    turns.stepped()
    with turns.optimizer_timed(), turns.phases("update"):  # as ours does, which has a clock too
        optimizer.step()
    turns.stepped()
    seconds = json.loads(answers.getvalue())["seconds"]
    assert seconds["optimizer"] > 0
    assert seconds["passes"] == pytest.approx(seconds["whole"] - seconds["optimizer"])


def test_all_sides_have_the_same_problems(load):
    sides, tasks = load("_lm_sides"), load("grpo_bench.lm.tasks")
    settings = sides.Settings(model="tiny", prompts=3, seed=5)
    drawn = []
    for _ in range(2):
        given = sides.problems(tasks.task_of(sides.configuration(settings).env), settings)
        drawn.append(np.array([next(given) for _ in range(4)]))
    assert drawn[0].shape == (4, 3) and (drawn[0] == drawn[1]).all()
    assert sides.by_turns(np.zeros(4)).tolist() == [0, 1, 0, 1]


def test_the_floor_reads_each_weight_that_a_token_meets_once(load):
    """Of ``tiny``: queries 32 x 32, keys, values 16 x 32, output 32 x 32, and 3 x 32 x 96, in two
    layers; the head, which is the embeddings, 259 x 32. Norms are no matrices."""
    model = load("grpo_bench.lm.models").load_model("tiny").model
    found = load("_lm_floor").matrices(model)
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 96
    assert sum(weight.numel() for weight in found) == 2 * layer + 259 * 32


def test_a_row_and_its_targets_by_hand(load):
    """Ours takes 2 and 4 seconds, TRL 8 and 16, always 4 times as long; the peaks are half."""
    module, sides = load("lm_step"), load("_lm_sides")

    def turn(generation, passes, peak):
        seconds = dict.fromkeys(sides.PARTS, 0.0)
        whole = generation + passes
        seconds |= {"generation": generation, "passes": passes, "whole": whole}
        return sides.Turn(seconds, peak, [])

    turns = {
        "ours": [turn(1.0, 1.0, 2**20), turn(2.0, 2.0, 2**20), turn(3.0, 3.0, 2**20)],
        "same": [turn(4.0, 4.0, 2**21), turn(8.0, 8.0, 2**21), turn(12.0, 12.0, 2**21)],
        "floor": [turn(0.5, 0.8, 1), turn(1.0, 1.6, 1), turn(1.5, 2.4, 1)],
    }
    table = module.Table("", ("reference", "trainer"), (), repeats=3)
    module.add_rows(table, sides.Settings(), turns, steps=1)
    names = ["ours", module.title("same"), "floor", module.ROWS]
    assert [row["trainer"] for row in table.rows] == names
    assert table.rows[0]["rate"] == 128.0  # 4 x 8 x 16 tokens in 2, 4 and 6 seconds: the middle one
    found = {target.what: (target.estimate, target.verdict) for target in table.targets}
    assert found == {
        "beta 0, seconds of TRL / ours": (pytest.approx(4.0), "met"),
        "beta 0, peak of ours / TRL": (pytest.approx(0.5), "met"),
        "generation / floor": (pytest.approx(2.0), "met"),
        "passes / floor": (pytest.approx(1.25), "met"),
    }


@pytest.mark.slow
def test_it_runs(load, tmp_path, monkeypatch):
    module = load("lm_step")
    monkeypatch.setattr(module, "find_spec", lambda name: None)  # as where TRL is not installed
    module.main(["--quick", "--repeats", "2", "--threads", "1", "--out", str(tmp_path)])
    table = pd.read_csv(tmp_path / "lm_step.csv")
    assert table["trainer"].tolist() == ["ours", "floor", module.ROWS, "ours"]
    mine = table[table["trainer"] == "ours"]
    parts = mine[["generation", "scoring", "logprobs", "passes", "optimizer"]]
    assert (parts.drop(columns="logprobs") > 0).all(axis=None)
    assert (parts["logprobs"] > 0).tolist() == [False, True]  # of the reference
    assert "TRL is not installed" in (tmp_path / "lm_step.md").read_text()
    with pytest.raises(SystemExit):
        module.main(["--curves"])


@pytest.mark.slow
def test_it_runs_beside_trl(load, tmp_path):
    pytest.importorskip("trl")
    module = load("lm_step")
    options = ["--quick", "--threads", "1", "--out", str(tmp_path)]
    module.main([*options, "--repeats", "2", "--precisions", "same"])
    table = pd.read_csv(tmp_path / "lm_step.csv")
    assert table["ratio"].notna().sum() == table["peak_ratio"].notna().sum() == 2
    module.main([*options, "--curves", "--learn", "3", "--seeds", "1", "2"])
    curves = pd.read_csv(tmp_path / "lm_curves.csv")
    assert curves["steps"].tolist() == ["1 to 3"]
