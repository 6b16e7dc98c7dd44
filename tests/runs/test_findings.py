"""The doctor's findings in presets and records: none where nothing is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from support.configs import ALGOS, config, evaluate_few_problems

from grpo_bench import GRPO
from grpo_bench.grpo.doctor import DoctorWarning
from grpo_bench.records import read_manifest
from grpo_bench.runs.job import execute
from grpo_bench.runs.models import make_model
from grpo_bench.runs.outcome import outcome

PRESETS = [name for name in ALGOS if config("nowhere", f"algo={name}").algo.kind == "grpo"]


@pytest.mark.parametrize("env", ["vlm", "arithmetic"])
@pytest.mark.parametrize("name", PRESETS)
def test_no_finding_in_a_preset(tmp_path: Path, env: str, name: str) -> None:
    overrides = [f"env={env}", f"algo={name}", "env.train.episodes=256", "env.train.minibatches=2"]
    chosen = config(tmp_path, *overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_model(chosen, "cpu")
        assert isinstance(model, GRPO)
        if name == "grpo_tutorial":
            with pytest.warns(DoctorWarning, match="^kl form: kl='tutorial'"):
                model.doctor.examine_settings(model.kl, model.kl_coef, steps=1)
        model.learn(600)
    assert set(model.doctor.findings) == ({"kl form"} if name == "grpo_tutorial" else set())


@pytest.mark.parametrize(("name", "n"), [("grpo_tutorial", 1), ("grpo", 0)])
def test_findings_are_in_the_record_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, n: int
) -> None:
    evaluate_few_problems("vlm", monkeypatch)
    overrides = ["env=vlm", f"algo={name}", "budget.transitions=1", "budget.evaluations=1"]
    chosen = config(tmp_path, *overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoctorWarning)
        folder = execute(chosen)
    manifest, line = read_manifest(folder), outcome(folder, chosen, chosen.name).line()
    assert manifest.status == "ok"
    if n:
        (text,) = manifest.extra["findings"]
        assert text.startswith("kl form: kl='tutorial'") and line.endswith(", 1 finding: kl form")
    else:
        assert "findings" not in manifest.extra and "finding" not in line
