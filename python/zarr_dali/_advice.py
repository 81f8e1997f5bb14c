"""Where chunks and codecs cost speed or memory, and what to write instead.

Every rule is a generator over one array that yields `(code, text)`. The figures were measured on one H200
with 16 cores in November 2026; those of nvCOMP are of 5.3.0, with chunks that are on the GPU already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zarr_dali._codecs import inner_codecs, short_name
from zarr_dali._description import ArrayReport

SMALL_CHUNK_BYTES = 1_000_000
LARGE_CHUNK_BYTES = 100_000_000
USUAL = "1 MB to 100 MB is the usual advice"
TINY_INNER_CHUNK_BYTES = 256_000
"""Inner chunks cost no file each, and 410 kB of them decode at the best rate measured."""
SMALL_ARRAY_BYTES = 16_000_000
"""Arrays below are read in a moment, however they are cut."""
LARGE_ARRAY_BYTES = 1_000_000_000
"""Arrays above are not expected to stay in the page cache."""
WASTE = 4.0
"""Decoded bytes for each that is used."""
MANY_CHUNKS = 64
COLD_DISK_BYTES_PER_S = 2.3e9
UNCOMPRESSED = ("uncompressed", "bytes(big)", "sharded(uncompressed)", "sharded(bytes(big))")

Rule = Iterator[tuple[str, str]]


def of(
    arrays: Sequence[ArrayReport], device: str, arguments: dict[str, Any]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """All advice as `(code, arrays, text)`; arrays of which the same is to be said come together."""
    rules = [_small, _large, _spanning, _many, _deflate, _uncompressed, _on_cpu, _beside]
    found: dict[tuple[str, str], list[str]] = {}
    for array in arrays:
        if array.coordinate or array.decoded_bytes is None or array.decoded_bytes < SMALL_ARRAY_BYTES:
            continue
        for rule in rules:
            for code, text in rule(array, device, arguments):
                found.setdefault((code, text), []).append(array.name)
    for (code, text), names in found.items():
        yield code, tuple(names), text
    yield from _metadata(arrays)


def _metadata(arrays: Sequence[ArrayReport]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """On stores at URLs in which each array's metadata are asked for."""
    apart = [array for array in arrays if array.name and array.consolidated is False]
    if apart:
        # `zarr.json`, or `.zarray` and `.zattrs`.
        requests = sum(1 if array.zarr_format == 3 else 2 for array in apart)
        yield (
            "not-consolidated",
            tuple(array.name for array in apart),
            f"consolidated metadata do not have {'it' if len(apart) == 1 else 'them'}: to open all asks for "
            f"{requests} files and lists the store, in place of one request; "
            "`zarr.consolidate_metadata(STORE)` writes them",
        )


def size(count: float) -> str:
    """Bytes in words, with decimal prefixes."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    raise AssertionError("the last unit ends the loop")


def number(value: float) -> str:
    """A mean or a factor, with as many digits as matter."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def better_chunks(array: ArrayReport, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Extents of chunks that fit the samples: a step of the window each, and larger where that is little.

    They have `TINY_INNER_CHUNK_BYTES` at least, or are the whole array, and `LARGE_CHUNK_BYTES` at most.
    """
    window = arguments.get("window") or [1]
    steps = arguments.get("stride") or [1, *window[1:]]
    covered = [max(1, min(extents)) for extents in zip(window, steps, array.shape)]
    least = [*covered, *array.shape[len(covered) :]]
    shape = grown(least, array.shape, lambda extents: _bytes_of(array, extents) >= TINY_INNER_CHUNK_BYTES)
    while _bytes_of(array, shape) > LARGE_CHUNK_BYTES:
        longest = shape.index(max(shape))
        shape[longest] = -(-shape[longest] // 2)
    return tuple(shape)


def grown(extents: Sequence[int], shape: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Extents of a chunk, doubled one by one until they are enough or those of the array.

    As evenly as the shape allows, so that no dimension gets all.
    """
    chunk = list(extents)
    while not enough(chunk):
        smaller = [axis for axis, extent in enumerate(shape) if chunk[axis] < extent]
        if not smaller:
            break
        axis = min(smaller, key=lambda axis: chunk[axis] / extents[axis])
        chunk[axis] = min(2 * chunk[axis], shape[axis])
    return chunk


def _bytes_of(array: ArrayReport, extents: Sequence[int]) -> float:
    """Decoded bytes of a chunk."""
    return math.prod(extents) * (array.decoded_bytes / array.values)


