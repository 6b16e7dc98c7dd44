"""Sweeps that are disturbed: what is cut off, shared, full or broken, and what is left of it."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.configs import SHORT_WARMUP, config, evaluate_few_problems
from support.interrupts import hear_interrupts

from grpo_bench.config import GymConfig
from grpo_bench.meter import provenance
from grpo_bench.meter.memory import map_pages_of, resident_bytes
from grpo_bench.records import Run, claim, holder, plan, read_manifest, settle, store
from grpo_bench.records.load import load_summaries
from grpo_bench.runs import console as consoles
from grpo_bench.runs import processes
from grpo_bench.runs.job import execute
from grpo_bench.runs.models import task_of
from grpo_bench.runs.outcome import Outcome
from grpo_bench.runs.processes import Job, Sweep, child
from grpo_bench.runs.sweep import find_warmups, run_all, run_order
from grpo_bench.training import warmup
from grpo_bench.training.warmup import warmed_up

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals")
QUICK = ["env=vlm", "budget.transitions=2048", "budget.evaluations=1"]
LONG = ["env=vlm", "budget.transitions=100_000_000"]
STARTED: list[subprocess.Popen[str]] = []
AS_THEY_SAY = ["budget=smoke", "tuned=none", "results=runs"]  # as ``config`` has it


def run_all_of(
    *configs: GymConfig,
    n_jobs: int = 2,
    warmups: Sequence[GymConfig] = (),
    **terminal: Any,
) -> tuple[list[Outcome], str]:
    """A sweep without its start-up: processes forked from here. Its outcomes and its lines."""
    text = io.StringIO()
    console = Console(file=text, highlight=False, **terminal)
    runs = {plan(Path(settings.results), settings.plain): settings for settings in configs}
    with Sweep(console, multiprocessing.get_context("fork"), n_jobs) as sweep:
        outcomes = sweep.run_all(runs, warmups)
    return [outcomes[folder] for folder in runs], text.getvalue()


def claimed(settings: GymConfig) -> Run:
    """The run, held by this process."""
    folder = plan(Path(settings.results), settings.plain)
    run = claim(folder, settings.plain, seeds={}, provenance=provenance())
    assert run is not None
    return run


def wait_until(condition: Any, seconds: float = 300.0) -> None:
    """So long only so that a test that fails ends: a start takes a second, or a minute where many
    wait for the processor."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "grpo_bench.run", *arguments, *AS_THEY_SAY]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # a group of its own, as in a terminal: Ctrl-C goes to all of it
    process = subprocess.Popen(  # type: ignore[call-overload]
        line, cwd=folder, text=True, start_new_session=True, preexec_fn=hear_interrupts, **pipes
    )
    STARTED.append(process)
    return process  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """A test that fails leaves no sweep behind."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stopped(process: subprocess.Popen[str], number: int) -> str:
    """The output of a process that gets this signal. The signal is repeated if nothing happens:
    Python drops the exception of one that arrives inside a callback of its own."""
    for _ in range(6):
        os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=20)[0]
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"{signal.Signals(number).name} did not stop it: {process.communicate()}")


def statuses(results: Path) -> dict[str, str]:
    return {
        f"{path.parts[-3]} {path.parts[-2].split('-')[1]}": read_manifest(path.parent).status
        for path in sorted(results.glob("*/*/*/manifest.json"))
    }


def planned(env: str, algo: str = "ppo", seed: int = 1) -> GymConfig:
    """A run of any algorithm. Work: a 4 x 2 = 8, b 3 x 12 = 36, c 10 x 1 = 10."""
    transitions, n_steps, base = {
        "a": (4, 2, "format"),
        "b": (3, 12, "format"),
        "c": (10, 1, "vlm"),
    }[env]
    return config(
        Path("x"),
        *(f"env={base}", f"env.name={env}", f"env.train.n_steps={n_steps}", f"algo={algo}"),
        *(f"budget.transitions={transitions}", f"seed={seed}"),
    )


def test_runs_that_differ_in_their_algorithm_take_turns_and_long_ones_come_first() -> None:
    """But first of all those without a warm-up, for which the others wait."""
    configs = [planned(*of) for of in product("abc", ("ppo", "grpo"), (1, 2))]
    order = [configs[i] for i in run_order(configs)]
    assert [(one.env.name, one.seed, one.algo.name) for one in order] == [
        *product("c", (1, 2), ("ppo", "grpo")),
        *product("b", (1, 2), ("ppo", "grpo")),
        *product("a", (1, 2), ("ppo", "grpo")),
    ]


def test_each_warm_up_that_runs_will_need_once_the_long_ones_first(tmp_path: Path) -> None:
    configs = [planned(*of) for of in product("acb", ("ppo", "grpo"), (1, 2))]
    runs = {plan(tmp_path, settings.plain): settings for settings in configs}
    assert [one.env.name for one in find_warmups(runs)] == ["b", "a"]
    for folder, settings in runs.items():
        if settings.env.name == "b":
            run = claim(folder, settings.plain, seeds={}, provenance=provenance())
            assert run is not None
            run.finish()
    assert [one.env.name for one in find_warmups(runs)] == ["a"]  # nothing needs b's


def test_a_warm_up_is_made_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And found by all runs; one that cannot be made fails in those that need it."""
    evaluate_few_problems("arithmetic", monkeypatch)
    small = ["env=arithmetic", "env.train.episodes=64", "budget.transitions=256", *SHORT_WARMUP]
    configs = [config(tmp_path / "a", *small, f"seed={seed}") for seed in (1, 2)]
    imitate = warmup.imitate

    def noted(*arguments: Any) -> Any:
        (tmp_path / f"maker-{os.getpid()}").touch()
        return imitate(*arguments)

    monkeypatch.setattr(warmup, "imitate", noted)
    ended, lines = run_all_of(*configs, warmups=configs[:1])
    assert [one.status for one in ended] == ["ok", "ok"]
    assert [line[:5] for line in lines.splitlines()] == ["[1/2]", "[2/2]"]
    (maker,) = (int(path.name.partition("-")[2]) for path in tmp_path.glob("maker-*"))
    runners = [json.loads((one.folder / "attempt-1.json").read_text())["pid"] for one in ended]
    assert maker not in runners

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no demonstrations")

    monkeypatch.setattr(warmup, "imitate", broken)
    settings = config(tmp_path / "b", *small)
    (failed,), lines = run_all_of(settings, warmups=[settings])
    assert failed.status == "failed"
    assert "failed (RuntimeError: no demonstrations)" in lines and lines.count("\n") == 1


