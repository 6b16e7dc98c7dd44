"""The options are grpo with one change each, and the experiments are the sweeps that they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from support.configs import config

from grpo_bench.config import CONF
from grpo_bench.runs.job import check

NAMES = sorted(path.stem for path in (CONF / "algo" / "options").glob("*.yaml"))
CHANGES: dict[str, dict[str, Any]] = {
    "baseline_group_mean": {"baseline": "group_mean"},
    "baseline_rloo": {"baseline": "rloo"},
    "baseline_batch": {"baseline": "batch"},
    "baseline_batch_std": {"baseline": "batch_std"},
    "baseline_rank": {"baseline": "rank"},
    "baseline_none": {"baseline": "none"},
    "ddof_1": {"ddof": 1},
    "token_mean": {"aggregation": "token_mean"},
    "constant_length": {"aggregation": "constant_length"},
    "sequence_ratio": {"ratio": "sequence"},
    "clip_higher": {"clip_range_high": 0.28},
    "clip_dual": {"clip_dual": 3.0},
    "cispo": {"surrogate": "cispo", "clip_range": 1.0, "clip_range_high": 4.0},
    "process": {"supervision": "process"},
    "dynamic_sampling": {"max_refills": 4},
    "entropy": {"ent_coef": 0.01},
    "epochs_8": {"n_epochs": 8},
    "group_size_2": {"group_size": 2},
    "group_size_32": {"group_size": 32},
}


def test_these_are_all() -> None:
    assert sorted(CHANGES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_option_changes_what_it_says_and_its_name(tmp_path: Path, name: str) -> None:
    plain, changed = config(tmp_path, "algo=grpo"), config(tmp_path, f"algo=options/{name}")
    values = CHANGES[name] | {"name": f"grpo_{name}"}
    assert changed == plain.changed({f"algo.{key}": value for key, value in values.items()})
    check(changed)


def experiment(name: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = compose("config", [f"experiment={name}"], return_hydra_config=True)
    return {"results": whole.results, **whole.hydra.sweeper.params}


def test_the_ablation_is_all_presets_on_all_environments() -> None:
    presets = {p.stem for p in (CONF / "algo").glob("*.yaml")}
    baselines = {"ppo", "ppo_shared", "a2c", "trpo", "maskable_ppo"}
    control = {
        "grpo_rtg",
        "ppo_zoo",
        "class",
    }  # our own tasks pay at the end, where it is close to grpo
    sweep = experiment("ablation")
    assert set(sweep.pop("algo").split(",")) == presets - baselines - control
    assert sweep == {
        "results": "results/ablation",
        "env": "vlm,arithmetic,format",
        "seed": "range(1,6)",
    }


def test_the_options_are_swept_one_at_a_time() -> None:
    sweep = experiment("options")
    swept = sweep.pop("algo").split(", ")
    assert swept == ["grpo", *(f"options/{name}" for name in NAMES)]
    assert sweep == {
        "results": "results/options",
        "env": "vlm,arithmetic",
        "seed": "range(1,6)",
    }


def test_the_kl_forms_are_all_forms() -> None:
    from grpo_bench.grpo.kl import FORMS

    sweep = experiment("kl_forms")
    assert set(sweep.pop("algo.kl").split(",")) == set(FORMS)
    assert sweep == {
        "results": "results/kl_forms",
        "env": "arithmetic",
        "algo": "grpo",
        "seed": "range(1,6)",
    }
