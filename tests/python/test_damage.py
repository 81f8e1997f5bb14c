"""Damaged, missing and unreadable chunks: a RuntimeError that names the array, the chunk and its file, that
stays, and a process that lives on. Values that do come out before it are the right ones.
"""

import os
import re
import struct

import numcodecs
import numpy as np
import pytest

import reading
from reading import assert_same_bits, build, to_samples
from stores import (
    chunk_files,
    crc32c,
    random_values,
    read_array,
    write_array,
    zstd_frame_bytes,
    zstd_raw_frame,
)
from tiers import quick

SHAPE, CHUNKS, SHARDS = (6, 40), (1, 20), (2, 40)
CHUNK_BYTES = 20 * 4


@pytest.fixture
def values(rng):
    return random_values(rng, SHAPE, "float32")


def write(folder, values, codec, zarr_format=3):
    """A store with the array t2m; returns its path."""
    store = folder / "weather.zarr"
    write_array(store, "t2m", values, chunks=CHUNKS, shards=SHARDS, codec=codec, zarr_format=zarr_format)
    return store


def run_to_error(pipe, values, window=None):
    """Runs until an error, at most one epoch; samples before it have to be right. Returns the text."""
    seen = 0
    with pytest.raises(RuntimeError) as caught:
        while seen < len(values):
            (output,) = pipe.run()
            for sample in to_samples(output):
                expected = values[seen] if window is None else values[seen : seen + window]
                assert_same_bits(sample, expected)
                seen += 1
    return str(caught.value)


def essence(text):
    """Our own sentence, without DALI's words around it."""
    return text.split("encountered:")[-1].split("Current pipeline object")[0].strip()


def assert_named(text, *parts):
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in: {text}"
    assert re.search(r"; \w", essence(text)), f"no remedy in: {text}"


def assert_fails(backend, store, values, *parts, **arguments):
    """The reader fails, fails again in the same words, and another pipeline in the process works."""
    pipe = build(backend, store, arrays=["t2m"], batch_size=2, **arguments)
    text = run_to_error(pipe, values)
    assert_named(text, re.escape(str(store)), "t2m", *parts)
    with pytest.raises(RuntimeError) as again:
        pipe.run()
    assert essence(str(again.value)) == essence(text)
    del pipe
    healthy = store.parent / "healthy.zarr"
    if not healthy.exists():
        write_array(healthy, "", values, chunks=CHUNKS)
    reading.assert_reads(backend, healthy, "", values)
    return text


# --- beside others --------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["missing", "cut"])
@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_a_damaged_chunk_beside_one_that_many_batches_need(backend, tmp_path, rng, problem, order):
    """Batch after batch needs the chunk that nobody finished because the first batch had failed before."""
    store = tmp_path / "weather.zarr"
    for name in ("a", "b"):
        many = random_values(rng, (200, 8), "float32")
        write_array(store, name, many, chunks=(200, 8), codec="zstd")
    (file,) = chunk_files(store / "a")
    file.unlink() if problem == "missing" else cut(file, 7)
    pipe = build(
        backend,
        store,
        arrays=["a", "b"],
        batch_size=1,
        random_shuffle=order == "shuffled",
        missing_chunks="error",
        num_io_threads=1,
        num_decode_threads=1,
    )
    with pytest.raises(RuntimeError) as caught:
        for _ in range(200):
            pipe.run()
    assert_named(str(caught.value), re.escape(str(store)), "a/c/0/0")


# --- whole chunk files ----------------------------------------------------------------------------


def cut(file, keep):
    file.write_bytes(file.read_bytes()[:keep])


def append(file, junk):
    file.write_bytes(file.read_bytes() + junk)


def overwrite(file, at, data):
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)


def as_folder(file):
    file.unlink()
    file.mkdir()


def as_link_to_itself(file):
    file.unlink()
    file.symlink_to(file)


CHUNK_DAMAGE = {
    "half": lambda file: cut(file, file.stat().st_size // 2),
    "one-byte-short": lambda file: cut(file, -1),
    "three-bytes-left": lambda file: cut(file, 3),
    "empty": lambda file: cut(file, 0),
    "one-byte-more": lambda file: append(file, b"\0"),
    "more": lambda file: append(file, bytes(range(100))),
    "a-folder": as_folder,
    "a-link-to-itself": as_link_to_itself,
}


@pytest.mark.gpu_where(lambda case: case["zarr_format"] == 3 and case["codec"] in ("raw", "zstd"))
@pytest.mark.parametrize("damage", CHUNK_DAMAGE)
@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd-checksum", "gzip", "blosc-lz4"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunk_file(backend, tmp_path, values, zarr_format, codec, damage):
    store = write(tmp_path, values, codec, zarr_format=zarr_format)
    key = "t2m/3.1" if zarr_format == 2 else "t2m/c/3/1"
    CHUNK_DAMAGE[damage](store / key)
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(f"{store}/{key}"))


