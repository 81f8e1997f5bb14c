"""Which arrays of which store the variables of an xarray Dataset are, as long as they are whole arrays."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, NoReturn

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


def arrays_of(data: Any) -> Opened:
    """The arrays behind the variables of a Dataset, or behind a DataArray.

    Raises:
        ValueError: A variable is no whole array of a Zarr store, or the variables are of several groups.
    """
    # Not by class, so that xarray need not be imported.
    if hasattr(data, "data_vars"):
        variables = {str(name): data[name] for name in data.data_vars}
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
    _check_coordinates(data, first.store, paths[0][0])
    decoded = any(_is_decoded(variable) for variable in variables.values())
    return Opened(first.store, paths[0][0], [name for _, name in paths], list(variables), decoded)


def _check_coordinates(data: Any, store: Any, group: str) -> None:
    """Raises ValueError where a coordinate is another than in the store, by which labels are looked up."""
    import xarray as xr

    if not data.indexes:
        return
    there = xr.open_zarr(store, group=group or None, chunks=None)
    for name, index in data.indexes.items():
        known = there.indexes.get(name)
        # Times that were not decoded are numbers.
        if known is not None and _kind(known) == _kind(index) and not index.equals(known):
            raise ValueError(
                f"path: the coordinate {name} of the Dataset is another than in its store, by whose labels "
                "`select=` chooses; give the Dataset as xarray.open_zarr returned it, or the store's path"
            )


def _kind(index: Any) -> str:
    return "number" if index.dtype.kind in "iuf" else index.dtype.kind


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
            _refuse(name, "was selected from, which `select=` does here")
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
        "or the path of its store"
    )
