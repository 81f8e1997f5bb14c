"""How chunks are read, decoded and kept changes nothing but the counters: `io`, `decode`, `cache_bytes`."""

import fnmatch
import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from nvidia.dali import types

import mutations
import zarr_dali
from counting import settled_stats
from reading import CPU, GPU, assert_same_bits, build, run_batches, to_samples
from stores import FORMATS, chunk_files, codecs_of, out_of_page_cache, write_array, write_group

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_chains import CHAINS  # a neighbour, not a package

STEPS, BATCH = 12, 4


@pytest.fixture(scope="module")
def values():
    """Three steps [STEPS, 300, 256] whose chunks encode to more than cuFile's least size."""
    return np.random.default_rng(3).integers(0, 1 << 16, (STEPS, 300, 256)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("decode_paths")


def write(folder, name, values, chunks=(1, 256, 256), **codecs):
    """A store of its own for each name; written once."""
    path = folder / f"{name}.zarr"
    if not path.exists():
        array = zarr.create_array(
            store=path, shape=values.shape, chunks=chunks, dtype=values.dtype, fill_value=5, **codecs
        )
        array[:] = values
    return path


def epochs(pipe, how_many=1):
    """Samples of whole epochs in the order of a reader that neither shuffles nor pads."""
    batches = run_batches(pipe, how_many * STEPS // BATCH)
    return np.stack([sample for (samples,) in batches for sample in samples])


@pytest.mark.parametrize("name", [name for name in CHAINS if "transpose" not in name])
@pytest.mark.parametrize(
    "backend, io",
    [
        pytest.param(CPU, "posix", id="cpu"),
        pytest.param(GPU, "posix", id="gpu", marks=pytest.mark.gpu),
        pytest.param(GPU, "gds", id="gds", marks=pytest.mark.gpu),
    ],
)
def test_every_chain_is_read_the_same_way(folder, values, name, backend, io):
    codecs = dict(CHAINS[name])
    if "shards" in codecs:
        codecs["shards"] = (1, 512, 256)
    path = write(folder, name, values, **codecs)
    pipe = build(backend, path, batch_size=BATCH, io=io)
    np.testing.assert_array_equal(epochs(pipe, 2), np.concatenate([values, values]))
    by_cufile = zarr_dali.stats(pipe)["bytes_read_gds"]
    assert (by_cufile > 0) == (io == "gds")


PASSING = (
    "zstd",
    "zstd with checksum",
    "zlib",
    "lz4",
    "gzip",
    "crc32c over zstd",
    *fnmatch.filter(CHAINS, "blosc * *shuffle"),
)
"""Chains with large chunks. All but gzip and the outer checksum pass in pieces."""


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [None, 32 << 20])
@pytest.mark.parametrize("name", PASSING)
def test_large_chunks_pass_in_pieces(folder, name, budget):
    """Encoded chunks of several megabytes; with a small budget there is no memory for their pieces."""
    values = np.random.default_rng(5).integers(0, 1 << 20, (BATCH, 2048, 1024)).astype(np.float32)
    path = write(folder, f"large {name}", values, chunks=(1, 2048, 1024), **CHAINS[name])
    assert min(file.stat().st_size for file in chunk_files(path)) > 4 << 20
    limits = {} if budget is None else {"host_memory_budget": budget}
    pipe = build(GPU, path, batch_size=BATCH, decode="gpu", **limits)
    for (samples,) in run_batches(pipe, 6):
        assert_same_bits(np.stack(samples), values)
    assert zarr_dali.stats(pipe)["chunks_decoded_gpu"] >= 6 * BATCH


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["zstd", "blosc lz4 shuffle", "blosc zstd shuffle"])
def test_large_chunks_that_are_damaged_behind_their_first_piece(tmp_path, name):
    values = np.random.default_rng(5).integers(0, 1 << 20, (1, 2048, 1024)).astype(np.float32)
    path = write(tmp_path, "large", values, chunks=(1, 2048, 1024), **CHAINS[name])
    (file,) = chunk_files(path)
    encoded = bytearray(file.read_bytes())
    encoded[3 << 20 :] = bytes(len(encoded) - (3 << 20))
    file.write_bytes(encoded)
    with pytest.raises(RuntimeError, match="damaged"):
        run_batches(build(GPU, path, batch_size=1, decode="gpu"), 1)


