"""Each benchmark runs at a tiny size and gives tables that make sense. No test asserts a time."""

import math
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from grpo_envs.tokens.arithmetic import ArithmeticTask
from grpo_envs.vlm import VLMTask

TURNS = ["--repeats", "2"]


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
    # 2, 4 and 8: median 4, geometric mean 4; logs ln 2, ln 4 and ln 8, s = ln 2,
    # t(2) at 97.5 % = 4.302653, half width 4.302653 * ln 2 / sqrt 3 = 1.721873
    found = compare.ratio([2.0, 8.0, 4.0], [1.0, 1.0, 1.0])
    assert found["ratio_median"] == 4.0
    assert (found["ratio_median_low"], found["ratio_median_high"]) == (2.0, 8.0)
    assert found["ratio"] == pytest.approx(4.0)
    assert found["ratio_low"] == pytest.approx(4.0 * math.exp(-1.721873), rel=1e-4)
    assert found["ratio_high"] == pytest.approx(4.0 * math.exp(1.721873), rel=1e-4)


def test_subjects_take_turns(load):
    order = []
    subjects = {name: lambda turn, name=name: order.append((turn, name)) or turn for name in "AB"}
    measured = load("_compare").interleaved(subjects, 3)
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
    target = verdict("this", found, **limit)
    assert target.verdict == word and str(target).startswith(f"Target {word}: this 3.00")
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


def test_train_speed(load, tmp_path, monkeypatch):
    train_speed, training = load("train_speed"), load("_training")

    def small(env_id, policy, n_envs, seed):  # an iteration as it comes takes seconds
        schedule = training.SCHEDULES["full"]
        return training.make_ppo(training.TASKS["vlm"], schedule, 64, "separate", n_envs, seed)

    monkeypatch.setattr(train_speed, "ppo_as_it_comes", small)
    monkeypatch.setitem(training.SCHEDULES, "default", training.Schedule("shorter", 2, 2))
    arguments = ["--tasks", "vlm", "--transitions", "256", "--seconds", "0"]
    arguments += ["--schedules", "full", "default"]
    table = run(train_speed, "train_speed", tmp_path, *arguments)
    # GRPO, PPO with each critic on each vectorisation, two floors; PPO as it comes under its own
    assert len(table) == 2 * 7 + 1
    parts = table[["rollout", "buffer", "update"]]
    assert parts.stack().between(0, 1).all()
    assert np.allclose(parts.sum(axis=1), 1)
    bare = table["algorithm"].str.startswith("bare passes")
    assert (table["buffer"] == 0).equals(bare)
    assert table["ratio"].isna().equals(table["algorithm"] == "GRPO")


def test_ppo_as_it_comes_has_the_settings_of_its_documentation(load):
    model = load("_training").ppo_as_it_comes("GRPO-VLM-v0", "MlpPolicy", 2, 0)
    assert type(model.env).__name__ == "DummyVecEnv" and model.env.num_envs == 2
    assert (model.n_steps, model.batch_size, model.n_epochs) == (2048, 64, 10)
    assert model.learning_rate == 3e-4 and model.gamma == 0.99


@pytest.mark.parametrize("key", ["vlm", "arithmetic"])
def test_the_floor_passes_as_many_observations_as_there_are(load, key):
    training, train_speed = load("_training"), load("train_speed")
    task, schedule = training.TASKS[key], training.SCHEDULES["middle"]
    model, watch = training.make_grpo(task, schedule, 256, 0), training.Stopwatch(0.0)
    with training.buffer_timed(watch.phases):
        model.learn(training.FOR_EVER, watch, log_interval=None)
    assert len(watch.begins) == 3  # one iteration after the first
    assert watch.whole.keys() == {"rollout", "buffer", "update"}
    assert model._n_updates == 2 * 4 * 4
    rollout, seen = watch.rollout, []

    def note(_, arguments):
        (observations,) = arguments
        part = observations["tokens"] if isinstance(observations, dict) else observations
        seen.append(len(part))

    model.policy.register_forward_pre_hook(note)
    for per_problem in (False, True):
        seen.clear()
        train_speed.passes(model.policy, rollout, schedule, per_problem, 0.0)(turn=0)
        met = len(rollout.rows[rollout.mask].unique())
        assert len(seen) == 2 * (1 + 4 * 4)  # an iteration that does not count, and one that does
        together, *batches = seen[: 1 + 4 * 4]
        assert together == (met if per_problem else int(rollout.mask.sum()))
        assert sum(batches) == 4 * together


