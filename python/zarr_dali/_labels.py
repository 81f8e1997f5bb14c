"""Ranges along dimensions, by labels of coordinates or by positions.

Labels are those of xarray's `.sel`: both ends belong to a range, and a year means all of it. Positions are
those of a Python slice. What could be either is refused, so that neither is taken for the other.
"""

from __future__ import annotations

import datetime
import numbers
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarr_dali import _pieces
from zarr_dali._coordinates import Coordinates, import_xarray

if TYPE_CHECKING:
    import pandas as pd
    import zarr

_TIME = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?)?)?Z?")
"""Times as ISO 8601 writes them, in whole or in part."""
_HOW = "labels are those of the coordinate, and positions are given by index_range"


class Coordinate(NamedTuple):
    """The labels of a dimension."""

    index: pd.Index
    is_longitude: bool = False
    """Whether they are degrees of a circle."""


@dataclass(frozen=True)
class Ranges:
    """What is asked for of some dimensions, by their names."""

    labels: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, slice] = field(default_factory=dict)

    @classmethod
    def of(
        cls, labels: Mapping[str, Any] | None, positions: Mapping[str, slice | Sequence[int | None]] | None
    ) -> Ranges:
        """From the arguments `range` and `index_range`, where a pair stands for a slice.

        Raises:
            ValueError: They contradict each other, or one is none.
        """
        labels, positions = dict(labels or {}), dict(positions or {})
        for name in labels:
            if name in positions:
                raise ValueError(f"range, index_range: both say what is meant of {name}; give one of them")
        return cls(
            {name: _as_slice(one, name, "range") for name, one in labels.items()},
            {name: _of_positions(one, name) for name, one in positions.items()},
        )

    def __iter__(self) -> Any:
        return iter([*self.labels, *self.positions])

    def bounds(self, name: str, size: int, coordinate: Callable[[], Coordinate | None]) -> tuple[int, int]:
        """The range of positions that is meant along a dimension.

        Args:
            name: The dimension.
            size: Its extent.
            coordinate: Reads its coordinate, if it has one.

        Raises:
            ValueError: It holds nothing, is no range of neighbours, or labels and positions could be meant.
        """
        if name in self.positions:
            return _positions(self.positions[name], name, size, "index_range")
        if name not in self.labels:
            return 0, size
        label, found = self.labels[name], coordinate()
        if found is None:
            if not _are_positions(label):
                raise ValueError(
                    f"range: {_shown(name, label)}, but {name} has no coordinate; give positions from 0 to "
                    f"{size - 1} by index_range"
                )
            return _positions(_as_positions(label), name, size, "range")
        return _labelled(label, name, size, found)


def parse(text: str) -> slice | str:
    """A range as the command line has it: `START:STOP`, either of which may be missing, or one label.

    Colons in times belong to them.

    Raises:
        ValueError: It is none.
    """
    if ":" not in text or _TIME.fullmatch(text):
        if not text:
            raise ValueError("it is empty")
        return text
    found = []
    for at in (match.start() for match in re.finditer(":", text)):
        ends = text[:at], text[at + 1 :]
        if all(":" not in end or _TIME.fullmatch(end) for end in ends):
            found.append(slice(*(end or None for end in ends)))
    if len(found) != 1:
        raise ValueError("which colon is between the two ends is not clear")
    return found[0]


def read_coordinate(array: zarr.Array, name: str, attributes: Mapping[str, Any]) -> Coordinate:
    """The labels in a coordinate, decoded by xarray; all of them are read.

    Raises:
        ValueError: They cannot be decoded.
    """
    import_xarray()
    import xarray as xr

    # A coordinate has a label everywhere, whatever its fill value is.
    kept = {key: value for key, value in attributes.items() if key not in ("_FillValue", "missing_value")}
    try:
        coordinate = xr.Dataset(coords={name: ((name,), np.asarray(array[...]), kept)})
        return Coordinate(xr.decode_cf(coordinate).indexes[name], _pieces.is_longitude(name, attributes))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"range: the coordinate {name} cannot be decoded ({error}); repair it, or give positions by "
            "index_range"
        ) from error


def coordinate_of(
    find: Callable[[str], zarr.Array | None], array: str, name: str, size: int
) -> zarr.Array | None:
    """The coordinate of a dimension: an array of its name and extent in the group of an array, or above it.

    Args:
        find: Gives the array at a path, if there is one.
        array: The path of the array.
        name: Its dimension.
        size: The extent of that.
    """
    folder = array
    while folder:
        folder = posixpath.dirname(folder)
        found = find(posixpath.join(folder, name))
        if found is not None and found.shape == (size,):
            return found
    return None


def as_list(index: pd.Index) -> list[Any]:
    """Labels as JSON has them: numbers, or texts, of times as ISO 8601 writes them."""
    if index.dtype.kind in "iufb":
        return index.tolist()
    return [one.isoformat() if hasattr(one, "isoformat") else str(one) for one in index]


def _as_slice(part: Any, name: str, argument: str) -> Any:
    if isinstance(part, (list, tuple)):
        if len(part) != 2:
            raise ValueError(f"{argument}: {name}={part!r} is neither a slice nor (start, stop)")
        part = slice(*part)
    if isinstance(part, slice) and part.step not in (None, 1):
        raise ValueError(
            f"{argument}: {name} has a step of {part.step}; only ranges of neighbours can be taken"
        )
    return part


