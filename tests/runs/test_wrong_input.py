"""Wrong input of every program: one line that names it, no traceback, and nothing is written."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from support.interrupts import hear_interrupts, ignore_interrupts
from support.run_records import record, values

from grpo_bench.config.resolve import CONF, print_tuned, tuned_file

SWEEP = ["-m", "grpo_bench.run", "-m", "env=vlm", "budget=smoke"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with records in ``runs``, and ``file``, which is none."""
    record(tmp_path / "runs", "grpo", 1, values(0.5, 1000, 2e8))
    record(tmp_path / "runs", "ppo", 1, values(0.5, 1000, 2e8))
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "keys", "message"),
    [
        ("tables", ["results=nowhere"], "nowhere: no records"),
        ("tables", ["results=file"], "file: no records"),
        ("tables", ["results=runs", "reference=xyz"], "reference=xyz: expected an algorithm"),
        ("tables", ["results=runs", "html=maybe"], "html=maybe: expected true or false"),
        ("tables", ["results=runs", "check=2"], "check=2: expected true or false"),
        ("tables", ["results=runs", "out=file"], "file"),
        ("tables", ["results=runs", "out=file/tables"], "file/tables"),
        ("pack", ["results=nowhere"], "nowhere: no records"),
        ("pack", ["results=runs", "out=file"], "file"),
        ("pack", ["results=runs", "metrics=x"], "metrics=x: expected a list"),
        ("tune", ["trials=0"], "trials=0: expected a whole number"),
        ("tune", ["algos=[nope]"], "algos=nope: no space"),
        ("tune", ["envs=[nope]"], "envs=nope: expected one of"),
        ("tune", ["out=file"], "out=file: cannot be made a folder"),
        ("run", ["tuned=xyz"], "tuned=xyz: expected none, or the name of a file in conf/tuned"),
        ("run", ["results=file", "budget=smoke"], "results=file: cannot be made a folder"),
        ("run", ["results=/proc/x", "budget=smoke"], "results=/proc/x: cannot be made a folder"),
        ("run", ["seed=x"], "seed=x: expected a whole number"),
        ("plan", ["memory=lots"], "memory=lots: expected 16GB"),
    ],
)
def test_it_is_named_and_nothing_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, program: str, keys: list[str], message: str
) -> None:
    before = sorted(place.rglob("*"))
    monkeypatch.setattr(sys, "argv", [program, *keys])
    with pytest.raises(SystemExit, match=message) as ended:
        importlib.import_module(f"grpo_bench.{program}").main()
    assert "\n" not in str(ended.value.code)
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("run env=vlmm", "env=vlmm: unknown, did you mean env=vlm?"),
        ("run algo=grop", "algo=grop: unknown, did you mean algo=grpo?"),
        ("run algo=lm/ppo_lor", "algo=lm/ppo_lor: unknown, did you mean algo=lm/ppo_lora?"),
        ("run budget=smok", "budget=smok: unknown, did you mean budget=smoke?"),
        ("run budget=x", "budget=x: unknown, expected one of default, full, smoke, tuning"),
        ("run -m env=vlmm,vlm", "env=vlmm: unknown, did you mean env=vlm?"),
        ("run sed=1", "sed=1: unknown key, did you mean seed=1?"),
        ("run -m sed=1,2", "sed=1,2: unknown key, did you mean seed=1,2?"),
        ("run ~seeed", "~seeed: unknown key, did you mean ~seed?"),
        ("run clip_range=0.1", "clip_range=0.1: unknown key, did you mean algo.clip_range=0.1?"),
        (
            "run algo.clip_rnage=0.3",
            "algo.clip_rnage=0.3: unknown key, did you mean algo.clip_range=0.3?",
        ),
        (
            "run algo=ppo algo.vf_ceof=1",
            "algo.vf_ceof=1: unknown key, did you mean algo.vf_coef=1?",
        ),
        (
            "run algo=ppo critic=shared",
            "critic=shared: unknown key, did you mean algo.critic=shared?",
        ),
        ("run algo.clip_daul=3", "algo.clip_daul=3: unknown key, did you mean algo.clip_dual=3?"),
        ("run colour=blue", "colour=blue: unknown key, --help lists all keys"),
        ("run +seed=1", "seed has a value already: expected seed=value, or ++seed=value"),
        ("run seed=1 seed=2", "seed=1 seed=2: seed is given twice, expected one value"),
        ("run seed=1,2", "seed=1,2: several values, expected -m beside them, or seed=[1,2]"),
        (
            "tune budget=smoke",
            "budget=smoke: the trials have this key, expected overrides=[budget=smoke]",
        ),
        ("tune trails=3", "trails=3: unknown key, did you mean trials=3?"),
        ("tables refrence=ppo", "refrence=ppo: unknown key, did you mean reference=ppo?"),
        ("plan env=vlmm", "env=vlmm: unknown, did you mean env=vlm?"),
        ("pack otu=x", "otu=x: unknown key, did you mean out=x?"),
    ],
)
def test_what_may_have_been_meant(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str, line: str
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    program, *keys = command.split()
    monkeypatch.setattr(sys, "argv", [program, *keys])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"grpo_bench.{program}").main()
    assert ended.value.code == line


