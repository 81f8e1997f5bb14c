"""What is to be written and how the work is cut: all that is known before the first byte is copied."""

from __future__ import annotations

import base64
import math
import posixpath
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from zarr_dali import _dimensions, _labels, _ome
from zarr_dali._advice import size
from zarr_dali._arguments import Threads
from zarr_dali._rechunk import codecs, journal, ome, proposal
from zarr_dali._rechunk.array_plan import STRING_BYTES, ArrayPlan
from zarr_dali._rechunk.regions import Extents, Grid, cut, fitted
from zarr_dali._rechunk.source import Source

if TYPE_CHECKING:
    pass

WHOLE_BYTES = 16_000_000
"""Coordinates up to this many bytes become one chunk."""


@dataclass(frozen=True)
class Request:
    """What is asked for; the arguments of `zarr_dali.rechunk` that decide what is written."""

    chunks: Mapping[str, int]
    shards: Mapping[str, int] | None
    """None keeps the source's, an empty mapping leaves chunks as files of their own."""
    codec: str | None
    variables: tuple[str, ...] | None
    ranges: _labels.Ranges
    use: proposal.Use | None
    memory: int
    """Bytes for each process."""
    threads: Threads


@dataclass(frozen=True)
class Plan:
    """All of a copy. `str()` is what `zarr-dali rechunk --dry-run` prints."""

    source: str
    destination: str
    arrays: tuple[ArrayPlan, ...]
    memory: int
    consolidated: bool
    """Whether the source has consolidated metadata, so that the copy gets them."""
    fingerprint: str
    """Of the source's metadata and all that decides what is written."""

    @property
    def bytes(self) -> int:
        """Decoded bytes of the copy."""
        return sum(array.bytes for array in self.arrays)

    def __str__(self) -> str:
        from zarr_dali._rechunk import report

        return report.as_text(self.source, self.destination, self.arrays, self.memory)


def arrays_of(root: zarr.Group | zarr.Array) -> dict[str, zarr.Array]:
    """All arrays of a store by path, sorted."""
    if isinstance(root, zarr.Array):
        return {"": root}
    return {name: node for name, node in _members(root) if isinstance(node, zarr.Array)}


def groups_of(root: zarr.Group | zarr.Array) -> dict[str, zarr.Group]:
    """All groups of a store by path, sorted, the root as ""."""
    if isinstance(root, zarr.Array):
        return {}
    return {"": root} | {name: node for name, node in _members(root) if isinstance(node, zarr.Group)}


def _members(root: zarr.Group) -> list[tuple[str, zarr.Array | zarr.Group]]:
    if root.metadata.consolidated_metadata is None and not root.store.supports_listing:
        raise ValueError(
            f"{root.store} cannot be listed, because web servers have no listings, and its metadata are not "
            "consolidated: consolidate them (zarr.consolidate_metadata), or give the URLs of single arrays"
        )
    return sorted(root.members(max_depth=None), key=lambda member: member[0])


def attributes_of(array: zarr.Array) -> dict[str, Any]:
    """An array's attributes as a Zarr v3 array has them.

    In Zarr v2 the fill value is what CF calls `_FillValue`, to xarray and to the reader; in Zarr v3 it is
    not, and an attribute says it, in the form that xarray writes.
    """
    attributes = dict(array.attrs.asdict())
    if array.metadata.zarr_format == 3:
        return attributes
    attributes.pop("_ARRAY_DIMENSIONS", None)
    fill, kind = array.metadata.fill_value, np.dtype(array.dtype).kind
    if fill is not None and kind in "biufc":
        attributes["_FillValue"] = _encoded_fill(fill, kind)
    return attributes


def _encoded_fill(fill: Any, kind: str) -> Any:
    if kind == "c":
        return [_encoded_fill(fill.real, "f"), _encoded_fill(fill.imag, "f")]
    if kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(fill))).decode()
    return bool(fill) if kind == "b" else int(fill)


