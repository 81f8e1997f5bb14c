"""How one array is copied."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarr_dali._rechunk.codecs import Chain
from zarr_dali._rechunk.regions import Cut, Extents, Grid

STRING_BYTES = 64
"""Taken for a string of any length where memory is counted."""


@dataclass(frozen=True)
class ArrayPlan:
    """How one array is copied.

    Shapes are of the copy; `start` is where it begins in the source.
    """

    name: str
    """Path inside the store; empty where the store is an array."""
    dimensions: tuple[str, ...]
    shape: Extents
    start: Extents
    dtype: np.dtype
    source_chunk: Extents
    source_shard: Extents | None
    source_codecs: tuple[dict[str, Any], ...]
    """As Zarr v3 writes them; those of a Zarr v2 array by their numcodecs names."""
    chunk: Extents
    shard: Extents | None
    codecs: Chain = field(repr=False)
    coordinate: bool
    """Whether it was laid out as a coordinate: in one chunk, whatever the request says."""
    cut: Cut
    reasons: tuple[str, ...] = ()
    """Why these shapes, where they were proposed."""

    @property
    def unit(self) -> Extents:
        """What one file holds."""
        return self.shard or self.chunk

    @property
    def element_bytes(self) -> int:
        return STRING_BYTES if self.dtype.kind in "OT" else self.dtype.itemsize

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, self.start, self.source_chunk, self.unit, self.element_bytes)

    @property
    def bytes(self) -> int:
        """Decoded bytes of the copy."""
        return math.prod(self.shape) * self.element_bytes

    @property
    def regions(self) -> int:
        return self.grid.count(self.cut.region)

    @property
    def files(self) -> int:
        """Files at most: those that hold nothing but the fill value are not written."""
        return math.prod(-(-extent // one) for extent, one in zip(self.shape, self.unit))
