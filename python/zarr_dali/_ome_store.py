"""OME-Zarr stores: the arrays of a level of an image and its labels, and the images of plates and wells."""

from __future__ import annotations

import contextlib
import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zarr_dali import _core, _dimensions, _locations, _ome

IMAGE = "image"
"""What the array of an image is called in a batch; those of labels are called as the labels."""
_SERIES = "bioformats2raw.layout"
"""The attribute of a group of several images that bioformats2raw wrote."""
_ARGUMENTS = ("level", "labels")


@dataclass(frozen=True)
class Reading:
    """What a reader takes to read a level of images."""

    path: str | list[str]
    """An image, or a list of them."""
    arrays: list[str]
    """In each of them: the image's level, then those of the labels."""
    names: list[str]

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path

    @property
    def called(self) -> dict[str, str]:
        """The names by the arrays."""
        return dict(zip(self.arrays, self.names))

    def with_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a reader besides `path` and `arrays`: several images are separate stores, and what
        `normalize` says by the names of the arrays is said of these."""
        found = {name: one for name, one in self.arguments.items() if name == "join"} | dict(given)
        if isinstance(numbers := found.get("normalize"), Mapping):
            arrays = dict(zip(self.names, self.arrays))
            found["normalize"] = {arrays.get(name, name): one for name, one in numbers.items()}
        return found

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the reader."""
        separate = {} if isinstance(self.path, str) else {"join": "separate"}
        return {"path": self.path, "arrays": self.arrays} | separate


def ome_zarr(
    path: _locations.Source | Sequence[_locations.Source],
    *,
    level: int = 0,
    labels: str | Iterable[str] = (),
    storage_options: _core.StorageOptions = None,
    follow_links: bool = True,
) -> dict[str, Any]:
    """Arguments of `fn.readers.zarr`, `select` and `info` for a level of OME-Zarr images (0.4 and 0.5).

        fn.readers.zarr(**zarr_dali.ome_zarr("plate.zarr", labels="nuclei"), window=[1, 2, 1, 64, 64])

    `Loader` takes `level` and `labels` itself.

    Args:
        path: An image; a plate, a well or what bioformats2raw wrote of several images, which stand for all of
            these in their order; or a list of them. As for the reader otherwise.
        level: Number of the resolution level, 0 for the highest resolution.
        labels: Names of labels of the images, which are read beside them, at the same level.
        storage_options: Credentials and endpoints of stores at URLs, as for the reader.
        follow_links: As for the reader.

    Returns:
        `path`, an image or a list of images; `arrays`, the paths of the level and those of the labels; for
        several images `join="separate"`; `storage_options` and `follow_links` where they are given.

    Raises:
        ValueError: There is no such image, level or labels, labels have other extents than the image, or the
            metadata are malformed.
    """
    location = _locations.located(path, storage_options)
    options = location.storage_options
    reading = read(location.paths, level, labels, options, follow_links)
    more = {} if options is None else {"storage_options": _core.as_json(options)}
    return reading.arguments | more | ({} if follow_links else {"follow_links": False})


def asked(
    paths: Sequence[str],
    arrays: Sequence[str],
    level: int | None,
    labels: str | Iterable[str],
    options: _core.StorageOptions,
    follow_links: bool,
) -> Reading | None:
    """What `level` and `labels` ask for; without them and without `arrays` an image, if the path is one; and
    `arrays` of all fields of plates and wells.

    Raises:
        ValueError: As `ome_zarr`.
    """
    if level is not None or labels:
        if arrays:
            raise ValueError(
                f"arrays, level and labels: {list(arrays)} are paths of arrays, and level and labels choose "
                "arrays of an OME-Zarr image; give one or the other, such as "
                'arrays=["0", "labels/cells/0"]'
            )
        return read(paths, 0 if level is None else level, labels, options, follow_links)
    if arrays:
        return _of_fields(paths, arrays, options, follow_links)
    if not is_ome(paths, options, follow_links):
        return None
    return read(paths, 0, (), options, follow_links)


