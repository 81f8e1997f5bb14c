"""Arguments of the wrapper `zarr_dali.readers.zarr` as the operator takes them: JSON and DALI's types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zarr_dali import _core, _normalize, _offsets, _outputs


def of_wrapper(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's arguments.

    Raises:
        TypeError: An argument is neither text nor what JSON has, or `dtype` is no type.
        ValueError: `offsets` and `dimension_offsets` are both dictionaries, or a value cannot be used.
    """
    found = _offsets.reader_arguments(arguments)
    for name, convert in _CONVERSIONS.items():
        if found.get(name) is not None:
            found[name] = convert(name, found[name])
    return found


def _json(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=_normalize.plain)
    except TypeError as error:
        raise TypeError(f"{name}: {error}; give text of JSON, or a dictionary of what JSON has") from error


def _selection(name: str, value: Any) -> str:
    """`select`: a list of indices and ranges for each dimension."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is {value!r}, but has to be a dictionary of indices by dimension, such as "
            '{"level": [3, 7]}, or JSON of one'
        )
    for dimension, pieces in value.items():
        flat = np.asarray(pieces if isinstance(pieces, (list, tuple)) else [pieces], dtype=object).ravel()
        if wrong := [one for one in flat if isinstance(one, (slice, str, bool, float))]:
            raise TypeError(
                f"{name}: {wrong[0]!r} of {dimension} is no index; give indices and ranges [start, end], or "
                "let zarr_dali.select or zarr_dali.Loader find the indices of labels"
            )
    return _json(name, value)


_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "select": _selection,
    "normalize": lambda _, value: _normalize.as_json(value),
    "storage_options": lambda _, value: _core.as_json(value),
    "per_store": _json,
    "dimension_offsets": _json,
    "position": _json,
    "dtype": lambda _, value: _outputs.dali_type(value),
}
