"""Which arrays of which store the variables of an xarray Dataset are, as long as they are whole arrays."""

from __future__ import annotations

import posixpath
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from zarr_dali import _labels

_WAYS_OF_DECODING: tuple[dict[str, Any], ...] = (
    {},
    {"decode_times": False},
    {"decode_timedelta": True},
    {"decode_timedelta": False},
    {"mask_and_scale": False},
    {"decode_cf": False},
)
"""Arguments of `xarray.open_zarr` with which a coordinate has other labels."""
_DECODED_BY = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned")
"""Attributes that xarray moves to the encoding of a variable that it decodes."""


@dataclass(frozen=True)
class Opened:
    """Arrays in one group of one store."""

    store: Any
    group: str
    arrays: list[str]
    names: list[str]
    is_decoded: bool


def arrays_of(data: Any, wanted: Sequence[str] = ()) -> Opened:
    """The arrays behind the variables of a Dataset, or behind a DataArray.

    Args:
        data: The Dataset or DataArray.
        wanted: The variables that are meant, if they are all there; others need not be arrays.

    Raises:
        ValueError: A variable is no whole array of a Zarr store, or the variables are of several groups.
    """
    # Not by class, so that xarray need not be imported.
    if hasattr(data, "data_vars"):
        names = [str(name) for name in data.data_vars]
        names = list(dict.fromkeys(wanted)) if wanted and set(wanted) <= set(names) else names
        variables = {name: data[name] for name in names}
    else:
        variables = {str(data.name): data}
    if not variables:
        raise ValueError("path: the Dataset has no data variables; give a path or URL")
    arrays = {name: _array_of(name, variable) for name, variable in variables.items()}
    paths = [posixpath.split(array.path) for array in arrays.values()]
    first = next(iter(arrays.values()))
    for name, array in arrays.items():
        if array.store != first.store or posixpath.dirname(array.path) != paths[0][0]:
            raise ValueError(
                f"path: the variable {name} is of another store or group than the first; give the paths of "
                "the stores in a list"
            )
    inside = {variable: name for variable, (_, name) in zip(variables, paths)}
    _check_coordinates(data, first.store, paths[0][0], inside)
    decoded = any(_is_decoded(variable) for variable in variables.values())
    return Opened(first.store, paths[0][0], [name for _, name in paths], list(variables), decoded)


def _check_coordinates(data: Any, store: Any, group: str, arrays: Mapping[str, str]) -> None:
    """Checks that labels along the dimensions of variables are those in the store, by which they are looked
    up. What has no labels has none that differ.

    Args:
        data: The Dataset or DataArray.
        store: Where its arrays are.
        group: Their group.
        arrays: The array of each variable.

    Raises:
        ValueError: A coordinate is another, or a dimension is called otherwise and has other labels.
    """
    import xarray as xr

    if not data.indexes:
        return
    differing: list[str] = []
    for options in _WAYS_OF_DECODING:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # xarray said it when the Dataset was opened
            try:
                there = xr.open_zarr(store, group=group or None, chunks=None, **options)
            except Exception:  # whatever xarray says of a variable that it cannot decode in this way
                continue
        found = [
            str(name)
            for variable, array in arrays.items()
            for name, called in zip(_dimensions(data, variable), there.variables[array].dims)
            if not _is_same(data.indexes.get(name), there.indexes.get(called))
        ]
        if not found:
            return
        differing = differing or found
    if differing:
        names = ", ".join(dict.fromkeys(differing))
        raise ValueError(
            f"path: the Dataset has other labels along {names} than its store, by whose labels `select=` "
            "chooses; give the Dataset as xarray.open_zarr returned it, or the path of the store"
        )


def _dimensions(data: Any, variable: str) -> tuple[Any, ...]:
    return data[variable].dims if hasattr(data, "data_vars") else data.dims


def _is_same(index: Any, other: Any) -> bool:
    """Whether labels of a Dataset's dimension are those in the store. Without an index there are none."""
    if index is None:
        return True
    if other is None:
        return bool((index == np.arange(len(index))).all())
    # Times of another type are the same times.
    return index.equals(other) or _labels.as_list(index) == _labels.as_list(other)


def _is_decoded(variable: Any) -> bool:
    return any(name in variable.encoding and name not in variable.attrs for name in _DECODED_BY)


def _array_of(name: str, variable: Any) -> Any:
    """The array of zarr-python that a variable reads."""
    data = variable.variable._data
    if hasattr(data, "dask"):
        data = _behind_dask(name, data)
    while True:
        key = getattr(data, "key", None)
        if key is not None and not _is_whole(key, data.array.shape):
            _refuse(name, "was selected from")
        inner = getattr(data, "array", None)
        if inner is None:
            inner = getattr(data, "_array", None)
        if inner is None:
            break
        data = inner
        if type(data).__module__.partition(".")[0] == "zarr":
            break
    if type(data).__module__.partition(".")[0] != "zarr" or not hasattr(data, "store_path"):
        _refuse(name, f"is not read from a Zarr store ({type(data).__name__}), but computed or in memory")
    if tuple(variable.shape) != tuple(data.shape):
        _refuse(name, f"has the shape {tuple(variable.shape)}, but its array {tuple(data.shape)}")
    return data


def _behind_dask(name: str, data: Any) -> Any:
    """What the chunks of a dask array are taken from, if they are handed on as they are."""
    layers = data.dask.layers
    opened = layers.get(f"original-{data.name}")
    if opened is None or set(layers) != {data.name, f"original-{data.name}"}:
        _refuse(name, "is computed by dask, or joined from several stores")
    (whole,) = dict(opened).values()
    return getattr(whole, "value", whole)


def _is_whole(key: Any, shape: tuple[int, ...]) -> bool:
    parts = getattr(key, "tuple", key)
    return len(parts) == len(shape) and all(
        isinstance(part, slice) and part.indices(extent) == (0, extent, 1)
        for part, extent in zip(parts, shape)
    )


def _refuse(name: str, why: str) -> NoReturn:
    raise ValueError(
        f"path: the variable {name} of the Dataset {why}; give the Dataset as xarray.open_zarr returned it, "
        "or the path of its store (of several a list of paths), and choose with `select=`"
    )
