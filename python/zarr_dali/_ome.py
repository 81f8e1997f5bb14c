"""What OME-Zarr metadata say of images, their labels, plates and wells: versions 0.4 and 0.5 of OME-NGFF.

Pure: attributes in, values out. In version 0.5 the metadata are under the attribute `ome` of a Zarr v3 group,
in 0.4 they are attributes of a Zarr v2 group themselves.
"""

from __future__ import annotations

import numbers
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNITS = {"micrometer": "µm", "nanometer": "nm", "millimeter": "mm", "second": "s", "millisecond": "ms"}
"""Short forms of common units."""


@dataclass(frozen=True)
class Axis:
    """A dimension of an array of an image."""

    name: str
    type: str | None = None
    """As the metadata have it: "space", "time", "channel" or another one."""
    unit: str | None = None
    """As the metadata have it, such as "micrometer"."""
    scale: float | None = None
    """Between two neighbours, in the unit."""
    translation: float | None = None
    """Of the first index, in the unit; None if the metadata have none."""

    def __str__(self) -> str:
        """`x 0.26 µm`; without what says nothing."""
        if self.scale is None or (self.unit is None and self.scale == 1):
            return self.name
        unit = "" if self.unit is None else f" {UNITS.get(self.unit, self.unit)}"
        return f"{self.name} {self.scale:.6g}{unit}"


@dataclass(frozen=True)
class Level:
    """One resolution of an image, as an array."""

    path: str
    """Below the image's group."""
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Image:
    """An image or labels: arrays of the same axes, from the highest resolution to the lowest."""

    axes: tuple[str, ...]
    levels: tuple[Level, ...]
    channels: tuple[str | None, ...] = ()
    """Labels of the channels, as far as there are any."""

    @property
    def channel_names(self) -> dict[str, tuple[str, ...]]:
        """The labels by the axis that they are along, if all channels have one."""
        along = [axis.name for axis in self.levels[0].axes if axis.type == "channel"]
        return {along[0]: self.channels} if along and self.channels and all(self.channels) else {}

    def level(self, path: str) -> Level | None:
        """The level that is the array at this path."""
        return next((level for level in self.levels if level.path == path), None)


def metadata_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The OME-Zarr part of a group's attributes, of either version."""
    own = attributes.get("ome")
    return own if isinstance(own, Mapping) else attributes


def is_image(attributes: Mapping[str, Any]) -> bool:
    return "multiscales" in metadata_of(attributes)


def names_of(attributes: Mapping[str, Any], path: str) -> tuple[str, ...] | None:
    """The axes that a group names for the array at `path` below it, by the rules of src/dataset/ome.rs.

    None if the group is no image that has this array, or if it does not say.
    """
    image = _having(attributes, path)
    names = tuple(entry(axis, "name", axis) for axis in items(entry(image, "axes")))
    return names if names and all(isinstance(name, str) for name in names) else None


def has_array(attributes: Mapping[str, Any], path: str) -> bool:
    """Whether a group is an image with the array at `path` below it."""
    return _having(attributes, path) is not None


def image_of(attributes: Mapping[str, Any], where: str, path: str | None = None) -> Image:
    """The image that a group is: the first one of its `multiscales`, or the one that has the array `path`.

    Raises:
        ValueError: It is none, or its metadata are not those of OME-Zarr 0.4 or 0.5. `where` names the group.
    """
    metadata = metadata_of(attributes)
    images = items(metadata.get("multiscales"))
    if not images:
        raise ValueError(
            f'{where} is no OME-Zarr image: its metadata have no list "multiscales"; repair the metadata, or '
            "give `arrays` by their paths"
        )
    image = images[0] if path is None else _having(attributes, path) or images[0]
    where = f"{where}: multiscales[{images.index(image)}] of its OME-Zarr metadata"
    axes = _axes(image, where)
    datasets = items(entry(image, "datasets"))
    if not datasets:
        raise ValueError(f'{where} has no list "datasets", which names the arrays; repair the metadata')
    common = _transformations(image, len(axes), where)
    levels = []
    for at, dataset in enumerate(datasets):
        its = f"{where}, datasets[{at}],"
        found = path_of(dataset)
        if not found:
            raise ValueError(f'{its} has no "path" in this group; repair the metadata')
        scale, translation = _transformations(dataset, len(axes), its)
        scale, translation = _composed((scale, translation), common)
        levels.append(Level(found, _scaled(axes, scale, translation)))
    labels = tuple(_text(channel, "label") for channel in items(entry(metadata.get("omero"), "channels")))
    return Image(tuple(axis.name for axis in axes), tuple(levels), labels)


