"""Stores that are valid, and that few people have: `../hostile.py` reads them."""

import bz2
import itertools
import json
import os
import shutil
import warnings
import zlib

import numcodecs
import numpy as np
import zarr

import matrix
from cases import (
    CASES,
    MORE,
    VALUES,
    Read,
    add,
    case,
    codec_zstd,
    metadata,
    metadata_v2,
    plain,
    put,
    raw_v3,
    read,
    samples_of,
    sparse,
    zstd_v3,
)
from chains import CHAINS, WIDENED
from stores import (
    chunk_files,
    crc32c_over,
    edit_metadata,
    gzip_with_fields,
    random_values,
    read_array,
    snappy_encode,
    write_array,
    write_group,
    zstd_frame_without_size,
    zstd_raw_frame,
    zstd_skippable_frame,
)

# --- codec chains and data types ------------------------------------------------------------------


def of_matrix(case):
    """A store of the matrix, read as `test_matrix.py` does."""

    def make(folder):
        path = folder / "store.zarr"
        written = case.write(path)
        chain = CHAINS[case.chain]
        known = case.dtype not in WIDENED and chain.read_by_zarr_python
        values = matrix.as_read(read_array(path) if known else written, case.dtype)
        window = {"window": case.window} if case.window else {}
        any_nan = case.dtype in WIDENED and case.dtype != "bfloat16"
        return read(path, values, arguments=window, batch_size=1 if window else len(values), any_nan=any_nan)

    return make


def _of_matrix():
    """Each chain once, and of the other cases those of data types and layouts that did not come yet."""
    chains, pairs, rest = set(), set(), []
    for it in matrix.CASES:
        if it.chain not in chains and (it.dtype, it.layout) not in pairs:
            chains.add(it.chain)
            pairs.add((it.dtype, it.layout))
            yield f"chain-{it.chain}", "codec chains", it
        else:
            rest.append(it)
    for it in rest:
        if it.chain not in chains:
            chains.add(it.chain)
            yield f"chain-{it.chain}", "codec chains", it
    dtypes = set()
    for it in reversed(matrix.CASES):
        if it.dtype not in dtypes:
            dtypes.add(it.dtype)
            yield f"dtype-{it.dtype}", "data types", it


IN_TORCH = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")

_turn = itertools.count()
for _name, _kind, _case in _of_matrix():
    pending = matrix.pending(_case)
    add(
        _name,
        _kind,
        of_matrix(_case),
        "either" if pending else "values",
        interfaces=MORE[:3] if _case.dtype in IN_TORCH and next(_turn) % 4 == 0 else MORE[:2],
    )


# --- fill values ----------------------------------------------------------------------------------

FILLS = {
    "nan": ("float32", "NaN", 0x7FC00000),
    "nan-with-payload": ("float32", "0x7fc12345", 0x7FC12345),
    "nan-negative": ("float32", "0xffc00001", 0xFFC00001),
    "nan-signalling": ("float32", "0x7f800001", 0x7F800001),
    "nan-of-64-bits": ("float64", "0x7ff8dead0000beef", 0x7FF8DEAD0000BEEF),
    "nan-of-16-bits": ("float16", "0x7e01", 0x7E01),
    "infinity": ("float32", "Infinity", 0x7F800000),
    "minus-infinity": ("float64", "-Infinity", 0xFFF0000000000000),
    "minus-zero": ("float32", -0.0, 0x80000000),
    "hex-of-a-number": ("float32", "0x40490fdb", 0x40490FDB),
    "least-int64": ("int64", -(2**63), 2**63),
    "greatest-uint64": ("uint64", 2**64 - 1, 2**64 - 1),
    "greatest-int64": ("int64", 2**63 - 1, 2**63 - 1),
    "true": ("bool", True, 1),
    "subnormal": ("float64", 5e-324, 1),
    "integer-for-a-float": ("float32", 3, 0x40400000),
}


def _with_fill(dtype, fill, bits):
    def make(folder):
        size = np.dtype(dtype).itemsize
        values = np.full((6, 4), bits, dtype=f"u{size}").view(dtype)
        values[:2] = np.arange(8).reshape(2, 4).astype(dtype)
        codecs = raw_v3() if size > 1 else [{"name": "bytes"}]
        meta = metadata([6, 4], [2, 4], codecs, dtype, fill)
        return read(put(folder / "store.zarr", meta, {"c/0/0": values[:2].tobytes()}), values)

    return make