@pytest.mark.gpu
def test_a_large_container_whose_blocks_are_the_same_bytes(tmp_path):
    """The headers of the second one have passed when it is their turn, so the chunk is read as a whole."""
    half = np.random.default_rng(5).integers(0, 1 << 20, (1024, 1024)).astype(np.float32)
    values = np.concatenate([half, half])[None]
    codec = zarr.codecs.BloscCodec(cname="zstd", shuffle="noshuffle", typesize=4, blocksize=half.nbytes)
    path = write(tmp_path, "large", values, chunks=(1, 2048, 1024), compressors=codec)
    (file,) = chunk_files(path)
    encoded = bytearray(file.read_bytes())
    starts = np.frombuffer(encoded, "<u4", 2, 16)
    assert (
        np.frombuffer(encoded, "<u4", 2, 4).tolist() == [values.nbytes, half.nbytes] and starts[1] > 2 << 20
    )
    encoded[20:24] = encoded[16:20]
    file.write_bytes(encoded)
    (samples,) = run_batches(build(GPU, path, batch_size=1, decode="gpu"), 1)[0]
    assert_same_bits(np.stack(samples), values)


@pytest.mark.gpu
def test_cufile_reads_chunks_that_are_shared_cut_and_converted(folder, values):
    path = write(folder, "four steps", values, (4, 256, 256), compressors=None)
    pipe = build(
        GPU, path, batch_size=BATCH, io="gds", window=[1, 200, 100], dtype=types.FLOAT16, num_io_threads=3
    )
    (first,) = run_batches(pipe, 1)[0]
    np.testing.assert_array_equal(np.stack(first)[0], values[:1, :200, :100].astype(np.float16))


@pytest.mark.gpu
def test_a_file_that_is_replaced_is_read_anew(folder, values):
    path = write(folder, "replaced", values, compressors=None)
    pipe = build(GPU, path, batch_size=BATCH, io="gds", num_io_threads=1)
    epochs(pipe)
    # A file that is replaced while it is read is an error: so that nothing is on its way.
    settled_stats(pipe)
    zarr.open_array(path)[:] = -values
    # What was read ahead, up to 16 batches and DALI's queue, is of before.
    later = epochs(pipe, 8)[-STEPS:]
    np.testing.assert_array_equal(later, -values)


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [mutations.zstd, mutations.blosc], ids=["zstd", "blosc"])
def test_damaged_headers_read_with_cufile_are_refused_as_without(tmp_path, values, fields):
    """Of these chunks the host gets the headers alone, which a kernel finds."""
    blosc = zarr.codecs.BloscCodec(cname="zstd", clevel=1)
    codecs = blosc if fields is mutations.blosc else zarr.codecs.ZstdCodec(level=1)
    path = write(tmp_path, "damaged", values[:1], (1, 300, 256), compressors=codecs)
    (file,) = chunk_files(path)
    whole = file.read_bytes()
    rng, places = random.Random(7), fields(whole, 0, len(whole))
    refused = 0
    for place in [None, *rng.choices(places, k=30)]:
        changed = bytearray(whole)
        if place is not None:
            place.set(changed, place.get(changed) ^ 1 << rng.randrange(8 * place.size))
        file.write_bytes(changed)
        by_cufile, without = (what_comes(path, io) for io in ("gds", "posix"))
        assert by_cufile == without, place
        refused += isinstance(without, str)
    assert 10 < refused < 31


def what_comes(path, io):
    """The bits of the only sample, or the error."""
    pipe = build(GPU, path, batch_size=1, io=io, decode="gpu")
    try:
        ((sample,),) = run_batches(pipe, 1)[0]
    except RuntimeError as error:
        return str(error)
    assert (zarr_dali.stats(pipe)["bytes_read_gds"] > 0) == (io == "gds")
    return np.asarray(sample).tobytes()


def test_cufile_needs_the_gpu_backend(folder, values):
    path = write(folder, "raw", values, compressors=None)
    with pytest.raises(ValueError, match=r'`io`.*"gds" reads to a GPU; give device="gpu", or io="auto"'):
        build(CPU, path, io="gds")
    with pytest.raises(ValueError, match=r'`io`.*none of "auto", "posix" and "gds"'):
        build(CPU, path, io="uring")


