"""Each benchmark runs at a tiny size and gives tables that make sense. No test asserts a time."""

import importlib
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from grpo_envs.arithmetic import ArithmeticTask
from grpo_envs.vlm import VLMTask

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TURNS = ["--repeats", "2"]


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark by its name, as ``python benchmarks/NAME.py`` would."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def import_it(name: str) -> ModuleType:
        return importlib.import_module(name)

    return import_it


def run(benchmark: ModuleType, name: str, out: Path, *arguments: str) -> pd.DataFrame:
    """The table that it writes, seen to be the same in both formats."""
    benchmark.main([*TURNS, "--out", str(out), *arguments])
    table = pd.read_csv(out / f"{name}.csv")
    text = (out / f"{name}.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    estimates = [line for line in rows if line.split("|")[1].strip()]  # below stand the intervals
    assert len(estimates) == len(table) + 2  # title and rule
    assert "of 2 turns" in text and "thread(s)" in text
    bounded = [column for column in table.columns if f"{column}_low" in table.columns]
    for column in bounded:
        ordered = table[[f"{column}_low", column, f"{column}_high"]].dropna()
        assert (np.diff(ordered, axis=1) >= -1e-9 * ordered[[column]].to_numpy()).all()
        assert (ordered > 0).all(axis=None)
    return table


def test_spread_and_ratio_by_hand(load):
    compare = load("_compare")
    assert compare.spread("x", [3.0, 1.0, 2.0]) == {"x": 2.0, "x_low": 1.0, "x_high": 3.0}
    # 2 / 1 and 8 / 1: median 5, geometric mean 4; logs ln 2 and ln 8, s = ln 4 / sqrt 2,
    # t(1) at 97.5 % = 12.7062, half width 12.7062 * ln 4 / 2 = 8.8073
    found = compare.ratio([2.0, 8.0], [1.0, 1.0])
    assert found["ratio_median"] == 5.0
    assert (found["ratio_median_low"], found["ratio_median_high"]) == (2.0, 8.0)
    assert found["ratio"] == pytest.approx(4.0)
    assert found["ratio_low"] == pytest.approx(4.0 * math.exp(-8.8073), rel=1e-4)
    assert found["ratio_high"] == pytest.approx(4.0 * math.exp(8.8073), rel=1e-4)


def test_subjects_take_turns(load):
    order = []
    subjects = {name: lambda turn, name=name: order.append((turn, name)) or turn for name in "AB"}
    measured = load("_compare").in_turns(subjects, 3)
    assert order == [(0, "A"), (0, "B"), (1, "A"), (1, "B"), (2, "A"), (2, "B")]
    assert measured == {"A": [0, 1, 2], "B": [0, 1, 2]}


@pytest.mark.parametrize(
    ("limit", "word"),
    [
        ({"at_least": 2.0}, "met"),
        ({"at_least": 3.0}, "open"),
        ({"at_least": 5.0}, "missed"),
        ({"at_most": 4.0}, "met"),
        ({"at_most": 3.0}, "open"),
        ({"at_most": 1.0}, "missed"),
    ],
)
def test_a_target_is_met_or_missed_only_by_the_whole_interval(load, limit, word):
    found = {"ratio": 3.0, "ratio_low": 2.0, "ratio_high": 4.0}
    verdict = load("_compare").verdict
    assert verdict("this", found, **limit).startswith(f"Target {word}: this 3.00")
    rate = {name.replace("ratio", "rate"): value for name, value in found.items()}
    assert verdict("this", rate, name="rate", **limit) == verdict("this", found, **limit)


@pytest.mark.parametrize("repeats", ["1", "0", "-3", "many"])
def test_too_few_turns_are_refused(load, capsys, repeats):
    with pytest.raises(SystemExit):
        load("env_speed").main(["--repeats", repeats])
    assert f"{repeats!r}: expected a whole number of at least 2" in capsys.readouterr().err


def test_env_speed(load, tmp_path):
    arguments = ["--sizes", "1", "2", "4", "--most", "2", "--seconds", "0.005"]
    arguments += ["--ids", "GRPO-VLM-v0", "GRPO-Arithmetic-v0"]
    table = run(load("env_speed"), "env_speed", tmp_path, *arguments)
    # native and four floors at each size, three wrappers at 1 and 2, scalar at 1; VLM in torch
    assert len(table) == 2 * (3 * 5 + 2 * 3 + 1) + 3
    native = table["implementation"] == "native"
    assert table["ratio"].isna().equals(native)


def test_a_call_that_does_not_count_comes_first(load):
    calls = []
    rate = load("env_speed").repeating(lambda: calls.append(1), 10, 0.001, turn=0)
    assert len(calls) >= 2 and rate > 0


def test_the_floor_draws_what_starts_and_copies_what_is_handed_over(load, monkeypatch):
    """Uniform actions end an Arithmetic episode at the first EOS, 1 token of 24, or after 4."""
    env_speed, n = load("env_speed"), 1000
    for task, length in (
        (VLMTask(), 1.0),
        (ArithmeticTask(max_tokens=4), sum((23 / 24) ** k for k in range(4))),
    ):
        error = 2 / math.sqrt(10_000)  # a length is from 1 to 4: its deviation is at most 1.5
        assert env_speed.episode_length(task) == pytest.approx(length, abs=error)
        parts, drawn, seen = env_speed.floor(task, n), [], []
        monkeypatch.setattr(task, "sample", lambda rng, m, split, to=drawn: to.append(m))
        monkeypatch.setattr(task, "observe", lambda s, to=seen: to.append(len(s["problem_id"])))
        for name, draws, observations in (
            (env_speed.DRAW, n / length, 0),
            (env_speed.NEXT, 0, n),
            (env_speed.COPY, 0, n + n / length),
            (env_speed.BOTH, n / length, n + n / length),
        ):
            drawn.clear()
            seen.clear()
            for _ in range(256):
                parts[name]()
            assert sum(drawn) / 256 == pytest.approx(draws, rel=0.01)
            assert sum(seen) / 256 == pytest.approx(observations, rel=0.01)


def test_train_speed(load, tmp_path):
    arguments = ["--tasks", "vlm", "--transitions", "256", "--seconds", "0"]
    arguments += ["--schedules", "full", "default"]
    table = run(load("train_speed"), "train_speed", tmp_path, *arguments)
    # GRPO, PPO with each critic, two floors under each schedule; DummyVecEnv under the default
    assert len(table) == 2 * 5 + 1
    assert table["rollout"].between(0, 1).all()
    assert table["ratio"].isna().equals(table["algorithm"] == "GRPO")


@pytest.mark.parametrize("key", ["vlm", "arithmetic"])
def test_the_floor_passes_as_many_observations_as_there_are(load, key):
    train_speed = load("train_speed")
    task, schedule = train_speed.TASKS[key], train_speed.SCHEDULES["middle"]
    model, watch = train_speed.make_grpo(task, schedule, 256, 0), train_speed.Stopwatch(0.0)
    model.learn(train_speed.FOR_EVER, watch, log_interval=None)
    assert len(watch.ends) == 2 and len(watch.begins) == 3  # one iteration after the first
    assert model._n_updates == 2 * 4 * 4
    rollout, seen = watch.rollout, []

    def policy(observations):
        part = observations["tokens"] if isinstance(observations, dict) else observations
        seen.append(len(part))
        return model.policy(observations)

    policy.zero_grad = model.policy.zero_grad
    for per_problem in (False, True):
        seen.clear()
        train_speed.passes(policy, rollout, schedule, per_problem, 0.0)(turn=0)
        met = len(rollout.rows[rollout.mask].unique())
        assert len(seen) == 2 * (1 + 4 * 4)  # an iteration that does not count, and one that does
        together, *batches = seen[: 1 + 4 * 4]
        assert together == (met if per_problem else int(rollout.mask.sum()))
        assert sum(batches) == 4 * together


def test_the_same_iteration_for_both_algorithms(load):
    train_speed = load("train_speed")
    task, schedule = train_speed.TASKS["vlm"], train_speed.SCHEDULES["middle"]
    grpo = train_speed.make_grpo(task, schedule, 256, 0)
    ppo = train_speed.make_ppo(task, schedule, 256, "separate", None, 0)
    assert grpo.env.num_envs == ppo.env.num_envs == 256
    assert grpo.batch_size == ppo.batch_size == 64
    assert grpo.n_epochs == ppo.n_epochs == 4
    actor = [p.shape for p in grpo.policy.parameters()]
    body = ppo.policy.pi_features_extractor.parameters()
    assert actor == [p.shape for p in (*body, *ppo.policy.action_net.parameters())]


def test_batched_seeds(load, tmp_path):
    arguments = ["--seeds", "2", "--problems", "4", "--schedules", "full", "--seconds", "0"]
    table = run(load("batched_seeds"), "batched_seeds", tmp_path, *arguments)
    assert table["how"].tolist() == ["together", "one after another"]
    assert (table["rate"] > 0).all() and table["ratio"].isna().tolist() == [True, False]


def test_start_up_measures_up_to_the_mark(load):
    start_up = load("start_up")
    process = start_up.fresh("print('before')", turn=0)
    assert 0 < process.resident <= process.peak
    with pytest.raises(RuntimeError, match="no_such_module"):
        start_up.fresh("import no_such_module", turn=0)


@pytest.mark.slow
def test_start_up(load, tmp_path):
    arguments = ["--envs", "vlm", "--algos", "grpo"]
    table = run(load("start_up"), "start_up", tmp_path, *arguments)
    assert table["process"].tolist()[-2:] == ["start of a run, vlm", "whole run, vlm, grpo"]
    assert (table["resident"] <= table["peak"]).all()
