"""Mean and standard deviation of values that come region by region, in float64."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PIECE_ELEMENTS = 1 << 16
"""Elements that are worked on at once: 512 KiB of float64, which stay in a core's cache."""


@dataclass(frozen=True)
class Moments:
    """What is known about some values; `+` joins two of them (Chan, Golub, LeVeque 1979).

    Sums of squares are taken about the mean, so that values far from zero lose no digits.
    """

    count: int = 0
    nan: int = 0
    infinite: int = 0
    masked: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""
    min: float = math.inf
    max: float = -math.inf

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        mean, squares = self.mean, self.squares
        if other.count:
            apart = other.mean - self.mean
            mean = self.mean + apart * (other.count / count)
            squares = self.squares + other.squares + apart * apart * (self.count * other.count / count)
        return Moments(
            count,
            self.nan + other.nan,
            self.infinite + other.infinite,
            self.masked + other.masked,
            mean,
            squares,
            min(self.min, other.min),
            max(self.max, other.max),
        )

    def as_list(self) -> list[float]:
        """Values in the order of the fields, of which `Moments(*values)` is made again."""
        return list(asdict(self).values())


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
        scale = (float(attributes.get("scale_factor", 1.0)), float(attributes.get("add_offset", 0.0)))
        return cls(tuple(missing), kind, scale)

    def moments(self, values: np.ndarray) -> Moments:
        """Of stored values, before scale and offset."""
        total = Moments()
        flat = values.reshape(-1)
        for start in range(0, flat.size, PIECE_ELEMENTS):
            total += self._piece(flat[start : start + PIECE_ELEMENTS])
        return total

    def _piece(self, stored: np.ndarray) -> Moments:
        values = (stored if self.kind is None else stored.view(self.kind)).astype(np.float64)
        counts = (values.size, 0, 0, 0)
        least, most = float(values.min()), float(values.max())
        # Both are NaN where any value is.
        if self.missing or not (math.isfinite(least) and math.isfinite(most)):
            masked = np.zeros(stored.shape, bool)
            for value in self.missing:
                masked |= stored == value
            nan, infinite = np.isnan(values) & ~masked, np.isinf(values) & ~masked
            values = values[~(masked | nan | infinite)]
            counts = (values.size, int(nan.sum()), int(infinite.sum()), int(masked.sum()))
            if not values.size:
                return Moments(*counts)
            least, most = float(values.min()), float(values.max())
        mean = float(values.mean())
        # Not by a dot product: BLAS would start threads of its own beside the workers.
        values -= mean
        np.square(values, out=values)
        return Moments(*counts, mean, float(values.sum()), least, most)

    def result(self, moments: Iterable[Moments]) -> dict[str, float | int | None]:
        """Statistics of all values, scale and offset applied; None where no value counts."""
        total = sum(moments, Moments())
        found: dict[str, float | int | None] = {"mean": None, "std": None, "min": None, "max": None}
        if total.count:
            factor, offset = self.scale
            ends = sorted((total.min * factor + offset, total.max * factor + offset))
            found = {
                "mean": total.mean * factor + offset,
                "std": math.sqrt(total.squares / total.count) * abs(factor),
                "min": ends[0],
                "max": ends[1],
            }
        counts = {name: getattr(total, name) for name in ("count", "nan", "infinite", "masked")}
        return found | counts


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
