"""Records of runs that learned together: those of single runs, but for the clock and the peak."""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from companies import EPISODES, config
from rich.console import Console

from grpo_bench import GRPO
from grpo_bench.batched.run import execute_together, why_alone
from grpo_bench.batched.train import Company
from grpo_bench.job import execute, task_of
from grpo_bench.outcome import Outcome, outcome
from grpo_bench.processes import Sweep
from grpo_bench.records import plan, read_manifest
from grpo_bench.records.load import load_results
from grpo_bench.report.reading import make_tables
from grpo_bench.sweep import find_companies

QUICK = [f"budget.transitions={4 * EPISODES}", "budget.evaluations=2"]
CLOCK = ("time/", "company/", "memory/")
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals")


@pytest.fixture(autouse=True)
def few_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 problems of each split in every evaluation."""
    task = task_of(config(Path("nowhere"))["env"])
    few = {split: task.problem_ids(split)[:50] for split in ("validation", "test")}  # type: ignore[arg-type]
    monkeypatch.setattr(type(task), "problem_ids", lambda self, split: few[split])


def configs(
    results: Path, *overrides: str, seeds: tuple[int, ...] = (1, 2)
) -> list[dict[str, Any]]:
    return [config(results, *QUICK, *overrides, f"seed={seed}") for seed in seeds]


def statuses(settings: list[dict[str, Any]]) -> list[str]:
    return [read_manifest(plan(Path(c["results"]), c)).status for c in settings]


def test_records_are_those_of_single_runs(tmp_path: Path) -> None:
    together = configs(tmp_path / "together", "algo=rloo")
    folders = execute_together(together)
    for each in configs(tmp_path / "alone", "algo=rloo"):
        execute(each)
    ours, theirs = load_results(tmp_path / "together"), load_results(tmp_path / "alone")
    assert ours.runs["run"].tolist() == theirs.runs["run"].tolist()  # the same folders and hashes
    assert statuses(together) == ["ok", "ok"]
    columns = ["run", "transitions", "gradient_steps", "metric"]
    frames = []
    for results in (ours, theirs):
        metrics = results.metrics
        plain = metrics[~metrics["metric"].str.startswith(CLOCK)]
        frames.append(plain.sort_values(columns)[[*columns, "value"]].reset_index(drop=True))
    pd.testing.assert_frame_equal(*frames, rtol=1e-4, atol=1e-5)
    pd.testing.assert_frame_equal(ours.evaluations, theirs.evaluations)
    has = {name: set(results.metrics["metric"]) for name, results in (("o", ours), ("t", theirs))}
    static = {f"memory/{part}_bytes" for part in ("policy", "gradient", "optimizer", "reference")}
    assert {name for name in has["o"] if name.startswith("memory/")} == static <= has["t"]
    assert not [name for name in has["o"] if name.startswith("time/")]
    for mine, its in zip(folders, theirs.runs["run"], strict=True):
        models = [
            GRPO.load(folder / "checkpoint" / "model.zip")
            for folder in (mine, tmp_path / "alone" / its)
        ]
        first, second = (model.policy.state_dict() for model in models)
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=0, atol=2e-5)


def test_a_record_says_that_it_ran_in_company(tmp_path: Path) -> None:
    settings = configs(tmp_path)
    told: list[tuple[str, float, float]] = []
    folders = execute_together(settings, lambda *news: told.append(news), concurrency=2)
    manifest = read_manifest(folders[0])
    assert manifest.extra["company"] == 2 and manifest.concurrency == 4
    ended = outcome(folders[0], settings[0])
    assert ended.company == 2 and ended.seconds > 0 and "for 2 seeds together" in ended.line()
    assert [share for _, share, _ in told] == [0.0, 0.25, 0.5, 0.75]
    assert all(0 <= success <= 1 for *_, success in told)
    execute(config(tmp_path, *QUICK, "seed=3"))
    tables = make_tables(tmp_path)
    assert tables["accuracy"]["ok"].tolist() == [3]
    note = "vlm, smoke, grpo: 2 of 3 runs learned together with other seeds in one process"
    assert any(note in line for line in tables["speed"].attrs["footnotes"])
    last = load_results(tmp_path).metrics.groupby(["seed", "metric"])["value"].last().unstack()
    alone = last.loc[3, "time/transitions_per_second"]
    assert tables["speed"]["transitions_per_second"].tolist() == pytest.approx([alone])
    assert last["time/transitions_per_second"].isna().tolist() == [True, True, False]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    first, *others = settings = configs(tmp_path, seeds=(1, 2, 3))
    folder = execute(first)
    before = (folder / "manifest.json").read_bytes()
    execute_together(settings)
    assert (folder / "manifest.json").read_bytes() == before
    assert read_manifest(plan(tmp_path, others[0])).extra["company"] == 2
    assert execute_together(settings) == [plan(tmp_path, each) for each in settings]
    assert [read_manifest(plan(tmp_path, each)).attempt for each in settings] == [1, 1, 1]


def test_a_seed_that_diverges_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Company.update

    def broken(self: Company, rollout: Any) -> Any:
        metrics = update(self, rollout)
        if self.iteration == 2:
            metrics["train/loss"][0] = float("nan")
            with torch.no_grad():
                self.network.parameters[0][0] = torch.nan
        return metrics

    monkeypatch.setattr(Company, "update", broken)
    settings = configs(tmp_path)
    first, second = execute_together(settings)
    assert statuses(settings) == ["nan", "ok"]
    line = outcome(first, settings[0]).line()
    assert f"['train/loss'] not finite after {2 * EPISODES} transitions" in line
    assert not (first / "checkpoint").exists() and (second / "checkpoint" / "model.zip").exists()


def test_an_error_is_in_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Company, rollout: Any) -> Any:
        raise RuntimeError("a broken update")

    monkeypatch.setattr(Company, "update", broken)
    settings = configs(tmp_path)
    with pytest.raises(RuntimeError, match="a broken update"):
        execute_together(settings)
    assert statuses(settings) == ["failed", "failed"]
    for each in settings:
        assert "a broken update" in outcome(plan(tmp_path, each), each).reason


@pytest.mark.filterwarnings("ignore::grpo_bench.grpo.doctor.DoctorWarning")
def test_findings_are_in_the_records(tmp_path: Path) -> None:
    settings = configs(tmp_path, "algo.kl=tutorial", "+algo.kl_coef=0.5")
    folders = execute_together(settings)
    for folder, each in zip(folders, settings, strict=True):
        assert outcome(folder, each).findings == ["kl form"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], ""),
        (["algo=grpo_paper"], ""),
        (["env=vlm_synthetic"], ""),
        (["algo=ppo"], "algo.kind=ppo is not GRPO"),
        (["algo=dapo"], "algo.max_refills=4: seeds would differ in transitions"),
        (["env.network.body=transformer"], "env.network.body=transformer has no batched form"),
        (["+algo.mixed_start=true"], "algo.mixed_start: members of a group"),
    ],
)
def test_what_cannot_learn_together(tmp_path: Path, overrides: list[str], reason: str) -> None:
    found = why_alone(config(tmp_path, *overrides))
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_seeds_are_dealt_out_to_the_processes(tmp_path: Path) -> None:
    """Seven seeds of grpo on two processes: four and three, less the one that is done; rloo's only
    seed and ppo's have their own."""
    settings = configs(tmp_path, seeds=tuple(range(8)))
    execute(settings[7])
    more = configs(tmp_path, "algo=ppo") + configs(tmp_path, "algo=rloo", seeds=(1,))
    runs = {plan(tmp_path, each): each for each in [*settings, *more]}
    text = io.StringIO()
    companies = find_companies(runs, 2, Console(file=text))
    seeds = [[runs[folder]["seed"] for folder in company] for company in companies]
    assert seeds == [[0, 2, 4, 6], [1, 3, 5]]
    assert text.getvalue() == "vlm ppo: a process for each seed (algo.kind=ppo is not GRPO)\n"
    runs |= {plan(tmp_path, each): each for each in configs(tmp_path, "algo=rloo", seeds=(2, 3))}
    companies = find_companies(runs, 2, Console(file=text))
    seeds = [[runs[folder]["seed"] for folder in company] for company in companies]
    assert seeds == [[0, 1, 2, 3, 4, 5, 6], [1, 2, 3]]


