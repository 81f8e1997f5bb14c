"""Element types of a reader's outputs before it has read anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from zarr_dali import _core
from zarr_dali._info import info
from zarr_dali._outputs import NOT_OF_TORCH, Outputs, lacking

TO_FLOATS = ("mean", "std", "normalize")
"""Arguments with which all values become floating-point numbers."""
OF_VALUES = ("mask_and_scale", "mean", "std", "normalize", "follow_links", "storage_options")
"""Arguments of the reader that its types, or what it may open, depend on."""


def refuse_lacking(outputs: Outputs, arrays: Sequence[str], arguments: Mapping[str, Any]) -> None:
    """Raises ValueError where DALI cannot hand an output of a reader without `dtype` to torch."""
    if any(arguments.get(name) is not None for name in TO_FLOATS):
        return
    if not set(declared_types(arrays, arguments)) & set(NOT_OF_TORCH):
        return
    # Of stacked arrays, which have all the same type, that of the first.
    found = zip(outputs.names, output_types(arrays, arguments))
    if problem := lacking({name: one for name, one in found if one and name not in outputs.casts}):
        raise ValueError(problem)


def declared_types(arrays: Sequence[str], arguments: Mapping[str, Any]) -> list[str | None]:
    """The types that metadata of arrays declare, in the first of the stores; None for what is not found.

    Without `arrays` the store is the array.
    """
    options = arguments.get("storage_options")
    follow_links = arguments.get("follow_links", True)
    try:
        store = _first(arguments["path"], options)
        objects = _core.Objects(store, options, follow_links=follow_links, soon=True)
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda array: _declared(objects, array.strip("/")), arrays or [""]))
    except (ValueError, RuntimeError):  # the reader will say it better
        return [None] * max(len(arrays), 1)


def _declared(objects: _core.Objects, array: str) -> str | None:
    for name, key in (("zarr.json", "data_type"), (".zarray", "dtype")):
        found = objects.get(f"{array}/{name}" if array else name)
        if found is None:
            continue
        metadata = json.loads(found.content)
        declared = metadata.get(key) if isinstance(metadata, dict) else None
        try:
            return np.dtype(declared).name if isinstance(declared, str) else None
        except TypeError:
            return None
    return None


def output_types(arrays: Sequence[str], arguments: Mapping[str, Any]) -> list[str | None]:
    """The types of what a reader without `dtype` makes of arrays; None for one that cannot be read."""
    given = {name: arguments[name] for name in OF_VALUES if arguments.get(name) is not None}
    try:
        store = _first(arguments["path"], arguments.get("storage_options"))
        found = info(store, arrays or None, device="cpu", **given)
    except (ValueError, RuntimeError):  # the reader will say it better
        return [None] * max(len(arrays), 1)
    return [report.output_type for report in found.arrays]


def _first(path: str | Sequence[str], options: _core.StorageOptions) -> str:
    """The first of the stores that a reader's `path` means."""
    return _core.expand([path] if isinstance(path, str) else path[:1], options)[0]
