"""Element by element against zarr-python.

The axes: format (v2, v3) x codec chain (raw, zstd in variants, gzip, blosc, checksums, transpose, sharded
with the index at either end, nested) x byte order x every data type x 1 to 5 dimensions x windows and
strides (inside one chunk, across chunks, across sharded chunks, the whole array, none) x edge chunks x
missing chunks and inner chunks with many fill values x consolidated metadata or not x key separators x
memory order, on both backends. Two random walks over the same space end the file.
"""

import warnings

import numcodecs
import numpy as np
import pytest

import reference
from reading import (
    GPU,
    assert_reads,
    assert_same_bits,
    assert_samples,
    build,
    read_all,
    run_batches,
    to_samples,
)
from stores import (
    CODECS,
    DTYPES,
    FLOATS,
    FORMATS,
    Codec,
    chunk_files,
    codecs_of,
    crc32c,
    edit_metadata,
    random_values,
    read_array,
    write_array,
    write_group,
    zstd_raw_frame,
    zstd_skippable_frame,
)
from tiers import quick

# Chains that are decoded on the GPU.
GPU_CODECS = ("raw", "zstd", "zstd-checksum", "zstd-fast", "zstd-best")
GPU_CHAINS = {
    f"v{zarr_format}-{place}{codec}"
    for zarr_format in (2, 3)
    for place in ("", "sharded-end-", "sharded-start-")
    for codec in GPU_CODECS
}
CHAINS = [f"v{zarr_format}-{codec}" for zarr_format in FORMATS for codec in codecs_of(zarr_format)]
QUICK_CHAINS = (
    *("v2-zlib", "v2-bz2", "v2-shuffle-zstd", "v2-blosc-zstd"),
    *("v3-raw", "v3-zstd", "v3-gzip", "v3-blosc-lz4", "v3-zstd-crc32c", "v3-transpose-zstd"),
    *("v3-sharded-end-zstd", "v3-sharded-start-blosc-lz4", "v3-sharded-nested-zstd"),
)


def parse(chain):
    """`v3-zstd` -> (3, "zstd")."""
    version, codec = chain.split("-", 1)
    return int(version[1:]), codec


# --- every data type through every chain ----------------------------------------------------------


def write_every_dtype(store, zarr_format, codec, **options):
    """A group with one array per data type: 5 x 4 x 3 elements in chunks of 2 x 3 x 2, over every edge."""
    rng = np.random.default_rng(1)
    write_group(store, zarr_format)
    for dtype in DTYPES:
        values = random_values(rng, (5, 4, 3), dtype)
        write_array(store, dtype, values, chunks=(2, 3, 2), codec=codec, zarr_format=zarr_format, **options)


@pytest.mark.gpu_where(lambda case: case["chain"] in GPU_CHAINS or case["endian"] == "little")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("chain", quick(CHAINS, *QUICK_CHAINS))
def test_every_dtype(backend, cached_store, chain, endian):
    zarr_format, codec = parse(chain)
    store = cached_store(
        ("dtypes", chain, endian), lambda at: write_every_dtype(at, zarr_format, codec, endian=endian)
    )
    wholes = {dtype: read_array(store, dtype) for dtype in DTYPES}
    for window in (None, [2, 3]):
        outputs = read_all(backend, store, arrays=list(DTYPES), window=window)
        assert len(outputs) == len(DTYPES)
        for (dtype, whole), samples in zip(wholes.items(), outputs, strict=True):
            assert_samples(samples, whole, window, what=dtype)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("codec", ["raw", "zstd", "gzip", "blosc-lz4"])
def test_fortran_order_of_v2(backend, cached_store, codec, endian):
    store = cached_store(
        ("dtypes-f", codec, endian), lambda at: write_every_dtype(at, 2, codec, endian=endian, order="F")
    )
    wholes = {dtype: read_array(store, dtype) for dtype in DTYPES}
    for window in (None, [2, 3]):
        outputs = read_all(backend, store, arrays=list(DTYPES), window=window)
        for (dtype, whole), samples in zip(wholes.items(), outputs, strict=True):
            assert_samples(samples, whole, window, what=dtype)


# --- windows and strides in 1 to 5 dimensions -----------------------------------------------------

