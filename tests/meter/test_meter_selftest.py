"""The self-test of the meter: it passes here, and finds each kind of broken meter."""

import sys

import pytest
import torch

from grpo_bench.meter import selftest
from grpo_bench.meter.selftest import BLOCK, HELD, MIB, Check, self_test

linux = pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
NO_STATUS = (
    "import pathlib; from grpo_bench.meter import memory; memory._STATUS = pathlib.Path('-')"
)
NAMES = "from grpo_bench.meter import selftest as s"


@linux
def test_the_meter_is_right_here():
    whats = [check.what for check in self_test()]
    assert "300 MiB" in whats[0]
    assert len(whats) in (5, 6)  # the last one where the peak can be reset


@linux
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (NO_STATUS, "peak of a child whose parent holds"),  # ru_maxrss, which is inherited
        (f"{NAMES}; s.resident_bytes = lambda: 50_000_000", "resident by"),
        (f"{NAMES}; s.peak_resident_bytes = s.resident_bytes", "peak after that"),
        (f"{NAMES}; s.reset_peak = lambda: True", "peak after a reset"),
    ],
    ids=["inherits", "sees no allocation", "forgets", "cannot be reset"],
)
def test_a_broken_meter_is_found(monkeypatch, broken, found):
    monkeypatch.setattr(selftest, "CHILD", f"{broken}\n{selftest.CHILD}")
    with pytest.raises(RuntimeError, match=f"reads wrongly here: {found}"):
        self_test()


def test_a_child_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(selftest, "CHILD", "raise OSError('no such thing')")
    with pytest.raises(RuntimeError, match="OSError: no such thing"):
        self_test()


@linux
def test_the_calling_process_does_not_grow():
    before = selftest.peak_resident_bytes()
    self_test()
    assert selftest.peak_resident_bytes() - before < HELD // 4


def test_a_check_as_text():
    check = Check("peak", BLOCK // 2, BLOCK, 2 * BLOCK)
    assert not check.passed
    assert str(check) == "peak: 32.0 MiB, expected 64.0 to 128.0"
    assert Check("peak", BLOCK, BLOCK, BLOCK).passed
    assert BLOCK == 64 * MIB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_allocator_of_a_card():
    assert len(self_test("cuda")) == len(self_test()) + 3