def _of_fields(
    paths: Sequence[str], arrays: Sequence[str], options: _core.StorageOptions, follow_links: bool
) -> Reading | None:
    """Arrays of each field of plates and wells; None of other stores, and of arrays by paths in the plate."""
    try:
        images = None
        if any(key in _root_of_first(paths, options, follow_links) for key in ("plate", "well")):
            opened = _opened(paths[:1], options, follow_links)[0]
            if _dimensions.shape_of(opened, arrays[0].strip("/")) is None:
                images = collection(paths, options, follow_links)
    except (RuntimeError, LookupError):  # the reader will say it better
        return None
    if not images:
        return None
    return Reading(images if len(images) > 1 else images[0], list(arrays), list(arrays))


def is_ome(paths: Sequence[str], options: _core.StorageOptions, follow_links: bool) -> bool:
    """Whether the first of these stores has images of OME-Zarr, as far as its metadata can be read."""
    try:
        metadata = _root_of_first(paths, options, follow_links)
        return any(key in metadata for key in ("multiscales", "plate", "well", _SERIES))
    except (ValueError, RuntimeError, LookupError):  # the reader will say it better
        return False


def _root_of_first(
    paths: Sequence[str], options: _core.StorageOptions, follow_links: bool
) -> Mapping[str, Any]:
    """The OME-Zarr part of the attributes of the first store."""
    first = _core.expand(list(paths[:1]), options)[:1]
    objects = _core.Objects(first[0], options, follow_links=follow_links, soon=True)
    return _ome.metadata_of(_root(objects))


def collection(paths: Sequence[str], options: _core.StorageOptions, follow_links: bool) -> list[str] | None:
    """The images of plates and wells; None if the first path is no plate or well.

    Raises:
        ValueError: The first path cannot be read, or the metadata of a plate are malformed.
    """
    try:
        opened = _opened(paths, options, follow_links)
        is_one = not {"plate", "well"}.isdisjoint(_ome.metadata_of(_root(opened[0])))
    except RuntimeError as error:
        raise ValueError(f"path: {error}") from error
    return [image for objects in opened for image in images_of(objects)] if is_one else None


def from_labels(
    paths: Sequence[str],
    labels: Mapping[str, Any],
    options: _core.StorageOptions,
    follow_links: bool,
) -> tuple[Reading | None, dict[str, Any]]:
    """What `level` and `labels` among the labels of dimensions ask for, and the rest of these.

    In an image they are no dimensions, unless it has an axis of that name.
    """
    rest = dict(labels)
    if not is_ome(paths, options, follow_links):
        return None, rest
    opened = _opened(paths, options, follow_links)[0]
    first = opened.at(images_of(opened)[0])
    image = _ome.image_of(_root(first), first.shown)
    own = {name: rest.pop(name) for name in _ARGUMENTS if name in rest and name not in image.axes}
    return read(paths, own.get("level", 0), own.get("labels", ()), options, follow_links), rest


def read(
    paths: Sequence[str],
    level: int,
    labels: str | Iterable[str],
    options: _core.StorageOptions,
    follow_links: bool,
) -> Reading:
    """The level and the labels of all images that paths mean; which arrays they are the first image says."""
    if not isinstance(labels, str) and not isinstance(labels, Iterable):
        raise ValueError(f"labels: {labels!r} is no name of labels, and no list of such names")
    opened = _opened(paths, options, follow_links)
    try:
        images = [image for objects in opened for image in images_of(objects)]
        first = opened[0].at(images[0])
        names = [labels] if isinstance(labels, str) else [str(name) for name in labels]
        arrays = _arrays(first, _number(level), names)
    except RuntimeError as error:  # what the store answers
        raise ValueError(f"path: {error}") from error
    keys = [IMAGE, *names] if len({IMAGE, *names}) == len(arrays) else arrays
    return Reading(images if len(images) > 1 else images[0], arrays, keys)