for _name, _fill in FILLS.items():
    add(f"fill-{_name}", "fill values", _with_fill(*_fill), "values")


@case("fill values", "values")
def fill_of_unlike_parts(folder):
    values = np.full((6, 4), 1.5 - 2j, "complex64")
    meta = metadata([6, 4], [2, 4], raw_v3(), "complex64", [1.5, -2.0])
    return read(put(folder / "store.zarr", meta), matrix.as_read(values, "complex64"))


@case("fill values", "values")
def fill_of_nan_and_infinity(folder):
    values = np.full((6, 4), complex(np.nan, -np.inf), "complex128")
    meta = metadata([6, 4], [2, 4], raw_v3(), "complex128", ["NaN", "-Infinity"])
    return read(put(folder / "store.zarr", meta), matrix.as_read(values, "complex128"))


@case("fill values", "values")
def fill_of_unlike_parts_as_hex(folder):
    values = np.zeros((6, 4), "complex64")
    values.view("uint32").reshape(6, 4, 2)[...] = 0x7FC12345, 0x80000000
    meta = metadata([6, 4], [2, 4], raw_v3(), "complex64", ["0x7fc12345", "0x80000000"])
    return read(put(folder / "store.zarr", meta), matrix.as_read(values, "complex64"))


@case("fill values", "either", says="fill")
def fill_of_v2_is_null(folder):
    """zarr-python reads zeros; others call it undefined."""
    path = put(folder / "store.zarr", metadata_v2([6, 4], [2, 4], fill_value=None))
    return read(path, np.zeros((6, 4), "float32"))


@case("fill values", "values")
def fill_of_a_v2_time_is_not_a_time(folder):
    path = put(folder / "store.zarr", metadata_v2([6], [2], "<M8[ns]", fill_value=-(2**63)))
    return read(path, np.full(6, -(2**63), "int64"))


# --- layouts --------------------------------------------------------------------------------------

LAYOUTS = {
    "chunk-larger-than-the-array": ((5, 7), (50, 70)),
    "chunk-much-larger": ((3,), (100_000,)),
    "edge-chunks": ((7, 11, 5), (3, 4, 2)),
    "one-element": ((1,), (1,)),
    "extents-of-one": ((4, 1, 1, 5, 1), (2, 1, 1, 2, 1)),
    "five-dimensions": ((3, 2, 3, 2, 3), (2, 1, 2, 1, 2)),
    "six-dimensions": ((3, 2, 2, 2, 2, 3), (2, 1, 2, 2, 1, 2)),
    "seven-dimensions": ((3, 2, 2, 1, 2, 2, 3), (1, 2, 1, 1, 2, 2, 2)),
    "eight-dimensions": ((3, 2, 2, 1, 2, 2, 1, 3), (2, 2, 1, 1, 2, 1, 1, 2)),
    "chunk-of-each-element": ((6, 5), (1, 1)),
    "long-and-thin": ((20_001, 1), (977, 1)),
    "prime-extents": ((13, 17), (5, 7)),
}


def _of_layout(shape, chunks, **options):
    def make(folder):
        values = random_values(np.random.default_rng(3), shape, "int32")
        path = write_array(folder / "store.zarr", "", values, chunks=chunks, **options)
        return read(path, values, batch_size=max(4, shape[0] // 8))

    return make


for _name, (_shape, _chunks) in LAYOUTS.items():
    add(f"layout-{_name}", "layouts", _of_layout(_shape, _chunks), "values", interfaces=MORE)
    add(
        f"layout-{_name}-v2-F-big",
        "layouts",
        _of_layout(_shape, _chunks, zarr_format=2, codec="raw", order="F", endian="big"),
        "values",
    )


@case("layouts", "error", says="sample|empty|extent|zero|0")
def layout_no_steps(folder):
    """An array of length 0 has no samples."""
    return read(put(folder / "store.zarr", metadata([0, 4], [2, 4])))


@case("layouts", "either")
def layout_steps_without_elements(folder):
    return read(put(folder / "store.zarr", metadata([4, 0], [2, 1])), np.zeros((4, 0), "float32"))


@case("layouts", "error", says="dimension")
def layout_no_dimensions(folder):
    return read(put(folder / "store.zarr", metadata([], []), {"c": b""}))


@case("layouts", "values")
def layout_huge_and_empty(folder):
    """2^62 elements, none of which has a chunk."""
    path = put(folder / "store.zarr", metadata([2**59, 8], [4, 8], fill_value=7))
    return Read(str(path), [np.full(8, 7, "float32")] * 12, batches=3)


# --- sharded chunks -------------------------------------------------------------------------------


def sharding(chunks, codecs=None, location="end", checksum=True):
    index = [*raw_v3()] + ([{"name": "crc32c"}] if checksum else [])
    return [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": list(chunks),
                "codecs": zstd_v3() if codecs is None else codecs,
                "index_codecs": index,
                "index_location": location,
            },
        }
    ]


