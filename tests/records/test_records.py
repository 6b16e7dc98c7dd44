"""Run records: names, claims, kills, full disks, and reading them back."""

import errno
import hashlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.run_records import ORIGIN

from grpo_bench.records import (
    STATUSES,
    RecordError,
    Run,
    claim,
    holder,
    identity,
    lock,
    plan,
    read_manifest,
    run_folder,
    settle,
)
from grpo_bench.records.files import read_parquet
from grpo_bench.records.load import load_results
from grpo_bench.records.lock import EXPIRY, latest_attempt, make_attempt
from grpo_bench.records.store import RunLost


def config(seed=1, algo="grpo", env="vlm", **others):
    names = {"env": {"name": env}, "algo": {"name": algo}, "budget": {"name": "smoke"}}
    return {**names, "seed": seed, **others}


def take(folder, configuration=None):
    return claim(folder, configuration or config(), seeds={"policy": 1}, provenance=ORIGIN)


def frame(n=3):
    return pd.DataFrame(
        {
            "problem_id": np.arange(n),
            "reward": np.linspace(0, 1, n),
            "success": np.ones(n),
            "length": np.full(n, 2),
            "format": np.zeros(n),
        }
    )


# -- names ----------------------------------------------------------------------------------------


def test_identity_is_of_what_determines_the_result():
    base = config(lr=0.1, results="a", progress=True)
    assert re.fullmatch("[0-9a-f]{8}", identity(base))
    assert identity(base) == identity(dict(reversed(base.items())))
    assert identity(base) == identity(base | {"results": "b", "progress": False, "timeout_s": 1})
    changes = [config(2, lr=0.1), config(lr=0.2), config(algo="ppo", lr=0.1), config()]
    assert len({identity(c) for c in [base, *changes]}) == 5


def test_identity_is_the_sha256_of_canonical_json():
    text = '{"config":{"seed":1},"schema_version":1}'
    assert identity({"seed": 1}) == hashlib.sha256(text.encode()).hexdigest()[:8] == "1574233d"


def test_folder_names_are_safe(tmp_path):
    odd = config(env="../up", algo=".hidden/ß")
    odd["budget"] = {"name": "a b"}
    relative = run_folder(tmp_path, odd).relative_to(tmp_path)
    assert re.fullmatch(r"_up/hidden_/a_b-seed1-[0-9a-f]{8}", relative.as_posix())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"seed": 1}, "env.name"),
        (config() | {"algo": "grpo"}, "algo.name"),
        (config(seed=1.5), "seed=1.5"),
        (config(lr=float("nan")), "JSON"),
        (config(lr=object()), "JSON"),
    ],
)
def test_bad_config_is_named(tmp_path, bad, words):
    with pytest.raises(ValueError, match=words):
        plan(tmp_path, bad)
    assert not list(tmp_path.iterdir())


# -- life of a run --------------------------------------------------------------------------------


def test_planned_running_ok(tmp_path):
    folder = plan(tmp_path, config())
    assert read_manifest(folder).status == "planned"
    run = take(folder)
    assert plan(tmp_path, config()) == folder  # planning again changes nothing
    manifest = read_manifest(folder)
    assert (manifest.status, manifest.attempt, manifest.end) == ("running", 1, None)
    assert manifest.provenance == ORIGIN
    assert take(folder) is None  # held by this process
    run.log(10, 1, 0.5, 100, {"a": 1.0, "b": 2})
    run.evaluation("test", 10, frame())
    run.extra["note"] = "x"
    run.finish()
    assert read_manifest(folder) == run.manifest
    assert (run.manifest.status, run.manifest.extra) == ("ok", {"note": "x"})
    assert take(folder) is None
    metrics = pq.read_table(folder / "metrics.parquet")
    names = ["transitions", "gradient_steps", "seconds", "peak_bytes", "metric", "value"]
    assert [str(t) for t in metrics.schema.types] == [
        *("int64", "int64", "double", "int64", "string", "double")
    ]
    assert metrics.to_pydict() == dict(
        zip(names, [[10, 10], [1, 1], [0.5, 0.5], [100, 100], ["a", "b"], [1.0, 2.0]], strict=True)
    )
    evaluation = pq.read_table(folder / "eval.parquet").to_pydict()
    assert list(evaluation) == [
        *("split", "transitions", "problem_id", "reward", "success", "length", "format")
    ]
    assert evaluation["reward"] == [0, 0.5, 1]
    assert evaluation["split"] == ["test"] * 3