def test_chunk_file_without_permission(backend, tmp_path, values):
    store = write(tmp_path, values, "zstd")
    (store / "t2m/c/3/1").chmod(0)
    if os.access(store / "t2m/c/3/1", os.R_OK):
        pytest.skip("this user, probably root, may read every file")
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(f"{store}/t2m/c/3/1"), "ermission")


@pytest.mark.parametrize("window", [[2], [3, 10]])
def test_chunk_file_under_windows(backend, tmp_path, values, window):
    store = write(tmp_path, values, "zstd")
    cut(store / "t2m/c/3/0", 10)
    pipe = build(backend, store, arrays=["t2m"], window=window, batch_size=1)
    with pytest.raises(RuntimeError, match=r"chunk \[3, 0\]"):
        for _ in range(20):
            pipe.run()


ZSTD_DAMAGE = {
    # what: the bytes in place of the frame of `data`, and a number that the text has to name
    "garbage": (lambda data: b"\x55" * 60, None),
    "zeros": (lambda data: b"\0" * 60, None),
    "garbage-after-magic": (lambda data: b"\x28\xb5\x2f\xfd" + b"\xff" * 40, None),
    "shorter-and-says-so": (lambda data: zstd_raw_frame(data[:-4]), "76"),
    "longer-and-says-so": (lambda data: zstd_raw_frame(data + data), "160"),
    "empty-frame": (lambda data: zstd_raw_frame(b""), None),
    "declares-less-than-it-holds": (lambda data: zstd_raw_frame(data, declared=76), None),
    "declares-more-than-it-holds": (lambda data: zstd_raw_frame(data, declared=84), None),
    "declares-far-too-much": (lambda data: zstd_raw_frame(data, declared=1 << 62), None),
    "holds-less-than-it-declares": (lambda data: zstd_raw_frame(data[:-4], declared=80), None),
    "holds-more-than-it-declares": (lambda data: zstd_raw_frame(data + b"more", declared=80), None),
    "short-without-size": (lambda data: zstd_raw_frame(data[:40], with_size=False), None),
    "long-without-size": (lambda data: zstd_raw_frame(data * 2, with_size=False), None),
    "two-frames-too-many": (lambda data: zstd_raw_frame(data) * 2, None),
    "two-frames-too-few": (lambda data: zstd_raw_frame(data[:60]) + zstd_raw_frame(data[60:76]), None),
}


@pytest.mark.parametrize("damage", ZSTD_DAMAGE)
@pytest.mark.parametrize("codec", ["zstd", "sharded-end-zstd"])
def test_zstd_frame(backend, tmp_path, values, codec, damage):
    """A frame that is none, or that holds or declares another size than the chunk has."""
    encode, what = ZSTD_DAMAGE[damage]
    store = write(tmp_path, values, codec)
    frame = encode(values[3, 20:].tobytes())
    if codec == "zstd":
        (store / "t2m/c/3/1").write_bytes(frame)
        places = (r"chunk \[3, 1\]", "t2m/c/3/1")
    else:
        replace_inner_chunk(store / "t2m/c/1/0", 3, frame)
        places = (r"inner chunk \[1, 1\]", r"chunk \[1, 0\]", "t2m/c/1/0")
    text = assert_fails(backend, store, values, *places)
    if what:
        assert what in essence(text) and str(CHUNK_BYTES) in essence(text), text