@pytest.mark.parametrize(
    "backend, decode",
    [
        pytest.param(CPU, "auto", id="cpu"),
        *(pytest.param(GPU, decode, id=decode, marks=pytest.mark.gpu) for decode in ("auto", "cpu", "gpu")),
    ],
)
def test_each_chunk_is_counted_by_who_decoded_it(folder, values, backend, decode):
    path = write(folder, "zstd", values, **CHAINS["zstd"])
    pipe = build(backend, path, batch_size=BATCH, decode=decode, num_decode_threads=2)
    epochs(pipe, 3)
    stats = settled_stats(pipe)
    chunk_bytes = 256 * 256 * 4
    assert stats["chunks_decoded"] == stats["chunks_decoded_cpu"] + stats["chunks_decoded_gpu"]
    assert stats["bytes_decoded"] == stats["bytes_decoded_cpu"] + stats["bytes_decoded_gpu"]
    assert stats["bytes_decoded_cpu"] == stats["chunks_decoded_cpu"] * chunk_bytes
    if backend is CPU or decode == "cpu":
        assert stats["chunks_decoded_gpu"] == 0
    if decode == "gpu":
        assert stats["chunks_decoded_cpu"] == 0
    # Everything that can be read ahead is there, so that the reader waits for DALI.
    waiting = {name: ms for name, ms in zarr_dali.stats(pipe).items() if name.startswith("ms_waiting_")}
    assert len(waiting) == 5 and min(waiting.values()) >= 0
    assert waiting["ms_waiting_consumer"] > 100


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [name for name in CHAINS if not re.search("raw|noshuffle|bitshuffle|hc|many blocks|transpose", name)],
)
def test_while_dali_is_slow_few_multiprocessors_decode(folder, values, name):
    # An epoch has more batches than are in flight, so that each chunk is decoded anew.
    many = np.concatenate([values, values + 1, values + 2])
    codecs = dict(CHAINS[name])
    if "shards" in codecs:
        codecs["shards"] = (1, 512, 256)
    path = write(folder, f"{name} of many steps", many, **codecs)
    pipe = build(GPU, path, batch_size=1, decode="gpu")
    for step in many:
        ((sample,),) = run_batches(pipe, 1)[0]
        np.testing.assert_array_equal(sample, step)
        settled_stats(pipe)
    stats = zarr_dali.stats(pipe)
    assert 0 < stats["chunks_decoded_sm_partition"] <= stats["chunks_decoded_gpu"] == stats["chunks_decoded"]


@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_not_in_the_page_cache_is_announced(backend, folder, values, sharded):
    cut = {"chunks": (1, 64, 64)} if sharded else {}
    cut |= {"shards": (1, 320, 256)} if sharded else {}
    path = write(folder, f"cold-{sharded}", values, **cut, compressors=None)
    files = chunk_files(path)
    out_of_page_cache(files)
    pipe = build(backend, path, batch_size=BATCH, num_io_threads=2, num_decode_threads=2)
    np.testing.assert_array_equal(epochs(pipe), values)
    stats = settled_stats(pipe)
    assert 0 < stats["chunks_prefetched"] < stats["chunks_read"]
    # It stays quiet where everything is there, but for what the system has dropped meanwhile.
    pipe = build(backend, path, batch_size=BATCH)
    np.testing.assert_array_equal(epochs(pipe, 2), np.concatenate([values] * 2))
    stats = settled_stats(pipe)
    assert stats["chunks_prefetched"] <= stats["chunks_read"] // 4


def test_a_chunk_that_is_replaced_behind_its_announcement(backend, tmp_path, values):
    """What is announced is open already: a file that takes its place is found in the next epoch."""
    path = write(tmp_path, "replaced", values[:, :256], compressors=None)
    files = chunk_files(path)
    out_of_page_cache(files)
    pipe = build(backend, path, batch_size=1, num_io_threads=1, num_decode_threads=1)
    np.testing.assert_array_equal(np.asarray(next_sample(pipe)), values[:1, :256])
    new = np.full((1, 256, 256), 7, np.float32)
    for file in files:
        part = file.with_name("new")
        part.write_bytes(new.tobytes())
        part.replace(file)
    seen = [np.asarray(next_sample(pipe)) for _ in range(6 * STEPS)]
    old = values[:, None, :256]
    assert all(
        (sample == new).all() or (sample == old[(number + 1) % STEPS]).all()
        for number, sample in enumerate(seen)
    )
    assert all((sample == new).all() for sample in seen[-STEPS:])


def next_sample(pipe):
    """The sample of the next batch."""
    ((samples,),) = run_batches(pipe, 1)
    return np.stack(samples)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_a_cache_that_holds_everything_reads_once(backend, folder, values, name, shuffle):
    path = write(folder, name, values, **CHAINS[name])
    pipe = build(backend, path, batch_size=BATCH, cache_bytes=1 << 24, random_shuffle=shuffle, seed=1)
    plain = build(backend, path, batch_size=BATCH, random_shuffle=shuffle, seed=1)
    np.testing.assert_array_equal(epochs(pipe, 4), epochs(plain, 4))
    stats = settled_stats(pipe)
    assert stats["chunks_read"] == stats["chunks_decoded"] == 2 * STEPS
    # From the second epoch on; those that were prepared ahead too.
    assert stats["cache_hits"] >= 3 * 2 * STEPS
    assert settled_stats(plain)["cache_hits"] == 0


