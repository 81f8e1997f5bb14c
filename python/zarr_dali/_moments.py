"""Mean and standard deviation of values that come region by region, in float64, as a whole or for each index
of a dimension.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

PIECE_ELEMENTS = 1 << 16
"""Elements that are worked on at once: 512 KiB of float64, which stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known about some values; `+` joins two of them (Chan, Golub, LeVeque 1979).

    Each field is a number, or an array with a number for each index of a dimension. Sums of squares are taken
    about the mean, so that values far from zero lose no digits.
    """

    count: Any = 0
    nan: Any = 0
    infinite: Any = 0
    masked: Any = 0
    mean: Any = 0.0
    squares: Any = 0.0
    """Sum of squared distances from the mean."""
    min: Any = math.inf
    max: Any = -math.inf

    def __add__(self, other: Moments) -> Moments:
        count = np.add(self.count, other.count)
        share = np.divide(other.count, np.maximum(count, 1))
        apart = np.subtract(other.mean, self.mean)
        return Moments(
            count,
            np.add(self.nan, other.nan),
            np.add(self.infinite, other.infinite),
            np.add(self.masked, other.masked),
            self.mean + apart * share,
            # Products of counts would leave the range of integers.
            np.add(self.squares, other.squares) + apart * apart * (self.count * share),
            np.minimum(self.min, other.min),
            np.maximum(self.max, other.max),
        )

    @classmethod
    def none(cls, length: int) -> Moments:
        """The moments of no values, for `length` indices."""
        return cls(*(np.full(length, one) for one in cls()._fields()))

    @classmethod
    def concatenated(cls, parts: Sequence[Moments]) -> Moments:
        """Of neighbouring parts of a dimension, in their order."""
        return cls(*(np.concatenate(values) for values in zip(*(part._fields() for part in parts))))

    def as_list(self) -> list[Any]:
        """Numbers, or lists of them, in the order of the fields; `Moments(*values)` makes them again."""
        return [np.asarray(values).tolist() for values in self._fields()]

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True)
class Rule:
    """Which values of an array count, and what they stand for.

    Args:
        missing: Stored values that stand for nothing.
        kind: Type that integers are to be taken for, by the attribute `_Unsigned`.
        scale: Factor and offset of the values.
    """

    missing: tuple[Any, ...] = ()
    kind: np.dtype | None = None
    scale: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def of(cls, attributes: Mapping[str, Any], dtype: np.dtype, mask: bool) -> Rule:
        """From CF attributes; without `mask` all values count as they are.

        Raises:
            ValueError: An attribute is none that fits the type.
        """
        if not mask:
            return cls()
        kind = None
        unsigned = str(attributes.get("_Unsigned", "")).lower()
        if unsigned in ("true", "false") and dtype.kind in "iu":
            kind = np.dtype(f"{'u' if unsigned == 'true' else 'i'}{dtype.itemsize}")
        missing: list[Any] = []
        for name in ("_FillValue", "missing_value"):
            values = attributes.get(name)
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    missing.append(_stored(name, value, dtype))
        if dtype.kind == "i" and dtype.itemsize == 8 and " since " in str(attributes.get("units")):
            missing.append(np.iinfo(dtype).min)  # "not a time", which xarray knows without an attribute
        scale = (float(attributes.get("scale_factor", 1.0)), float(attributes.get("add_offset", 0.0)))
        return cls(tuple(missing), kind, scale)

    @property
    def packs(self) -> bool:
        """Whether values that count are other numbers than the stored ones."""
        return self.kind is not None or self.scale != (1.0, 0.0)

    def moments(self, values: np.ndarray, axis: int | None = None) -> Moments:
        """Of stored values, before scale and offset; with `axis` of each of its indices by itself."""
        if axis is None:
            found = self._along(np.ascontiguousarray(values).reshape(1, 1, -1))
            return Moments(*(one[0] for one in found._fields()))
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        contiguous = np.ascontiguousarray(values)
        return self._along(contiguous.reshape(math.prod(before), values.shape[axis], math.prod(after)))

    def _along(self, values: np.ndarray) -> Moments:
        """Of each index along the middle one of three axes, piece by piece."""
        outer, middle, inner = values.shape
        inner_step = max(1, min(inner, PIECE_ELEMENTS))
        middle_step = max(1, min(middle, PIECE_ELEMENTS // inner_step))
        outer_step = max(1, PIECE_ELEMENTS // (inner_step * middle_step))
        parts = []
        for at in range(0, middle, middle_step):
            band = values[:, at : at + middle_step]
            total = Moments.none(band.shape[1])
            for first in range(0, outer, outer_step):
                for second in range(0, inner, inner_step):
                    total += self._piece(band[first : first + outer_step, :, second : second + inner_step])
            parts.append(total)
        return Moments.concatenated(parts) if parts else Moments.none(0)

    def _piece(self, stored: np.ndarray) -> Moments:
        width = stored.shape[1]
        stored = stored.transpose(1, 0, 2)
        kept = stored if self.kind is None else stored.view(self.kind)
        values = kept.astype(np.float64, order="C").reshape(width, -1)
        size = values.shape[1]
        least, most = values.min(1), values.max(1)
        count, none = np.full(width, size), np.zeros(width, np.int64)
        nans = infinites = masks = none
        left_out = None
        # Both are NaN where any value is.
        if self.missing or not (np.isfinite(least).all() and np.isfinite(most).all()):
            masked = np.zeros(values.shape, bool)
            flat = stored.reshape(width, -1)
            for value in self.missing:
                masked |= flat == value
            valid = np.isfinite(values) & ~masked
            nan = np.isnan(values) & ~masked
            nans, masks, count = nan.sum(1), masked.sum(1), valid.sum(1)
            infinites = size - count - nans - masks
            left_out = ~valid
            least = values.min(1, where=valid, initial=math.inf)
            most = values.max(1, where=valid, initial=-math.inf)
            np.copyto(values, 0.0, where=left_out)
        mean = values.sum(1) / np.maximum(count, 1)
        # Not by a dot product: BLAS would start threads of its own beside the workers.
        values -= mean[:, None]
        if left_out is not None:
            np.copyto(values, 0.0, where=left_out)
        np.square(values, out=values)
        return Moments(count, nans, infinites, masks, mean, values.sum(1), least, most)

    def scaled(self, moments: Moments) -> Moments:
        """Of the values that stored ones stand for, scale and offset applied."""
        factor, offset = self.scale
        counted = np.asarray(moments.count) > 0
        ends = [
            np.where(counted, np.multiply(one, factor) + offset, one) for one in (moments.min, moments.max)
        ]
        return replace(
            moments,
            mean=np.where(counted, np.multiply(moments.mean, factor) + offset, 0.0),
            squares=np.multiply(moments.squares, factor * factor),
            min=np.where(counted, np.minimum(*ends), math.inf),
            max=np.where(counted, np.maximum(*ends), -math.inf),
        )

    def result(self, moments: Iterable[Moments]) -> dict[str, Any]:
        """Statistics of all values, scale and offset applied; None where no value counts."""
        return summary(self.scaled(sum(moments, Moments())))


def summary(total: Moments) -> dict[str, Any]:
    """Statistics as JSON has them: numbers, or lists of them; None where no value counts."""
    found = {
        "mean": total.mean,
        "std": np.sqrt(total.squares / np.maximum(total.count, 1)),
        "min": total.min,
        "max": total.max,
    }
    known = {name: _or_none(values, total.count) for name, values in found.items()}
    counts = {
        name: np.asarray(getattr(total, name)).tolist() for name in ("count", "nan", "infinite", "masked")
    }
    return known | counts


def _or_none(values: Any, count: Any) -> Any:
    """Numbers as JSON has them, None where nothing was counted."""
    if np.ndim(count) == 0:
        return float(values) if count else None
    return [float(value) if its else None for value, its in zip(values, count)]


def counts(dtype: np.dtype) -> bool:
    """Whether values of a type have a mean here: numbers that are not complex, and bool."""
    return dtype.kind in "biuf"


def _stored(name: str, value: Any, dtype: np.dtype) -> Any:
    """An attribute's value in the type of the array; xarray writes that of floats as base64 in Zarr v3."""
    try:
        if isinstance(value, str) and dtype.kind == "f" and name == "_FillValue":
            try:
                value = float(value)
            except ValueError:
                (value,) = struct.unpack("<d", base64.standard_b64decode(value))
        if dtype.kind in "iu":  # the bits of -1 are those of 255 where `_Unsigned` has it so
            return np.array(int(value) % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)[()]
        return dtype.type(value)
    except (ValueError, TypeError, struct.error) as error:
        raise ValueError(f'the attribute "{name}" {value!r} is no {dtype}; repair it') from error
