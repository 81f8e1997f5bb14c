"""What of a copy is finished: one file beside the store that is written, locked by the run that writes it.

The first line says what is asked for, each further one names a region that is finished, or who writes. Lines
are only added, and only after the regions' chunks have reached the disk; a line that a stop cut short is no
line.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from zarr_dali._rechunk.failing import explaining
from zarr_dali._rechunk.lock import JOURNAL, Lock

NAME = JOURNAL
VERSION = 2
FLUSH_SECONDS = 2.0
"""What a kill costs at most, besides the regions that were being worked on."""


class Region(NamedTuple):
    """What is noted about a region that is finished."""

    note: list[float] | None
    """For statistics."""
    stamps: str
    """Of the source's files that it was copied from."""
    files: list[int]
    """How many files it has in the copy, and their bytes."""


class Journal:
    """The journal of a working folder.

    Args:
        lock: The folder.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock, self._file = lock, lock.descriptor
        self.header: dict[str, Any] | None = None
        """What is asked for; None where no run has begun."""
        self.publishing = False
        """Whether a run may have begun to give the copy its name."""
        self.done: dict[tuple[str, int], Region] = {}
        """Finished regions, by array and number."""
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._end = 0
        text = _read(self._file)
        self.empty = not text
        """Whether it has been made just now, or its run was forgotten."""
        stored, self._end = parse(text)
        if not stored or not isinstance(stored[0], dict):
            return
        self.header = stored[0]
        for value in stored[1:]:
            if isinstance(value, dict):
                self.publishing = value.get("publishing", False)
            elif self.header.get("version") == VERSION:
                name, number, *noted = value
                self.done.pop((name, number), None)
                if noted:
                    self.done[name, number] = Region(*noted)

    def begin(self, header: dict[str, Any] | None) -> None:
        """Notes who writes, and in an empty journal first what is asked for.

        Args:
            header: What is asked for, as JSON can hold it; None to go on.
        """
        with self._explaining():
            os.ftruncate(self._file, self._end)
        if header is not None:
            self.header = header | {"version": VERSION}
            self._waiting.append(line(self.header))
        # From here on nothing has been renamed, whatever an earlier run was about to do.
        self.publishing = False
        self._waiting.append(line({"process": os.getpid(), "host": socket.gethostname()}))
        self.flush()
        with self._explaining():
            sync(self._lock.folder)
            sync(self._lock.folder.parent)

    def clear(self) -> None:
        """Forgets the run. What it has written must be gone."""
        os.ftruncate(self._file, 0)
        self.header, self.publishing, self.done, self._end = None, False, {}, 0
        self.empty = True

    def add(self, name: str, number: int, region: Region) -> None:
        """Notes a region, on disk within `FLUSH_SECONDS` or at the next `flush`."""
        self.done[name, number] = region
        self._waiting.append(line([name, number, *region]))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def forget(self, regions: Iterable[tuple[str, int]]) -> None:
        """Notes that regions are to be copied again, before they are."""
        for name, number in regions:
            del self.done[name, number]
            self._waiting.append(line([name, number]))
        self.flush()

    def publish(self) -> None:
        """Notes that the copy is complete and is about to get its name; brings all of it to the disk."""
        self.publishing = True
        self._waiting.append(line({"publishing": True}))
        self.flush()

    def flush(self) -> None:
        """Brings all chunks to the disk, then the lines about them.

        Raises:
            FinalError: The folder is another by now.
            RuntimeError: It cannot be written.
        """
        self._lock.check()
        if self._waiting:
            with self._explaining():
                sync_file_system(self._file)
                self._append(b"".join(self._waiting))
            self._waiting.clear()
        self._flushed = time.monotonic()

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(f"{self._lock.path}, the journal of what is finished", self._lock.folder)

    def _append(self, text: bytes) -> None:
        try:
            left = memoryview(text)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            # Half a line on a full disk would hide what comes after it.
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(text)


def holder(descriptor: int) -> str:
    """Who has begun or resumed a journal last, as part of a sentence."""
    stored, _ = parse(_read(descriptor))
    found = [value for value in stored if isinstance(value, dict) and "process" in value]
    return f" (process {found[-1]['process']} on {found[-1]['host']})" if found else ""


def fingerprint(value: Any) -> str:
    """A short name for a value that JSON can hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sync(path: Path) -> None:
    """Brings a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """One call for all files: chunks are written by libraries, which do not say when they are on disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file of which nobody sees half."""
    beside = path.with_name(f"{path.name}.{os.urandom(16).hex()}.partial")
    try:
        beside.write_bytes(content)
        sync(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _read(descriptor: int) -> bytes:
    size, parts = os.fstat(descriptor).st_size, []
    while size and (part := os.pread(descriptor, size, sum(map(len, parts)))):
        parts.append(part)
    return b"".join(parts)


def line(value: Any) -> bytes:
    """A value as a line that tells whether it is whole."""
    text = json.dumps(value, separators=(",", ":"))
    return f"{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()} {text}\n".encode()


def parse(text: bytes) -> tuple[list[Any], int]:
    """The values of all whole lines before the first that is none, and where they end."""
    values, kept = [], 0
    for one in text.splitlines(keepends=True):
        _, _, value = one.partition(b" ")
        try:
            parsed = json.loads(value)
        except ValueError:
            break
        if one != line(parsed):
            break
        values.append(parsed)
        kept += len(one)
    return values, kept
