"""Folders that are whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which gets the name ``folder`` at the end of the block, in place
    of one that has it. After an exception, or if the process dies, what was there is still there.

    For one writer at a time.
    """
    beside, before = (folder.with_name(f"{folder.name}.{end}") for end in ("tmp", "old"))
    shutil.rmtree(beside, ignore_errors=True)  # of a process that died
    beside.mkdir(parents=True)
    try:
        yield beside
        _sync(beside)
        if folder.exists():  # no rename puts a folder over another that has files
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        beside.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have the files on the disk before their folder gets its name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
