"""How an array is cut into regions of work.

A region is a box of whole files of the destination (sharded chunks, or chunks where nothing is sharded), so
that no two workers write to the same file. What a cut costs is how often chunks of the source are read: one
that lies across regions is read once for each of them. Along one dimension that is a sum over the regions,
over several dimensions the product of the sums, so that dimensions are looked at one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

Extents = tuple[int, ...]

WRITE_BYTES = 16_000_000
LEAST_WRITE_BYTES = 1_000_000
"""Small files are written together: at most `WRITE_BYTES` at once, and at least `LEAST_WRITE_BYTES`."""
REGION_BYTES = 64_000_000
"""Regions do not grow beyond this where it saves no reading: the more of them, the less a stop costs."""
REGIONS_PER_WORKER = 4
SAME = 1.02
"""Cuts whose reading differs by less than this are taken for the same."""


@dataclass(frozen=True)
class Grid:
    """What decides how an array can be cut.

    Args:
        shape: Extents of what is copied.
        start: Where it begins in the source.
        source_chunk: Read chunk of the source.
        unit: What one file of the destination holds.
        element_bytes: Bytes of an element.
    """

    shape: Extents
    start: Extents
    source_chunk: Extents
    unit: Extents
    element_bytes: int

    def source_chunks(self) -> int:
        """Chunks of the source that lie in what is copied, in whole or in part."""
        return math.prod(
            _touches(extent, start, extent, chunk)
            for extent, start, chunk in zip(self.shape, self.start, self.source_chunk)
        )

    def reads(self, region: Extents) -> float:
        """How often each source chunk is read, on average."""
        touches = math.prod(map(_touches, self.shape, self.start, region, self.source_chunk))
        return touches / max(1, self.source_chunks())

    def bytes(self, extents: Extents) -> int:
        return math.prod(map(min, extents, self.shape)) * self.element_bytes

    def write_box(self, region: Extents) -> Extents:
        """What is handed over for writing at once: a file, or neighbouring small ones together."""
        # A part of the region only, or else writing would take the memory that regions are better made of.
        most = min(WRITE_BYTES, max(LEAST_WRITE_BYTES, self.bytes(region) // 8))
        box = list(self.unit)
        for axis in reversed(range(len(box))):
            while box[axis] < region[axis] and 2 * self.bytes(tuple(box)) <= most:
                box[axis] = min(2 * box[axis], region[axis])
        return tuple(box)

    def memory(self, region: Extents, decoding: int) -> int:
        """Bytes that a worker needs for a region at most.

        They are the values; beside them, one after the other, the source chunks that are being decoded
        (`decoding` at a time and one on its way, encoded and decoded), and what is written (made contiguous,
        encoded, and once more in the whole file).
        """
        source_chunk = math.prod(self.source_chunk) * self.element_bytes
        reading = 2 * (decoding + 1) * source_chunk
        writing = 3 * self.bytes(self.write_box(region))
        return self.bytes(region) + max(reading, writing)

    def count(self, region: Extents) -> int:
        """Number of regions."""
        return math.prod(-(-a // b) for a, b in zip(self.shape, region))


@dataclass(frozen=True)
class Cut:
    """How an array is cut, and what that costs."""

    region: Extents
    workers: int
    decoding: int
    """Source chunks that each worker decodes at once."""
    reads: float
    """Times that each source chunk is read, on average."""
    memory: int
    """Bytes that one worker needs."""
    memory_for_least: int
    """Bytes with which one worker would read as little as is possible."""


def cut(
    grid: Grid, memory: int, workers: int, decoding: Callable[[int], int], processes: int = 1
) -> Cut | None:
    """The cut that reads least within the memory; of such the one that decodes most source chunks at once,
    then the one with most workers, then smallest regions.

    Args:
        grid: What is cut.
        memory: Bytes for all workers together.
        workers: How many there may be.
        decoding: Source chunks that each worker decodes at once, for a number of workers, where the memory
            suffices.
        processes: So many have this memory and these workers each.

    Returns:
        None where one file of the destination does not fit into the memory.
    """
    front = _front(grid)
    least = min(front, key=lambda region: (grid.reads(region), grid.bytes(region)))
    found: list[Cut] = []
    for count, at_once in _shares(workers, decoding):
        share = memory // count
        fitting = [region for region in front if grid.memory(region, at_once) <= share]
        if not fitting:
            continue
        region = min(fitting, key=lambda region: (grid.reads(region), grid.bytes(region)))
        region = _grown(grid, region, share, count * processes, at_once)
        found.append(
            Cut(
                region,
                count,
                at_once,
                grid.reads(region),
                grid.memory(region, at_once),
                grid.memory(least, 1),
            )
        )
    if not found:
        return None
    best = min(one.reads for one in found)
    return max((one for one in found if one.reads <= best * SAME), key=lambda one: one.workers * one.decoding)


def fitted(cut: Cut, grid: Grid, region: Extents, memory: int) -> Cut | None:
    """The same for given regions, with fewer workers or less at once where the memory is too small."""
    found = [
        replace(cut, region=region, workers=count, decoding=at_once, reads=grid.reads(region), memory=needed)
        for count, at_once in _shares(cut.workers, lambda count: cut.decoding * cut.workers // count)
        if (needed := grid.memory(region, at_once)) * count <= memory
    ]
    return max(found, key=lambda one: one.workers * one.decoding, default=None)


def _shares(workers: int, decoding: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Numbers of workers with the source chunks that each decodes at once: the most first, then halves."""

    def halves(most: int) -> Iterable[int]:
        return dict.fromkeys(max(1, most >> shift) for shift in range(most.bit_length()))

    for count in halves(workers):
        for at_once in halves(decoding(count)):
            yield count, at_once