@pytest.mark.parametrize("status", STATUSES[3:])
def test_a_run_that_did_not_end_well_is_claimed_again_and_starts_over(tmp_path, status):
    folder = plan(tmp_path, config())
    run = take(folder)
    run.log(10, 1, 0.5, 100, {"a": 1.0})
    run.finish(status, "the traceback")
    assert (folder / "error.txt").read_text() == "the traceback"
    (folder / "completions.jsonl").write_text("{}\n")  # of a language model
    again = take(folder)
    assert again.manifest.attempt == 2
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["attempt-1.json", "attempt-2.json", "manifest.json"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("bad"), "failed"),
        (MemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom"),
        (FloatingPointError("loss is nan"), "nan"),
        (TimeoutError(), "timeout"),
        (KeyboardInterrupt(), "killed"),
    ],
)
def test_exception_ends_the_run_and_passes_on(tmp_path, error, status):
    folder = plan(tmp_path, config())

    def work():
        with take(folder) as run:
            run.log(1, 1, 0.1, 1, {"a": 1.0})
            raise error

    with pytest.raises(type(error)):
        work()
    assert read_manifest(folder).status == status
    assert type(error).__name__ in (folder / "error.txt").read_text()
    assert pq.read_table(folder / "metrics.parquet").num_rows == 1


def test_leaving_the_block_is_ok_and_finish_has_the_last_word(tmp_path):
    with take(plan(tmp_path, config())) as run:
        pass
    assert read_manifest(run.folder).status == "ok"
    folder = plan(tmp_path, config(2))

    def work():
        with take(folder, config(2)) as run:
            run.finish("nan", "seen by the caller")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert read_manifest(folder).status == "nan"


def test_bad_calls_are_named(tmp_path):
    run = take(plan(tmp_path, config()))
    with pytest.raises(ValueError, match="running"):
        run.finish("running")
    with pytest.raises(ValueError, match="success"):
        run.evaluation("test", 1, frame().drop(columns="success"))
    run.evaluation("test", 1, frame())
    with pytest.raises(ValueError, match="as before"):
        run.evaluation("test", 1, frame().drop(columns="format"))


def test_same_content_same_bytes(tmp_path):
    contents = []
    for seed in (1, 2):
        with take(plan(tmp_path, config(seed)), config(seed)) as run:
            for step in range(50):
                run.log(step, step, step / 10, 1, {"loss": step**0.5, "nan": float("nan")})
            run.evaluation("test", 1, frame(100))
        contents.append([(run.folder / f"{n}.parquet").read_bytes() for n in ("metrics", "eval")])
    assert contents[0] == contents[1]


# -- other processes, kills, full disks -----------------------------------------------------------


def _contend(folder, barrier, won):
    barrier.wait(30)
    if take(folder) is not None:
        with won.get_lock():
            won.value += 1
    barrier.wait(30)  # the winner stays alive until all have tried


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("first", ["new", "dead"])
def test_exactly_one_of_many_sweeps_gets_a_run(tmp_path, first):
    context = multiprocessing.get_context("fork")
    for seed in range(8):
        folder = plan(tmp_path, config(seed))
        if first == "dead":
            _die(folder)
        barrier, won = context.Barrier(6), context.Value("i", 0)
        sweeps = [context.Process(target=_contend, args=(folder, barrier, won)) for _ in range(6)]
        for sweep in sweeps:
            sweep.start()
        for sweep in sweeps:
            sweep.join()
        assert [sweep.exitcode for sweep in sweeps] == [0] * 6
        assert won.value == 1


