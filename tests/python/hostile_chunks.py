"""Chunks that are huge, sparse, bombs or damaged: `../hostile.py` reads them."""

import bz2
import zlib
from random import Random

import damage
import numcodecs
import numpy as np

from cases import (
    BLOSC,
    BYTES,
    CHUNK,
    MIB,
    TIB,
    VALUES,
    WITH_RECHUNK,
    ZSTD,
    Read,
    add,
    case,
    metadata,
    metadata_v2,
    put,
    raw_v3,
    read,
    sparse,
    zstd_v3,
)
from chains import codec
from exotic import MISSING, sharded_chunk, sharding
from stores import crc32c_over

SEED = 1
"""Of the damage to chunks; `../hostile.py` sets it."""
# --- huge numbers ---------------------------------------------------------------------------------


def _huge(shape, chunks, codecs=None, files=None, window=None, batches=2, batch_size=4, **options):
    def make(folder):
        path = put(folder / "store.zarr", metadata(shape, chunks, codecs, **options), files or {})
        arguments = {"window": window} if window else {}
        return Read(str(path), None, arguments=arguments, batches=batches, batch_size=batch_size)

    return make


_SMALL = numcodecs.Zstd(level=1).encode(bytes(4000))
# A chunk larger than what the budget could ever hold is refused; without a file it may be filled.
for _name, _chunk in {
    "2-to-31-squared": [2**31, 2**31],
    "2-to-40": [2**40, 1],
    "10-GB": [50_000, 50_000],
}.items():
    add(
        f"huge-chunk-{_name}",
        "huge numbers",
        _huge([10, 10], _chunk, files={"c/0/0": _SMALL}),
        "error",
        says="\\d",
    )
    add(
        f"huge-chunk-{_name}-raw",
        "huge numbers",
        _huge([10, 10], _chunk, raw_v3(), {"c/0/0": bytes(4000)}),
        "error",
    )
    add(
        f"huge-chunk-{_name}-v2-blosc",
        "huge numbers",
        lambda folder, chunk=_chunk: Read(
            str(
                put(
                    folder / "store.zarr",
                    metadata_v2(
                        [10, 10],
                        chunk,
                        compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
                    ),
                    {"0.0": numcodecs.Blosc().encode(bytes(4000))},
                )
            ),
            None,
        ),
        "error",
    )
    add(f"huge-chunk-{_name}-missing", "huge numbers", _huge([10, 10], _chunk, fill_value=3), "either")
add(
    "huge-chunk-10-GB-gzip",
    "huge numbers",
    _huge(
        [10, 10], [50_000, 50_000], [BYTES, codec("gzip", level=1)], {"c/0/0": zlib.compress(b"", wbits=31)}
    ),
    "error",
)
add(
    "huge-chunk-in-a-shard",
    "huge numbers",
    _huge([10, 10], [2**20, 2**20], sharding([2**19, 2**20]), {"c/0/0": sharded_chunk([_SMALL, None])}),
    "error",
)
for _name, _part in (("unlike", [1.5, -2.0]), ("nan", ["NaN", 0.0]), ("alike", [3.0, 3.0])):
    add(
        f"huge-chunk-of-complex-fill-{_name}",
        "huge numbers",
        _huge([2**40], [2**40], raw_v3(), data_type="complex64", fill_value=_part, window=[4]),
        "either",
    )
add(
    "huge-chunk-of-odd-fill",
    "huge numbers",
    _huge([2**40], [2**40], raw_v3(), data_type="uint16", fill_value=258, window=[4]),
    "either",
)
add("huge-shape-2-to-62", "huge numbers", _huge([2**62], [4], fill_value=7, window=[4]), "either")
add("huge-shape-2-to-63-and-chunks-of-one", "huge numbers", _huge([2**63], [1], window=[1]), "either")
add(
    "huge-shape-whose-product-overflows",
    "huge numbers",
    _huge([2**33, 2**33], [2, 2], window=[2, 2]),
    "either",
)
add(
    "huge-shape-all-overflow",
    "huge numbers",
    _huge([2**63, 2**63, 2**63], [1, 1, 1], window=[1, 1, 1]),
    "either",
)
add("huge-chunk-grid-overflow", "huge numbers", _huge([2**40, 2**40], [1, 1], window=[1, 1]), "either")
add("huge-sample", "huge numbers", _huge([10, 2**40], [1, 2**20]), "error", says="\\d")
add("huge-sample-of-100-GB", "huge numbers", _huge([10, 25_000_000_000], [1, 2**20]), "error", says="\\d")
add("huge-window", "huge numbers", _huge([2**40], [2**20], window=[2**38]), "error", says="\\d")
add(
    "huge-number-of-dimensions",
    "huge numbers",
    _huge([1] * 5000, [1] * 5000),
    "either",
)
add(
    "huge-number-of-codecs",
    "huge numbers",
    _huge([4, 4], [2, 4], [*raw_v3(), *[{"name": "crc32c"}] * 20_000]),
    "either",
    patience=2,
)


