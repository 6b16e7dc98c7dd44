"""Runs that are cut off and go on: their records are those of runs that were left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from stable_baselines3.common.save_util import load_from_zip_file
from support.configs import SHORT_WARMUP, evaluate_few_problems

from grpo_bench import GRPO
from grpo_bench.config import RunConfig, composed
from grpo_bench.records import checkpoints, read_manifest
from grpo_bench.records.checkpoints import latest_checkpoint, numbers, save_checkpoint
from grpo_bench.runs.job import execute

CARTPOLE = ["env=cartpole", "env.evaluation.episodes=3", "budget.transitions=1500"]
SYNTHETIC = ["env=vlm_synthetic", "env.train.episodes=64", "budget.transitions=1024"]
KINDS = {
    "one step": [*SYNTHETIC, "algo=grpo"],
    "a reference that follows": [*SYNTHETIC, "algo=grpo_paper", "algo.ref_update_interval=3"],
    "dynamic sampling": [*SYNTHETIC, "algo=dapo"],
    "tokens and a warm-up": ["env=arithmetic", *SHORT_WARMUP, "algo=grpo", "env.train.episodes=64"],
    "own class": [*SYNTHETIC, "algo=class", f"algo.id={__name__}:Falling"],
    "episodes of any length": [*CARTPOLE, "algo=grpo_rtg"],
    "normalised": [*CARTPOLE, "algo=grpo", "env.normalize=true"],
    "not GRPO": [*SYNTHETIC, "algo=ppo"],
}


class Falling(GRPO):
    """An algorithm with a state of its own."""

    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        self.trained = 0

    def train(self):
        self.trained += 1
        self.ent_coef = 0.1 / self.trained
        super().train()


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHORTEST", 0.0)
    monkeypatch.setattr(checkpoints, "TIMES", 0.0)
    for env in ("vlm_synthetic", "arithmetic"):
        evaluate_few_problems(env, monkeypatch)


def config(results: Path, *words: str) -> RunConfig:
    short = ("budget=smoke", "tuned=none", "budget.evaluations=6", "seed=3")
    return composed(*short, f"results='{results}'", *words)


def cut_at(settings: RunConfig, share: float) -> None:
    """Execute it until a share of the budget is spent."""

    def progress(stage, done, success):
        if stage == "training" and done >= share:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(settings, progress)


def record_of(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    """Metrics without times and memory, evaluations, and weights."""
    metrics = pd.read_parquet(folder / "metrics.parquet").drop(columns=["seconds", "peak_bytes"])
    kept = ~metrics["metric"].str.startswith(("time/", "memory/"))
    _, weights, _ = load_from_zip_file(folder / "checkpoint" / "model.zip", device="cpu")
    return metrics[kept].reset_index(drop=True), pd.read_parquet(folder / "eval.parquet"), weights


def assert_equal_records(one: Path, other: Path) -> None:
    for a, b in zip(record_of(one)[:2], record_of(other)[:2], strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
    a, b = record_of(one)[2], record_of(other)[2]
    assert a.keys() == b.keys()
    for name in a:
        assert_same(a[name], b[name])


def assert_same(a, b) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_cut_off_again_and_again(tmp_path, kind):
    alone = execute(config(tmp_path / "alone", *KINDS[kind]))
    settings = config(tmp_path / "cut", *KINDS[kind])
    for share in (0.4, 0.8):
        cut_at(settings, share)
    folder = execute(settings)
    manifest = read_manifest(folder)
    assert (manifest.status, manifest.attempt) == ("ok", 3)
    assert_equal_records(alone, folder)
    assert not (folder / "checkpoints").exists()


def test_it_goes_on_and_does_not_start_over(tmp_path):
    settings = config(tmp_path, *KINDS["one step"])
    cut_at(settings, 0.6)
    seen = []
    execute(settings, lambda stage, done, success: seen.append(done))
    assert 0.3 < min(seen) <= 0.6
    ppo = config(tmp_path, *KINDS["not GRPO"])
    cut_at(ppo, 0.6)
    execute(ppo, lambda stage, done, success: seen.append(done))
    assert min(seen) == 0.0


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    alone = execute(config(tmp_path / "alone", *KINDS["one step"]))
    settings = config(tmp_path / "cut", *KINDS["one step"])
    cut_at(settings, 0.7)
    (folder,) = (tmp_path / "cut").glob("*/*/*")
    last = max(numbers(folder / "checkpoints"))
    assert len(numbers(folder / "checkpoints")) == 2, "the last two are kept"
    (folder / "checkpoints" / str(last) / "state.json").write_text("{")
    found = latest_checkpoint(folder)
    assert found is not None and found.folder.name == str(last - 1)
    assert_equal_records(alone, execute(settings))


def test_a_run_that_failed_starts_over(tmp_path, monkeypatch):
    """What went wrong may be in the checkpoint."""
    settings = config(tmp_path, *KINDS["one step"])

    def fail(stage, done, success):
        if done > 0.6:
            raise FloatingPointError("nan")

    with pytest.raises(FloatingPointError):
        execute(settings, fail)
    seen = []
    execute(settings, lambda stage, done, success: seen.append(done))
    assert min(seen) == 0.0


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    save_checkpoint(tmp_path, {"n": 1}, lambda folder: (folder / "a").write_text("a"))

    def full(folder):
        (folder / "a").write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, {"n": 2}, full)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.state == {"n": 1}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_process_that_is_killed_goes_on(tmp_path):
    """kill -9 when there is a checkpoint, the same command again."""
    words = ["env=vlm_synthetic", "algo=grpo", "seed=1", "tuned=none", "budget=smoke"]
    words += ["budget.transitions=60_000", "budget.evaluations=3", "checkpoint_minutes=0.001"]
    command = [sys.executable, "-m", "grpo_bench.run", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    results, alone = (f"results='{tmp_path / name}'" for name in ("cut", "alone"))
    process = subprocess.Popen([*command, results], env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while not any(latest_checkpoint(run) for run in (tmp_path / "cut").glob("*/*/*")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (folder,) = (tmp_path / "cut").glob("*/*/*")
    assert read_manifest(folder).status == "running"
    for place in (results, alone):
        subprocess.run([*command, place], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert read_manifest(folder).attempt == 2
    (other,) = (tmp_path / "alone").glob("*/*/*")
    assert_equal_records(other, folder)