def test_tuned_settings_of_the_folder_come_first(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``conf/tuned`` in the current folder wins; a folder ``conf`` of another program is not
    read."""
    tuned = place / "conf" / "tuned" / "vlm" / "grpo.yaml"
    tuned.parent.mkdir(parents=True)
    tuned.write_text("# @package _global_\nalgo:\n  clip_range: 0.123\n")
    for foreign in (False, True):
        if foreign:
            (place / "conf" / "config.yaml").write_text("x: 1\n")
        with initialize_config_dir(str(CONF), version_base="1.3"):
            assert (compose("config").algo.clip_range == 0.123) != foreign
        assert (tuned_file({"env": "vlm", "algo": "grpo", "tuned": "vlm/grpo"}) == tuned) != foreign
    (place / "conf" / "config.yaml").unlink()
    print_tuned([tuned, None])
    assert capsys.readouterr().out == "Tuned settings from conf/tuned: vlm/grpo\n"


def test_a_sweep_asked_for_what_was_not_tuned(place: Path) -> None:
    """Algorithms without a file in conf/tuned run as their own says; a name that is none is wrong,
    and no run of the sweep starts."""
    line = [sys.executable, *SWEEP, "seed=1", "algo=a2c", "tuned=none,xyz", "results=new"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "tuned=xyz: expected none, or the name of a file in conf/tuned\n"
    assert not (place / "new").exists()


@pytest.mark.parametrize("program", ["tables", "pack", "oracle", "plan", "tune"])
def test_help_is_about_the_program(place: Path, program: str) -> None:
    """And not Hydra's list of groups that it does not have."""
    line = [sys.executable, "-m", f"grpo_bench.{program}", "--help"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert f"python -m grpo_bench.{program}" in said.splitlines()[0] + said.splitlines()[2]
    assert "Powered by Hydra" not in said


def test_stopped_programs_say_so(place: Path) -> None:
    code = (
        "import os, signal\n"
        "from grpo_bench.runs.stopping import stopping\n"
        "stopping(lambda: os.kill(os.getpid(), signal.{name}))"
    )
    for name in ("SIGINT", "SIGTERM"):
        line = [sys.executable, "-c", code.format(name=name)]
        done = subprocess.run(line, capture_output=True, text=True, preexec_fn=hear_interrupts)
        assert (done.returncode, done.stderr) == (130, "Stopped.\n"), name


def test_a_program_in_the_background_ignores_ctrl_c() -> None:
    """As every program that a shell starts with ``&`` or ``nohup``."""
    code = (
        "import os, signal\n"
        "from grpo_bench.runs.stopping import stopping\n"
        "stopping(lambda: os.kill(os.getpid(), signal.SIGINT))"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, preexec_fn=ignore_interrupts)
    assert (done.returncode, done.stderr) == (0, "")