@case("huge numbers", "either", budget_bytes=16 * MIB, patience=3)
def huge_number_of_missing_chunks(folder):
    """A million chunks of a byte in each sample."""
    path = put(folder / "store.zarr", metadata([4, 1_000_000], [1, 1], [{"name": "bytes"}], "uint8", 5))
    return read(path, np.full((4, 1_000_000), 5, "uint8"), batch_size=1)


@case("huge numbers", "either", budget_bytes=16 * MIB, patience=3)
def huge_number_of_inner_chunks(folder):
    """A million inner chunks of a byte in each sample."""
    count = 1_000_000
    values = np.tile(np.arange(100, dtype="uint8"), (2, count // 100))
    index = np.stack([np.arange(count, dtype="<u8"), np.ones(count, "<u8")], axis=1).tobytes()
    chunks = {f"c/{i}/0": values[i].tobytes() + index for i in range(2)}
    codecs = sharding([1, 1], [{"name": "bytes"}], checksum=False)
    path = put(folder / "store.zarr", metadata([2, count], [1, count], codecs, "uint8"), chunks)
    return read(path, values, batch_size=1)


@case("huge numbers", "either", budget_bytes=16 * MIB, patience=3)
def huge_number_of_samples_to_shuffle(folder):
    """2^26 single samples, no two of which have a chunk in common."""
    path = put(folder / "store.zarr", metadata([2**26, 1], [1, 1], [{"name": "bytes"}], "uint8", 5))
    return Read(
        str(path), [np.full(1, 5, "uint8")] * 8, arguments={"random_shuffle": True, "seed": 1}, batches=2
    )


@case("huge numbers", "either", budget_bytes=16 * MIB, patience=3)
def huge_number_of_samples_to_shuffle_in_chunks(folder):
    path = put(folder / "store.zarr", metadata([2**40, 1], [2**10, 1], [{"name": "bytes"}], "uint8", 5))
    return Read(
        str(path), [np.full(1, 5, "uint8")] * 8, arguments={"random_shuffle": True, "seed": 1}, batches=2
    )


@case("huge numbers", "either", patience=2)
def huge_number_of_excluded_samples(folder):
    path = put(folder / "store.zarr", metadata([2**40, 1], [2**10, 1], [{"name": "bytes"}], "uint8", 5))
    return Read(str(path), None, arguments={"exclude": list(range(0, 100_000, 2))}, batches=2)


# --- sparse files ---------------------------------------------------------------------------------


def _sparse_chunk(codecs, size=TIB, shape=(4, 6), chunks=(2, 6), keep=b"", data_type="float32", key="c/0/0"):
    def make(folder):
        path = put(folder / "store.zarr", metadata(shape, chunks, codecs, data_type), {key: keep})
        sparse(path / key, size)
        return read(path)

    return make


SPARSE = {
    "raw": raw_v3(),
    "zstd": zstd_v3(),
    "gzip": [BYTES, codec("gzip", level=1)],
    "blosc": [BYTES, codec("blosc", **BLOSC)],
    "lz4": [BYTES, codec("numcodecs.lz4", acceleration=1)],
    "zlib": [BYTES, codec("numcodecs.zlib", level=1)],
    "bz2": [BYTES, codec("numcodecs.bz2", level=1)],
    "crc32c": [BYTES, {"name": "crc32c"}],
    "shuffle": [BYTES, codec("numcodecs.shuffle", elementsize=4), ZSTD],
    "pcodec": [codec("numcodecs.pcodec", level=3, mode_spec="auto")],
}
for _name, _chain in SPARSE.items():
    add(
        f"sparse-chunk-{_name}",
        "sparse files",
        _sparse_chunk(_chain),
        "error",
        says=CHUNK,
        interfaces=("operator", "info"),
    )
for _location in ("end", "start"):
    for _checksum in (True, False):
        add(
            f"sparse-shard-index-at-{_location}{'' if _checksum else '-unchecked'}",
            "sparse files",
            _sparse_chunk(sharding([1, 6], None, _location, _checksum)),
            "error",
            says=CHUNK,
        )
        # The index alone has 16 GiB.
        add(
            f"sparse-huge-shard-index-at-{_location}{'' if _checksum else '-unchecked'}",
            "sparse files",
            _sparse_chunk(
                sharding([1], [{"name": "bytes"}], _location, _checksum),
                shape=[2**30],
                chunks=[2**30],
                data_type="uint8",
                key="c/0",
            ),
            "error",
            says="\\d",
        )
add(
    "sparse-good-zstd-frame",
    "sparse files",
    _sparse_chunk(zstd_v3(), keep=numcodecs.Zstd().encode(VALUES[:2])),
    "error",
    says=CHUNK,
)
add(
    "sparse-good-blosc",
    "sparse files",
    _sparse_chunk(SPARSE["blosc"], keep=numcodecs.Blosc().encode(VALUES[:2])),
    "either",
)


# --- bombs ----------------------------------------------------------------------------------------

BOMB = 512 * MIB
"""Bytes that come out of a bomb, or more; 4000 are expected. Not for `rechunk`: zarr-python's decoders have
no limit."""


def zstd_bomb(size_bytes, with_size=False):
    """Run-length blocks of zeros, four bytes for each 128 KiB."""
    block = 128 << 10
    count = -(-size_bytes // block)
    frame = (0xFD2FB528).to_bytes(4, "little")
    if with_size:
        frame += bytes([0b1100_0000, 0x38]) + (count * block).to_bytes(8, "little")
    else:
        frame += bytes([0, 0x38])
    header = block << 3 | 1 << 1
    return (
        frame
        + (header.to_bytes(3, "little") + b"\0") * (count - 1)
        + (header | 1).to_bytes(3, "little")
        + b"\0"
    )


def deflate_bomb(size_bytes, window):
    encoder = zlib.compressobj(1, zlib.DEFLATED, window)
    piece = bytes(16 * MIB)
    return b"".join(encoder.compress(piece) for _ in range(size_bytes // len(piece))) + encoder.flush()


def bz2_bomb(size_bytes):
    encoder = bz2.BZ2Compressor(9)
    piece = bytes(16 * MIB)
    return b"".join(encoder.compress(piece) for _ in range(size_bytes // len(piece))) + encoder.flush()


def lz4_bomb(size_bytes, declared=None):
    """A literal, and a match at offset 1 that goes on and on."""
    header = (size_bytes if declared is None else declared).to_bytes(4, "little")
    rest = size_bytes - 1 - 4 - 15 - 5
    block = b"\x1f\0\x01\0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + b"\x50\0\0\0\0\0"
    return header + block


def snappy_bomb(size_bytes):
    copies = (size_bytes - 1) // 64
    size = 1 + 64 * copies
    varint = bytearray()
    while size >= 128:
        varint.append(size & 127 | 128)
        size >>= 7
    return bytes(varint) + bytes([size]) + b"\0\0" + bytes([0xFE, 1, 0]) * copies


def blosc_header(nbytes, cbytes, blocksize=None, flags=0b0010_0001, typesize=4):
    """Version 2; LZ4, shuffled."""
    fields = b"".join(it.to_bytes(4, "little") for it in (nbytes, blocksize or nbytes, cbytes))
    return bytes([2, 1, flags, typesize]) + fields


def blosc_bomb(size_bytes, cname="lz4"):
    return numcodecs.Blosc(cname, 5, numcodecs.Blosc.SHUFFLE).encode(bytes(size_bytes))


def pcodec_bomb(size_bytes):
    from numcodecs.pcodec import PCodec

    return bytes(PCodec(level=0).encode(np.zeros(size_bytes // 4, "float32")))


_GZIP, _ZLIB, _LZ4 = SPARSE["gzip"][1], SPARSE["zlib"][1], SPARSE["lz4"][1]
_BZ2, _BLOSC_CODEC, _CRC = SPARSE["bz2"][1], SPARSE["blosc"][1], {"name": "crc32c"}
_SHUFFLE = codec("numcodecs.shuffle", elementsize=4)


def _bomb(codecs, encode, key="c/0/0", meta=None):
    def make(folder):
        entries = meta or metadata([4, 500], [2, 500], codecs)
        path = put(folder / "store.zarr", entries, {key: encode()})
        return read(path)

    return make


def _twice(encode, outer):
    return lambda: outer(encode())


def _zstd(data):
    return numcodecs.Zstd(level=1).encode(data)


def _gzip(data):
    return zlib.compress(data, 1, wbits=31)


BOMBS = {
    "zstd": ([BYTES, ZSTD], lambda: zstd_bomb(8 * BOMB)),
    "zstd-with-size": ([BYTES, ZSTD], lambda: zstd_bomb(8 * BOMB, with_size=True)),
    "zstd-many-frames": ([BYTES, ZSTD], lambda: zstd_bomb(8 * MIB) * 512),
    "zstd-empty-frames": ([BYTES, ZSTD], lambda: _zstd(b"") * 2_000_000),
    "zstd-great-window": (
        [BYTES, ZSTD],
        lambda: zstd_bomb(MIB)[:5] + b"\xf8" + zstd_bomb(MIB)[6:],
    ),
    "zstd-twice": ([BYTES, ZSTD, ZSTD], _twice(lambda: zstd_bomb(8 * BOMB), _zstd)),
    "zstd-below-crc32c": ([BYTES, ZSTD, _CRC], lambda: _fast_crc(zstd_bomb(8 * BOMB))),
    "zstd-below-gzip": ([BYTES, ZSTD, _GZIP], _twice(lambda: zstd_bomb(8 * BOMB), _gzip)),
    "zstd-below-shuffle": ([BYTES, _SHUFFLE, ZSTD], lambda: zstd_bomb(8 * BOMB)),
    "gzip": ([BYTES, _GZIP], lambda: deflate_bomb(BOMB, 31)),
    "gzip-many-members": ([BYTES, _GZIP], lambda: deflate_bomb(32 * MIB, 31) * 32),
    "gzip-twice": ([BYTES, _GZIP, _GZIP], _twice(lambda: deflate_bomb(BOMB, 31), _gzip)),
    "gzip-below-zstd": ([BYTES, _GZIP, ZSTD], _twice(lambda: deflate_bomb(BOMB, 31), _zstd)),
    "zlib": ([BYTES, _ZLIB], lambda: deflate_bomb(BOMB, 15)),
    "bz2": ([BYTES, _BZ2], lambda: bz2_bomb(BOMB)),
    "bz2-many-streams": ([BYTES, _BZ2], lambda: bz2_bomb(32 * MIB) * 64),
    "lz4": ([BYTES, _LZ4], lambda: lz4_bomb(BOMB)),
    "lz4-that-declares-little": ([BYTES, _LZ4], lambda: lz4_bomb(BOMB, declared=4000)),
    "lz4-that-claims-2-GB": ([BYTES, _LZ4], lambda: lz4_bomb(4000, declared=2**31 - 1)),
    "lz4-below-zstd": ([BYTES, _LZ4, ZSTD], _twice(lambda: lz4_bomb(BOMB), _zstd)),
    "blosc": ([BYTES, _BLOSC_CODEC], lambda: blosc_bomb(BOMB)),
    "blosc-zstd": ([BYTES, _BLOSC_CODEC], lambda: blosc_bomb(BOMB, "zstd")),
    "blosc-below-zstd": ([BYTES, _BLOSC_CODEC, ZSTD], _twice(lambda: blosc_bomb(BOMB), _zstd)),
    "blosc-below-gzip": ([BYTES, _BLOSC_CODEC, _GZIP], _twice(lambda: blosc_bomb(BOMB), _gzip)),
    "blosc-twice": (
        [BYTES, _BLOSC_CODEC, _BLOSC_CODEC],
        _twice(lambda: blosc_bomb(BOMB), numcodecs.Blosc().encode),
    ),
    "blosc-that-claims-2-GB": (
        [BYTES, _BLOSC_CODEC],
        lambda: blosc_header(2**31 - 17, 116) + bytes(100),
    ),
    "blosc-that-claims-2-GB-below-zstd": (
        [BYTES, _BLOSC_CODEC, ZSTD],
        lambda: _zstd(blosc_header(2**31 - 17, 116) + bytes(100)),
    ),
    "blosc-with-a-block-of-2-GB": (
        [BYTES, _BLOSC_CODEC],
        lambda: blosc_header(4000, 116, blocksize=2**31 - 17) + bytes(100),
    ),
    "blosc-with-blocks-of-1": (
        [BYTES, _BLOSC_CODEC],
        lambda: blosc_header(4000, 116, blocksize=1) + bytes(100),
    ),
    "blosc-with-blocks-of-0": (
        [BYTES, _BLOSC_CODEC],
        lambda: blosc_header(4000, 116)[:8] + bytes(4) + blosc_header(4000, 116)[12:] + bytes(100),
    ),
    "blosc-stored-that-claims-2-GB": (
        [BYTES, _BLOSC_CODEC],
        lambda: blosc_header(2**31 - 17, 2**31 - 1, flags=0b10) + bytes(4000),
    ),
    "pcodec": ([codec("numcodecs.pcodec", level=3, mode_spec="auto")], lambda: pcodec_bomb(BOMB)),
    "in-a-shard": (sharding([1, 500]), lambda: sharded_chunk([zstd_bomb(8 * BOMB), None])),
    "of-a-shard": ([*sharding([1, 500]), ZSTD], lambda: zstd_bomb(8 * BOMB)),
    "of-a-nested-shard": (
        sharding([2, 500], sharding([1, 500])),
        lambda: sharded_chunk([sharded_chunk([zstd_bomb(8 * BOMB), None])]),
    ),
    "of-an-index-in-gzip": ([*sharding([1, 500]), _GZIP], lambda: deflate_bomb(BOMB, 31)),
}
for _name, (_chain, _encode) in BOMBS.items():
    add(
        f"bomb-{_name}",
        "bombs",
        _bomb(_chain, _encode),
        "error",
        says=CHUNK,
        interfaces=("operator",),
    )
for _name, _compressor, _encode in (
    ("snappy", {"id": "snappy"}, lambda: snappy_bomb(BOMB)),
    ("snappy-that-claims-4-GB", {"id": "snappy"}, lambda: b"\xff\xff\xff\xff\x0f\x00a"),
    ("bz2", {"id": "bz2", "level": 9}, lambda: bz2_bomb(BOMB)),
    ("zlib", {"id": "zlib", "level": 9}, lambda: deflate_bomb(BOMB, 15)),
    ("pcodec", {"id": "pcodec", "level": 3}, lambda: pcodec_bomb(BOMB)),
    ("zstd", {"id": "zstd", "level": 1}, lambda: zstd_bomb(8 * BOMB)),
):
    add(
        f"bomb-v2-{_name}",
        "bombs",
        _bomb(None, _encode, "0.0", metadata_v2([4, 500], [2, 500], compressor=_compressor)),
        "error",
        says=CHUNK,
        interfaces=("operator",),
    )
for _name, _filter, _encode in (
    ("shuffle-zstd", {"id": "shuffle", "elementsize": 4}, lambda: zstd_bomb(8 * BOMB)),
    ("delta-zstd", {"id": "delta", "dtype": "<f4", "astype": "<f4"}, lambda: zstd_bomb(8 * BOMB)),
    (
        "fixedscaleoffset-zstd",
        {"id": "fixedscaleoffset", "scale": 1, "offset": 0, "dtype": "<f4", "astype": "<i2"},
        lambda: zstd_bomb(8 * BOMB),
    ),
):
    add(
        f"bomb-v2-{_name}",
        "bombs",
        _bomb(
            None,
            _encode,
            "0.0",
            metadata_v2([4, 500], [2, 500], filters=[_filter], compressor={"id": "zstd", "level": 1}),
        ),
        "error",
        says=CHUNK,
        interfaces=("operator",),
    )


def _fast_crc(data):
    return crc32c_over(data)


# --- shard indexes --------------------------------------------------------------------------------


def _with_index(entries, location="end", checksum=True, repaired=True, body=None, values=VALUES[:4]):
    """[4, 6] in one sharded chunk of inner chunks [1, 6], whose index is given; `...` keeps an entry."""

    def make(folder):
        parts = [numcodecs.Zstd(level=1).encode(np.ascontiguousarray(row)) for row in VALUES[:4]]
        data = bytearray(sharded_chunk(parts, location, checksum))
        size = 64
        at = 0 if location == "start" else len(data) - size - 4 * checksum
        index = np.frombuffer(bytes(data[at : at + size]), "<u8").reshape(4, 2).copy()
        for number, entry in enumerate(entries):
            if entry is not ...:
                index[number] = entry
        encoded = crc32c_over(index.tobytes()) if checksum and repaired else index.tobytes()
        data[at : at + len(encoded)] = encoded
        meta = metadata([4, 6], [4, 6], sharding([1, 6], None, location, checksum))
        return read(put(folder / "store.zarr", meta, {"c/0/0": body(data) if body else bytes(data)}), values)

    return make


INDEXES = {
    "beyond-the-end": ([(10_000, 50)], "error"),
    "beyond-by-one": ([..., ..., ..., (100, 100_000)], "error"),
    "near-2-to-64": ([(2**64 - 100, 50)], "error"),
    "that-overflows": ([(2**64 - 10, 20)], "error"),
    "length-2-to-64": ([(0, 2**64 - 2)], "error"),
    "length-2-to-63": ([(0, 2**63)], "error"),
    "offset-2-to-63": ([(2**63, 10)], "error"),
    "half-missing-offset": ([(MISSING, 30)], "error"),
    "half-missing-length": ([(0, MISSING)], "error"),
    "empty-range": ([(0, 0)], "error"),
    "one-byte": ([(0, 1)], "error"),
    "in-the-index": ([(120, 60)], "error"),
    "all-zero": ([(0, 0)] * 4, "error"),
    "that-overlaps": ([(0, 60), (10, 60), (20, 60), (30, 60)], "error"),
    "swapped": ([(30, 29), (1, 29)], "error"),
}
for _name, (_entries, _expect) in INDEXES.items():
    _location = ("end", "start")[len(_name) % 2]
    add(
        f"index-{_name}",
        "shard indexes",
        _with_index(_entries, _location),
        _expect,
        says=CHUNK,
        interfaces=WITH_RECHUNK,
    )
    add(
        f"index-{_name}-unchecked",
        "shard indexes",
        _with_index(_entries, ("start", "end")[len(_name) % 2], checksum=False),
        _expect,
        says=CHUNK,
        interfaces=("operator",),
    )
add(
    "index-checksum-wrong",
    "shard indexes",
    _with_index([..., (7, 9)], repaired=False),
    "error",
    says="checksum|crc",
)
add("index-cut", "shard indexes", _with_index([], body=lambda data: bytes(data[:-10])), "error", says=CHUNK)
add(
    "index-cut-at-the-start",
    "shard indexes",
    _with_index([], "start", body=lambda data: bytes(data[:40])),
    "error",
    says=CHUNK,
)
add("index-shard-of-one-byte", "shard indexes", _with_index([], body=lambda data: b"x"), "error", says=CHUNK)
add("index-shard-empty", "shard indexes", _with_index([], body=lambda data: b""), "error", says=CHUNK)
add(
    "index-of-ones-unchecked",
    "shard indexes",
    _with_index([], checksum=False, body=lambda data: b"\xff" * 64, values=0 * VALUES[:4]),
    "values",
)
add(
    "index-another-place",
    "shard indexes",
    _with_index([], body=lambda data: bytes(data) + b"behind"),
    "error",
    says=CHUNK,
)


# --- damaged chunks -------------------------------------------------------------------------------

CHECKED = ("crc32c", "checksum", "gzip", "zlib.9", "adler32", "fletcher32")


def _damaged(target, change, index=1):
    def make(folder):
        store = damage.Store(target, folder / "store.zarr")
        file, data = store.files[index], store.chunks[index]
        file.write_bytes(change(data, Random(f"{SEED} {target}")))
        theirs = damage.theirs(store)
        return read(store.path, theirs.values, batch_size=8)

    return make


def _flipped(data, random):
    """A bit in the middle."""
    at = len(data) // 4 + random.randrange(len(data) // 2)
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


for _name in (
    *(
        "raw",
        "raw-crc32c",
        "zstd.3",
        "zstd.3.checksum",
        "zstd.3.no-size",
        "gzip.5",
        "zlib.9",
        "lz4.1",
        "snappy",
    ),
    *("blosc.lz4.shuffle", "blosc.zstd.bitshuffle", "blosc.zlib.shuffle", "blosc.snappy.shuffle"),
    *("blosc.blosclz.shuffle", "blosc.stored", "zstd-crc32c", "fletcher32", "adler32", "delta-zstd"),
    *("sharded.end.zstd.3", "sharded.start.blosc.zstd.bitshuffle", "sharded.end.raw-crc32c"),
):
    _options = {"says": CHUNK, "interfaces": ("operator",)}
    add(
        f"cut-{_name}",
        "damaged chunks",
        _damaged(_name, lambda data, random: data[: len(data) // 2]),
        "error",
        **_options,
    )
    add(f"empty-{_name}", "damaged chunks", _damaged(_name, lambda data, random: b""), "error", **_options)
    add(
        f"flipped-{_name}",
        "damaged chunks",
        _damaged(_name, _flipped),
        "error" if any(word in _name for word in CHECKED) else "either",
        **_options,
    )
