"""The arguments of a loader in the words of the reader."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from typing import Any

import numpy as np

from zarr_dali import _core, _loader_checks, _offsets, _select, _steps, _values
from zarr_dali._coordinates import is_alone
from zarr_dali._select import Opened


def with_selection(
    path: str | list[str],
    arrays: list[str],
    labels: Mapping[str, Any] | None,
    arguments: dict[str, Any],
    gaps: str | None,
    opened: Opened,
) -> dict[str, Any]:
    """The reader's arguments, with indices for what labels and time spans mean.

    `opened` reads the coordinates of stores.
    """
    asked: tuple[str, ...] = ("offsets", "exclude")
    # Before coordinates are read, and gaps between stores are found that nobody joins.
    if arguments.get("join") is not None:
        _values.one_of("join", arguments["join"], _select.JOINS)
    if gaps is not None:
        _values.one_of("gaps", gaps, _steps.GAPS)
    if labels is None:
        asked = tuple(name for name in asked if not _is_of_indices(arguments.get(name)))
    else:
        _loader_checks.check_labels(labels, arguments)
    if arguments.get("dimension_offsets") and isinstance(arguments.get("offsets"), Mapping):
        raise ValueError("offsets by dimension and dimension_offsets: give one of them")
    if not asked and isinstance(arguments.get("offsets"), Mapping):
        return _by_dimension(path, arrays, arguments, gaps, opened)
    if labels is None and not asked:
        arguments = arguments | {"path": path}
        return arguments | _without_gaps(arrays, arguments, gaps, opened)
    return _selected(path, arrays, labels or {}, arguments, gaps, {"window", "offsets", *asked}, opened)


def _selected(
    path: str | list[str],
    arrays: list[str],
    labels: Mapping[str, Any],
    arguments: Mapping[str, Any],
    gaps: str | None,
    computed: set[str],
    opened: Opened,
) -> dict[str, Any]:
    """The reader's arguments, of which `select` makes those that are `computed`."""
    region = {name: arguments.get(name) for name in ("roi_start", "roi_end", "per_store")}
    chosen = _select.within(
        path,
        arrays or None,
        dict(labels),
        region,
        arguments.get("join", "concat"),
        arguments.get("follow_links", True),
        arguments.get("storage_options"),
        **{name: arguments.get(name) for name in computed},
        gaps=gaps,
        opened=opened,
    )
    others = {name: value for name, value in arguments.items() if name not in computed}
    for name in ("breaks", "per_store", "dimension_offsets"):
        if name in chosen and others.get(name) is not None:
            raise ValueError(f"{name} and labels, time spans or gaps: give one of them")
    return others | {name: value for name, value in chosen.items() if name != "arrays"}


def _by_dimension(
    path: str | list[str],
    arrays: list[str],
    arguments: Mapping[str, Any],
    gaps: str | None,
    opened: Opened,
) -> dict[str, Any]:
    """The reader's arguments for a dictionary of offsets in steps, with gaps as `_without_gaps` has them."""
    plain = _offsets.reader_arguments(arguments) | {"path": path}
    if gaps == "allow" or (gaps is None and arguments.get("breaks") is not None):
        return plain
    try:
        return _selected(path, arrays, {}, arguments, gaps, {"window", "offsets"}, opened)
    except (ImportError, TypeError, ValueError, RuntimeError):
        # As there.
        if gaps is not None:
            raise
        return plain


def _without_gaps(
    arrays: list[str], arguments: Mapping[str, Any], gaps: str | None, opened: Opened
) -> dict[str, Any]:
    """The reader's arguments that keep samples from reaching over gaps, for a reader of indices."""
    several = _steps.are_several(arguments.get("window"), arguments.get("offsets"))
    if gaps == "allow" or not (several or gaps is not None):
        return {}
    if arguments.get("breaks") is not None:
        if gaps is not None:
            raise ValueError("breaks and gaps: give one of them")
        return {}
    try:
        return _select.breaks_of(arguments["path"], arrays or None, arguments, gaps, opened)
    except (ImportError, TypeError, ValueError, RuntimeError):
        # Nobody asked, and what is wrong with the store the reader says.
        if gaps is not None:
            raise
        return {}


def _is_of_indices(value: Any) -> bool:
    """Whether `offsets` or `exclude` can be the reader's as they are."""
    if isinstance(value, Mapping):
        return _offsets.of_indices(value)
    values = [value] if is_alone(value) else value
    no_index = (bool, np.bool_, np.timedelta64, np.datetime64)
    return value is None or all(
        isinstance(one, numbers.Integral) and not isinstance(one, no_index) for one in values
    )


def stacking(stack: bool | str | None) -> dict[str, bool]:
    """The reader's arguments for `stack`."""
    if isinstance(stack, str):
        if stack != "channels":
            raise ValueError(f'stack is {stack!r}, but has to be True, False or "channels"')
        return {"stack_channels": True}
    return {} if stack is None else {"stack": bool(stack)}


def array_names(arrays: str | Sequence[str] | None) -> list[str]:
    """The names of arrays in their order."""
    if arrays is None or isinstance(arrays, str):
        return [] if arrays is None else [arrays]
    # A set has another order in each process.
    unordered = isinstance(arrays, Set) and not isinstance(arrays, KeysView)
    if unordered or isinstance(arrays, bytes) or not isinstance(arrays, Iterable):
        raise TypeError(f"arrays: has to be a name or a list of names, not {type(arrays).__name__}")
    names = list(arrays)
    for name in names:
        if not isinstance(name, (str, os.PathLike, numbers.Integral)):
            raise TypeError(f"arrays: a name has to be a text, not {type(name).__name__}")
    return [str(name) for name in names]


def plain(value: Any) -> Any:
    """DALI takes numbers from lists only."""
    import torch

    if isinstance(value, (range, Iterator, KeysView, ValuesView)):
        return list(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "mM":  # would be bare numbers
        return list(value) if value.ndim else value
    return value.tolist() if isinstance(value, (np.ndarray, np.generic, torch.Tensor)) else value


def with_text_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The operator takes `storage_options` as JSON, and names of files and folders as text."""
    for name in ("cache_dir", "mask_cache"):
        if isinstance(arguments.get(name), os.PathLike):
            arguments[name] = os.fspath(arguments[name])
    options = arguments.get("storage_options")
    if isinstance(options, Mapping):
        arguments["storage_options"] = _core.as_json(options)
    return arguments
