"""Coordinates to indices: what `fn.readers.zarr` wants to know, said with the labels of the dimensions.

The labels are looked up by xarray, on positions in the place of data: of the store only metadata and the
coordinates of dimensions are read.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zarr_dali import _core, _dimensions, _local, _locations, _ome, _ome_store, _pieces, _steps

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from zarr_dali._store import Store

Paths = _locations.Source | Sequence[_locations.Source]

_AT_ONCE = 16
"""Stores that are looked at at once."""


def select(
    path: Paths,
    *,
    arrays: str | Sequence[str] | None = None,
    join: Literal["concat", "separate"] | None = None,
    window: int | Sequence[int] | None = None,
    offsets: Sequence[Any] | None = None,
    exclude: Any = None,
    gaps: Literal["error", "skip", "allow"] | None = None,
    follow_links: bool = True,
    storage_options: _core.StorageOptions = None,
    **labels: Any,
) -> dict[str, Any]:
    """Arguments of `fn.readers.zarr` for what the labels name, with the rules of xarray's `.sel`.

    fn.readers.zarr(**zarr_dali.select("era5.zarr", arrays=["t2m"], time=slice("2010", "2015")), window=[2])

    Args:
        path: As for the reader: a group, an array (its coordinates are looked for in its group), a list of
            either or a pattern, joined along the first dimension unless `join` says otherwise. Or an object
            that stands for a store, as for `Loader`.
        arrays: Paths of arrays below `path`, all in one group, or levels of an OME-Zarr image and its labels.
            Without them an OME-Zarr image, plate or well is read as `zarr_dali.ome_zarr` says it, with its
            arguments `level` and `labels` if they are among the labels here.
        join: As for the reader, by default "concat", of several OME-Zarr images "separate": with "separate"
            labels are looked up in each store, and a store in which they select nothing is left out. Time
            spans of `offsets` have to be as many steps in each.
        window: As for the reader, which gets it: whether a sample has several steps, between which gaps can
            be.
        offsets: Steps of a sample along the first dimension: indices, or time spans such as "-6h", timedelta
            or numpy.timedelta64, which become indices by the spacing of the first dimension's coordinate.
        exclude: What no sample may touch along the first dimension: a label, a slice or a list of them, of
            which a text that is a part of a date means all of it; or a mask, True for what is left out: a
            DataArray over the first dimension, or as many values as it has indices.
        gaps: What becomes of samples of several steps where the coordinate of the first dimension has a gap:
            "error" refuses the store, "skip" leaves out the samples that reach over a gap, and "allow" takes
            them, with steps counted by index. Without it "error" if `offsets` are time spans, else "allow"
            with a warning that names the first gap. With time spans a gap is where steps are not as far apart
            as most are; else where they are more than one and a half times as far apart as usual (the
            median), or not in the coordinate's order. Only the range that is selected counts.
        follow_links: As for the reader: False refuses symbolic links that lead out of the store's folder, and
            of an array by itself also those in its group that lead out of the group.
        storage_options: Credentials and endpoints of stores at URLs, as for the reader.
        labels: For a dimension a label, a slice of labels (both ends belong to it) or a list, whose order the
            samples have. It applies to every array with that dimension. A dimension keeps its place with a
            single label: its extent is 1 then. A dimension without a coordinate is selected by position, as
            are the axes of OME-Zarr images, whose channels also have the names that `omero` gives them.
            Longitudes are a circle: `slice(350, 10)` and `slice(-10, 10)` are two pieces of a coordinate from
            0 to 359, one behind the other.

    Returns:
        `path`, and `arrays`, `join`, `per_store`, `roi_start`, `roi_end`, `select`, `window`, `offsets`,
        `exclude`, `breaks`, `follow_links` and `storage_options` where they apply. `select` has what is no
        range of the leading dimensions of all arrays: `window` has to cover all of it, or none.

    Raises:
        ValueError: There is no such array, dimension or label, or what is selected along the first dimension
            is not one ascending range of indices.
        ImportError: xarray or zarr is missing.
    """
    location = _locations.located(path, storage_options)
    path, storage_options = location.path, location.storage_options
    if arrays is not None:
        arrays = [arrays] if isinstance(arrays, str) else [str(name) for name in arrays]
    elif location.arrays:
        arrays = location.arrays
    if arrays is None:
        reading, labels = _ome_store.from_labels(location.paths, labels, storage_options, follow_links)
        if reading is not None:
            path, arrays = reading.path, reading.arrays
            join = join or ("concat" if isinstance(path, str) else "separate")
    join = "concat" if join is None else join
    if join not in ("concat", "separate"):
        raise ValueError(f'join: "{join}" is neither "concat" nor "separate"')
    _import_xarray()
    opened = _opened(path, arrays, follow_links, storage_options)
    chosen: dict[str, Any] = {"path": path}
    if storage_options is not None:
        chosen["storage_options"] = _core.as_json(storage_options)
    if not follow_links:
        chosen["follow_links"] = False
    if arrays is not None:
        chosen["arrays"] = arrays
    if window is not None:
        chosen["window"] = np.atleast_1d(window).tolist()
    several = _steps.are_several(window, offsets)
    covered = len(chosen.get("window", [1]))
    if join == "separate":
        return chosen | {"join": join} | _separately(opened, labels, covered, offsets, exclude, gaps, several)
    known = _Coordinates.joined(opened)
    (start, end), region, pieces = known.selected(labels, covered)
    if region:
        chosen["roi_start"] = [start for start, _ in region]
        chosen["roi_end"] = [end for _, end in region]
    if pieces:
        chosen["select"] = _pieces.as_json(pieces)
    steps, (breaks,) = _steps.resolve([known.line(start, end)], offsets, gaps, several)
    if steps is not None:
        chosen["offsets"] = steps
    if breaks:
        chosen["breaks"] = breaks
    if exclude is not None:
        left_out = known.excluded(exclude)
        left_out = left_out[(left_out >= start) & (left_out < end)].tolist()
        if left_out:
            chosen["exclude"] = left_out
    return chosen


def _separately(
    stores: Sequence[tuple[str, _Coordinates]],
    labels: dict[str, Any],
    covered: int,
    offsets: Any,
    exclude: Any,
    gaps: str | None,
    several: bool,
) -> dict[str, Any]:
    """Arguments for what labels name in each of several stores."""
    _check_dimensions(stores)
    entries: list[dict[str, list[int]] | None] = []
    left_out_by = None
    lines = []
    pieces: dict[str, str] = {}
    for store, known in stores:
        try:
            (start, end), region, found = known.selected(labels, covered)
        except AbsentError as error:
            left_out_by = left_out_by or error
            entries.append(None)
            continue
        entries.append(
            {"roi_start": [start for start, _ in region], "roi_end": [end for _, end in region]}
            if region
            else {}
        )
        lines.append(known.line(start, end, store))
        pieces[store] = _pieces.as_json(found) if found else ""
    if not lines:
        raise ValueError(f"in none of {len(entries)} stores: {left_out_by}") from left_out_by
    (one, wanted), *others = pieces.items()
    for store, found in others:
        if found != wanted:
            raise ValueError(
                f"{', '.join(labels)}: other indices in {store} than in {one}, and a reader takes the same "
                "of all stores where they are no range of the leading dimensions; give each a reader of its "
                "own"
            )
    chosen: dict[str, Any] = {"select": wanted} if wanted else {}
    steps, breaks = _steps.resolve(lines, offsets, gaps, several)
    if steps is not None:
        chosen["offsets"] = steps
    for entry, behind in zip((entry for entry in entries if entry is not None), breaks):
        if behind:
            entry["breaks"] = behind
    if exclude is not None:
        _exclude_separately(stores, entries, exclude)
    if any(entry != {} for entry in entries):
        chosen["per_store"] = json.dumps(entries)
    return chosen


def breaks_of(
    path: Paths, arrays: Sequence[str] | None, arguments: Mapping[str, Any], gaps: str | None
) -> dict[str, Any]:
    """The reader's arguments that keep samples from reaching over gaps, for a reader of indices.

    `arguments` are those of the reader: `window`, `offsets`, `join`, and the region that counts.

    Raises:
        ValueError: There are gaps, and `gaps` is "error"; or coordinates cannot be read.
        ImportError: xarray or zarr is missing.
    """
    _import_xarray()
    opened = _opened(path, arrays, arguments.get("follow_links", True), arguments.get("storage_options"))
    separate = arguments.get("join") == "separate"
    own = json.loads(arguments.get("per_store") or "[]") or [{}] * len(opened)
    parts = opened if separate else [("", _Coordinates.joined(opened))]
    entries, lines = [], []
    for (store, known), entry in zip(parts, own):
        entries.append(entry if entry is None else dict(entry))
        if entry is None:
            continue
        given = {**arguments, **entry}
        size = known.sizes[known.dimensions[0]]
        start, end = (
            min(int(np.atleast_1d(given[name])[0]), size) if given.get(name) else default
            for name, default in (("roi_start", 0), ("roi_end", size))
        )
        lines.append(known.line(start, end, store))
    _, breaks = _steps.resolve(lines, None, gaps, True)
    if not any(breaks):
        return {}
    if not separate:
        return {"breaks": breaks[0]}
    for entry, found in zip((entry for entry in entries if entry is not None), breaks):
        if found:
            entry["breaks"] = sorted({*entry.get("breaks", []), *found})
    return {"per_store": json.dumps(entries)}


def _exclude_separately(
    stores: Sequence[tuple[str, _Coordinates]], entries: Sequence[dict[str, list[int]] | None], exclude: Any
) -> None:
    """Adds what is to be left out to the entry of each store. A label has to be in one of the stores."""
    import xarray as xr

    name = stores[0][1].dimensions[0]
    if isinstance(exclude, xr.DataArray) and exclude.dtype == bool and name in exclude.indexes:
        exclude = list(exclude.indexes[name][exclude.values])
    one = isinstance(exclude, (str, bytes, slice)) or not isinstance(exclude, Iterable)
    labels = [exclude] if one else list(exclude)
    if any(isinstance(label, (bool, np.bool_)) for label in labels) or isinstance(exclude, xr.DataArray):
        raise ValueError(
            "exclude: a mask of several separate stores needs labels, as a DataArray over "
            f"{name} has them; or give the labels themselves"
        )
    absent: dict[int, AbsentError] = {}
    found: set[int] = set()
    for (_, known), entry in zip(stores, entries):
        indices: set[int] = set()
        for number, label in enumerate(labels):
            try:
                indices.update(map(int, np.ravel(known.positions(name, label))))
                found.add(number)
            except AbsentError as error:
                absent[number] = error
        if entry is None:
            continue
        start = entry.get("roi_start", [0])[0]
        end = entry.get("roi_end", [known.sizes[name]])[0]
        if inside := sorted(index for index in indices if start <= index < end):
            entry["exclude"] = inside
    for number, error in absent.items():
        if number not in found:
            raise ValueError(f"exclude, in none of {len(entries)} stores: {error}") from error


class AbsentError(ValueError):
    """A label that a coordinate has not."""


def coordinates(
    path: Paths,
    arrays: Sequence[str] | None,
    follow_links: bool | None = None,
    storage_options: _core.StorageOptions = None,
) -> _Coordinates:
    """The dimensions of arrays with their coordinates.

    Raises:
        ValueError, ImportError: As `select`.
    """
    _import_xarray()
    opened = _opened(path, arrays, follow_links is not False, storage_options)
    return _Coordinates.joined(opened)


def _import_xarray() -> None:
    try:
        import xarray  # noqa: F401
        import zarr  # noqa: F401  what xarray reads stores with
    except ModuleNotFoundError as error:
        raise ImportError(
            f"selecting by label needs xarray and zarr, and {error.name} is missing: "
            'pip install "zarr-dali[labels]"'
        ) from error


@dataclass(frozen=True)
class _Coordinates:
    """What is known about the dimensions of some arrays."""

    dimensions: tuple[str, ...]
    """Of the reference array: the first of those with the most dimensions."""
    sizes: dict[str, int]
    """Of the dimensions of all arrays, in this order."""
    indexes: dict[str, pd.Index]
    """Of the dimensions that have a coordinate."""
    arrays: dict[str, tuple[str, ...]]
    """Dimensions of each array."""
    longitudes: frozenset[str] = frozenset()
    """The dimensions whose coordinate holds longitudes."""
    names: Mapping[str, pd.Index] = field(default_factory=dict)
    """Of the indices of dimensions without a coordinate, as far as there are any: channels."""

    @classmethod
    def joined(cls, stores: Sequence[tuple[str, _Coordinates]]) -> _Coordinates:
        """Of stores that are joined along the first dimension."""
        parts = [part for _, part in stores]
        whole = parts[0]
        if len(parts) == 1:
            return whole
        _check_dimensions(stores)
        first, *others = whole.sizes
        for store, part in stores[1:]:
            for name in others:
                mine, its = whole.indexes.get(name), part.indexes.get(name)
                if (mine is None) != (its is None) or (mine is not None and not mine.equals(its)):
                    raise ValueError(
                        f"path: the coordinate {name} in {store} differs from "
                        "that in the first store; only stores on the same grid can be joined"
                    )
        sizes = whole.sizes | {first: sum(part.sizes[first] for part in parts)}
        indexes = {name: whole.indexes[name] for name in others if name in whole.indexes}
        if all(first in part.indexes for part in parts):
            indexes[first] = whole.indexes[first].append([part.indexes[first] for part in parts[1:]])
        return cls(whole.dimensions, sizes, indexes, whole.arrays, whole.longitudes, whole.names)

    def along(self, name: str) -> xr.DataArray:
        """The positions along a dimension, to be selected from."""
        import xarray as xr

        if name not in self.sizes:
            raise ValueError(f"{name}: the arrays have no dimension of that name, only {tuple(self.sizes)}")
        index = self.indexes.get(name)
        positions = np.arange(self.sizes[name])
        return xr.DataArray(positions, dims=[name], coords=None if index is None else {name: index})

    def positions(self, name: str, label: Any) -> np.ndarray:
        """What a label selects along a dimension."""
        along = self.along(name)
        label = self.named(name, label)
        try:
            return along.sel({name: label}).values
        except (KeyError, IndexError) as error:
            raise AbsentError(f"{name}={label!r} is not there: {self.extent(name)}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}={label!r} cannot be looked up ({error}): {self.extent(name)}"
            ) from error

    def named(self, name: str, label: Any) -> Any:
        """A label with positions in place of the names of channels."""
        names = self.names.get(name)
        if names is None or not isinstance(label, (str, list, tuple)):
            return label
        found = []
        for one in [label] if isinstance(label, str) else label:
            at = np.flatnonzero(names == one) if isinstance(one, str) else [one]
            if len(at) != 1:
                many = f"is the name of {len(at)} indices" if len(at) else "is not there"
                raise AbsentError(f"{name}={one!r} {many}: the names along {name} are {', '.join(names)}")
            found.append(at[0])
        return found[0] if isinstance(label, str) else found

    def selected(
        self, labels: Mapping[str, Any], covered: int
    ) -> tuple[tuple[int, int], list[tuple[int, int]], dict[str, np.ndarray]]:
        """What labels select: the range of the first dimension, and what `region` says of all; `covered`: how
        many dimensions the window covers."""
        first = self.dimensions[0]
        along_first = (0, self.sizes[first])
        if first in labels:
            along_first = self.range(first, labels[first])
        found = {name: self.found(name, label) for name, label in labels.items() if name != first}
        if not labels:
            return along_first, [], {}
        return along_first, *self.region(along_first, found, alone=first in labels, covered=covered)

    def line(self, start: int, end: int, store: str = "") -> _steps.Line:
        """A range of the first dimension."""
        first = self.dimensions[0]
        return _steps.Line(first, self.indexes.get(first), start, end, store)

    def extent(self, name: str) -> str:
        """The index of a dimension in words."""
        index = self.indexes.get(name)
        if index is None:
            return f"{name} has no coordinate, so that positions from 0 to {self.sizes[name] - 1} are meant"
        if len(index) == 0:
            return f"the coordinate {name} is empty"
        order = "in no order"
        if index.is_monotonic_increasing or index.is_monotonic_decreasing:
            order = "ascending" if index.is_monotonic_increasing else "descending"
        return f"the coordinate {name} has {len(index)} values from {index[0]} to {index[-1]}, {order}"

    def found(self, name: str, label: Any) -> np.ndarray:
        """The indices that a label selects along a dimension, in its order."""
        index = self.indexes.get(name)
        parts = [label]
        if index is not None and name in self.longitudes:
            parts = _pieces.around(index, label)
        found = np.concatenate([np.atleast_1d(self.positions(name, part)) for part in parts])
        asked = f"{name}={label!r}"
        if found.ndim > 1:
            raise ValueError(f"{asked}: labels with more than one dimension select no range of indices")
        if found.size == 0:
            problem = f"{asked} selects nothing: {self.extent(name)}"
            if isinstance(label, slice) and label.start is not None and label.stop is not None:
                problem += "; a slice goes from one end to the other in the order of the coordinate"
            raise AbsentError(problem)
        return found

    def range(self, name: str, label: Any) -> tuple[int, int]:
        """The range of indices that a label selects along the first dimension."""
        found = self.found(name, label)
        if _pieces.is_range(found):
            return int(found[0]), int(found[-1]) + 1
        asked = f"{name}={label!r}"
        steps = np.unique(np.diff(found))
        if steps.size == 1 and steps[0] > 1:
            raise ValueError(
                f"{asked} selects every {steps[0]}th index, but samples are taken along one range: leave "
                "the step out and give the reader `stride` (starts of samples) or `dilation` (steps inside a "
                "sample)"
            )
        if steps.max() < 0:
            raise ValueError(
                f"{asked} selects in the opposite order of the store, which samples along {name} keep: "
                f"select upwards ({self.extent(name)})"
            )
        gap = int(np.flatnonzero(np.diff(found) != 1)[0])
        raise ValueError(
            f"{asked} selects index {found[gap]} and then {found[gap + 1]}, but samples are taken along one "
            "range without gaps: give each range a reader of its own, or leave out steps with `exclude`"
        )

    def region(
        self, first: tuple[int, int], found: dict[str, np.ndarray], *, alone: bool, covered: int
    ) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
        """The ranges of the leading dimensions up to the last that is selected as one range, and the indices
        of all others.

        Ranges are for dimensions that have the same place in all arrays, or if `covered`, how many the window
        covers, are some of these, by whose names the other arrays are cut: windows may lie in them. `alone`
        says that the first dimension is selected, even if no other is.
        """
        ranges = {name: indices for name, indices in found.items() if _pieces.is_range(indices)}
        depth = 1 + max(
            (self.dimensions.index(name) for name in ranges if name in self.dimensions), default=0
        )
        leading = self.dimensions[:depth]
        # Arrays without the first dimension are the same for every sample, and cropped by name; so are the
        # others, but a range of all their places is also one of a reader of some of them.
        sampled = [its for its in self.arrays.values() if self.dimensions[0] in its]
        alike = all(its[:depth] == leading for its in sampled)
        inside = any(name in self.dimensions[:covered] for name in ranges)
        if not (alike or inside) or not set(ranges) <= set(leading):
            ranges, leading = {}, self.dimensions[:1]
        pieces = {name: indices for name, indices in found.items() if name not in ranges}
        if not ranges and not alone:
            return [], pieces
        # Indices count in what is selected.
        sizes = self.sizes | {name: len(indices) for name, indices in pieces.items()}
        bounds = {name: (int(indices[0]), int(indices[-1]) + 1) for name, indices in ranges.items()}
        return [first, *(bounds.get(name, (0, sizes[name])) for name in leading[1:])], pieces

    def excluded(self, exclude: Any) -> np.ndarray:
        """The indices along the first dimension that are to be left out, ascending."""
        import xarray as xr

        name = self.dimensions[0]
        if isinstance(exclude, xr.DataArray) and exclude.dtype == bool:
            return self._masked(exclude)
        if isinstance(exclude, (str, bytes, slice)) or not isinstance(exclude, Iterable):
            found = [self.positions(name, exclude)]
        else:
            values = list(exclude)
            if values and all(isinstance(value, (bool, np.bool_)) for value in values):
                return self._masked(xr.DataArray(values, dims=[name]))
            # Texts and slices stand for many indices each, other labels can be looked up together.
            alone = [value for value in values if isinstance(value, (str, slice))]
            found = [self.positions(name, value) for value in alone]
            together = [value for value in values if not isinstance(value, (str, slice))]
            if together:
                found.append(self.positions(name, together))
        return np.unique(np.concatenate([np.ravel(part) for part in found] or [np.empty(0, int)]))

    def _masked(self, mask: xr.DataArray) -> np.ndarray:
        name, size = self.dimensions[0], self.sizes[self.dimensions[0]]
        if mask.dims != (name,):
            raise ValueError(
                f"exclude: the mask has the dimensions {mask.dims}, but has to be over {name} alone"
            )
        index = self.indexes.get(name)
        if index is not None and name in mask.indexes:
            found = index.get_indexer(mask.indexes[name][mask.values])
            if (found < 0).any():
                label = mask.indexes[name][mask.values][int(np.argmax(found < 0))]
                raise ValueError(f"exclude: {name}={label} of the mask is not there: {self.extent(name)}")
            return np.unique(found)
        if mask.size != size:
            raise ValueError(
                f"exclude: the mask has {mask.size} values without labels, but {name} has {size} indices"
            )
        return np.flatnonzero(mask.values)


def _opened(
    path: Paths,
    arrays: Sequence[str] | None,
    follow_links: bool,
    options: _core.StorageOptions = None,
) -> list[tuple[str, _Coordinates]]:
    """The stores that a path means, as they are shown, with their coordinates."""
    found: list[tuple[str, _Coordinates]] = []
    places: list[_core.Objects] = []
    for name in stores(path, options):
        beside = places[-1] if places else None
        places.append(_core.Objects(name, options, follow_links=follow_links, soon=True, beside=beside))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        of_image = _of_level if not arrays else lambda opened: _of_image(opened, arrays)
        images = list(threads.map(of_image, places))
    for opened, image in zip(places, images):
        name, shown = opened.path, opened.shown
        if image is not None:
            found.append((shown, image))
            continue
        if opened.is_folder:
            found.append((shown, _of_folder(name, arrays, follow_links)))
            continue
        try:
            found.append((shown, _of_store(opened, arrays)))
        except RuntimeError as error:  # what the store answers
            raise ValueError(f"path: {error}") from error
    return found


def _of_image(objects: _core.Objects, arrays: Sequence[str]) -> _Coordinates | None:
    """Of levels of OME-Zarr images, of which xarray cannot open the groups; None for other arrays.

    Raises:
        ValueError: The metadata are malformed, or extents differ along an axis.
    """
    import pandas as pd

    names = [name.strip("/") for name in arrays]
    nodes = _dimensions.nodes_of(objects, names)
    around = [_dimensions.image_around(nodes, name) for name in names]
    # An array in a group of its own inside of an image has its coordinates there, as xarray writes it.
    if not all(around) or all("/" in path and nodes[name].own for name, (_, path) in zip(names, around)):
        return None
    dimensions, sizes, channels = {}, {}, {}
    for name, (group, path) in zip(names, around):
        image = _ome.image_of(nodes[group].attributes, f"{objects.shown}/{group}".rstrip("/"), path)
        extents = _ome_store.extents_of(objects, name, nodes[name].dimensions or image.axes)
        dimensions[name] = tuple(extents)
        channels = channels or image.channel_names
        for axis, extent in extents.items():
            known = sizes.setdefault(axis, extent)
            if 1 not in (known, extent) and known != extent:
                raise ValueError(
                    f"arrays: {name} in {objects.shown} has {extent} indices along {axis}, but the arrays "
                    f"before it have {known}; give levels of the same extents"
                )
            sizes[axis] = max(known, extent)
    reference = max(dimensions.values(), key=len)
    return _Coordinates(
        reference,
        {axis: sizes[axis] for axis in dict.fromkeys([*reference, *sizes])},
        {},
        dimensions,
        names={axis: pd.Index(names) for axis, names in channels.items() if len(names) == sizes[axis]},
    )


def _of_level(objects: _core.Objects) -> _Coordinates | None:
    """Of an array that is a store by itself and a level of the OME-Zarr image around it; None for others."""
    group, array = (_group_of if objects.is_folder else _group_of_url)(objects.path)
    try:
        around = objects.at(group) if array and _dimensions.shape_of(objects, "") else None
    except ValueError:  # there is no such store
        return None
    return around and _of_image(around, [array])


def _check_dimensions(stores: Sequence[tuple[str, _Coordinates]]) -> None:
    whole = stores[0][1]
    for store, part in stores[1:]:
        if part.dimensions != whole.dimensions:
            raise ValueError(
                f"path: the dimensions in {store} are {part.dimensions}, in the first store "
                f"{whole.dimensions}; only stores of the same kind can be joined"
            )


def _of_folder(store: str, arrays: Sequence[str] | None, follow_links: bool) -> _Coordinates:
    """Of a store in a folder of this machine."""
    if arrays is None:
        if not _local.is_array(Path(store)):
            raise ValueError(f"arrays: say which arrays of the group {store} are meant (path names no array)")
        group, array = _group_of(store)
        names, inside = [array], ""
    else:
        group, array = store, ""
        names, inside = _names_and_group(arrays)
    # Metadata of each array is as quickly read as consolidated metadata, and never out of date.
    checked = _local.store(Path(group), follow_links, array)
    return _of_group(checked, group, inside, names)


def _of_store(objects: _core.Objects, arrays: Sequence[str] | None) -> _Coordinates:
    """Of any other store, which is read through the core."""
    from zarr_dali._listed import Listed, is_array

    if arrays is None:
        if not is_array(objects):
            raise ValueError(
                f"arrays: say which arrays of the group {objects.shown} are meant (path names no array)"
            )
        group, array = _group_of_url(objects.path)
        if not array:
            raise ValueError(
                f"path: the array {objects.shown} is in no group, in which its coordinates could be; give "
                "indices in place of labels"
            )
        names, inside = [array], ""
        objects = objects.at(group)
    else:
        names, inside = _names_and_group(arrays)
    listed = Listed(objects, inside, names, consolidated=arrays is not None)
    return _of_group(listed, objects.shown, inside, names)


def _group_of_url(path: str) -> tuple[str, str]:
    """The group that an array is in, as the reader's `path` names it, and the array's name there.

    The name is empty if the array is in no group: at the root of a bucket, a zip file or a repository.
    """
    inside = re.fullmatch(r"(.*\|\w+:(?:@[^/]*/?)?)(.*)", path)
    if inside:  # a zip file or an Icechunk repository, and the path in it
        before, path, query = inside[1], inside[2], ""
    else:
        before, (path, mark, query) = "", path.partition("?")
        query = mark + query
        is_object = path.lower().rstrip("/").endswith((".zip", ".json", ".parq", ".parquet"))
        if is_object or "://" not in path:
            return path + query, ""
    group, separator, array = path.rstrip("/").rpartition("/")
    if not before and (not separator or group.endswith(":/")):
        array = ""
    return before + group + query, array


def _names_and_group(arrays: Sequence[str]) -> tuple[list[str], str]:
    """Names of arrays in their group, and the path of that."""
    folders = sorted({posixpath.dirname(name.strip("/")) for name in arrays})
    if len(folders) != 1:
        raise ValueError(f"arrays: they have to be in one group, but are in {folders or 'none'}")
    return [posixpath.basename(name.strip("/")) for name in arrays], folders[0]


def _of_group(store: Store | Any, group: str, inside: str, names: Sequence[str]) -> _Coordinates:
    """Of arrays in a group of a store that xarray opens."""
    import xarray as xr

    try:
        dataset = xr.open_zarr(store, group=inside or None, consolidated=False, chunks=None)
    except Exception as error:
        where = posixpath.join(group, inside) if inside else group
        raise ValueError(
            f"path: xarray cannot open the group {where}: {type(error).__name__}: {error}"
        ) from error
    for name in names:
        if name not in dataset.variables:
            raise ValueError(
                f"arrays: there is no array {name} in {group}, only {sorted(map(str, dataset.variables))}"
            )
    dimensions = {name: tuple(map(str, dataset.variables[name].dims)) for name in names}
    reference = max(dimensions.values(), key=len)
    if not reference:
        raise ValueError(f"arrays: {', '.join(names)} in {group} have no dimensions to select from")
    for name, its in dimensions.items():
        if reference[0] in its[1:]:
            raise ValueError(
                f"arrays: {reference[0]} is the first dimension of the others, but of {name} it is not: {its}"
            )
    all_names = dict.fromkeys([*reference, *(name for its in dimensions.values() for name in its)])
    sizes = {name: dataset.sizes[name] for name in all_names}
    indexes = {name: dataset.indexes[name] for name in all_names if name in dataset.indexes}
    longitudes = (name for name in indexes if _pieces.is_longitude(name, dataset.variables[name].attrs))
    return _Coordinates(reference, sizes, indexes, dimensions, frozenset(longitudes))


def _group_of(array: str) -> tuple[str, str]:
    """The folder of an array's group, and the array's name in it.

    A link to an array belongs to the group that it stands in, or, where it stands in none, to the group of
    the array that it leads to.
    """
    group, name = os.path.split(os.path.abspath(array))
    if not any(os.path.lexists(os.path.join(group, file)) for file in _local.METADATA):
        group, name = os.path.split(os.path.realpath(array))
    return group, name


def stores(path: Paths, options: _core.StorageOptions = None) -> list[str]:
    """The stores that a reader's `path` means."""
    parts = [path] if isinstance(path, (str, os.PathLike)) else path
    return _core.expand([os.fspath(part) for part in parts], options)
