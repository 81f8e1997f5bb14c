"""`zarr_dali.info` and the command `zarr-dali info`: what they say against what was written and what the
reader does."""

import dataclasses
import json
import math
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dali
from reading import CPU, build, gpu_problem
from stores import CODECS, FORMATS, chunk_files, edit_metadata, write_array, write_group
from zarr_dali import cli

V3 = pytest.mark.skipif(3 not in FORMATS, reason="needs zarr-python 3")


@pytest.fixture
def values(rng):
    """(8, 6, 10) of float32, compressible."""
    return np.round(rng.normal(size=(8, 6, 10)), 1).astype("float32")


def only(path, **arguments):
    """The report of a store's only array."""
    (array,) = zarr_dali.info(path, **arguments).arrays
    return array


def empty_array(path, shape, chunks, **options):
    """An array of which no chunk was written, so that it can be of any size."""
    import zarr

    version = 3 if 3 in FORMATS else 2
    zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="float32", zarr_format=version, **options)
    return path


def codes(found):
    return {advice.code for advice in found.advice}


# --- what an array is -----------------------------------------------------------------------------

CASES = [
    # chain, format, words, decode_path
    ("raw", 2, "uncompressed", "GPU"),
    ("zstd", 2, "zstd(0)", "GPU"),
    ("gzip", 2, "gzip(5)", "GPU"),
    ("zlib", 2, "zlib(1)", "GPU"),
    ("bz2", 2, "bz2(1)", "CPU"),
    ("blosc-lz4", 2, "blosc(lz4, shuffle=byte, level 5)", "GPU"),
    ("blosc-zstd", 2, "blosc(zstd, shuffle=bit, level 3)", "GPU"),
    ("shuffle-zstd", 2, "shuffle(elementsize=4), zstd(1)", "GPU"),
    ("raw", 3, "uncompressed", "GPU"),
    ("zstd", 3, "zstd(0)", "GPU"),
    ("zstd-checksum", 3, "zstd(3, checksum)", "GPU"),
    ("gzip", 3, "gzip(5)", "GPU"),
    ("blosc-lz4", 3, "blosc(lz4, shuffle=byte, level 5)", "GPU"),
    ("zstd-crc32c", 3, "zstd(1), crc32c", "GPU"),
    ("transpose-zstd", 3, "transpose([2,1,0]), zstd(1)", "GPU"),
    ("sharded-end-zstd", 3, "sharded(zstd(0))", "GPU"),
    ("sharded-start-raw", 3, "sharded(uncompressed)", "GPU"),
    ("sharded-nested-zstd", 3, "sharded(sharded(zstd(0)))", "CPU"),
]


@pytest.mark.parametrize("codec, zarr_format, words, decode_path", CASES, ids=lambda value: str(value))
def test_what_an_array_is(tmp_path, values, codec, zarr_format, words, decode_path):
    folder = write_array(
        tmp_path / "a.zarr", None, values, chunks=(1, 3, 10), codec=codec, zarr_format=zarr_format
    )
    chain = CODECS[codec]
    array = only(folder)
    files = chunk_files(folder)
    chunk = {0: (1, 3, 10), 1: (2, 6, 20), 2: (4, 12, 40)}[chain.sharded + chain.nested]
    assert (array.name, array.zarr_format, array.shape) == ("", zarr_format, (8, 6, 10))
    assert array.chunk == chunk
    # Shards in shards are decoded whole, but cut they are.
    assert array.inner_chunk == ((chunk[0] // 2, chunk[1] // 2, chunk[2] // 2) if chain.sharded else None)
    assert (array.data_type, array.output_type) == ("float32", "float32")
    assert (array.chain, array.decode_path) == (words, decode_path), array.reason
    assert array.decoded_bytes == values.nbytes
    assert array.stored_bytes == sum(file.stat().st_size for file in files)
    assert array.chunks == array.chunks_present == len(files)
    assert array.ratio == pytest.approx(values.nbytes / array.stored_bytes)
    assert not array.sampled


def test_order_and_byte_order_of_format_2(tmp_path, values):
    folder = write_array(
        tmp_path / "a.zarr",
        None,
        values,
        chunks=(4, 3, 5),
        codec="zstd",
        zarr_format=2,
        order="F",
        endian="big",
    )
    array = only(folder)
    assert array.chain == "transpose([2,1,0]), bytes(big), zstd(0)"
    assert (array.data_type, array.decode_path) == ("float32", "GPU")


def test_decode_paths_and_outputs_are_those_of_the_reader(tmp_path, values):
    folder = write_array(
        tmp_path / "a.zarr", None, values, chunks=(1, 3, 10), dimension_names=("t", "y", "x")
    )
    on_cpu = only(folder, device="cpu", window=[2, 3], batch_size=3)
    assert (on_cpu.decode_path, on_cpu.reading.gpu_memory) == ("CPU", None)
    assert "CPU backend" in on_cpu.reason
    assert only(folder, decode="cpu").decode_path == "CPU"
    pipe = build(CPU, str(folder), window=[2, 3], batch_size=3)
    (sample,) = pipe.run()
    (output,) = on_cpu.reading.outputs
    assert output.shape == tuple(sample[0].shape())
    assert output.layout == sample.layout() == "THW"
    assert on_cpu.reading.samples == pipe.reader_meta("reader")["epoch_size"]
    assert on_cpu.reading.batch_bytes == 3 * 2 * 3 * 10 * 4


def test_missing_chunks_are_counted(tmp_path, values):
    values[2:4] = 0
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 3, 10))
    array = only(folder)
    assert (array.chunks_present, array.chunks) == (12, 16)
    assert "12 of 16" in str(zarr_dali.info(folder))
    assert array.ratio == pytest.approx(values.nbytes * 12 / 16 / array.stored_bytes)