def _die(folder, before=lambda run: None):
    """Claim the run in another process, which then is killed."""
    pid = os.fork()
    if pid == 0:
        run = take(folder)
        before(run)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_kill_loses_nothing_that_was_flushed(tmp_path):
    def work(run):
        run.log(1, 1, 0.1, 1, {"a": 1.0})
        run.flush()
        run.log(2, 2, 0.2, 1, {"a": 2.0})

    folder = plan(tmp_path, config())
    _die(folder, work)
    results = load_results(tmp_path)
    assert list(results.runs["status"]) == ["running"]
    assert list(results.metrics["value"]) == [1.0]
    assert settle(folder, "oom", "killed by signal 9")
    assert not settle(folder, "killed", "too late")
    assert (read_manifest(folder).status, read_manifest(folder).attempt) == ("oom", 1)
    assert take(folder).manifest.attempt == 2


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_what_a_kill_leaves_of_a_file_goes_with_the_next_attempt(tmp_path, monkeypatch):
    def killed(run):
        run.log(1, 1, 0.1, 1, {"a": 1.0})
        monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        run.flush()

    folder = plan(tmp_path, config())
    _die(folder, killed)
    (left,) = folder.glob(".*")
    assert re.fullmatch(r"\.metrics\.parquet\.\d+\.tmp", left.name)
    other = folder / f".manifest.json.{os.getppid()}.tmp"  # its process lives
    mine = folder / ".mine.tmp"
    for path in (other, mine):
        path.touch()
    run = take(folder)
    assert sorted(folder.glob(".*")) == [other, mine]
    run.finish()


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_killed_between_its_attempt_and_its_first_manifest(tmp_path, monkeypatch):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    folder = plan(tmp_path, config())
    for attempt in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Run, "__init__", die)
            _die(folder)
        assert settle(folder, "killed", "killed by signal 9")
        manifest = read_manifest(folder)
        assert (manifest.status, manifest.attempt) == ("killed", attempt)
        assert not settle(folder, "failed", "too late")


def test_nothing_to_settle_while_it_runs(tmp_path):
    folder = plan(tmp_path, config())
    assert not settle(folder, "killed", "")
    take(folder)
    assert not settle(folder, "killed", "")
    assert read_manifest(folder).status == "running"


@pytest.mark.parametrize(("changed", "taken"), [("host", False), ("started", True), ("pid", True)])
def test_which_processes_count_as_alive(tmp_path, changed, taken):
    folder = plan(tmp_path, config())
    take(folder)
    path = folder / "attempt-1.json"
    found = json.loads(path.read_text())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    other = {"host": "another", "started": found["started"] - 60, "pid": gone.pid}
    path.write_text(json.dumps(found | {changed: other[changed]}))
    assert (take(folder) is not None) == taken


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"place": "another container"}])
def test_a_run_elsewhere_is_taken_over_when_it_is_silent(tmp_path, elsewhere):
    """Its process may have a pid that lives here, or none."""
    folder = plan(tmp_path, config())
    take(folder).log(1, 1, 0.1, 1, {"a": 1.0})
    path = folder / "attempt-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | elsewhere))
    assert holder(folder) is not None and take(folder) is None
    now = time.time()
    for ago, taken in ((0.9 * EXPIRY, False), (1.1 * EXPIRY, True)):
        os.utime(path, (now - ago, now - ago))
        assert (holder(folder) is None) == taken
    assert take(folder).manifest.attempt == 2
    assert [file.name for file in folder.glob(".now-*")] == []


def test_a_heartbeat_touches_the_file_until_the_run_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    folder = plan(tmp_path, config())
    run = take(folder)
    path = folder / "attempt-1.json"
    for _ in range(3):
        os.utime(path, (0, 0))
        until = time.monotonic() + 60
        while path.stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0
    run.finish()
    os.utime(path, (0, 0))
    time.sleep(0.1)
    assert path.stat().st_mtime == 0


def test_a_run_that_was_taken_over_writes_no_more(tmp_path):
    """A process that was stopped for longer than that, and goes on."""
    folder = plan(tmp_path, config())
    slow = take(folder)
    slow.log(1, 1, 0.1, 1, {"slow": 1.0})
    assert make_attempt(folder, 2)
    quick = Run(folder, replace(slow.manifest, attempt=2))
    quick.log(1, 1, 0.1, 1, {"quick": 1.0})
    quick.finish()
    with pytest.raises(RunLost, match="another process works on this run"), slow:
        slow.flush()
    assert read_manifest(folder).attempt == 2 and read_manifest(folder).status == "ok"
    assert read_parquet(folder / "metrics.parquet")["metric"].to_pylist() == ["quick"]


def test_full_disk_leaves_earlier_files_whole(tmp_path, monkeypatch):
    folder = plan(tmp_path, config())
    run = take(folder)
    run.log(1, 1, 0.1, 1, {"a": 1.0})
    run.flush()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("grpo_bench.records.files.os.fsync", full)
        run.log(2, 2, 0.2, 1, {"a": 2.0})
        with pytest.raises(OSError, match="No space"):
            run.flush()
        with pytest.raises(OSError, match="No space"):
            run.finish()
        with pytest.raises(OSError, match="No space"):
            plan(tmp_path, config(2))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    run.finish()
    assert pq.read_table(folder / "metrics.parquet").num_rows == 2


