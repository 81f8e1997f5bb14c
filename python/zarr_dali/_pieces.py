"""Indices as the pieces that `fn.readers.zarr` selects, and slices of longitudes as pieces of a circle."""

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


def is_longitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a coordinate holds longitudes, by its name or by the CF conventions."""
    return (
        name.lower() in ("lon", "longitude")
        or attributes.get("standard_name") == "longitude"
        or attributes.get("units") in UNITS
    )


def around(index: pd.Index, label: Any) -> list[slice]:
    """The slices of a coordinate of longitudes that a slice means: two where it crosses the coordinate's end.

    As xarray has it, but an end outside of the coordinate is the same longitude inside of it, and a slice may
    end west of where it starts. What is no such slice is returned as it is.
    """
    plain = [label]
    if not isinstance(label, slice) or label.step is not None or len(index) < 2:
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