# --- groups, refusals -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """t2m, deep/msl, deep/time; text and broken are refused, scalar has no samples."""
    path = tmp_path_factory.mktemp("info") / "group.zarr"
    write_group(path)
    write_group(path / "deep")
    write_array(path, "t2m", np.ones((6, 4, 3), "float32"), chunks=(2, 4, 3))
    write_array(path, "deep/msl", np.ones((6, 4, 3), "float32"), chunks=(1, 4, 3), codec="gzip")
    write_array(path, "deep/time", np.arange(9, dtype="int64"), chunks=(9,))
    write_array(path, "scalar", np.float32(1).reshape(()), chunks=())
    for name in ("text", "broken", "garbled"):
        write_array(path, name, np.ones((6, 4, 3), "float32"), chunks=(2, 4, 3))
    is_v3 = (path / "text" / "zarr.json").exists()
    metadata = "zarr.json" if is_v3 else ".zarray"
    edit_metadata(
        path / "text" / metadata, lambda m: m.update({"data_type": "string"} if is_v3 else {"dtype": "|O"})
    )
    unknown = {"codecs": ["bytes", {"name": "squeeze", "configuration": {"hard": 3}}]}
    unknown_v2 = {"compressor": {"id": "squeeze", "hard": 3}}
    edit_metadata(path / "broken" / metadata, lambda m: m.update(unknown if is_v3 else unknown_v2))
    (path / "garbled" / metadata).write_text('{"zarr_format": ')
    return path


def test_every_array_of_a_group_is_listed(group):
    found = zarr_dali.info(group)
    decode_paths = {array.name: array.decode_path for array in found.arrays}
    refused = dict.fromkeys(("broken", "garbled", "text"), "refused")
    assert decode_paths == refused | dict.fromkeys(("t2m", "deep/msl", "deep/time", "scalar"), "GPU")
    assert list(decode_paths) == sorted(decode_paths)
    assert found.together is None


def test_a_refused_array_says_why(group):
    arrays = {array.name: array for array in zarr_dali.info(group).arrays}
    assert "string" in arrays["text"].reason or "|O" in arrays["text"].reason
    assert "squeeze" in arrays["broken"].reason and '"hard":3' in arrays["broken"].reason
    assert arrays["broken"].chain == "squeeze(hard=3)"
    assert (arrays["broken"].shape, arrays["broken"].chunk) == ((6, 4, 3), (2, 4, 3))
    for name in ("text", "broken", "garbled"):
        assert arrays[name].reading is None and arrays[name].stored_bytes is None
        with pytest.raises(ValueError, match=name) as caught:
            build(CPU, str(group), arrays=[name])
        assert arrays[name].reason in str(caught.value)


def test_arguments_that_do_not_fit_are_no_refusal(group):
    arrays = {array.name: array for array in zarr_dali.info(group, window=[2, 4]).arrays}
    assert arrays["t2m"].reading.outputs[0].shape == (2, 4, 3)
    assert arrays["deep/time"].decode_path == "GPU"
    assert "window" in arrays["deep/time"].problem
    assert "no dimensions" in arrays["scalar"].problem