@pytest.mark.gpu_where(
    lambda case: case["codec"] in ("zstd", "transpose-zstd") and case["declared"] == 1 << 62
)
@pytest.mark.parametrize("declared", [1 << 40, 1 << 62])
@pytest.mark.parametrize(
    "codec",
    [
        "zstd",
        "zstd-crc32c",
        "transpose-zstd",
        "shuffle-zstd",
        "sharded-start-zstd",
        "sharded-then-zstd",
        "sharded-nested-zstd",
    ],
)
def test_zstd_frame_that_declares_more_than_all_memory(backend, tmp_path, values, codec, declared):
    """Wherever a frame sits in a chain, nobody reserves the memory that it asks for."""
    store = write(tmp_path, values, codec, zarr_format=2 if codec == "shuffle-zstd" else 3)
    file = chunk_files(store / "t2m")[-1]
    content = file.read_bytes()
    at = content.index(b"\x28\xb5\x2f\xfd")
    # As long as the old frame: a header with an 8-byte content size, and one stored block up to the end.
    block_bytes = zstd_frame_bytes(content[at:]) - 16
    frame = zstd_raw_frame(bytes(block_bytes), declared=declared)
    assert len(frame) == block_bytes + 16
    overwrite(file, at, frame)
    if codec == "zstd-crc32c":
        overwrite(file, len(content) - 4, crc32c(file.read_bytes()[:-4]).to_bytes(4, "little"))
    assert_fails(backend, store, values, r"chunk \[\d, \d\]", re.escape(str(file)))


def test_flipped_bits_under_a_zstd_checksum(backend, tmp_path, values):
    """The last four bytes of a frame are the checksum of its content, which here is stored as it is."""
    values[3, 20:] = np.arange(20) * np.pi  # incompressible enough to be stored
    store = write(tmp_path, values, "zstd-checksum")
    file = store / "t2m/c/3/1"
    content = file.read_bytes()
    at = content.index(values[3, 20:].tobytes()[:8])
    overwrite(file, at, bytes([content[at] ^ 1]))
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(str(file)))
    file.write_bytes(content)
    overwrite(file, len(content) - 1, bytes([content[-1] ^ 0x80]))
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(str(file)))


@pytest.mark.gpu_where(lambda case: case["codec"] == "zstd-crc32c")
@pytest.mark.parametrize("codec", ["crc32c", "zstd-crc32c", "gzip"])
def test_flipped_bits_under_other_checksums(backend, tmp_path, values, codec):
    store = write(tmp_path, values, codec)
    file = store / "t2m/c/3/1"
    content = file.read_bytes()
    overwrite(file, len(content) - 6, bytes([content[-6] ^ 1]))
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(str(file)))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "codec, encode",
    [
        ("gzip", numcodecs.GZip().encode),
        ("blosc-lz4", numcodecs.Blosc(cname="lz4").encode),
    ],
)
@pytest.mark.parametrize("size", [0, CHUNK_BYTES - 4, CHUNK_BYTES + 4, CHUNK_BYTES * 2])
def test_chunk_of_another_size(backend, tmp_path, values, codec, encode, size):
    store = write(tmp_path, values, codec)
    file = store / "t2m/c/3/1"
    file.write_bytes(encode((values[3, 20:].tobytes() * 2)[:size]))
    assert_fails(backend, store, values, r"chunk \[3, 1\]", re.escape(str(file)))


# --- sharded chunks -------------------------------------------------------------------------------

INNER_CHUNKS = 4
TABLE_BYTES = INNER_CHUNKS * 16
EMPTY = (1 << 64) - 1


def read_index(file, location):
    """(offset, size) of each inner chunk."""
    content = file.read_bytes()
    table = content[:TABLE_BYTES] if location == "start" else content[-TABLE_BYTES - 4 : -4]
    return [struct.unpack_from("<QQ", table, 16 * i) for i in range(INNER_CHUNKS)]


def write_index(file, location, entries):
    """Replaces the index, checksum included."""
    table = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    table += crc32c(table).to_bytes(4, "little")
    content = file.read_bytes()
    size = len(table)
    file.write_bytes(table + content[size:] if location == "start" else content[:-size] + table)


def replace_inner_chunk(file, number, data):
    """Puts other bytes where the index (at the end) points to for one inner chunk."""
    entries = read_index(file, "end")
    content = file.read_bytes()
    body, index = content[: -TABLE_BYTES - 4], content[-TABLE_BYTES - 4 :]
    entries[number] = (len(body), len(data))
    file.write_bytes(body + data + index)
    write_index(file, "end", entries)


FILE_DAMAGE = {
    "empty": lambda file, location: cut(file, 0),
    "shorter-than-its-index": lambda file, location: cut(file, TABLE_BYTES),
    "cut": lambda file, location: cut(file, TABLE_BYTES + 40),
    "a-folder": lambda file, location: as_folder(file),
    "index-fails-its-checksum": lambda file, location: overwrite(
        file, 8 if location == "start" else file.stat().st_size - TABLE_BYTES, b"\x7f"
    ),
    "checksum-flipped": lambda file, location: overwrite(
        file,
        TABLE_BYTES if location == "start" else file.stat().st_size - 4,
        bytes([file.read_bytes()[TABLE_BYTES if location == "start" else -4] ^ 1]),
    ),
}


