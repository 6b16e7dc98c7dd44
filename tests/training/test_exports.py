"""TensorBoard and Weights & Biases beside the record: the same numbers, and never in its way."""

from __future__ import annotations

import builtins
import json
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.configs import config, evaluate_few_problems

from grpo_bench.meter import provenance
from grpo_bench.records import Run, claim, identity, plan, read_manifest
from grpo_bench.records.load import BUDGETS, load_results
from grpo_bench.runs.job import check, execute
from grpo_bench.training.exports import check_exports, sinks

QUICK = ["env=vlm", "budget.transitions=1", "budget.evaluations=1"]
# What the tests need of Weights & Biases, writing what it is told into a file.
WANDB = """
import json

class Run:
    def __init__(self, dir, settings):
        self.file = open(dir + "/told.jsonl", "a")
        self.tell("init", settings)

    def tell(self, what, content):
        self.file.write(json.dumps([what, content]) + "\\n")
        self.file.flush()

    def define_metric(self, name, step_metric):
        self.tell("define_metric", [name, step_metric])

    def log(self, numbers):
        self.tell("log", numbers)

    def finish(self, exit_code):
        self.tell("finish", exit_code)

def init(dir, **settings):
    return Run(dir, settings)
"""


def run_of(folder: Path, *overrides: str) -> Run:
    """A claimed run with the sinks that its configuration asks for."""
    chosen = config(folder, *QUICK, *overrides)
    run = claim(plan(folder, chosen.plain), chosen.plain, seeds={}, provenance=provenance())
    assert run is not None
    run.sinks = sinks(chosen, run.folder)
    return run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each tag in the event files of a run."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name that can be imported, in place of the real one."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setitem(sys.modules, "wandb", None)  # is put back as it was
    del sys.modules["wandb"]
    yield
    sys.modules.pop("wandb", None)


def told(folder: Path) -> list[tuple[str, Any]]:
    """What Weights & Biases was told of a run."""
    return [tuple(json.loads(line)) for line in (folder / "told.jsonl").read_text().splitlines()]


# -- TensorBoard ----------------------------------------------------------------------------------


def check_events(folder: Path, metrics: pd.DataFrame) -> None:
    """The event files of a run hold its metrics, in 32 bits."""
    found = scalars(folder)
    budgets = {f"budget/{name}" for name in BUDGETS[1:]}
    assert set(found) == set(metrics["metric"]) | budgets
    for metric, rows in metrics.groupby("metric"):
        steps, values = zip(*found[metric], strict=True)
        assert list(steps) == list(rows["transitions"])
        np.testing.assert_array_equal(np.array(values), rows["value"].astype(np.float32))
    for name in BUDGETS[1:]:
        assert found[f"budget/{name}"][-1] == (
            metrics["transitions"].iloc[-1],
            np.float32(metrics[name].iloc[-1]),
        )


def test_event_files_hold_what_the_record_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_few_problems("vlm", monkeypatch)
    folder = execute(config(tmp_path, *QUICK, "tensorboard=true"))
    check_events(folder, load_results(tmp_path).metrics)


def test_an_attempt_starts_event_files_anew(tmp_path: Path) -> None:
    first = run_of(tmp_path, "tensorboard=true")
    first.log(1, 1, 0.5, 10, {"train/loss": 1.0})
    first.finish("killed")
    second = run_of(tmp_path, "tensorboard=true")
    second.log(2, 1, 0.5, 10, {"train/loss": 2.0})
    second.finish()
    assert scalars(second.folder)["train/loss"] == [(2, 2.0)]


# -- Weights & Biases -----------------------------------------------------------------------------


@pytest.mark.usefixtures("wandb")
def test_weights_and_biases_are_told_everything(tmp_path: Path) -> None:
    run = run_of(tmp_path, "wandb=trade")
    run.log(8, 2, 0.5, 10, {"train/loss": 1.0, "train/kl_ref": 0.25})
    run.log(16, 4, 1.0, 20, {"train/loss": 0.5})
    run.finish()
    (what, settings), defined, first, second, end = told(run.folder)
    assert (what, settings["project"]) == ("init", "trade")
    assert settings["name"] == run.folder.relative_to(tmp_path).as_posix()
    assert settings["config"] == run.manifest.config
    assert defined == ("define_metric", ["*", "budget/transitions"])
    budgets = {"budget/transitions": 8, "budget/gradient_steps": 2}
    budgets |= {"budget/seconds": 0.5, "budget/peak_bytes": 10}
    assert first == ("log", {"train/loss": 1.0, "train/kl_ref": 0.25, **budgets})
    assert second[1]["budget/transitions"] == 16
    assert end == ("finish", 0)


@pytest.mark.usefixtures("wandb")
def test_a_run_that_fails_is_said_to_have_failed(tmp_path: Path) -> None:
    run = run_of(tmp_path, "wandb=trade")
    run.finish("nan", "FloatingPointError")
    assert told(run.folder)[-1] == ("finish", 1)


# -- what may go wrong ----------------------------------------------------------------------------


class Failing:
    """Takes one moment, and no second one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def log(self, budgets: Any, metrics: Any) -> None:
        self.calls.append("log")
        if len(self.calls) > 1:
            raise ConnectionError("no route to host")

    def close(self, status: Any) -> None:
        self.calls.append("close")


def test_a_sink_that_fails_is_warned_of_once_and_ends_no_run(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    failing = Failing()
    run.sinks = [failing]
    run.log(1, 1, 0.5, 10, {"train/loss": 1.0})
    with pytest.warns(UserWarning, match="Failing gets no more .*no route to host"):
        run.log(2, 2, 1.0, 10, {"train/loss": 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log(3, 3, 1.5, 10, {"train/loss": math.inf})
        run.finish()
    assert failing.calls == ["log", "log"]
    assert read_manifest(run.folder).status == "ok"
    assert list(load_results(tmp_path).metrics["value"]) == [1.0, 2.0, math.inf]


def test_a_sink_that_cannot_be_opened_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name == "wandb":
            raise RuntimeError("not logged in")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.warns(UserWarning, match="no export to wandb: .*not logged in"):
        assert run_of(tmp_path, "wandb=trade").sinks == []


def test_what_is_not_installed_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config(tmp_path, *QUICK)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"tensorboard=True: needs tensorboard, pip install"):
        check(plain.changed({"tensorboard": True}))
    with pytest.raises(ValueError, match=r"wandb=trade: needs wandb, pip install wandb"):
        check(plain.changed({"wandb": "trade"}))
    check_exports(plain)


def test_a_folder_called_wandb_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # what it leaves behind where it runs
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ValueError, match="needs wandb"):
        check_exports(config(tmp_path, *QUICK, "wandb=trade"))


def test_exports_are_no_part_of_a_run(tmp_path: Path) -> None:
    plain = config(tmp_path, *QUICK)
    exported = plain.changed({"tensorboard": True, "wandb": "trade"})
    assert identity(plain.plain) == identity(exported.plain)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tensorboard=3", "tensorboard=3: expected true or false"),
        ("wandb=3", "wandb=3: expected the name of a project, or null"),
        ("wandb=true", "wandb=True: expected the name of a project"),
    ],
)
def test_keys_are_checked(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(tmp_path, override)