def wells_of(attributes: Mapping[str, Any], where: str) -> list[str]:
    """Paths of the wells of a plate, in its order.

    Raises:
        ValueError: The metadata name none.
    """
    return _paths(metadata_of(attributes)["plate"], "wells", where, "plate")


def fields_of(attributes: Mapping[str, Any], where: str) -> list[str]:
    """Paths of the images of a well, in its order.

    Raises:
        ValueError: The metadata name none.
    """
    return _paths(metadata_of(attributes).get("well"), "images", where, "well")


def labels_of(attributes: Mapping[str, Any]) -> list[str]:
    """Names of the labels that the group `labels` of an image lists."""
    return [one for one in items(metadata_of(attributes).get("labels")) if isinstance(one, str)]


def _having(attributes: Mapping[str, Any], path: str) -> Any:
    """What `multiscales` say of the image that has an array."""
    images = items(metadata_of(attributes).get("multiscales"))
    has = (image for image in images if path in map(path_of, items(entry(image, "datasets"))))
    return next(has, None)


def _paths(metadata: Any, key: str, where: str, what: str) -> list[str]:
    paths = [path_of(one) for one in items(entry(metadata, key))]
    if not paths or not all(paths):
        raise ValueError(
            f'{where}: "{what}" of its OME-Zarr metadata has no list "{key}" of paths; repair the metadata, '
            "or give `arrays` by their paths"
        )
    return paths


def _axes(image: Any, where: str) -> list[Axis]:
    given = items(entry(image, "axes"))
    names = [entry(axis, "name", axis) for axis in given]
    if not names:
        raise ValueError(
            f'{where} has no list "axes", which OME-Zarr 0.4 and 0.5 have; write it again with one of these'
        )
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ValueError(f"{where} has the axes {given}, whose names are no different texts; repair it")
    return [Axis(name, _text(axis, "type"), _text(axis, "unit")) for name, axis in zip(names, given)]


def _scaled(
    axes: Sequence[Axis], scale: Sequence[float] | None, translation: Sequence[float] | None
) -> tuple[Axis, ...]:
    numbers_of = [values or [None] * len(axes) for values in (scale, translation)]
    return tuple(Axis(axis.name, axis.type, axis.unit, *own) for axis, *own in zip(axes, *numbers_of))


_Transformation = tuple[list[float] | None, list[float] | None]


def _composed(first: _Transformation, then: _Transformation) -> _Transformation:
    """A scale and a translation behind which others are applied."""
    (scale, translation), (more, further) = first, then
    if more is not None:
        scale = [a * b for a, b in zip(scale or [1.0] * len(more), more)]
        translation = translation and [a * b for a, b in zip(translation, more)]
    if further is not None:
        translation = [a + b for a, b in zip(translation or [0.0] * len(further), further)]
    return scale, translation


def _transformations(holder: Any, dimensions: int, where: str) -> _Transformation:
    """The scale and the translation of `coordinateTransformations`."""
    found: _Transformation = None, None
    for one in items(entry(holder, "coordinateTransformations")):
        kind = entry(one, "type")
        values = entry(one, kind) if kind in ("scale", "translation") else None
        if values is None:
            continue  # an identity, or values in an array
        if len(items(values)) != dimensions or not all(isinstance(value, numbers.Real) for value in values):
            raise ValueError(
                f"{where} has the {kind} {values}, which are no {dimensions} numbers, one for each axis; "
                "repair the metadata"
            )
        values = [float(value) for value in values]
        found = _composed(found, (values, None) if kind == "scale" else (None, values))
    return found


def path_of(holder: Any) -> str:
    """The path that an object of the metadata has; empty if it has none, or it leads out of its group."""
    return inside(_text(holder, "path") or "")


def inside(path: str) -> str:
    """A path without what leads nowhere; empty if it leads out of its group."""
    found = posixpath.normpath(path).strip("/") if path else ""
    return "" if found in ("", ".") or found.split("/")[0] == ".." else found


def _text(holder: Any, key: str) -> str | None:
    value = entry(holder, key)
    return value if isinstance(value, str) else None


def entry(holder: Any, key: Any, default: Any = None) -> Any:
    """What an object of the metadata has under a key; the default if it is no object."""
    return holder.get(key, default) if isinstance(holder, Mapping) else default


def items(value: Any) -> list[Any]:
    """A list of the metadata; an empty one if it is none."""
    return value if isinstance(value, list) else []
