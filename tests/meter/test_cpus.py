"""The processors that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_bench.meter.cpus import usable_cpus

ALLOWED = 8


def group(root: Path, of: str, **files: str) -> Path:
    """The description of a process in these control groups; ``files``: path to content."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(of)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("of", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, ALLOWED),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, ALLOWED),
        ("0::/\n", {}, ALLOWED),
        ("0::/\n", {"cpu.max": "nonsense"}, ALLOWED),
        # the group's own limit, and that of a group around it
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        # a container that sees the path of its host
        ("0::/docker/1f\n", {"cpu.max": "300000 100000"}, 3),
        # version 1
        (
            "4:memory:/x\n3:cpu,cpuacct:/job\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "400000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "1\n"}, ALLOWED),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "10000"}, 2),
    ],
)
def test_quotas_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALLOWED)), raising=False)
    assert usable_cpus(group(tmp_path, of, **files)) == cpus


def test_without_control_groups(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) >= 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_affinity() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from grpo_bench.meter.cpus import usable_cpus; print(usable_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
