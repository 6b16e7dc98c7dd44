"""benchmarks/memory.py: whose bytes are whose, sums and errors by hand, the bars of its table."""

import tracemalloc
from types import SimpleNamespace

import pandas as pd
import pytest

from grpo_bench.config import composed
from grpo_bench.report.rows.memory_parts import PARTS, memory_parts

# Layers of the network of vlm, 128-64-64 and a head of 4 or of 1: weights and biases, float32.
BODY = 128 * 64 + 64 + 64 * 64 + 64
ACTOR, CRITIC = 4 * (BODY + 64 * 4 + 4), 4 * (BODY + 64 + 1)
TENSORS = 6  # of each of the two
FEW = 16  # episodes


@pytest.fixture
def bench(load):
    return load("memory")


@pytest.fixture
def watched(bench, load, monkeypatch):
    """What is alive in each moment of two small iterations of an algorithm on vlm."""

    def watch(algo):
        run = load("_memory_run")
        monkeypatch.setattr(run, "ITERATIONS", 2)
        tracemalloc.start()
        try:
            return run.watched(run.with_few(composed("env=vlm", f"algo={algo}")))
        finally:
            tracemalloc.stop()

    return watch


def test_components_of_ppo(watched):
    update = watched("ppo")["update"]
    assert update["policy"] == ACTOR
    assert update["critic"] == CRITIC
    # Adam: two moments of each parameter, and of each tensor a float32 that counts the steps.
    assert update["optimizer"] == 2 * (ACTOR + CRITIC) + 2 * TENSORS * 4
    # SB3's buffer: 128 floats of an observation, an int64 action, and six floats.
    assert update["rollout"] == FEW * (128 * 4 + 8 + 6 * 4)
    assert 0 < update["gradients"] <= ACTOR + CRITIC
    assert update["activations"] > FEW * 4 * 64 * 4  # two tanh of each of the two networks
    assert "reference" not in update


def test_components_of_grpo_with_a_reference(watched):
    moments = watched("grpo_paper")
    assert list(moments) == ["rollout", "update"]
    for parts in moments.values():
        assert parts["policy"] == parts["reference"] == ACTOR
        assert "critic" not in parts
    # Two problems: two observations; of 16 episodes row, action, log-probability, reward, mask and
    # truncated; success of 16 and start of two are arrays of 8 bytes.
    assert moments["update"]["rollout"] == 2 * 128 * 4 + FEW * (8 + 8 + 4 + 4 + 1 + 1 + 8) + 2 * 8


def turn(interpreter, activations, measured):
    """A turn in which two components are all there is."""
    total = interpreter + activations
    parts = {"interpreter": interpreter, "activations": activations}
    return parts | {"measured": measured, "total": total, "moment": "update"}


def test_a_row_by_hand(bench):
    turns = [turn(80e6, 18e6, 100e6), turn(81e6, 18e6, 110e6), turn(79e6, 18e6, 99e6)]
    row = bench.row_of({"env": "vlm", "algo": "ppo"}, turns)
    assert row["interpreter"] == 80e6
    assert (row["measured"], row["measured_low"], row["measured_high"]) == (100e6, 99e6, 110e6)
    assert row["total"] == 98e6
    assert row["error"] == pytest.approx(-2)  # 98 of 100
    assert row["growth"] == 20e6
    assert row["explained"] == pytest.approx(90)  # 18 of 20
    assert "critic" not in row


@pytest.mark.parametrize(("measured", "word"), [(100e6, "met"), (110e6, "missed")])
def test_the_target(bench, measured, word):
    row = bench.row_of({"env": "vlm", "algo": "ppo"}, [turn(80e6, 18e6, measured)] * 2)
    table = bench.table_of([row], 2)
    assert table.targets[0].verdict == word
    assert [*table.numbers().columns[:5]] == ["env", "algo", "moment", "interpreter", "code"]


def test_a_process_that_fails_says_why(bench):
    with pytest.raises(RuntimeError, match="KeyError"):
        bench.process("nothing", SimpleNamespace(plain={}))


def test_bars_by_hand():
    table = pd.DataFrame(
        [
            {"env": "vlm", "algo": "ppo"} | dict.fromkeys(PARTS, 1.0) | {"reference": None},
            {"env": "vlm", "algo": "grpo"} | dict.fromkeys(PARTS, 2.0) | {"critic": None},
        ]
    ).assign(measured=99.0)
    bars = memory_parts(table)
    assert [*bars.columns] == ["env", "algo", "component", "bytes"]
    ppo, grpo = (bars[bars["algo"] == algo] for algo in ("ppo", "grpo"))
    assert [*ppo["component"]] == [name for name in PARTS if name != "reference"]
    assert [*grpo["component"]] == [name for name in PARTS if name != "critic"]
    assert [*bars["algo"]] == ["ppo"] * 12 + ["grpo"] * 12
    assert set(grpo["bytes"]) == {2.0}


def test_bars_of_another_table():
    with pytest.raises(ValueError, match="activations, objects"):
        memory_parts(pd.DataFrame({"env": [], "algo": []}))