def make(request: Request, source: Source, destination: Path) -> Plan:
    """Reads the metadata of the source and decides everything.

    Raises:
        ValueError: The request does not fit the source.
    """
    try:
        root = source.open()
        arrays = arrays_of(root)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if str(source) in str(error):
            raise
        what = f"{type(error).__name__}: {error}"  # some say no more than a name
        raise ValueError(f"{source}: zarr-python cannot read its metadata: {what}") from error
    if not arrays:
        raise ValueError(f"{source}: the group holds no array")
    coordinates = coordinates_of(root, arrays)
    chosen = _chosen(arrays, coordinates, request.variables)
    deepest = max(arrays[name].ndim for name in chosen)
    dimensions = {name: dimensions_of(array) for name, array in arrays.items()}
    _check_dimensions(request, {name: dimensions[name] for name in chosen})
    codecs.check(request.codec or "keep")
    ome.check_ranges(
        {name: group.attrs.asdict() for name, group in groups_of(root).items()},
        {name: (dimensions[name], arrays[name].shape) for name in chosen},
        list(request.ranges),
    )
    bounds = Bounds(request.ranges, arrays.get)
    reference = dimensions[max(chosen, key=lambda name: arrays[name].ndim)]
    plans = []
    for name in chosen:
        array = arrays[name]
        small = array.ndim < min(2, deepest) or name in coordinates
        try:
            ranges = bounds.of(name, array)
            coordinate = small and len(chosen) > 1
            asked = replace(request, use=_use_of(request.use, reference, dimensions[name], ranges))
            plans.append(_array_plan(asked, name, array, dimensions[name], ranges, coordinate))
        except (ArithmeticError, ValueError) as error:
            where = f"{source}, array {name!r}" if name else str(source)
            raise ValueError(f"{where}: {error}") from error
    metadata = {name: arrays[name].metadata.to_dict() for name in chosen}
    written = [
        [plan.name, plan.shape, plan.start, plan.chunk, plan.shard, repr(plan.codecs)] for plan in plans
    ]
    return Plan(
        source=str(source),
        destination=str(destination),
        arrays=tuple(plans),
        memory=request.memory,
        consolidated=not isinstance(root, zarr.Array) and root.metadata.consolidated_metadata is not None,
        fingerprint=journal.fingerprint([str(source), metadata, written]),
    )


def with_regions(plan: Plan, regions: Mapping[str, Sequence[int]]) -> Plan:
    """The plan with the regions of an earlier run, with fewer workers where these need more memory.

    Raises:
        ValueError: A region does not fit into the memory.
    """
    arrays = []
    for array in plan.arrays:
        region = tuple(regions[array.name])
        cut = fitted(array.cut, array.grid, region, plan.memory)
        if cut is None:
            needed = size(array.grid.memory(region, 1))
            raise ValueError(
                f"array {array.name!r}: the run that is resumed took regions that need {needed} of memory; "
                f"give at least that, not {size(plan.memory)}"
            )
        arrays.append(replace(array, cut=cut))
    return replace(plan, arrays=tuple(arrays))


class Bounds:
    """Finds the ranges that are meant in arrays of a store.

    Args:
        ranges: What is asked for.
        find: Gives the array at a path, if there is one.
    """

    def __init__(self, ranges: _labels.Ranges, find: Callable[[str], zarr.Array | None]) -> None:
        self.ranges, self._find = ranges, find
        self._coordinates: dict[str, _labels.Coordinate] = {}
        """Of coordinates that were read, by their paths."""

    def of(self, name: str, array: zarr.Array) -> list[tuple[int, int]]:
        """The range of each dimension of an array.

        Raises:
            ValueError: One holds nothing, or it is not clear which is meant.
        """
        return [
            self.ranges.bounds(one, extent, lambda one=one, extent=extent: self.coordinate(name, one, extent))
            for one, extent in zip(dimensions_of(array), array.shape)
        ]

    def coordinate(self, array: str, dimension: str, size: int) -> _labels.Coordinate | None:
        """The labels of a dimension of an array, if it has any."""
        found = _labels.coordinate_of(self._find, array, dimension, size)
        if found is None or dimensions_of(found) != (dimension,):
            return None
        if found.path not in self._coordinates:
            read = _labels.read_coordinate(found, dimension, attributes_of(found))
            self._coordinates[found.path] = read
        return self._coordinates[found.path]


def dimensions_of(array: zarr.Array) -> tuple[str, ...]:
    """Names of an array's dimensions; `dim_0` and so on for those without."""
    names = array.attrs.get("_ARRAY_DIMENSIONS") if array.metadata.zarr_format == 2 else None
    if array.metadata.zarr_format == 3:
        names = array.metadata.dimension_names
    names = _dimensions.names_of(names, array.ndim, None if names else _axes_of(array))
    return tuple(name if name is not None else f"dim_{axis}" for axis, name in enumerate(names))