def slices(shape: Sequence[int], extents: Sequence[int], place: Sequence[int]) -> tuple[slice, ...]:
    """The part of an array that lies at a place of a grid of boxes."""
    return tuple(slice(i * e, min((i + 1) * e, size)) for i, e, size in zip(place, extents, shape))


def each_box(shape: Sequence[int], extents: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """All boxes of a grid over an array."""
    for place in itertools.product(*(range(-(-a // b)) for a, b in zip(shape, extents))):
        yield slices(shape, extents, place)


def _touches(extent: int, start: int, region: int, chunk: int) -> int:
    """Source chunks that regions along one dimension touch, counted once for each region."""
    if not extent:
        return 0
    begins = np.arange(start, start + extent, region)
    ends = np.minimum(begins + region, start + extent)
    return int(np.sum((ends - 1) // chunk - begins // chunk + 1))


def _candidates(extent: int, start: int, chunk: int, unit: int) -> list[tuple[int, int]]:
    """Extents of a region along one dimension, `(extent, touches)`, each larger one with fewer touches."""
    units = max(1, -(-extent // unit))
    aligned = chunk // math.gcd(chunk, unit)  # units after which borders of both fall together
    multiples = {1, units, *range(1, min(units, 16) + 1)}
    for base in (1, aligned, max(1, chunk // unit)):
        while base < units:
            multiples.add(base)
            base *= 2
    front: list[tuple[int, int]] = []
    for multiple in sorted(m for m in multiples if m <= units):
        touches = _touches(extent, start, multiple * unit, chunk)
        if not front or touches < front[-1][1]:
            front.append((multiple * unit, touches))
    return front


def _front(grid: Grid) -> list[Extents]:
    """Regions of which no other is both smaller and read with less."""
    merged: list[tuple[int, int, Extents]] = [(1, 1, ())]
    for extent, start, chunk, unit in zip(grid.shape, grid.start, grid.source_chunk, grid.unit):
        grown = sorted(
            (elements * min(region, extent), touches * more, (*extents, region))
            for elements, touches, extents in merged
            for region, more in _candidates(extent, start, chunk, unit)
        )
        merged = []
        for one in grown:
            if not merged or one[1] < merged[-1][1]:
                merged.append(one)
    return [extents for _, _, extents in merged]


def _grown(grid: Grid, region: Extents, memory: int, workers: int, decoding: int) -> Extents:
    """Small regions made larger, last dimension first, where that costs nothing."""
    reads, enough = grid.reads(region), REGIONS_PER_WORKER * workers
    for axis in reversed(range(len(region))):
        while region[axis] < grid.shape[axis]:
            larger = (*region[:axis], 2 * region[axis], *region[axis + 1 :])
            fits = grid.memory(larger, decoding) <= memory and grid.bytes(larger) <= REGION_BYTES
            if not fits or grid.count(larger) < enough or grid.reads(larger) > reads:
                break
            region = larger
    return region
