"""Stores that the tests read, written by zarr-python.

On Python 3.10 there is only zarr-python 2, which has no format 3: tests that need it are skipped there.
"""

import json
import os
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr

from zarr_dali._bench import cache

FORMATS = (2, 3) if int(zarr.__version__.split(".")[0]) >= 3 else (2,)
"""What the installed zarr-python can write."""

if 3 in FORMATS:
    from zarr.codecs import (
        BloscCodec,
        BytesCodec,
        Crc32cCodec,
        GzipCodec,
        ShardingCodec,
        TransposeCodec,
        ZstdCodec,
    )

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Codec:
    """One codec chain. `v2` and `v3` build its compressors; None where the format has no such chain."""

    name: str
    v2: Callable | None = None
    v3: Callable | None = None
    v2_filters: Callable = lambda itemsize: None
    v3_filters: Callable = lambda ndim: ()
    sharded: bool = False
    index_location: str = "end"
    index_checksum: bool = True
    nested: bool = False
    """Sharded chunks inside sharded chunks."""
    outer: Callable = lambda: ()
    """Compressors of a whole sharded chunk, index included."""


def _reverse(ndim):
    return (TransposeCodec(order=tuple(reversed(range(ndim)))),)


_PLAIN = (
    Codec("raw", v2=lambda: None, v3=lambda: ()),
    Codec("zstd", v2=lambda: numcodecs.Zstd(level=0), v3=lambda: (ZstdCodec(level=0),)),
    Codec(
        "zstd-checksum",
        v2=lambda: numcodecs.Zstd(level=3, checksum=True),
        v3=lambda: (ZstdCodec(level=3, checksum=True),),
    ),
    Codec("zstd-fast", v2=lambda: numcodecs.Zstd(level=-50), v3=lambda: (ZstdCodec(level=-50),)),
    Codec("zstd-best", v2=lambda: numcodecs.Zstd(level=22), v3=lambda: (ZstdCodec(level=22),)),
    Codec("gzip", v2=lambda: numcodecs.GZip(level=5), v3=lambda: (GzipCodec(level=5),)),
    Codec(
        "blosc-lz4",
        v2=lambda: numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE),
        v3=lambda: (BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),),
    ),
    Codec(
        "blosc-zstd",
        v2=lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
        v3=lambda: (BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),),
    ),
)
_V2_ONLY = (
    Codec("zlib", v2=lambda: numcodecs.Zlib(level=1)),
    Codec("bz2", v2=lambda: numcodecs.BZ2(level=1)),
    Codec(
        "shuffle-zstd",
        v2=lambda: numcodecs.Zstd(level=1),
        v2_filters=lambda itemsize: (numcodecs.Shuffle(elementsize=itemsize),),
    ),
)
_V3_ONLY = (
    Codec("crc32c", v3=lambda: (Crc32cCodec(),)),
    Codec("zstd-crc32c", v3=lambda: (ZstdCodec(level=1), Crc32cCodec())),
    Codec("transpose", v3=lambda: (), v3_filters=_reverse),
    Codec("transpose-zstd", v3=lambda: (ZstdCodec(level=1),), v3_filters=_reverse),
)
_SHARDED = tuple(
    Codec(
        f"sharded-{location}-{inner.name}",
        v3=inner.v3,
        v3_filters=inner.v3_filters,
        sharded=True,
        index_location=location,
    )
    for location in ("end", "start")
    for inner in (*_PLAIN, *_V3_ONLY)
    if inner.name in ("raw", "zstd", "zstd-checksum", "gzip", "blosc-lz4", "crc32c", "transpose-zstd")
) + (
    Codec("sharded-end-zstd-no-crc", v3=lambda: (ZstdCodec(),), sharded=True, index_checksum=False),
    Codec("sharded-nested-zstd", v3=lambda: (ZstdCodec(),), sharded=True, nested=True),
    Codec("sharded-then-zstd", v3=lambda: (), sharded=True, outer=lambda: (ZstdCodec(),)),
)
CODECS = {codec.name: codec for codec in (*_PLAIN, *_V2_ONLY, *_V3_ONLY, *_SHARDED)}


