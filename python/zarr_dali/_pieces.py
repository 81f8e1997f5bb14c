"""Indices as the pieces that `fn.readers.zarr` selects, and longitudes as places and pieces of a circle."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

CIRCLE = 360

UNITS = {stem + ending for stem in ("degree", "degrees") for ending in ("_east", "_E", "E", "east")}
"""Of longitudes, as the CF conventions have them."""

OTHER_UNITS = {"m", "km", "metre", "metres", "meter", "meters", "rad", "radian", "radians"}
"""Of what is called a longitude and goes around no circle of 360."""


def is_longitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a coordinate holds longitudes in degrees, by its name or by the CF conventions."""
    units = attributes.get("units")
    named = name.lower() in ("lon", "longitude") or attributes.get("standard_name") == "longitude"
    return units in UNITS or (named and units not in OTHER_UNITS)


def around(index: pd.Index, label: Any) -> list[Any]:
    """The labels of a coordinate of longitudes that a label means: two slices where one crosses its end.

    As xarray has it, but a number that the coordinate does not have is the same longitude in it, an end of a
    slice outside of it too, and a slice may end west of where it starts. What is neither a slice nor numbers
    is returned as it is, and so are numbers of which one is no longitude of the coordinate.
    """
    if not isinstance(label, slice):
        return [_turned(index, label)]
    plain = [label]
    if label.step is not None or len(index) < 2:
        return plain
    start, stop = label.start, label.stop
    if not (isinstance(start, numbers.Real) and isinstance(stop, numbers.Real)):
        return plain
    if not (index.is_monotonic_increasing and index.dtype.kind in "iuf"):
        return plain
    first, last = float(index[0]), float(index[-1])
    spacing = float(index[1]) - first
    inside = first - spacing < start and stop <= last + spacing
    if inside and start <= stop:
        return plain
    west = first + (start - first) % CIRCLE
    if stop - start >= CIRCLE:
        behind = np.nextafter(west, -np.inf)
        return [slice(west, None), slice(None, float(behind))]
    east = first + (stop - first) % CIRCLE
    if west <= east:
        return [slice(west, east)]
    # What lies between the ends of a region is not in it: its parts are no neighbours.
    closes = last + 1.5 * spacing >= first + CIRCLE
    return [slice(west, None), slice(None, east)] if closes else plain


def _turned(index: pd.Index, label: Any) -> Any:
    """Numbers with the coordinate's own in place of those that it has a whole number of circles away."""
    labels, absent = _absent(index, label)
    if not absent.any():
        return label
    nearest, is_same = _nearest(index, labels[absent])
    if not is_same.all():
        return label
    labels[absent] = nearest
    return labels if np.ndim(label) else labels[0].item()


def remark(index: pd.Index, label: Any) -> str:
    """Of the first longitude that a coordinate lacks: what it is within its circle, and which is nearest."""
    labels, absent = _absent(index, label)
    if not absent.any():
        return ""
    nearest, is_same = _nearest(index, labels[absent])
    if is_same.all():
        return ""
    wrong = labels[absent][~is_same][0]
    first = float(index.min())
    said = f"{wrong:.10g}"
    if not first <= wrong < first + CIRCLE:
        said += f", the same longitude as {first + (wrong - first) % CIRCLE:.10g},"
    return f"; {said} is not among them, the nearest is {nearest[~is_same][0]:.10g}"


def _absent(index: pd.Index, label: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels as a list of numbers, and which of them a coordinate lacks; none if they are no numbers."""
    try:
        given = np.asarray(label)
    except ValueError:  # lists of several lengths
        given = np.empty(0, object)
    if index.dtype.kind not in "iuf" or given.dtype.kind not in "iuf" or given.ndim > 1 or not len(index):
        return np.empty(0), np.empty(0, bool)
    labels = np.atleast_1d(given).astype("float64")
    # As xarray compares them.
    rounded = labels.astype(index.dtype) if index.dtype.kind == "f" else labels
    return labels, np.isfinite(labels) & ~np.isin(rounded, index.values)


def _nearest(index: pd.Index, longitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The label of a coordinate nearest to each longitude on the circle, and whether it is the same one.

    Numbers of this size are rounded, so that two names of a longitude differ a little.
    """
    values = index.values.astype("float64")
    apart = np.abs((values[:, None] - longitudes + CIRCLE / 2) % CIRCLE - CIRCLE / 2)
    at = apart.argmin(axis=0)
    stored = np.finfo(index.dtype if index.dtype.kind == "f" else "float64").eps
    rounding = CIRCLE * (stored + 3 * np.finfo("float64").eps)
    return values[at], apart[at, np.arange(len(longitudes))] <= rounding


def is_range(found: np.ndarray) -> bool:
    """Whether these are ascending indices without gaps."""
    return bool((np.diff(found) == 1).all())


def as_json(indices: Mapping[str, np.ndarray]) -> str:
    """Indices of dimensions as `fn.readers.zarr` takes them: ranges where they follow one another."""
    return json.dumps({name: _pieces(found) for name, found in indices.items()})


def _pieces(found: np.ndarray) -> list[Any]:
    borders = np.flatnonzero(np.diff(found) != 1) + 1
    parts = np.split(found, borders)
    return [int(part[0]) if len(part) == 1 else [int(part[0]), int(part[-1]) + 1] for part in parts]
