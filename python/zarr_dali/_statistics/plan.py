"""Which parts of which arrays are read, and in which regions: all that is known before the first chunk is."""

from __future__ import annotations

import functools
import math
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

from zarr_dali import _labels, _moments
from zarr_dali._advice import size
from zarr_dali._arguments import Threads
from zarr_dali._coordinates import Coordinates
from zarr_dali._labels import Ranges
from zarr_dali._rechunk import journal
from zarr_dali._rechunk.plan import Bounds, arrays_of, attributes_of, coordinates_of, dimensions_of
from zarr_dali._rechunk.regions import Cut, Grid, cut, fitted, slices
from zarr_dali._rechunk.source import Source


@dataclass(frozen=True)
class Request:
    """The arguments of `zarr_dali.statistics` that decide what is read."""

    arrays: tuple[str, ...] | None
    by: str | None
    ranges: Ranges
    mask_and_scale: bool
    memory: int
    """Bytes for each process."""
    threads: Threads


@dataclass(frozen=True)
class Part:
    """What is read of an array in one of the stores."""

    store: int
    name: str
    dimensions: tuple[str, ...]
    place: tuple[slice, ...]
    """Where it lies in the array."""
    axis: int | None
    """Of the dimension whose indices have statistics each."""
    array: zarr.Array
    """As zarr-python reads it."""
    rule: _moments.Rule
    is_unpacked: bool | None
    """Whether values are as CF attributes unpack them; None where these change no number."""
    cut: Cut

    @property
    def key(self) -> str:
        return f"{self.store}:{self.name}"

    @property
    def grid(self) -> Grid:
        return _grid(self.array, self.place)

    @property
    def regions(self) -> int:
        return self.grid.count(self.cut.region)

    @property
    def bytes(self) -> int:
        """Decoded bytes of what is read."""
        extents = (part.stop - part.start for part in self.place)
        return math.prod(extents) * np.dtype(self.array.dtype).itemsize

    def region(self, number: int) -> tuple[slice, ...]:
        """A region's part of the array: whole chunks, as far as they are asked for."""
        shape, extents = self.grid.shape, self.cut.region
        at = np.unravel_index(number, [-(-a // b) for a, b in zip(shape, extents)]) if shape else ()
        return tuple(
            slice(max(box.start + start, part.start), box.stop + start)
            for box, start, part in zip(
                slices(shape, extents, list(map(int, at))), self.grid.start, self.place
            )
        )


@dataclass(frozen=True)
class Plan:
    """All that is read."""

    sources: tuple[Source, ...]
    parts: dict[str, tuple[Part, ...]]
    """Of each array, in the order of the stores."""
    by: str | None
    joined: str | None
    """The dimension along which several stores are joined."""
    labels: dict[str, list[Any]]
    """Of the indices along `by`, of each array in which they have any."""
    fingerprint: str
    """Of the metadata and all that decides what is found."""
    memory: int

    @property
    def each(self) -> Iterable[Part]:
        return (part for parts in self.parts.values() for part in parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.each)

    @property
    def shown(self) -> str:
        """What the array is called where the store is one: as in the reader, by its folder."""
        return posixpath.basename(str(self.sources[0]).rstrip("/"))

    def with_regions(self, regions: dict[str, Sequence[int]]) -> Plan:
        """The plan with the regions of an earlier run.

        Raises:
            ValueError: One does not fit into the memory.
        """
        return replace(
            self,
            parts={
                name: tuple(_with_region(part, tuple(regions[part.key]), self.memory) for part in parts)
                for name, parts in self.parts.items()
            },
        )


def _with_region(part: Part, region: tuple[int, ...], memory: int) -> Part:
    fitting = fitted(part.cut, part.grid, region, memory)
    if fitting is None:
        needed = size(part.grid.memory(region, 1))
        raise ValueError(
            f"array {part.name!r}: the run that is resumed took regions that need {needed} of memory; give "
            f"at least that, not {size(memory)}"
        )
    return replace(part, cut=fitting)


def make(
    request: Request, sources: Sequence[Source], around: Sequence[Callable[[], Coordinates]] = ()
) -> Plan:
    """Reads metadata, and coordinates where labels are given, and decides everything.

    Args:
        request: What is asked for.
        sources: The stores.
        around: Of each store, if it is an array, reads the coordinates in the group that it is in.

    Raises:
        ValueError: The request does not fit the stores.
    """
    roots = [_root(source) for source in sources]
    finders = [_finder(root) for root in roots]
    names = _chosen(request, sources[0], roots[0])
    found: dict[str, list[zarr.Array]] = {}
    for name in names:
        found[name] = [_array(find, source, name) for find, source in zip(finders, sources)]
    reference = max((arrays[0] for arrays in found.values()), key=lambda array: array.ndim)
    joined = dimensions_of(reference)[0] if len(sources) > 1 and reference.ndim else None
    known = dict.fromkeys(one for arrays in found.values() for one in dimensions_of(arrays[0]))
    for argument, asked in (
        ("range, index_range", request.ranges),
        ("by", [request.by] if request.by else []),
    ):
        for one in asked:
            if one not in known:
                raise ValueError(
                    f"{argument}: the arrays have no dimension {one!r}, only {', '.join(known) or 'none'}"
                )
    stores: list[Bounds | _Around] = [Bounds(request.ranges, find) for find in finders]
    for at, (root, read) in enumerate(zip(roots, around)):
        if isinstance(root, zarr.Array):
            stores[at] = _Around(read)
    coordinates = _Coordinates(request, stores, joined)
    parts, labels = {}, {}
    for name, arrays in found.items():
        try:
            parts[name] = tuple(_parts(request, name, arrays, joined, coordinates))
            if request.by in dimensions_of(arrays[0]):
                labels[name] = coordinates.labels(name, arrays)
        except ValueError as error:
            where = f"array {name!r}: " if name else ""
            raise ValueError(f"{sources[0]}: {where}{error}") from error
    return Plan(
        sources=tuple(sources),
        parts=parts,
        by=request.by,
        joined=joined,
        labels={name: one for name, one in labels.items() if one is not None},
        fingerprint=journal.fingerprint(
            [
                [str(source) for source in sources],
                request.by,
                request.mask_and_scale,
                [
                    [part.key, str(part.place), part.array.metadata.to_dict()]
                    for its in parts.values()
                    for part in its
                ],
            ]
        ),
        memory=request.memory,
    )


def _root(source: Source) -> zarr.Group | zarr.Array:
    try:
        return source.open()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if str(source) in str(error):
            raise
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{source}: zarr-python cannot read its metadata: {what}") from error


def _finder(root: zarr.Group | zarr.Array) -> Callable[[str], zarr.Array | None]:
    """Finds arrays by their paths, without a listing of the store."""

    def find(path: str) -> zarr.Array | None:
        if isinstance(root, zarr.Array):
            return root if not path else None
        try:
            node = root[path.strip("/")]
        except KeyError:
            return None
        return node if isinstance(node, zarr.Array) else None

    return find


def _chosen(request: Request, source: Source, root: zarr.Group | zarr.Array) -> list[str]:
    if request.arrays is not None and isinstance(root, zarr.Array):
        raise ValueError(f"arrays: {source} is an array itself, and has none below it; leave `arrays` out")
    if request.arrays is not None:
        if not request.arrays:
            raise ValueError("arrays: none are named")
        return list(dict.fromkeys(name.strip("/") for name in request.arrays))
    try:
        arrays = arrays_of(root)
    except ValueError as error:  # it cannot be listed
        raise ValueError(f"{error}, or name them in `arrays`") from error
    coordinates = coordinates_of(root, arrays)
    chosen = [
        name
        for name, array in arrays.items()
        if name not in coordinates and _moments.counts(np.dtype(array.dtype))
    ]
    if not chosen:
        raise ValueError(f"{source}: no array in it holds numbers, besides coordinates")
    return chosen


def _array(find: Callable[[str], zarr.Array | None], source: Source, name: str) -> zarr.Array:
    array = find(name)
    if array is None:
        raise ValueError(f"arrays: there is no array {name!r} in {source}")
    if not _moments.counts(np.dtype(array.dtype)):
        raise ValueError(f"arrays: {name!r} in {source} holds {array.dtype}, of which there is no mean")
    if 0 in (*array.chunks, *(array.shards or ())):
        raise ValueError(
            f"{source}, array {name!r}: its chunks {array.chunks} hold nothing; repair its metadata"
        )
    return array


class _Around:
    """Coordinates of an array that is a store by itself, as `Bounds` has them of others."""

    def __init__(self, read: Callable[[], Coordinates]) -> None:
        self._read = read

    @functools.cached_property
    def _known(self) -> Coordinates | None:
        try:
            return self._read()
        except ValueError:  # it is in no group, or has no names of dimensions
            return None

    def coordinate(self, array: str, dimension: str, size: int) -> _labels.Coordinate | None:
        """The labels of a dimension, if it has any."""
        index = self._known and self._known.indexes.get(dimension)
        if index is None or len(index) != size:
            return None
        return _labels.Coordinate(index, dimension in self._known.longitudes)


class _Coordinates:
    """Labels and ranges of dimensions of several stores, joined along one of them."""

    def __init__(self, request: Request, stores: Sequence[Bounds | _Around], joined: str | None) -> None:
        self._request, self._stores, self._joined = request, stores, joined

    def bounds(self, name: str, dimension: str, arrays: Sequence[zarr.Array]) -> tuple[int, int]:
        """The range of a dimension of an array in all stores together."""
        extent = sum(_extents(dimension, arrays if dimension == self._joined else arrays[:1]))
        return self._request.ranges.bounds(
            dimension, extent, lambda: self._coordinate(name, dimension, arrays)
        )

    def labels(self, name: str, arrays: Sequence[zarr.Array]) -> list[Any] | None:
        """Of the indices along the dimension that is asked for, for JSON; None without a coordinate."""
        by = self._request.by
        try:
            coordinate = self._coordinate(name, by, arrays)
        except (ImportError, ValueError):  # no xarray, or no labels that can be read
            return None
        if coordinate is None:
            return None
        start, stop = self.bounds(name, by, arrays)
        return _labels.as_list(coordinate.index[start:stop])

    def _coordinate(
        self, name: str, dimension: str, arrays: Sequence[zarr.Array]
    ) -> _labels.Coordinate | None:
        if dimension != self._joined:
            return self._stores[0].coordinate(name, dimension, *_extents(dimension, arrays[:1]))
        parts = [
            store.coordinate(name, dimension, extent)
            for store, extent in zip(self._stores, _extents(dimension, arrays))
        ]
        if any(part is None for part in parts):
            return None
        return parts[0]._replace(index=parts[0].index.append([part.index for part in parts[1:]]))


def _extents(dimension: str, arrays: Sequence[zarr.Array]) -> list[int]:
    return [array.shape[dimensions_of(array).index(dimension)] for array in arrays]


def _parts(
    request: Request, name: str, arrays: list[zarr.Array], joined: str | None, coordinates: _Coordinates
) -> Iterable[Part]:
    """What is read of an array, store by store."""
    dimensions = dimensions_of(arrays[0])
    if joined not in dimensions:
        arrays = arrays[:1]  # the same in all stores
    for array in arrays[1:]:
        fixed = [
            [(one, extent) for one, extent in zip(dimensions_of(each), each.shape) if one != joined]
            for each in (arrays[0], array)
        ]
        if fixed[0] != fixed[1] or dimensions_of(array) != dimensions:
            raise ValueError(
                f"the stores cannot be joined along {joined}: {dict(fixed[0])} in the first, "
                f"{dict(fixed[1])} in another"
            )
    whole = [coordinates.bounds(name, one, arrays) for one in dimensions]
    passed, found = 0, []
    for store, array in enumerate(arrays):
        place = []
        for one, extent, (start, stop) in zip(dimensions, array.shape, whole):
            before = passed if one == joined else 0
            first = min(max(start - before, 0), extent)
            place.append(slice(first, max(first, min(stop - before, extent))))
        if joined in dimensions:
            passed += array.shape[dimensions.index(joined)]
        found.append((store, array, tuple(place)))
    some = [one for one in found if all(part.start < part.stop for part in one[2])]
    for store, array, place in some or found[:1]:
        yield _part(request, store, name, array, place)


def _part(request: Request, store: int, name: str, array: zarr.Array, place: tuple[slice, ...]) -> Part:
    dimensions, grid, threads = dimensions_of(array), _grid(array, place), request.threads
    chosen = cut(grid, request.memory, threads.workers, threads.decoding, threads.processes)
    if chosen is None:
        raise ValueError(
            f"one chunk of {'x'.join(map(str, array.chunks))} needs {size(grid.memory(array.chunks, 1))} of "
            f"memory to be read, more than {size(request.memory)}: give more memory"
        )
    attributes = attributes_of(array)
    packs = _moments.Rule.of(attributes, np.dtype(array.dtype), True).packs
    return Part(
        store=store,
        name=name,
        dimensions=dimensions,
        place=place,
        axis=dimensions.index(request.by) if request.by in dimensions else None,
        array=array,
        rule=_moments.Rule.of(attributes, np.dtype(array.dtype), request.mask_and_scale),
        is_unpacked=request.mask_and_scale if packs else None,
        cut=chosen,
    )


def _grid(array: zarr.Array, place: tuple[slice, ...]) -> Grid:
    """The chunks that a place touches, of which regions are made: so none is read twice."""
    start = tuple(part.start // chunk * chunk for part, chunk in zip(place, array.chunks))
    return Grid(
        shape=tuple(part.stop - first for part, first in zip(place, start)),
        start=start,
        source_chunk=tuple(array.chunks),
        unit=tuple(array.chunks),
        element_bytes=np.dtype(array.dtype).itemsize,
    )