@pytest.mark.parametrize("key", ["vlm", "arithmetic"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_buffer_is_timed_where_it_works_and_nowhere_afterwards(load, key, algorithm):
    training = load("_training")
    task, schedule = training.TASKS[key], training.SCHEDULES["middle"]
    model, phases = training.make_grpo(task, schedule, 256, 0), training.Phases()
    if algorithm == "ppo":
        model = training.make_ppo(task, schedule, 256, "separate", None, 0)
    with training.buffer_timed(phases):
        model.learn(256)
    timed = phases.seconds["buffer"]
    model.learn(256)
    assert phases.seconds == {"buffer": timed} and timed > 0


def test_the_same_iteration_for_both_algorithms(load):
    training = load("_training")
    task, schedule = training.TASKS["vlm"], training.SCHEDULES["middle"]
    grpo = training.make_grpo(task, schedule, 256, 0)
    ppo = training.make_ppo(task, schedule, 256, "separate", None, 0)
    assert grpo.env.num_envs == ppo.env.num_envs == 256
    assert grpo.batch_size == ppo.batch_size == 64
    assert grpo.n_epochs == ppo.n_epochs == 4
    actor = [p.shape for p in grpo.policy.parameters()]
    body = ppo.policy.pi_features_extractor.parameters()
    assert actor == [p.shape for p in (*body, *ppo.policy.action_net.parameters())]


def test_accuracy_is_reached_on_the_line_between_two_evaluations(load):
    module = load("time_to_accuracy")
    curve = [module.Point(0, 0, 0.25), module.Point(2, 100, 0.45)]
    curve += [module.Point(4, 200, 0.4), module.Point(8, 600, 0.6)]
    # 0.35 half-way up the first line; 0.5 half-way up the last, though it had been at 0.45
    assert module.reached(curve, 0.35)[:2] == pytest.approx((1.0, 50.0))
    assert module.reached(curve, 0.45)[:2] == pytest.approx((2.0, 100.0))
    assert module.reached(curve, 0.5)[:2] == pytest.approx((6.0, 400.0))
    assert module.reached(curve, 0.61).seconds == math.inf


def test_a_run_that_comes_nowhere_makes_a_bound_or_a_miss(load):
    module = load("time_to_accuracy")
    quick = [module.Point(0, 0, 0.2), module.Point(2, 10, 0.8)]  # 0.5 after 1 s
    slow = [module.Point(0, 0, 0.2), module.Point(20, 10, 0.8)]  # 0.5 after 10 s
    stuck = [module.Point(0, 0, 0.2), module.Point(40, 10, 0.3)]

    def told(grpo, dummies):
        table = module.Table("", ("accuracy", "algorithm", "reached"), (), repeats=3)
        module.add_rows(table, 0.5, {module.GRPO_ROW: grpo, module.DUMMY_ROW: dummies})
        return table.rows, str(table.targets[0])

    (grpo, dummies), note = told([quick] * 3, [slow] * 3)
    assert grpo["reached"] == "3/3" and grpo["seconds"] == pytest.approx(1.0)
    assert dummies["seconds"] == pytest.approx(10.0)
    assert dummies["ratio"] == pytest.approx(10) and note.startswith("Target met")
    (_, dummies), note = told([quick] * 3, [stuck] * 3)
    assert (dummies["reached"], dummies["seconds"]) == ("0/3", math.inf)
    assert dummies["ratio"] == pytest.approx(40)
    assert note.endswith("not every run reached the accuracy")
    hardly = [module.Point(0, 0, 0.2), module.Point(3, 10, 0.3)]  # and only 3 s to do it in
    (_, dummies), note = told([quick] * 3, [hardly] * 3)
    assert dummies["ratio"] == pytest.approx(3) and note.startswith("Target open")
    (_, dummies), note = told([quick, quick, stuck], [slow] * 3)
    assert "ratio" not in dummies and note.startswith("Target missed")
    assert module.seconds_or_not(math.inf) == "not reached"


def test_the_clock_stands_still_while_the_policy_is_evaluated(load, monkeypatch):
    module = load("time_to_accuracy")
    now, calls = [0.0], []

    def evaluate(*_):
        now[0] += 100.0
        calls.append(now[0])
        return {"success": np.array([len(calls) > 2, True])}

    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    curve = module.Curve(enough=1.0, limit=50.0, every=2.0)
    curve.model, curve.num_timesteps = None, 0
    curve._on_training_start()
    for _ in range(5):  # iterations of 1 s: evaluations at 0, 2 and 4 s
        curve._on_rollout_start()
        if not curve._on_step():
            break
        now[0] += 1.0
    assert [point.seconds for point in curve.points] == [0.0, 2.0, 4.0]
    assert [point.accuracy for point in curve.points] == [0.5, 0.5, 1.0]


def test_time_to_accuracy(load, tmp_path):
    arguments = ["--algorithms", "pairs", "grpo", "--accuracies", "0.35", "0.3"]
    arguments += ["--limit", "600", "--every", "0.01"]  # a run ends at 0.35, long before
    table = run(load("time_to_accuracy"), "time_to_accuracy", tmp_path, *arguments)
    assert table["accuracy"].tolist() == [0.3, 0.3, 0.35, 0.35]
    assert table["reached"].eq("2/2").all()
    first, second = table[:2], table[2:].reset_index()
    assert (first["seconds"] < second["seconds"]).all()
    assert table["ratio"].isna().equals(table["algorithm"] == "GRPO")


@pytest.mark.parametrize("accuracy", ["0.25", "1.5", "high"])
def test_an_accuracy_that_means_nothing_is_refused(load, capsys, accuracy):
    with pytest.raises(SystemExit):
        load("time_to_accuracy").main(["--accuracies", accuracy])
    assert f"{accuracy!r}: expected a share from 0.3 to 1" in capsys.readouterr().err


def test_learning_rates_of_configured_runs_fall_over_the_full_budget(load):
    module = load("time_to_accuracy")
    for key, group_size in (("grpo", 8), ("pairs", 2)):
        _, make = module.ALGORITHMS[key]
        model, transitions = make(3)
        assert transitions == 8_000_000 and model.group_size == group_size
        assert model.baseline == ("group" if key == "grpo" else "batch")


def test_start_up_measures_up_to_the_mark(load):
    start_up = load("start_up")
    process = start_up.fresh("print('before')", turn=0)
    assert 0 < process.resident <= process.peak
    slow = "import time\ntime.sleep(0.2)"
    two = f"print({start_up.MARK!r}, flush=True)\n{slow}"
    assert start_up.fresh(two, turn=0, marks=2).seconds > 0.2
    asked = f"{slow}\nprint({start_up.ASKED!r}, flush=True)"
    before = time.perf_counter()
    seconds = start_up.fresh(asked, turn=0).seconds
    assert time.perf_counter() - before - seconds > 0.2  # what came before is left out
    with pytest.raises(RuntimeError, match="no_such_module"):
        start_up.fresh("import no_such_module", turn=0)


@pytest.mark.slow
def test_start_up(load, tmp_path):
    arguments = ["--envs", "vlm", "--algos", "grpo"]
    table = run(load("start_up"), "start_up", tmp_path, *arguments)
    assert table["process"].tolist()[-4:] == [
        *("start of a run, vlm", "whole run, vlm, grpo"),
        *("first run of a sweep, vlm", "next run of a sweep, vlm"),
    ]
    assert (table["resident"] <= table["peak"]).all()


@pytest.mark.slow
@pytest.mark.skipif(not (Path(__file__).parents[2] / ".git").exists(), reason="needs a checkout")
def test_comparison_with_another_commit(load, tmp_path):
    comparison = load("comparison")
    sweep = ["env=vlm", "algo=grpo,ppo", "seed=1,2", "budget=smoke"]
    table = run(comparison, "comparison", tmp_path, "--before", "HEAD", "--sweep", *sweep)
    assert table["code"].tolist() == ["HEAD", "this tree"]
    assert table["training"].between(0, 1).all()
    results = pd.read_csv(tmp_path / "comparison_results.csv")
    assert results["algo"].tolist() == ["grpo", "ppo"]
    assert results["before"].between(0.2, 0.6).all()  # of four answers, hardly trained


def test_comparison_of_results_by_hand(load):
    """0.2, 0.4, 0.6 before and 0.3, 0.6, 0.9 after: differences 0.1, 0.2, 0.3 with mean 0.2 and
    s = 0.1; t(2) at 97.5 % = 4.3027, half width 0.24842. A second cell has not changed."""
    comparison = load("comparison")
    index = pd.MultiIndex.from_product(
        [["vlm"], ["grpo", "ppo"], [1, 2, 3]], names=["env", "algo", "seed"]
    )
    before = comparison.Sweep(2.0, 0.5, pd.Series([0.2, 0.4, 0.6, 0.1, 0.1, 0.1], index))
    after = comparison.Sweep(1.0, 0.9, pd.Series([0.3, 0.6, 0.9, 0.1, 0.1, 0.1], index))
    sweeps = {"v1": [before], comparison.THIS: [after]}
    table = comparison.results_table("v1", sweeps, 1)
    first, second = table.rows
    assert first["difference"] == pytest.approx(0.2)
    assert first["difference_high"] == pytest.approx(0.2 + 0.24842, abs=1e-5)
    assert (first["before"], first["after"]) == (pytest.approx(0.4), pytest.approx(0.6))
    assert second["difference"] == second["difference_low"] == second["difference_high"] == 0
    assert table.footnotes == ["Intervals of the difference without 0: 0 of 2"]
    later = after._replace(success=before.success + 0.25)
    table = comparison.results_table("v1", {"v1": [before], comparison.THIS: [later]}, 1)
    assert table.footnotes == ["Intervals of the difference without 0: 2 of 2"]


def test_comparison_with_no_such_commit(load, tmp_path):
    with pytest.raises(SystemExit, match="--before nothing: expected a commit"):
        load("comparison").main(["--before", "nothing", "--out", str(tmp_path)])