def test_a_record_is_the_same_in_any_sweep_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, whoever made the warm-up."""
    evaluate_few_problems("arithmetic", monkeypatch)
    small = ["env=arithmetic", "env.train.episodes=64", "budget.transitions=256", *SHORT_WARMUP]
    places = {"alone": 0, "one": 1, "two": 2}
    folders = []
    for place, n_jobs in places.items():
        configs = [
            config(tmp_path / place, *small, f"algo={algo}", "seed=4") for algo in ("ppo", "grpo")
        ]
        if n_jobs:
            folders.append([ended.folder for ended in run_all_of(*configs, n_jobs=n_jobs)[0]])
        else:
            folders.append([execute(settings) for settings in configs])
    for alone, *others in zip(*folders, strict=True):
        for other in others:
            assert (alone / "eval.parquet").read_bytes() == (other / "eval.parquet").read_bytes()
            frames = []
            for folder in (alone, other):
                frame = pd.read_parquet(folder / "metrics.parquet")
                frame = frame[~frame["metric"].str.match("(time|memory)/")]
                frames.append(frame.drop(columns=["seconds", "peak_bytes"]))
            pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_a_run_that_is_killed_stays_in_the_denominator_and_is_redone(tmp_path: Path) -> None:
    first, second = (config(tmp_path, *QUICK, "algo=grpo", f"seed={seed}") for seed in (1, 2))
    forever = config(tmp_path, *LONG, "algo=grpo")

    def killer() -> None:
        folder = plan(tmp_path, forever.plain)
        wait_until(lambda: holder(folder) is not None)
        os.kill(holder(folder).pid, signal.SIGKILL)  # type: ignore[union-attr]

    thread = threading.Thread(target=killer)
    thread.start()
    ended, lines = run_all_of(forever, first, second, n_jobs=1)
    thread.join()
    assert [one.status for one in ended] == ["killed", "ok", "ok"]
    assert ") seed=1: killed (the process was ended by signal 9 (SIGKILL)), see" in lines
    assert [line[:5] for line in lines.splitlines()] == ["[1/3]", "[2/3]", "[3/3]"]
    ended, lines = run_all_of(first, second)
    assert lines.count("already done") == 2
    assert {read_manifest(one.folder).attempt for one in ended} == {1}


def test_a_run_out_of_time(tmp_path: Path) -> None:
    (ended,), lines = run_all_of(config(tmp_path, *LONG, "timeout_s=1"))
    assert ended.status == "timeout"
    assert "timeout (longer than timeout_s=1)" in lines
    assert read_manifest(ended.folder).status == "timeout"


def test_a_run_that_fails_says_why_in_its_line(tmp_path: Path) -> None:
    settings = config(tmp_path, *QUICK, "env.train.episodes=100")  # only ``check`` sees this
    (ended,), lines = run_all_of(settings)
    assert ended.status == "failed"
    assert (
        "failed (ValueError: env.train.episodes=100: expected a multiple" in lines
        and lines.count("\n") == 1
    )


def test_a_run_whose_exception_has_several_lines_shows_its_type_and_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escape sequences do not reach the terminal."""

    def broken(*_: Any) -> None:
        raise ValueError(
            "boom \x1b[2J\x1b]0;owned\x07here\n[red]markup[/red]\ngrad_fn=<SubBackward0>)"
        )

    monkeypatch.setattr("grpo_bench.runs.job.make_model", broken)
    (ended,), lines = run_all_of(config(tmp_path, *QUICK))
    assert f"failed (ValueError: boom here), see {ended.folder}" in lines
    assert lines.count("\n") == 1 and "\x1b" not in lines
    assert "[red]markup[/red]" in (ended.folder / "error.txt").read_text()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize("name", ["metrics.parquet", "eval.parquet"])