def codecs_of(zarr_format):
    """Names of the chains that the format has; none where it cannot be written."""
    if zarr_format not in FORMATS:
        return []
    return [name for name, codec in CODECS.items() if getattr(codec, f"v{zarr_format}") is not None]


def random_values(rng, shape, dtype, entropy=0.5):
    """Values whose bit patterns are random, NaN payloads included; a part repeats, so that it compresses."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    unsigned = np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(unsigned).max, size=shape, dtype=unsigned, endpoint=True)
    repeated = rng.integers(0, np.iinfo(unsigned).max, size=3, dtype=unsigned, endpoint=True)
    bits = np.where(rng.random(shape) < entropy, bits, repeated[rng.integers(0, 3, size=shape)])
    return bits.astype(unsigned).view(dtype)


def write_array(
    store,
    name,
    data,
    *,
    chunks,
    codec="zstd",
    zarr_format=None,
    shards=None,
    endian="little",
    fill_value=0,
    order="C",
    separator=None,
    dimension_names=None,
    write=True,
):
    """Writes one array. Chunks that hold nothing but `fill_value` are left out, as zarr-python does.

    `chunks` are the read chunks; `shards`, the extents of a sharded chunk, default to twice that. Without
    `zarr_format` it is the newest one. Returns the array's folder.
    """
    chain = codec if isinstance(codec, Codec) else CODECS[codec]
    if zarr_format is None:
        zarr_format = 2 if chain.v3 is None or (3 not in FORMATS and chain.v2) else 3
    path = Path(store, name) if name else Path(store)
    if zarr_format not in FORMATS:
        pytest.skip(f"zarr-python {zarr.__version__} writes no Zarr v3")
    arguments = {
        "store": str(store),
        "name": name or None,
        "shape": data.shape,
        "fill_value": fill_value,
        "zarr_format": zarr_format,
        "config": {"write_empty_chunks": False},
    }
    if zarr_format == 2:
        big = endian == "big" and data.dtype.itemsize > 1
        compressor = chain.v2()
        filters = chain.v2_filters(data.dtype.itemsize)
        arguments |= {
            "dtype": data.dtype.newbyteorder(">") if big else data.dtype,
            "chunks": chunks,
            "compressors": compressor,
            "filters": filters,
            "order": order,
        }
        if separator:
            arguments["chunk_key_encoding"] = {"name": "v2", "separator": separator}
        if dimension_names:
            arguments["attributes"] = {"_ARRAY_DIMENSIONS": list(dimension_names)}
    else:
        arguments |= {"dtype": data.dtype, "dimension_names": dimension_names}
        if separator:
            arguments["chunk_key_encoding"] = {"name": "default", "separator": separator}
        if chain.sharded:
            arguments |= _sharding(chain, chunks, shards, endian, data.ndim)
        else:
            arguments |= {
                "chunks": chunks,
                "serializer": BytesCodec(endian=endian),
                "compressors": chain.v3() or None,
                "filters": chain.v3_filters(data.ndim) or None,
            }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs and types that the v3 specification does not name yet
        array = zarr.create_array(**arguments) if 3 in FORMATS else _create_with_zarr_2(**arguments)
        if write and data.ndim:
            array[...] = data
    return path


def _create_with_zarr_2(
    store, name, compressors, zarr_format, config, chunk_key_encoding=None, attributes=None, **arguments
):
    """`zarr.create_array` in the words of zarr-python 2."""
    separator = (chunk_key_encoding or {}).get("separator", ".")
    folder = zarr.NestedDirectoryStore if separator == "/" else zarr.DirectoryStore
    array = zarr.create(
        store=folder(store),
        path=name,
        compressor=compressors,
        dimension_separator=separator,
        **config,
        **arguments,
    )
    array.attrs.update(attributes or {})
    return array


def _sharding(chain, chunks, shards, endian, ndim):
    shards = tuple(shards or (2 * extent for extent in chunks))
    index_codecs = [BytesCodec(endian="little")] + ([Crc32cCodec()] if chain.index_checksum else [])
    inner = ShardingCodec(
        chunk_shape=tuple(chunks),
        codecs=[*chain.v3_filters(ndim), BytesCodec(endian=endian), *chain.v3()],
        index_codecs=index_codecs,
        index_location=chain.index_location,
    )
    if chain.nested:
        inner = ShardingCodec(chunk_shape=shards, codecs=[inner])
        shards = tuple(2 * extent for extent in shards)
    return {"chunks": shards, "serializer": inner, "compressors": chain.outer() or None, "filters": None}


def read_array(store, name=None):
    """The whole array as zarr-python reads it, in native byte order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = np.asarray(zarr.open_array(str(Path(store, name) if name else store), mode="r")[...])
    return values.astype(values.dtype.newbyteorder("="))