@pytest.mark.parametrize("chunks", [6, 12, 18])
def test_a_smaller_cache_keeps_as_much_as_it_holds(backend, folder, values, chunks):
    path = write(folder, "zstd", values, **CHAINS["zstd"])
    pipe = build(backend, path, batch_size=BATCH, cache_bytes=chunks * 256 * 256 * 4)
    np.testing.assert_array_equal(epochs(pipe, 6), np.concatenate([values] * 6))
    stats = settled_stats(pipe)
    done = stats["chunks_decoded"] + stats["chunks_reused"]
    assert stats["chunk_cache_peak_bytes"] <= chunks * 256 * 256 * 4
    # In order, Belady's rule keeps nearly as many chunks as there is room for from one epoch to the next.
    kept = (chunks - 1) / (2 * STEPS)
    assert stats["cache_hits"] >= kept * (done - 2 * STEPS) * 0.8, stats


def test_windows_that_overlap_and_a_cache(backend, folder, values):
    path = write(folder, "zstd", values, **CHAINS["zstd"])
    pipe = build(backend, path, batch_size=3, window=[2], cache_bytes=1 << 24)
    (first,), (second,) = run_batches(pipe, 2)
    for i, sample in enumerate([*first, *second]):
        np.testing.assert_array_equal(sample, values[i : i + 2])
    assert settled_stats(pipe)["chunks_decoded"] == 2 * STEPS


def test_a_cache_is_part_of_the_budget(backend, folder, values):
    path = write(folder, "raw", values, compressors=None)
    name = f"{'device' if backend is GPU else 'host'}_memory_budget"
    with pytest.raises(ValueError, match=f"(?s)`?{name}`?.*{1 << 30} bytes of cache") as refused:
        build(backend, path, cache_bytes=1 << 30, **{name: 1 << 28})
    needed = max(int(number) for number in re.findall(r"\d{6,}", str(refused.value)))
    pipe = build(backend, path, batch_size=BATCH, cache_bytes=1 << 30, **{name: 2 * needed})
    np.testing.assert_array_equal(epochs(pipe), values)


def test_memory_in_use_is_told(backend, folder, values):
    path = write(folder, "raw", values, compressors=None)
    name = "device" if backend is GPU else "host"
    pipe = build(backend, path, batch_size=BATCH, **{f"{name}_memory_budget": 1 << 28})
    epochs(pipe, 2)
    stats = zarr_dali.stats(pipe)
    sample_bytes = values[0].nbytes
    assert (
        BATCH * sample_bytes <= stats[f"{name}_memory_bytes"] <= stats[f"{name}_memory_peak_bytes"] <= 1 << 28
    )


@pytest.mark.full
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("decode", ["auto", "cpu"])
@pytest.mark.parametrize(
    "codec",
    [*(pytest.param(n, marks=pytest.mark.full) for n in ("raw", "zstd", "crc32c")), "sharded-end-zstd"],
)
def test_large_chunks_for_a_consumer_that_takes_its_time(backend, cached_store, codec, decode, window):
    """While the consumer has batches in store, whole chunks are copied to outputs and to where they stay."""
    if codec not in codecs_of(FORMATS[-1]):
        pytest.skip("zarr-python here does not write it")
    # A step is one chunk of 3 MB, and two of 512 KiB.
    shapes = {"large": ((24, 1024, 768), (1, 1024, 768)), "small": ((24, 512, 512), (1, 256, 512))}
    wholes = {
        name: np.arange(np.prod(shape), dtype="int32").reshape(shape) for name, (shape, _) in shapes.items()
    }

    def filled(folder):
        write_group(folder)
        for name, (_, chunks) in shapes.items():
            write_array(folder, name, wholes[name], chunks=chunks, codec=codec, fill_value=-1)

    store = cached_store(f"large-chunks-{codec}", filled)
    pipe = build(
        backend,
        store,
        arrays=list(shapes),
        batch_size=4,
        window=[window],
        random_shuffle=True,
        return_index=True,
        decode=decode,
    )
    for _ in range(40):
        *outputs, index = pipe.run()
        for name, output in zip(shapes, outputs):
            for (start,), sample in zip(to_samples(index), to_samples(output)):
                assert_same_bits(sample, wholes[name][start : start + window], f"{name} from {start} on")
        time.sleep(0.005)
