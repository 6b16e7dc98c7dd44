"""The command: one run, a sweep, what it leaves behind and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from stable_baselines3 import PPO
from support.configs import ALGOS, ENVS, SHORT_WARMUP, config, evaluate_few_problems

from grpo_bench import GRPO
from grpo_bench.records import read_manifest
from grpo_bench.records.load import load_results
from grpo_bench.runs.job import check, execute, warm_up
from grpo_bench.runs.models import make_model, task_of
from grpo_bench.runs.outcome import outcome


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it, in some folder that is not the checkout."""
    line = [sys.executable, "-m", "grpo_bench.run", *arguments, "budget=smoke", "results=runs"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("env", ENVS)
def test_every_algorithm_runs_on_every_environment(
    tmp_path: Path, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One iteration of each; the record is sane, and what does not exist is absent, not 0. All
    algorithms on one environment of each kind, one step and tokens, four on the others."""
    evaluate_few_problems(env, monkeypatch)
    algos = ALGOS if env in ("vlm", "arithmetic") else ["grpo", "grpo_paper", "ppo", "ppo_shared"]
    small = ["budget.transitions=1", "budget.evaluations=1"]
    if env in ("arithmetic", "format"):
        small += [*SHORT_WARMUP, "env.train.episodes=64", "env.train.n_steps=2"]
    for algo in algos:
        execute(config(tmp_path, f"env={env}", f"algo={algo}", *small))
    results = load_results(tmp_path)
    assert sorted(results.runs["algo"]) == algos
    assert set(results.runs["status"]) == {"ok"}
    assert np.isfinite(results.metrics["value"]).all()
    has = results.metrics.groupby("metric")["algo"].agg(set)
    presets = {algo: config(tmp_path, f"algo={algo}").algo for algo in algos}
    grpo = {algo for algo in algos if presets[algo].kind == "grpo"}
    with_kl = {algo for algo in grpo if presets[algo].options["kl"] != "none"}
    assert {"grpo_paper", "grpo_tutorial", "rloo"} & {*algos} <= with_kl < grpo
    assert has["memory/policy_bytes"] == has["memory/rollout_bytes"] == {*algos}
    assert has["rollout/zero_std_frac"] == has["rollout/group_std"] == grpo
    assert has["train/kl_ref_k3"] == has["memory/reference_bytes"] == with_kl
    assert has["train/value_loss"] == has["memory/critic_bytes"] == {*algos} - grpo
    assert has["train/clip_fraction"] == {*algos} - {"a2c", "trpo"}
    last = results.metrics.groupby(["algo", "metric"])["value"].last().unstack()
    for split in ("validation", "test"):
        assert last[f"eval/{split}/success"].between(0, 1).all()
    assert (last["memory/peak_bytes"] > last["memory/policy_bytes"]).all()
    assert last["memory/critic_bytes"]["ppo_shared"] < last["memory/critic_bytes"]["ppo"]
    assert ("time/warmup_seconds" in last) == (env in ("arithmetic", "format"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo.group_size=7", "episodes=2048: expected a multiple of group_size=7"),
        ("algo.minibatches=3", "algo.minibatches=3: expected a divisor of the 256 groups"),
        ("algo.group_size=1", "group_size=1: expected a whole number, at least 2"),
        ("algo.baseline=median", "baseline='median': expected one of group"),
        ("algo.kl=k9", "kl='k9'"),
        ("env.train.learning_rate=0", "learning_rate=0: expected a number, more than 0"),
        ("budget.transitions=-5", "budget.transitions=-5: expected a whole number, more than 0"),
        ("budget.transitions=1.5", "budget.transitions=1.5: expected a whole number"),
        ("budget.evaluations=0", "budget.evaluations=0: expected a whole number"),
        ("env.kwargs.source=imagenet", "source='imagenet'"),
        ("env.network.body=cnn", "network.body='cnn': expected one of mlp, transformer"),
        ("env.network.widths=64", r"widths=64: expected a list of whole numbers"),
        ("env.network.widths=[]", r"widths=\[\]: expected a list of whole numbers"),
        ("+env.network.width=3", "width"),
        ("env.policy=Policy", "Policy Policy unknown"),
        ("env.id=Chess-v0", "Chess"),
        ("env.kwargs=3", "env.kwargs=3: expected options of the environment"),
        ("env.warmup=3", "env.warmup=3: expected null, or"),
        ("+env.warmup.step=2", "env.warmup.steps: missing"),
        (
            "env.warmup={steps:2,batch_size:8,learning_rate:1,noise:0,seed:0}",
            "env.warmup with GRPO-VLM-v0 .* expected null, or a task of tokens",
        ),
        ("algo.kind=sac", "algo.kind='sac': expected one of grpo, ppo, a2c, trpo, maskable_ppo"),
        ("algo.clip_range=wide", "algo.clip_range=wide: expected a number"),
        ("+algo.lambda_=1", "lambda_"),
        ("+colour=blue", "colour=blue: unknown"),
        ("~threads", "threads: missing"),
        ("seed=-1", "seed=-1: expected a whole number, 0 or more"),
        ("seed=abc", "seed=abc: expected a whole number"),
        ("seed=1.5", "seed=1.5: expected a whole number"),
        ("seed=true", "seed=True: expected a whole number"),
        ("seed=???", "seed: missing, expected seed="),
        ("threads=0", "threads=0: expected a whole number"),
        ("threads=two", "threads=two: expected a whole number"),
        ("timeout_s=soon", "timeout_s=soon: expected a number of seconds"),
        ("device=tpu", "device=tpu: expected auto, cpu, cuda"),
        ("device=cuda:99", "device=cuda:99: expected auto, .* finds [0-9]+ cards"),
        ("results=", "results=: expected a folder"),
        ("algo.learning_rate=${nothing}", "Interpolation key 'nothing' not found"),
    ],
)
def test_bad_configurations_are_named(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(config(tmp_path, override))
    assert not list(tmp_path.iterdir())


def test_a_warm_up_needs_all_its_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"env.warmup.steps: missing, expected a value"):
        check(config(tmp_path, "env=format", "~env.warmup.steps"))


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    plain = config(tmp_path, "budget.transitions=20000", "env.network.widths=[64,32]")
    other = config(tmp_path, "budget.transitions=2e4", "env.network.widths=[64,32]")
    assert plain == other and type(other.budget.transitions) is int


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
    assert manifest.config == settings.plain
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
    # before training, after a quarter, at the end on both splits; every problem once
    counts = results.evaluations.groupby(["split", "transitions"], observed=True).size()
    assert counts.to_dict() == {
        ("validation", 0): 1942,
        ("validation", 2048): 1942,
        ("validation", 8192): 1942,
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
    assert outcome(folder, settings, settings.name).score == metrics["eval/validation/success"]


@pytest.mark.parametrize("algo", ["grpo", "grpo_paper", "ppo_shared"])
@pytest.mark.parametrize("env", ["vlm", "arithmetic"])
def test_one_seed_gives_one_record_to_the_last_bit(
    tmp_path: Path, env: str, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_few_problems(env, monkeypatch)
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
        warm_up(model, task_of(settings.env), settings, lambda *news: told.append(news[1]))
        policies.append(model.policy)
    grpo, ppo = policies
    for name, weights in grpo.features_extractor.state_dict().items():
        assert torch.equal(weights, ppo.pi_features_extractor.state_dict()[name])
        assert torch.equal(weights, ppo.vf_features_extractor.state_dict()[name])
    assert torch.equal(grpo.action_net.weight, ppo.action_net.weight)
    assert told == [0.0, 0.5, 1.0, 0.0]  # made once: the second run finds it
    assert len(list((tmp_path / "warmup").glob("*.pt"))) == 1


def test_the_warm_up_learns_what_it_is_shown(tmp_path: Path) -> None:
    """Without noise, 150 steps give most first digits of the training sums: 92 % with each of 3
    seeds."""
    settings = config(
        tmp_path, "env=arithmetic", "env.warmup.steps=150", "env.warmup.noise=0", "seed=0"
    )
    model = make_model(settings, "cpu")
    task = task_of(settings.env)
    warm_up(model, task, settings, lambda *news: None)
    assert isinstance(model, GRPO)
    ids = task.sample(np.random.default_rng(0), 500, "train")
    state = task.start(ids)
    actions, _ = model.predict(task.observe(state), deterministic=True)
    tokens, _ = task.demonstrations(ids, np.random.default_rng(0), 0.0)  # type: ignore[attr-defined]
    assert (actions == tokens[np.arange(500), state["position"]]).mean() > 0.8


def test_a_sweep_from_another_folder(tmp_path: Path) -> None:
    arguments = ["-m", "env=vlm", "seed=1,2", "budget.transitions=2048", "budget.evaluations=1"]
    done = command(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    for line in ("[4/4]", "vlm grpo seed=2:", "Summary: GRPO against PPO", "2 runs each"):
        assert line in done.stdout
    runs = tmp_path / "runs"
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert {path.suffix for path in (runs / "tables").iterdir()} == {".md", ".csv", ".tex"}


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


def test_help_says_what_there_is(tmp_path: Path) -> None:
    done = command(tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    for words in ("-m seed=1,2,3", *ENVS, *ALGOS, "budget: default, full, smoke", "timeout_s"):
        assert words in done.stdout


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    done = command(tmp_path, "sede=3")
    assert done.returncode == 1
    assert "sede" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_experiment_is_a_sweep(tmp_path: Path) -> None:
    done = command(tmp_path, "experiment=ablation")
    assert done.returncode == 1 and done.stderr == "experiment=ablation is a sweep: expected -m\n"
    assert not (tmp_path / "runs").exists()
