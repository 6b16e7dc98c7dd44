"""How many processors this process may use: not those of the machine, but its own share."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/")


def usable_cpus(root: Path = ROOT) -> int:
    """Whole processors that this process may use, at least 1: what ``taskset``, Slurm and cpusets
    leave it, within the quota of its control groups (containers, ``systemd``).

    Args:
        root: of the file system that describes the control groups.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *map(int, _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    """The processors that each control group around this process may use, where one has a limit.
    See https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max) and cgroup-v1 (cfs_quota)."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, "cpu")]
        else:
            continue
        # Inside a container the path may be that of the host: the mount itself is always looked at.
        inside = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
        found += [_quota(mount / part) for mount in mounts for part in inside]
    return [quota for quota in found if quota is not None]


def _quota(group: Path) -> float | None:
    """The limit of one control group; None without one."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return None
