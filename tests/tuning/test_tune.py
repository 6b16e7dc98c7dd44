"""Equal tuning: which settings are tried, which win, and that no reported problem is touched."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grpo_bench.config import CONF, RunConfig, composed
from grpo_bench.records.load import load_results
from grpo_bench.runs.job import check
from grpo_bench.tune import all_scores, check_settings
from grpo_bench.tuning.result import table, tuned_file
from grpo_bench.tuning.search import fitting
from grpo_bench.tuning.trials import Trial, best, finalists, propose, value_at

PARAMETERS = {
    "learning_rate": {"factor": [0.25, 4]},
    "clip_range": {"choices": [0.1, 0.2, 0.3]},
    "group_size": {"choices": [4, 8, 16]},
}
SETTINGS = OmegaConf.create(
    {"trials": 3, "finalists": 2, "seeds": [1001, 1002], "parameters": PARAMETERS}
    | {"algos": ["grpo"], "spaces": {"grpo": ["learning_rate", "clip_range"]}}
    | {"envs": ["vlm"], "overrides": [], "n_jobs": None}
)


def trial(number: int, *scores: float) -> Trial:
    """A trial of grpo on vlm with these scores, from seed 1001 on."""
    settings = {"clip_range": number / 10} if number else {}
    return Trial("vlm", "grpo", number, settings, scores=dict(enumerate(scores, 1001)))


# -- what is tried --------------------------------------------------------------------------------


def test_a_factor_is_even_on_a_logarithmic_scale_and_choices_are_equally_wide() -> None:
    """0.25 to 4 times 0.01: half-way is 0.01 itself, a quarter 0.0025 * 16^(1/4) = 0.005."""
    assert value_at(PARAMETERS["learning_rate"], 0.0, 0.01) == 0.0025
    assert value_at(PARAMETERS["learning_rate"], 0.25, 0.01) == 0.005
    assert value_at(PARAMETERS["learning_rate"], 0.5, 0.01) == 0.01
    chosen = [value_at(PARAMETERS["group_size"], u, math.nan) for u in (0.0, 0.33, 0.34, 0.99)]
    assert chosen == [4, 4, 8, 16]


def test_algorithms_try_the_same_values_of_what_they_share() -> None:
    one = propose(PARAMETERS, ["learning_rate", "group_size"], {"learning_rate": 0.01}, 9)
    two = propose(PARAMETERS, ["clip_range", "learning_rate"], {"learning_rate": 0.01}, 9)
    assert one[0] == two[0] == {}  # as its file says
    assert len(one) == len(two) == 9
    assert [t["learning_rate"] for t in one[1:]] == [t["learning_rate"] for t in two[1:]]
    assert {*one[1]} == {"learning_rate", "group_size"} and {*two[1]} == {
        "learning_rate",
        "clip_range",
    }
    rates = sorted(t["learning_rate"] for t in one[1:])
    assert len(set(rates)) == 8 and 0.0025 <= rates[0] < 0.01 < rates[-1] < 0.04
    more = propose(PARAMETERS, ["learning_rate"], {"learning_rate": 0.01}, 20)
    assert [t["learning_rate"] for t in more[1:9]] == [t["learning_rate"] for t in one[1:]]


# -- what wins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "fit"),
    [
        (["env=vlm"], [4, 8, 16]),
        (["env=cartpole"], [4, 8]),
        (["env=cartpole", "env.train.episodes=32"], [4, 8, 16]),
        (["env=vlm", "algo.minibatches=4", "env.train.episodes=48"], [4]),
    ],
)
def test_group_sizes_fill_whole_minibatches(words: list[str], fit: list[int]) -> None:
    base = composed("algo=grpo", "tuned=none", *words)
    found = fitting(PARAMETERS, base)
    assert found["group_size"]["choices"] == fit
    assert found["clip_range"] == PARAMETERS["clip_range"]
    for size in fit:
        check(base.changed({"algo.group_size": size}))


def test_no_group_size_that_fits_is_an_error() -> None:
    base = composed("algo=grpo", "tuned=none", "env=cartpole", "env.train.episodes=6")
    with pytest.raises(
        ValueError, match=r"group_size=\[4, 8, 16\]: expected some that divide the 3"
    ):
        fitting(PARAMETERS, base)


def test_the_first_and_the_best_others_are_finalists() -> None:
    trials = [trial(0, 0.1), trial(1, 0.5), trial(2, math.nan), trial(3, 0.7), trial(4, 0.5)]
    assert [t.number for t in finalists(trials, 3)] == [0, 3, 1]
    assert [t.number for t in finalists(trials, 1)] == [0]
    assert [t.number for t in finalists(trials, 5)] == [0, 3, 1, 4, 2]  # one that failed comes last


def test_the_mean_over_all_seeds_decides_among_those_that_have_them() -> None:
    trials = [trial(0, 0.4, 0.6), trial(1, 0.9), trial(2, 0.7, 0.2), trial(3, 0.8, math.nan)]
    assert best(trials).number == 0  # 0.5 beats 0.45; 0.9 is of one seed; the last failed
    assert best([trial(0, 0.5), trial(1, 0.5)]).number == 0
    assert trial(3, 0.8, math.nan).score == -math.inf


def test_what_is_written_is_what_won(tmp_path: Path) -> None:
    text = tuned_file([trial(0, 0.4, 0.6), trial(1, 0.9), trial(2, 0.7, 0.8)], SETTINGS)
    assert "Trial 2 of 3: 0.750 on the tuning split, as the algorithm's file says 0.500" in text
    assert "trials=3 finalists=2 seeds=[1001,1002]" in text
    assert text.startswith("# @package _global_\n")
    assert OmegaConf.to_container(OmegaConf.create(text)) == {"algo": {"clip_range": 0.2}}
    unchanged = tuned_file([trial(0, 0.9), trial(1, 0.1)], SETTINGS)
    assert OmegaConf.to_container(OmegaConf.create(unchanged)) == {"algo": {}}


def test_the_table_has_every_trial() -> None:
    rows = table([[trial(0, 0.4, 0.6), trial(1, 0.9), trial(2, 0.7, 0.8)]])
    assert rows["settings"].tolist() == ["", "clip_range=0.1", "clip_range=0.2"]
    assert rows["first_seed"].tolist() == [0.4, 0.9, 0.7]
    assert rows["chosen"].tolist() == ["", "", "chosen"]
    assert rows["mean"].round(9).tolist()[::2] == [0.5, 0.75] and math.isnan(rows["mean"][1])


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 0}, "trials=0: expected a whole number of at least 1"),
        ({"finalists": 4}, "finalists=4: expected at most trials=3"),
        ({"trials": True}, "trials=True: expected a whole number of at least 1"),
        ({"n_jobs": 0}, "n_jobs=0: expected a whole number of at least 1"),
        ({"seeds": []}, r"seeds=\[\]: expected a list such as \[1001,1002\]"),
        ({"seeds": 5}, r"seeds=5: expected a list such as \[1001,1002\]"),
        ({"seeds": ["a"]}, r"seeds=\['a'\]: expected whole numbers, 0 or more"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]: expected each once"),
        ({"algos": "grpo"}, r"algos=grpo: expected a list such as \[grpo,ppo\]"),
        ({"algos": []}, r"algos=\[\]: expected a list such as \[grpo,ppo\]"),
        ({"algos": ["grpo", "grpo"]}, "expected each once"),
        ({"envs": "vlm"}, r"envs=vlm: expected a list such as \[vlm\]"),
        ({"envs": ["nope"]}, "envs=nope: expected one of .*arithmetic, .*vlm"),
        ({"overrides": "a=1"}, "overrides=a=1: expected a list such as"),
        ({"parameters": {"clip_range": {"choices": []}}}, "parameters.clip_range=.*one or more"),
        ({"parameters": {"clip_range": {"factor": [1, 2]}}}, "parameters.clip_range=.*expected"),
        ({"parameters": {"learning_rate": {"factor": [4]}}}, "expected factor: .low, high"),
        ({"parameters": {"learning_rate": {"factor": [4, 0.5]}}}, "0 < low < high"),
        ({"algos": ["a2c"]}, "algos=a2c: no space to tune it in, expected one of grpo"),
        ({"spaces": {"grpo": ["lr"]}}, "spaces.grpo: lr not among the parameters, expected some"),
    ],
)
def test_bad_settings_are_named(change: dict[str, object], message: str) -> None:
    settings = OmegaConf.merge(SETTINGS, {k: v for k, v in change.items() if k != "spaces"})
    if "spaces" in change:
        settings.spaces = change["spaces"]
    with pytest.raises(ValueError, match=message):
        check_settings(settings)
    check_settings(SETTINGS)


def test_an_algorithm_whose_trials_all_failed_has_nothing_to_be_written() -> None:
    """Not even that it is best as its file says; the other one's trials are all right."""
    trials = [[trial(0), trial(1)], [trial(0), trial(1)]]

    def score(configs: list[RunConfig]) -> list[float]:
        return [math.nan if i < 2 else 0.5 for i in range(len(configs))]

    base = composed()
    for some in trials:
        for each in some:
            each.base = base
    with pytest.raises(ValueError, match="vlm grpo: no trial has ended ok on all its seeds"):
        all_scores(trials, OmegaConf.create({"seeds": [1001], "finalists": 1}), score)


