"""A store of zarr-python over the core, so that xarray and zarr-python need no other client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

try:
    import zarr.abc.store
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
except ModuleNotFoundError as error:
    raise ImportError(
        "what is no folder of this machine is read by zarr-python 3, and that needs Python 3.11 or newer: "
        'pip install "zarr>=3"'
    ) from error

from zarr_dali._core import Forbidden, Found, Objects, StorageOptions
from zarr_dali._local import METADATA

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

T = TypeVar("T")

_AT_ONCE = 32
"""Requests of a process at once."""
_pool: tuple[int, ThreadPoolExecutor] | None = None
"""Threads that wait for answers, with the process that they are in."""


def threads() -> ThreadPoolExecutor:
    """Threads of this process that wait for answers."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="zarr-dali store")
    return _pool[1]


class Store(zarr.abc.store.Store):
    """A store at a path or URL, read-only, for zarr-python and xarray.

    What the store says is absent is None, whatever else goes wrong is a RuntimeError. It can be used by
    several threads, in forked children, and be pickled, with its options, which are secrets.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: StorageOptions = None,
        *,
        follow_links: bool = True,
        **more: Any,
    ) -> None:
        """Opens it; `more` is as for `Objects`.

        Raises:
            ValueError: There is no such store, or an option cannot be used.
        """
        self._adopt(Objects(path, storage_options, follow_links=follow_links, **more))

    @classmethod
    def over(cls, objects: Objects) -> Store:
        """Of a store that the core has open."""
        store = cls.__new__(cls)
        store._adopt(objects)
        return store

    def _adopt(self, objects: Objects) -> None:
        super().__init__(read_only=True)
        self.objects = objects
        self._nodes: set[str] = set()
        """Folders of which some metadata could be read while others were denied."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.objects == other.objects

    def __hash__(self) -> int:
        return hash(self.objects)

    def __str__(self) -> str:
        return self.objects.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.objects.shown!r})"

    def with_read_only(self, read_only: bool = False) -> Store:
        if not read_only:
            self._refuse()
        return self

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        found = await self._run(self.read, key, byte_range)
        return None if found is None else prototype.buffer.from_bytes(found.content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        parts = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*parts))

    async def exists(self, key: str) -> bool:
        return await self._run(self._unless_absent, key, self.objects.head) is not None

    async def getsize(self, key: str) -> int:
        found = await self._run(self._unless_absent, key, self.objects.head)
        if found is None:
            raise FileNotFoundError(key)
        return found.bytes

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    @property
    def supports_listing(self) -> bool:
        """Whether groups and arrays can be listed. Chunks are not."""
        return self.objects.lists

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of the groups and arrays below a prefix, not of files."""
        if not self.objects.lists:
            raise NotImplementedError(
                f"{self} cannot be listed, because web servers have no listings: consolidate its metadata, "
                "or open its arrays by their names"
            )
        for name in await self._run(self.objects.folders, prefix.strip("/")):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Not there: only groups and arrays are listed, by `list_dir`."""
        raise NotImplementedError(f"{self}: only names of groups and arrays are listed, not all keys")
        yield ""  # which makes it an iterator

    def list(self) -> AsyncIterator[str]:
        return self.list_prefix("")

    async def set(self, key: str, value: Buffer) -> None:
        self._refuse()

    async def delete(self, key: str) -> None:
        self._refuse()

    # Of zarr-python before 3.1.
    supports_partial_writes = False

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(f"{self} is only read; write with another store of zarr-python")

    def read(self, key: str, byte_range: ByteRequest | None = None) -> Found | None:
        """An object or a part of it; None if it is absent."""
        get = self.objects.get
        if byte_range is None:
            return self._unless_absent(key, get)
        if isinstance(byte_range, SuffixByteRequest):
            return self._unless_absent(key, lambda key: get(key, suffix=byte_range.suffix))
        if isinstance(byte_range, OffsetByteRequest):
            found = self._unless_absent(key, get)
            return found and found._replace(content=found.content[byte_range.offset :])
        if not isinstance(byte_range, RangeByteRequest) or byte_range.start >= byte_range.end:
            raise ValueError(f"{self}/{key}: {byte_range} is no range of bytes")
        return self._unless_absent(key, lambda key: get(key, span=(byte_range.start, byte_range.end)))

    def _unless_absent(self, key: str, ask: Callable[[str], T | None]) -> T | None:
        """What a question about an object gives.

        Without the permission to list, some stores deny what is absent. Of metadata files that is told by
        others of the same group or array, which can be read then; of chunks it is not.
        """
        try:
            return ask(key)
        except Forbidden:
            folder, _, name = key.rpartition("/")
            if name not in METADATA or not self._is_node(folder):
                raise
            return None

    def _is_node(self, folder: str) -> bool:
        """Whether metadata in a folder can be read."""
        for name in ("zarr.json", ".zarray", ".zgroup"):
            if folder in self._nodes:
                break
            try:
                if self.objects.head(f"{folder}/{name}" if folder else name) is not None:
                    self._nodes.add(folder)
            except Forbidden:
                continue
        return folder in self._nodes

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads(), function, *arguments)
