"""The command: one run, a sweep, what it leaves behind and how it fails."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from stable_baselines3 import PPO

from grpo_bench import GRPO
from grpo_bench.config import CONF
from grpo_bench.job import check, execute, make_model, task_of, warm_up
from grpo_bench.records import read_manifest
from grpo_bench.records.load import load_results
from grpo_bench.sweep import in_turns, outcome

ENVS = sorted(path.stem for path in (CONF / "env").glob("*.yaml"))
ALGOS = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
SHORT_WARMUP = ["env.warmup.steps=2", "env.warmup.batch_size=8"]


def config(results: Path, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", ["budget=smoke", f"results={results}", *overrides])
    plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    return plain


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it, in some folder that is not the checkout."""
    line = [sys.executable, "-m", "grpo_bench.run", *arguments, "budget=smoke", "results=runs"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_every_environment_goes_with_every_algorithm(tmp_path: Path) -> None:
    for env, algo in product(ENVS, ALGOS):
        check(config(tmp_path, f"env={env}", f"algo={algo}"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo.group_size=7", "group_size=7 on 2048 sub-environments"),
        ("algo.group_size=1", "group_size=1: expected a whole number, at least 2"),
        ("algo.baseline=median", "baseline='median': expected one of group"),
        ("algo.kl=k9", "kl='k9'"),
        ("env.train.learning_rate=0", "env.train.learning_rate=0: expected more than 0"),
        ("budget.transitions=-5", "budget.transitions=-5: expected more than 0"),
        ("env.kwargs.source=imagenet", "source='imagenet'"),
        ("env.network.body=cnn", "network.body='cnn': expected one of mlp, transformer"),
        ("+algo.lambda_=1", "lambda_"),
        ("seed=-1", "seed=-1"),
        ("threads=0", "threads=0"),
    ],
)
def test_bad_configurations_are_named(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        check(config(tmp_path, override))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_critic_that_there_is_not(tmp_path: Path, critic: str) -> None:
    check(config(tmp_path, "algo=ppo", f"algo.critic={critic}"))
    with pytest.raises(ValueError, match="critic='none': expected one of separate, shared"):
        check(config(tmp_path, "algo=ppo", "algo.critic=none"))


def test_a_run_and_its_record(tmp_path: Path) -> None:
    settings = config(tmp_path, "algo=ppo", "seed=3")
    folder = execute(settings)
    manifest = read_manifest(folder)
    assert manifest.status == "ok"
    assert manifest.config == settings
    assert set(manifest.seeds) == {"policy", "environment"}
    results = load_results(tmp_path)
    metrics = results.metrics.groupby("metric")["value"].last()
    # 4 iterations of 2,048 transitions, each 4 epochs of 4 minibatches
    assert results.metrics["transitions"].max() == 8192
    assert results.metrics["gradient_steps"].max() == 4 * 4 * 4
    # actor 128-64-64 and 64 x 4; the critic is the same body and 64 x 1; float32
    body = 128 * 64 + 64 + 64 * 64 + 64
    assert metrics["memory/policy_bytes"] == 4 * (body + 64 * 4 + 4)
    assert metrics["memory/critic_bytes"] == 4 * (body + 64 + 1)
    assert metrics["memory/gradient_bytes"] == (
        metrics["memory/policy_bytes"] + metrics["memory/critic_bytes"]
    )
    assert metrics["memory/optimizer_bytes"] >= 2 * metrics["memory/gradient_bytes"]
    assert "memory/reference_bytes" not in metrics
    assert metrics["task/random_score"] == -0.125
    # before training, half-way, at the end on both splits; every problem once
    counts = results.evaluations.groupby(["split", "transitions"], observed=True).size()
    assert counts.to_dict() == {
        ("validation", 0): 3828,
        ("validation", 4096): 3828,
        ("validation", 8192): 3828,
        ("test", 8192): 9673,
    }
    last = results.evaluations.query("split == 'validation' and transitions == 8192")
    assert metrics["eval/validation/success"] == pytest.approx(last["success"].mean())
    loaded = PPO.load(folder / "checkpoint" / "model.zip")
    assert loaded.num_timesteps == 8192
    # a second call leaves it alone
    before = (folder / "manifest.json").read_bytes()
    assert execute(settings) == folder
    assert (folder / "manifest.json").read_bytes() == before
    assert outcome(folder, settings).score == metrics["eval/validation/success"]


@pytest.mark.parametrize("algo", ["grpo", "grpo_paper", "ppo_shared"])
@pytest.mark.parametrize("env", ["vlm", "arithmetic"])
def test_one_seed_gives_one_record_to_the_last_bit(tmp_path: Path, env: str, algo: str) -> None:
    overrides = [f"env={env}", f"algo={algo}", *(SHORT_WARMUP if env == "arithmetic" else [])]
    first, second, other = (
        execute(config(tmp_path / name, *overrides, f"seed={seed}"))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert (first / "eval.parquet").read_bytes() == (second / "eval.parquet").read_bytes()
    assert (first / "eval.parquet").read_bytes() != (other / "eval.parquet").read_bytes()

    def without_clocks(folder: Path) -> pd.DataFrame:
        metrics = pd.read_parquet(folder / "metrics.parquet")
        measured = metrics["metric"].str.match(r"(time|memory)/")
        return metrics[~measured].drop(columns=["seconds", "peak_bytes"]).reset_index(drop=True)

    pd.testing.assert_frame_equal(without_clocks(first), without_clocks(second), check_exact=True)


def test_both_algorithms_start_from_the_same_warmed_up_actor(tmp_path: Path) -> None:
    told: list[float] = []
    policies = []
    for algo in ("grpo", "ppo"):
        settings = config(tmp_path, "env=format", f"algo={algo}", *SHORT_WARMUP)
        model = make_model(settings, "cpu")
        warm_up(model, task_of(settings["env"]), settings, lambda *news: told.append(news[1]))
        policies.append(model.policy)
    grpo, ppo = policies
    for name, weights in grpo.features_extractor.state_dict().items():
        assert torch.equal(weights, ppo.pi_features_extractor.state_dict()[name])
        assert torch.equal(weights, ppo.vf_features_extractor.state_dict()[name])
    assert torch.equal(grpo.action_net.weight, ppo.action_net.weight)
    assert told == [0.5, 1.0]  # made once: the second run finds it
    assert len(list((tmp_path / "warmup").glob("*.pt"))) == 1


def test_the_warm_up_learns_what_it_is_shown(tmp_path: Path) -> None:
    """Without noise, 150 steps already give most first digits of the training sums."""
    settings = config(
        tmp_path, "env=arithmetic", "env.warmup.steps=150", "env.warmup.noise=0", "seed=0"
    )
    model = make_model(settings, "cpu")
    task = task_of(settings["env"])
    warm_up(model, task, settings, lambda *news: None)
    assert isinstance(model, GRPO)
    ids = task.sample(np.random.default_rng(0), 500, "train")
    state = task.start(ids)
    actions, _ = model.predict(task.observe(state), deterministic=True)
    tokens, _ = task.demonstrations(ids, np.random.default_rng(0), 0.0)  # type: ignore[attr-defined]
    assert (actions == tokens[np.arange(500), state["position"]]).mean() > 0.8


def test_runs_that_differ_in_their_algorithm_take_turns() -> None:
    configs = [
        {"env": env, "algo": algo, "seed": seed}
        for env, algo, seed in product("ab", ("ppo", "grpo"), (1, 2))
    ]
    order = [tuple(configs[i].values()) for i in in_turns(configs)]
    assert order == [
        (env, algo, seed) for env, seed, algo in product("ab", (1, 2), ("ppo", "grpo"))
    ]


def test_a_sweep_from_another_folder(tmp_path: Path) -> None:
    arguments = ["-m", "env=vlm", "seed=1,2", "budget.transitions=2048", "budget.evaluations=1"]
    done = command(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    for line in ("[4/4]", "vlm grpo seed=2:", "Accuracy", "Speed", "Memory", "2 / 2"):
        assert line in done.stdout
    runs = tmp_path / "runs"
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert {path.suffix for path in (runs / "tables").iterdir()} == {".md", ".csv", ".tex"}
    tables = {path: path.read_bytes() for path in (runs / "tables").iterdir()}
    again = command(tmp_path, *arguments)
    assert again.stdout.count("already done") == 4
    assert {path: path.read_bytes() for path in (runs / "tables").iterdir()} == tables


def test_a_sweep_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    done = command(tmp_path, "-m", "env=vlm", "algo=grpo", "algo.group_size=8,6", "seed=1")
    assert done.returncode != 0
    assert "group_size=6 on 2048 sub-environments" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").glob("vlm"))


def test_a_run_out_of_time_stays_in_the_denominator(tmp_path: Path) -> None:
    arguments = ["-m", "env=vlm", "algo=grpo", "seed=1", "budget.transitions=100_000_000"]
    done = command(tmp_path, *arguments, "timeout_s=4")
    assert done.returncode == 1
    (folder,) = (tmp_path / "runs" / "vlm" / "grpo").iterdir()
    assert read_manifest(folder).status == "timeout"
    assert "timeout_s=4" in (folder / "error.txt").read_text()
    assert "0 / 1" in done.stdout


def test_a_single_run_says_how_it_went(tmp_path: Path) -> None:
    done = command(tmp_path, "algo=grpo_tutorial", "seed=5")
    assert done.returncode == 0, done.stderr
    assert "vlm grpo_tutorial seed=5:" in done.stdout
    wrong = command(tmp_path, "algo.group_size=7")
    assert wrong.returncode == 1
    assert "group_size=7" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    unknown = command(tmp_path, "env=chess")
    assert unknown.returncode == 1
    assert "vlm_synthetic" in unknown.stderr  # what there is