def _of_positions(part: Any, name: str) -> slice:
    found = _as_slice(part, name, "index_range")
    if isinstance(found, numbers.Integral):
        found = slice(int(found), int(found) + 1 or None)
    ends = [found.start, found.stop] if isinstance(found, slice) else [part]
    if not all(end is None or isinstance(end, numbers.Integral) for end in ends):
        raise ValueError(f"index_range: {name}={part!r} is neither a slice nor (start, stop) of positions")
    return found


def _positions(part: slice, name: str, size: int, argument: str) -> tuple[int, int]:
    start, stop, _ = part.indices(size)
    if stop <= start:
        raise ValueError(f"{argument}: {_shown(name, part)} holds none of the {size} indices")
    return start, stop


def _labelled(label: Any, name: str, size: int, coordinate: Coordinate) -> tuple[int, int]:
    """The positions of labels.

    Raises:
        ValueError: There are none, or positions could be meant as well.
    """
    index, asked = coordinate.index, f"range: {_shown(name, label)}"
    coordinates = Coordinates((name,), {name: size}, {name: index}, {})
    by_position = _by_position(label, name, size)
    hint = f"; {_HOW}" if by_position else ""
    if _is_time(index):
        wrong = [end for end in _ends(label) if not _is_time_label(end)]
        if wrong:
            raise ValueError(
                f"{asked}: {wrong[0]!r} is no time, which {name} holds ({coordinates.extent(name)}); write "
                f"times as 2010, 2010-01-31 or 2010-01-31T06:00, as text; {_HOW}"
            )
    elif index.dtype.kind in "iufb":
        label = _numbers_of(label)
    parts = _pieces.around(index, label) if coordinate.is_longitude else [label]
    try:
        found = np.sort(np.concatenate([np.atleast_1d(coordinates.positions(name, part)) for part in parts]))
    except ValueError as error:
        raise ValueError(f"range: {error}{hint}") from error
    if found.size == 0:
        turned = ""
        if isinstance(label, slice) and None not in (label.start, label.stop):
            turned = "; a range goes from one end to the other in the order of the coordinate"
        raise ValueError(f"{asked} selects nothing: {coordinates.extent(name)}{turned}{hint}")
    if len(parts) > 1 and found.size < size:
        west, east = (_shown(name, part) for part in parts)
        raise ValueError(
            f"{asked} crosses the end of the coordinate ({coordinates.extent(name)}), and a range is one "
            f"piece: take {west} and {east} one after the other"
        )
    if found.ndim > 1 or (np.diff(found) != 1).any():
        raise ValueError(f"{asked} selects more than one range of neighbours; give one")
    start, stop = int(found[0]), int(found[-1]) + 1
    if by_position and index.dtype.kind in "iuf" and by_position != (start, stop):
        raise ValueError(
            f"{asked} could mean labels (positions {start} to {stop - 1}) or positions (labels "
            f"{index[by_position[0]]} to {index[by_position[1] - 1]}): write labels with a decimal point, "
            f"{_shown(name, _decimal(label))}, or give positions by index_range"
        )
    return start, stop


def _by_position(label: Any, name: str, size: int) -> tuple[int, int] | None:
    """What a label would mean as positions, if it could."""
    if not _are_positions(label):
        return None
    part = _as_positions(label)
    if any(end is not None and not -size <= end <= size for end in (part.start, part.stop)):
        return None
    start, stop, _ = part.indices(size)
    return (start, stop) if start < stop else None


def _ends(label: Any) -> list[Any]:
    ends = [label.start, label.stop] if isinstance(label, slice) else [label]
    return [end for end in ends if end is not None]


def _mapped(label: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(label, slice):
        return slice(*(end if end is None else function(end) for end in (label.start, label.stop)))
    return function(label)


def _numbers_of(label: Any) -> Any:
    """Numbers in the place of texts that are some."""
    return _mapped(label, _number)


def _number(end: Any) -> Any:
    for kind in (int, float) if isinstance(end, str) else ():
        try:
            return kind(end)
        except ValueError:
            continue
    return end


def _are_positions(label: Any) -> bool:
    ends = [_number(end) for end in _ends(label)]
    return all(isinstance(end, numbers.Integral) and not isinstance(end, (bool, np.bool_)) for end in ends)


def _as_positions(label: Any) -> slice:
    part = _numbers_of(label)
    return part if isinstance(part, slice) else slice(part, part + 1 or None)


def _decimal(label: Any) -> Any:
    return _mapped(label, lambda end: float(_number(end)))


def _is_time(index: pd.Index) -> bool:
    return index.dtype.kind == "M" or type(index).__name__ == "CFTimeIndex"


def _is_time_label(end: Any) -> bool:
    if isinstance(end, str):
        return _TIME.fullmatch(end) is not None
    return isinstance(end, (datetime.date, np.datetime64)) or hasattr(end, "calendar")


def _shown(name: str, label: Any) -> str:
    if not isinstance(label, slice):
        return f"{name}={label}"
    return f"{name}=" + ":".join("" if end is None else str(end) for end in (label.start, label.stop))
