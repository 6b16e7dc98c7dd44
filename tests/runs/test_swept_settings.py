"""A sweep over a setting that not every algorithm of the sweep has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.configs import config

import grpo_bench.run
from grpo_bench.config import RunConfig
from grpo_bench.records import plan
from grpo_bench.runs import processes, sweep
from grpo_bench.runs.job import check
from grpo_bench.runs.outcome import Outcome
from grpo_bench.runs.processes import run_names


@pytest.fixture
def sweep_of(tmp_path, monkeypatch):
    """The configurations that ``python -m grpo_bench.run -m`` with these words would run."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "start_server", lambda threads: None)
    seen: list[RunConfig] = []

    def run_all(configs, n_jobs):
        seen.extend(configs)
        nothing = ("ok", "", 0.0, 0.0, 0.0, 0.0, [])
        return [Outcome(Path(), one, one.name, *nothing) for one in configs]

    monkeypatch.setattr(sweep, "run_all", run_all)

    def compose(*words: str) -> list[RunConfig]:
        command = ["run", "-m", "env=arithmetic", "budget=smoke", "tuned=none", *words]
        monkeypatch.setattr(sys, "argv", command)
        grpo_bench.run.main()
        return seen

    return compose


def settings(configs, name):
    return [(one.algo.name, one.algo.options.get(name)) for one in configs]


def test_an_option_of_one_algorithm_alone(sweep_of):
    configs = sweep_of("algo=grpo,ppo", "algo.group_size=2,4")
    assert settings(configs, "group_size") == [
        *(("grpo", 2), ("grpo", 4), ("ppo", None), ("ppo", None))
    ]
    folders = {plan(Path("results"), one.plain) for one in configs}
    assert len(folders) == 3, "the two of PPO are one run"


def test_an_algorithm_of_ones_own_beside_another(sweep_of):
    configs = sweep_of("algo=class,ppo", "algo.id=grpo_bench:GRPO", "algo.group_size=4")
    found = [(one.algo.name, one.algo.options.get("id")) for one in configs]
    assert found == [("GRPO", "grpo_bench:GRPO"), ("ppo", None)]
    assert settings(configs, "group_size") == [("GRPO", 4), ("ppo", None)]


def test_each_algorithm_keeps_what_it_has(sweep_of):
    configs = sweep_of("algo=grpo,ppo,a2c", "algo.clip_range=0.1,0.3", "algo.vf_coef=0.2,0.5")
    found = {
        (one.algo.name, one.algo.options.get("clip_range"), one.algo.options.get("vf_coef"))
        for one in configs
    }
    assert found == {
        *(("grpo", clip, None) for clip in (0.1, 0.3)),
        *(("ppo", clip, vf) for clip in (0.1, 0.3) for vf in (0.2, 0.5)),
        *(("a2c", None, vf) for vf in (0.2, 0.5)),
    }


def test_options_that_the_file_leaves_out_need_no_sign(sweep_of):
    for one, clip in zip(sweep_of("algo=grpo", "algo.clip_dual=2,3"), (2, 3), strict=True):
        assert one.algo.options["clip_dual"] == clip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algo=ppo,a2c", "algo.clip_dual=2,3"], "has no setting algo.clip_dual"),
        (["algo=grpo", "algo.nothing=2,3"], "algo.nothing"),
    ],
)
def test_what_no_algorithm_has_is_an_error(sweep_of, words, line):
    with pytest.raises((SystemExit, ValueError), match=line):
        list(map(check, sweep_of(*words)))


def test_the_lines_of_a_sweep_name_what_differs(tmp_path):
    def names(*several):
        return [*run_names({Path(str(i)): one for i, one in enumerate(several)}).values()]

    clips = [config(tmp_path, f"algo.clip_range={clip}", "seed=1") for clip in (0.1, 0.3)]
    assert names(*clips, config(tmp_path, "algo=ppo", "seed=1")) == [
        "vlm grpo (clip_range=0.1) seed=1",
        "vlm grpo (clip_range=0.3) seed=1",
        "vlm ppo seed=1",
    ]
    both = [config(tmp_path, f"seed={seed}", "env=format") for seed in (1, 2)]
    assert names(*both) == ["format grpo seed=1", "format grpo seed=2"]