def test_named_arrays_are_also_read_together(group):
    found = zarr_dali.info(group, ["t2m", "deep/msl"], batch_size=4)
    assert [array.name for array in found.arrays] == ["t2m", "deep/msl"]
    assert found.together.batch_bytes == sum(array.reading.batch_bytes for array in found.arrays)
    assert found.together.chunks_per_batch == 2 + 4
    stacked = zarr_dali.info(group, ["t2m", "deep/msl"], stack=True, window=[2])
    assert [output.shape for output in stacked.together.outputs] == [(2, 2, 4, 3)]
    apart = zarr_dali.info(group, ["t2m", "deep/time"])
    assert apart.together is None and "deep/time" in apart.problem
    assert "together: " in str(apart)


def test_decode_gpu_refuses_what_the_gpu_cannot(tmp_path, values):
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 3, 10), codec="bz2")
    assert only(folder).decode_path == "CPU"
    array = only(folder, decode="gpu")
    assert array.decode_path == "refused" and "bz2" in array.reason


def test_joined_stores(tmp_path, values):
    for i in range(3):
        write_array(tmp_path / f"{i}.zarr", None, values, chunks=(1 + i, 6, 10))
    array = only([tmp_path / f"{i}.zarr" for i in range(3)], window=[2])
    assert (array.shape, array.stores, array.chunk) == ((24, 6, 10), 3, (1, 6, 10))
    assert array.chunks == 8 + 4 + 3
    assert array.reading.samples == 23
    assert only(tmp_path / "?.zarr").chunks == 15


def test_complex_numbers_and_times(tmp_path):
    write_group(tmp_path / "g.zarr", zarr_format=2)
    times = np.arange(4).astype("datetime64[h]")
    write_array(tmp_path / "g.zarr", "time", times, chunks=(4,), zarr_format=2, fill_value=None)
    pairs = np.ones((4, 3), "complex64")
    write_array(tmp_path / "g.zarr", "pairs", pairs, chunks=(2, 3), zarr_format=2)
    found = zarr_dali.info(tmp_path / "g.zarr")
    arrays = {array.name: array for array in found.arrays}
    assert (arrays["time"].data_type, arrays["time"].output_type) == ("datetime64[h]", "int64")
    assert "datetime64[h] -> int64" in str(found)
    assert (arrays["pairs"].shape, arrays["pairs"].chunk) == ((4, 3), (2, 3))
    assert arrays["pairs"].output_type == "float32"
    assert arrays["pairs"].decoded_bytes == pairs.nbytes
    assert arrays["pairs"].reading.outputs[0].shape == (3, 2)


@V3
def test_values_as_they_are_asked_for(tmp_path):
    from nvidia.dali import types

    write_group(tmp_path / "g.zarr")
    for name in ("a", "b"):
        folder = write_array(tmp_path / "g.zarr", name, np.ones((4, 3), "int16"), chunks=(2, 3))
        scale = {"scale_factor": 0.5}
        edit_metadata(folder / "zarr.json", lambda metadata: metadata["attributes"].update(scale))

    def output_types(**arguments):
        found = zarr_dali.info(tmp_path / "g.zarr", ["a", "b"], **arguments)
        assert found.problem is None, found.problem
        (kind,) = {array.output_type for array in found.arrays}
        assert [output.type for output in found.together.outputs] == [kind, kind]
        assert found.together.batch_bytes == 2 * 3 * np.dtype(kind).itemsize
        if not isinstance(arguments.get("dtype"), (str, np.dtype)):
            sample = np.array(
                build(CPU, str(tmp_path / "g.zarr"), arrays=["a", "b"], **arguments).run()[0].at(0)
            )
            assert sample.dtype == kind
        return kind

    assert output_types() == "int16"
    assert output_types(mask_and_scale=True).startswith("float")
    for dtype in ("float16", types.FLOAT16, np.dtype("float16")):
        assert output_types(dtype=dtype) == "float16"
    assert output_types(mean=[1, 2], std=3) == "float32"
    assert zarr_dali.info(tmp_path / "g.zarr", ["a", "b"], mean=[1, 2, 3]).problem


# --- what reading costs ---------------------------------------------------------------------------


