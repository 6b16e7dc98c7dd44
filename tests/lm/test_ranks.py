"""A trainer on two processes makes the update of one, whatever the algorithm; and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import pandas as pd
import torch
from support.ranks import SIZE, together

from grpo_bench.config import RunConfig, composed
from grpo_bench.grpo.objectives import AGGREGATIONS
from grpo_bench.lm.completions import Completions
from grpo_bench.lm.logprobs import completion_logprobs
from grpo_bench.lm.models import load_model
from grpo_bench.lm.optimizer import local
from grpo_bench.lm.parallel import World
from grpo_bench.lm.rollout import Rollout
from grpo_bench.lm.saving import plain_weights
from grpo_bench.lm.setup import check_config, make_trainer
from grpo_bench.lm.torchrun import check_processes
from grpo_bench.lm.trainer import Trainer
from grpo_bench.runs.launcher import ProcessLauncher
from grpo_envs.task import Outcome

# 4 groups of 2. What rank 0 plays is short and badly paid, what rank 1 plays is long and well paid.
GROUP = 2
LENGTHS = [1, 2, 1, 1, 9, 8, 9, 7]
REWARDS = [0.0, 0.1, 0.1, 0.0, 5.0, -4.0, 9.0, 1.0]
ALONE = World()
MAX_GRAD_NORM, LEARNING_RATE = 0.5, 1e-3
SMALL = [
    *("model=tiny", "env=arithmetic_text", "budget=smoke", "model.dtype=float32"),
    *("env.train.episodes=8", "env.train.group_size=2", "env.train.n_epochs=2"),
    *(f"env.train.learning_rate={LEARNING_RATE}", "env.generation.max_new_tokens=9"),
    "env.train.max_tokens=170",  # one group a pass on rank 1, two on rank 0
]
GRPO = ["algo=grpo", "algo.group_size=2"]
K1 = ["+algo.kl=k1_reward", "+algo.kl_coef=0.1"]
CASES: dict[str, list[str]] = {
    **{name: [*GRPO, f"algo.aggregation={name}"] for name in AGGREGATIONS},
    "batch baseline": [*GRPO, "algo.baseline=batch_std"],
    "kl in the loss": [*GRPO, "algo.kl=k3", "+algo.kl_coef=0.1"],
    "kl off the return": [*GRPO, "algo.kl=k1_reward", "+algo.kl_coef=0.1"],
    "cut off": [*GRPO, "+algo.mask_truncated=true"],
    "lora": [*GRPO, "model.lora.rank=4", "algo.kl=k3", "+algo.kl_coef=0.1"],
    "checkpointed": [*GRPO, "model.gradient_checkpointing=true"],
    "two minibatches": [*GRPO, "algo.minibatches=2"],
    "ppo": ["algo=ppo", *K1],
    "ppo shared": ["algo=ppo_shared"],
    "ppo shared lora": ["algo=ppo_shared", "model.lora.rank=4"],
    "ppo lora": ["algo=lm/ppo_lora"],
    "ppo lora lora": ["algo=lm/ppo_lora", "model.lora.rank=4"],
}
SHARDED = [
    *("batch baseline", "kl in the loss", "lora", "checkpointed", "two minibatches"),
    *("ppo", "ppo shared", "ppo lora"),
]
NOT_SHARDED = "ppo lora lora"  # two networks with the same weights


@cache
def config(*overrides: str) -> RunConfig:
    return composed(*SMALL, *overrides)


@cache
def rollout() -> Rollout:
    """What one process would play, made up; drawn with a policy that was a little different from
    the one with which all cases begin."""
    trainer = make_trainer(config(*GRPO))
    ids = trainer.task.sample(np.random.default_rng(0), len(LENGTHS) // GROUP)
    prompts = trainer.task.prompts(ids)
    generator = torch.Generator().manual_seed(0)
    length = torch.tensor(LENGTHS)
    tokens = torch.randint(3, 200, (len(LENGTHS), max(LENGTHS)), generator=generator)
    truncated = torch.tensor([False, True, False, True, False, False, True, False])
    drawn = Completions(tokens, length, torch.zeros(tokens.shape), truncated, GROUP)
    with torch.no_grad():
        logp = completion_logprobs(trainer.lm.model, prompts, drawn, trainer.temperature).logp
    logp = logp + 0.05 * torch.randn(logp.shape, generator=generator) * drawn.mask
    reward = np.array(REWARDS)
    success = (reward > 1).astype(np.float64)
    outcome = Outcome(reward, np.ones(len(reward), dtype=bool), success, {"accuracy": reward})
    texts = trainer.task.texts(drawn)
    return Rollout(
        ids, prompts, Completions(tokens, length, logp, truncated, GROUP), texts, outcome
    )


def together_as_one(trainer: Trainer) -> None:
    """Let one process have the minibatches of two ranks: of each, those that it would draw."""
    half = trainer.n_problems // SIZE

    def minibatches(n_groups: int) -> Iterator[list[int]]:
        for part in np.split(trainer.group_rng.permutation(half), trainer.settings.minibatches):
            yield [rank * half + int(i) for rank in range(SIZE) for i in part]

    trainer._minibatches = minibatches  # type: ignore[method-assign]


def update(case: str, world: World, sharded: bool = False) -> dict[str, Any]:
    """Weights and metrics after an update, of two steps or four; moments of the gradients."""
    trainer = make_trainer(config(*CASES[case], f"model.sharded={sharded}".lower()), world=world)
    if world.size == 1:
        together_as_one(trainer)
    smooth(trainer)
    own = range(trainer.n_problems)[world.own(trainer.n_problems)]
    metrics = trainer.update(rollout().of_groups(list(own)))
    found = {f"policy {n}": w.clone() for n, w in plain_weights(trainer.lm.model).items()}
    if trainer.critic is not None:
        trunk = plain_weights(trainer.critic.trunk)
        found |= {f"critic {name}": weight.clone() for name, weight in trunk.items()}
        found |= {f"head {n}": p.detach() for n, p in trainer.critic.head.named_parameters()}
    return {"weights": found, "metrics": metrics, "size": held(trainer)}


def smooth(trainer: Trainer) -> None:
    """Let AdamW's eps be the largest number that a clipped gradient can have. With 1e-8, a step is
    the sign of the gradient, and a number near 0 has its sign from rounding."""
    assert trainer.settings.max_grad_norm == MAX_GRAD_NORM
    for optimizer in filter(None, (trainer.optimizer, trainer.critic_optimizer)):
        for group in optimizer.param_groups:
            group["eps"] = MAX_GRAD_NORM


def held(trainer: Trainer) -> int:
    """Elements of the policy that are in this process."""
    return sum(local(weight).numel() for weight in trainer.lm.model.parameters())


def scenario(world: World) -> dict[str, Any]:
    """All that two ranks have to do for this file."""
    found: dict[str, Any] = {case: update(case, world) for case in CASES}
    found |= {f"{case} in shards": update(case, world, sharded=True) for case in SHARDED}
    with pytest.raises(ValueError, match="expected separate or shared") as error:
        update(NOT_SHARDED, world, sharded=True)
    found["error"] = str(error.value)
    for sharded in ("false", "true"):
        trainer = make_trainer(config(*GRPO, f"model.sharded={sharded}"), world=world)
        played = trainer.collect()
        found[f"played {sharded}"] = played.problem_ids.tolist(), played.completions.ids.tolist()
        found[f"metrics {sharded}"] = trainer.update(played)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(scenario, tmp_path_factory.mktemp("ranks"))


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Up to rounding. A step of lr changes by at most 2 lr / eps times what the gradient changes
    by, and that is at most 128 eps of float32 times its largest number (test_parallel.py has the
    measurement); a weight is rounded eight times in four steps."""
    assert found["metrics"] == pytest.approx(wanted["metrics"], rel=1e-4, abs=1e-5)
    assert found["weights"].keys() == wanted["weights"].keys()
    rtol, atol = 8 * 2**-23, 4 * 2 * LEARNING_RATE * 128 * 2**-23
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_make_the_update_of_one(ranks: list[dict[str, Any]], case: str) -> None:
    wanted = update(case, ALONE)
    start = plain_weights(make_trainer(config(*CASES[case])).lm.model)
    moved = [w for n, w in start.items() if not torch.equal(w, wanted["weights"][f"policy {n}"])]
    assert moved
    for found in ranks:
        assert_same(found[case], wanted)
        if case in SHARDED:
            assert_same(found[f"{case} in shards"], wanted)
            assert found[f"{case} in shards"]["size"] <= 0.51 * wanted["size"]


