"""Knows files again by size and times."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zarr_dali import _local

LETTERS = 8
"""Of a file's stamp."""
MISSING = "-" * LETTERS
_SETTLED_NS, _SECOND_NS, _MOST_AHEAD_NS = 100_000_000, 1_000_000_000, 60_000_000_000
"""As in the core (src/store/local.rs): nobody is writing to a file that has had its stamp for so long; some
file systems count whole seconds; and further ahead a stamp is no time of writing."""
_TRIES = 5


def of(folder: Path, files: Sequence[Path], *, settled: bool) -> str:
    """The stamps of some files, one after the other: `LETTERS` letters that change with size and times.

    Args:
        folder: Where the files are.
        files: Files, which may be missing.
        settled: Whether to wait until the clock tells files that are written now from what was stamped.

    Raises:
        ValueError: One is neither a file nor missing.
    """
    before = None
    for _ in range(_TRIES if settled else 1):
        found = [_stamp(folder, file) for file in files]
        now = time.time_ns()
        wait = max((_unsettled(changed, now) for _, changed in found), default=0)
        if not settled or not wait or found == before:
            break  # what has not changed while the clock went on is settled, by any clock
        time.sleep(wait / 1e9)
        before = found
    return "".join(stamp for stamp, _ in found)


def there(stamped: str) -> list[bool]:
    """Of each of the files whether it was there."""
    ends = range(LETTERS, len(stamped) + LETTERS, LETTERS)
    return [stamped[end - LETTERS : end] != MISSING for end in ends]


def first_change(keys: Sequence[str], before: str, after: str) -> str:
    """The first key whose stamp is another one."""
    ends = range(LETTERS, len(before) + LETTERS, LETTERS)
    return next(key for key, end in zip(keys, ends) if before[:end] != after[:end])


def letters(text: str) -> str:
    """A stamp that stands for a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def _unsettled(changed: int, now: int) -> int:
    """Nanoseconds until a write to a file that was changed at `changed` gives it another time of change."""
    granularity = _SETTLED_NS if changed % _SECOND_NS else _SECOND_NS
    if changed > now:
        return granularity if changed - now <= _MOST_AHEAD_NS else 0
    return max(0, granularity - (now - changed))


def _stamp(folder: Path, file: Path) -> tuple[str, int]:
    """Of a file, and when it was changed."""
    found = None
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.stat(file)
    if found is None or not stat.S_ISREG(found.st_mode):
        _local.check_file(folder, str(file.relative_to(folder)), True)
    if found is None:
        return MISSING, 0
    times = found.st_mtime_ns, found.st_ctime_ns
    # No inode: some file systems in user space give a file a new one from time to time.
    return letters(repr((found.st_size, *times))), found.st_ctime_ns
