"""Who works on a run. The n-th attempt at a run is the file ``attempt-<n>.json``, which names the
process that made it. The latest attempt holds the run while its process lives.

A process on this machine can be looked up. One elsewhere, on another host or in another container,
touches the file of its attempt every ``BEAT`` seconds, and counts as dead when it has not done so
for ``EXPIRY`` seconds.

An attempt's file is created exclusively and never removed. So of any number of sweeps that find
attempt n dead, exactly one creates attempt n+1; a lock that is removed and made again could be
taken away from the one who just took it.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from grpo_bench.records.files import create
from grpo_bench.records.schema import RecordError

BEAT = 30.0  # seconds
EXPIRY = 300.0  # seconds
_SAME_START = 2.0  # seconds: start times are derived from the boot time, which clock steps move


@dataclass(frozen=True)
class Holder:
    """One process on one host. The start time tells it from a later one with the same pid."""

    pid: int
    host: str
    started: float  # seconds since the epoch
    place: str = ""  # which kernel and process namespace the pid belongs to; "" where unknown

    def __str__(self) -> str:
        return f"{self.pid} on {self.host}"

    def here(self) -> bool:
        """Whether this process can see whether that one lives."""
        return self.host == socket.gethostname() and self.place in ("", this_place())

    def alive(self, file: Path) -> bool:
        """Whether the process may still be at work.

        Args:
            file: of its attempt.
        """
        if not self.here():
            return silence(file) < EXPIRY
        try:
            process = psutil.Process(self.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and abs(process.create_time() - self.started) < _SAME_START
        except psutil.NoSuchProcess:
            return False


def silence(file: Path) -> float:
    """Seconds since a file was touched, by the clock of the file system: those of two hosts may
    differ."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".now-") as now:
        return os.stat(now.name).st_mtime - file.stat().st_mtime


@cache
def this_place() -> str:
    """The kernel that runs, and the namespace of its process ids: a container has its own."""
    found = []
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        with suppress(OSError):
            found.append(read())
    return " ".join(found)


class Heartbeat:
    """Touches the file of an attempt from time to time, until it is stopped."""

    def __init__(self, folder: Path, number: int) -> None:
        self._file, self._over = attempt_file(folder, number), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):
                os.utime(self._file)

    def stop(self) -> None:
        """The run has ended."""
        self._over.set()
        self._thread.join()


def latest_attempt(folder: Path) -> tuple[int, Holder | None]:
    """Number of the latest attempt and who made it; (0, None) before the first.

    Raises:
        RecordError: the attempt's file is damaged.
    """
    numbers = [int(path.stem.removeprefix("attempt-")) for path in folder.glob("attempt-*.json")]
    if not numbers:
        return 0, None
    path = attempt_file(folder, max(numbers))
    try:
        return max(numbers), Holder(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: damaged ({error}); delete the folder to run anew") from None


def make_attempt(folder: Path, number: int) -> bool:
    """Try to make attempt ``number`` for this process; False if another process was first."""
    pid = os.getpid()
    started = psutil.Process(pid).create_time()
    holder = Holder(pid, socket.gethostname(), started, this_place())
    return create(attempt_file(folder, number), json.dumps(asdict(holder)).encode() + b"\n")


def attempt_file(folder: Path, number: int) -> Path:
    """The file of an attempt."""
    return folder / f"attempt-{number}.json"
