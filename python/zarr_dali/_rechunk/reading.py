"""Reads parts of arrays, several at once, and knows later whether their chunks have changed since."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import zarr

from zarr_dali._rechunk import stamps
from zarr_dali._rechunk.failing import explained
from zarr_dali._rechunk.source import Source

ZARRS = "zarrs.ZarrsCodecPipeline"
ZARR_PYTHON = "zarr.core.codec_pipeline.BatchedCodecPipeline"

Place = tuple[slice, ...]
"""A part of an array: a range of indices for each dimension."""
T = TypeVar("T")

_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


class SourceArray:
    """An array of a source.

    Args:
        source: What it belongs to, of which nothing else was read.
        name: Its path; empty where the source is an array.
        array: The same as zarr-python reads it.
        decoding: Chunks that are decoded at once.
    """

    def __init__(self, source: Source, name: str, array: zarr.Array, decoding: int) -> None:
        self.source, self.name = source, name
        self.proof = array
        """Read by zarr-python alone, so that no decoder vouches for itself."""
        self.by_zarrs = source.is_folder and zarrs_takes(array)
        """Whether the package zarrs reads it, past `source`, which then does not know what was missing."""
        with pipeline(ZARRS if self.by_zarrs else ZARR_PYTHON), at_once(decoding):
            if self.by_zarrs:  # which reads files itself, and takes no other store
                self.array = source.array(name)
            else:
                self.array = zarr.open_array(store=source.store, path=name, mode="r")

    def read(self, place: Place) -> tuple[np.ndarray, str]:
        """Values in the byte order of the machine, and stamps of the chunks that they came from.

        Raises:
            RuntimeError: A chunk went away while it was read.
        """
        keys = self.keys(place)
        before = self.source.before(keys)
        values = native(np.asarray(self.array[place]))
        self._check(values, place, [key for key, there in zip(keys, stamps.there(before)) if there])
        return values, self.source.after(keys, before)

    def now(self, place: Place) -> str:
        """Stamps of a part's chunks as they are now."""
        return self.source.now(self.keys(place))

    def keys(self, place: Place) -> list[str]:
        """Keys in the source's store that a part is read from, which may be missing."""
        unit = self.proof.shards or self.proof.chunks
        return [self._key(coordinates) for coordinates in coordinates_of(place, unit)]

    def _key(self, coordinates: tuple[int, ...]) -> str:
        """Of a chunk in the source's store."""
        key = self.proof.metadata.encode_chunk_key(coordinates)
        return f"{self.name}/{key}" if self.name else key

    def _check(self, values: np.ndarray, place: Place, keys: list[str]) -> None:
        """Sees whether chunks were there when a part was read, as they had been before.

        Args:
            values: Of the part.
            place: Where it is.
            keys: Those of the source that were there when they were stamped.

        Raises:
            RuntimeError: One was not.
        """
        there = set(keys)
        if self.by_zarrs:
            # The zarrs package does not say what was missing: what it found empty is read again.
            unit = self.proof.chunks
            fill = np.asarray(self.array.fill_value, values.dtype)
            file_unit = self.proof.shards or unit
            for at in coordinates_of(place, unit):
                key = self._key(tuple(a * b // c for a, b, c in zip(at, unit, file_unit)))
                if key not in there:
                    continue
                box = tuple(
                    slice(max(part.start, one * extent), min(part.stop, (one + 1) * extent))
                    for part, one, extent in zip(place, at, unit)
                )
                found = np.asarray(
                    values[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, place))]
                )
                first = np.asarray(found[(slice(1),) * found.ndim])
                if not (compare(first, fill)[0] and compare(found, fill)[0]):
                    continue
                if np.asarray(self.proof[box]).tobytes() != found.tobytes():
                    raise _went_away(self.source.place(key))
        if (key := self.source.missing(keys)) is not None:
            raise _went_away(self.source.place(key))


