"""A small OME-Zarr plate to try things with: made-up nuclei."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from zarr_dali._example import MARK, write_array, write_metadata, written_once

WELLS = ("A/1", "A/2", "B/1")
FIELDS = 2
"""Of each well."""
SHAPE = {"t": 2, "c": 2, "z": 4, "y": 64, "x": 64}
CHANNELS = {"DAPI": "0000FF", "GFP": "00FF00"}
"""With the colours that viewers give them."""
LEVELS = 2
SCALE = {"t": 60.0, "c": 1.0, "z": 1.0, "y": 0.325, "x": 0.325}
"""Seconds and micrometers."""
NUCLEI = 8
"""Of each field."""
VERSION = 1
"""Of the values: the same version, the same values."""


def example_plate(path: str | os.PathLike[str]) -> str:
    """Writes a small OME-Zarr plate (0.5) of made-up nuclei, always the same, as the documentation uses it.

        loader = zarr_dali.Loader(zarr_dali.example_plate("plate.zarr"), labels="nuclei", dtype="int32")

    Three wells of two fields, A/1/0 to B/1/1. Each is an image, uint16, with the axes (t, c, z, y, x), the
    extents 2, 2, 4, 64 and 64, and the channels DAPI and GFP, in two resolution levels, beside labels
    `nuclei`, int32, with one channel.

    Args:
        path: Folder to write. One that has the same example is left as it is.

    Returns:
        The path, as text.

    Raises:
        FileExistsError: There is something else at the path.
    """
    return written_once(path, {"version": VERSION, "of": "plate"}, _write_plate)


def _write_plate(folder: Path) -> None:
    names = [sorted({well.split("/")[part] for well in WELLS}) for part in (0, 1)]
    wells = []
    for well in WELLS:
        row, column = (own.index(name) for own, name in zip(names, well.split("/")))
        wells.append({"path": well, "rowIndex": row, "columnIndex": column})
    rows, columns = ([{"name": name} for name in own] for own in names)
    plate = {"name": "example", "version": "0.5", "rows": rows, "columns": columns, "wells": wells}
    mark = {MARK: {"version": VERSION, "of": "plate"}}
    _write_group(folder, {"plate": plate | {"field_count": FIELDS}}, mark)
    for row in names[0]:
        write_metadata(folder / row, {"node_type": "group", "attributes": {}})
    for number, well in enumerate(WELLS):
        images = [{"path": str(field)} for field in range(FIELDS)]
        _write_group(folder / well, {"well": {"images": images, "version": "0.5"}})
        for field in range(FIELDS):
            _write_field(folder / well / str(field), number * FIELDS + field)


def _write_field(folder: Path, number: int) -> None:
    window = {"start": 0, "end": 4000, "min": 0, "max": 65535}
    channels = [{"label": label, "color": color, "window": window} for label, color in CHANNELS.items()]
    nuclei = _nuclei(number)
    _write_image(folder, _light(nuclei, number), {"omero": {"channels": channels}})
    _write_group(folder / "labels", {"labels": ["nuclei"]})
    about = {"image-label": {"version": "0.5", "source": {"image": "../../"}}}
    _write_image(folder / "labels" / "nuclei", nuclei, about)


def _write_image(folder: Path, values: np.ndarray, more: dict[str, Any]) -> None:
    datasets = []
    for level in range(LEVELS):
        step = 2**level
        write_array(folder, str(level), values[..., ::step, ::step], tuple(SHAPE), {})
        scale = [size * step if axis in "yx" else size for axis, size in SCALE.items()]
        datasets.append(
            {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        )
    units = {"t": ("time", "second"), "c": ("channel", None)}
    axes = []
    for axis in SHAPE:
        kind, unit = units.get(axis, ("space", "micrometer"))
        axes.append({"name": axis, "type": kind} | ({"unit": unit} if unit else {}))
    _write_group(folder, {"multiscales": [{"name": folder.name, "axes": axes, "datasets": datasets}], **more})


def _write_group(folder: Path, ome: dict[str, Any], others: dict[str, Any] | None = None) -> None:
    attributes = {"ome": {"version": "0.5", **ome}, **(others or {})}
    write_metadata(folder, {"node_type": "group", "attributes": attributes})


def _nuclei(number: int) -> np.ndarray:
    """The number of the nucleus that each place belongs to, or 0: balls that drift from step to step."""
    time, _, height, row, column = np.ogrid[tuple(slice(extent) for extent in SHAPE.values())]
    found = np.zeros((SHAPE["t"], 1, *list(SHAPE.values())[2:]), "int32")
    for nucleus in range(1, NUCLEI + 1):
        at = 7 * number + 5 * nucleus
        middle = ((nucleus * 2) % SHAPE["z"], (at * 11 + 9) % SHAPE["y"], (at * 17 + 5) % SHAPE["x"])
        away = (height - middle[0]) ** 2 * 4
        away = away + (row - middle[1] - 2 * time) ** 2 + (column - middle[2]) ** 2
        found[(away < 36)[:, :1]] = nucleus
    return found


def _light(nuclei: np.ndarray, number: int) -> np.ndarray:
    """Counts of light: bright nuclei in the first channel, bright surroundings in the second, and noise."""
    inside = np.concatenate([nuclei > 0, nuclei == 0], axis=1)
    noise = (np.arange(inside.size).reshape(inside.shape) * 2654435761 + number) % 2**32 >> 26
    return (300 + 2500 * inside + 4 * noise).astype("uint16")
