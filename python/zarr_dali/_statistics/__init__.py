"""Mean and standard deviation of a store's arrays: `zarr_dali.statistics` and `zarr-dali statistics`.

The store is read in regions of whole chunks, as `rechunk` reads its source (`zarr_dali._rechunk.reading`).
What is here decides which (`plan`), adds them up, here or in workers of a cluster (`job`), and keeps a
journal of it (`computing`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from zarr_dali import _core, _labels, _local, _locations, _store_coordinates
from zarr_dali._arguments import Threads, bytes_of, import_zarr
from zarr_dali._dask import cluster as clusters


class Statistics(dict[str, dict[str, Any]]):
    """What `statistics` has found, by array."""

    waiting: tuple[int, ...] = ()
    """With `part`: the parts that are still to end. Until then there are no arrays."""


def statistics(
    path: _locations.Source | Sequence[_locations.Source],
    arrays: str | Iterable[str] | None = None,
    *,
    by: str | None = None,
    range: Mapping[str, Any] | None = None,
    index_range: Mapping[str, slice | Sequence[int | None]] | None = None,
    mask_and_scale: bool = True,
    output: str | os.PathLike[str] | None = None,
    memory: int | str = "2GB",
    workers: int | None = None,
    dask: Any = None,
    part: tuple[int, int] | str | None = None,
    follow_links: bool = True,
    storage_options: Mapping[str, Any] | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Statistics:
    """Mean, standard deviation, least and greatest value of arrays, as a whole or along a dimension.

    Each chunk is read once, and nothing is written besides `output`. All is added up in float64, about the
    mean, so that values far from zero lose no digits; two runs with the same arguments give the same digits.

    zarr_dali.statistics("era5.zarr", ["t", "z"], by="level", range={"time": ("1979", "2015")})

    Args:
        path: As for the reader: a group or an array, a list of them or a pattern, joined along the first
            dimension; local or a URL. Or an object that stands for a store, as for `Loader`.
        arrays: Paths of arrays below `path`; by default all that hold numbers and are no coordinates.
        by: A dimension: statistics of each of its indices. Arrays without it have those of all their values.
        range: By dimension name the part to read, by the labels of its coordinate: a label, a slice of labels
            or (start, stop), both ends included. `("2010", "2015")` is all of six years.
        index_range: By dimension name the part to read, by positions: a slice or (start, stop), without the
            end.
        mask_and_scale: Statistics of what CF attributes make of the values, as in xarray: without those that
            `_FillValue` and `missing_value` name, and scaled by `scale_factor` and `add_offset`. False takes
            values as they are stored, which is what the reader gives without `mask_and_scale`.
        output: A JSON file for the result. What is done is kept beside it in `OUTPUT.partial` until it is
            complete; `resume` goes on with that.
        memory: Bytes for the work, or text such as "2GB"; comes on top of what Python and its libraries take.
            With `dask` for each of its workers.
        workers: Regions that are read at once; by default one for each core, up to 8. With `dask` in each of
            its workers, by default one for each of their threads.
        dask: Where regions are read, as tasks of dask.distributed: as for `rechunk`. All workers need the
            stores under the same paths.
        part: One of several parts, "3/8" or (3, 8), each of which another process reads, with the same
            arguments besides, among them `output`: as for `rechunk`. The last one to end writes the file.
        follow_links: As for the reader: False refuses symbolic links that lead out of a folder.
        storage_options: As for the reader: credentials and endpoints of stores at URLs.
        resume: Keep what an earlier run with the same arguments finished, besides what it read from files
            that have changed since.
        overwrite: Replace `output`. Without `resume` begin anew.
        progress: Called with ("reading", bytes done, bytes in all), decoded.

    Returns:
        A dict of each array, by its path below the store (that of a store that is an array by the name of its
        folder), in the form that `normalize` of the reader takes: `mean` and `std` of all values, beside them
        `min`, `max`, `count`, and how many values do not count: `missing` (NaN or masked) and `infinite`.
        With `by` these are lists along the dimension, whose name is `dim`, and whose labels are `labels`, if
        it has any. Where no value counts, the first four are None. Of an array that CF attributes unpack
        `mask_and_scale` says whether they did, which has to be the same in a reader that normalizes with it.
        With `part`, before the last part has ended, the dict is empty, and its attribute `waiting` holds the
        numbers of the parts that are still to end.

    Raises:
        ValueError: There is no such array, dimension or label, an array holds no numbers, or `output` is
            taken.
        RuntimeError: Something failed while reading, such as a damaged chunk, or a scheduler that does not
            answer.
        ImportError: zarr-python 3 is missing, xarray where there are labels, or dask.distributed with `dask`.
    """
    import_zarr("statistics")
    from zarr_dali._rechunk import parts, source
    from zarr_dali._statistics import computing, plan

    asked = [arrays] if isinstance(arrays, str) else None if arrays is None else list(arrays)
    location = _locations.located(path, storage_options, asked or ())
    options = location.storage_options
    if location.arrays and asked != []:
        asked = location.named(asked or [], None, False)[0]
    paths = _core.expand(location.paths, options)
    sources = [source.of(one, options, follow_links) for one in paths]
    for one in sources:
        if one.is_folder:
            _local.check_store(one.path, follow_links, chunks=True)
    own = parts.Part.of(part)
    if own is not None and dask is not None:
        raise ValueError("part, dask: each shares the work out in its own way; give one of them")
    if output is None and (resume or overwrite):
        raise ValueError("resume, overwrite: they are about `output`, which names no file")
    if output is None and own is not None:
        raise ValueError("part: give `output`, through which the parts come together")
    place = None if output is None else Path(output).absolute()
    if place is not None:
        _check_output(place, sources)
    tick = progress or (lambda what, done, total: None)
    with nullcontext() if dask is None else clusters.connected(dask) as cluster:
        request = plan.Request(
            arrays=None if asked is None else tuple(asked),
            by=by,
            ranges=_labels.Ranges.of(range, index_range),
            mask_and_scale=mask_and_scale,
            memory=bytes_of(memory),
            threads=Threads.here(workers) if cluster is None else cluster.at_once(workers),
        )
        if cluster is not None:
            cluster.check_memory(request.memory)
        read = _store_coordinates.coordinates
        around = [functools.partial(read, one, None, follow_links, options) for one in paths]
        made = plan.make(request, sources, around)
        if place is None:
            found = computing.compute(made, tick, cluster)
        elif own is None:
            found = computing.compute_into(
                made, tick, place, resume=resume, overwrite=overwrite, cluster=cluster
            )
        else:
            found = computing.compute_part(made, tick, place, own, overwrite=overwrite)
    is_part = isinstance(found, tuple)
    result = Statistics({} if is_part else found)
    result.waiting = found if is_part else ()
    return result


def _check_output(place: Path, sources: Sequence[Any]) -> None:
    """What would fail only after all is read."""
    if not place.parent.is_dir():
        raise ValueError(f"output: there is no folder {place.parent}")
    if place.is_dir():
        raise ValueError(f"output: {place} is a folder; name a file")
    for one in sources:
        if one.is_folder and place.resolve().is_relative_to(one.path):
            raise ValueError(f"output: {place} is inside the store {one}, which is only read")