# -- reading --------------------------------------------------------------------------------------


def test_load_runs_of_every_status_in_order(tmp_path):
    for seed, status in zip([10, 2, 1, 3, 4, 5], STATUSES[2:], strict=True):
        run = take(plan(tmp_path, config(seed)), config(seed))
        run.log(seed, 1, 0.1, 1, {"a": float(seed)})
        run.evaluation("test", 1, frame(2))
        run.finish(status)
    take(plan(tmp_path, config(20)), config(20))
    plan(tmp_path, config(1, algo="a2c"))
    results = load_results(tmp_path)
    runs = results.runs
    assert list(runs["seed"]) == [1, 1, 2, 3, 4, 5, 10, 20]
    assert list(runs["algo"]) == ["a2c"] + ["grpo"] * 7
    assert list(runs["status"]) == [
        *("planned", "oom", "failed", "nan", "killed", "timeout", "ok", "running")
    ]
    assert runs["variant"].nunique() == 2
    assert runs["setting"].nunique() == 1
    assert list(results.metrics["value"]) == [1, 2, 3, 4, 5, 10]
    assert len(results.evaluations) == 12
    assert list(results.evaluations.columns[-2:]) == ["length", "format"]
    assert runs["run"][1] == run_folder(tmp_path, config(1)).relative_to(tmp_path).as_posix()


def test_components_that_an_environment_lacks_are_nan(tmp_path):
    for env, table in [("vlm", frame(2).drop(columns="format")), ("format", frame(2))]:
        with take(plan(tmp_path, config(env=env)), config(env=env)) as run:
            run.evaluation("test", 1, table)
    evaluations = load_results(tmp_path).evaluations
    assert list(evaluations["format"].isna()) == [False, False, True, True]


def test_folder_with_an_equals_sign_adds_no_column(tmp_path):
    with take(plan(tmp_path / "split=x", config())) as run:
        run.evaluation("test", 1, frame(1))
    assert list(load_results(tmp_path / "split=x").evaluations["split"]) == ["test"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:50], "not JSON"),
        (lambda text: b"\xff\xfe", "not JSON"),
        (lambda text: b"[]", "schema_version None, expected 1"),
        (lambda text: text.replace(b'"schema_version": 1', b'"schema_version": 99'), "version 99"),
        (lambda text: text.replace(b'"planned"', b'"great"'), "'great'"),
        (lambda text: text.replace(b'"attempt"', b'"attempts"'), "attempts"),
        (lambda text: text.replace(b'"name": "vlm"', b'"title": "vlm"'), "env.name"),
        (lambda text: text.replace(b'"provenance": null', b'"provenance": {"a": 1}'), "'a'"),
    ],
)
def test_damaged_manifest_is_named_and_counts_as_planned(tmp_path, damage, words):
    folder = plan(tmp_path, config(7))
    path = folder / "manifest.json"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=words) as caught:
        take(folder)
    assert str(path) in str(caught.value)
    (run,) = load_results(tmp_path).runs.to_dict("records")
    assert (run["env"], run["algo"], run["budget"], run["seed"]) == ("vlm", "grpo", "smoke", 7)
    assert run["status"] == "planned"
    assert words in run["problem"]
    assert str(tmp_path) not in run["problem"]


def test_missing_manifest_and_damaged_table_count_as_planned(tmp_path):
    with take(plan(tmp_path, config(1)), config(1)) as run:
        run.log(1, 1, 0.1, 1, {"a": 1.0})
    (run.folder / "metrics.parquet").write_bytes(b"PAR1 no more")
    (plan(tmp_path, config(2)) / "manifest.json").unlink()
    results = load_results(tmp_path)
    assert list(results.runs["status"]) == ["planned", "planned"]
    assert "metrics.parquet: not readable" in results.runs["problem"][0]
    assert "manifest.json: missing" in results.runs["problem"][1]
    assert results.metrics.empty


def test_no_runs_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no records"):
        load_results(tmp_path / "nowhere")


def test_damaged_attempt_is_named(tmp_path):
    folder = plan(tmp_path, config())
    take(folder)
    (folder / "attempt-1.json").write_text("{")
    with pytest.raises(RecordError, match=r"attempt-1\.json"):
        latest_attempt(folder)
