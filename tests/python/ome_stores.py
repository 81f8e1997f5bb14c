"""OME-Zarr stores: arrays written by zarr-python, metadata by hand as versions 0.4 and 0.5 have them."""

import json
from pathlib import Path

import numpy as np

from stores import edit_metadata, write_array, write_group

VERSIONS = ("0.4", "0.5")
FORMATS = {"0.4": 2, "0.5": 3}
"""The Zarr format that each version belongs to."""
TYPES = {"t": "time", "c": "channel"}
UNITS = {"t": "second"}
AXES = "tczyx"
SCALE = {"t": 2.0, "c": 1.0, "z": 0.5, "y": 0.26, "x": 0.26}
"""Of the images that `write_cells` writes."""


def axes_of(names):
    """The metadata of axes: t is time, c channels, others are space in micrometers."""
    axes = [{"name": name, "type": TYPES.get(name, "space")} for name in names]
    for axis in axes:
        if axis["type"] != "channel":
            axis["unit"] = UNITS.get(axis["name"], "micrometer")
    return axes


def put(group, version, **metadata):
    """Writes metadata of OME-Zarr into a group, which is made if it is not there."""
    write_group(group, FORMATS[version])
    if version == "0.4":
        file = Path(group, ".zattrs")
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | metadata))
    else:
        own = {"version": version} | metadata
        edit_metadata(Path(group, "zarr.json"), lambda node: node["attributes"].update(ome=own))
    return Path(group)


def write_image(
    group,
    levels,
    axes,
    version="0.5",
    *,
    scale=None,
    translation=None,
    chunks=None,
    channels=None,
    own_names=True,
    codec="raw",
    **metadata,
):
    """Writes an image whose levels are these arrays, named 0, 1, ...

    `scale` is that of the first level; `own_names` says whether arrays of 0.5 have `dimension_names`.
    """
    scale = list(scale or [1.0] * len(axes))
    datasets = []
    write_group(group, FORMATS[version])
    for number, values in enumerate(levels):
        factors = [a / b for a, b in zip(levels[0].shape, values.shape)]
        steps = [{"type": "scale", "scale": [a * b for a, b in zip(scale, factors)]}]
        if translation is not None:
            steps.append({"type": "translation", "translation": list(translation)})
        datasets.append({"path": str(number), "coordinateTransformations": steps})
        names = list(axes) if version == "0.5" and own_names else None
        options = {"separator": "/"} if version == "0.4" else {}
        write_array(
            group,
            str(number),
            values,
            chunks=chunks or tuple(-(-extent // 2) for extent in values.shape),
            codec=codec,
            zarr_format=FORMATS[version],
            dimension_names=names,
            fill_value=0,
            **options,
        )
    image = {"name": Path(group).name, "axes": axes_of(axes), "datasets": datasets}
    if version == "0.4":
        image["version"] = version
    if channels is not None:
        window = {"start": 0, "min": 0, "end": 1, "max": 1}
        omero = [{"label": label, "color": "FF0000", "window": window} for label in channels]
        metadata["omero"] = {"channels": omero}
    return put(group, version, multiscales=[image], **metadata)


def write_labels(image, name, levels, axes, version="0.5", **options):
    """Writes labels beside the levels of an image, and lists them."""
    image_label = {"image-label": {"source": {"image": "../../"}}}
    if version == "0.4":
        image_label["image-label"]["version"] = version
    group = Path(image, "labels")
    known = metadata_in(group, version).get("labels", [])
    put(group, version, labels=[*known, name])
    return write_image(group / name, levels, axes, version, **options, **image_label)


def write_plate(path, wells, write_field, version="0.5"):
    """Writes a plate: `wells` has the names of the fields of each well, such as {"A/1": ["0", "1"]};
    `write_field(folder, well, field)` writes one."""
    rows, columns = (sorted({well.split("/")[part] for well in wells}) for part in (0, 1))
    found = []
    for well in wells:
        row, column = well.split("/")
        found.append({"path": well, "rowIndex": rows.index(row), "columnIndex": columns.index(column)})
    plate = {
        "name": "plate",
        "columns": [{"name": name} for name in columns],
        "rows": [{"name": name} for name in rows],
        "wells": found,
        "version": version,
    }
    put(path, version, plate=plate)
    for row in rows:
        write_group(Path(path, row), FORMATS[version])
    for well, fields in wells.items():
        put(
            Path(path, well),
            version,
            well={"images": [{"path": field} for field in fields], "version": version},
        )
        for field in fields:
            write_field(Path(path, well, field), well, field)
    return Path(path)


def metadata_in(group, version):
    """What OME-Zarr says of a group; nothing if it is not there."""
    file = Path(group, ".zattrs" if version == "0.4" else "zarr.json")
    node = json.loads(file.read_text()) if file.exists() else {}
    return node if version == "0.4" else node.get("attributes", {}).get("ome", {})


def values_of(shape, first=0, dtype="int32"):
    """Numbers that are all different."""
    return np.arange(first, first + int(np.prod(shape)), dtype=dtype).reshape(shape)


def pyramid(values, axes, count):
    """Levels of which each is half as large as the one before along y and x."""
    levels = [values]
    for _ in range(count - 1):
        halves = tuple(slice(None, None, 2) if axis in "yx" else slice(None) for axis in axes)
        levels.append(np.ascontiguousarray(levels[-1][halves]))
    return levels


def write_cells(path, version, **options):
    """An image of two levels with three named channels, labels `cells` of one channel and `depth` (z, y, x);
    the levels of each."""
    image = pyramid(values_of((4, 3, 4, 16, 12)), AXES, 2)
    cells = pyramid(values_of((4, 1, 4, 16, 12), 100_000), AXES, 2)
    depth = pyramid(values_of((4, 16, 12), 200_000), "zyx", 2)
    scale = [SCALE[axis] for axis in AXES]
    channels = ["DAPI", "GFP", "RFP"]
    write_image(path, image, AXES, version, scale=scale, channels=channels, **options)
    write_labels(path, "cells", cells, AXES, version, scale=scale)
    write_labels(path, "depth", depth, "zyx", version, scale=scale[2:])
    return {"image": image, "cells": cells, "depth": depth}


def edit_ome(group, version, change):
    """Changes what OME-Zarr says of a group."""
    file = Path(group, ".zattrs" if version == "0.4" else "zarr.json")
    edit_metadata(file, lambda node: change(node if version == "0.4" else node["attributes"]["ome"]))
