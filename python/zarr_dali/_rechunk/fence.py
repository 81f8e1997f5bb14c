"""Lets workers of a cluster write for one run only.

The run that has the working folder puts a file there, with a name of its own. A worker locks it together with
others (flock) while it writes, and writes only while the file is the one of its run. Before the copy gets its
name, and before any other run begins, the file is locked alone and removed: then no worker is writing, nor
will one that was lost and comes back.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zarr_dali._rechunk import lock
from zarr_dali._rechunk.failing import FinalError

NAME = f"{lock.JOURNAL}.workers"


def put(folder: Path, name: str) -> None:
    """Lets the workers of a run write. The working folder is its own, and `remove` was called before.

    Args:
        folder: The working folder.
        name: Of the run.
    """
    descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        os.write(descriptor, name.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Waits until no worker writes, and lets none begin.

    Raises:
        ValueError: Workers do not end.
    """
    path, until = folder / NAME, time.monotonic() + lock.TIMEOUT_S
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ValueError(
                        f"{folder}: workers of an earlier run are still writing; wait until they have ended, "
                        "or stop them"
                    ) from None
                time.sleep(lock.LOOK_AGAIN_S)
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """A worker writes for a run.

    Raises:
        FinalError: The worker does not see the folder, or the run has ended.
    """
    path = folder / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise FinalError(_problem(folder)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            there = os.path.samestat(os.lstat(path), os.fstat(descriptor))
        except (BlockingIOError, FileNotFoundError):
            there = False
        if not there or os.read(descriptor, 1000).decode() != name:
            raise FinalError(
                f"{folder}: the run that this worker writes for has ended, or another one has begun"
            )
        yield
    finally:
        os.close(descriptor)


def _problem(folder: Path) -> str:
    if folder.exists():
        return f"{folder}: the run that this worker writes for has ended"
    return (
        f"{folder} is not there on a worker (process {os.getpid()} on {os.uname().nodename}): all workers "
        "need source and copy under the same paths; choose a folder on a file system that all machines share"
    )
