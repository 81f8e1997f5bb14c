"""Memory that stores, arguments and checkpoints ask for is bounded by the budget: counted, or refused.

Every case runs in a process of its own (bounded.py), because what it is about would end it.
"""

import bz2
import gzip
import json
import os
import zlib
from functools import cache

import numcodecs
import numpy as np
import pytest

from forked import run_script

MIB = 1 << 20
# What a reader has besides its budget: what is not counted (Options::UNCOUNTED_HOST_BYTES), and what threads
# have for stacks and heaps.
CONSTANT = 64 * MIB + 64 * MIB
BUDGET = 16 * MIB


def read(path, *, batches=1, checkpoint=None, **arguments):
    """What came of it: `error`, `values` and `grown`."""
    words = [path, json.dumps(arguments), batches, *([json.dumps(checkpoint)] if checkpoint else [])]
    ended = run_script("import sys, bounded\nbounded.main(*sys.argv[1:])", *words)
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr[-1000:]}"
    found = json.loads(ended.stdout.splitlines()[-1])
    assert "internal error" not in (found["error"] or ""), found
    return found


def refused(path, *parts, grown=CONSTANT, **arguments):
    """It is refused with all of these words, and takes no memory before."""
    arguments = {"host_memory_budget": BUDGET, "num_io_threads": 2} | arguments
    found = read(path, **arguments)
    assert found["error"] and all(part in found["error"] for part in parts), found
    assert found["grown"] < BUDGET + grown, found
    return found["error"]


