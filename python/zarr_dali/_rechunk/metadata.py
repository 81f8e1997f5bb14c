"""The metadata of a copy, as files: all of them are known before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zarr
from zarr.storage import MemoryStore

from zarr_dali._rechunk import journal, ome
from zarr_dali._rechunk.array_plan import ArrayPlan
from zarr_dali._rechunk.plan import Plan, attributes_of, dimensions_of


def documents(plan: Plan, groups: dict[str, zarr.Group], arrays: dict[str, zarr.Array]) -> dict[str, bytes]:
    """Texts by path inside the copy.

    Args:
        plan: What is copied.
        groups: Those of the source by path.
        arrays: Those of the source by path.
    """
    texts: dict[str, Any] = {}
    store = MemoryStore(texts)
    inside = [array.name for array in plan.arrays]
    for name, group in groups.items():
        if name == "" or any(one.startswith(f"{name}/") for one in inside):
            made = zarr.open_group(store, path=name, mode="a", zarr_format=3)
            made.attrs.put(ome.attributes_of(name, group.attrs.asdict(), plan.arrays))
    for array in plan.arrays:
        _create(store, array, arrays[array.name])
    if plan.consolidated:
        zarr.consolidate_metadata(store)
    return {path: text.to_bytes() for path, text in sorted(texts.items())}


def write(texts: dict[str, bytes], folder: Path) -> None:
    """Writes what is not there."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != text:
            journal.write_whole(file, text)


def _create(store: MemoryStore, plan: ArrayPlan, source: zarr.Array) -> None:
    kind = plan.dtype
    names = dimensions_of(source)
    named = [None if name == f"dim_{axis}" else name for axis, name in enumerate(names)]
    fill = source.metadata.fill_value
    zarr.create_array(
        store,
        name=plan.name or None,
        shape=plan.shape,
        dtype=source.metadata.dtype if kind.kind in "OTSUV" else kind.newbyteorder("="),
        chunks=plan.chunk,
        shards=plan.shard,
        zarr_format=3,
        attributes=attributes_of(source),
        dimension_names=named if any(named) else None,
        **({} if fill is None else {"fill_value": fill}),
        **plan.codecs.arguments(),
    )