# dimensions: shape, chunks, sharded chunks, then (window, stride) pairs
WINDOWS = {
    1: (
        (23,),
        (4,),
        (8,),
        [
            (None, None),
            ([1], None),
            ([3], None),
            ([4], [4]),
            ([9], [2]),
            ([2], [5]),
            ([1], [30]),
            ([23], None),
        ],
    ),
    2: (
        (9, 10),
        (2, 4),
        (4, 8),
        [
            (None, None),
            ([1], None),
            ([3], [2]),
            ([2, 4], [2, 4]),
            ([3, 5], None),
            ([3, 5], [2, 3]),
            ([1, 1], [4, 3]),
            ([9, 10], None),
        ],
    ),
    3: (
        (6, 7, 5),
        (2, 3, 5),
        (4, 6, 5),
        [
            (None, None),
            ([1], None),
            ([4], [1]),
            ([2, 3], [2, 3]),
            ([3, 4, 2], None),
            ([2, 2, 2], [3, 1, 2]),
            ([6, 7, 5], [9, 9, 9]),
        ],
    ),
    4: (
        (5, 3, 6, 4),
        (1, 2, 3, 4),
        (3, 2, 6, 4),
        [
            (None, None),
            ([2], None),
            ([2, 1], None),
            ([1, 3, 4], None),
            ([2, 2, 3, 3], [2, 1, 3, 1]),
            ([5, 3, 6, 4], None),
        ],
    ),
    5: (
        (3, 2, 4, 3, 5),
        (2, 1, 2, 3, 2),
        (2, 2, 4, 3, 4),
        [
            (None, None),
            ([1], None),
            ([2, 2], None),
            ([2, 1, 3], [1, 1, 1]),
            ([1, 2, 2, 2], None),
            ([2, 1, 2, 2, 3], [1, 1, 2, 1, 2]),
        ],
    ),
}
WINDOW_CASES = [
    pytest.param(ndim, window, stride, id=f"{ndim}d-{window}-{stride}".replace(" ", ""))
    for ndim, (_, _, _, pairs) in WINDOWS.items()
    for window, stride in pairs
]


@pytest.mark.gpu_where(
    lambda case: (
        case["chain"] in ("v3-raw", "v3-sharded-end-zstd")
        or (case["ndim"] == 3 and case["chain"] in ("v2-zstd", "v3-zstd", "v3-gzip"))
    )
)
@pytest.mark.parametrize("ndim, window, stride", WINDOW_CASES)
@pytest.mark.parametrize(
    "chain",
    [
        "v2-raw",
        "v2-zstd",
        "v2-blosc-lz4",
        "v3-raw",
        "v3-zstd",
        "v3-gzip",
        "v3-transpose-zstd",
        "v3-sharded-end-raw",
        "v3-sharded-end-zstd",
        "v3-sharded-start-zstd",
        "v3-sharded-end-gzip",
        "v3-sharded-nested-zstd",
    ],
)
def test_windows(backend, cached_store, rng, chain, ndim, window, stride):
    zarr_format, codec = parse(chain)
    shape, chunks, shards, _ = WINDOWS[ndim]
    dtype = ("uint8", "float32", "int16", "float64", "uint32")[ndim - 1]

    def write(at):
        write_array(
            at,
            "",
            random_values(rng, shape, dtype),
            chunks=chunks,
            shards=shards,
            codec=codec,
            zarr_format=zarr_format,
        )

    store = cached_store(("windows", chain, ndim), write)
    assert_reads(backend, store, "", read_array(store), window, stride)


@pytest.mark.gpu_where(lambda case: case["codec"] in ("zstd", "sharded-start-raw"))
@pytest.mark.parametrize("codec", ["raw", "zstd", "gzip", "sharded-end-zstd", "sharded-start-raw"])
@pytest.mark.parametrize(
    "shape, chunks, shards",
    [
        pytest.param((4, 3), (1, 1), (2, 3), id="chunks-of-one-element"),
        pytest.param((4, 3), (1, 1), (1, 1), id="sharded-chunks-of-one-element"),
        pytest.param((6, 5), (6, 5), (6, 5), id="one-chunk"),
        pytest.param((6, 5), (100, 100), (200, 100), id="chunk-larger-than-array"),
        pytest.param((1, 7), (1, 7), (1, 7), id="one-sample"),
        pytest.param((1,), (1,), (1,), id="one-element"),
        pytest.param((3, 1, 1, 4), (2, 1, 1, 3), (2, 1, 1, 6), id="unit-dimensions"),
        pytest.param((2, 4097), (1, 4096), (1, 8192), id="page-and-one"),
    ],
)
def test_chunk_shapes(backend, tmp_path, rng, codec, shape, chunks, shards):
    values = random_values(rng, shape, "int32")
    write_array(tmp_path, "a", values, chunks=chunks, shards=shards, codec=codec)
    assert_reads(backend, tmp_path, "a", values)
    assert_reads(backend, tmp_path, "a", values, [1] * len(shape), [1, *(2 for _ in shape[1:])])


