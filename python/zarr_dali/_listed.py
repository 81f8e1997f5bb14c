"""Stores as xarray reads them for the coordinates of some arrays.

Metadata are those that the reader takes, and a group has only what belongs to these arrays, so that nothing
has to be listed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import zarr

from zarr_dali._core import Found, Head, Objects
from zarr_dali._store import Store

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest


def is_array(objects: Objects) -> bool:
    """Whether a store is an array by itself."""
    store = Store.over(objects)
    node = store.read("zarr.json")
    if node is not None:
        return _parsed(store, "zarr.json", node).get("node_type") == "array"
    return store.read(".zarray") is not None


class Listed(Store):
    """A store of which one group lists some arrays and the coordinates of their dimensions.

    Metadata come from consolidated metadata, where the reader takes them from these.
    """

    def __init__(self, objects: Objects, group: str, names: Sequence[str], consolidated: bool) -> None:
        """`group`: the path of the group, `names`: of arrays in it."""
        self._adopt(objects)
        self._files = self._consolidated() if consolidated else {}
        """Metadata that are known, by their keys."""
        # The reader finds an array that is not among consolidated metadata as well.
        known = bool(self._files)
        there = [name for name in names if self._has(group, name)]
        self._group = group
        """The group that is listed."""
        self._names = list(there)
        for name in self._dimensions(group, there):
            if name not in self._names and self._has(group, name, known):
                self._names.append(name)

    @property
    def supports_listing(self) -> bool:
        return True

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        if prefix.strip("/") == self._group:
            for name in self._names:
                yield name

    def read(self, key: str, byte_range: ByteRequest | None = None) -> Found | None:
        if byte_range is None and key in self._files:
            content = self._files[key]
            return Found(content, Head(len(content), "consolidated"))
        return super().read(key, byte_range)

    def _consolidated(self) -> dict[str, bytes]:
        """Metadata files by their keys, as the core finds them in the root (src/dataset/open.rs)."""
        if (root := super().read("zarr.json")) is not None:
            nodes = (_parsed(self, "zarr.json", root).get("consolidated_metadata") or {}).get(
                "metadata"
            ) or {}
            files = {f"{name}/zarr.json": json.dumps(node).encode() for name, node in nodes.items()}
            return files and {"zarr.json": root.content} | files
        if (root := super().read(".zmetadata")) is None:
            return {}
        files = _parsed(self, ".zmetadata", root).get("metadata") or {}
        return {key: json.dumps(content).encode() for key, content in files.items()}

    def _has(self, group: str, name: str, known: bool = False) -> bool:
        """Whether an array is there; with `known` only by the metadata that are."""
        folder = f"{group}/{name}" if group else name
        for key in (f"{folder}/zarr.json", f"{folder}/.zarray"):
            if key in self._files:
                return True
            if not known and (found := super().read(key)) is not None:
                self._files[key] = found.content
                return True
        return False

    def _dimensions(self, group: str, names: Sequence[str]) -> list[str]:
        """Names of the dimensions of some arrays."""
        found: dict[str, None] = {}
        for name in names:
            array = zarr.open_array(self, path=f"{group}/{name}" if group else name, mode="r")
            metadata = array.metadata
            its = metadata.dimension_names if metadata.zarr_format == 3 else None
            its = its or array.attrs.get("_ARRAY_DIMENSIONS") or ()
            found |= dict.fromkeys(one for one in its if isinstance(one, str))
        return list(found)


def _parsed(store: Store, key: str, found: Found) -> dict[str, Any]:
    try:
        parsed = json.loads(found.content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{store}/{key} is no JSON ({error}); write it again") from error
    return parsed if isinstance(parsed, dict) else {}
