"""Does the meter read correctly on this machine? It measures known allocations in a fresh process.

The measured process is the child of one that holds much more memory, so an inherited peak
(``ru_maxrss``, which Linux carries over ``exec``) would show. Both end with the test and leave the
caller's peak alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from grpo_bench.meter.memory import peak_bytes, peak_resident_bytes, reset_peak, resident_bytes

MIB = 2**20
HELD = 300 * MIB  # bytes of the parent
BLOCK = 64 * MIB  # bytes that the child allocates, touches and frees
WITHIN = 4 * MIB  # tolerance of a reading: the kernel counts pages in batches

PARENT = (
    f"import subprocess, sys; held = b'1' * {HELD}; "
    "sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
)
CHILD = "import sys; from grpo_bench.meter.selftest import report; report(sys.argv[1])"


@dataclass(frozen=True)
class Check:
    """One reading, with its bounds."""

    what: str
    read: int  # bytes
    low: int  # least bytes that are right
    high: int  # most

    @property
    def passed(self) -> bool:
        """Whether the reading is within its bounds."""
        return self.low <= self.read <= self.high

    def __str__(self) -> str:
        read, low, high = (f"{size / MIB:,.1f}" for size in (self.read, self.low, self.high))
        return f"{self.what}: {read} MiB, expected {low} to {high}"


def self_test(device: str = "cpu") -> list[Check]:
    """Measure known allocations in a fresh process; on a CUDA device the allocator's, too.

    Returns:
        the checks; without the reset of the peak where ``reset_peak`` is not possible.

    Raises:
        RuntimeError: the meter reads wrongly here, or the measuring process failed.
    """
    command = [sys.executable, "-c", PARENT, "-c", CHILD, device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the meter's self-test failed: {done.stderr.strip()}")
    checks = [Check(*values) for values in json.loads(done.stdout)]
    for check in checks:
        if not check.passed:
            raise RuntimeError(f"the meter reads wrongly here: {check}")
    return checks


def report(device: str) -> None:
    """Take the readings in this process and print them as JSON."""
    checks = _of_process()
    if device.startswith("cuda"):
        checks += _of_card(device)
    print(json.dumps([[c.what, c.read, c.low, c.high] for c in checks]))


def _of_process() -> list[Check]:
    start, peak = resident_bytes(), peak_resident_bytes()
    checks = [Check(f"peak of a child whose parent holds {HELD // MIB} MiB", peak, 0, HELD // 2)]
    block = b"1" * BLOCK  # written, so resident
    taken = resident_bytes()
    checks += [
        _is_block(f"resident by {BLOCK // MIB} MiB taken", taken - start),
        _is_block("peak by the same", peak_resident_bytes() - start),
    ]
    del block
    checks += [
        _is_block("resident less when it is given back", taken - resident_bytes()),
        _is_block("peak after that", peak_resident_bytes() - start),
    ]
    if reset_peak():
        checks.append(_is_nothing("peak after a reset", peak_resident_bytes() - start))
    return checks


def _of_card(device: str) -> list[Check]:
    import torch

    start = int(torch.cuda.memory_allocated(device))
    block: Any = torch.ones(BLOCK, dtype=torch.uint8, device=device)
    checks = [_is_block(f"peak of {device} by {BLOCK // MIB} MiB", peak_bytes(device) - start)]
    del block
    checks.append(_is_block("peak after they are given back", peak_bytes(device) - start))
    reset_peak(device)
    return [*checks, _is_nothing("peak after a reset", peak_bytes(device) - start)]


def _is_block(what: str, read: int) -> Check:
    return Check(what, read, BLOCK - WITHIN, BLOCK + WITHIN)


def _is_nothing(what: str, read: int) -> Check:
    return Check(what, read, -WITHIN, WITHIN)
