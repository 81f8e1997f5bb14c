"""`offsets` by dimension: a dictionary from names or numbers of dimensions to steps or time spans."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from zarr_dali import _steps


def by_dimension(offsets: Any, dimensions: Sequence[str]) -> dict[int, Any]:
    """The offsets by numbers of dimensions: a list is of the first dimension.

    Raises:
        ValueError: There is no such dimension, or one is given twice.
    """
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        return {0: _steps.listed(offsets)}
    found: dict[int, Any] = {}
    for name, its in offsets.items():
        at = name if _is_number(name) else dimensions.index(name) if name in dimensions else -1
        if not 0 <= at < len(dimensions):
            raise ValueError(
                f"offsets: there is no dimension {name!r}; give one of {', '.join(dimensions)}, or a number "
                f"from 0 to {len(dimensions) - 1}"
            )
        if at in found:
            raise ValueError(
                f"offsets: {dimensions[at]} is dimension {at}, and both are given; leave one out"
            )
        found[int(at)] = _steps.listed(its)
    return dict(sorted(found.items()))


def of_indices(offsets: Any) -> bool:
    """Whether all offsets of a dictionary are numbers of steps."""
    return all(_steps.is_number(one) for its in offsets.values() for one in _steps.listed(its))


def as_json(offsets: Mapping[Any, Any]) -> str:
    """The operator's `dimension_offsets`.

    Raises:
        ValueError: Offsets that are no numbers of steps.
    """
    found = {}
    for name, its in offsets.items():
        for one in _steps.listed(its):
            if not _steps.is_number(one):
                raise ValueError(
                    f"offsets: {one!r} of {name} is no number of steps; zarr_dali.select and Loader make "
                    "these of time spans"
                )
        found[str(name)] = [int(one) for one in _steps.listed(its)]
    return json.dumps(found)


def reader_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's arguments, which has `dimension_offsets` for a dictionary of offsets.

    Raises:
        ValueError: Offsets that are no numbers of steps, or both are given.
    """
    found = dict(arguments)
    if isinstance(found.get("offsets"), Mapping):
        if found.get("dimension_offsets"):
            raise ValueError("offsets by dimension and dimension_offsets: give one of them")
        found["dimension_offsets"] = as_json(found.pop("offsets"))
    return found


def entry(steps: list[int] | None, breaks: list[int]) -> Any:
    """What `dimension_offsets` holds of a dimension."""
    return {"offsets": steps, "breaks": breaks} if breaks else steps


def _is_number(name: Any) -> bool:
    return isinstance(name, numbers.Integral) and not isinstance(name, bool)