def each(
    work: Callable[[int], T],
    numbers: Iterable[int],
    workers: int,
    where: Callable[[int], str],
    folder: Path | None,
) -> Iterator[tuple[int, T]]:
    """Numbers of regions and what came of them, in the order in which they are finished.

    Args:
        work: Done by threads.
        numbers: Of the regions.
        workers: Threads.
        where: Says in errors which region is meant.
        folder: Where finished work is kept, if it is.

    Raises:
        RuntimeError: Something failed.
    """
    waiting: dict[Future[T], int] = {}
    numbers = iter(numbers)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="zarr regions")
    try:
        while True:
            while len(waiting) < 2 * workers:
                if (number := next(numbers, None)) is None:
                    break
                waiting[pool.submit(work, number)] = number
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number = waiting.pop(future)
                try:
                    result = future.result()
                except BaseException as error:
                    # The zarrs package panics over damaged shard indexes, which is no Exception.
                    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                        raise
                    raise explained(error, where(number), folder) from error
                yield number, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_words(name: str, dimensions: Iterable[str], place: Place) -> str:
    """A part of an array for a message."""
    parts = ", ".join(f"{one}={part.start}:{part.stop}" for one, part in zip(dimensions, place))
    return ", ".join(filter(None, (f'array "{name}"' if name else "", parts)))


@contextmanager
def pipeline(path: str) -> Iterator[None]:
    """Arrays that are opened inside decode and encode with a codec pipeline."""
    with zarr.config.set({"codec_pipeline.path": path, "codec_pipeline.strict": False}):
        yield


@contextmanager
def at_once(chunks: int) -> Iterator[None]:
    """So many chunks are decoded at once by each thread that reads."""
    with zarr.config.set({"async.concurrency": chunks, "codec_pipeline.chunk_concurrent_maximum": chunks}):
        yield


def zarrs_takes(array: zarr.Array) -> bool:
    """Whether the zarrs package is there and reads such an array; what it does not, zarr-python does.

    It takes only C order; of big-endian complex numbers zarrs 0.2.3 swaps real and imaginary parts.
    """
    try:
        import zarrs  # noqa: F401
    except ImportError:
        return False
    kind = np.dtype(array.dtype)
    numeric = kind.kind in "biuf" and kind.isnative
    return numeric and array.order == "C" and array.metadata.fill_value is not None


def trim() -> None:
    """Gives freed memory back, of which glibc otherwise keeps buffers of up to 32 MiB for each thread."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def native(values: np.ndarray) -> np.ndarray:
    """Values in the byte order of the machine."""
    if values.dtype.isnative:
        return values
    kind = values.dtype.newbyteorder("=")
    if values.dtype.kind in "UV" or not values.flags.writeable:
        return values.astype(kind)
    return values.byteswap(inplace=True).view(kind)


def compare(values: np.ndarray, fill: np.ndarray) -> tuple[bool, bool]:
    """Whether all numbers have the bits of the fill value, and whether some are like it with other bits.

    Libraries leave chunks out that are equal to the fill value, and a NaN is like any other to some of them.
    """
    kind = values.dtype.kind
    if kind == "c":
        part = f"f{values.dtype.itemsize // 2}"
        whole = np.ascontiguousarray(values).reshape(-1).view(part)
        both = fill.reshape(1).view(part)
        pairs = [compare(whole[i::2], both[i]) for i in (0, 1)]
        return all(empty for empty, _ in pairs), any(alike for _, alike in pairs)
    bits = f"u{values.dtype.itemsize}"
    if kind != "f":
        same = bool(values.flat[0] == fill) and bool(np.all(values == fill))
        return same, False
    if values.dtype.itemsize > 8:  # integers have at most 64 bits
        return False, True
    equal = np.isnan(values) if np.isnan(fill) else values == fill
    alike = int(np.count_nonzero(equal))
    exact = int(np.count_nonzero(values.view(bits) == fill.view(bits))) if alike else 0
    return exact == values.size, alike != exact


def coordinates_of(place: Place, unit: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Of the boxes of a grid that lie in a part of an array, in whole or in part."""
    ranges = [range(part.start // one, -(-part.stop // one)) for part, one in zip(place, unit)]
    return itertools.product(*ranges)


def _went_away(place: str) -> RuntimeError:
    return RuntimeError(f"{place} went away while it was read; see to it that the source stays there")
