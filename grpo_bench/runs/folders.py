"""Folders that a command names."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(key: str, folder: str | Path) -> None:
    """Make a folder that a key names, with its parents.

    Raises:
        ValueError: it cannot be made or written; names the key.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{key}={folder}: cannot be made a folder ({reason})") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{key}={folder}: cannot be written")