MISSING = 2**64 - 1


def sharded_chunk(parts, location="end", checksum=True, order=None, gap=b""):
    """A sharded chunk by hand: `parts` are encoded inner chunks, None for a missing one."""
    index = np.full((len(parts), 2), MISSING, "<u8")
    size = index.nbytes + 4 * checksum
    at, body = (size if location == "start" else 0), b""
    for number in order or range(len(parts)):
        if parts[number] is not None:
            body += gap
            index[number] = at + len(body), len(parts[number])
            body += parts[number]
    encoded = crc32c_over(index.tobytes()) if checksum else index.tobytes()
    return encoded + body if location == "start" else body + encoded


def _zstd(values):
    return numcodecs.Zstd(level=1).encode(np.ascontiguousarray(values))


def _sharded_by_hand(folder, location="end", checksum=True, missing=(), **options):
    """[8, 6] in sharded chunks of [4, 6] of inner chunks [1, 6]."""
    values = VALUES[:8].copy()
    chunks = {}
    for shard in range(2):
        numbers = range(4 * shard, 4 * shard + 4)
        parts = [None if number in missing else _zstd(values[number]) for number in numbers]
        chunks[f"c/{shard}/0"] = sharded_chunk(parts, location, checksum, **options)
    values[list(missing)] = 0
    meta = metadata([8, 6], [4, 6], sharding([1, 6], None, location, checksum))
    return read(put(folder / "store.zarr", meta, chunks), values)


for _location in ("end", "start"):
    for _checksum in (True, False):
        _of = {"location": _location, "checksum": _checksum}
        _name = f"shard-index-at-{_location}{'' if _checksum else '-unchecked'}"
        add(
            _name,
            "sharded chunks",
            lambda folder, of=_of: _sharded_by_hand(folder, **of),
            "values",
            interfaces=MORE,
        )
        add(
            f"{_name}-holes",
            "sharded chunks",
            lambda folder, of=_of: _sharded_by_hand(folder, missing=(1, 2, 7), **of),
            "values",
        )
        add(
            f"{_name}-all-missing",
            "sharded chunks",
            lambda folder, of=_of: _sharded_by_hand(folder, missing=range(4, 8), **of),
            "values",
        )
        add(
            f"{_name}-any-order-and-gaps",
            "sharded chunks",
            lambda folder, of=_of: _sharded_by_hand(folder, order=(2, 0, 3, 1), gap=b"unused", **of),
            "values",
        )


@case("sharded chunks", "values")
def shard_with_shared_bytes(folder):
    """Two entries of the index are the same bytes, as of deduplicating writers."""
    part = _zstd(VALUES[0])
    index = np.array([[0, len(part)]] * 4, "<u8").tobytes()
    meta = metadata([4, 6], [4, 6], sharding([1, 6]))
    path = put(folder / "store.zarr", meta, {"c/0/0": part + crc32c_over(index)})
    return read(path, np.tile(VALUES[0], (4, 1)))


@case("sharded chunks", "values")
def shard_of_one_inner_chunk(folder):
    meta = metadata([4, 6], [2, 6], sharding([2, 6]))
    chunks = {f"c/{i}/0": sharded_chunk([_zstd(VALUES[2 * i : 2 * i + 2])]) for i in range(2)}
    return read(put(folder / "store.zarr", meta, chunks), VALUES[:4])


@case("sharded chunks", "values")
def shard_larger_than_the_array(folder):
    parts = [_zstd(np.concatenate([VALUES[i : i + 1], VALUES[i : i + 1] * 0])) for i in range(3)]
    parts = [_zstd(VALUES[:2]), _zstd(np.stack([VALUES[2], VALUES[2] * 0])), None, None]
    meta = metadata([3, 6], [8, 6], sharding([2, 6]))
    return read(put(folder / "store.zarr", meta, {"c/0/0": sharded_chunk(parts)}), VALUES[:3])


