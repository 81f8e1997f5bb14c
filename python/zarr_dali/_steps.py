"""Steps along a dimension: offsets given in time, and gaps that samples may reach over.

Coordinates are looked at here and nowhere else, as xarray decodes them, which knows units, calendars and
times. The core gets the places of gaps (`breaks`), never labels.
"""

from __future__ import annotations

import datetime
import numbers
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dali import _values

if TYPE_CHECKING:
    import pandas as pd

GAPS = ("error", "skip", "allow")
UNUSUAL = 1.5
"""Steps that are more than this many usual spacings apart have a gap between them. Months differ by less."""


@dataclass(frozen=True)
class Line:
    """A dimension of a store, or of joined stores, as far as samples are taken from it."""

    name: str
    index: pd.Index | None
    """Its coordinate."""
    start: int
    end: int
    store: str = ""
    """Which store it is, of several."""
    is_first: bool = True
    """Whether it is the first dimension."""
    begins: tuple[int, ...] = ()
    """Of joined stores: the index at which each but the first begins."""

    @property
    def title(self) -> str:
        return f"the first dimension, {self.name}," if self.is_first else f"the dimension {self.name}"

    @property
    def labels(self) -> Any:
        return () if self.index is None else self.index[self.start : self.end]

    @property
    def differences(self) -> np.ndarray | None:
        """From each label to the next, times in nanoseconds; None where labels have no differences."""
        import pandas as pd

        if self.index is None:
            return None
        labels = np.asarray(self.labels)
        if len(labels) < 2:
            return np.empty(0, "int64")
        if labels.dtype.kind in "iuf":
            return np.diff(labels.astype("float64"))
        try:
            # Times of calendars beside the usual one are objects, as are their differences.
            found = np.diff(labels)
            is_time = found.dtype.kind == "m" or isinstance(found[0], datetime.timedelta)
            return pd.TimedeltaIndex(found).as_unit("ns").asi8 if is_time else None
        except (TypeError, ValueError, OverflowError):
            return None

    @property
    def is_of_times(self) -> bool:
        """Whether the coordinate holds points in time, or time spans."""
        return self.differences is not None and np.asarray(self.labels).dtype.kind not in "iuf"

    def text(self, at: int, usual: float) -> str:
        """What is between the label at this place of the range and the one behind it."""
        import pandas as pd

        step, usual_step = self.differences[at], usual
        if self.is_of_times:
            step, usual_step = pd.Timedelta(int(step)), pd.Timedelta(int(usual))
        store = f" of {self.store}" if self.store else ""
        return (
            f"the coordinate {self.name}{store} goes on by {step} from {self.labels[at]} "
            f"(index {self.start + at}) to {self.labels[at + 1]}, where {usual_step} is usual"
        )


def are_several(window: Sequence[int] | int | None, offsets: Any) -> bool:
    """Whether a sample has more than one step of a dimension; `window` begins with that dimension."""
    if offsets is not None:
        return len(set(listed(offsets))) > 1
    if window is None:
        return False
    return next(iter(extents(window)), 1) > 1


def extents(window: Any) -> list[int]:
    """The extents of a window, which a number alone is of the first dimension.

    Raises:
        TypeError: They are no whole numbers.
    """
    values = np.asarray(window).tolist() if hasattr(window, "__array__") else window
    values = [values] if isinstance(values, (numbers.Number, str, bytes)) else values
    if not isinstance(values, Iterable) or isinstance(values, (Mapping, Set)):
        raise TypeError(f"window is {window!r}, but has to be a list of whole numbers")
    return [_values.whole("window", value) for value in values]


def resolve(
    lines: Sequence[Line], offsets: Any, gaps: str | None, several: bool
) -> tuple[list[int] | None, list[list[int]]]:
    """Offsets as numbers of indices, and for each line the indices that no sample may reach over.

    Raises:
        ValueError: Offsets that are no time spans, or that the coordinate has no steps for; and gaps where
            none are allowed.
    """
    if gaps is not None:
        _values.one_of("gaps", gaps, GAPS)
    nothing: list[list[int]] = [[] for _ in lines]
    offsets = None if offsets is None else listed(offsets)
    spans = [offset for offset in offsets or [] if not is_number(offset)]
    in_time = spans[0] if spans else None
    steps = offsets
    if spans:
        usual = _spacing(in_time, lines)
        steps = [_in_steps(offset, usual, lines[0].name) for offset in offsets]
        found = [np.flatnonzero(line.differences != usual) for line in lines]
        gaps = gaps or "error"
    else:
        steps = None if steps is None else [int(step) for step in steps]
        if gaps == "allow" or not (several or gaps):
            return steps, nothing
        if problem := next(filter(None, map(_problem, lines)), None):
            if gaps is None:
                return steps, nothing
            raise ValueError(f'gaps="{gaps}": {problem}')
        usual = _usual(lines)
        found = [_unusual(line, usual) for line in lines]
    if gaps in ("error", None) and any(map(len, found)):
        _say(lines, found, usual, gaps, in_time)
    if gaps != "skip":
        return steps, nothing
    return steps, [(line.start + at + 1).tolist() for line, at in zip(lines, found)]


