"""What of a copy is finished: one file beside the copy's chunks.

The first line says what is asked for, each further one names a region that is finished. Lines are only added,
and only after the regions' chunks have reached the disk; a line that a stop cut short is no line.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

NAME = ".zarr-dali-rechunk"
"""Readers of Zarr take no notice of it."""
VERSION = 1
FLUSH_SECONDS = 2.0
"""What a kill costs at most, besides the regions that were being worked on."""


class Journal:
    """An open journal. Only one process at a time can have it.

    Args:
        folder: Of the copy.
        header: What is asked for, as JSON can hold it.

    Raises:
        BlockingIOError: Another process has it.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self._file = open(folder / NAME, "a+b")  # noqa: SIM115  it stays open, and locked
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise
        self.header = header
        self.done: dict[tuple[str, int], Any] = {}
        """Finished regions, by array and number, with what was noted about each."""
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._file.seek(0)
        stored, kept = _parse(self._file.read())
        if stored:
            self.header = stored[0]
            self.done = {(name, number): note for name, number, note in stored[1:]}
            self._file.truncate(kept)
        else:
            self._file.truncate(0)
            self._waiting.append(_line(header | {"version": VERSION}))
            self.flush()
            _sync(folder)

    def add(self, name: str, number: int, note: Any) -> None:
        """Notes a region, on disk within `FLUSH_SECONDS` or at the next `flush`."""
        self.done[name, number] = note
        self._waiting.append(_line([name, number, note]))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Brings all chunks to the disk, then the lines about them."""
        if self._waiting:
            _sync_file_system(self._file.fileno())
            self._file.write(b"".join(self._waiting))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._waiting.clear()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._file.close()


def header_of(folder: Path) -> dict[str, Any] | None:
    """What the journal of a folder says was asked for; None where there is none."""
    try:
        stored, _ = _parse((folder / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stored[0] if stored else {}


def fingerprint(value: Any) -> str:
    """A short name for a value that JSON can hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _line(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"))
    return f"{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()} {text}\n".encode()


def _parse(text: bytes) -> tuple[list[Any], int]:
    """The values of all whole lines before the first that is none, and where they end."""
    values, kept = [], 0
    for line in text.splitlines(keepends=True):
        _, _, value = line.partition(b" ")
        try:
            parsed = json.loads(value)
        except ValueError:
            break
        if line != _line(parsed):
            break
        values.append(parsed)
        kept += len(line)
    return values, kept


def _sync(folder: Path) -> None:
    """Brings a folder's list of files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(descriptor: int) -> None:
    """One call for all files: chunks are written by libraries, which do not say when they are on disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