@case("sharded chunks", "values")
def shard_thrice_nested(folder):
    values = random_values(np.random.default_rng(1), (16, 8), "int32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = sharding([1, 8])
        for extent in (2, 4):
            inner = sharding([extent, 8], inner)
        array = zarr.create_array(
            str(folder / "store.zarr"),
            shape=values.shape,
            dtype="int32",
            chunks=(8, 8),
            serializer=inner[0],
            compressors=None,
        )
        array[...] = values
    return read(folder / "store.zarr", values)


@case("sharded chunks", "values")
def shard_without_elements_at_the_edge(folder):
    """Inner chunks that lie outside of the array altogether."""
    values = random_values(np.random.default_rng(2), (5, 9), "int32")
    path = write_array(
        folder / "store.zarr", "", values, chunks=(2, 2), shards=(8, 8), codec="sharded-end-zstd"
    )
    return read(path, values)


# --- what encoders rarely make --------------------------------------------------------------------


def of_frames(encode, codecs=None, v2=None):
    """[4, 250] in chunks of [2, 250], each encoded by `encode`."""

    def make(folder):
        values = np.repeat(np.arange(100, dtype="float32"), 10).reshape(4, 250)
        parts = [np.ascontiguousarray(values[i : i + 2]).tobytes() for i in (0, 2)]
        if v2 is not None:
            meta = metadata_v2([4, 250], [2, 250], **v2)
            chunks = {f"{i}.0": encode(part) for i, part in enumerate(parts)}
        else:
            meta = metadata([4, 250], [2, 250], [*raw_v3(), *([codec_zstd()] if codecs is None else codecs)])
            chunks = {f"c/{i}/0": encode(part) for i, part in enumerate(parts)}
        return read(put(folder / "store.zarr", meta, chunks), values)

    return make


def _zstd_bytes(data, **options):
    return numcodecs.Zstd(level=3, **options).encode(data)


def _gzip(data, level=6, window=31):
    encoder = zlib.compressobj(level, zlib.DEFLATED, window)
    return encoder.compress(data) + encoder.flush()


def _streamed(data, window, each=100):
    """Deflate with a flush behind each piece, and an empty one."""
    encoder = zlib.compressobj(6, zlib.DEFLATED, window)
    out = b""
    for at in range(0, len(data), each):
        out += encoder.compress(data[at : at + each]) + encoder.flush(zlib.Z_FULL_FLUSH)
    return out + encoder.flush()


def _fixed(data, window):
    encoder = zlib.compressobj(6, zlib.DEFLATED, window, 8, zlib.Z_FIXED)
    return encoder.compress(data) + encoder.flush()


GZIP, ZLIB = (
    [{"name": "gzip", "configuration": {"level": 5}}],
    [{"name": "numcodecs.zlib", "configuration": {"level": 5}}],
)
LZ4 = [{"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}]


def _lz4_literals(data):
    """One sequence of nothing but literals."""
    rest = len(data) - 15
    return len(data).to_bytes(4, "little") + b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + data


for _name, _make in {
    "zstd-without-size": of_frames(lambda data: zstd_frame_without_size(_zstd_bytes(data))),
    "zstd-checksum-without-size": of_frames(
        lambda data: zstd_frame_without_size(_zstd_bytes(data, checksum=True))
    ),
    "zstd-stored": of_frames(lambda data: zstd_raw_frame(data)),
    "zstd-stored-without-size": of_frames(lambda data: zstd_raw_frame(data, with_size=False)),
    "zstd-blocks-of-one-byte": of_frames(lambda data: zstd_raw_frame(data, block_bytes=1)),
    "zstd-two-frames": of_frames(lambda data: _zstd_bytes(data[:700]) + _zstd_bytes(data[700:])),
    "zstd-many-frames": of_frames(
        lambda data: b"".join(_zstd_bytes(data[at : at + 40]) for at in range(0, len(data), 40))
    ),
    "zstd-skippable-first": of_frames(lambda data: zstd_skippable_frame(b"note") + _zstd_bytes(data)),
    "zstd-skippable-last": of_frames(lambda data: _zstd_bytes(data) + zstd_skippable_frame(b"")),
    "zstd-skippable-between": of_frames(
        lambda data: _zstd_bytes(data[:9]) + zstd_skippable_frame(bytes(99)) + _zstd_bytes(data[9:])
    ),
    "zstd-empty-frame-first": of_frames(lambda data: _zstd_bytes(b"") + _zstd_bytes(data)),
    "gzip-two-members": of_frames(lambda data: _gzip(data[:999]) + _gzip(data[999:]), GZIP),
    "gzip-empty-member-last": of_frames(lambda data: _gzip(data) + _gzip(b""), GZIP),
    "gzip-stored": of_frames(lambda data: _gzip(data, 0), GZIP),
    "gzip-flushed": of_frames(lambda data: _streamed(data, 31), GZIP),
    "gzip-fixed-codes": of_frames(lambda data: _fixed(data, 31), GZIP),
    "gzip-window-of-512": of_frames(lambda data: _gzip(data, 6, 16 + 9), GZIP),
    "gzip-all-fields": of_frames(lambda data: gzip_with_fields(_gzip(data)), GZIP),
    "zlib-flushed": of_frames(lambda data: _streamed(data, 15), ZLIB),
    "zlib-fixed-codes": of_frames(lambda data: _fixed(data, 15), ZLIB),
    "zlib-window-of-512": of_frames(lambda data: _gzip(data, 6, 9), ZLIB),
    "zlib-of-v2-flushed": of_frames(
        lambda data: _streamed(data, 15), v2={"compressor": {"id": "zlib", "level": 1}}
    ),
    "bz2-of-v2-two-streams": of_frames(
        lambda data: bz2.compress(data[:99]) + bz2.compress(data[99:]),
        v2={"compressor": {"id": "bz2", "level": 1}},
    ),
    "lz4-all-literals": of_frames(_lz4_literals, LZ4),
    "snappy-of-v2": of_frames(snappy_encode, v2={"compressor": {"id": "snappy"}}),
    "crc32c-twice": of_frames(
        lambda data: crc32c_over(crc32c_over(data)), [{"name": "crc32c"}, {"name": "crc32c"}]
    ),
    "no-codec-but-bytes": of_frames(bytes, []),
}.items():
    # Several frames, members and streams are decoders' own business: read rightly, or refused.
    _several = any(word in _name for word in ("two", "many", "skippable", "empty", "snappy"))
    add(f"frames-{_name}", "encoders", _make, "either" if _several else "values")


def _blosc(folder, typesize, cname="lz4", shuffle=1, clevel=5, blocksize=0):
    values = np.repeat(np.arange(300, dtype="int32"), 5).reshape(4, 375)
    encoder = numcodecs.Blosc(cname, clevel, shuffle, blocksize)
    name = ("noshuffle", "shuffle", "bitshuffle")[shuffle]
    chain = {
        "name": "blosc",
        "configuration": {
            "cname": cname,
            "clevel": clevel,
            "shuffle": name,
            "typesize": typesize,
            "blocksize": blocksize,
        },
    }
    chunks = {}
    for i in (0, 2):
        # What numcodecs takes for the size of elements is that of the buffer's items.
        data = (
            np.frombuffer(values[i : i + 2].tobytes(), f"V{typesize}") if typesize > 1 else values[i : i + 2]
        )
        chunks[f"c/{i // 2}/0"] = encoder.encode(data if typesize > 1 else data.tobytes())
    meta = metadata([4, 375], [2, 375], [*raw_v3(), chain], "int32")
    return read(put(folder / "store.zarr", meta, chunks), values)


for _typesize in (1, 2, 3, 5, 8, 12, 25, 60, 125, 250):
    add(
        f"blosc-typesize-{_typesize}",
        "encoders",
        lambda folder, typesize=_typesize: _blosc(folder, typesize, shuffle=1 + typesize % 2),
        "values",
    )
add("blosc-stored", "encoders", lambda folder: _blosc(folder, 4, clevel=0), "values")
add("blosc-small-blocks", "encoders", lambda folder: _blosc(folder, 4, "zstd", 2, 1, 128), "values")


# --- keys and names -------------------------------------------------------------------------------


def _with_keys(encoding, name_of, fmt=3):
    def make(folder):
        keys = {name_of(i): _zstd(VALUES[2 * i : 2 * i + 2]) for i in range(5)}
        meta = metadata([10, 6], [2, 6], chunk_key_encoding=encoding)
        return read(put(folder / "store.zarr", meta, keys), VALUES)

    return make


for _name, _encoding, _key in (
    ("default-dots", {"name": "default", "configuration": {"separator": "."}}, "c.{}.0"),
    ("default-without-configuration", {"name": "default"}, "c/{}/0"),
    ("default-as-a-name", "default", "c/{}/0"),
    ("v2-dots", {"name": "v2", "configuration": {"separator": "."}}, "{}.0"),
    ("v2-slashes", {"name": "v2", "configuration": {"separator": "/"}}, "{}/0"),
    ("v2-without-configuration", {"name": "v2"}, "{}.0"),
):
    add(f"keys-{_name}", "keys and names", _with_keys(_encoding, _key.format), "values")

for _separator, _key in ((".", "{}.0"), ("/", "{}/0"), (None, "{}.0")):
    _more = {"dimension_separator": _separator} if _separator else {}
    add(
        f"keys-of-v2-{ {'.': 'dots', '/': 'slashes', None: 'not-told'}[_separator] }",
        "keys and names",
        lambda folder, key=_key, more=_more: read(
            put(
                folder / "store.zarr",
                metadata_v2([10, 6], [2, 6], **more),
                {key.format(i): VALUES[2 * i : 2 * i + 2].tobytes() for i in range(5)},
            ),
            VALUES,
        ),
        "values",
    )

NAMES = {
    "spaces": "a b  c",
    "percent": "100%20 %s %d",
    "unicode": "größe-日本-🌍",
    "combining": "e\u0301te\u0301",
    "quotes": 'it\'s "quoted"',
    "long": "n" * 250,
    "dots": "...a..b",
    "leading-dash": "-rf",
    "brackets": "a[0]",
    "star": "a*b?",
    "colon": "a:b",
    "newline": "a\nb",
    "braces": "{a}{0}",
    "deep": "/".join("level" for _ in range(60)),
    "tilde": "~user",
    "named-c": "c",
    "number": "0",
}
for _name, _array in NAMES.items():

    def _named(folder, name=_array):
        write_group(folder / "store.zarr")
        write_array(folder / "store.zarr", name, VALUES, chunks=(2, 6))
        return read(folder / "store.zarr", VALUES, arguments={"arrays": [name]})

    add(
        f"name-{_name}",
        "keys and names",
        _named,
        "values",
        interfaces=("operator", "info", "loader"),
    )

    def _folder_named(folder, name=_array):
        path = write_array(folder / "store.zarr", name, VALUES, chunks=(2, 6))
        return read(path, VALUES)

    add(f"folder-{_name}", "keys and names", _folder_named, "values")


@case("keys and names", "values")
def path_with_a_slash_behind(folder):
    return read(f"{plain(folder)}/", VALUES)


@case("keys and names", "values")
def path_with_dots(folder):
    plain(folder)
    (folder / "other").mkdir()
    return read(f"{folder}/other/.././store.zarr//", VALUES)


@case("keys and names", "values")
def path_relative(folder):
    return read(os.path.relpath(plain(folder)), VALUES)


@case("keys and names", "values")
def path_longer_than_255(folder):
    path = folder / "/".join("p" * 200 for _ in range(8)) / "store.zarr"
    return read(write_array(path, "", VALUES, chunks=(2, 6)), VALUES)


# --- metadata -------------------------------------------------------------------------------------


def edited(change, **options):
    """The plain store with other metadata."""

    def make(folder):
        path = plain(folder, **options)
        v2 = options.get("zarr_format") == 2
        edit_metadata(path / (".zarray" if v2 else "zarr.json"), change)
        return read(path, VALUES)

    return make


for _name, _change in {
    "unknown-field-that-may-be-ignored": {"later": {"must_understand": False, "x": 1}},
    "attributes-of-all-kinds": {"attributes": {"a": None, "b": [1, [2, {}]], "c": {"d": 1e300}, "é": "ü"}},
    "large-attributes": {"attributes": {f"key{i}": "x" * 100 for i in range(20_000)}},
    "dimension-names-with-null": {"dimension_names": ["time", None]},
    "dimension-names-alike": {"dimension_names": ["x", "x"]},
    "storage-transformers-empty": {"storage_transformers": []},
    "integral-float": {"fill_value": 0.0},
}.items():
    add(
        f"metadata-{_name}",
        "metadata",
        edited(lambda meta, change=_change: meta.update(change)),
        "values",
    )


@case("metadata", "values")
def metadata_with_nan_in_attributes(folder):
    """Not JSON, and what Python writes all the same."""
    path = plain(folder, codec="raw", zarr_format=2)
    (path / ".zattrs").write_text('{"valid_min": NaN, "valid_max": Infinity, "least": -Infinity}')
    return read(path, VALUES)


@case("metadata", "values")
def metadata_of_v3_with_nan_in_attributes(folder):
    path = plain(folder)
    text = (path / "zarr.json").read_text()
    meta = json.loads(text)
    meta["attributes"] = {"valid_min": float("nan"), "valid_max": float("inf")}
    (path / "zarr.json").write_text(json.dumps(meta))
    return read(path, VALUES)


@case("metadata", "values")
def metadata_without_v2_attributes(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    (path / ".zattrs").unlink(missing_ok=True)
    return read(path, VALUES)


@case("metadata", "values")
def metadata_with_white_space(folder):
    path = plain(folder)
    file = path / "zarr.json"
    file.write_text("\r\n\t " + json.dumps(json.loads(file.read_text()), indent=7) + "\n" * 5000)
    return read(path, VALUES)


@case("metadata", "values")
def metadata_as_escapes(folder):
    path = plain(folder)
    meta = json.loads((path / "zarr.json").read_text())
    meta["attributes"] = {"\u00fc": "\U0001f30d\u0000\ud83c\udf0d"[:2]}
    text = json.dumps(meta).replace('"zstd"', '"\\u007a\\u0073td"')
    (path / "zarr.json").write_text(text)
    return read(path, VALUES)


def _consolidated(folder, zarr_format, stale=False):
    store = folder / "store.zarr"
    write_group(store, zarr_format)
    codec = "raw"
    write_array(store, "a", VALUES, chunks=(2, 6), codec=codec, zarr_format=zarr_format)
    write_group(store, zarr_format, consolidated=True)
    if stale:
        # One that has come since, which the consolidated metadata does not know.
        write_array(store, "b", VALUES + 1, chunks=(5, 6), codec=codec, zarr_format=zarr_format)
        return read(store, VALUES + 1, arguments={"arrays": ["b"]})
    return read(store, VALUES, arguments={"arrays": ["a"]})


for _format in (2, 3):
    add(
        f"consolidated-v{_format}",
        "metadata",
        lambda folder, fmt=_format: _consolidated(folder, fmt),
        "values",
        interfaces=MORE,
    )
    add(
        f"consolidated-v{_format}-stale",
        "metadata",
        lambda folder, fmt=_format: _consolidated(folder, fmt, stale=True),
        "either",
    )


@case("metadata", "either", says="v2|v3|both|zarray")
def metadata_of_both_formats(folder):
    """The same array in v2 and v3 terms, as while a store is being converted."""
    path = put(
        folder / "store.zarr",
        metadata(
            [10, 6], [2, 6], raw_v3(), chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}}
        ),
        {f"{i}.0": VALUES[2 * i : 2 * i + 2].tobytes() for i in range(5)},
    )
    put(path, metadata_v2([10, 6], [2, 6]))
    return read(path, VALUES)


@case("metadata", "values")
def metadata_in_a_thousand_arrays(folder):
    store = folder / "store.zarr"
    put(store, {"zarr_format": 3, "node_type": "group"})
    for i in range(1000):
        put(store / f"a{i}", metadata([10, 6], [2, 6], fill_value=i))
    return read(store, np.full((10, 6), 7, "float32"), arguments={"arrays": ["a7"]})


# --- files ----------------------------------------------------------------------------------------


def _linked(folder, leaves, what):
    path = plain(folder)
    (folder / "elsewhere").mkdir()
    inside = path / "kept"
    target = folder / "elsewhere" if leaves else inside
    target.mkdir(exist_ok=True)
    if what == "chunk":
        for number, file in enumerate(chunk_files(path)):
            if "kept" not in file.parts:
                moved = target / f"{number}.chunk"
                shutil.move(file, moved)
                file.symlink_to(moved if leaves else os.path.relpath(moved, file.parent))
    elif what == "folder":
        shutil.move(path / "c", target / "c")
        (path / "c").symlink_to(target / "c")
    elif what == "metadata":
        shutil.move(path / "zarr.json", target / "meta.json")
        (path / "zarr.json").symlink_to(target / "meta.json")
    else:
        shutil.move(path, folder / "elsewhere" / "real")
        path.symlink_to(folder / "elsewhere" / "real")
    return read(path, VALUES)


for _leaves in (False, True):
    for _what in ("chunk", "folder", "metadata"):
        add(
            f"link-{_what}-{'that-leaves' if _leaves else 'inside'}",
            "files",
            lambda folder, leaves=_leaves, what=_what: _linked(folder, leaves, what),
            "values",
        )
add("link-store", "files", lambda folder: _linked(folder, True, "store"), "values")


@case("files", "values")
def link_hard(folder):
    path = plain(folder, values=np.tile(VALUES[:2], (5, 1)))
    files = chunk_files(path)
    for file in files[1:]:
        file.unlink()
        os.link(files[0], file)
    return read(path, np.tile(VALUES[:2], (5, 1)))


@case("files", "values")
def link_chain_of_ten(folder):
    path = plain(folder)
    file = chunk_files(path)[0]
    shutil.move(file, folder / "link0")
    for i in range(10):
        (folder / f"link{i + 1}").symlink_to(f"link{i}")
    file.symlink_to(folder / "link10")
    return read(path, VALUES)


@case("files", "values", unprivileged=True)
def folder_that_is_read_only(folder):
    path = plain(folder)
    for file in [*path.rglob("*"), path]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    return read(path, VALUES)


@case("files", "values", unprivileged=True)
def folder_that_cannot_be_listed(folder):
    """Files can be opened by name all the same."""
    path = plain(folder)
    for inner in [*(it for it in path.rglob("*") if it.is_dir()), path]:
        inner.chmod(0o711)
    return read(path, VALUES)


@case("files", "values")
def files_of_others_among_chunks(folder):
    path = plain(folder)
    for name in (".DS_Store", "c/._0", "c/0/0.tmp", "zarr.json~", "c/99/99", "README", "c/x/y/z"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("not a chunk")
    return read(path, VALUES)


@case("files", "values")
def files_that_are_sparse(folder):
    """A raw chunk of zeros that takes no space."""
    path = put(folder / "store.zarr", metadata([4, 1000], [4, 1000], raw_v3()))
    sparse(path / "c/0/0", 16_000)
    return read(path, np.zeros((4, 1000), "float32"))


@case("files", "values")
def files_of_another_time(folder):
    """Dated 1901 and 2200."""
    path = plain(folder)
    for number, file in enumerate(chunk_files(path)):
        os.utime(file, (0, (-(2**31), 7_258_118_400)[number % 2]))
    return read(path, VALUES)


# --- several stores -------------------------------------------------------------------------------


def _parts(folder, names):
    paths = []
    for i, name in enumerate(names):
        paths.append(
            write_array(
                folder / "store.zarr",
                name,
                VALUES + 100 * i,
                chunks=(2 + i % 3, 6),
                codec=("zstd", "raw", "gzip")[i % 3],
                zarr_format=2 + i % 2,
            )
        )
    return [str(path) for path in paths], np.concatenate([VALUES + 100 * i for i in range(len(names))])


@case("several stores", "values")
def joined_of_both_formats(folder):
    paths, values = _parts(folder, ["a", "b", "c"])
    return Read(paths, samples_of(values, [3]), arguments={"window": [3]})


@case("several stores", "error", says="same store")
def joined_with_itself(folder):
    """Taken for a slip of the pen."""
    return Read([str(plain(folder))] * 2)


@case("several stores", "values")
def pattern_of_years(folder):
    _, values = _parts(folder, ["y1.zarr", "y2.zarr", "y10.zarr"])
    return Read(f"{folder}/store.zarr/y*.zarr", samples_of(values), batch_size=8)


@case("several stores", "values")
def pattern_of_brackets(folder):
    _, values = _parts(folder, ["ya", "yb"])
    return Read(f"{folder}/store.zarr/y[ab]", samples_of(values), batch_size=8)


@case("several stores", "values")
def pattern_in_two_folders(folder):
    _, values = _parts(folder, ["p/q1", "p/q2", "r/q1"])
    return Read(f"{folder}/store.zarr/?/q*", samples_of(values), batch_size=8)


@case("several stores", "values")
def joined_of_two_hundred(folder):
    for i in range(200):
        put(folder / "store.zarr" / f"n{i}", metadata([3, 6], [2, 6], fill_value=i))
    values = np.repeat(np.arange(200, dtype="float32"), 18).reshape(600, 6)
    return Read(f"{folder}/store.zarr/n*", samples_of(values), batch_size=64)


assert len(CASES) >= 160