@pytest.mark.parametrize("harm", [_cut, Path.unlink])
def test_a_damaged_table_is_named_and_its_run_is_done_again(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    first, second, third = (config(tmp_path, *QUICK, f"seed={seed}") for seed in (1, 2, 3))
    (done, _), _ = run_all_of(first, second)
    harm(done.folder / name)
    found = load_summaries(tmp_path).runs.set_index("seed")
    if harm is Path.unlink or name == "metrics.parquet":  # summaries do not open eval.parquet
        assert list(found["status"]) == ["planned", "ok"] and name in found["problem"][1]
    (again, kept, new), lines = run_all_of(first, second, third)
    assert [one.status for one in (again, kept, new)] == ["ok", "ok", "ok"]
    assert f"executed again: {done.folder / name}: " in lines
    assert lines.count("already done: vlm grpo seed=2") == 1
    assert [read_manifest(one.folder).attempt for one in (again, kept, new)] == [2, 1, 1]
    assert again.score == done.score
    harm(again.folder / name)
    execute(first)  # alone
    assert read_manifest(again.folder).attempt == 3 and (again.folder / name).exists()


def test_one_allowed_processor_is_one_process_at_a_time(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        process = start(tmp_path, "-m", *QUICK, "algo=grpo", "seed=1,2")
    finally:
        os.sched_setaffinity(0, allowed)
    process.communicate(timeout=300)
    assert process.returncode == 0
    found = [read_manifest(path.parent) for path in (tmp_path / "runs").glob("*/*/*/manifest.json")]
    assert {one.concurrency for one in found} == {1}
    assert {one.provenance.cores for one in found if one.provenance} == {1}


@pytest.mark.parametrize(
    ("how", "note", "attempts"),
    [("ok", "done elsewhere: ", 1), ("failed", "done elsewhere: ", 1), ("killed", "", 2)],
)
def test_a_run_that_another_process_is_at_work_on(
    tmp_path: Path, how: Any, note: str, attempts: int
) -> None:
    """It is waited for; what is cut off there is done here, what failed there has had its try."""
    settings = config(tmp_path, *QUICK)
    run = claimed(settings)
    thread = threading.Timer(1.0, run.finish, [how, None if how == "ok" else "Error: there"])
    thread.start()
    (ended,), lines = run_all_of(settings)
    thread.join()
    assert f"process {os.getpid()} on " in lines.splitlines()[0]
    assert f"[1/1] {note}vlm grpo seed=1" in lines
    assert ended.status == ("failed" if how == "failed" else "ok")
    assert read_manifest(run.folder).attempt == attempts


def test_a_run_that_is_deleted_while_it_is_waited_for_is_done_here(tmp_path: Path) -> None:
    """As the line says that one may, where the other process is not there any more."""
    settings = config(tmp_path, *QUICK)
    thread = threading.Timer(1.0, shutil.rmtree, [claimed(settings).folder])
    thread.start()
    (ended,), _ = run_all_of(settings)
    thread.join()
    assert ended.status == "ok"


def test_a_single_run_leaves_alone_what_another_process_is_at_work_on(tmp_path: Path) -> None:
    run = claimed(config(tmp_path / "runs"))
    done = start(tmp_path, "device=auto")
    said, _ = done.communicate()
    assert done.returncode == 1
    assert f"running (in process {os.getpid()} on " in said and "Traceback" not in said
    run.finish("failed", "so")


def test_a_full_disk_leaves_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = (config(tmp_path, *QUICK, f"seed={seed}") for seed in (1, 2))
    write = store.write_atomically

    def full(path: Path, data: bytes) -> None:
        if "seed2" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomically", full)
        ended, lines = run_all_of(good, bad)
    assert [one.status for one in ended] == ["ok", "failed"]
    assert f"No space left on device: '{ended[1].folder}" in lines
    ended, _ = run_all_of(good, bad)
    assert [one.status for one in ended] == ["ok", "ok"]
    assert [read_manifest(one.folder).attempt for one in ended] == [1, 2]


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ValueError, match="runs: cannot be made a folder"):
        run_all([config(tmp_path / "runs", *QUICK)])
    done = start(tmp_path)
    said, _ = done.communicate()
    assert done.returncode == 1
    assert said == "results=runs: cannot be made a folder (File exists)\n"


@pytest.mark.parametrize("name", ["with space", "ü/λ", "a=b", "trailing/"])
def test_odd_names_of_the_results_folder(tmp_path: Path, name: str) -> None:
    settings = config(Path(f"{tmp_path}/{name}"), *QUICK)
    (ended,) = run_all([settings.changed({"results": f"{tmp_path}/{name}"})], n_jobs=1)
    assert ended.status == "ok" and ended.score > 0
    assert (tmp_path / name / "tables").is_dir()


def test_what_a_sweep_refuses(tmp_path: Path) -> None:
    settings = config(tmp_path, *QUICK)
    with pytest.raises(ValueError, match="episodes=2048: expected a multiple of group_size=6"):
        run_all([settings, config(tmp_path, *QUICK, "algo.group_size=6")])
    for n_jobs in (0, -1):
        with pytest.raises(ValueError, match=f"n_jobs={n_jobs}: expected a whole number"):
            run_all([settings], n_jobs)
    with pytest.raises(ValueError, match="expected one folder for all runs of a sweep"):
        run_all([settings, config(tmp_path / "other", *QUICK)])
    assert not list(tmp_path.iterdir())
    damaged = plan(tmp_path, settings.plain) / "manifest.json"
    damaged.write_text("{")
    with pytest.raises(ValueError, match=re.escape(f"{damaged}: not JSON")):
        run_all([settings])


def test_a_sweep_that_is_stopped(tmp_path: Path) -> None:
    sweep = start(tmp_path, "-m", *LONG, "algo=grpo,ppo", "seed=1,2", "hydra.launcher.n_jobs=2")
    begun = {"grpo seed1": "running", "ppo seed1": "running"}
    wait_until(lambda: begun.items() <= statuses(tmp_path / "runs").items())
    said = stopped(sweep, signal.SIGINT)  # Ctrl-C
    assert sweep.returncode == 130
    assert said == "Stopped. The same command goes on with what is missing.\n"
    assert statuses(tmp_path / "runs") == {
        "grpo seed1": "killed",
        "grpo seed2": "planned",
        "ppo seed1": "killed",
        "ppo seed2": "planned",
    }


@pytest.mark.parametrize("attempt", range(2))
def test_sigterm_to_the_whole_group_leaves_no_run_running(tmp_path: Path, attempt: int) -> None:
    """As Slurm, systemd and containers stop a job."""
    process = start(tmp_path, "-m", *LONG, "algo=grpo,ppo", "hydra.launcher.n_jobs=2")
    wait_until(lambda: list(statuses(tmp_path / "runs").values()) == ["running", "running"])
    os.killpg(process.pid, signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert list(statuses(tmp_path / "runs").values()) == ["killed", "killed"], told
    assert process.returncode == 130 and "Traceback" not in told


def test_a_fork_server_that_is_killed_while_it_starts_is_one_line(tmp_path: Path) -> None:
    """As by the kernel, for lack of memory: one of its imports does not come back."""
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    program = (
        "import runpy, sys; from grpo_bench.runs import processes; processes.PRELOAD[:] = ['dies']"
        f"; sys.argv[1:] = {['-m', *QUICK, *AS_THEY_SAY]!r}"
        "; runpy.run_module('grpo_bench.run', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert "was killed while it started" in done.stderr and done.stderr.count("\n") == 1


def test_a_run_that_is_stopped(tmp_path: Path) -> None:
    run = start(tmp_path, *LONG)
    wait_until(lambda: statuses(tmp_path / "runs") == {"grpo seed1": "running"})
    said = stopped(run, signal.SIGTERM)
    assert run.returncode == 130
    assert said == "Stopped. The same command goes on with what is missing.\n"
    assert statuses(tmp_path / "runs") == {"grpo seed1": "killed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The record says "killed", though the signal comes before the run has begun."""

    def interrupted(*args: Any, **keywords: Any) -> Run | None:
        run = claim(*args, **keywords)
        signal.raise_signal(number)
        return run

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grpo_bench.runs.job.claim", interrupted)
    before = {one: signal.signal(one, interrupt) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(config(tmp_path, *QUICK))
        assert {one: signal.getsignal(one) for one in before} == dict.fromkeys(before, interrupt)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert set(statuses(tmp_path).values()) == {"killed"}


@pytest.mark.slow
def test_a_sweep_that_is_killed_takes_its_runs_along_and_the_next_redoes_them(
    tmp_path: Path,
) -> None:
    arguments = ["-m", "env=vlm", "algo=grpo", "seed=1,2", "budget.transitions=60_000"]
    arguments += ["budget.evaluations=1", "hydra.launcher.n_jobs=2"]
    first = start(tmp_path, *arguments)
    wait_until(lambda: "running" in statuses(tmp_path / "runs").values())
    first.kill()
    second, third = start(tmp_path, *arguments), start(tmp_path, *arguments)  # at once, both
    for sweep in (second, third):
        said, _ = sweep.communicate()
        assert sweep.returncode == 0, said
        assert "[2/2]" in said and "running" not in said
    assert set(statuses(tmp_path / "runs").values()) == {"ok"}
    attempts = [read_manifest(p.parent).attempt for p in tmp_path.glob("runs/*/*/*/manifest.json")]
    assert max(attempts) == 2  # what was cut off was done once more, and once only


def test_a_run_whose_sweep_is_gone_ends(tmp_path: Path) -> None:
    settings = config(tmp_path, *LONG)
    folder = plan(tmp_path, settings.plain)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    receiver.close()
    process = multiprocessing.get_context("fork").Process(
        target=child, args=(Job(settings, settings.name, folder), sender, 1), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert read_manifest(folder).status == "killed"
    assert "the sweep that this run belongs to is gone" in (folder / "error.txt").read_text()
    assert not settle(folder, "failed", "too late")


def test_what_is_left_of_a_warm_up_that_was_cut_off_harms_nobody(tmp_path: Path) -> None:
    settings = config(tmp_path, "env=arithmetic", *SHORT_WARMUP).env
    task, cache = task_of(settings), tmp_path / "warmup"
    weights, _ = warmed_up(task, settings, cache)
    (path,) = cache.glob("*.pt")
    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], b"nonsense"):
        path.write_bytes(broken)
        path.with_suffix(".lock").write_text("")  # a file that nobody holds locks nothing
        again, _ = warmed_up(task, settings, cache)
        for name, module in weights.items():
            assert all(bool((module[key] == again[name][key]).all()) for key in module)
    told: list[float] = []
    warmed_up(task, settings, cache, told.append)
    assert told == [0.0]  # found, not made


def test_progress_with_and_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["env=arithmetic", "env.train.episodes=64", "budget.transitions=256"]
    evaluate_few_problems("arithmetic", monkeypatch)
    settings = config(tmp_path / "a", *small, "env.warmup.steps=60")
    _, drawn = run_all_of(settings, force_terminal=True, width=79, color_system=None)
    assert "warm-up" in drawn and "training" in drawn
    assert "\x1b[?25h" in drawn[drawn.rindex("\x1b[?25l") :]  # the cursor is shown again
    frames = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n", drawn)
    assert max(len(frame) for frame in frames if "━" in frame) <= 79
    monkeypatch.setattr(processes, "SIGN_OF_LIFE", 0.0)
    settings = config(tmp_path / "b", *small, "env.warmup.steps=60")
    _, lines = run_all_of(settings)
    assert re.search(r"^arithmetic grpo seed=1: \d+ %, warm-up$", lines, re.MULTILINE)
    assert "\x1b" not in lines


def test_progress_of_one_run_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consoles, "SIGN_OF_LIFE", 0.0)
    with consoles.OneRun("vlm ppo seed=1") as one:
        one.show("warm-up", 0.25, float("nan"))
        one.show("training", 0.5, 0.75)
    assert capsys.readouterr().out.splitlines() == [
        "vlm ppo seed=1: 25 %, warm-up",
        "vlm ppo seed=1: 50 %, training, success 0.750",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_language_model_writes_is_no_markup(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consoles, "SIGN_OF_LIFE", 0.0)
    monkeypatch.setattr(consoles, "REFRESH", 0.0)
    if terminal:
        console = partial(Console, force_terminal=True, width=100)
        monkeypatch.setattr(consoles, "Console", console)
    with consoles.OneRun("a [b]") as one:
        one.show("reward 0.50, '[/INST] 42'", 0.5, float("nan"))
    told = capsys.readouterr().out
    assert "a [b]" in told and "50 %" in told and "reward 0.50, '[/INST] 42'" in told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_forked_process_reports_the_memory_of_one_that_did_its_imports_itself() -> None:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        before = resident_bytes()
        map_pages_of(os.getppid())
        os.write(writer, f"{before} {resident_bytes()}".encode())
        os._exit(0)
    os.waitpid(process, 0)
    before, after = map(int, os.read(reader, 100).split())
    assert before < 0.9 * resident_bytes()
    assert after == pytest.approx(resident_bytes(), rel=0.03)
