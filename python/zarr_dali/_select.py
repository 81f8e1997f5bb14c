"""Coordinates to indices: what `fn.readers.zarr` wants to know, said with the labels of the dimensions.

The labels are looked up by xarray, on positions in the place of data: of the store only metadata and the
coordinates of dimensions are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from zarr_dali import _core, _locations, _offsets, _ome_store, _pieces, _steps, _values
from zarr_dali._coordinates import AbsentError, Coordinates, check_dimensions, import_xarray, is_alone
from zarr_dali._locations import Paths
from zarr_dali._store_coordinates import opened_stores

JOINS = ("concat", "separate")
"""How several stores are read."""
Opened = Callable[..., Sequence[tuple[str, Coordinates]]]
"""Reads the coordinates of stores, as `opened_stores`."""


def select(
    path: Paths,
    *,
    arrays: str | Sequence[str] | None = None,
    join: Literal["concat", "separate"] | None = None,
    window: int | Sequence[int] | None = None,
    offsets: Sequence[Any] | Mapping[str | int, Sequence[Any]] | None = None,
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
            or numpy.timedelta64, which become indices by the spacing of the first dimension's coordinate. For
            others a dictionary of such lists by name or number of the dimension: `{"lead_time": ["0h", "6h",
            "3D"]}` takes three lead times of each forecast run. Gaps in these coordinates are treated alike,
            if they hold times.
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
            0 to 359, one behind the other, and -45 is its 315. A coordinate holds longitudes if its name is
            "longitude" or "lon", its `standard_name` "longitude", or its `units` such as "degrees_east".

    Returns:
        `path`, and `arrays`, `join`, `per_store`, `roi_start`, `roi_end`, `select`, `window`, `offsets`,
        `dimension_offsets`, `exclude`, `breaks`, `follow_links` and `storage_options` where they apply.
        `select` has what is no range of the leading dimensions of all arrays: `window` has to cover all of
        it, or none.

    Raises:
        ValueError: There is no such array, dimension or label, or what is selected along the first dimension
            is not one ascending range of indices.
        TypeError: `window` is no list of whole numbers.
        ImportError: xarray or zarr is missing.
    """
    asked = {"window": window, "offsets": offsets, "exclude": exclude, "gaps": gaps}
    return within(path, arrays, labels, {}, join, follow_links, storage_options, **asked)


def within(
    path: Paths,
    arrays: str | Sequence[str] | None,
    labels: dict[str, Any],
    region: Mapping[str, Any],
    join: str | None,
    follow_links: bool,
    storage_options: _core.StorageOptions,
    *,
    window: int | Sequence[int] | None = None,
    offsets: Sequence[Any] | Mapping[str | int, Sequence[Any]] | None = None,
    exclude: Any = None,
    gaps: str | None = None,
    opened: Opened = opened_stores,
) -> dict[str, Any]:
    """What `select` does, where the reader itself is also given a `region`: only gaps in it count.

    Args:
        region: Of the reader's arguments `roi_start`, `roi_end` and `per_store`, of which none is returned.
            There are none beside labels.
        opened: Reads the coordinates.
    """
    if arrays is not None:
        arrays = [arrays] if isinstance(arrays, str) else [str(name) for name in arrays]
    location = _locations.located(path, storage_options, arrays or ())
    path, storage_options = location.path, location.storage_options
    if arrays is not None:
        arrays, _ = location.named(arrays, None, False) if arrays else (arrays, None)
    elif location.arrays:
        arrays = location.arrays
    if arrays is None:
        reading, labels = _ome_store.from_labels(location.paths, labels, storage_options, follow_links)
    else:
        reading = _ome_store.asked(location.paths, arrays, None, (), storage_options, follow_links)
    if reading is not None:
        path, arrays = reading.path, reading.arrays
        join = join or ("concat" if isinstance(path, str) else "separate")
    join = "concat" if join is None else _values.one_of("join", join, JOINS)
    import_xarray()
    stores = opened(path, arrays, follow_links, storage_options)
    chosen: dict[str, Any] = {"path": path}
    if storage_options is not None:
        chosen["storage_options"] = _core.as_json(storage_options)
    if not follow_links:
        chosen["follow_links"] = False
    if arrays is not None:
        chosen["arrays"] = arrays
    if window is not None:
        chosen["window"] = _steps.extents(window)
    by_dimension = _offsets.by_dimension(offsets, stores[0][1].dimensions)
    first = by_dimension.pop(0, None)
    several = _steps.are_several(window, first)
    covered = max(len(chosen.get("window", [1])), 1 + max(by_dimension, default=0))
    if join == "separate":
        regions = _per_store(region, len(stores))
        found = _separately(stores, labels, regions, covered, (first, by_dimension), exclude, gaps, several)
        return chosen | {"join": join} | found
    known = Coordinates.joined(stores)
    (start, end), ranges, pieces = known.selected(labels, covered)
    if ranges:
        chosen["roi_start"] = [start for start, _ in ranges]
        chosen["roi_end"] = [end for _, end in ranges]
    if pieces:
        chosen["select"] = _pieces.as_json(pieces)
    ranges = ranges or _ranges(known, region)
    start, end = ranges[0] if ranges else (start, end)
    steps, (breaks,) = _steps.resolve([known.line(start, end)], first, gaps, several)
    lines = {at: [known.line_along(at, ranges, pieces)] for at in by_dimension}
    chosen |= _along_dimensions(lines, by_dimension, gaps)
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