def _decoded_for_a_sample(array: ArrayReport, chunk: Sequence[int], arguments: dict[str, Any]) -> float:
    """Decoded bytes for each that a sample uses, whose window begins where a chunk does."""
    window = [*(arguments.get("window") or [1])][: len(array.shape)]
    window = [*window, *array.shape[len(window) :]]
    decoded = math.prod(-(-one // extent) * extent for one, extent in zip(window, chunk))
    return decoded / math.prod(window)


def _better(array: ArrayReport, arguments: dict[str, Any]) -> str:
    """What to write instead, in words."""
    shape = better_chunks(array, arguments)
    extents = f"{shape} ({size(_bytes_of(array, shape))})"
    if _bytes_of(array, shape) < SMALL_CHUNK_BYTES:
        return f"sharded chunks with inner chunks of {extents}"
    return f"chunks of {extents}"


def _compression(array: ArrayReport) -> str | None:
    """The codec that compresses the read chunks with a format of its own, if it is one that was measured."""
    names = [short_name(codec) for codec in inner_codecs(array.codecs)]
    return next((name for name in names if name in ("zstd", "gzip", "zlib")), None)


def _small(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    sharded = array.inner_chunk is not None
    least = TINY_INNER_CHUNK_BYTES if sharded else SMALL_CHUNK_BYTES
    if array.read_chunk_bytes >= least or array.chunks == 1:
        return
    if _bytes_of(array, better_chunks(array, arguments)) <= array.read_chunk_bytes:
        return
    what = "inner chunks" if sharded else "chunks"
    text = f"{what} of {size(array.read_chunk_bytes)} decoded are small ({USUAL}): "
    text += "each is a read of its own" if sharded else "each is a file of its own to open and read"
    if array.reading:
        text += f", {number(array.reading.chunks_per_sample)} for a sample"
    yield "small-chunks", f"{text}; write {_better(array, arguments)}"


def _large(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    if array.read_chunk_bytes <= LARGE_CHUNK_BYTES:
        return
    text = (
        f"chunks of {size(array.read_chunk_bytes)} decoded are large ({USUAL}): a sample waits for all of one"
    )
    reading = array.reading
    if reading and reading.gpu_memory and reading.chunks_per_batch:
        one = (reading.gpu_memory.total - reading.gpu_memory.outputs) / reading.chunks_per_batch
        text += f", which takes up to {size(one)} of GPU memory while it is decoded"
    yield "large-chunks", f"{text}; write {_better(array, arguments)}"


def _spanning(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    reading = array.reading
    wasted = bool(reading) and (reading.sample_amplification or 0) >= WASTE
    if not wasted or array.read_chunk_bytes <= TINY_INNER_CHUNK_BYTES:
        return
    if (
        _decoded_for_a_sample(array, better_chunks(array, arguments), arguments)
        >= reading.sample_amplification
    ):
        return
    alone, batch = number(reading.sample_amplification), number(reading.batch_amplification)
    text = (
        f"a sample that is read on its own, as shuffled samples mostly are, has {alone} bytes decoded for "
        f"each that it uses; a batch of {reading.batch_size} with these arguments {batch}"
    )
    yield "spans-samples", f"{text}; write {_better(array, arguments)}"


def _many(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    reading = array.reading
    if not reading or reading.chunks_per_sample < MANY_CHUNKS or any(_small(array, device, arguments)):
        return
    if _bytes_of(array, better_chunks(array, arguments)) <= array.read_chunk_bytes:
        return
    what = "inner chunks" if array.inner_chunk else "chunks"
    text = f"a sample touches {number(reading.chunks_per_sample)} {what}, each read and decoded by itself"
    yield "many-chunks", f"{text}; write {_better(array, arguments)}"


def _deflate(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    codec = _compression(array)
    if codec in ("gzip", "zlib"):
        yield (
            "deflate",
            f"{codec} is slow to decode: gzip in chunks of 3.28 MB 3.7 GB/s on 16 threads, 3.0 on the GPU, "
            "where zstd does 12 and 60: write zstd or blosc",
        )


def _uncompressed(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    if array.chain in UNCOMPRESSED and array.decoded_bytes >= LARGE_ARRAY_BYTES:
        seconds = number(array.decoded_bytes / COLD_DISK_BYTES_PER_S)
        yield (
            "uncompressed",
            "uncompressed chunks come as fast as the storage gives them: a pass over "
            f"{size(array.decoded_bytes)} takes {seconds} s from a disk of 2.3 GB/s (measured, cold). Fine "
            "from the page cache; for slower storage write blosc with lz4 and byte shuffle, which halved "
            "fields packed in 16 bits",
        )


def _on_cpu(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    if device == "gpu" and array.decode_path == "CPU" and arguments.get("decode", "auto") == "auto":
        yield (
            "on-cpu",
            "CPU threads decode these chunks, then they are copied to the GPU: how fast depends on the "
            "codec and the cores (16 threads: zstd 12 GB/s, gzip 3.7); to have the GPU decode them, "
            "write zstd or blosc",
        )


def _beside(array: ArrayReport, device: str, arguments: dict[str, Any]) -> Rule:
    if (
        array.decode_path == "GPU"
        and _compression(array) == "zstd"
        and array.decoded_bytes >= LARGE_ARRAY_BYTES
    ):
        yield (
            "beside-training",
            "decoding zstd takes GPU time from a model that trains beside it: at 5 GB/s it cost 15 % of "
            "the speed with chunks of 3.28 MB and 19 % with inner chunks of 410 kB; on 16 cores it cost less "
            'than 1 %, and decode="auto" leaves to the GPU only what they cannot do in time',
        )