def _axes_of(array: zarr.Array) -> tuple[str, ...] | None:
    """The names that the OME-Zarr image around an array gives to its dimensions."""
    group = array.path
    while group:
        group = posixpath.dirname(group)
        try:
            attributes = zarr.open_group(array.store, path=group, mode="r").attrs.asdict()
        except (LookupError, OSError, RuntimeError, TypeError, ValueError):
            continue  # no group, or one that nobody needs to read the array
        if axes := _ome.names_of(attributes, array.path[len(group) :].strip("/")):
            return axes
    return None


def coordinates_of(root: zarr.Group | zarr.Array, arrays: Mapping[str, zarr.Array]) -> set[str]:
    """Arrays that belong to others: named like their dimension, or named by another's CF attributes."""
    found = {
        name
        for name, array in arrays.items()
        if array.ndim <= 1 and dimensions_of(array) == (posixpath.basename(name),)
    }
    owners = list(arrays.items()) + list(groups_of(root).items())
    for name, node in owners:
        folder = posixpath.dirname(name) if isinstance(node, zarr.Array) else name
        for attribute in ("coordinates", "bounds", "grid_mapping"):
            text = node.attrs.get(attribute)
            if isinstance(text, str):
                words = re.findall(r"[^\s:]+", text)
                found.update(path for word in words if (path := posixpath.join(folder, word)) in arrays)
    return found if found != set(arrays) else set()


def _chosen(
    arrays: Mapping[str, zarr.Array], coordinates: set[str], variables: Iterable[str] | None
) -> list[str]:
    """The arrays to copy: those asked for, and coordinates over no other dimensions than theirs."""
    if variables is None:
        return list(arrays)
    wanted = set(variables)
    if unknown := sorted(wanted - set(arrays)):
        raise ValueError(f"there is no array {unknown[0]!r}; there are {', '.join(arrays)}")
    used = {name for one in wanted for name in dimensions_of(arrays[one])}
    beside = {name for name in coordinates if used.issuperset(dimensions_of(arrays[name]))}
    return [name for name in arrays if name in wanted | beside]


def _check_dimensions(request: Request, dimensions: Mapping[str, tuple[str, ...]]) -> None:
    known = dict.fromkeys(name for names in dimensions.values() for name in names)
    asked = {"chunks": request.chunks, "shards": request.shards or {}, "range": request.ranges.labels}
    asked["index_range"] = request.ranges.positions
    for argument, names in asked.items():
        for name in names:
            if name not in known:
                raise ValueError(f"{argument}: there is no dimension {name!r}; there are {', '.join(known)}")
            extent = names[name]
            if argument in ("chunks", "shards") and (extent < 1 and extent != -1):
                raise ValueError(f"{argument}: {name}={extent} is no extent; -1 is all of a dimension")


def _use_of(
    use: proposal.Use | None,
    reference: tuple[str, ...],
    dimensions: tuple[str, ...],
    ranges: Sequence[tuple[int, int]],
) -> proposal.Use | None:
    """How an array is used beside that with the dimensions `reference`: a static one has no samples of its
    own, but the part of each dimension that a sample has of it there."""
    if use is None or reference[:1] == dimensions[:1] or not set(dimensions) <= set(reference[1:]):
        return use
    window = dict(zip(reference, use.window))
    extents = (window.get(name, end - begin) for name, (begin, end) in zip(dimensions, ranges))
    return replace(use, window=tuple(extents), is_static=True)