def counted(shape, chunk, window, stride, batch):
    """By hand: mean chunks and amplification of a sample, chunks and amplification of the first batch."""
    counts = [(n - w) // s + 1 for n, w, s in zip(shape, window, stride)]
    samples = []
    for start in np.ndindex(*counts):
        first = [i * s for i, s in zip(start, stride)]
        cells = [range(f // c, (f + w - 1) // c + 1) for f, w, c in zip(first, window, chunk)]
        cells += [range(-(-n // c)) for n, c in zip(shape[len(window) :], chunk[len(window) :])]
        grids = np.meshgrid(*cells, indexing="ij")
        samples.append({tuple(int(axis.flat[i]) for axis in grids) for i in range(grids[0].size)})
    elements = math.prod(window) * math.prod(shape[len(window) :])
    mean = sum(map(len, samples)) / len(samples)
    together = len(set().union(*samples[:batch]))
    each = math.prod(chunk) / elements
    return mean, mean * each, together, together * each / batch


@pytest.mark.parametrize(
    "shape, chunk, window, stride",
    [
        ((12, 6, 10), (1, 6, 10), [1], [1]),
        ((12, 6, 10), (5, 4, 3), [3], [2]),
        ((12, 6, 10), (5, 4, 3), [3, 2], [2, 2]),
        ((12, 6, 10), (12, 6, 10), [1], [1]),
        ((5, 9), (2, 2), [2, 5], [1, 2]),
    ],
)
def test_chunks_and_amplification(tmp_path, shape, chunk, window, stride):
    folder = empty_array(tmp_path / "a.zarr", shape, chunk)
    reading = only(folder, window=window, stride=stride, batch_size=4).reading
    found = (
        reading.chunks_per_sample,
        reading.sample_amplification,
        reading.chunks_per_batch,
        reading.batch_amplification,
    )
    assert found == pytest.approx(counted(shape, chunk, window, stride, 4))


def test_samples_without_elements(tmp_path):
    folder = empty_array(tmp_path / "a.zarr", (4, 0), (1, 1))
    reading = only(folder).reading
    assert (reading.chunks_per_sample, reading.sample_amplification, reading.batch_bytes) == (0, None, 0)
    assert str(zarr_dali.info(folder))


def test_samples_are_listed_as_for_the_loader(tmp_path):
    folder = empty_array(tmp_path / "a.zarr", (64, 20), (1, 20))
    for samples in ([[3], [5]], np.array([[3], [5]]), "[[3], [5]]"):
        assert only(folder, samples=samples, window=[1], batch_size=2).reading.samples == 2


def test_memory_and_what_the_reader_would_choose(tmp_path):
    folder = empty_array(tmp_path / "a.zarr", (64, 320, 1280), (1, 320, 1280))
    array = only(folder, batch_size=4, device_memory_budget=1 << 30)
    memory, chosen = array.reading.gpu_memory, array.reading.chosen
    assert memory.outputs == memory.decoded == 4 * 320 * 1280 * 4
    assert memory.encoded >= memory.decoded
    # The bound of zstd's scratch memory: frames whose sequences are as short as can be.
    assert memory.scratch > 2.9 * memory.decoded
    assert memory.total == memory.outputs + memory.encoded + memory.decoded + memory.scratch
    assert chosen.budget_bytes == 1 << 30 and 2 <= chosen.lanes <= 4
    # Batches of four chunks: more of them are in flight, as far as half of the budget goes.
    assert 64 < chosen.depth < 128 and chosen.depth * memory.outputs <= 1 << 29
    assert chosen.lanes * chosen.arena_bytes + chosen.depth * memory.outputs <= 1 << 30
    assert only(folder, batch_size=4, device_memory_budget=20 << 30).reading.chosen.depth == 128
    assert only(folder, batch_size=32, device_memory_budget=20 << 30).reading.chosen.depth == 23
    assert only(folder, batch_size=64, device_memory_budget=20 << 30).reading.chosen.depth == 12
    tight = only(folder, batch_size=4, device_memory_budget=1 << 20).reading
    assert tight.chosen is None and "device_memory_budget" in tight.not_chosen
    on_cpu = only(folder, batch_size=4, device="cpu", host_memory_budget=3 * memory.outputs).reading
    assert (on_cpu.chosen.depth, on_cpu.chosen.lanes) == (3, None)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_windows_in_sequence_have_room_for_all_that_is_in_flight(tmp_path, device):
    """Else what stays for the next batch would decide how far ahead chunks are read."""
    folder = empty_array(tmp_path / "a.zarr", (400, 32, 40), (1, 32, 40))
    for window, batch_size in ((2, 1), (4, 1), (3, 8)):
        reading = only(
            folder, device=device, window=[window], batch_size=batch_size, device_memory_budget=1 << 30
        )
        chosen, chunk = reading.reading.chosen, 32 * 40 * 4
        # Of large batches only what windows across the borders between them touch.
        steps = min(batch_size * (chosen.depth + 1) + window - 1, window * (chosen.depth + 2))
        assert chosen.chunk_cache_bytes == chosen.resident_bytes == min(400, steps) * chunk


def test_batches_in_flight_are_as_many_as_fill_the_gpu(tmp_path):
    """Chunks that no batch before has needed count, and their bytes."""
    folder, budget = empty_array(tmp_path / "a.zarr", (4000, 320, 1280), (1, 320, 1280)), 200 << 30

    def depth(**arguments):
        return only(folder, device_memory_budget=budget, **arguments).reading.chosen.depth

    # 1.6 MB each: 733 of them are enough bytes; 1526 for nvCOMP, which walks a frame from end to end.
    assert depth(batch_size=16) == 46
    assert depth(batch_size=16, window=[2]) == 46
    assert depth(batch_size=16, window=[2], stride=[2]) == 23
    assert depth(batch_size=16, gpu_zstd="nvcomp") == 96
    assert depth(batch_size=16, window=[2], stride=[2], gpu_zstd="nvcomp") == 48
    assert depth(batch_size=16, decode="cpu") == 16
    raw = empty_array(tmp_path / "raw.zarr", (4000, 320, 1280), (1, 320, 1280), **NO_CODEC)
    assert only(raw, device_memory_budget=budget, batch_size=16).reading.chosen.depth == 16
    # An epoch of one batch and a bit: the first that is looked at may be short.
    short = empty_array(tmp_path / "short.zarr", (17, 320, 1280), (1, 320, 1280))
    for arguments in ({"pad_last_batch": True}, {}):
        reading = only(short, device_memory_budget=budget, batch_size=16, **arguments).reading
        assert 43 <= reading.chosen.depth <= 128


@pytest.mark.parametrize("io", ["posix", "gds"])
def test_a_budget_names_what_is_in_the_hands_of_dali(tmp_path, io):
    folder = empty_array(tmp_path / "a.zarr", (64, 320, 1280), (1, 320, 1280))
    refused = only(folder, batch_size=8, device_memory_budget=40_000_000, io=io).reading
    batch = 8 * 320 * 1280 * 4
    assert f"4 batches of {batch} bytes, of which 3 are in DALI's hands" in refused.not_chosen
    needed = int(re.search(r"at least (\d+)", refused.not_chosen)[1])
    assert needed > 4 * batch * 32 / 31
    # With cuFile the least may be a little less: what it reads to grows with the budget.
    less = needed - 1 if io == "posix" else needed * 9 // 10
    assert only(folder, batch_size=8, device_memory_budget=less, io=io).reading.chosen is None
    assert only(folder, batch_size=8, device_memory_budget=needed, io=io).reading.chosen.depth == 1


@pytest.mark.skipif(gpu_problem() is None, reason="is about machines without a GPU")
def test_without_a_gpu_the_budget_is_not_known(tmp_path):
    reading = only(empty_array(tmp_path / "a.zarr", (4, 8), (1, 8))).reading
    assert reading.gpu_memory and reading.chosen is None
    assert "GPU" in reading.not_chosen


@pytest.mark.gpu
def test_with_a_gpu_the_budget_is_a_part_of_what_is_free(tmp_path):
    reading = only(empty_array(tmp_path / "a.zarr", (4, 8), (1, 8))).reading
    assert reading.chosen.budget_bytes > 0 and reading.not_chosen is None


@pytest.mark.full
@pytest.mark.alone
def test_ten_thousand_chunks_are_described_in_seconds(tmp_path):
    values = np.ones((100, 100, 4), "float32")
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 1, 4), codec="raw", separator=".")
    # Half of the first half is missing, in no pattern that the grid has.
    files = chunk_files(folder)
    for file in files[: len(files) // 4]:
        file.unlink()
    start = time.perf_counter()
    array = only(folder, batch_size=8)
    assert time.perf_counter() - start < 5
    assert array.sampled and array.chunks == 10_000
    assert array.chunks_present == pytest.approx(7500, rel=0.05)
    assert array.stored_bytes == pytest.approx(7500 * 16, rel=0.05)
    assert array.reading.chunks_per_batch == 800
    assert "~" in str(zarr_dali.info(folder))


@pytest.mark.alone
def test_more_chunks_than_anyone_counts(tmp_path):
    folder = empty_array(tmp_path / "a.zarr", (10**6, 10**6, 10**5), (1, 1, 1))
    start = time.perf_counter()
    array = only(folder, batch_size=8)
    assert time.perf_counter() - start < 5
    assert array.chunks == 10**17 and array.reading.chunks_per_sample == 10**11
    assert array.reading.chunks_per_batch == 8 * 10**11


# --- advice ---------------------------------------------------------------------------------------

NO_CODEC = {"compressors": None}
ADVICE = [
    # shape, chunk, options of zarr.create_array, arguments, codes, words
    ((64, 640, 1280), (1, 640, 1280), NO_CODEC, {}, set(), []),
    (
        (64, 640, 1280),
        (1, 40, 128),
        NO_CODEC,
        {},
        {"small-chunks"},
        ["20.5 kB", "160 for a sample", "(1, 640, 1280)"],
    ),
    (
        (64, 640, 1280),
        (64, 640, 1280),
        NO_CODEC,
        {},
        {"large-chunks", "spans-samples"},
        ["210 MB", "64 bytes"],
    ),
    (
        (64, 640, 1280),
        (16, 640, 1280),
        NO_CODEC,
        {"batch_size": 4},
        {"spans-samples"},
        ["a batch of 4", " 4; write"],
    ),
    ((64, 640, 1280), (16, 640, 1280), NO_CODEC, {"window": [16], "stride": [16]}, set(), []),
    (
        (64, 6400, 6400),
        (1, 640, 640),
        NO_CODEC,
        {},
        {"many-chunks", "uncompressed"},
        ["100 chunks", "(1, 3200, 6400)"],
    ),
    ((10**7,), (10**6,), NO_CODEC, {}, {"spans-samples"}, ["inner chunks of (65536,) (262 kB)"]),
    ((2000,), (20,), NO_CODEC, {}, set(), []),
]


@V3
@pytest.mark.parametrize("shape, chunk, options, arguments, expected, words", ADVICE)
def test_advice_on_chunks(tmp_path, shape, chunk, options, arguments, expected, words):
    found = zarr_dali.info(empty_array(tmp_path / "a.zarr", shape, chunk, **options), **arguments)
    assert codes(found) == expected, found.advice
    text = str(found)
    for word in words:
        assert word in " ".join(text.split()), text


@V3
def test_advice_on_codecs(tmp_path):
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    def of(name, codec, shape=(512, 640, 1280), chunk=(1, 640, 1280), **arguments):
        folder = empty_array(tmp_path / name, shape, chunk, compressors=codec)
        return codes(zarr_dali.info(folder, device_memory_budget=20 << 30, **arguments))

    assert of("blosc", BloscCodec()) == set()
    assert of("zstd", ZstdCodec(), batch_size=8) == {"beside-training"}
    small = of("zstd 64", ZstdCodec(), shape=(64, 640, 1280), batch_size=8)
    assert small == set()
    assert of("zstd on the CPU", ZstdCodec(), decode="cpu") == set()
    assert of("gzip", GzipCodec(), batch_size=8) == {"deflate"}
    assert of("gzip small", GzipCodec(), shape=(2, 640, 640), chunk=(1, 640, 640)) == set()


@pytest.mark.parametrize("io", ["posix", "gds"])
@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc-zstd", "bz2"])
def test_what_is_chosen_fits_into_the_budget(tmp_path, codec, io, rng):
    values = rng.integers(0, 9, (64, 32, 40)).astype("float32")
    write_array(tmp_path / "a.zarr", "", values, chunks=(16, 32, 40), codec=codec, zarr_format=2)
    path, seen = tmp_path / "a.zarr", 0
    for _ in range(150):
        budget = int(2 ** rng.uniform(16, 28))
        cache = int(rng.choice([0, 2 ** rng.uniform(10, 28)]))
        depth, batch_size = int(rng.integers(1, 12)), int(rng.integers(1, 20))
        found = zarr_dali.info(
            path,
            window=[int(rng.integers(1, 4))],
            batch_size=batch_size,
            random_shuffle=bool(rng.integers(2)),
            device_memory_budget=budget,
            cache_bytes=cache,
            prefetch_queue_depth=depth,
            io=io,
        )
        reading = found.arrays[0].reading
        if reading.chosen is None:
            assert "device_memory_budget" in reading.not_chosen
            continue
        seen += 1
        chosen = reading.chosen
        # DALI holds up to three batches.
        parts = (chosen.depth + 3) * reading.batch_bytes + chosen.lanes * chosen.arena_bytes
        parts += chosen.upload_pool_bytes + chosen.chunk_cache_bytes
        assert parts <= budget * 31 / 32 + 1, (budget, cache, depth, batch_size, chosen)
        assert chosen.lanes == chosen.gpu_workers >= 1 and chosen.arena_bytes > 0
        assert chosen.landing_bytes == chosen.upload_pool_bytes > 0
    assert seen > 30


@V3
def test_advice_names_a_command_that_runs(tmp_path):
    path = empty_array(tmp_path / "a store.zarr", (64, 640, 1280), (32, 640, 1280), **NO_CODEC)
    found = zarr_dali.info(path, window=[2], batch_size=4)
    text = str(found)
    program, *words = shlex.split(text[text.index("zarr-dali rechunk") :])
    assert program == "zarr-dali" and words[1:] == [
        str(path), "COPY.zarr", "--for-window", "2", "--batch", "4", "--dry-run",
    ]  # fmt: skip
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 0, done.output
    assert "1x640x1280" in done.output
    # Nothing is to be written otherwise.
    good = empty_array(tmp_path / "good.zarr", (512, 640, 1280), (1, 640, 1280))
    found = zarr_dali.info(good, device_memory_budget=20 << 30, batch_size=8)
    assert codes(found) == {"beside-training"} and "rechunk" not in str(found)


def test_advice_on_chains_of_the_cpu_path(tmp_path):
    import numcodecs
    import zarr

    options = {"zarr_format": 2, "shape": (64, 640, 1280), "chunks": (1, 640, 1280), "dtype": "float32"}
    if 3 not in FORMATS:
        pytest.skip("needs zarr-python 3")
    zarr.create_array(str(tmp_path / "a.zarr"), compressors=numcodecs.BZ2(level=1), **options)
    assert codes(zarr_dali.info(tmp_path / "a.zarr")) == {"on-cpu"}
    assert codes(zarr_dali.info(tmp_path / "a.zarr", device="cpu")) == set()


# --- forms ----------------------------------------------------------------------------------------


def test_json_holds_everything(group):
    found = zarr_dali.info(str(group), ["t2m", "text"], batch_size=2)
    values = json.loads(found.to_json())
    assert values == found.to_dict()
    assert set(values) == {field.name for field in dataclasses.fields(found)}
    (t2m, text) = values["arrays"]
    assert t2m["shape"] == [6, 4, 3] and t2m["reading"]["batch_size"] == 2
    assert t2m["ratio"] == found.arrays[0].ratio
    assert text["decode_path"] == "refused" and text["ratio"] is None
    assert values["arguments"] == {"arrays": ["t2m", "text"], "batch_size": 2}


def test_the_text_has_every_array(group):
    text = str(zarr_dali.info(group, window=(2, 4)))
    for part in ("t2m", "deep/msl", "6x4x3", "gzip(5)", "refused", "squeeze", "Not with these arguments"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 160


def test_errors_are_those_of_the_operator(group, tmp_path):
    for path, arguments in (
        (tmp_path / "nowhere", {}),
        (tmp_path, {}),
        (group, {"arrays": ["t3m"]}),
        (group / "t2m", {"arrays": ["x"]}),
    ):
        with pytest.raises(ValueError) as ours:
            zarr_dali.info(path, **arguments)
        with pytest.raises(ValueError) as theirs:
            build(CPU, str(path), **arguments)
        assert str(ours.value) in str(theirs.value)
    for arguments in (
        {"batch_size": 0},
        {"decode": "tpu"},
        {"window": "x"},
        {"windows": [1]},
        {"device": "tpu"},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            zarr_dali.info(group, **arguments)
    with pytest.raises(TypeError, match=r"dtype: 'foo'"):
        zarr_dali.info(group, dtype="foo")
    with pytest.raises(TypeError, match=r"storage_options: .*list"):
        zarr_dali.info(group, storage_options=["anon"])


@pytest.mark.parametrize(
    "dtype, expected",
    [
        ("f2", "float16"),
        (np.float16, "float16"),
        (float, "float64"),
        (int, "int64"),
        ("torch.int16", "int16"),
    ],
    ids=str,
)
def test_types_are_those_of_the_loader(tmp_path, dtype, expected):
    """Names and types of NumPy and torch, of which none is passed over."""
    import torch

    path = write_array(tmp_path / "a.zarr", "", np.ones((4, 3), "float32"), chunks=(2, 3))
    dtype = torch.int16 if dtype == "torch" else dtype
    assert only(path, dtype=dtype, device="cpu").output_type == expected
    loader = zarr_dali.Loader(path, dtype=dtype, device="cpu")
    assert str(next(iter(loader))["data"].dtype) == f"torch.{expected}"


def test_numbers_of_numpy(tmp_path):
    path = write_array(tmp_path / "a.zarr", "", np.ones((4, 3), "float32"), chunks=(2, 3))
    given = {"window": np.int64(2), "batch_size": np.int64(2), "random_shuffle": np.bool_(True)}
    plain = {"window": [2], "batch_size": 2, "random_shuffle": True}
    found, expected = (zarr_dali.info(path, device="cpu", **each) for each in (given, plain))
    assert found == expected


def test_a_group_without_arrays(tmp_path):
    with pytest.raises(ValueError, match="none"):
        zarr_dali.info(write_group(tmp_path / "g.zarr"))


def test_links_that_lead_upwards_end(group, tmp_path):
    path = tmp_path / "g.zarr"
    write_group(path)
    write_array(path, "a", np.ones((4, 3), "float32"), chunks=(2, 3))
    (path / "loop").symlink_to(path, target_is_directory=True)
    (path / "linked").symlink_to(group / "t2m", target_is_directory=True)
    assert [array.name for array in zarr_dali.info(path).arrays] == ["a", "linked"]


def test_command(group):
    run = CliRunner().invoke
    shown = run(cli.main, ["info", str(group), "--window", "2,4", "--batch-size", "3"])
    assert shown.exit_code == 0 and "Reading batches of 3" in shown.output and "deep/msl" in shown.output
    as_json = run(cli.main, ["info", str(group), "--arrays", "t2m,deep/msl", "--json", "--device", "cpu"])
    values = json.loads(as_json.output)
    assert [array["name"] for array in values["arrays"]] == ["t2m", "deep/msl"]
    assert values["together"]["chosen"]["depth"] == 8
    for arguments in (["info", str(group / "nowhere")], ["info", str(group), "--decode", "tpu"]):
        failed = run(cli.main, arguments)
        assert failed.exit_code == 1 and failed.output.startswith("Error: ")
        assert len(failed.output.splitlines()) == 1
    assert run(cli.main, ["info", str(group), "--window", "two"]).exit_code == 2
    spaced = run(cli.main, ["info", str(group), "--arrays", "t2m, deep/msl", "--json", "--device", "cpu"])
    assert spaced.output == as_json.output
    for names in ("", "t2m,,deep/msl"):
        failed = run(cli.main, ["info", str(group), "--arrays", names])
        assert failed.exit_code == 2 and "a name is empty" in failed.output


def test_command_as_a_process(group):
    command = [sys.executable, "-m", "zarr_dali", "info"]
    shown = subprocess.run([*command, group], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "6x4x3" in shown.stdout, shown.stderr
    failed = subprocess.run([*command, group.parent / "nowhere"], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1 and "does not exist" in failed.stderr and "Traceback" not in failed.stderr


def test_import_stays_light():
    code = "import sys, zarr_dali; print([m for m in ('rich', 'click', 'torch', 'zarr') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stderr


@pytest.mark.parametrize("consolidated", ["x", [1], {"metadata": "x"}, {"metadata": [1]}, None], ids=str)
def test_consolidated_metadata_of_another_type_are_ignored(tmp_path, consolidated):
    if 3 not in FORMATS:
        pytest.skip("this zarr-python writes no Zarr v3")
    write_array(tmp_path / "g.zarr", "a", np.zeros((4, 2), "f4"), chunks=(1, 2), zarr_format=3)
    group = write_group(tmp_path / "g.zarr", 3)
    edit_metadata(group / "zarr.json", lambda metadata: metadata.update(consolidated_metadata=consolidated))
    assert [array.name for array in zarr_dali.info(group, device="cpu").arrays] == ["a"]