def test_ranks_play_what_one_process_would_be_asked(ranks: list[dict[str, Any]]) -> None:
    """In shards too; each draws with numbers of its own, and logs what all have played."""
    wanted = make_trainer(config(*GRPO)).collect()
    for sharded in ("false", "true"):
        (first, ids), (second, others) = (found[f"played {sharded}"] for found in ranks)
        assert first + second == wanted.problem_ids.tolist()
        assert ids != others
        assert ids == ranks[0]["played false"][1]
        metrics = [found[f"metrics {sharded}"] for found in ranks]
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)


# -- what cannot be -------------------------------------------------------------------------------


def test_every_rank_has_its_part_of_every_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        ValueError, match=r"4 groups in 2 minibatches on 3 .*: expected .* 6 groups"
    ):
        check_config(config(*GRPO, "algo.minibatches=2"))


def test_one_process_has_no_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="sharded=true in one process: expected false, or torchr"):
        check_config(config(*GRPO, "model.sharded=true"))


# -- the command ----------------------------------------------------------------------------------


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m grpo_bench.run`` on two processes."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SIZE))
    return subprocess.run(
        [sys.executable, *launcher, "-m", "grpo_bench.run", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_the_first_process_writes_the_record(tmp_path: Path) -> None:
    few = ["env.train.episodes=4", "budget.transitions=64", "results=runs", "model.save=true"]
    given = [word for word in SMALL if not word.startswith("env.train.episodes")]
    done = torchrun(tmp_path, *given, *GRPO, *few, "model.sharded=true")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # nothing of Hydra's
    (path,) = tmp_path.rglob("manifest.json")
    manifest = json.loads(path.read_text())
    assert (manifest["status"], manifest["extra"]["processes"]) == ("ok", SIZE)
    assert manifest["config"]["results"] == "runs"
    told = done.stdout.splitlines()
    assert len(told) == 2 and told[1] == f"Record: {path.parent.relative_to(tmp_path)}"
    metrics = pd.read_parquet(path.parent / "metrics.parquet")
    assert metrics["transitions"].max() >= 64
    found = load_model(str(path.parent / "checkpoint"), dtype="float32").model
    assert found.num_parameters() == load_model("tiny").model.num_parameters()


def test_what_is_not_for_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    gym = composed()
    with pytest.raises(ValueError, match="torchrun is for language models"):
        check_processes(gym)
    with pytest.raises(SystemExit, match="expected no -m"):
        ProcessLauncher().setup(hydra_context=None, task_function=None, config=None)