def _ranges(known: Coordinates, region: Mapping[str, Any]) -> list[tuple[int, int]]:
    """What `roi_start` and `roi_end` leave of the leading dimensions, as far as a store reaches."""
    starts, ends = (np.atleast_1d(region.get(name) or []).tolist() for name in ("roi_start", "roi_end"))
    sizes = [known.sizes[name] for name in known.dimensions[: max(len(starts), len(ends))]]
    return [
        (min(starts[at], size) if at < len(starts) else 0, min(ends[at], size) if at < len(ends) else size)
        for at, size in enumerate(sizes)
    ]


def _per_store(region: Mapping[str, Any], count: int) -> list[dict[str, Any] | None]:
    """The reader's region of each store that is read separately; None for one that is left out."""
    try:
        entries = json.loads(region.get("per_store") or "[]")
        found = [None if entry is None else {**region, **entry} for entry in entries]
    except (TypeError, ValueError):  # the reader says it
        found = []
    return found if len(found) == count else [region] * count


def _separately(
    stores: Sequence[tuple[str, Coordinates]],
    labels: dict[str, Any],
    regions: Sequence[Mapping[str, Any] | None],
    covered: int,
    offsets: tuple[Any, Mapping[int, Any]],
    exclude: Any,
    gaps: str | None,
    several: bool,
) -> dict[str, Any]:
    """Arguments for what labels name in each of several stores. `offsets` are of the first dimension, and of
    others; `regions` are those that the reader is given itself."""
    check_dimensions(stores)
    entries: list[dict[str, list[int]] | None] = []
    left_out_by = None
    lines, lined = [], []
    along: dict[int, list[_steps.Line]] = {at: [] for at in offsets[1]}
    pieces: dict[str, str] = {}
    for (store, known), given in zip(stores, regions):
        if given is None:
            entries.append({})
            continue
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
        region = region or _ranges(known, given)
        start, end = region[0] if region else (start, end)
        lines.append(known.line(start, end, store))
        lined.append(entries[-1])
        for at, its in along.items():
            its.append(known.line_along(at, region, found, store))
        pieces[store] = _pieces.as_json(found) if found else ""
    if not lines and left_out_by is None:
        raise ValueError("per_store: it leaves out every store; give a region for one or more")
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
    chosen |= _along_dimensions(along, offsets[1], gaps)
    steps, breaks = _steps.resolve(lines, offsets[0], gaps, several)
    if steps is not None:
        chosen["offsets"] = steps
    for entry, behind in zip(lined, breaks):
        if behind:
            entry["breaks"] = behind
    if exclude is not None:
        _exclude_separately(stores, entries, exclude)
    if any(entry != {} for entry in entries):
        chosen["per_store"] = json.dumps(entries)
    return chosen


def _along_dimensions(
    lines: Mapping[int, Sequence[_steps.Line]], offsets: Mapping[int, Any], gaps: str | None
) -> dict[str, Any]:
    """The reader's `dimension_offsets` for dimensions beside the first, by their numbers."""
    found = {}
    for at, its in offsets.items():
        first, *others = lines[at]
        in_time = not all(map(_steps.is_number, _steps.listed(its)))
        # Only times have gaps that nobody asked for: levels are apart as they like.
        wanted = gaps if in_time or all(line.is_of_times for line in lines[at]) else "allow"
        steps, (breaks, *more) = _steps.resolve(lines[at], its, wanted, _steps.are_several(None, its))
        for line, behind in zip(others, more):
            if behind != breaks:
                raise ValueError(
                    f'gaps="skip": the coordinate {first.name} of {line.store} has gaps at {behind}, and of '
                    f"{first.store} at {breaks}, but a reader takes the same of all stores there; give each "
                    "a reader of its own"
                )
        found[first.name] = _offsets.entry(steps, breaks)
    return {"dimension_offsets": json.dumps(found)} if found else {}


def breaks_of(
    path: Paths,
    arrays: Sequence[str] | None,
    arguments: Mapping[str, Any],
    gaps: str | None,
    opened: Opened = opened_stores,
) -> dict[str, Any]:
    """The reader's arguments that keep samples from reaching over gaps, for a reader of indices.

    `arguments` are those of the reader: `window`, `offsets`, `join`, and the region that counts.

    Raises:
        ValueError: There are gaps, and `gaps` is "error"; or coordinates cannot be read.
        ImportError: xarray or zarr is missing.
    """
    import_xarray()
    stores = opened(path, arrays, arguments.get("follow_links", True), arguments.get("storage_options"))
    separate = arguments.get("join") == "separate"
    own = json.loads(arguments.get("per_store") or "[]") or [{}] * len(stores)
    parts = stores if separate else [("", Coordinates.joined(stores))]
    entries, lines = [], []
    for (store, known), entry in zip(parts, own):
        entries.append(entry if entry is None else dict(entry))
        if entry is None:
            continue
        ranges = _ranges(known, {**arguments, **entry})
        start, end = ranges[0] if ranges else (0, known.sizes[known.dimensions[0]])
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
    stores: Sequence[tuple[str, Coordinates]], entries: Sequence[dict[str, list[int]] | None], exclude: Any
) -> None:
    """Adds what is to be left out to the entry of each store. A label has to be in one of the stores."""
    import xarray as xr

    name = stores[0][1].dimensions[0]
    if isinstance(exclude, xr.DataArray) and exclude.dtype == bool and name in exclude.indexes:
        exclude = list(exclude.indexes[name][exclude.values])
    if isinstance(exclude, xr.DataArray) and exclude.dtype != bool:
        exclude = exclude.values if exclude.ndim else exclude.values[()]
    labels = [exclude] if is_alone(exclude) else list(exclude)
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
