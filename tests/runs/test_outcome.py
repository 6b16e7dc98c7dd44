"""How a run ended, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from support.configs import config
from support.run_records import ORIGIN

from grpo_bench.config import CONF, resolved
from grpo_bench.records import Run, claim, plan
from grpo_bench.runs.outcome import outcome

CONFIG = config(Path("x"), "env=vlm", "seed=7")
LAST = {
    "eval/validation/success": 0.75,
    "time/rollout_seconds": 1.0,
    "time/update_seconds": 2.5,
    "time/transitions_per_second": 123_456.0,
}
LINE = "vlm grpo seed=7: 0.750 right on validation, 3.5 s of training, 123.5 thousand transitions/s"


def started(results: Path) -> Run:
    run = claim(plan(results, CONFIG.plain), CONFIG.plain, seeds={}, provenance=ORIGIN)
    assert run is not None
    run.log(0, 0, 0.0, 1, dict.fromkeys(LAST, 0.0))
    run.log(2048, 16, 3.5, 1, LAST)
    return run


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, ""),
        ({"findings": ["kl form: the gradient is zero: use k2"]}, ", 1 finding: kl form"),
        ({"findings": ["ratio: 1.2", "no spread: 10 updates"]}, ", 2 findings: ratio, no spread"),
    ],
)
def test_a_run_that_is_ok_tells_its_findings(
    tmp_path: Path, extra: dict[str, list[str]], told: str
) -> None:
    run = started(tmp_path)
    run.extra |= extra
    run.finish()
    assert outcome(run.folder, CONFIG, CONFIG.name).line() == LINE + told


def test_a_language_model_tells_tokens_and_all_of_its_training(tmp_path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = resolved(compose("config", ["env=arithmetic_text", "model=135m", "seed=7"]))
    run = claim(plan(tmp_path, chosen.plain), chosen.plain, seeds={}, provenance=ORIGIN)
    assert run is not None
    seconds = {"generation": 1.0, "scoring": 0.25, "critic": 1.25, "update": 2.0, "setup": 9.0}
    last = {f"time/{phase}_seconds": value for phase, value in seconds.items()}
    last |= {"eval/validation/success": 0.5, "time/transitions_per_second": 1234.0}
    run.log(2048, 16, 4.5, 1, last)
    run.finish()
    assert outcome(run.folder, chosen, chosen.name).line() == (
        "arithmetic_text grpo seed=7: 0.500 right on validation, 4.5 s of training, 1,234 tokens/s"
    )


def test_a_run_that_failed_tells_why(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.extra["findings"] = ["ratio: 1.2"]
    run.finish("nan", "Traceback\nFloatingPointError: loss is nan\n\n")
    line = outcome(run.folder, CONFIG, CONFIG.name).line()
    assert line == f"vlm grpo seed=7: nan (FloatingPointError: loss is nan), see {run.folder}"


def test_a_run_that_goes_on_tells_where(tmp_path: Path) -> None:
    run = started(tmp_path)
    ended = outcome(run.folder, CONFIG, CONFIG.name)
    assert ended.status == "running"
    assert ended.line().startswith("vlm grpo seed=7: running (in process ")
