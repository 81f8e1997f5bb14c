"""Parts of a run that work side by side, such as the jobs of an array of SLURM, without a word to each other.

Part `i` of `n` does each n-th region. All of them share the lock of the working folder, so that no other run
gets it; the first one to come has it alone for a moment, and begins. Each notes what it has finished in a
journal of its own. The one that finds all others finished has the working folder alone again: it takes over
what all have noted, and ends the run. A part that was killed is run again; and a run without parts, with
`resume`, takes over what parts have noted, and does the rest.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zarr_dali._rechunk import journal
from zarr_dali._rechunk.failing import FinalError
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import LOOK_AGAIN_S, Lock

_JOURNALS = re.compile(rf"{re.escape(journal.NAME)}\.(\d+)-of-(\d+)")


class Part(NamedTuple):
    """One of the parts of a run."""

    number: int
    """From 1."""
    count: int

    @classmethod
    def of(cls, given: str | tuple[int, int] | None) -> Part | None:
        """From "3/8" or (3, 8).

        Raises:
            ValueError: It is no part.
        """
        if given is None:
            return None
        match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", given) if isinstance(given, str) else None
        values = match.groups() if match else given
        try:
            number, count = map(int, values)
        except (TypeError, ValueError):
            number, count = 0, 0
        if (isinstance(given, str) and match is None) or not 1 <= number <= count:
            raise ValueError(f"part: {given!r} is no part of a whole; give it as 3/8, from 1/8 to 8/8")
        return cls(number, count)

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    @property
    def file(self) -> str:
        """The name of its journal."""
        return f"{journal.NAME}.{self.number}-of-{self.count}"

    def has(self, region: int) -> bool:
        """Whether it does a region, by its number among those of all arrays."""
        return region % self.count == self.number - 1


class Own:
    """The file of a part's journal, which this process locks.

    Raises:
        ValueError: Another process has this part.
    """

    def __init__(self, lock: Lock, part: Part) -> None:
        self.folder, self.path = lock.folder, lock.folder / part.file
        self._lock = lock
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o666)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = journal.holder(self.descriptor)
            os.close(self.descriptor)
            raise ValueError(
                f"{part} is run by another process{who}, in {self.folder}; give each job a part of its own"
            ) from None
        except BaseException:
            os.close(self.descriptor)
            raise

    def check(self) -> None:
        """Raises FinalError where somebody has removed or replaced the folder, or this file."""
        self._lock.check()
        with suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor)):
                return
        raise FinalError(f"{self.path} was removed or replaced while it was written; begin anew")

    def close(self) -> None:
        os.close(self.descriptor)


class Joint:
    """The working folder as one part of a run has it, to be left by `close`.

    Args:
        folder: The working folder.
        destination: What it is for.
        part: Which one this is.
        begin: Called by a part that is alone, with lock and journal: begins the run, or goes on with one.
            What it returns is `complete`.
        check: Called with the header of a run that is going on; raises ValueError where it is another one.
        run: The name of a run's own that its header has.

    Raises:
        ValueError: Another run has the folder, or what is in it does not fit.
    """

    def __init__(
        self,
        folder: Path,
        destination: Path,
        part: Part,
        *,
        begin: Callable[[Lock, Journal], Any],
        check: Callable[[Mapping[str, Any]], None],
        run: str,
    ) -> None:
        self.part, self._run, self._check = part, run, check
        self.complete: Any = None
        """What there is where nothing is left to do; else None."""
        self.own: Journal
        """The part's journal."""
        self._own: Own | None = None
        while not self._joined(folder, destination, begin):
            time.sleep(LOOK_AGAIN_S)  # another run has begun or ended in between

    def _joined(self, folder: Path, destination: Path, begin: Callable[[Lock, Journal], Any]) -> bool:
        self.lock = Lock(folder, destination, journal.holder, shared=True)
        shared = False
        try:
            log = Journal(self.lock)
            if self.lock.exclusive:
                self.complete = begin(self.lock, log)
                if self.complete is not None:
                    return True
                if log.parts != self.part.count:
                    take_over(self.lock, log, self._run)
                    log.split(self.part.count)
                if not self.lock.share():
                    return False
                log = Journal(self.lock)
            if log.header is None or not self.lock.held():
                return False
            self._check(log.header)
            if log.parts != self.part.count:
                what = f"in {log.parts} parts" if log.parts else "by one run"
                raise ValueError(
                    f"{destination} is being written {what}, not in {self.part.count}; end that first, or "
                    "give all jobs the same number of parts"
                )
            self._begin_own(log)
            shared = True
        finally:
            if not shared and self.complete is None:
                self._leave()
        return True

    def _leave(self) -> None:
        if self.lock.exclusive and self.lock.held():
            self.lock.release(None)
        else:
            self.lock.close()

    def _begin_own(self, log: Journal) -> None:
        self.header = dict(log.header)
        self._own = Own(self.lock, self.part)
        try:
            self.own = Journal(self._own)
            if self.own.header is not None and not self._is_of(self.own.header):
                self.own.clear()
            new = {"part": list(self.part), "run": self.header[self._run]}
            self.own.begin(new if self.own.header is None else None)
        except BaseException:
            self._own.close()
            raise
        for key, region in log.done.items():  # of a run before, in other parts or none
            if key not in self.own.done and key not in self.own.forgotten:
                self.own.done[key] = region

    def _is_of(self, header: Mapping[str, Any] | None) -> bool:
        known = header is not None and header.get("version") == journal.VERSION
        return known and header.get("run") == self.header[self._run]

    def keep(self, regions: Iterable[tuple[str, int]]) -> None:
        """Leaves out what is noted about regions of other parts."""
        mine = set(regions)
        for key in [key for key in self.own.done if key not in mine]:
            del self.own.done[key]

    def waiting(self) -> tuple[int, ...]:
        """Parts that have not ended."""
        return tuple(number for number in range(1, self.part.count + 1) if self._stored(number).ended is None)

    def _stored(self, number: int) -> journal.Stored:
        found = journal.stored(self.lock.folder / Part(number, self.part.count).file)
        return found if self._is_of(found.header) else journal.Stored()

    def last(self, found: dict[str, Any]) -> Journal | tuple[int, ...] | None:
        """Ends this part, and the run if it was the last one.

        Args:
            found: What is to be known about this part.

        Returns:
            The run's journal with what all parts have noted, when nobody else has the folder any more; the
            parts that are still to be run; None where another one has ended the run meanwhile.
        """
        self.own.end(found)
        if waiting := self.waiting():
            return waiting
        if not self.lock.take():
            return None
        log = Journal(self.lock)
        if log.header is None or log.header[self._run] != self.header[self._run]:
            return None
        if waiting := self.waiting():  # one of them has begun again
            return waiting
        self.ended = [self._stored(number).ended for number in range(1, self.part.count + 1)]
        """What is known about each part."""
        log.begin(None)
        # The journals stay: where this process is killed, its part is run again, and no other one.
        _add_up(self.lock, log, self._run)
        return log

    def close(self, store: str | None = None) -> None:
        """Leaves the folder; of a run that has ended nothing stays there."""
        if self._own is not None:
            self._own.close()
        self.lock.release(store)


def take_over(lock: Lock, log: Journal, run: str) -> None:
    """Makes what parts have noted part of the journal of a run, which goes on without them.

    Args:
        lock: The working folder, which nobody else has.
        log: Its journal.
        run: The name of a run's own that its header has.
    """
    names = _add_up(lock, log, run)
    if names or log.parts:
        log.split(0)
    for name in names:
        lock.remove(name)


def _add_up(lock: Lock, log: Journal, run: str) -> list[str]:
    """Notes what parts have noted; the names of their journals."""
    names = sorted(name for name in lock.entries() if _JOURNALS.fullmatch(name))
    for name in names:
        found = journal.stored(lock.folder / name)
        known = found.header is not None and found.header.get("version") == journal.VERSION
        if known and found.header.get("run") == log.header.get(run):
            log.forget(found.forgotten & log.done.keys())
            for (array, number), region in found.done.items():
                log.add(array, number, region)
    log.flush()
    return names
