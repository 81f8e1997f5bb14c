"""What `stats` counts of requests to stores at URLs, compared with what the servers saw."""

import time

import numpy as np
import pytest
import zarr
from nvidia.dali import Pipeline, fn

import zarr_dali
from fault_server import Fault, Schedule, running
from range_server import serving
from zarr_dali._bench.timing import add_stats

SHAPE = (40, 24, 36)
INNER = (2, 12, 36)
INNER_BYTES = 2 * 12 * 36 * 4
INDEX_BYTES = 8 * 16 + 4
"""Of a shard with 8 inner chunks, and a checksum."""


@pytest.fixture
def data(rng):
    return rng.integers(0, 1000, SHAPE).astype("f4")


def write(folder, data, **settings):
    zarr.create_array(store=folder, data=data, chunks=INNER, compressors=None, **settings)


def read(path, *, batch_size=4, batches=10, **arguments):
    """Batches in order, and the statistics when no more requests are made."""
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=None)
    with pipe:
        reader = {"stride": [2], "device": "cpu", "name": "reader"} | arguments
        pipe.set_outputs(fn.readers.zarr(path=path, **reader))
    try:
        pipe.build()
        found = [np.stack([np.array(sample) for sample in pipe.run()[0]]) for _ in range(batches)]
        return np.concatenate(found), settled(pipe)
    finally:
        del pipe


def settled(pipe):
    """The statistics of a reader that has run as far ahead as it does: three times the same, as between an
    index and the chunks that it tells of nothing is in flight for a moment.
    """
    before, same, end = None, 0, time.monotonic() + 30
    while time.monotonic() < end:
        stats = zarr_dali.stats(pipe)
        names = ("requests", "bytes_fetched", "bytes_fetched_useful", "chunks_read", "samples_delivered")
        counted = [stats[name] for name in names]
        same = same + 1 if counted == before and stats["requests_in_flight"] == 0 else 0
        if same == 3:
            return stats
        before = counted
        time.sleep(0.2)
    raise AssertionError(f"requests go on: {stats}")


def length_of(wanted):
    first, last = wanted.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def chunk_requests(server):
    return [request for request in server.requests() if "/c/" in request["path"]]


def test_time_to_first_byte_connections_and_bytes_a_sample(tmp_path, data):
    write(tmp_path / "data.zarr", data)
    with serving(tmp_path, latency_s=0.08) as server:
        found, stats = read(f"{server.url}/data.zarr", window=[2])
        requests = chunk_requests(server)
    np.testing.assert_array_equal(found[:20], data.reshape(20, 2, *SHAPE[1:]))
    # The server waits for 80 ms, and a class of the histogram is 1/16 wide.
    assert 77 <= stats["ms_time_to_first_byte_p50"] <= 80 + 150
    assert stats["ms_time_to_first_byte_p50"] <= stats["ms_time_to_first_byte_p99"] < 10_000
    assert stats["connections_opened"] == len({request["port"] for request in requests}) >= 1
    assert stats["bytes_fetched"] == len(requests) * INNER_BYTES
    assert stats["samples_delivered"] >= 40 and stats["samples_delivered"] % 4 == 0
    assert stats["bytes_fetched_per_sample"] == stats["bytes_fetched"] / stats["samples_delivered"]


def test_indexes_and_gaps_between_inner_chunks_are_not_useful(tmp_path, data):
    write(tmp_path / "data.zarr", data, shards=(8, 24, 36))
    with serving(tmp_path) as server:
        found, stats = read(
            f"{server.url}/data.zarr", window=[2, 12], stride=[2, 1], roi_start=[0, 0], roi_end=[40, 12]
        )
        requests = chunk_requests(server)
    np.testing.assert_array_equal(found[:20], data[:, :12].reshape(20, 2, 12, 36))
    indexes = [request for request in requests if request["range"].startswith("bytes=-")]
    # Of each shard 4 of the 8 inner chunks, with others between them.
    inner = [request for request in requests if request not in indexes]
    assert len(indexes) == 5 and len(inner) >= 5
    lengths = [length_of(request["range"]) for request in inner]
    assert all(4 * INNER_BYTES < length < 8 * INNER_BYTES for length in lengths)
    # Each chunk that a batch has taken was read, and others were requested ahead.
    assert stats["bytes_fetched_useful"] == stats["chunks_read"] * INNER_BYTES <= len(inner) * 4 * INNER_BYTES
    assert stats["bytes_fetched"] == sum(lengths) + 5 * INDEX_BYTES


def test_chunks_that_wait_for_their_batch_are_not_useful(tmp_path, data):
    write(tmp_path / "data.zarr", data)
    with serving(tmp_path) as server:
        # Each of 20 samples has two chunks of its own; after the first batch not all are decoded.
        found, stats = read(f"{server.url}/data.zarr", window=[2], batch_size=1, batches=1)
    np.testing.assert_array_equal(found, data[:2][None])
    assert 2 <= stats["chunks_read"] < 40
    assert stats["bytes_fetched_useful"] == stats["chunks_read"] * INNER_BYTES < stats["bytes_fetched"]


def test_bytes_that_are_dropped_because_a_body_broke_off_are_not_useful(tmp_path, data):
    write(tmp_path / "data.zarr", data)
    with running() as control:
        # Without a tag the whole chunk is requested again.
        broken = Fault("short", times=1)
        schedule = Schedule(str(tmp_path / "data.zarr"), seed=5, tags="none", faults=[broken])
        with control.schedule("broken", schedule) as (url, came):
            found, stats = read(url, window=[2])
        assert came["faults"]["short"] > 0
    np.testing.assert_array_equal(found[:20], data.reshape(20, 2, *SHAPE[1:]))
    assert stats["bytes_fetched_useful"] % INNER_BYTES == 0
    assert stats["bytes_read"] <= stats["bytes_fetched_useful"] < stats["bytes_fetched"]


def test_a_folder_has_no_time_to_first_byte(tmp_path, data):
    write(tmp_path / "data.zarr", data)
    _, stats = read(str(tmp_path / "data.zarr"), window=[2])
    counted = ("connections_opened", "bytes_fetched", "bytes_fetched_useful", "bytes_fetched_per_sample")
    assert [stats[name] for name in counted] == [0, 0, 0, 0]
    assert stats["ms_time_to_first_byte_p50"] is None and stats["ms_time_to_first_byte_p99"] is None


def test_bench_adds_counters_and_keeps_the_largest_level():
    total = {}
    fresh = {"requests": 0, "ms_time_to_first_byte_p50": None, "bytes_fetched_per_sample": None}
    first = {"requests": 5, "ms_time_to_first_byte_p50": 40.0, "bytes_fetched_per_sample": 9.0}
    second = {"requests": 8, "ms_time_to_first_byte_p50": 30.0, "bytes_fetched_per_sample": 7.0}
    add_stats(total, fresh, first)
    add_stats(total, first, second)
    assert total == first | {"requests": 8}