@pytest.mark.gpu_where(lambda case: case["location"] == "end" and case["inner"] == "zstd")
@pytest.mark.parametrize("damage", FILE_DAMAGE)
@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("inner", ["raw", "zstd", "gzip"])
def test_sharded_chunk_file(backend, tmp_path, values, inner, location, damage):
    store = write(tmp_path, values, f"sharded-{location}-{inner}")
    file = store / "t2m/c/1/0"
    FILE_DAMAGE[damage](file, location)
    assert_fails(backend, store, values, r"chunk \[1, 0\]", re.escape(str(file)))


def test_sharded_chunk_with_junk_behind_its_index(backend, tmp_path, values):
    """Longer than it should be: what stands at the end is no index."""
    store = write(tmp_path, values, "sharded-end-zstd")
    append(store / "t2m/c/1/0", b"junk")
    assert_fails(backend, store, values, r"chunk \[1, 0\]", "t2m/c/1/0")


@pytest.mark.gpu_where(lambda case: case["location"] == "start" and case["inner"] == "raw")
@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("inner", ["raw", "zstd", "gzip"])
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(lambda offset, size, end: (end, size), id="starts-at-the-end"),
        pytest.param(lambda offset, size, end: (end + 1000, size), id="starts-outside"),
        pytest.param(lambda offset, size, end: (offset, end), id="ends-outside"),
        pytest.param(lambda offset, size, end: (offset, 1 << 40), id="far-too-long"),
        pytest.param(lambda offset, size, end: (1 << 63, size), id="far-outside"),
        pytest.param(lambda offset, size, end: (EMPTY - 1, 100), id="overflows"),
        pytest.param(lambda offset, size, end: (offset, EMPTY), id="half-empty-size"),
        pytest.param(lambda offset, size, end: (EMPTY, size), id="half-empty-offset"),
    ],
)
def test_shard_index_that_points_outside_its_file(backend, tmp_path, values, location, inner, entry):
    """The index is well formed and its checksum right; one entry is nonsense."""
    store = write(tmp_path, values, f"sharded-{location}-{inner}")
    file = store / "t2m/c/1/0"
    entries = read_index(file, location)
    entries[2] = entry(*entries[2], file.stat().st_size)
    write_index(file, location, entries)
    assert_fails(backend, store, values, r"chunk \[1, 0\]", re.escape(str(file)))


@pytest.mark.gpu_where(lambda case: case["inner"] in ("raw", "zstd"))
@pytest.mark.parametrize("inner", ["raw", "zstd", "gzip", "blosc-lz4"])
@pytest.mark.parametrize("by", [-1, 1])
def test_inner_chunk_of_another_encoded_size(backend, tmp_path, values, inner, by):
    """An entry one byte too short or too long, inside the file."""
    store = write(tmp_path, values, f"sharded-end-{inner}")
    file = store / "t2m/c/1/0"
    entries = read_index(file, "end")
    entries[1] = (entries[1][0], entries[1][1] + by)
    write_index(file, "end", entries)
    assert_fails(backend, store, values, r"chunk \[1, 0\]", re.escape(str(file)))


def test_empty_inner_chunk(backend, tmp_path, values):
    store = write(tmp_path, values, "sharded-end-zstd")
    replace_inner_chunk(store / "t2m/c/1/0", 2, b"")
    assert_fails(backend, store, values, r"chunk \[1, 0\]", "t2m/c/1/0")


# --- missing chunks -------------------------------------------------------------------------------