def _array_plan(
    request: Request,
    name: str,
    array: zarr.Array,
    dimensions: tuple[str, ...],
    ranges: Sequence[tuple[int, int]],
    coordinate: bool,
) -> ArrayPlan:
    start, shape = tuple(begin for begin, _ in ranges), tuple(end - begin for begin, end in ranges)
    kind = np.dtype(array.dtype)
    element_bytes = STRING_BYTES if kind.kind in "OT" else kind.itemsize
    if 0 in (*array.chunks, *(array.shards or ())):
        raise ValueError(f"its chunks {array.chunks} hold nothing; repair its metadata")
    codec, reasons = request.codec or "keep", ()
    if coordinate:
        codec = "keep"
        whole = math.prod(shape) * element_bytes <= WHOLE_BYTES
        chunk, shard = tuple(map(max, shape, [1] * len(shape))) if whole else _clip(array.chunks, shape), None
    elif request.use is not None and array.ndim > 0:
        largest = request.memory // 8
        proposed = proposal.propose(request.use, shape, element_bytes, array.chunks, largest)
        codec, reasons = request.codec or proposal.CODEC, proposed.reasons
        chunk = _extents(request.chunks, dimensions, proposed.chunk, shape)
        shard = _sharded(request.shards, dimensions, proposed.shard, chunk, shape)
        if (chunk, shard, codec) != (proposed.chunk, proposed.shard, proposal.CODEC):
            reasons = (*reasons, "what was asked for by itself goes before the proposal")
    else:
        chunk = _extents(request.chunks, dimensions, array.chunks, shape)
        shard = _sharded(request.shards, dimensions, array.shards, chunk, shape)
    grid, threads = Grid(shape, start, array.chunks, shard or chunk, element_bytes), request.threads
    chosen = cut(grid, request.memory, threads.workers, threads.decoding, threads.processes)
    if chosen is None:
        needed = grid.memory(shard or chunk, 1)
        what = "sharded chunk" if shard else "chunk"
        # What is read for it may be larger than it is.
        smallest = (1,) * len(shape)
        helps = replace(grid, unit=smallest).memory(smallest, 1) <= request.memory
        smaller = f" or smaller {'shards' if shard else 'chunks'}" if helps else ""
        raise ValueError(
            f"one {what} of {'x'.join(map(str, shard or chunk))} needs {size(needed)} of memory to be "
            f"written, more than {size(request.memory)}: give more memory{smaller}"
        )
    return ArrayPlan(
        name=name,
        dimensions=dimensions,
        shape=shape,
        start=start,
        dtype=kind,
        source_chunk=tuple(array.chunks),
        source_shard=array.shards and tuple(array.shards),
        source_codecs=_codecs_of(array),
        chunk=chunk,
        shard=shard,
        codecs=codecs.chain_of(codec, array),
        coordinate=coordinate,
        cut=chosen,
        reasons=reasons,
    )


def _clip(extents: Sequence[int], shape: Extents) -> Extents:
    """Chunks that are no larger than what they cut, and hold at least one element."""
    return tuple(max(1, min(pair)) for pair in zip(extents, shape))


def _extents(
    named: Mapping[str, int], dimensions: Sequence[str], usual: Sequence[int], shape: Extents
) -> Extents:
    """Chunk extents: those that are named, else the usual ones; -1 is all of a dimension."""
    wanted = [named.get(dimension, extent) for dimension, extent in zip(dimensions, usual)]
    return _clip([size if one == -1 else one for one, size in zip(wanted, shape)], shape)


def _sharded(
    named: Mapping[str, int] | None,
    dimensions: Sequence[str],
    usual: Sequence[int] | None,
    chunk: Extents,
    shape: Extents,
) -> Extents | None:
    """Extents of a sharded chunk: whole chunks, and no more than cover the array.

    Raises:
        ValueError: An extent that is named is no multiple of the chunk's.
    """
    if named is None and usual is None:
        return None
    if named is not None and not set(named).intersection(dimensions):
        return None
    # What is not named is as in the source or the proposal where that is asked for, else as in the chunk.
    base = usual if named is None else chunk
    shard = []
    for dimension, one, inner, extent in zip(dimensions, base, chunk, shape):
        covering = -(-extent // inner) * inner
        wanted = (named or {}).get(dimension)
        if wanted is None:
            shard.append(max(inner, min(-(-one // inner) * inner, covering)))
        elif wanted == -1 or wanted >= covering:
            shard.append(max(inner, covering))
        elif wanted % inner:
            below = wanted // inner * inner
            near = " or ".join(str(value) for value in (below, below + inner) if value)
            raise ValueError(
                f"shards: {dimension}={wanted} is no multiple of the chunk's {inner}; give {near}"
            )
        else:
            shard.append(wanted)
    return tuple(shard)


def _codecs_of(array: zarr.Array) -> tuple[dict[str, Any], ...]:
    """The codecs of an array's read chunks, by name and configuration."""
    if array.metadata.zarr_format == 3:
        chain = [codec.to_dict() for codec in (*array.filters, array.serializer, *array.compressors)]
        return tuple({"name": one["name"], "configuration": one.get("configuration") or {}} for one in chain)
    found = []
    for codec in (*array.filters, *array.compressors):
        config = dict(codec.get_config())
        found.append({"name": config.pop("id"), "configuration": config})
    return tuple(found)
