"""What went wrong, where, and how to go on."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HINTS = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EACCES: "a file may not be read or written; change its permissions",
    errno.EPERM: "a file may not be read or written; change its permissions",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.EBUSY: "the destination is a mount point; choose a folder inside it",
    errno.EXDEV: "the destination is a mount point; choose a folder inside it",
    errno.ELOOP: "a symbolic link is where a file was looked for; remove it",
}


class FinalError(RuntimeError):
    """What `resume` does not mend; the text has its own remedy."""


def explained(error: BaseException, what: str, folder: Path | None) -> RuntimeError:
    """An error with what was being done, and the way on where there is a folder of finished work.

    The zarrs package has errno in its texts only.
    """
    if isinstance(error, FinalError):
        return FinalError(f"{what}: {error}")
    number = getattr(error, "errno", None)
    if number is None and (match := re.search(r"os error (\d+)", str(error))):
        number = int(match[1])
    hint = f"; {_HINTS[number]}" if number in _HINTS else ""
    rest = f"; what is finished stays in {folder}, resume=True goes on" if folder else ""
    return RuntimeError(f"{what}: {error}{hint}{rest}")


@contextmanager
def explaining(what: str, folder: Path | None) -> Iterator[None]:
    """Turns an OSError into a RuntimeError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise explained(error, what, folder) from error