def test_stride_without_a_window(backend, tmp_path, rng):
    """Samples are single steps then, and the stride is along the first dimension."""
    values = random_values(rng, (8, 3), "int32")
    write_array(tmp_path, "a", values, chunks=(3, 3))
    (samples,) = read_all(backend, tmp_path, arrays=["a"], stride=[3])
    assert len(samples) == 3
    for sample, step in zip(samples, (0, 3, 6)):
        assert_same_bits(sample, values[step])


# --- missing chunks -------------------------------------------------------------------------------


def fill_values(dtype):
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return [True, False]
    if dtype.name in FLOATS:
        limits = np.finfo(dtype)
        return [np.nan, np.inf, -np.inf, -1.5, -0.0, limits.max, limits.tiny]
    limits = np.iinfo(dtype)
    return sorted({0, 1, int(limits.min), int(limits.max)})


def write_with_missing(store, zarr_format, codec, endian):
    """One array per data type and fill value; every second chunk of it holds nothing but the fill value."""
    rng = np.random.default_rng(2)
    write_group(store, zarr_format)
    for dtype in DTYPES:
        for number, fill in enumerate(fill_values(dtype)):
            values = random_values(rng, (7, 6), dtype)
            fill = np.dtype(dtype).type(fill)
            for i in range(0, 7, 2):
                for j in range(0, 6, 3):
                    if (i // 2 + j // 3) % 2:
                        values[i : i + 2, j : j + 3] = fill
            # The last row of sharded chunks (and of chunks) is missing as a whole.
            values[4:] = fill
            name = f"{dtype}_{number}"
            write_array(
                store,
                name,
                values,
                chunks=(2, 3),
                shards=(4, 6),
                codec=codec,
                zarr_format=zarr_format,
                fill_value=fill,
                endian=endian,
            )
            assert len(chunk_files(store / name)) == (1 if CODECS[codec].sharded else 2), name


@pytest.mark.gpu_where(lambda case: case["chain"] in GPU_CHAINS or case["endian"] == "little")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    "chain",
    [
        "v2-raw",
        "v2-zstd",
        pytest.param("v2-blosc-zstd", marks=pytest.mark.full),
        "v3-raw",
        "v3-zstd",
        pytest.param("v3-gzip", marks=pytest.mark.full),
        pytest.param("v3-sharded-end-raw", marks=pytest.mark.full),
        "v3-sharded-end-zstd",
        "v3-sharded-start-gzip",
    ],
)
def test_missing_chunks(backend, cached_store, chain, endian):
    zarr_format, codec = parse(chain)
    store = cached_store(
        ("missing", chain, endian), lambda at: write_with_missing(at, zarr_format, codec, endian)
    )
    names = [f"{dtype}_{i}" for dtype in DTYPES for i in range(len(fill_values(dtype)))]
    wholes = [read_array(store, name) for name in names]
    for window in (None, [3, 4]):
        outputs = read_all(backend, store, arrays=names, window=window)
        for name, whole, samples in zip(names, wholes, outputs, strict=True):
            assert_samples(samples, whole, window, what=name)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_array_without_any_chunk(backend, tmp_path, zarr_format, dtype):
    fill = fill_values(dtype)[0]
    values = np.full((5, 3), fill, dtype)
    path = write_array(
        tmp_path, "a", values, chunks=(2, 2), zarr_format=zarr_format, fill_value=fill, write=False
    )
    assert chunk_files(path) == []
    assert_reads(backend, tmp_path, "a", values)


def test_v2_without_fill_value(backend, tmp_path):
    values = np.arange(6, dtype="int32")
    path = write_array(tmp_path, "a", values, chunks=(2,), zarr_format=2)
    edit_metadata(path / ".zarray", lambda metadata: metadata.update(fill_value=None))
    (path / "1").unlink()
    assert_reads(backend, tmp_path, "a", np.array([0, 1, 0, 0, 4, 5], "int32"))