def write_group(store, zarr_format=None, consolidated=False):
    """An empty group, or with `consolidated` the consolidated metadata of all that is in it already."""
    zarr_format = zarr_format or max(FORMATS)
    if zarr_format not in FORMATS:
        pytest.skip(f"zarr-python {zarr.__version__} writes no Zarr v3")
    options = {"zarr_format": zarr_format} if 3 in FORMATS else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata is not part of the v3 specification yet
        if consolidated:
            zarr.consolidate_metadata(str(store), **options)
        else:
            zarr.open_group(str(store), mode="a", **options)
    return Path(store)


def chunk_files(array):
    """All chunk files of an array on disk, sorted by path."""
    metadata = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    return sorted(file for file in Path(array).rglob("*") if file.is_file() and file.name not in metadata)


def out_of_page_cache(files):
    """Drops files from the page cache; skips the test where that cannot be done or not be seen."""
    cache.evict(files)
    # Of the last one only, because asking brings its neighbourhood back.
    with open(files[-1], "rb") as last:
        try:
            os.preadv(last.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            pytest.skip(f"this file system does not say what is in the page cache: {error}")
    pytest.skip("the page cache could not be emptied")


def edit_metadata(file, change):
    """Loads a metadata file, applies `change` to the parsed value and writes it back."""
    value = json.loads(Path(file).read_text())
    change(value)
    Path(file).write_text(json.dumps(value))


def zstd_raw_frame(data, *, declared=None, with_size=True, block_bytes=1000):
    """A zstd frame (RFC 8878) of stored blocks, to choose header fields that encoders do not offer.

    `declared` is the content size in the header, by default the true one; `with_size=False` leaves it out.
    """
    frame = bytearray((0xFD2FB528).to_bytes(4, "little"))
    if with_size:
        frame.append(0b1110_0000)  # 8-byte content size, single segment: no window descriptor
        frame += (len(data) if declared is None else declared).to_bytes(8, "little")
    else:
        frame += bytes([0, 0x58])  # no content size; a window of 2 MiB
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)] or [b""]
    for i, block in enumerate(blocks):
        frame += (len(block) << 3 | (i == len(blocks) - 1)).to_bytes(3, "little") + block
    return bytes(frame)


def zstd_frame_bytes(frame):
    """Length of the zstd frame that `frame` begins with."""
    descriptor = frame[4]
    single_segment = descriptor >> 5 & 1
    size_field = (single_segment, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3] + size_field
    last = False
    while not last:
        header = int.from_bytes(frame[at : at + 3], "little")
        last = header & 1
        at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)  # run-length blocks hold one byte
    return at + 4 * (descriptor >> 2 & 1)


def zstd_skippable_frame(data):
    """A skippable frame: a decoder must step over it."""
    return (0x184D2A50).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data


def _crc32c_table():
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC32C = _crc32c_table()


