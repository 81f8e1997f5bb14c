"""Runs regions in a worker of a cluster. Its process imports this when the first one comes."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class Work(Protocol):
    """What is done region by region. It is pickled where the tasks are made, and opened in each worker."""

    memory: int
    """Bytes for all regions that a process works on at once."""

    def open(self) -> None:
        """Opens the arrays; called once in a process, before anything is done."""

    def cost(self, name: str) -> tuple[int, int]:
        """Of a region of an array: bytes at most, and chunks that are decoded at once."""

    def decoding(self, chunks: int) -> AbstractContextManager[None]:
        """Inside, so many chunks are decoded at once."""

    def do(self, what: str, name: str, number: int) -> Any:
        """What comes of a region: numbers, texts, and lists of these."""

    def explained(self, error: BaseException, name: str, number: int) -> RuntimeError:
        """An error in words for people."""


class Opened:
    """A work that this process has opened, and the memory that its regions share.

    Regions that decode another number of chunks at once wait for each other: that number holds for a process.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._free = work.memory
        self._changed = threading.Condition()
        self._decoding: int | None = None
        self._inside: AbstractContextManager[None] | None = None
        self._running = 0
        self.users = 0
        """Regions that are worked on or wait for room, as `_use` counts them."""
        work.open()

    @contextmanager
    def room(self, needed: int, decoding: int) -> Iterator[None]:
        """Waits until there is room for a region."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(needed, decoding))
            if not self._running:
                self._decoding, self._inside = decoding, self.work.decoding(decoding)
                self._inside.__enter__()
            self._running += 1
            self._free -= needed
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._free += needed
                if not self._running:
                    self._inside.__exit__(None, None, None)
                self._changed.notify_all()

    def _fits(self, needed: int, decoding: int) -> bool:
        return not self._running or (self._decoding == decoding and needed <= self._free)


_opened: dict[str, Opened] = {}
"""The work of this process, by its bytes' checksum."""
_changed = threading.Condition()


def run(pickled: bytes, what: str, name: str, number: int) -> tuple[bool, Any]:
    """Does one region.

    Args:
        pickled: The work.
        what: What is to be done.
        name: Of the array.
        number: Of the region.

    Returns:
        Whether it is done, and what came of it, or else what went wrong.
    """
    try:
        opened = _use(pickled)
    except Exception as error:
        return False, f"a worker could not begin: {error}"
    try:
        with opened.room(*opened.work.cost(name)):
            return True, opened.work.do(what, name, number)
    except BaseException as error:
        # The zarrs package panics over damaged shard indexes, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return False, str(opened.work.explained(error, name, number))
    finally:
        _leave(opened)


def _use(pickled: bytes) -> Opened:
    """The opened work, once no region of another one is worked on: each has all memory of the process."""
    key = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    with _changed:
        _changed.wait_for(lambda: not any(one.users for other, one in _opened.items() if other != key))
        if key not in _opened:
            _opened.clear()
            _opened[key] = Opened(pickle.loads(pickled))
        opened = _opened[key]
        opened.users += 1
        return opened


def _leave(opened: Opened) -> None:
    with _changed:
        opened.users -= 1
        _changed.notify_all()
