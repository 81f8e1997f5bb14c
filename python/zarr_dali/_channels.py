"""Names of channels that a reader made of arrays and their levels."""

from __future__ import annotations

import numbers
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from zarr_dali import _locations, _store_coordinates


def names(
    channels: Sequence[tuple[str, Mapping[str, int]]],
    path: _locations.Paths,
    options: Mapping[str, Any],
    called: Mapping[str, str],
) -> list[str]:
    """`q_500` for index 4 along `level`, if its label is 500; indices where labels cannot be had.

    Args:
        channels: As `zarr_dali.stats` has them: an array, and its indices by dimension.
        path: The reader's.
        options: Its `follow_links` and `storage_options`.
        called: What arrays are called that are levels of images.
    """
    labels = {array: _labels(path, array, options) for array, indices in channels if indices}
    return [_name(called.get(array, array), indices, labels.get(array, {})) for array, indices in channels]


def _labels(path: _locations.Paths, array: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The coordinates of an array's dimensions; none without xarray, or if it cannot open the store."""
    try:
        coordinates = _store_coordinates.coordinates(path, [array] if array else None, **options)
    except (ImportError, ValueError):
        return {}
    return {**coordinates.names, **coordinates.indexes}


def _name(array: str, indices: Mapping[str, int], labels: Mapping[str, Any]) -> str:
    parts = [posixpath.basename(array)] if array else []
    for dimension, index in indices.items():
        parts.append(_text(labels[dimension][index]) if dimension in labels else str(index))
    return "_".join(parts) or "data"


def _text(label: Any) -> str:
    """A label without a fraction that is none."""
    whole = isinstance(label, numbers.Real) and float(label).is_integer()
    return str(int(label)) if whole else str(label)