# -- a whole tuning -------------------------------------------------------------------------------


def tune(folder: Path) -> str:
    """Two trials of two algorithms on two seeds, of a few iterations each."""
    short = 'overrides=["budget.transitions=2048"]'
    line = [sys.executable, "-m", "grpo_bench.tune", "envs=[vlm]", "algos=[grpo,ppo_shared]"]
    line += ["trials=2", "finalists=1", "seeds=[1001,1002]", short, "results=runs", "out=tuned"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_whole_tuning(tmp_path: Path) -> None:
    said = tune(tmp_path)
    assert "2 trials of each of 2, then 1 finalists on 1 more seeds: 6 runs" in said
    assert "On seed 1001: 4 runs" in said and "On seed 1002: 2 runs" in said
    results = load_results(tmp_path / "runs")
    # the same for both: 2 trials on the first seed, 1 finalist on the second
    counts = results.runs.groupby(["algo", "seed"]).size().to_dict()
    assert counts == {(a, s): n for a in ("grpo", "ppo_shared") for s, n in ((1001, 2), (1002, 1))}
    # nothing is looked at that reports look at
    assert set(results.evaluations["split"]) == {"tuning"}
    assert set(results.evaluations["problem_id"]).isdisjoint(reported_problems())
    assert (results.runs["budget"] == "tuning").all()
    for algo in ("grpo", "ppo_shared"):
        written = OmegaConf.load(tmp_path / "tuned" / "vlm" / f"{algo}.yaml")
        assert set(OmegaConf.to_container(written)) == {"algo"}  # type: ignore[arg-type]
    tune(tmp_path)  # everything is there
    assert load_results(tmp_path / "runs").runs.equals(results.runs)


def reported_problems() -> set[int]:
    """The problems of GRPO-VLM on which reported runs learn or are judged."""
    from grpo_envs.vlm import VLMTask

    return {int(i) for s in ("train", "validation", "test") for i in VLMTask().problem_ids(s)}


# -- what was found -------------------------------------------------------------------------------

FOUND = sorted(path for path in CONF.glob("tuned/*/*.yaml"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_is_taken_up(path: Path) -> None:
    """By every run of that algorithm on that environment, unless it says otherwise."""
    found = OmegaConf.to_container(OmegaConf.load(path))["algo"]  # type: ignore[index,call-overload]
    chosen = [f"env={path.parent.name}", f"algo={path.stem}"]
    tuned, plain = (composed(*chosen, *more).algo.keywords() for more in ([], ["tuned=none"]))
    assert {name: tuned[name] for name in found} == found
    assert {k: v for k, v in tuned.items() if k not in found} == {
        k: v for k, v in plain.items() if k not in found
    }
    space = OmegaConf.load(CONF / "tune.yaml").spaces[path.stem]
    assert set(found) <= set(space)