def crc32c(data):
    """The checksum of shard indices (RFC 3720, reflected polynomial 0x82F63B78)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def crc32c_over(data):
    """What the codec `crc32c` makes of bytes."""
    return data + crc32c(data).to_bytes(4, "little")


def zstd_frame_without_size(frame):
    """The same frame as a streaming encoder would have begun it: a window and no content size."""
    descriptor = frame[4]
    single_segment = descriptor >> 5 & 1
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    end = at + (single_segment, 2, 4, 8)[descriptor >> 6]
    content = int.from_bytes(frame[at:end], "little") + (256 if end - at == 2 else 0)
    window = max(content - 1, 1 << 10).bit_length() - 10 << 3 if single_segment else frame[5]
    return frame[:4] + bytes([descriptor & 4, window]) + frame[end:]


def gzip_with_fields(member):
    """The same gzip member with every optional field of its header (RFC 1952)."""
    extra = b"zd" + (3).to_bytes(2, "little") + b"\x1f\x8b\x08"
    header = member[:3] + b"\x1e" + member[4:10] + len(extra).to_bytes(2, "little") + extra
    header += b"chunk\0" + b"of an array\0"
    return header + (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") + member[10:]


def snappy_encode(data):
    """Snappy's raw format: literals of all lengths and copies of all three kinds."""
    out = bytearray(_varint(len(data)))
    seen, literal, at = {}, 0, 0
    while at < len(data):
        match = seen.get(data[at : at + 4], -1) if at + 4 <= len(data) else -1
        seen[data[at : at + 4]] = at
        if match < 0:
            at += 1
            continue
        length = 4
        while at + length < len(data) and data[match + length] == data[at + length] and length < 200:
            length += 1
        out += _snappy_literal(data[literal:at])
        out += _snappy_copies(at - match, length)
        at += length
        literal = at
    return bytes(out + _snappy_literal(data[literal:]))


def _varint(number):
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _snappy_literal(data):
    if not data:
        return b""
    last = len(data) - 1
    if last < 60:
        return bytes([last << 2]) + data
    size = (last.bit_length() + 7) // 8
    return bytes([59 + size << 2]) + last.to_bytes(size, "little") + data


def _snappy_copies(offset, length):
    out = b""
    while length:
        part = min(length, 64)
        if 4 <= part <= 11 and offset < 2048:
            out += bytes([1 | part - 4 << 2 | offset >> 8 << 5, offset & 255])
        elif offset < 65536 and part % 5:
            out += bytes([2 | part - 1 << 2]) + offset.to_bytes(2, "little")
        else:
            out += bytes([3 | part - 1 << 2]) + offset.to_bytes(4, "little")
        length -= part
    return out


def snappy_decode(data):
    """Decodes Snappy's raw format; a ValueError for whatever is not exactly that."""

    def take(count):
        nonlocal at
        if at + count > len(data):
            raise ValueError("snappy: the stream ends early")
        at += count
        return data[at - count : at]

    at, declared, shift = 0, 0, 0
    while True:
        (byte,) = take(1)
        declared |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift > 28:
            raise ValueError("snappy: the length has too many bytes")
    out = bytearray()
    while at < len(data):
        (tag,) = take(1)
        kind, high = tag & 3, tag >> 2
        if kind == 0:
            length = 1 + (high if high < 60 else int.from_bytes(take(high - 59), "little"))
            out += take(length)
        else:
            length = 4 + (high & 7) if kind == 1 else 1 + high
            offset = int.from_bytes(take((0, 1, 2, 4)[kind]), "little") | (high >> 3 << 8 if kind == 1 else 0)
            if not 0 < offset <= len(out):
                raise ValueError("snappy: a copy from before the start")
            for _ in range(length):
                out.append(out[-offset])
        if len(out) > declared:
            raise ValueError("snappy: more data than declared")
    if len(out) != declared:
        raise ValueError("snappy: less data than declared")
    return bytes(out)