def _say(
    lines: Sequence[Line], found: Sequence[np.ndarray], usual: float, gaps: str | None, in_time: Any
) -> None:
    """Refuses gaps, or warns of them."""
    line, places = next((line, places) for line, places in zip(lines, found) if len(places))
    text = line.text(int(places[0]), usual)
    if (count := sum(map(len, found))) > 1:
        text += f", the first of {count} gaps"
    remedies = 'gaps="skip" leaves out the samples that reach over a gap, and gaps="allow" takes them'
    joints = {line.start + int(place) + 1 for place in places} & set(line.begins)
    if joints:
        where = "there" if line.start + int(places[0]) + 1 in joints else f"at index {min(joints)}"
        remedies += f'; another store begins {where}, and with join="separate" no sample reaches over to it'
    if gaps == "error":
        asked = "" if in_time is None else f"offsets: {in_time!r} is a time span, but "
        raise ValueError(f"{asked}{text}; {remedies}")
    warnings.warn(f"{text}, and samples may reach over it: {remedies}", stacklevel=_outside())


def _outside() -> int:
    """The `stacklevel` of who called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("zarr_dali"):
        frame, level = frame.f_back, level + 1
    return level


def _problem(line: Line) -> str | None:
    """Why no gaps can be found."""
    if line.index is None:
        return f"{line.title} has no coordinate"
    return None if line.differences is not None else f"the coordinate {line.name} holds no numbers or times"


def _usual(lines: Sequence[Line]) -> float:
    """How far apart neighbouring labels usually are; negative where they descend, 0 without any."""
    differences = np.concatenate([line.differences for line in lines])
    return float(np.median(differences)) if differences.size else 0.0


def _unusual(line: Line, usual: float) -> np.ndarray:
    """The places of labels behind which there is a gap."""
    along = line.differences * np.sign(usual)
    return np.flatnonzero((along > UNUSUAL * abs(usual)) | (along <= 0))


def listed(offsets: Any) -> list[Any]:
    """Offsets, of which one may stand alone.

    Raises:
        ValueError: They are neither.
    """
    if hasattr(offsets, "to_numpy"):  # of pandas and xarray
        offsets = offsets.to_numpy()
    if isinstance(offsets, np.ndarray):
        offsets = list(np.ravel(offsets)) if offsets.ndim < 2 else offsets.tolist()
    if isinstance(offsets, Set):
        raise ValueError("offsets: a set has no order; give a list")
    alone = isinstance(offsets, (str, bytes)) or not isinstance(offsets, Iterable)
    found = [offsets] if alone else list(offsets)
    for offset in found:
        if not is_number(offset):
            _time_span(offset)
    return found


def is_number(offset: Any) -> bool:
    return isinstance(offset, numbers.Integral) and not isinstance(offset, (bool, np.timedelta64))


def _in_steps(offset: Any, spacing: int, name: str) -> int:
    import pandas as pd

    if is_number(offset):
        return int(offset)
    span = _time_span(offset).as_unit("ns").value
    if span % spacing:
        raise ValueError(
            f"offsets: {offset!r} is no multiple of {pd.Timedelta(spacing)}, the spacing of the coordinate "
            f"{name}"
        )
    return span // spacing


def _time_span(offset: Any) -> pd.Timedelta:
    import pandas as pd

    if isinstance(offset, (str, datetime.timedelta, np.timedelta64)):
        try:
            span = pd.Timedelta(offset)
        except ValueError as error:
            raise ValueError(
                f"offsets: {offset!r} is no time span ({error}); write it as in -6h or 1D"
            ) from error
        if not pd.isna(span):
            return span
    raise ValueError(f"offsets: {offset!r} is neither a number of steps nor a time span such as -6h")


def _spacing(offset: Any, lines: Sequence[Line]) -> int:
    """The nanoseconds that most neighbouring labels are apart."""
    asked, name = f"offsets: {offset!r} is a time span", lines[0].name
    if any(line.index is None for line in lines):
        raise ValueError(f"{asked}, but {lines[0].title} has no coordinate; give numbers of steps")
    if all(len(line.labels) < 2 for line in lines):
        raise ValueError(
            f"{asked}, but only one index of {name} is selected, so that there is no spacing; give numbers "
            "of steps"
        )
    if any(line.differences is None or not line.is_of_times for line in lines):
        raise ValueError(f"{asked}, but the coordinate {name} holds no times; give numbers of steps")
    spans, counts = np.unique(np.concatenate([line.differences for line in lines]), return_counts=True)
    spacing = int(spans[np.argmax(counts)])
    if not spacing:
        repeated = next(_repeats(lines))
        raise ValueError(f"{asked}, but the coordinate {name} repeats {repeated}; give numbers of steps")
    return spacing


def _repeats(lines: Sequence[Line]) -> Iterator[Any]:
    for line in lines:
        yield from (line.labels[at] for at in np.flatnonzero(line.differences == 0))