def images_of(objects: _core.Objects) -> list[str]:
    """Paths or URLs of the images of a plate, a well or a collection, in their order; of an image its own.

    Raises:
        ValueError: It is none of these.
    """
    attributes = _root(objects)
    metadata = _ome.metadata_of(attributes)
    if "plate" in metadata:
        wells = _ome.wells_of(attributes, objects.shown)
        found = _attributes(objects, wells)
        inside = [
            f"{well}/{field}"
            for well in wells
            for field in _ome.fields_of(found[well], f"{objects.shown}/{well}")
        ]
    elif "well" in metadata:
        inside = _ome.fields_of(attributes, objects.shown)
    elif "multiscales" in metadata:
        inside = [""]
    elif _SERIES in metadata:
        inside = _series(objects)
    else:
        raise ValueError(
            f"path: {objects.shown} is no OME-Zarr image, plate or well: its metadata have neither "
            '"multiscales" nor "plate" nor "well"; give `arrays`, or the path of an image'
        )
    return [below(objects.path, path) for path in inside]


def below(place: str, inside: str) -> str:
    """The path or URL of a group inside of a store."""
    if not inside:
        return place
    if "|" in place:
        return f"{place}{'' if place.endswith((':', '/')) else '/'}{inside}"
    body, mark, query = place.partition("?") if "://" in place else (place, "", "")
    if body.lower().endswith(".zip") or os.path.isfile(body):
        return f"{place}|zip:{inside}"
    return f"{body.rstrip('/')}/{inside}{mark}{query}"


def scale_of(
    paths: Sequence[str],
    arrays: Mapping[str, str],
    options: _core.StorageOptions,
    follow_links: bool,
) -> dict[str, dict[str, float]]:
    """By names of arrays the scales of those that are levels of images, by axis."""
    objects = _opened(paths[:1], options, follow_links)[0]
    nodes = _dimensions.nodes_of(objects, [array.strip("/") for array in arrays.values()])
    found = {}
    for name, array in arrays.items():
        axes = axes_of(nodes, array.strip("/"), objects.shown)
        if scale := {axis.name: axis.scale for axis in axes if axis.scale is not None}:
            found[name] = scale
    return found


def axes_of(nodes: Mapping[str, _dimensions.Node], name: str, where: str) -> tuple[_ome.Axis, ...]:
    """The axes of an array with their scales, if it is a level of an image."""
    around = _dimensions.image_around(nodes, name)
    if around is None:
        return ()
    group, path = around
    try:
        level = _ome.image_of(nodes[group].attributes, where, path).level(path)
    except ValueError:
        return ()
    return level.axes if level else ()


def image_beside(nodes: Mapping[str, _dimensions.Node], name: str) -> str | None:
    """The array of the image that labels, by the name of an array, belong to: the same level."""
    around = _dimensions.image_around(nodes, name)
    image, marker, _ = f"/{around[0]}/".rpartition("/labels/") if around else ("", "", "")
    if not marker or image.strip("/") not in nodes:
        return None
    group, path = around
    try:
        own = _ome.image_of(nodes[group].attributes, group, path)
        others = _ome.image_of(nodes[image.strip("/")].attributes, image)
    except ValueError:
        return None
    number = [level.path for level in own.levels].index(path)
    levels = others.levels[number : number + 1]
    return f"{image.strip('/')}/{levels[0].path}".strip("/") if levels else None


def _opened(paths: Sequence[str], options: _core.StorageOptions, follow_links: bool) -> list[_core.Objects]:
    opened: list[_core.Objects] = []
    for place in _core.expand(list(paths), options):
        beside = opened[-1] if opened else None
        opened.append(_core.Objects(place, options, follow_links=follow_links, soon=True, beside=beside))
    return opened


