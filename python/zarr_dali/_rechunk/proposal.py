"""Chunk shapes and a codec for a reader's samples, with the reasons.

The figures are those of benches/NOTES.md and of `zarr_dali._advice`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zarr_dali._advice import grown, number, size
from zarr_dali._rechunk.regions import Extents

LARGE_CHUNK_BYTES = 32_000_000
"""Steps above are split: 19.7 MB decode at the best rate with Blosc, which works on blocks inside."""
SHUFFLED_CHUNK_BYTES = 256_000
IN_ORDER_CHUNK_BYTES = 1_000_000
"""Steps below are put together; in random order fewer, because chunks then wait in memory."""
SHARDED_CHUNK_BYTES = 128_000_000
LONE_CHUNK_BYTES = 64_000_000
"""Chunks from here on are files large enough by themselves."""
CODEC = "blosc-lz4"

BytesOf = Callable[[Sequence[int]], int]


@dataclass(frozen=True)
class Use:
    """How samples will be read.

    Args:
        window: Extents of a sample along the leading dimensions.
        batch: Samples of a batch.
        shuffle: Whether they come in random order.
        is_static: Whether the array lacks the dimension that samples are taken along; `window` then is what a
            sample has of it.
    """

    window: Extents
    batch: int = 1
    shuffle: bool = True
    is_static: bool = False


@dataclass(frozen=True)
class Proposal:
    """Shapes for one array and why; `shard` is None where chunks are files of their own."""

    chunk: Extents
    shard: Extents | None
    reasons: tuple[str, ...]


def propose(
    use: Use, shape: Extents, element_bytes: int, source_chunk: Extents, largest_bytes: int
) -> Proposal:
    """Shapes of which a sample decodes no more than it uses.

    Args:
        use: How samples will be read.
        shape: Extents of the copy.
        element_bytes: Bytes of an element.
        source_chunk: Read chunk of the source, to compare with.
        largest_bytes: Bytes that a sharded chunk may have, since one is written as a whole.

    Raises:
        ValueError: The window does not fit the array.
    """
    window = (*use.window, *shape[len(use.window) :])
    if len(window) != len(shape) or any(one > extent for one, extent in zip(window, shape)):
        raise ValueError(f"a window of {_by(use.window)} does not fit an array of {_by(shape)}")

    def bytes_of(extents: Sequence[int]) -> int:
        return math.prod(map(min, extents, shape)) * element_bytes

    chunk = [1, *window[1:]]
    while bytes_of(chunk) > LARGE_CHUNK_BYTES:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    split = chunk[1:] != list(window[1:])
    least = SHUFFLED_CHUNK_BYTES if use.shuffle else IN_ORDER_CHUNK_BYTES
    while not split and not use.shuffle and bytes_of(chunk) < least and chunk[0] < shape[0]:
        chunk[0] = min(2 * chunk[0], shape[0])  # the samples that come next
    if not split:
        chunk = grown(chunk, shape, lambda extents: bytes_of(extents) >= least)
    shard = _shard(chunk, shape, source_chunk, bytes_of, largest_bytes)
    files = math.prod(-(-extent // one) for extent, one in zip(shape, chunk))
    reasons = (
        _about_chunk(use, window, chunk, source_chunk, bytes_of, split),
        _about_samples(use, window, shape, bytes_of)
        if use.is_static
        else _about_order(use, window, chunk, bytes_of),
        _about_shard(shard, shape, files, bytes_of),
        f"{CODEC} with byte shuffle: the cheapest to decode of those measured (72 GB/s on the GPU, "
        "where zstd does 35; 24 on 16 cores, zstd 12); where storage is the limit, blosc-zstd makes "
        "files about a sixth smaller and costs a model that trains beside it more",
    )
    return Proposal(tuple(chunk), shard, reasons)


def _shard(
    chunk: Sequence[int],
    shape: Extents,
    source_chunk: Extents,
    bytes_of: BytesOf,
    largest_bytes: int,
) -> Extents | None:
    """A sharded chunk of whole steps, or of as much as is allowed, the last about as full as the others."""
    most = min(SHARDED_CHUNK_BYTES, largest_bytes)
    if bytes_of(chunk) >= LONE_CHUNK_BYTES:
        return None
    shard = list(chunk)
    for axis in reversed(range(len(shape))):
        across = -(-shape[axis] // chunk[axis])
        fitting = max(1, min(across, most // max(1, bytes_of(shard))))
        pieces = -(-across // fitting)
        shard[axis] = -(-across // pieces) * chunk[axis]
    both = math.lcm(chunk[0], source_chunk[0])
    if pieces > 1 and shard[0] != chunk[0]:
        # Borders that the source has as well let a copy read it once.
        aligned = max(both, shard[0] // both * both)
        if bytes_of((aligned, *shard[1:])) <= min(2 * most, largest_bytes):
            shard[0] = aligned
    return None if tuple(shard) == tuple(chunk) else tuple(shard)


def _about_chunk(
    use: Use,
    window: Extents,
    chunk: Sequence[int],
    source_chunk: Extents,
    bytes_of: BytesOf,
    split: bool,
) -> str:
    needed = math.prod(-(-one // extent) for one, extent in zip(window, chunk))
    before = math.prod(-(-one // extent) * extent for one, extent in zip(window, source_chunk))
    after = math.prod(-(-one // extent) * extent for one, extent in zip(window, chunk))
    used = math.prod(window)
    part = (1, *window[1:])
    subject = f"a step of {size(bytes_of(part))}"
    if use.is_static:
        subject = f"a part of {_by(part)}, {size(bytes_of(part))},"
    text = f"chunks of {_by(chunk)}, {size(bytes_of(chunk))}: a sample of {_by(window)} needs "
    text += _count(needed, "chunk")
    if split:
        text += f", since {subject} is more than a decoder takes well at once"
    elif chunk[0] > 1 and not (use.is_static and needed == 1):
        text += f", since {subject} is little for a decoder"
    if before > after:
        text += (
            f"; alone it decodes {number(after / used)} bytes for each that it uses, "
            f"with the chunks of the source {number(before / used)}"
        )
    return text


def _about_samples(use: Use, window: Extents, shape: Extents, bytes_of: BytesOf) -> str:
    if tuple(window) == tuple(shape):
        return f"static: every sample has all of it, so that a batch touches {size(bytes_of(shape))}"
    most = min(use.batch * bytes_of(window), bytes_of(shape))
    return (
        f"static: every sample has {_by(window)} of it, whichever step it is of; a batch of {use.batch} uses "
        f"at most {size(most)}"
    )


def _about_order(use: Use, window: Extents, chunk: Sequence[int], bytes_of: BytesOf) -> str:
    reach = window[0] + chunk[0] - 1
    shared = "single steps" if window[0] == 1 else f"windows of {window[0]} steps"
    most = use.batch * bytes_of((reach, *window[1:]))
    if use.shuffle:
        return (
            f"in random order ({shared}) the reader keeps chunks until their other samples have come, so "
            "that each is decoded once an epoch as far as memory allows; a "
            f"batch of {use.batch} touches at most {size(most)}"
        )
    steps = min(use.batch + reach - 1, use.batch * reach)
    return (
        f"in order ({shared}) each chunk is decoded once, and a batch of {use.batch} that shares steps "
        f"touches about {size(bytes_of((steps, *window[1:])))}"
    )


def _about_shard(shard: Extents | None, shape: Extents, files: int, bytes_of: BytesOf) -> str:
    if shard is None:
        what = f"{files:,} files, each large enough by itself" if files > 1 else "one file holds all"
        return f"no sharded chunks: {what}"
    count = math.prod(-(-extent // one) for extent, one in zip(shape, shard))
    return (
        f"sharded chunks of {_by(shard)}, {size(bytes_of(shard))}: {_count(count, 'file')} and not "
        f"{files:,}; a reader still reads and decodes single chunks in them"
    )


def _by(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
