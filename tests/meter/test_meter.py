"""Time, memory and provenance."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grpo_bench.meter import (
    Phases,
    code_digest,
    gradient_bytes,
    module_bytes,
    optimizer_bytes,
    peak_bytes,
    peak_resident_bytes,
    provenance,
    reset_peak,
    resident_bytes,
)
from grpo_bench.meter.provenance import checkout_state

MB = 1_000_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")


@linux
def test_peak_sees_an_allocation_that_is_gone():
    if not reset_peak():
        pytest.skip("this kernel does not let the peak be reset")
    before = resident_bytes()
    np.ones(64 * MB, dtype=np.uint8)  # touched, and freed at once
    raised = peak_resident_bytes() - before
    assert 60 * MB < raised < 80 * MB
    assert reset_peak()
    assert peak_bytes("cpu") - before < 30 * MB


@linux
def test_child_does_not_inherit_the_peak_of_its_parent():
    grown = np.ones(400 * MB, dtype=np.uint8)
    assert peak_resident_bytes() > 400 * MB
    code = "from grpo_bench.meter import peak_resident_bytes as p; print(p())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(child.stdout) < 300 * MB
    del grown


def test_a_reset_that_fails_returns_false(monkeypatch, tmp_path):
    monkeypatch.setattr("grpo_bench.meter.memory._CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert reset_peak() is False


def test_fallback_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr("grpo_bench.meter.memory._STATUS", tmp_path / "none")
    assert peak_resident_bytes() >= resident_bytes() * 0.9


def test_meter_does_not_import_torch():
    code = "import sys, grpo_bench.meter; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_bytes_by_component_by_hand():
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    # Parameters 3*5 + 5 + 5 + 5 = 30 floats; buffers 5 + 5 floats and one int64 counter.
    assert module_bytes(module) == 30 * 4 + 10 * 4 + 8
    assert gradient_bytes(module) == 0
    optimizer = torch.optim.Adam(module.parameters())
    assert optimizer_bytes(optimizer) == 0
    module(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert gradient_bytes(module) == 30 * 4
    # Two moments per parameter, and one float32 step counter for each of the four tensors.
    assert optimizer_bytes(optimizer) == 2 * 30 * 4 + 4 * 4


def test_shared_tensors_count_once():
    layer = nn.Linear(3, 3, bias=False)
    other = nn.Linear(3, 3, bias=False)
    other.weight = layer.weight
    assert module_bytes(nn.ModuleList([layer, other])) == 9 * 4


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = [0.0]
    monkeypatch.setattr("grpo_bench.meter.clock.time.perf_counter", lambda: now[0])
    return now


def test_phases_add_up_and_never_count_twice(clock):
    phases = Phases()
    for _ in range(2):
        with phases("update"):
            clock[0] += 1
            with phases("evaluation"):
                clock[0] += 10
                with phases("rollout"):
                    clock[0] += 100
            clock[0] += 2
        clock[0] += 1000  # in no phase
    assert phases.seconds == {"rollout": 200, "evaluation": 20, "update": 6}


def test_phase_inside_itself_and_an_exception(clock):
    phases = Phases()

    def fail():
        with phases("a"):
            clock[0] += 1
            with phases("a"):
                clock[0] += 1
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    with phases("b"):
        clock[0] += 5
    assert phases.seconds == {"a": 2, "b": 5}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_on_a_card_is_the_allocators():
    reset_peak("cuda")
    before = peak_bytes("cuda")
    torch.ones(64 * MB, dtype=torch.uint8, device="cuda")
    assert 64 * MB <= peak_bytes("cuda") - before < 70 * MB
    with Phases("cuda")("update"):
        pass


def test_provenance_is_of_this_process():
    origin = provenance("cpu")
    assert origin.accelerator is None
    assert origin.threads == torch.get_num_threads()
    assert torch.__version__.startswith(origin.versions["torch"].split("+")[0])
    assert origin.processor
    assert origin.code_digest == code_digest()
    assert len(code_digest()) == 64


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_checkout_state(tmp_path, monkeypatch):
    package = tmp_path / "grpo_bench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert checkout_state(package) == (None, None)
    git(tmp_path, "init", "-q")
    assert checkout_state(package) == (None, None)  # inside a checkout that does not track it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert checkout_state(package) == (commit, False)
    (tmp_path / "notes.txt").write_text("not code")
    assert checkout_state(package) == (commit, False)
    (package / "new.py").write_text("")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as inside a hook
    assert checkout_state(package) == (commit, True)
