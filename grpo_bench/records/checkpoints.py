"""Checkpoints: what a run needs to go on where it was. Each is a folder with its number, the last
two are kept, and a run that ended ok keeps none."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from grpo_bench.records.files import write_atomically

KEPT = 2
SHORTEST = 5.0  # seconds between two checkpoints after evaluations, at least
TIMES = 100  # the seconds that the last one took


class Checkpoint(NamedTuple):
    """A whole checkpoint."""

    folder: Path
    state: dict[str, Any]  # plain values


class Pace:
    """When to save: every ``minutes``, and after an evaluation where a checkpoint costs at most a
    hundredth of the time since the last one."""

    def __init__(self, minutes: float) -> None:
        self.longest, self.shortest = 60 * minutes, SHORTEST
        self.last = time.monotonic()

    def due(self, evaluated: bool) -> bool:
        """Whether it is time, and whether this is after an evaluation."""
        limit = min(self.shortest, self.longest) if evaluated else self.longest
        return time.monotonic() - self.last >= limit

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the saving itself."""
        began = time.monotonic()
        yield
        self.last = time.monotonic()
        self.shortest = max(SHORTEST, TIMES * (self.last - began))


def save_checkpoint(run: Path, state: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """Add a checkpoint to the folder of a run, and delete those before the last two.

    A kill at any moment leaves the earlier ones whole: the new folder gets its name when all of it
    is on the disk.

    Args:
        state: plain values, for ``state.json``.
        write: puts the other files into an empty folder.

    Raises:
        OSError: the disk is full, or the like; the earlier checkpoints are still there.
    """
    place = run / "checkpoints"
    place.mkdir(exist_ok=True)
    number = max(numbers(place), default=0) + 1
    unfinished = place / f".{number}.{os.getpid()}"
    try:
        unfinished.mkdir()
        write(unfinished)
        for file in unfinished.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        write_atomically(unfinished / "state.json", json.dumps(state).encode())
        unfinished.rename(place / str(number))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    for old in sorted(numbers(place))[:-KEPT]:
        shutil.rmtree(place / str(old), ignore_errors=True)
    return place / str(number)


def latest_checkpoint(run: Path) -> Checkpoint | None:
    """The last checkpoint of a run that can be read; None without one."""
    place = run / "checkpoints"
    for number in sorted(numbers(place), reverse=True):
        try:
            text = (place / str(number) / "state.json").read_text("utf-8")
            return Checkpoint(place / str(number), json.loads(text))
        except (OSError, ValueError):  # damaged: the one before it
            continue
    return None


def delete_checkpoints(run: Path) -> None:
    """Delete all of a run's checkpoints."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)


def numbers(place: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, which need not exist."""
    if not place.is_dir():
        return []
    return [int(path.name) for path in place.iterdir() if path.name.isdecimal()]