def _attributes(objects: _core.Objects, paths: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    return {path: node.attributes for path, node in _dimensions.nodes_of(objects, paths).items()}


def _root(objects: _core.Objects) -> Mapping[str, Any]:
    """The attributes of the root; none where its metadata are absent, or no JSON.

    Raises:
        RuntimeError: The store cannot be read.
    """
    for file in ("zarr.json", ".zattrs"):
        # As of absent objects in some stores; what is wrong with the JSON, the reader says better.
        with contextlib.suppress(_core.Forbidden, ValueError, RecursionError):
            if (found := objects.get(file)) is not None:
                node = json.loads(found.content)
                attributes = _ome.entry(node, "attributes") if file == "zarr.json" else node
                return attributes if isinstance(attributes, Mapping) else {}
    return {}


def _series(objects: _core.Objects) -> list[str]:
    """The images that bioformats2raw wrote: those that it lists, or all groups from 0 on."""
    listed = _ome.metadata_of(_attributes(objects, ["OME"])["OME"]).get("series")
    if isinstance(listed, list) and listed:
        paths = [_ome.inside(path) if isinstance(path, str) else "" for path in listed]
        if not all(paths):
            raise ValueError(f'path: {objects.shown}/OME: "series" is no list of paths in the group above it')
        return paths
    found: list[str] = []
    while _ome.is_image(_attributes(objects, [str(len(found))])[str(len(found))]):
        found.append(str(len(found)))
    if not found:
        raise ValueError(f"path: {objects.shown} has no images: there is none in its group 0")
    return found


def _number(level: Any) -> int:
    try:
        found = -1 if isinstance(level, bool) else operator.index(level)
    except TypeError:
        found = -1
    if found < 0:
        raise ValueError(f"level: {level!r} is no number of a level; the highest resolution is 0")
    return found


def _arrays(objects: _core.Objects, level: int, labels: Sequence[str]) -> list[str]:
    """Paths of the arrays that a level of an image, and of its labels, are."""
    groups = ["", *(f"labels/{name.strip('/')}" for name in labels)]
    attributes = _attributes(objects, [*groups, "labels"])
    for name, group in zip(labels, groups[1:]):
        if not _ome.is_image(attributes[group]):
            there = _ome.labels_of(attributes["labels"])
            only = f"only {', '.join(there)}" if there else "and lists none"
            raise ValueError(f'labels: {objects.shown} has no labels "{name}", {only}')
    arrays, extents = [], []
    for group in groups:
        where = f"{objects.shown}/{group}" if group else objects.shown
        image = _ome.image_of(attributes[group], where)
        if level >= len(image.levels):
            raise ValueError(
                f"level: {where} has {len(image.levels)} levels, from 0 to {len(image.levels) - 1}, and no "
                f"{level}"
            )
        path = image.levels[level].path
        arrays.append(f"{group}/{path}" if group else path)
        extents.append(extents_of(objects, arrays[-1], image.axes))
    for name, its in zip(arrays[1:], extents[1:]):
        check_beside(objects.shown, (arrays[0], extents[0]), (name, its))
    return arrays


def extents_of(objects: _core.Objects, array: str, axes: Sequence[str]) -> dict[str, int]:
    """The extents of an array by its axes.

    Raises:
        ValueError: It is not there, or its dimensions are not those of its image.
    """
    shape = _dimensions.shape_of(objects, array)
    if shape is None:
        raise ValueError(
            f'path: there is no array "{array}" in {objects.shown}, which its OME-Zarr metadata name; copy '
            "it again, or repair the metadata"
        )
    if len(shape) != len(axes):
        raise ValueError(
            f'path: the array "{array}" in {objects.shown} has the shape {list(shape)}, but its OME-Zarr '
            f"metadata have the axes {', '.join(axes)}; repair the metadata"
        )
    return dict(zip(axes, shape))


def check_beside(
    where: str, image: tuple[str, Mapping[str, int]], labels: tuple[str, Mapping[str, int]]
) -> None:
    """Raises ValueError where labels have neither the extent of the image nor 1 along an axis."""
    (name, extents), (other, others) = image, labels
    for axis, extent in others.items():
        if axis not in extents:
            raise ValueError(
                f'path: in {where} "{other}" has an axis {axis}, but "{name}" only {", ".join(extents)}; '
                "give each a reader of its own"
            )
        if extent not in (1, extents[axis]):
            raise ValueError(
                f'path: in {where} "{other}" has {extent} indices along {axis}, but "{name}" has '
                f"{extents[axis]}; labels need the image's extents, or 1"
            )