@pytest.mark.gpu_where(lambda case: case["zarr_format"] == 3 and case["codec"] != "raw")
@pytest.mark.parametrize("codec", ["raw", "zstd", "gzip"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunk_as_error(backend, tmp_path, values, zarr_format, codec):
    store = write(tmp_path, values, codec, zarr_format=zarr_format)
    key = "t2m/3.1" if zarr_format == 2 else "t2m/c/3/1"
    reading.assert_reads(backend, store, "t2m", values, missing_chunks="error")
    (store / key).unlink()
    assert_fails(
        backend,
        store,
        values,
        r"chunk \[3, 1\]",
        re.escape(f"{store}/{key}"),
        "missing",
        missing_chunks="error",
    )
    values[3, 20:] = 0
    reading.assert_reads(backend, store, "t2m", values, missing_chunks="fill")


@pytest.mark.gpu_where(lambda case: case["location"] == "start" and case["inner"] == "zstd")
@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("inner", ["raw", "zstd", "gzip"])
def test_missing_inner_chunk_as_error(backend, tmp_path, values, inner, location):
    store = write(tmp_path, values, f"sharded-{location}-{inner}")
    file = store / "t2m/c/1/0"
    entries = read_index(file, location)
    entries[3] = (EMPTY, EMPTY)
    write_index(file, location, entries)
    assert_fails(
        backend,
        store,
        values,
        r"inner chunk \[1, 1\]",
        r"chunk \[1, 0\]",
        re.escape(str(file)),
        "missing",
        missing_chunks="error",
    )
    values[3, 20:] = 0
    reading.assert_reads(backend, store, "t2m", values)


def test_missing_sharded_chunk_as_error(backend, tmp_path, values):
    store = write(tmp_path, values, "sharded-end-zstd")
    (store / "t2m/c/1/0").unlink()
    assert_fails(backend, store, values, r"chunk \[1, 0\]", "t2m/c/1/0", "missing", missing_chunks="error")
    values[2:4] = 0
    reading.assert_reads(backend, store, "t2m", values)


# --- many chunks at once --------------------------------------------------------------------------


def test_one_damaged_chunk_among_many_arrays(backend, tmp_path, rng):
    """The array and chunk that are named are the damaged ones."""
    store = tmp_path / "weather.zarr"
    names = [f"v{i}" for i in range(6)]
    for name in names:
        write_array(store, name, random_values(rng, SHAPE, "float32"), chunks=CHUNKS, zarr_format=3)
    cut(store / "v4/c/2/1", 5)
    pipe = build(backend, store, arrays=names, batch_size=6)
    with pytest.raises(RuntimeError) as caught:
        pipe.run()
    assert_named(str(caught.value), r'"v4"', r"chunk \[2, 1\]", "v4/c/2/1")


def test_every_chunk_damaged(backend, tmp_path, values):
    store = write(tmp_path, values, "zstd")
    for file in chunk_files(store / "t2m"):
        cut(file, 7)
    assert_fails(backend, store, values, r"chunk \[\d, \d\]", "t2m/c/")


def test_pipeline_is_dropped_while_it_fails(backend, tmp_path, values):
    """Nothing hangs when a reader whose threads met an error, or are about to, goes away unread."""
    store = write(tmp_path, values, "zstd")
    cut(store / "t2m/c/5/0", 7)
    for runs in (0, 1, 2):
        pipe = build(backend, store, arrays=["t2m"], batch_size=1, prefetch_queue_depth=2)
        for _ in range(runs):
            pipe.run()
        del pipe
    cut(store / "t2m/c/0/0", 7)
    for _ in range(3):
        assert build(backend, store, arrays=["t2m"], batch_size=1).epoch_size("reader") == len(values)


FLIPPED = ["zstd", "zstd-checksum", "gzip", "blosc-zstd", "sharded-end-zstd"]


@pytest.mark.parametrize("codec", quick(FLIPPED, "zstd", "gzip", "sharded-end-zstd"))
def test_random_bit_flips(backend, tmp_path, codec):
    """Whatever the bytes are, the process lives; values that zarr-python can still read are read the same."""
    rng = np.random.default_rng(8)
    values = np.repeat(rng.integers(0, 50, size=(8, 300)), 3, axis=1).astype("float32")
    for trial in range(12):
        store = tmp_path / str(trial)
        write_array(store, "", values, chunks=(2, 900), shards=(4, 900), codec=codec)
        for file in chunk_files(store):
            content = bytearray(file.read_bytes())
            for _ in range(int(rng.integers(1, 4))):
                content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            file.write_bytes(content)
        try:
            whole = read_array(store)
        except Exception:  # zarr-python raises whatever its codecs raise
            whole = None
        pipe = build(backend, store, batch_size=8)
        try:
            (output,) = pipe.run()
        except RuntimeError as error:
            assert_named(str(error), r"chunk \[\d, 0\]", re.escape(str(store)))
            continue
        if whole is not None:
            for sample, expected in zip(to_samples(output), whole, strict=True):
                assert_same_bits(sample, expected, f"trial {trial}")
