"""OME-Zarr metadata of a copy: version 0.5, which is that of Zarr v3, about the arrays that are copied."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zarr_dali import _ome
from zarr_dali._ome import entry, items, path_of
from zarr_dali._rechunk.array_plan import ArrayPlan

VERSION = "0.5"
_OF_IMAGES = ("multiscales", "omero", "image-label")
_KEYS = (*_OF_IMAGES, "labels", "plate", "well", "bioformats2raw.layout", "series")
"""What 0.4 has among the attributes of groups, and 0.5 in the attribute `ome`."""
_VERSIONED = ("plate", "well", "image-label")
"""What has a version of its own, also in 0.5."""


def attributes_of(name: str, attributes: Mapping[str, Any], arrays: Sequence[ArrayPlan]) -> dict[str, Any]:
    """The attributes of a group in the copy: those of the source, with OME-Zarr 0.5 in the place of 0.4.

    Levels, labels, wells and fields that are not copied are left out, and where a part is copied its
    translation is that of the part. What is no OME-Zarr 0.4 or 0.5 stays as it is.

    Args:
        name: Path of the group.
        attributes: Of the group in the source.
        arrays: Those that are copied.
    """
    old = _ome.metadata_of(attributes)
    is_nested = old is not attributes
    if not _is_ome(name, old) or not _is_known(old):
        return dict(attributes)
    metadata = {key: old[key] for key in (old if is_nested else _KEYS) if key in old}
    copied = _Copied(name, {array.name: array for array in arrays})
    for key, adapt in _ADAPTED.items():
        if key in metadata:
            metadata[key] = adapt(copied, metadata[key], metadata)
    if not metadata.get("multiscales", True):
        metadata = {key: value for key, value in metadata.items() if key not in _OF_IMAGES}
    for key in _VERSIONED:
        if isinstance(metadata.get(key), Mapping) and not is_nested:
            metadata[key] = {**metadata[key], "version": VERSION}
    others = {
        key: value for key, value in attributes.items() if key != "ome" and (is_nested or key not in _KEYS)
    }
    if not set(metadata) - {"version"}:
        return others
    return others | {"ome": {"version": VERSION} | metadata}


def check_ranges(
    groups: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, tuple[Sequence[str], Sequence[int]]],
    asked: Sequence[str],
) -> None:
    """Refuses a range along an axis in which the levels that are copied differ: each would be another part.

    Args:
        groups: Attributes of the groups of the source, by path.
        arrays: Names and extents of the dimensions of arrays that are copied, by path.
        asked: The dimensions of which a part is asked for.

    Raises:
        ValueError: There is such an axis.
    """
    for group, attributes in groups.items():
        for image in items(_ome.metadata_of(attributes).get("multiscales")):
            paths = [posixpath.join(group, path_of(level)) for level in items(entry(image, "datasets"))]
            levels = [path for path in paths if path in arrays]
            for axis in asked:
                extents = {path: dict(zip(*arrays[path])).get(axis) for path in levels}
                if len(set(extents.values())) > 1:
                    found = ", ".join(f"{extent} in {path}" for path, extent in extents.items())
                    raise ValueError(
                        f"range: the levels of an OME-Zarr image differ along {axis} ({found}), so that a "
                        f"range would be another part of each; choose one, such as variables={levels[:1]}"
                    )


class _Copied:
    """What a group has in the copy."""

    def __init__(self, group: str, arrays: Mapping[str, ArrayPlan]) -> None:
        self._group, self._arrays = group, arrays

    def array(self, path: str) -> ArrayPlan | None:
        return self._arrays.get(posixpath.join(self._group, path))

    def has(self, path: str) -> bool:
        """Whether some of a group below this one is copied."""
        inside = posixpath.join(self._group, path)
        return any(name == inside or name.startswith(f"{inside}/") for name in self._arrays)


def _images(copied: _Copied, images: Any, _: Any) -> list[Any]:
    found = []
    for image in items(images):
        levels = [(level, copied.array(path_of(level))) for level in items(entry(image, "datasets"))]
        datasets = [_level(level, array) for level, array in levels if array is not None]
        if datasets:
            own = {key: value for key, value in image.items() if key != "version"}
            found.append(own | {"datasets": datasets})
    return found


def _level(level: Mapping[str, Any], array: ArrayPlan) -> dict[str, Any]:
    """A level with the translation of the part that is copied."""
    transformations = items(level.get("coordinateTransformations"))
    by_type = {entry(one, "type"): one for one in transformations}
    if not any(array.start):
        return dict(level)
    scale = items(entry(by_type.get("scale"), "scale")) or [1.0] * len(array.start)
    before = items(entry(by_type.get("translation"), "translation")) or [0.0] * len(array.start)
    moved = [old + size * first for old, size, first in zip(before, scale, array.start)]
    others = [one for one in transformations if entry(one, "type") != "translation"]
    return {**level, "coordinateTransformations": [*others, {"type": "translation", "translation": moved}]}


def _channels(copied: _Copied, omero: Any, metadata: Mapping[str, Any]) -> Any:
    """The channels that are copied."""
    channels, images = items(entry(omero, "channels")), items(metadata.get("multiscales"))
    axes = [entry(axis, "type") for axis in items(entry(next(iter(images), None), "axes"))]
    if not channels or "channel" not in axes:
        return omero
    array = next(filter(None, (copied.array(path_of(level)) for level in images[0]["datasets"])), None)
    if array is None:
        return omero
    at = axes.index("channel")
    return {**omero, "channels": channels[array.start[at] : array.start[at] + array.shape[at]]}


def _below(key: str) -> Callable[[_Copied, Any, Any], Any]:
    """Adapts a list of groups with their paths."""

    def adapt(copied: _Copied, metadata: Any, _: Any) -> Any:
        kept = [one for one in items(entry(metadata, key)) if copied.has(path_of(one))]
        return {**metadata, key: kept} if isinstance(metadata, Mapping) else metadata

    return adapt


def _texts(copied: _Copied, paths: Any, _: Any) -> list[Any]:
    return [path for path in items(paths) if isinstance(path, str) and copied.has(path)]


_ADAPTED = {
    "multiscales": _images,
    "omero": _channels,
    "labels": _texts,
    "plate": _below("wells"),
    "well": _below("images"),
}


def _is_ome(name: str, metadata: Mapping[str, Any]) -> bool:
    marks = ("multiscales", "plate", "well", "bioformats2raw.layout")
    if any(mark in metadata for mark in marks):
        return True
    # Names that stand for themselves only in these groups.
    base = posixpath.basename(name)
    return (base == "labels" and items(metadata.get("labels")) != []) or (
        base == "OME" and items(metadata.get("series")) != []
    )


def _is_known(metadata: Mapping[str, Any]) -> bool:
    """Whether images have axes as 0.4 and 0.5 describe them."""
    images = items(metadata.get("multiscales"))
    axes = [axis for image in images for axis in items(entry(image, "axes")) or [None]]
    return all(isinstance(axis, Mapping) for axis in axes)
