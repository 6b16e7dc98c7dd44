"""Files that are whole or not there: written beside, synced, then renamed or linked into place."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_bench.records.schema import RecordError

_BESIDE = re.compile(r"\..+\.(?P<pid>\d+)(-[0-9a-f]{8})?\.tmp")  # as the two functions name them


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, over what is there. Of several writers at once one wins.

    Raises:
        OSError: the disk is full, or the like; what was at ``path`` is still there, untouched.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(beside, data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def create(path: Path, data: bytes) -> bool:
    """Put ``data`` at ``path`` if nothing is there. Among any number of writers exactly one gets
    True, and nobody ever sees the file without its content.

    Raises:
        OSError: the disk is full, or the file system has no hard links.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _write(beside, data)
        os.link(beside, path)  # O_EXCL would show others an empty file first
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def remove_leftovers(folder: Path, age: float = 0.0) -> None:
    """Remove what processes left in a folder that were killed while they wrote a file there.

    Args:
        age: seconds since the last write; where processes of other hosts may be writing, whose
            numbers say nothing here.
    """
    for path in folder.glob(".*.tmp"):
        found = _BESIDE.fullmatch(path.name)
        if found is None:
            continue
        writer = int(found["pid"])
        with suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime >= age
            if old and (writer == os.getpid() or not psutil.pid_exists(writer)):
                path.unlink()


def read_parquet(
    path: Path, columns: list[str] | None = None, dictionaries: list[str] | None = None
) -> pa.Table | None:
    """A table, or some of its columns, those of ``dictionaries`` as such; None without the file.

    Raises:
        RecordError: it is damaged, or lacks a column.
    """
    if not path.exists():
        return None
    try:
        # ParquetFile, for read_table would take a folder called a=b for a column.
        with pq.ParquetFile(path, read_dictionary=dictionaries, pre_buffer=False) as file:
            found = file.schema_arrow.names
            if not set(columns or ()) <= set(found):
                raise RecordError(f"{path}: columns {found}, expected {columns}")
            return file.read(columns=columns, use_threads=False)  # threads only cost, on so little
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{path}: not readable ({error})") from None


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file: the same content gives the same bytes (with one pyarrow)."""
    sink = pa.BufferOutputStream()
    # Of a run's metrics as small as zstd makes them, and read in less than half of the time.
    texts = [field.name for field in table.schema if field.type == pa.string()]
    pq.write_table(
        table, sink, version="2.6", compression="lz4", use_dictionary=texts, write_statistics=False
    )
    return bytes(sink.getvalue().to_pybytes())


def _write(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a full disk is not named by the system: say which it is
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