@pytest.mark.parametrize("fill", ["0x7fc00123", "0xffc00001"])
def test_fill_value_with_a_nan_payload(backend, tmp_path, fill):
    """The v3 specification writes NaNs other than the default one as hexadecimal bits."""
    path = write_array(tmp_path, "a", np.zeros((4, 2), "float32"), chunks=(1, 2), zarr_format=3, write=False)
    edit_metadata(path / "zarr.json", lambda metadata: metadata.update(fill_value=fill))
    (samples,) = read_all(backend, path)
    for sample in samples:
        assert_same_bits(sample, np.full(2, int(fill, 16), "uint32").view("float32"))


# --- groups, paths, metadata ----------------------------------------------------------------------


@pytest.mark.parametrize("consolidated", [False, True], ids=["plain", "consolidated"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_group_with_three_arrays(backend, tmp_path, rng, zarr_format, consolidated):
    """Arrays of different types, chunks and later dimensions give one output each, in the order asked for."""
    write_group(tmp_path, zarr_format)
    arrays = {
        "t2m": (random_values(rng, (7, 5, 4), "float32"), (1, 5, 4), "zstd"),
        "mask": (random_values(rng, (7, 5), "bool"), (3, 2), "raw"),
        "hour": (random_values(rng, (7,), "int64"), (7,), "gzip"),
    }
    for name, (values, chunks, codec) in arrays.items():
        write_array(tmp_path, name, values, chunks=chunks, codec=codec, zarr_format=zarr_format)
    if consolidated:
        write_group(tmp_path, zarr_format, consolidated=True)
    for order in (["t2m", "mask", "hour"], ["hour", "t2m", "mask"]):
        for window in (None, [2]):
            outputs = read_all(backend, tmp_path, arrays=order, window=window)
            for name, samples in zip(order, outputs, strict=True):
                assert_samples(samples, arrays[name][0], window, what=name)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("consolidated", [False, True], ids=["plain", "consolidated"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_in_nested_groups(backend, tmp_path, rng, zarr_format, consolidated):
    write_group(tmp_path, zarr_format)
    values = random_values(rng, (5, 4), "float32")
    write_array(tmp_path, "a/b/t2m", values, chunks=(2, 3), zarr_format=zarr_format)
    if consolidated:
        write_group(tmp_path, zarr_format, consolidated=True)
    assert_reads(backend, tmp_path, "a/b/t2m", values)
    assert_reads(backend, tmp_path / "a", "b/t2m", values)
    assert_reads(backend, tmp_path / "a/b/t2m", "", values)


def test_same_array_twice(backend, tmp_path, rng):
    values = random_values(rng, (5, 4), "float32")
    write_array(tmp_path, "a", values, chunks=(2, 3))
    write_group(tmp_path / "b")
    for samples in read_all(backend, tmp_path, arrays=["a", "a"], window=[2]):
        assert_samples(samples, values, [2])


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_key_separator(backend, tmp_path, rng, zarr_format, separator):
    values = random_values(rng, (5, 4, 3), "int16")
    path = write_array(tmp_path, "a", values, chunks=(2, 3, 3), zarr_format=zarr_format, separator=separator)
    first = {(2, "."): "0.0.0", (2, "/"): "0/0/0", (3, "."): "c.0.0.0", (3, "/"): "c/0/0/0"}
    assert (path / first[zarr_format, separator]).is_file()
    assert_reads(backend, tmp_path, "a", values, [2, 2])


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("separator", [".", "/"])
def test_v2_key_encoding_in_v3(backend, tmp_path, rng, separator):
    values = random_values(rng, (5, 4), "int16")
    path = write_array(tmp_path, "a", values, chunks=(2, 3), zarr_format=3)
    encoding = {"name": "v2", "configuration": {"separator": separator}}
    edit_metadata(path / "zarr.json", lambda metadata: metadata.update(chunk_key_encoding=encoding))
    for file in chunk_files(path):
        target = path / separator.join(file.relative_to(path / "c").parts)
        target.parent.mkdir(exist_ok=True)
        file.rename(target)
    assert_reads(backend, tmp_path, "a", values)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("name", ["two words", "ünï", "a+b=c&d", "trailing.dot."])
def test_unusual_names(backend, tmp_path, rng, name):
    values = random_values(rng, (4, 3), "float32")
    store = tmp_path / f"store {name}"
    write_array(store, name, values, chunks=(2, 3))
    assert_reads(backend, store, name, values)


@pytest.mark.gpu_where(False)
def test_path_forms(backend, tmp_path, rng, monkeypatch):
    """Relative paths, trailing and doubled separators, symbolic links."""
    values = random_values(rng, (4, 3), "float32")
    write_array(tmp_path / "s.zarr", "a", values, chunks=(2, 3))
    (tmp_path / "link").symlink_to(tmp_path / "s.zarr")
    monkeypatch.chdir(tmp_path)
    for path in ("s.zarr", "./s.zarr/", f"{tmp_path}//s.zarr//", "link", "link/../s.zarr"):
        assert_reads(backend, path, "a", values)


# --- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("codec", ["raw", "zstd", "gzip", "sharded-end-zstd"])
def test_every_float16(backend, tmp_path, codec, endian):
    """All 65536 bit patterns: every NaN payload, signalling ones too."""
    values = np.arange(1 << 16, dtype="uint16").view("float16").reshape(16, 4096)
    write_array(tmp_path, "a", values, chunks=(3, 1000), codec=codec, endian=endian)
    assert_reads(backend, tmp_path, "a", values)


@pytest.mark.parametrize("dtype, unsigned", [("float32", "uint32"), ("float64", "uint64")])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_nan_payloads(backend, tmp_path, rng, dtype, unsigned, endian):
    quiet, signalling = {
        "float32": (0x7FC00000, 0x7F800001),
        "float64": (0x7FF8000000000000, 0x7FF0000000000001),
    }[dtype]
    payload = rng.integers(0, 1 << 16, size=(6, 50), dtype=unsigned)
    values = np.where(
        payload % 2, payload | np.array(quiet, unsigned), payload | np.array(signalling, unsigned)
    )
    values = values.astype(unsigned).view(dtype)
    assert np.isnan(values).all()
    write_array(tmp_path, "a", values, chunks=(2, 30), endian=endian)
    assert_reads(backend, tmp_path, "a", values)


# --- zstd -----------------------------------------------------------------------------------------


def smooth_field(shape):
    """float32 values as a weather model packs them: smooth, 16 significant bits."""
    t, y, x = np.meshgrid(*(np.linspace(0, 3, n) for n in shape), indexing="ij")
    field = np.sin(5 * x + t) * np.cos(4 * y - t) + 0.1 * np.sin(40 * x * y)
    return (np.round(field * 32768) / 32768).astype("float32")


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd-checksum", "zstd-best", "sharded-end-zstd", "gzip"])
def test_chunks_of_several_zstd_blocks(backend, cached_store, codec):
    """Chunks above zstd's 128 KiB blocks: compressed, stored and run-length blocks in one file."""
    values = smooth_field((5, 240, 300))
    values[1] = 3.25
    values[2, 100:] = np.random.default_rng(3).random((140, 300), dtype="float32")
    store = cached_store(
        ("large", codec),
        lambda at: write_array(at, "", values, chunks=(1, 240, 300), shards=(2, 240, 300), codec=codec),
    )
    assert_reads(backend, store, "", values)
    assert_reads(backend, store, "", values, [2, 100, 120], [2, 70, 90])


def test_every_zstd_level(backend, cached_store):
    levels = (-131072, -1, 0, 1, 4, 7, 10, 13, 16, 19, 22)
    values = smooth_field((2, 60, 80))

    def write(at):
        write_group(at, 2)
        for level in levels:
            codec = Codec(
                f"level{level}", v2=lambda level=level: numcodecs.Zstd(level=level, checksum=level % 2 == 0)
            )
            write_array(at, f"level{level}", values, chunks=(1, 60, 80), codec=codec)

    store = cached_store("levels", write)
    for samples in read_all(backend, store, arrays=[f"level{level}" for level in levels]):
        assert_samples(samples, values)


@pytest.mark.parametrize(
    "encode",
    [
        pytest.param(lambda data: zstd_raw_frame(data), id="stored-blocks"),
        pytest.param(lambda data: zstd_raw_frame(data, with_size=False), id="no-content-size"),
        pytest.param(
            lambda data: zstd_skippable_frame(b"hello") + zstd_raw_frame(data), id="skippable-first"
        ),
        pytest.param(lambda data: zstd_raw_frame(data) + zstd_skippable_frame(b"hello"), id="skippable-last"),
        pytest.param(lambda data: zstd_raw_frame(data[:777]) + zstd_raw_frame(data[777:]), id="two-frames"),
        pytest.param(
            lambda data: zstd_raw_frame(data[:777], with_size=False) + zstd_raw_frame(data[777:]),
            id="two-frames-one-without-size",
        ),
    ],
)
def test_unusual_zstd_frames(backend, tmp_path, rng, encode):
    """Frames that the zstd format allows and other writers make."""
    values = random_values(rng, (3, 1000), "float32")
    path = write_array(tmp_path, "a", values, chunks=(1, 1000), zarr_format=3)
    for i, file in enumerate(chunk_files(path)):
        file.write_bytes(encode(values[i].tobytes()))
    np.testing.assert_array_equal(read_array(path).view("uint32"), values.view("uint32"))
    assert_reads(backend, tmp_path, "a", values)


@pytest.mark.parametrize("index", ["end", "start"])
def test_inner_chunks_in_any_place(backend, tmp_path, rng, index):
    """A sharded chunk may hold its inner chunks in any order, with gaps, and two entries may share bytes."""
    values = random_values(rng, (6, 50), "float32")
    values[4] = values[1]
    codec = "sharded-start-zstd" if index == "start" else "sharded-end-zstd-no-crc"
    path = write_array(tmp_path, "a", values, chunks=(1, 50), shards=(6, 50), codec=codec)
    (file,) = chunk_files(path)
    old = file.read_bytes()
    index_bytes = 6 * 16 + (4 if index == "start" else 0)
    table = old[:index_bytes] if index == "start" else old[-index_bytes:]
    entries = np.frombuffer(table[:96], "<u8").reshape(6, 2)
    body = b"gap of junk"
    base = index_bytes if index == "start" else 0
    moved = np.zeros_like(entries)
    for i in (5, 1, 3, 0, 2):
        offset, size = map(int, entries[i])
        moved[i] = (base + len(body), size)
        body += old[offset : offset + size] + b"junk" * i
    moved[4] = moved[1]
    new_table = moved.tobytes()
    if index == "start":
        new_table += crc32c(new_table).to_bytes(4, "little")
    file.write_bytes(new_table + body if index == "start" else body + new_table)
    np.testing.assert_array_equal(read_array(path).view("uint32"), values.view("uint32"))
    assert_reads(backend, tmp_path, "a", values)
    assert_reads(backend, tmp_path, "a", values, [4, 20])


# --- decode paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", ["v3-raw", "v3-zstd", "v3-gzip", "v3-sharded-end-zstd", "v2-blosc-lz4"])
def test_decode_on_the_cpu(backend, cached_store, chain):
    """`decode="cpu"` sends every chain down the CPU path, on either backend."""
    zarr_format, codec = parse(chain)
    store = cached_store(
        ("dtypes", chain, "little"), lambda at: write_every_dtype(at, zarr_format, codec, endian="little")
    )
    outputs = read_all(backend, store, arrays=list(DTYPES), window=[2], decode="cpu")
    for dtype, samples in zip(DTYPES, outputs, strict=True):
        assert_samples(samples, read_array(store, dtype), [2], what=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    "chain",
    [
        "v2-raw",
        "v2-zstd",
        "v3-raw",
        "v3-zstd",
        "v3-sharded-end-raw",
        "v3-sharded-end-zstd",
        "v3-sharded-start-zstd",
    ],
)
def test_decode_on_the_gpu(cached_store, chain, endian):
    """`decode="gpu"` would be refused if these chains were not decoded on the GPU."""
    zarr_format, codec = parse(chain)
    store = cached_store(
        ("dtypes", chain, endian), lambda at: write_every_dtype(at, zarr_format, codec, endian=endian)
    )
    outputs = read_all(GPU, store, arrays=list(DTYPES), window=[2], decode="gpu")
    for dtype, samples in zip(DTYPES, outputs, strict=True):
        assert_samples(samples, read_array(store, dtype), [2], what=dtype)


# --- random walks ---------------------------------------------------------------------------------


def random_case(seed):
    """A random array and a random reader over it."""
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 6))
    shape = tuple(int(n) for n in rng.integers(1, (40, 14, 9, 7, 5)[ndim - 1], size=ndim))
    chunks = tuple(int(rng.integers(1, n + 2)) for n in shape)
    shards = tuple(int(n * rng.integers(1, 4)) for n in chunks)
    zarr_format, codec = parse(CHAINS[rng.integers(len(CHAINS))])
    dtype = DTYPES[rng.integers(len(DTYPES))]
    fills = fill_values(dtype)
    fill = np.dtype(dtype).type(fills[rng.integers(len(fills))])
    values = random_values(rng, shape, dtype)
    for _ in range(int(rng.integers(0, 4))):
        corner = tuple(int(rng.integers(0, n)) for n in shape)
        values[tuple(slice(at, at + 2 * n) for at, n in zip(corner, chunks))] = fill
    window = stride = None
    if rng.random() < 0.8:
        depth = int(rng.integers(1, ndim + 1))
        window = [int(rng.integers(1, n + 1)) for n in shape[:depth]]
        stride = [int(rng.integers(1, n + 1)) for n in shape[:depth]] if rng.random() < 0.7 else None
    options = {
        "chunks": chunks,
        "shards": shards,
        "codec": codec,
        "zarr_format": zarr_format,
        "fill_value": fill,
        "endian": ("little", "big")[rng.integers(2)],
    }
    if zarr_format == 2:
        options["order"] = "CF"[rng.integers(2)]
    return values, options, window, stride, int(rng.integers(1, 9))


@pytest.mark.gpu_where(lambda case: case["block"] < 5)
@pytest.mark.parametrize("block", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 10))])
def test_random_reads(backend, tmp_path, block):
    for seed in range(block * 12, block * 12 + 12):
        values, options, window, stride, batch_size = random_case(seed)
        store = tmp_path / str(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_array(store, "", values, **options)
        whole = read_array(store)
        what = f"seed {seed}: {values.dtype} {values.shape} {options} window {window} stride {stride}"
        (samples,) = read_all(backend, store, window=window, stride=stride, batch_size=batch_size)
        assert_samples(samples, whole, window, stride, what)


@pytest.mark.parametrize("block", range(5))
def test_random_shuffled_reads(backend, tmp_path, block):
    """The same with everything on: arrays, shuffle, shards, padding; `source_info` says what was read."""
    for seed in range(1000 + block * 6, 1000 + block * 6 + 6):
        rng = np.random.default_rng(seed)
        values, options, window, stride, batch_size = random_case(seed)
        tail = random_values(rng, (*values.shape[: len(window or [0])], 3), "uint16")
        store = tmp_path / str(seed)
        write_group(store, options["zarr_format"])
        write_array(store, "a", values, **options)
        write_array(store, "b", tail, chunks=(2,) * tail.ndim, zarr_format=options["zarr_format"])
        count = len(reference.windows(values.shape, window, stride))
        num_shards = int(rng.integers(1, min(count, 4) + 1))
        pipe = build(
            backend,
            store,
            arrays=["a", "b"],
            window=window,
            stride=stride,
            batch_size=batch_size,
            random_shuffle=True,
            seed=seed,
            num_shards=num_shards,
            shard_id=int(rng.integers(num_shards)),
            pad_last_batch=bool(rng.integers(2)),
            stick_to_shard=bool(rng.integers(2)),
        )
        batches = [pipe.run() for _ in range(4)]
        for name, whole in (("a", values), ("b", tail)):
            whole_by_info = {
                reference.source_info(store, name, index): whole[index]
                for index in reference.windows(whole.shape, window, stride)
            }
            assert len(whole_by_info) == count
            for batch in batches:
                output = batch["ab".index(name)]
                for i, sample in enumerate(to_samples(output)):
                    info = output[i].source_info()
                    assert_same_bits(sample, np.asarray(whole_by_info[info]), f"seed {seed} {info}")


def test_batches_run_on_into_the_next_epoch(backend, tmp_path):
    values = np.arange(10, dtype="int64").reshape(5, 2)
    write_array(tmp_path, "a", values, chunks=(2, 2))
    batches = run_batches(build(backend, tmp_path, arrays=["a"], batch_size=4), 5)
    got = [int(sample[0]) // 2 for (samples,) in batches for sample in samples]
    assert got == [i % 5 for i in range(20)]
