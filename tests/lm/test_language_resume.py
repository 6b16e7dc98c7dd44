"""Runs of language models that are cut off and go on where they were."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("transformers")

from safetensors.torch import load_file
from support.configs import evaluate_few_problems

from grpo_bench.config import RunConfig, composed
from grpo_bench.records import checkpoints, read_manifest
from grpo_bench.runs.job import execute

SHORT = ("model=tiny", "env=arithmetic_text", "budget.transitions=2500", "budget.evaluations=2")
KINDS = {
    "all weights, and a reference": ["algo=grpo", "algo.kl=k3", "algo.kl_coef=0.1"],
    "adapters, dynamic sampling": ["algo=dapo", "model.lora.rank=4"],
    "a separate critic": ["algo=ppo"],
}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHORTEST", 0.0)
    monkeypatch.setattr(checkpoints, "TIMES", 0.0)
    evaluate_few_problems("arithmetic", monkeypatch)


def config(results: Path, *words: str) -> RunConfig:
    return composed(*SHORT, "budget.test=false", "model.save=true", f"results={results}", *words)


def cut_at(settings: RunConfig, share: float) -> None:
    def progress(stage: str, done: float, success: float) -> None:
        if done >= share:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(settings, progress)


@pytest.mark.parametrize("kind", KINDS)
def test_its_record_is_that_of_a_run_that_was_left_alone(tmp_path, kind):
    alone = execute(config(tmp_path / "alone", *KINDS[kind]))
    settings = config(tmp_path / "cut", *KINDS[kind])
    for share in (0.4, 0.9):
        cut_at(settings, share)
    stages = []
    folder = execute(settings, lambda stage, done, success: stages.append(done))
    assert min(stages) > 0.3, "it goes on"
    assert read_manifest(folder).attempt == 3
    for name in ("metrics", "eval"):
        one, other = (pd.read_parquet(each / f"{name}.parquet") for each in (alone, folder))
        if name == "metrics":
            one, other = (
                each[~each["metric"].str.startswith(("time/", "memory/"))]
                .drop(columns=["seconds", "peak_bytes"])
                .reset_index(drop=True)
                for each in (one, other)
            )
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    lines = [(each / "completions.jsonl").read_text() for each in (alone, folder)]
    assert lines[0] == lines[1]
    weights = [load_file(each / "checkpoint" / "model.safetensors") for each in (alone, folder)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert value.equal(weights[1][name]), name
    assert not (folder / "checkpoints").exists()
