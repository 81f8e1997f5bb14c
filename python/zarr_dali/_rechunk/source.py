"""The source as zarr-python reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zarr.storage import LocalStore


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
