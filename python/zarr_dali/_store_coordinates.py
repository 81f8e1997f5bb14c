"""The coordinates of stores: folders, URLs, levels of OME-Zarr images, several stores that are joined."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr_dali import _core, _dimensions, _local, _ome, _ome_store, _pieces
from zarr_dali._coordinates import Coordinates, import_xarray
from zarr_dali._locations import Paths

if TYPE_CHECKING:
    from zarr_dali._store import Store


_AT_ONCE = 16
"""Stores that are looked at at once."""


def coordinates(
    path: Paths,
    arrays: Sequence[str] | None,
    follow_links: bool | None = None,
    storage_options: _core.StorageOptions = None,
) -> Coordinates:
    """The dimensions of arrays with their coordinates.

    Raises:
        ValueError, ImportError: As `select`.
    """
    import_xarray()
    opened = opened_stores(path, arrays, follow_links is not False, storage_options)
    return Coordinates.joined(opened)


class Once:
    """`opened_stores`, which reads the coordinates of the same stores only once."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[str, Coordinates]]] = {}

    def __call__(
        self,
        path: Paths,
        arrays: Sequence[str] | None,
        follow_links: bool,
        options: _core.StorageOptions = None,
    ) -> list[tuple[str, Coordinates]]:
        key = repr((path, arrays, follow_links, options))
        if key not in self._found:
            self._found[key] = opened_stores(path, arrays, follow_links, options)
        return self._found[key]


def opened_stores(
    path: Paths,
    arrays: Sequence[str] | None,
    follow_links: bool,
    options: _core.StorageOptions = None,
) -> list[tuple[str, Coordinates]]:
    """The stores that a path means, as they are shown, with their coordinates."""
    found: list[tuple[str, Coordinates]] = []
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


def _of_image(objects: _core.Objects, arrays: Sequence[str]) -> Coordinates | None:
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
    return Coordinates(
        reference,
        {axis: sizes[axis] for axis in dict.fromkeys([*reference, *sizes])},
        {},
        dimensions,
        names={axis: pd.Index(names) for axis, names in channels.items() if len(names) == sizes[axis]},
    )


def _of_level(objects: _core.Objects) -> Coordinates | None:
    """Of an array that is a store by itself and a level of the OME-Zarr image around it; None for others."""
    group, array = (_group_of if objects.is_folder else _group_of_url)(objects.path)
    try:
        around = objects.at(group) if array and _dimensions.shape_of(objects, "") else None
    except ValueError:  # there is no such store
        return None
    return around and _of_image(around, [array])


def _of_folder(store: str, arrays: Sequence[str] | None, follow_links: bool) -> Coordinates:
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


def _of_store(objects: _core.Objects, arrays: Sequence[str] | None) -> Coordinates:
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


def _of_group(store: Store | Any, group: str, inside: str, names: Sequence[str]) -> Coordinates:
    """Of arrays in a group of a store that xarray opens."""
    import xarray as xr

    try:
        dataset = xr.open_zarr(store, group=inside or None, consolidated=False, chunks=None)
    except Exception as error:
        where = posixpath.join(group, inside) if inside else group
        if type(error).__name__ == "GroupNotFoundError":
            raise ValueError(
                f'path: "{where}" holds no Zarr metadata (no zarr.json, .zarray or .zgroup); give the folder '
                "that does"
            ) from error
        if isinstance(error, KeyError) and re.search("dimension_names|_ARRAY_DIMENSIONS", str(error)):
            raise ValueError(
                f"arrays: {', '.join(names)} in {where} have no names of dimensions, by which labels are "
                "looked up: write them (`dimension_names` in Zarr v3, the attribute `_ARRAY_DIMENSIONS` in "
                "v2), or give indices (`roi_start`, `roi_end`, numbers in `exclude`)"
            ) from error
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
    return Coordinates(reference, sizes, indexes, dimensions, frozenset(longitudes))


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
