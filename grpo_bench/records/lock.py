"""Who works on a run. The n-th attempt at a run is the file ``attempt-<n>.json``, which names the
process that made it. The latest attempt holds the run while its process lives.

An attempt's file is created exclusively and never removed. So of any number of sweeps that find
attempt n dead, exactly one creates attempt n+1; a lock that is removed and made again could be
taken away from the one who just took it.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from grpo_bench.records.files import create
from grpo_bench.records.schema import RecordError

_SAME_START = 2.0  # seconds: start times are derived from the boot time, which clock steps move


@dataclass(frozen=True)
class Holder:
    """One process on one host. The start time tells it from a later one with the same pid."""

    pid: int
    host: str
    started: float  # seconds since the epoch

    def __str__(self) -> str:
        return f"{self.pid} on {self.host}"

    def alive(self) -> bool:
        """Whether the process may still be at work. One on another host cannot be asked, so it
        counts as alive; delete the run's folder if it is not."""
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and abs(process.create_time() - self.started) < _SAME_START
        except psutil.NoSuchProcess:
            return False


def latest_attempt(folder: Path) -> tuple[int, Holder | None]:
    """Number of the latest attempt and who made it; (0, None) before the first.

    Raises:
        RecordError: the attempt's file is damaged.
    """
    numbers = [int(path.stem.removeprefix("attempt-")) for path in folder.glob("attempt-*.json")]
    if not numbers:
        return 0, None
    path = _path(folder, max(numbers))
    try:
        return max(numbers), Holder(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: damaged ({error}); delete the folder to run anew") from None


def make_attempt(folder: Path, number: int) -> bool:
    """Try to make attempt ``number`` for this process; False if another process was first."""
    pid = os.getpid()
    holder = Holder(pid, socket.gethostname(), psutil.Process(pid).create_time())
    return create(_path(folder, number), json.dumps(asdict(holder)).encode() + b"\n")


def _path(folder: Path, number: int) -> Path:
    return folder / f"attempt-{number}.json"
