"""``make gpu``: its parts and their limits, without a card."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import psutil
import pytest
import torch

from grpo_bench.config import composed
from grpo_bench.meter import provenance

ROOT = Path(__file__).resolve().parents[2]
# a child that sleeps, and can be told from others by its last argument
SLEEPER = (
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', r'{out}'])"
)


@pytest.fixture
def gpu(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("gpu")


@pytest.fixture
def with_a_card(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(provenance(), accelerator="a card")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "provenance", lambda device: machine)


def parts(gpu: ModuleType, *codes: str, limit: int = 30) -> list:
    return [gpu.Part(f"part{i}", "", ("-c", code), limit) for i, code in enumerate(codes)]


def test_the_plan_fits_into_its_time(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(part.limit for part in gpu.PARTS) <= gpu.WHOLE == 8 * 60
    gpu.main(["--dry-run"])
    *lines, total = capsys.readouterr().out.splitlines()
    assert len(lines) == len({part.name for part in gpu.PARTS})
    for part, line in zip(gpu.PARTS, lines, strict=True):
        assert line.startswith(f"{part.limit:4} s  {part.name}: python ")
    assert total.endswith("at most")


def test_what_is_run_is_there(gpu: ModuleType) -> None:
    for part in gpu.PARTS:
        script = part.command[0]
        assert script == "-m" or (ROOT / script).is_file()


def test_the_sweeps_compose(gpu: ModuleType, tmp_path: Path) -> None:
    """Each of their configurations, but on the CPU."""
    for part in gpu.PARTS:
        if "grpo_bench.run" not in part.command:
            continue
        given = [word.format(out=tmp_path) for word in part.command[3:]]
        choices = [
            [f"{w.split('=')[0]}={one}" for one in w.split("=")[1].split(",")] for w in given
        ]
        for chosen in itertools.product(*choices):
            settings = [word for word in chosen if not word.startswith("hydra")]
            assert composed(*settings).device == "cuda"


def test_without_a_card(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--out", str(tmp_path / "gpu")])
    assert "there is no CUDA device here" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


@pytest.mark.usefixtures("with_a_card")
def test_what_fails_is_told_and_the_rest_goes_on(gpu: ModuleType, tmp_path: Path) -> None:
    chosen = parts(gpu, "print('one')", "raise SystemExit('broken')", "open(r'{out}/three', 'w')")
    with pytest.raises(SystemExit, match="Not ok: part1"):
        gpu.main(["--out", str(tmp_path)], chosen)
    table = pd.read_csv(tmp_path / "gpu.csv")
    assert table["part"].tolist() == ["part0", "part1", "part2"]
    assert table["status"].tolist() == ["ok", "failed", "ok"]
    assert set(table["card"]) == {"a card"}
    assert (tmp_path / "part0.log").read_text() == "one\n"
    assert (tmp_path / "part1.log").read_text() == "broken\n"
    assert (tmp_path / "three").exists()


@pytest.mark.usefixtures("with_a_card")
def test_all_is_well(gpu: ModuleType, tmp_path: Path) -> None:
    gpu.main(["--out", str(tmp_path)], parts(gpu, "pass"))
    assert pd.read_csv(tmp_path / "gpu.csv")["status"].tolist() == ["ok"]


def test_a_part_is_stopped_with_all_that_it_has_started(gpu: ModuleType, tmp_path: Path) -> None:
    (part,) = parts(gpu, SLEEPER, limit=1)
    assert gpu.run_part(part, tmp_path).status == "out of time"
    for _ in range(50):  # the system needs a moment to bury them
        left = [
            p
            for p in psutil.process_iter(["cmdline"])
            if str(tmp_path) in (p.info["cmdline"] or [])
        ]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {left}")
