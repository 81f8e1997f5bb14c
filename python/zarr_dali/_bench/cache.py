"""The page cache: which part of files is in it, how to put them out, and what really came from the disk."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

COLD_SHARE = 0.05
"""Files of which less than this share is in memory count as cold."""
DISK_SHARE = 0.9
"""So do files of which this share was fetched from storage."""


class Watch:
    """Drops files from memory, and says later whether reading them was reading from storage."""

    def __init__(self, files: Sequence[Path], files_bytes: int) -> None:
        evict(files)
        self.stayed = resident_share(files)
        self.files_bytes = files_bytes
        self.before = disk_bytes()

    def fetched_share(self) -> float | None:
        """Bytes fetched from storage since then, for each of the files'; None where that is not known."""
        now = disk_bytes()
        return None if self.before is None or now is None else (now - self.before) / self.files_bytes

    def problem(self) -> str:
        """Why what was read since then did not come from storage; empty if it did.

        mincore tells of pages only to those who may write to a file, so that either sign will do.
        """
        fetched = self.fetched_share()
        if self.stayed < COLD_SHARE or (fetched is not None and fetched >= DISK_SHARE):
            return ""
        return (
            f"{self.stayed:.0%} of the files stayed in memory after posix_fadvise (a file system in memory?)"
        )


def evict(files: Sequence[Path]) -> None:
    """Asks the kernel to drop the files from memory; whether it did `resident_share` tells."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            # Pages that are not on the disk yet stay.
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Sequence[Path]) -> float:
    """The share of the files' pages that are in memory, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = resident = 0
    for file in files:
        size = file.stat().st_size
        if size == 0:
            continue
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            count = -(-size // mmap.PAGESIZE)
            states = ctypes.create_string_buffer(count)
            first = ctypes.c_char.from_buffer(mapped)
            try:
                failed = libc.mincore(ctypes.addressof(first), size, states)
            finally:
                del first  # else the mapping could not be closed
            if failed:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), str(file))
        pages += count
        resident += sum(state & 1 for state in states.raw)
    return resident / pages if pages else 0.0


def disk_bytes() -> int | None:
    """Bytes that this process has had fetched from storage so far; None where the system does not tell."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
