"""The working folder of a destination, which one run at a time has, or the parts of one run together.

It lies beside the destination and holds the journal, whose file is locked (flock), and the store that is
being written. The lock is taken before anything is looked at or removed, and ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zarr_dali._rechunk.failing import FinalError, explaining

JOURNAL = ".zarr-dali-rechunk"
OURS = re.compile(rf"{re.escape(JOURNAL)}(\.\d+-of-\d+|\.workers)?|store-[0-9a-f]{{12}}|replaced|obsolete")
"""Names that a run gives in its working folder: journals, what workers of a cluster lock, its store, the one
that it put aside, one to be deleted."""
SYSTEM = re.compile(r"\.DS_Store|\._.*|\.nfs.*|Thumbs\.db")
"""Files that operating systems put into any folder."""
TIMEOUT_S = 60.0
"""How long is waited for what takes moments: another part that begins, a region that a lost worker copies."""
LOOK_AGAIN_S = 0.05
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """Takes the working folder, which is made where it is missing.

    Args:
        folder: The working folder.
        destination: What it is for.
        holder: Reads from the journal's descriptor which process and host hold the lock.
        shared: Whether other processes that share the lock may have it, too.

    Raises:
        ValueError: Another run holds the lock, or the folder is not a working folder of rechunk.
        RuntimeError: It cannot be made or locked.
    """

    def __init__(
        self, folder: Path, destination: Path, holder: Callable[[int], str], *, shared: bool = False
    ) -> None:
        self.folder = folder
        self.path = folder / JOURNAL
        self.exclusive = True
        """Whether no other process has it."""
        self._until = time.monotonic() + TIMEOUT_S if shared else None
        with explaining(f"{folder} could not be made and locked", None):
            while not self._taken(destination, holder):
                pass  # another run ended in between and removed the file

    def _taken(self, destination: Path, holder: Callable[[int], str]) -> bool:
        with suppress(FileExistsError):
            self.folder.mkdir(parents=True)
        self._check_ours()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self.descriptor = os.open(self.path, flags, 0o666)
        except FileNotFoundError:
            return False
        try:
            if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
                raise ValueError(f"{self.path} is no file of ours; remove it")
            self._lock()
        except BlockingIOError as error:
            if self._until is not None and time.monotonic() < self._until:
                os.close(self.descriptor)
                time.sleep(LOOK_AGAIN_S)
                return False
            who = holder(self.descriptor)
            os.close(self.descriptor)
            raise ValueError(
                f"{destination}: another process is writing it{who}, in {self.folder}; wait until it has "
                "ended, stop it, or choose another destination"
            ) from error
        except OSError as error:
            os.close(self.descriptor)
            if error.errno in _NO_LOCKS:
                raise FinalError(
                    f"{self.folder}: its file system cannot lock files ({error.strerror}), so that two runs "
                    "could destroy each other's work: write to another file system and move the copy, or "
                    "mount this one with locks (NFS: a running lock service, Lustre: -o flock)"
                ) from error
            raise
        except ValueError:
            os.close(self.descriptor)
            raise
        if self.held():
            return True
        os.close(self.descriptor)
        return False

    def _lock(self) -> None:
        """Locks the file, with others only where these share it. Raises BlockingIOError."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.exclusive = True
        except BlockingIOError:
            if self._until is None:
                raise
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self.exclusive = False

    def share(self) -> bool:
        """Lets others share the lock; whether it still was this process's afterwards."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            shared = True
        except BlockingIOError:  # one lock is not made the other in one step
            shared = False
        self.exclusive = False
        return shared and self.held()

    def take(self) -> bool:
        """Waits until no other process has the lock; whether the folder is still there then."""
        # Two that share it would each wait for the other.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        self.exclusive = True
        return self.held()

    def _check_ours(self) -> None:
        """Raises ValueError where something is in the way that no run has made."""
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(self.folder).st_mode):
                raise ValueError(f"{self.folder} is in the way and none of ours; remove it")
            names = [name for name in os.listdir(self.folder) if not SYSTEM.fullmatch(name)]
            if names and JOURNAL not in names:
                raise ValueError(
                    f"{self.folder} is in the way and none of ours, since it has no journal; remove it"
                )

    def foreign(self) -> list[str]:
        """Names in the folder that no run gives."""
        names = os.listdir(self.folder)
        return sorted(name for name in names if not OURS.fullmatch(name) and not SYSTEM.fullmatch(name))

    def entries(self) -> list[str]:
        """Names that runs have given in the folder, besides the journal's."""
        return [name for name in os.listdir(self.folder) if OURS.fullmatch(name) and name != JOURNAL]

    def held(self) -> bool:
        """Whether the folder still has the file that is locked."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, os.fstat(self.descriptor))

    def check(self) -> None:
        """Raises FinalError where somebody has removed or replaced the folder."""
        if not self.held():
            raise FinalError(
                f"{self.folder} was removed or replaced while it was written, and the copy in it is lost; "
                "begin anew"
            )

    def remove(self, name: str) -> None:
        """Removes one of the folder's own entries, which may be missing."""
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the lock back and leaves the folder as it is."""
        os.close(self.descriptor)

    def release(self, store: str | None) -> None:
        """Gives the folder back; removes it where no run is noted in it, so that none is to be resumed.

        Args:
            store: The entry that this run has written.
        """
        if not self.exclusive:
            self.close()
            return
        held, empty = self.held(), os.fstat(self.descriptor).st_size == 0
        if held and empty:
            self.path.unlink()
        # Processes that were forked meanwhile have the descriptor as well, and would keep the lock.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        # Some network file systems keep a file that is removed until it is closed.
        os.close(self.descriptor)
        with suppress(OSError):
            if not held and store and not os.path.lexists(self.path):
                # What workers wrote after somebody had removed the folder.
                self.remove(store)
            if empty or not held:
                self.folder.rmdir()
