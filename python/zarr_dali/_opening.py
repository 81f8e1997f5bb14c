"""`zarr_dali.open_store`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarr_dali._store import Store


def open_store(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    follow_links: bool = True,
) -> Store:
    """Opens what the reader's `path` takes as a store of zarr-python, so that xarray reads it as well.

    xarray.open_zarr(zarr_dali.open_store("s3://bucket/era5.zarr", {"anon": True}))

    The store is read-only, can be used by several threads, pickled, and used in processes that were forked.
    It lists groups and arrays where the store can be listed, but not chunks.

    Args:
        path: As for the reader, but one store and no pattern.
        storage_options: Credentials and endpoints, as for the reader. They are pickled with the store.
        follow_links: Whether symbolic links may lead out of a folder.

    Raises:
        ValueError: There is no such store, or an option cannot be used.
        ImportError: zarr-python 3 is missing.
    """
    from zarr_dali._locations import as_text
    from zarr_dali._store import Store

    return Store(as_text(path), storage_options, follow_links=follow_links, soon=True)