def carry_out(settings: list[dict[str, Any]], n_together: int) -> tuple[list[Outcome], list[str]]:
    """A sweep of which the first runs are a company, in processes forked from here."""
    text = io.StringIO()
    runs = {plan(Path(each["results"]), each): each for each in settings}
    context = multiprocessing.get_context("fork")
    with Sweep(Console(file=text, highlight=False), context, 1) as sweep:
        outcomes = sweep.carry_out(runs, [list(runs)[:n_together]])
    return [outcomes[folder] for folder in runs], text.getvalue().splitlines()


@needs_fork
def test_a_sweep_with_a_company(tmp_path: Path) -> None:
    settings = configs(tmp_path, seeds=(1, 2, 3))
    execute(settings[1])
    ended, lines = carry_out(settings, 2)
    assert [each.status for each in ended] == ["ok"] * 3
    assert [each.company for each in ended] == [1, 1, 1]  # one was done, so one was left
    assert len(lines) == 3 and "already done: vlm grpo seed=2" in lines[0]
    again = configs(tmp_path, "algo=rloo", seeds=(1, 2, 3))
    ended, lines = carry_out(again, 2)
    assert [each.company for each in ended] == [2, 2, 1]
    assert [line.split(":")[0] for line in lines] == [
        f"[{n}/3] vlm rloo seed={n}" for n in (1, 2, 3)
    ]


@needs_fork
def test_a_company_that_takes_too_long(tmp_path: Path) -> None:
    long = ["budget.transitions=100_000_000", "timeout_s=2"]
    settings = [config(tmp_path, *long, f"seed={seed}") for seed in (1, 2)]
    ended, _ = carry_out(settings, 2)
    assert [(each.status, each.reason) for each in ended] == [
        ("timeout", "longer than timeout_s=2")
    ] * 2


def command(folder: Path, *line: str) -> subprocess.CompletedProcess[str]:
    """As a user types it."""
    python = [sys.executable, "-m", "grpo_bench.run"]
    return subprocess.run([*python, *line], cwd=folder, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    """What cannot learn together says so, and is carried out all the same."""
    small = ["budget=smoke", "budget.transitions=2048", "budget.evaluations=1", "results=runs"]
    line = ["env=vlm", "algo=grpo,dapo", "seed=range(0,2)", "sweep=batched", *small]
    done = command(tmp_path, "-m", *line, "hydra.launcher.n_jobs=1")
    assert done.returncode == 0, done.stderr
    assert "vlm dapo: a process for each seed (algo.max_refills=4" in done.stdout
    results = load_results(tmp_path / "runs")
    company = {(run.algo, run.seed): run.extra.get("company") for run in results.runs.itertuples()}
    assert company == {("grpo", 0): 2, ("grpo", 1): 2, ("dapo", 0): None, ("dapo", 1): None}
    assert np.isfinite(results.metrics["value"]).all()


def test_one_run_is_no_company(tmp_path: Path) -> None:
    done = command(tmp_path, "sweep=batched")
    assert (done.returncode, done.stderr) == (
        1,
        "sweep=batched is for many seeds: expected -m beside it\n",
    )
