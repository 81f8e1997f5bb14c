"""What of a copy is finished: one file beside the store that is written, locked by the run that writes it.

The first line says what is asked for, each further one names a region that is finished, or who writes. Lines
are only added, and only after the regions' chunks have reached the disk; a line that a stop cut short is no
line. A run in parts (`parts`) has a journal more for each of them.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zarr_dali._rechunk.failing import explaining
from zarr_dali._rechunk.lock import JOURNAL

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


class Locked(Protocol):
    """The file of a journal, which this process has locked."""

    folder: Path
    path: Path
    descriptor: int

    def check(self) -> None:
        """Raises FinalError where somebody has removed or replaced it."""


@dataclass
class Stored:
    """What a journal says."""

    header: dict[str, Any] | None = None
    """What is asked for; None where no run has begun."""
    publishing: bool = False
    """Whether a run may have begun to give the copy its name."""
    parts: int = 0
    """In how many parts the work is done, each with a journal of its own; 0 where one run does all of it."""
    ended: dict[str, Any] | None = None
    """What was noted at the end of a part; None where it has not ended, or has begun again."""
    done: dict[tuple[str, int], Region] = field(default_factory=dict)
    """Finished regions, by array and number."""
    forgotten: set[tuple[str, int]] = field(default_factory=set)
    """Regions that are to be done again."""

    @classmethod
    def of(cls, text: bytes) -> tuple[Stored, int]:
        """From the bytes of the file; and where its whole lines end."""
        values, end = parse(text)
        if not values or not isinstance(values[0], dict):
            return cls(), end
        found = cls(header=values[0])
        for value in values[1:]:
            if isinstance(value, dict):
                found.publishing = value.get("publishing", False)
                found.parts = value.get("parts", found.parts)
                found.ended = value.get("ended")
            elif found.header.get("version") == VERSION:
                name, number, *noted = value
                found.done.pop((name, number), None)
                found.forgotten.discard((name, number))
                if noted:
                    found.done[name, number] = Region(*noted)
                else:
                    found.forgotten.add((name, number))
        return found, end


class Journal:
    """The journal of a working folder, or of a part of a run.

    Args:
        lock: Its file.
    """

    def __init__(self, lock: Locked) -> None:
        self._lock, self._file = lock, lock.descriptor
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        text = _read(self._file)
        self.empty = not text
        """Whether it has been made just now, or its run was forgotten."""
        self._stored, self._end = Stored.of(text)
        self.done = self._stored.done

    @property
    def header(self) -> dict[str, Any] | None:
        """What is asked for; None where no run has begun."""
        return self._stored.header

    @property
    def publishing(self) -> bool:
        """Whether a run may have begun to give the copy its name."""
        return self._stored.publishing

    @property
    def parts(self) -> int:
        """In how many parts the work is done; 0 where one run does all of it."""
        return self._stored.parts

    @property
    def forgotten(self) -> set[tuple[str, int]]:
        """Regions that are to be done again."""
        return self._stored.forgotten

    def begin(self, header: dict[str, Any] | None) -> None:
        """Notes who writes, and in an empty journal first what is asked for.

        Args:
            header: What is asked for, as JSON can hold it; None to go on.
        """
        with self._explaining():
            os.ftruncate(self._file, self._end)
        if header is not None:
            self._stored.header = header | {"version": VERSION}
            self._waiting.append(line(self.header))
        # From here on nothing has been renamed, whatever an earlier run was about to do.
        self._stored.publishing, self._stored.ended = False, None
        self._waiting.append(line({"process": os.getpid(), "host": socket.gethostname()}))
        self.flush()
        with self._explaining():
            sync(self._lock.folder)
            sync(self._lock.folder.parent)

    def clear(self) -> None:
        """Forgets the run. What it has written must be gone."""
        os.ftruncate(self._file, 0)
        self._stored, self._end = Stored(), 0
        self.done, self.empty = self._stored.done, True

    def add(self, name: str, number: int, region: Region) -> None:
        """Notes a region, on disk within `FLUSH_SECONDS` or at the next `flush`."""
        self.done[name, number] = region
        self.forgotten.discard((name, number))
        self._waiting.append(line([name, number, *region]))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def forget(self, regions: Iterable[tuple[str, int]]) -> None:
        """Notes that regions are to be copied again, before they are."""
        for name, number in regions:
            self.done.pop((name, number), None)
            self.forgotten.add((name, number))
            self._waiting.append(line([name, number]))
        self.flush()

    def publish(self) -> None:
        """Notes that the copy is complete and is about to get its name; brings all of it to the disk."""
        self._stored.publishing = True
        self._note({"publishing": True})

    def split(self, parts: int) -> None:
        """Notes in how many parts the work goes on; 0: in one run."""
        self._stored.parts = parts
        self._note({"parts": parts})

    def end(self, found: dict[str, Any]) -> None:
        """Notes that a part has ended, with what is to be known about it; brings all of it to the disk."""
        self._stored.ended = found
        self._note({"ended": found})

    def _note(self, value: dict[str, Any]) -> None:
        self._waiting.append(line(value))
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


def stored(path: Path) -> Stored:
    """What the journal at a path says, which another process may be writing."""
    try:
        return Stored.of(path.read_bytes())[0]
    except FileNotFoundError:
        return Stored()


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
