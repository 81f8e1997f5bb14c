"""Dimensions of arrays with the labels of their coordinates, and which indices a label means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dali import _pieces, _steps

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


_MOST_SHOWN = 5
"""Indices that a message names."""


class AbsentError(ValueError):
    """A label that a coordinate has not."""


def import_xarray() -> None:
    try:
        import xarray  # noqa: F401
        import zarr  # noqa: F401  what xarray reads stores with
    except ModuleNotFoundError as error:
        raise ImportError(
            f"selecting by label needs xarray and zarr, and {error.name} is missing: "
            'pip install "zarr-dali[labels]"'
        ) from error


@dataclass(frozen=True)
class Coordinates:
    """What is known about the dimensions of some arrays."""

    dimensions: tuple[str, ...]
    """Of the reference array: the first of those with the most dimensions."""
    sizes: dict[str, int]
    """Of the dimensions of all arrays, in this order."""
    indexes: dict[str, pd.Index]
    """Of the dimensions that have a coordinate."""
    arrays: dict[str, tuple[str, ...]]
    """Dimensions of each array."""
    longitudes: frozenset[str] = frozenset()
    """The dimensions whose coordinate holds longitudes."""
    names: Mapping[str, pd.Index] = field(default_factory=dict)
    """Of the indices of dimensions without a coordinate, as far as there are any: channels."""
    begins: tuple[int, ...] = ()
    """Of joined stores: where along the first dimension each but the first begins."""

    @classmethod
    def joined(cls, stores: Sequence[tuple[str, Coordinates]]) -> Coordinates:
        """Of stores that are joined along the first dimension."""
        parts = [part for _, part in stores]
        whole = parts[0]
        if len(parts) == 1:
            return whole
        check_dimensions(stores)
        first, *others = whole.sizes
        for store, part in stores[1:]:
            for name in others:
                mine, its = whole.indexes.get(name), part.indexes.get(name)
                if (mine is None) != (its is None) or (mine is not None and not mine.equals(its)):
                    raise ValueError(
                        f"path: the coordinate {name} in {store} differs from "
                        "that in the first store; only stores on the same grid can be joined"
                    )
        sizes = whole.sizes | {first: sum(part.sizes[first] for part in parts)}
        indexes = {name: whole.indexes[name] for name in others if name in whole.indexes}
        if all(first in part.indexes for part in parts):
            indexes[first] = whole.indexes[first].append([part.indexes[first] for part in parts[1:]])
        begins = tuple(np.cumsum([part.sizes[first] for part in parts])[:-1].tolist())
        return cls(whole.dimensions, sizes, indexes, whole.arrays, whole.longitudes, whole.names, begins)

    def along(self, name: str) -> xr.DataArray:
        """The positions along a dimension, to be selected from."""
        import xarray as xr

        if name not in self.sizes:
            raise ValueError(f"{name}: the arrays have no dimension of that name, only {tuple(self.sizes)}")
        index = self.indexes.get(name)
        positions = np.arange(self.sizes[name])
        return xr.DataArray(positions, dims=[name], coords=None if index is None else {name: index})

    def positions(self, name: str, label: Any) -> np.ndarray:
        """What a label selects along a dimension."""
        import pandas as pd

        along = self.along(name)
        label = list(label) if isinstance(label, tuple) else label
        label = self.named(name, label)
        try:
            return along.sel({name: label}).values
        except pd.errors.InvalidIndexError as error:
            self.refuse_repeated(name, label)
            raise ValueError(
                f"{name}={label!r} is no label, and no slice or list of labels: {self.extent(name)}"
            ) from error
        except (KeyError, IndexError) as error:
            self.refuse_repeated(name, label)
            absent, known = self._absent(name, label)
            raise AbsentError(f"{name}={label!r} is not there{absent}: {self.extent(name)}{known}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}={label!r} cannot be looked up ({error}): {self.extent(name)}"
            ) from error

    def _absent(self, name: str, label: Any) -> tuple[str, str]:
        """Which of several labels are not there, and which are nearest to those that are not, in words."""
        index = self.indexes.get(name)
        if index is None or isinstance(label, slice):
            return "", ""
        labels = [label] if is_alone(label) else list(label)
        try:
            # Of times also as text.
            values = np.asarray(labels).astype(index.dtype) if index.dtype.kind == "M" else labels
            missing = np.flatnonzero(index.get_indexer_for(values) < 0)
        except (TypeError, ValueError):
            return "", ""
        absent = [labels[at] for at in missing]
        if not absent:
            return "", ""
        # Of longitudes another remark has the nearest one.
        near = "" if name in self.longitudes else some(_nearest(index, [values[at] for at in missing]))
        known = f", among them {near}" if near else ""
        if len(absent) == len(labels):
            return "", known
        return f" ({some(absent)} {'is' if len(absent) == 1 else 'are'} missing)", known

    def refuse_repeated(self, name: str, label: Any) -> None:
        """Raises ValueError if the coordinate has a label several times that a slice or a list asks for."""
        import pandas as pd

        index = self.indexes.get(name)
        ends = [label.start, label.stop] if isinstance(label, slice) else [] if is_alone(label) else label
        for one in ends:
            try:
                found = np.arange(self.sizes[name])[index.get_loc(one)]
            except (AttributeError, KeyError, TypeError, ValueError, pd.errors.InvalidIndexError):
                continue
            self._refuse_repeated(name, label, np.atleast_1d(found))

    def _refuse_repeated(self, name: str, label: Any, found: np.ndarray) -> None:
        """The same for indices that were found."""
        index = self.indexes.get(name)
        repeated = [] if index is None else np.flatnonzero(index.duplicated(keep=False)[found])
        if not len(repeated):
            return
        value = index[found[repeated[0]]]
        places = np.flatnonzero(index == value)
        raise ValueError(
            f"{name}={label!r}: the label {value} occurs {len(places)} times in the coordinate {name}, at "
            f"the indices {some(places)}; write the coordinate with each label once, or give indices in "
            "place of labels, such as `roi_start` and `roi_end`"
        )

    def named(self, name: str, label: Any) -> Any:
        """A label with positions in place of the names of channels."""
        names = self.names.get(name)
        if names is None or not isinstance(label, (str, list, tuple)):
            return label
        found = []
        for one in [label] if isinstance(label, str) else label:
            at = np.flatnonzero(names == one) if isinstance(one, str) else [one]
            if len(at) != 1:
                many = f"is the name of {len(at)} indices" if len(at) else "is not there"
                raise AbsentError(f"{name}={one!r} {many}: the names along {name} are {', '.join(names)}")
            found.append(at[0])
        return found[0] if isinstance(label, str) else found

    def selected(
        self, labels: Mapping[str, Any], covered: int
    ) -> tuple[tuple[int, int], list[tuple[int, int]], dict[str, np.ndarray]]:
        """What labels select: the range of the first dimension, and what `region` says of all; `covered`: how
        many dimensions the window covers."""
        first = self.dimensions[0]
        along_first = (0, self.sizes[first])
        if first in labels:
            along_first = self.range(first, labels[first])
        found = {name: self.found(name, label) for name, label in labels.items() if name != first}
        if not labels:
            return along_first, [], {}
        return along_first, *self.region(along_first, found, alone=first in labels, covered=covered)

    def line(self, start: int, end: int, store: str = "") -> _steps.Line:
        """A range of the first dimension."""
        first = self.dimensions[0]
        return _steps.Line(first, self.indexes.get(first), start, end, store, begins=self.begins)

    def line_along(
        self,
        at: int,
        region: Sequence[tuple[int, int]],
        pieces: Mapping[str, np.ndarray],
        store: str = "",
    ) -> _steps.Line:
        """What is selected of dimension number `at`, which is not the first."""
        name = self.dimensions[at]
        index, size = self.indexes.get(name), self.sizes[name]
        if name in pieces:  # indices count in these
            index, size = None if index is None else index[pieces[name]], len(pieces[name])
        start, end = region[at] if at < len(region) else (0, size)
        return _steps.Line(name, index, start, end, store, is_first=False)

    def extent(self, name: str) -> str:
        """The index of a dimension in words."""
        index = self.indexes.get(name)
        if index is None:
            return f"{name} has no coordinate, so that positions from 0 to {self.sizes[name] - 1} are meant"
        if len(index) == 0:
            return f"the coordinate {name} is empty"
        order = "in no order"
        if index.is_monotonic_increasing or index.is_monotonic_decreasing:
            order = "ascending" if index.is_monotonic_increasing else "descending"
        return f"the coordinate {name} has {len(index)} values from {index[0]} to {index[-1]}, {order}"

    def found(self, name: str, label: Any) -> np.ndarray:
        """The indices that a label selects along a dimension, in its order."""
        index = self.indexes.get(name)
        parts = [label]
        is_circle = index is not None and name in self.longitudes
        if is_circle:
            parts = _pieces.around(index, label)
        try:
            found = np.concatenate([np.atleast_1d(self.positions(name, part)) for part in parts])
        except AbsentError as error:
            remark = _pieces.remark(index, label) if is_circle else ""
            raise AbsentError(f"{error}{remark}") from error
        asked = f"{name}={label!r}"
        if found.ndim > 1:
            raise ValueError(f"{asked}: labels with more than one dimension select no range of indices")
        if found.size == 0:
            problem = f"{asked} selects nothing: {self.extent(name)}"
            if isinstance(label, slice) and label.start is not None and label.stop is not None:
                problem += "; a slice goes from one end to the other in the order of the coordinate"
            raise AbsentError(problem)
        return found

    def range(self, name: str, label: Any) -> tuple[int, int]:
        """The range of indices that a label selects along the first dimension."""
        found = self.found(name, label)
        if _pieces.is_range(found):
            return int(found[0]), int(found[-1]) + 1
        self._refuse_repeated(name, label, found)
        asked = f"{name}={label!r}"
        steps = np.unique(np.diff(found))
        if steps.size == 1 and steps[0] > 1:
            raise ValueError(
                f"{asked} selects every {steps[0]}th index, but samples are taken along one range: leave "
                "the step out and give the reader `stride` (starts of samples) or `dilation` (steps inside a "
                "sample)"
            )
        if steps.max() < 0:
            raise ValueError(
                f"{asked} selects in the opposite order of the store, which samples along {name} keep: "
                f"select upwards ({self.extent(name)})"
            )
        gap = int(np.flatnonzero(np.diff(found) != 1)[0])
        raise ValueError(
            f"{asked} selects index {found[gap]} and then {found[gap + 1]}, but samples are taken along one "
            "range without gaps: give each range a reader of its own, or leave out steps with `exclude`"
        )

    def region(
        self, first: tuple[int, int], found: dict[str, np.ndarray], *, alone: bool, covered: int
    ) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
        """The ranges of the leading dimensions up to the last that is selected as one range, and the indices
        of all others.

        Ranges are for dimensions that have the same place in all arrays, or if `covered`, how many the window
        covers, are some of these, by whose names the other arrays are cut: windows may lie in them. `alone`
        says that the first dimension is selected, even if no other is.
        """
        ranges = {name: indices for name, indices in found.items() if _pieces.is_range(indices)}
        depth = 1 + max(
            (self.dimensions.index(name) for name in ranges if name in self.dimensions), default=0
        )
        leading = self.dimensions[:depth]
        # Arrays without the first dimension are the same for every sample, and cropped by name; so are the
        # others, but a range of all their places is also one of a reader of some of them.
        sampled = [its for its in self.arrays.values() if self.dimensions[0] in its]
        alike = all(its[:depth] == leading for its in sampled)
        inside = any(name in self.dimensions[:covered] for name in ranges)
        if not (alike or inside) or not set(ranges) <= set(leading):
            ranges, leading = {}, self.dimensions[:1]
        pieces = {name: indices for name, indices in found.items() if name not in ranges}
        if not ranges and not alone:
            return [], pieces
        # Indices count in what is selected.
        sizes = self.sizes | {name: len(indices) for name, indices in pieces.items()}
        bounds = {name: (int(indices[0]), int(indices[-1]) + 1) for name, indices in ranges.items()}
        return [first, *(bounds.get(name, (0, sizes[name])) for name in leading[1:])], pieces

    def excluded(self, exclude: Any) -> np.ndarray:
        """The indices along the first dimension that are to be left out, ascending."""
        import xarray as xr

        name = self.dimensions[0]
        if isinstance(exclude, xr.DataArray) and exclude.dtype == bool:
            return self._masked(exclude)
        if isinstance(exclude, xr.DataArray):
            exclude = exclude.values if exclude.ndim else exclude.values[()]
        if is_alone(exclude):
            found = [self.positions(name, exclude)]
        else:
            values = list(exclude)
            if values and all(isinstance(value, (bool, np.bool_)) for value in values):
                return self._masked(xr.DataArray(values, dims=[name]))
            # Texts and slices stand for many indices each, other labels can be looked up together, unless the
            # coordinate has some several times.
            kinds = (str, slice) if name not in self.indexes or self.indexes[name].is_unique else (object,)
            alone = [value for value in values if isinstance(value, kinds)]
            found = [self.positions(name, value) for value in alone]
            together = [value for value in values if not isinstance(value, kinds)]
            if together:
                found.append(self.positions(name, together))
        return np.unique(np.concatenate([np.ravel(part) for part in found] or [np.empty(0, int)]))

    def _masked(self, mask: xr.DataArray) -> np.ndarray:
        name, size = self.dimensions[0], self.sizes[self.dimensions[0]]
        if mask.dims != (name,):
            raise ValueError(
                f"exclude: the mask has the dimensions {mask.dims}, but has to be over {name} alone"
            )
        index = self.indexes.get(name)
        if index is not None and name in mask.indexes:
            self.refuse_repeated(name, mask.indexes[name][mask.values])
            found = index.get_indexer(mask.indexes[name][mask.values])
            if (found < 0).any():
                label = mask.indexes[name][mask.values][int(np.argmax(found < 0))]
                raise ValueError(f"exclude: {name}={label} of the mask is not there: {self.extent(name)}")
            return np.unique(found)
        if mask.size != size:
            raise ValueError(
                f"exclude: the mask has {mask.size} values without labels, but {name} has {size} indices"
            )
        return np.flatnonzero(mask.values)


def _nearest(index: pd.Index, labels: Sequence[Any]) -> list[Any]:
    """The labels of a coordinate on both sides of each other, in its order; the first ones of texts."""
    if index.dtype.kind not in "iufM" or index.isna().all():
        return list(index[:_MOST_SHOWN])
    values = np.sort(index.dropna().values)
    wanted = np.asarray(labels)
    if wanted.dtype.kind not in ("M" if values.dtype.kind == "M" else "iuf"):
        return []
    found = np.searchsorted(values, wanted)
    near = np.unique(values[np.clip(np.concatenate([found - 1, found]), 0, len(values) - 1)])
    return list(index[index.isin(near)])


def some(labels: Sequence[Any]) -> str:
    """The first ones of labels, for a message."""
    return ", ".join(map(str, labels[:_MOST_SHOWN])) + (", ..." if len(labels) > _MOST_SHOWN else "")


def is_alone(exclude: Any) -> bool:
    """Whether it is one label or slice, and not several."""
    several = isinstance(exclude, Iterable) and getattr(exclude, "ndim", 1) > 0
    return isinstance(exclude, (str, bytes, slice)) or not several


def check_dimensions(stores: Sequence[tuple[str, Coordinates]]) -> None:
    """Refuses stores whose arrays have other dimensions than those of the first one."""
    whole = stores[0][1]
    for store, part in stores[1:]:
        if part.dimensions != whole.dimensions:
            raise ValueError(
                f"path: the dimensions in {store} are {part.dimensions}, in the first store "
                f"{whole.dimensions}; only stores of the same kind can be joined"
            )
