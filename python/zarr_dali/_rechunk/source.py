"""The source as zarr-python reads it, and how its chunks are known again, so that no copy mixes old values
with new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

from zarr_dali import _local
from zarr_dali._core import Found, Head, StorageOptions, without_secrets
from zarr_dali._rechunk import stamps
from zarr_dali._store import Store, threads


class Source:
    """Where a copy comes from. One object is for one copy: it remembers what was read.

    One that was pickled is the same source `anew`.
    """

    is_folder = False
    store: LocalStore | Store
    """Through which zarr-python reads it."""

    def open(self) -> zarr.Group | zarr.Array:
        """The root.

        Raises:
            ValueError: There is none.
        """
        try:
            return zarr.open(self.store, mode="r")
        except FileNotFoundError as error:
            raise ValueError(f"{self}: there is no Zarr array or group") from error

    def array(self, name: str) -> zarr.Array:
        """An array, read by what reads this kind of source best."""
        return zarr.open_array(self.store, path=name, mode="r")

    def anew(self) -> Source:
        """The same source, of which nothing was read."""
        raise NotImplementedError

    def place(self, key: str) -> str:
        """A key in words."""
        return f"{self}/{key}" if key else str(self)

    def before(self, keys: Sequence[str]) -> str:
        """Called before keys are read: their stamps, if they can be known by then."""
        raise NotImplementedError

    def after(self, keys: Sequence[str], before: str) -> str:
        """Called when keys were read: the stamps that they were read with."""
        raise NotImplementedError

    def now(self, keys: Sequence[str]) -> str:
        """Stamps of keys as they are now."""
        raise NotImplementedError

    def missing(self, keys: Iterable[str]) -> str | None:
        """The first key that was missing when it was read although it was there before."""
        raise NotImplementedError


def of(path: str | os.PathLike[str], options: StorageOptions, follow_links: bool) -> Source:
    """The source at a path or URL.

    Raises:
        ValueError: There is no store.
    """
    text = os.fspath(path)
    opened = Store(text, options, follow_links=follow_links, soon=True)
    if opened.objects.is_folder:
        return Folder(Path(path).resolve())
    return Remote(text, options, follow_links, opened)


class Noting(LocalStore):
    """Remembers which keys were missing when they were read.

    They read as the fill value, and a file that goes away and comes back looks the same as before.
    """

    def __init__(self, root: Any, *, read_only: bool = True) -> None:
        super().__init__(root, read_only=read_only)
        self.missing: set[str] = set()

    def _noted(self, key: str, found: Any) -> Any:
        if found is None:
            self.missing.add(key)
        return found

    async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
        return self._noted(key, await super().get(key, *arguments, **named))

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        key_ranges = list(key_ranges)
        found = await super().get_partial_values(prototype, key_ranges)
        return [self._noted(key, one) for (key, _), one in zip(key_ranges, found)]

    def get_sync(self, key: str, *arguments: Any, **named: Any) -> Any:
        return self._noted(key, super().get_sync(key, *arguments, **named))


class Folder(Source):
    """A folder of this machine, whose chunks are known by size and times of their files."""

    is_folder = True

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, Noting(path)

    def __str__(self) -> str:
        return str(self.path)

    def array(self, name: str) -> zarr.Array:
        # By its path, which the zarrs package needs: it reads files itself.
        return zarr.open_array(str(self.path / name), mode="r")

    def anew(self) -> Source:
        return Folder(self.path)

    def __reduce__(self) -> Any:
        return Folder, (self.path,)

    def before(self, keys: Sequence[str]) -> str:
        # What is written from now on gives other stamps.
        return stamps.of(self.path, self._files(keys), settled=True)

    def after(self, keys: Sequence[str], before: str) -> str:
        self.store.missing.difference_update(keys)
        return before

    def now(self, keys: Sequence[str]) -> str:
        return stamps.of(self.path, self._files(keys), settled=False)

    def missing(self, keys: Iterable[str]) -> str | None:
        return next((key for key in keys if key in self.store.missing), None)

    def _files(self, keys: Sequence[str]) -> list[Path]:
        return [self.path / key for key in keys]


class Pinned(Store):
    """Reads each chunk in one version only, and remembers it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stamps: dict[str, str] = {}

    def read(self, key: str, byte_range: Any = None) -> Found | None:
        found = super().read(key, byte_range)
        if key.rpartition("/")[2] not in _local.METADATA:
            stamp = _stamp(found and found.head)
            if self.stamps.setdefault(key, stamp) != stamp:
                raise RuntimeError(f"{self}/{key} has changed while the source was copied")
        return found


class Remote(Source):
    """A store that the core reads, whose chunks are known by their versions."""

    def __init__(
        self, path: str, options: StorageOptions, follow_links: bool, store: Store | None = None
    ) -> None:
        self._arguments = path, options, follow_links
        self.store = store or Pinned(path, options, follow_links=follow_links)

    def __str__(self) -> str:
        return without_secrets(self._arguments[0])

    def anew(self) -> Source:
        return Remote(*self._arguments)

    def __reduce__(self) -> Any:
        return Remote, self._arguments

    def before(self, keys: Sequence[str]) -> str:
        # An answer has the version of the bytes that came.
        return ""

    def after(self, keys: Sequence[str], before: str) -> str:
        known = self.store.stamps
        return "".join(known[key] if key in known else self.now([key]) for key in keys)

    def now(self, keys: Sequence[str]) -> str:
        return "".join(threads().map(lambda key: _stamp(self.store.objects.head(key)), keys))

    def missing(self, keys: Iterable[str]) -> str | None:
        return None  # a chunk has one version, or is missing, in all reads


def _stamp(head: Head | None) -> str:
    return stamps.MISSING if head is None else stamps.letters(f"{head.bytes} {head.version}")
