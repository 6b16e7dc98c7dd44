"""A run of a language model from its configuration to its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import pyarrow.parquet as pq
import torch

import grpo_bench.run  # noqa: F401  (registers the launcher)
from grpo_bench.config import CONF, RunConfig, composed
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.evaluation import evaluate
from grpo_bench.lm.setup import make_trainer
from grpo_bench.records import read_manifest
from grpo_bench.runs.job import check, execute

TINY = ("model=tiny", "env=arithmetic_text", "budget.transitions=1500", "budget.evaluations=2")


def config_of(*overrides: str) -> RunConfig:
    return composed(*TINY, *overrides)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, float, float]]]:
    """The folder of a run, and what it told while it went on."""
    results = tmp_path_factory.mktemp("results")
    told: list[tuple[str, float, float]] = []
    folder = execute(config_of("algo=ppo", f"results={results}"), lambda *news: told.append(news))
    return folder, told


def metrics_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    rows = pq.ParquetFile(folder / "metrics.parquet").read().to_pylist()
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        found.setdefault(row["metric"], []).append((row["transitions"], row["value"]))
    return found


def test_the_record_is_that_of_any_run(done: tuple[Path, Any]) -> None:
    folder, _ = done
    manifest = read_manifest(folder)
    assert manifest.status == "ok"
    assert manifest.config["model"]["name"] == "tiny"
    metrics = metrics_of(folder)
    # tokens are counted: an iteration has 64 completions of at most 12
    steps = [transitions for transitions, _ in metrics["train/loss"]]
    lengths = [value for _, value in metrics["rollout/ep_len_mean"]]
    assert steps[-1] >= 1500 > steps[-2]
    assert steps == pytest.approx([64 * sum(lengths[: i + 1]) for i in range(len(lengths))])
    for name in ("train/value_loss", "memory/critic_bytes", "time/critic_seconds"):
        assert name in metrics, name
    assert metrics["memory/critic_bytes"][-1][1] < metrics["memory/policy_bytes"][-1][1] * 1.01
    rows = pq.ParquetFile(folder / "eval.parquet").read().to_pandas()
    counts = rows.groupby(["split", "transitions"]).size().to_dict()
    assert set(counts.values()) == {277, 520}
    assert {split for split, _ in counts} == {"validation", "test", "test_sampled"}
    assert sum(split == "validation" for split, _ in counts) == 3
    assert rows["problem_id"].nunique() == 277 + 520
    completed = rows[rows["split"] == "test"]["completed"].mean()
    assert metrics["eval/test/completed"][-1][1] == completed


def test_completions_are_kept_as_text(done: tuple[Path, Any]) -> None:
    lines = [json.loads(line) for line in (done[0] / "completions.jsonl").read_text().splitlines()]
    assert len(lines) == 8 * (3 + 2)
    first = lines[0]
    assert first["split"] == "validation" and first["transitions"] == 0
    assert first["question"].startswith("What is ") and isinstance(first["completion"], str)


def test_it_tells_what_it_does(done: tuple[Path, Any]) -> None:
    stages = [stage for stage, _, _ in done[1]]
    assert all(stage.startswith("reward 0.") and " tokens, '" in stage for stage in stages)
    assert done[1][-1][1] == 1.0


def test_it_is_not_done_again(done: tuple[Path, Any]) -> None:
    folder, _ = done
    before = read_manifest(folder)
    config = config_of("algo=ppo", f"results={folder.parents[2]}")
    assert execute(config) == folder
    assert read_manifest(folder) == before


PRESETS = [*sorted(path.stem for path in (CONF / "algo").glob("*.yaml")), "lm/ppo_lora"]
PRESETS = [name for name in PRESETS if name not in ("class", "ppo_zoo")]  # of the Gym track alone


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_an_iteration_or_says_why_not(preset: str) -> None:
    if preset in ("a2c", "trpo", "maskable_ppo"):
        with pytest.raises(ValueError, match="with a language model: expected grpo or ppo"):
            make_trainer(config_of(f"algo={preset}"))
        return
    if preset == "grpo_rtg":  # a completion is paid at its end
        with pytest.raises(ValueError, match="supervision='return_to_go' with a language model"):
            make_trainer(config_of(f"algo={preset}"))
        return
    overrides = (f"algo={preset}", "model.dtype=float32")
    config = config_of(*overrides)
    if config.algo.options.get("kl") == "exact":
        with pytest.raises(ValueError, match="kl='exact' with a language model"):
            make_trainer(config)
        config = config_of(*overrides, "algo.kl=k1_reward")
    trainer = make_trainer(config)
    metrics = trainer.update(trainer.collect())
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["train/logp_mismatch"] < 1e-4
    assert ("train/kl_ref_k3" in metrics) == (trainer.settings.kl != "none")
    assert ("train/value_loss" in metrics) == ("ppo" in preset)


def test_evaluation_asks_every_problem_once_and_is_the_same_each_time() -> None:
    trainer = make_trainer(config_of("algo=grpo", "env.evaluation.batch_size=200"))
    options: dict[str, Any] = {"max_new_tokens": 3, "world": trainer.world}
    for temperature in (0.0, 1.0):
        first = evaluate(
            trainer.lm, trainer.task, "test", temperature=temperature, batch_size=200, **options
        )
        again = evaluate(
            trainer.lm, trainer.task, "test", temperature=temperature, batch_size=200, **options
        )
        ids = first.columns["problem_id"].tolist()
        assert ids == trainer.task.problem_ids("test").tolist()
        assert first.examples == again.examples and len(first.examples) == 8
        for name, column in first.columns.items():
            assert column.tolist() == again.columns[name].tolist()


@pytest.mark.parametrize("pay_truncated", [False, True])
def test_a_reply_that_is_cut_off_is_not_paid(
    pay_truncated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reply is right, "31 In"; every second one has no end."""
    trainer = make_trainer(config_of("algo=grpo", f"+env.pay_truncated={pay_truncated}"))
    task, tokenizer = trainer.task, trainer.lm.tokenizer
    ids = task.problem_ids("test")
    answers = task.task.problems.answers(ids).tolist()  # type: ignore[attr-defined]
    replies = dict(zip(map(tuple, task.prompts(ids)), answers, strict=True))

    def generate(model: object, prompts: list[list[int]], *_: object) -> Completions:
        tokens = [tokenizer(f"{replies[tuple(p)]} In")["input_ids"] for p in prompts]
        rows = [torch.tensor([*row, trainer.lm.eos_ids[0]]) for row in tokens]
        truncated = torch.arange(len(rows)) % 2 == 1
        length = torch.tensor([len(row) for row in rows]) - truncated.long()
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return Completions(padded, length, torch.zeros(padded.shape), truncated, 1)

    monkeypatch.setattr("grpo_bench.lm.evaluation.generate", generate)
    options: dict[str, Any] = {"max_new_tokens": 3, "world": trainer.world}
    found = evaluate(trainer.lm, task, "test", temperature=0, batch_size=8, **options).columns
    ended = np.arange(len(ids)) % 2 == 0
    assert found["completed"].tolist() == ended.tolist()
    for name in ("reward", "success", "accuracy"):
        assert found[name].tolist() == (ended | pay_truncated).tolist(), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["~model"], "env=arithmetic_text needs a language model: expected one, such as model="),
        (
            ["env=vlm"],
            "env=vlm with a language model: expected an environment for one",
        ),
        (["env.examples=1"], "examples=1: expected 0, ArithmeticTask has none"),
        (
            ["model.optimizer=sgd"],
            "model.optimizer='sgd': expected one of adamw, adamw_plain, adamw_8bit",
        ),
        (["model.source=nowhere"], "model.source=nowhere: expected one of smollm2_135m, tiny"),
        (["model.dtype=float16"], "model.dtype='float16': expected one of bfloat16, float32"),
        (["algo=a2c"], "algo.kind='a2c' with a language model: expected grpo or ppo"),
    ],
)
def test_what_cannot_run_says_so_before_it_starts(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(config_of(*overrides))