def array(folder, shape, chunks, dtype="uint8", codecs=(), fill=0, bytes_codec=None):
    """A v3 array without chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    endian = {} if dtype == "uint8" else {"configuration": {"endian": "little"}}
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill,
        "codecs": [bytes_codec or {"name": "bytes", **endian}, *codecs],
    }
    (folder / "zarr.json").write_text(json.dumps(metadata))
    return folder


def chunk(folder, key, content=b"", size=None):
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if size:
        os.truncate(path, size)


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


ZSTD = codec("zstd", level=1, checksum=False)
CODECS = {
    "zstd": ZSTD,
    "gzip": codec("gzip", level=5),
    "zlib": codec("numcodecs.zlib", level=5),
    "bz2": codec("numcodecs.bz2", level=5),
    "blosc": codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle", typesize=1, blocksize=0),
    "lz4": codec("numcodecs.lz4"),
    "crc32c": {"name": "crc32c"},
}


# --- chunks that no memory holds ---------------------------------------------------------------------


@pytest.mark.parametrize("codecs", [[], [ZSTD], [CODECS["gzip"]]], ids=["raw", "zstd", "gzip"])
@pytest.mark.parametrize("extent", [1 << 30, 1 << 40, 1 << 46, 1 << 61])
def test_a_chunk_that_the_budget_cannot_hold_is_refused(tmp_path, extent, codecs):
    folder = array(tmp_path / "a.zarr", [10, 4], [10, extent], codecs=codecs)
    chunk(folder, "c/0/0", b"some bytes")
    words = ["larger than memory can be"] if extent > 1 << 43 else ["`host_memory_budget`", str(10 * extent)]
    refused(folder, *words)


@pytest.mark.full
def test_a_large_chunk_is_read_with_a_budget_of_its_size(tmp_path):
    content = np.arange(40 << 20, dtype=np.uint8).tobytes()
    folder = array(tmp_path / "a.zarr", [40, 1 << 20], [40, 1 << 20], codecs=[ZSTD])
    chunk(folder, "c/0/0", numcodecs.Zstd(1).encode(content))
    found = read(folder, host_memory_budget=64 * MIB, num_io_threads=8)
    assert found["error"] is None and found["values"] == [0, 255], found
    assert found["grown"] < 64 * MIB + CONSTANT, found
    # Eight threads would decode eight of them at once.
    many = array(tmp_path / "b.zarr", [400, 1 << 20], [40, 1 << 20], codecs=[ZSTD])
    for number in range(10):
        chunk(many, f"c/{number}/0", numcodecs.Zstd(1).encode(content))
    found = read(many, batches=10, batch_size=4, stride=[40], host_memory_budget=200 * MIB, num_io_threads=8)
    assert found["error"] is None, found
    assert found["grown"] < 200 * MIB + CONSTANT, found


@pytest.mark.parametrize("extent", [1 << 22, 1 << 40])
def test_a_fill_value_of_unlike_parts_takes_no_more_than_the_chunk(tmp_path, extent):
    folder = array(tmp_path / "a.zarr", [4, 4], [4, extent], "complex64", fill=[1.0, 2.0])
    if extent > 1 << 30:
        refused(folder, "`host_memory_budget`")
        return
    found = read(folder, host_memory_budget=300 * MIB, num_io_threads=2)
    assert found["error"] is None and found["values"] == [1, 2], found
    assert found["grown"] < 300 * MIB + CONSTANT, found


# --- encoded bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
def test_a_sparse_chunk_is_an_error(tmp_path, name):
    folder = array(tmp_path / "a.zarr", [10], [10], codecs=[CODECS[name]])
    chunk(folder, "c/0", b"x", size=1 << 40)
    refused(folder, str(1 << 40), "encoded bytes", "c/0")


@pytest.mark.full
def test_a_sparse_shard_is_an_error(tmp_path):
    index_codecs = [codec("bytes", endian="little")]
    sharding = codec(
        "sharding_indexed", chunk_shape=[1], codecs=[{"name": "bytes"}, ZSTD], index_codecs=index_codecs
    )
    folder = array(tmp_path / "a.zarr", [10], [10], bytes_codec=sharding)
    # Its index places the first inner chunk at the start and gives it almost all of the file.
    entries = np.full(20, -1, np.int64)
    entries[:2] = 0, (1 << 40) - 160
    chunk(folder, "c/0", size=(1 << 40) - 160)
    with open(folder / "c/0", "ab") as file:
        file.write(entries.tobytes())
    refused(folder, str((1 << 40) - 160), "encoded bytes")
    huge = array(
        tmp_path / "b.zarr",
        [1 << 34],
        [1 << 34],
        bytes_codec=sharding,
    )
    chunk(huge, "c/0", size=1 << 40)
    refused(huge, "`host_memory_budget`", "index of a shard")
    sharding["configuration"]["chunk_shape"] = [1]
    beyond = array(tmp_path / "c.zarr", [1 << 62], [1 << 62], bytes_codec=sharding)
    refused(beyond, "larger than memory can be")


# --- bombs -------------------------------------------------------------------------------------------


def streamed_zstd(content):
    """A frame that does not declare its size: blocks of one repeated byte, 128 KiB each."""
    count = len(content) >> 17
    blocks = b"".join((1 << 20 | 2 | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count))
    return bytes.fromhex("28b52ffd0058") + blocks


@cache
def zeros(name):
    """Half a gigabyte of zeros, encoded."""
    return encoders()[name](bytes(512 * MIB))


def encoders():
    blosc = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE)
    return {
        "zstd": streamed_zstd,
        "gzip": gzip.compress,
        "zlib": zlib.compress,
        "bz2": bz2.compress,
        "blosc": blosc.encode,
        "lz4": numcodecs.LZ4().encode,
    }


@pytest.mark.parametrize(
    "name", [name if name == "zstd" else pytest.param(name, marks=pytest.mark.full) for name in encoders()]
)
@pytest.mark.parametrize("outer", ["", "gzip", pytest.param("bz2", marks=pytest.mark.full), "zstd"])
def test_a_bomb_is_an_error(tmp_path, name, outer):
    """Half a gigabyte of zeros in a chunk of a thousand."""
    content = zeros(name)
    codecs = [CODECS[name]]
    if outer:
        codecs.append(CODECS[outer])
        content = numcodecs.Zstd(1).encode(content) if outer == "zstd" else encoders()[outer](content)
    folder = array(tmp_path / "a.zarr", [1000], [1000], codecs=codecs)
    chunk(folder, "c/0", content)
    refused(folder, "c/0")


def test_a_bomb_of_numbers_is_an_error(tmp_path):
    pcodec = pytest.importorskip("numcodecs.pcodec", exc_type=ImportError).PCodec()
    content = bytes(pcodec.encode(np.zeros(64 << 20, np.int64)))
    folder = array(tmp_path / "a.zarr", [10], [10], "int64", bytes_codec=codec("numcodecs.pcodec", level=8))
    chunk(folder, "c/0", content)
    refused(folder, "c/0", "more than the 80 bytes")


@pytest.mark.full
def test_unusual_encodings_of_the_right_size_are_read(tmp_path):
    """Longer than encoders make them, in several frames, members and streams, with skipped frames."""
    content = np.arange(1000, dtype=np.uint8).tobytes()
    halves = content[:500], content[500:]
    skipped = bytes.fromhex("502a4d18") + (3000).to_bytes(4, "little") + bytes(3000)
    encoded = {
        "zstd": skipped + b"".join(numcodecs.Zstd(1).encode(half) + skipped for half in halves),
        "gzip": b"".join(map(gzip.compress, halves)),
        "bz2": b"".join(map(bz2.compress, halves)),
    }
    for name, chunk_bytes in encoded.items():
        for outer in ("", "gzip", "lz4"):
            folder = array(
                tmp_path / f"{name}{outer}",
                [1000],
                [1000],
                codecs=[CODECS[name]] + [CODECS[o] for o in [outer] if o],
            )
            chunk(folder, "c/0", encoders()[outer](chunk_bytes) if outer else chunk_bytes)
            found = read(folder, batch_size=1000)
            assert found["error"] is None and found["values"] == [0, 255], (name, outer, found)


# --- plans, orders, rests ----------------------------------------------------------------------------


@pytest.mark.full
def test_the_plan_of_many_chunks_is_counted(tmp_path):
    folder = array(tmp_path / "a.zarr", [4, 1 << 20], [1, 1])
    refused(folder, "`host_memory_budget`", "the plan of a batch", batch_size=1)
    # Two hundred thousand are, and what is not planned ahead is not there.
    some = array(tmp_path / "b.zarr", [40, 200_000], [1, 1])
    budget = 500 * MIB
    found = read(some, batches=4, batch_size=1, host_memory_budget=budget, num_io_threads=2)
    assert found["error"] is None and found["values"] == [0, 0], found
    assert found["grown"] < budget + CONSTANT, found
    found = read(
        some, batches=1, batch_size=1, host_memory_budget=2 * budget, num_io_threads=2, cache_bytes=MIB
    )
    assert found["error"] is None and found["grown"] < 2 * budget + CONSTANT, found


@pytest.mark.full
@pytest.mark.parametrize("samples", [1 << 40, 1 << 62])
def test_the_number_of_chunks_is_no_matter(tmp_path, samples):
    folder = array(tmp_path / "a.zarr", [samples, 2], [1, 2], fill=7)
    for arguments in ({}, {"window": [4]}, {"stride": [1 << 30]}, {"pad_last_batch": True, "num_shards": 3}):
        found = read(folder, host_memory_budget=BUDGET, **arguments)
        assert found["error"] is None and found["values"] == [7, 7], (arguments, found)
        assert found["grown"] < BUDGET + CONSTANT, found
    refused(folder, "`exclude`", exclude=[3])
    if samples > 1 << 48:
        refused(folder, "`random_shuffle`", random_shuffle=True)
    else:
        found = read(folder, host_memory_budget=BUDGET, random_shuffle=True)
        assert found["error"] is None and found["values"] == [7, 7], found
        assert found["grown"] < BUDGET + CONSTANT, found
    refused(folder, "`host_memory_budget`", window=[1 << 39])


@pytest.mark.full
def test_a_list_of_windows_is_counted(tmp_path):
    folder = array(tmp_path / "a.zarr", [1 << 24, 2], [1, 2], fill=7)
    refused(folder, "`exclude`", "16777216 windows", exclude=[3])
    some = array(tmp_path / "b.zarr", [1 << 20, 2], [1, 2], fill=7)
    found = read(some, host_memory_budget=BUDGET, exclude=[3])
    assert found["error"] is None and found["grown"] < BUDGET + CONSTANT, found


@pytest.mark.full
def test_the_groups_of_a_shuffle_are_counted(tmp_path):
    folder = array(tmp_path / "a.zarr", [1 << 26], [2], fill=7)
    refused(folder, "`host_memory_budget`", "33554432 shuffled groups", random_shuffle=True)
    some = array(tmp_path / "b.zarr", [1 << 22], [2], fill=7)
    found = read(some, host_memory_budget=97 * MIB, random_shuffle=True)
    assert found["error"] is None and found["grown"] < 120 * MIB, found


def test_a_shuffle_takes_no_memory_for_samples(tmp_path):
    """Dense patches of a volume: 5 * 10^11 samples, shuffled as soon as they are in order."""
    folder = array(tmp_path / "a.zarr", [4096, 16384, 8192], [128, 512, 512], fill=7)
    arguments = {"window": [8, 8, 8], "stride": [1, 1, 1], "host_memory_budget": 1 << 30, "batch_size": 2}
    in_order = read(folder, **arguments)
    found = read(folder, random_shuffle=True, **arguments)
    assert found["error"] is None and set(found["values"]) == {7}, found
    assert found["grown"] < in_order["grown"] + (256 << 20), (found, in_order)
    assert found["seconds"] < in_order["seconds"] + 1, (found, in_order)


@pytest.mark.parametrize("samples", [1 << 40, 1 << 62])
def test_the_rest_of_an_epoch_is_no_list(tmp_path, samples):
    folder = array(tmp_path / "a.zarr", [samples, 2], [1, 2], fill=7)
    state = {
        "version": 3,
        "epoch": 3,
        "played": [[7, 5, 11], [2, 9, 1 << 20]],
        "batch": 1000,
        "num_shards": 2,
        "batch_size": 4,
    }
    found = read(
        folder, batches=2, checkpoint=state, pad_last_batch=True, batch_size=16, host_memory_budget=BUDGET
    )
    assert found["error"] is None and found["values"] == [7, 7], found
    assert found["grown"] < BUDGET + CONSTANT, found


@pytest.mark.full
def test_info_counts_before_it_looks(tmp_path):
    folder = array(tmp_path / "a.zarr", [1 << 40, 1 << 20], [1, 1])
    for arguments in ({"batch_size": 1 << 30}, {"batch_size": 1 << 20}, {"window": [1 << 30]}):
        found = read(folder, batches="INFO", device="cpu", host_memory_budget=BUDGET, **arguments)
        assert found["error"] is None and "host_memory_budget" in found["values"], found
        assert found["grown"] < BUDGET + CONSTANT, found


# --- numbers at the end of their range ---------------------------------------------------------------


NUMBERS = [
    ([1 << 62, 1 << 62], [1, 1], {}),
    ([1 << 62, 1 << 62], [1 << 20, 1 << 20], {"window": [1, 1]}),
    ([(1 << 63) - 1, 4], [1, 4], {"window": [3], "stride": [1 << 61]}),
    ([(1 << 64) - 1], [1], {}),
    ([(1 << 64) - 1, 3], [1, 2], {"window": [1, 3]}),
    ([1 << 62, 8], [3, 5], {"roi_start": [(1 << 62) - 4, 1], "window": [2, 3], "dilation": [2, 2]}),
    ([1 << 40, 1 << 40, 1 << 40], [1, 1, 1], {"window": [1, 1, 1]}),
    ([10, 10], [(1 << 63) - 1, 1], {}),
    ([10, 10], [1 << 32, 1 << 32], {}),
    ([1 << 62, 2], [1, 2], {"offsets": [0, (1 << 61)]}),
    ([1 << 62, 2], [1, 2], {"num_shards": 1 << 40, "shard_id": 5}),
]


@pytest.mark.parametrize(
    ("shape", "chunks", "arguments"),
    [NUMBERS[0], *(pytest.param(*case, marks=pytest.mark.full) for case in NUMBERS[1:])],
    ids=repr,
)
def test_no_number_is_an_internal_error(tmp_path, shape, chunks, arguments):
    folder = array(tmp_path / "a.zarr", shape, chunks, fill=7)
    for codecs in ([], [ZSTD]):
        array(folder, shape, chunks, fill=7, codecs=codecs)
        found = read(folder, host_memory_budget=BUDGET, **arguments)
        assert found["error"] or found["values"] == [7, 7], found
        assert found["error"] is None or found["error"].startswith(("ValueError", "RuntimeError")), found
        assert found["grown"] < BUDGET + CONSTANT, found
        found = read(folder, batches="INFO", device="cpu", host_memory_budget=BUDGET, **arguments)
        assert found["error"] is None and "internal error" not in found["values"], found


@pytest.mark.full
def test_bits_that_a_type_does_not_have_are_an_error(tmp_path):
    for first, last in ((0, 100), (9, None), (70, 71), (3, 3)):
        bits = {"first_bit": first, "last_bit": last}
        packed = codec("packbits", **{key: value for key, value in bits.items() if value is not None})
        folder = array(tmp_path / "a.zarr", [16], [16], "uint8", bytes_codec=packed)
        chunk(folder, "c/0", bytes(16 if last is None else (last - first + 1) * 2))
        found = read(folder, host_memory_budget=BUDGET)
        assert found["error"] or (first, last) == (3, 3), found
