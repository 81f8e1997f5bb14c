"""Stores at URLs: the bits of the folder, whatever the kind of store; faults are errors and never values."""

import json
import os
import time
import zipfile
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
import zarr
from nvidia.dali import Pipeline, fn

import zarr_dali
from fault_server import Fault, Schedule, running
from range_server import serving, urls
from reading import build, to_samples
from tiers import quick

SHAPE = (40, 24, 36)


def values(rng):
    return rng.integers(0, 1000, SHAPE).astype("f4")


CODECS = {
    "raw": {"compressors": None},
    "zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "sharded": {"shards": (8, 24, 36), "compressors": zarr.codecs.ZstdCodec()},
    "v2": {"zarr_format": 2, "compressors": "auto"},
}


def write(folder, data, kind, **more):
    settings = {"zarr_format": 3, "chunks": (2, 12, 36), "fill_value": -1.0} | CODECS[kind] | more
    array = zarr.create_array(store=folder, shape=data.shape, dtype=data.dtype, **settings)
    array[:] = data
    return array


def read(path, *, window=(2,), stride=2, batch_size=5, batches=4, **arguments):
    """The first batches of a reader in order, on the CPU, and its statistics.

    The pipeline is gone then: one that outlives its server repeats requests for minutes.
    """
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=None)
    with pipe:
        reader = {"window": list(window), "stride": [stride], "device": "cpu", "name": "reader"}
        pipe.set_outputs(fn.readers.zarr(path=path, **reader, **arguments))
    try:
        pipe.build()
        found = [np.stack([np.array(sample) for sample in pipe.run()[0]]) for _ in range(batches)]
        return np.concatenate(found), zarr_dali.stats(pipe)
    finally:
        del pipe


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.mark.parametrize("kind", quick(CODECS, "zstd", "sharded", "v2"))
def test_every_kind_of_store_gives_the_bits_of_the_folder(bucket, rng, kind):
    data = values(rng)
    # A sharded chunk, or two chunks, that are only fill value are not in the store.
    data[8:16] = -1
    folder = bucket / "bucket" / "data.zarr"
    write(folder, data, kind)
    expected, _ = read(str(folder))
    np.testing.assert_array_equal(expected, data.reshape(20, 2, *SHAPE[1:]))
    with serving(bucket) as server:
        for kind_of_store, (url, options) in urls(server.url).items():
            found, stats = read(url, storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, expected)
            assert stats["chunks_read"] > 0
            # Azure, the last, has no ranges from the end: the length of sharded chunks is asked for.
            if kind_of_store != "az":
                assert {request["method"] for request in server.requests()} == {"GET"}


def test_windows_of_the_loader_are_shuffled_and_resumed_from_a_url(bucket, rng):
    pytest.importorskip("torch")
    folder = bucket / "bucket" / "data.zarr"
    write(folder, values(rng), "sharded")
    settings = {"batch_size": 4, "window": [2], "shuffle": True, "device": "cpu", "seed": 3}
    local = [batch["data"].numpy() for batch in zarr_dali.Loader(str(folder), **settings)]
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        loader = zarr_dali.Loader(url, **settings, storage_options=options)
        steps = iter(loader)
        first = [next(steps)["data"].numpy() for _ in range(3)]
        state = loader.state_dict()
        again = zarr_dali.Loader(url, **settings, storage_options=options)
        again.load_state_dict(state)
        rest = [batch["data"].numpy() for batch in again]
        del steps, loader, again
    for expected, found in zip(local, first + rest, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_consolidated_metadata_are_used(bucket, rng):
    group = zarr.create_group(bucket / "bucket" / "data.zarr")
    data = {name: values(rng) for name in ("a", "b")}
    for name, array in data.items():
        group.create_array(name, data=array, chunks=(2, 24, 36))
    zarr.consolidate_metadata(bucket / "bucket" / "data.zarr")
    with serving(bucket) as server:
        found, _ = read(f"{server.url}/bucket/data.zarr", arrays=["b"])
        np.testing.assert_array_equal(found, data["b"].reshape(20, 2, *SHAPE[1:]))
        asked = [request["path"] for request in server.requests() if "zarr.json" in request["path"]]
        assert asked == ["/bucket/data.zarr/zarr.json"]
        report = zarr_dali.info(f"{server.url}/bucket/data.zarr")
        assert [array.name for array in report.arrays] == ["a", "b"]


def test_stores_at_urls_and_in_folders_are_joined(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "one.zarr", data[:20], "zstd")
    write(bucket / "bucket" / "two.zarr", data[20:], "sharded")
    with serving(bucket) as server:
        paths = [str(bucket / "bucket" / "one.zarr"), f"{server.url}/bucket/two.zarr"]
        found, _ = read(paths)
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))


@pytest.mark.parametrize("kind", ["zstd", "zip"])
def test_the_query_of_a_web_servers_url_signs_every_request_and_is_not_shown(bucket, rng, kind):
    """Signed URLs, of a folder such as a container of Azure, and of one object that is a zip file."""
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "zstd")
    if kind == "zip":
        zipped(bucket / "bucket" / "data.zarr", bucket / "bucket" / "data.zip")
    name = "data.zip" if kind == "zip" else "data.zarr"
    with serving(bucket, query="sv=1&sig=s3cr3t%2B") as server:
        url = f"{server.url}/bucket/{name}"
        signed = f"{url}?sv=1&sig=s3cr3t%2B"
        found, _ = read(signed)
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        loader = zarr_dali.Loader(signed, batch_size=4, device="cpu")
        np.testing.assert_array_equal(next(iter(loader))["data"].numpy(), data[:4])
        assert "s3cr3t" not in json.dumps(loader.state_dict(), default=str)
        assert "s3cr3t" not in str(zarr_dali.info(signed))
        del loader
        for wrong in (url, f"{url}?sv=1&sig=0thers3cr3t"):
            with pytest.raises((ValueError, RuntimeError), match=r"403|denied|[Ff]orbidden") as refused:
                read(wrong)
            assert "s3cr3t" not in str(refused.value)


def test_all_headers_are_sent_with_every_request(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "sharded")
    headers = {"authorization": "Bearer t", "X-One": "1", "x-two": "2"}
    with serving(bucket) as server:
        for kind in ("http", "s3"):
            url, options = urls(server.url)[kind]
            found, _ = read(url, storage_options=json.dumps(options | {"headers": headers}))
            np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        requests = server.requests()
    assert any("/c/" in request["path"] for request in requests)
    for request in requests:
        assert {"authorization", "x-one", "x-two"} <= set(request["headers"]), request


def paths(server):
    return [request["path"] for request in server.requests()]


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["v2", "zstd", "sharded"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_the_first_batch_comes_within_ten_round_trips(bucket, rng, kind, consolidated):
    data = values(rng)
    group = zarr.create_group(bucket / "bucket" / "data.zarr", zarr_format=2 if kind == "v2" else 3)
    names = [f"a{number}" for number in range(12)]
    for name in names:
        write(bucket / "bucket" / "data.zarr" / name, data, kind)
    if consolidated:
        zarr.consolidate_metadata(group.store)
    latency_s = 0.2
    with serving(bucket, latency_s=latency_s) as server:
        url, options = urls(server.url)["s3"]
        began = time.monotonic()
        pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
        with pipe:
            pipe.set_outputs(
                *fn.readers.zarr(path=url, arrays=names, device="cpu", storage_options=json.dumps(options))
            )
        pipe.build()
        pipe.run()
        took = time.monotonic() - began
        del pipe
        opening = [path for path in paths(server) if path.endswith("zarr.json") or "/.z" in path]
    assert 2 * latency_s < took < 10 * latency_s, f"{took / latency_s:.1f} round trips"
    assert len(set(opening)) == len(opening), "a file is asked for once"


@pytest.mark.parametrize("redirects", [True, False])
def test_the_region_of_a_bucket_is_found(bucket, rng, monkeypatch, redirects):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(bucket / "none"))
    # Neither is meant by a URL with a bucket.
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.setenv("AWS_BUCKET", "another")
    data = values(rng)
    data[8:16] = -1
    for name in ("data.zarr", "other.zarr"):
        write(bucket / "bucket" / name, data, "zstd")
    options = {"key": "KEY", "secret": "s3cr3t"}
    with serving(bucket, region="eu-north-1", redirects=redirects) as server:
        options["endpoint_url"] = server.url
        found, stats = read("s3://bucket/data.zarr", storage_options=json.dumps(options))
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        regions = [request["region"] for request in server.requests()]
        # What opens the store finds it, for all that read.
        assert regions[0] == "us-east-1" and set(regions[1:]) == {"eu-north-1"}
        assert stats["requests_retried"] == 0
        # A pattern lists the bucket first.
        found, _ = read("s3://bucket/*.zarr", batches=8, storage_options=json.dumps(options))
        np.testing.assert_array_equal(found[:20], data.reshape(20, 2, *SHAPE[1:]))
        with pytest.raises((RuntimeError, ValueError), match="the bucket is in another region") as refused:
            read("s3://bucket/data.zarr", storage_options=json.dumps(options | {"region": "eu-west-1"}))
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("kind", ["v2", "zstd"])
def test_without_the_permission_to_list_a_store_opens_and_a_missing_chunk_is_an_error(bucket, rng, kind):
    data = values(rng)
    folder = bucket / "bucket" / "data.zarr"
    write(folder, data, kind)
    with serving(bucket, absent=403) as server:
        url, options = urls(server.url)["s3"]
        found, _ = read(url, storage_options=json.dumps(options))
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        name = "4.0.0" if kind == "v2" else "c/4/0/0"
        (folder / name).unlink()
        with pytest.raises(RuntimeError, match="permission") as error:
            read(url, storage_options=json.dumps(options))
        assert url in str(error.value) and name in str(error.value) and "fill-403" in str(error.value)
        found, _ = read(url, storage_options=json.dumps(options), missing_chunks="fill-403")
        assert (found.reshape(SHAPE)[8:10, :12] == -1).all()
        found.reshape(SHAPE)[8:10, :12] = data[8:10, :12]
        np.testing.assert_array_equal(found.reshape(SHAPE), data)
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        found, _ = read(url, storage_options=json.dumps(options))
        assert (found.reshape(SHAPE)[8:10, :12] == -1).all()


def test_azure_is_asked_once_for_length_and_bytes_of_one_version(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "sharded")
    with serving(bucket) as server:
        url, options = urls(server.url)["az"]
        found, _ = read(url, storage_options=json.dumps(options))
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        chunks = [request for request in server.requests() if "/c/" in request["path"]]
    for path in {request["path"] for request in chunks}:
        length, index, *inner = [request for request in chunks if request["path"] == path]
        # The index is at the end, so that it is not asked for without the version that has this length.
        assert (length["method"], index["method"]) == ("HEAD", "GET")
        assert "if-match" not in length["headers"]
        assert all(
            "if-match" in request["headers"] and request["method"] == "GET" for request in [index, *inner]
        )


def chunk_requests(server):
    return [request for request in server.requests() if "/c/" in request["path"]]


def test_inner_chunks_that_lie_near_each_other_are_requested_together_and_counted(bucket, rng):
    data = values(rng)
    folder = bucket / "bucket" / "data.zarr"
    write(folder, data, "sharded")
    with serving(bucket) as server:
        found, stats = read(f"{server.url}/bucket/data.zarr", batch_size=4, batches=5)
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        requests = chunk_requests(server)
    # A batch wants all 8 inner chunks of a sharded chunk. DALI is ahead of the batches that were taken.
    by_path = {}
    for request in requests:
        by_path.setdefault(request["path"], []).append(request["range"])
    assert len(by_path) == 5
    for path, ranges in by_path.items():
        index, inner = ranges[:2]
        assert index.startswith("bytes=-") and inner.startswith("bytes=0-"), ranges
        assert int(inner.split("-")[1]) < (folder / path.split("data.zarr/")[1]).stat().st_size
    fetched = stats["bytes_fetched"]
    assert stats["requests"] >= 10 and stats["requests_retried"] == 0
    assert stats["bytes_read"] < fetched and stats["requests_in_flight"] <= 256
    assert 1 <= stats["requests_in_flight_peak"] <= 256


@pytest.mark.parametrize("kind", ["raw", pytest.param("sharded", marks=pytest.mark.full)])
def test_chunks_of_later_batches_are_requested_ahead_and_once(bucket, rng, kind):
    """Of a store that answers late more is on its way than batches in flight need, of one epoch at most."""
    steps, in_flight, epochs = 400, 4, 3
    data = rng.integers(0, 1000, (steps, 24, 36)).astype("f4")
    # A sample is an object, or a sharded chunk whose index is asked for before its inner chunks.
    chunks = {"chunks": (1, 24, 36)}
    if kind == "sharded":
        chunks = {"chunks": (1, 12, 36), "shards": (1, 24, 36)}
    write(bucket / "bucket" / "data.zarr", data, kind, **chunks)
    with serving(bucket, latency_s=0.1) as server:
        pipe = Pipeline(batch_size=2, num_threads=2, device_id=None, prefetch_queue_depth=1)
        with pipe:
            reader = {"path": f"{server.url}/bucket/data.zarr", "device": "cpu", "name": "reader"}
            reader |= {
                "window": [1],
                "random_shuffle": True,
                "return_index": True,
                "prefetch_queue_depth": in_flight,
            }
            pipe.set_outputs(*fn.readers.zarr(**reader))
        pipe.build()
        seen = []
        for _ in range(epochs * steps // 2):
            samples, indices = pipe.run()
            for sample, (index,) in zip(samples, np.array([np.array(index) for index in indices])):
                np.testing.assert_array_equal(np.array(sample)[0], data[index])
                seen.append(int(index))
        requests = chunk_requests(server)
        stats = zarr_dali.stats(pipe)
        del pipe
    for epoch in range(epochs):
        assert sorted(seen[epoch * steps : (epoch + 1) * steps]) == list(range(steps))
    assert stats["requests_in_flight_peak"] > 4 * in_flight
    # Each once for its sample, of at most 256 batches behind those in flight.
    samples = epochs * steps + 2 * (in_flight + 256)
    again = stats["requests_hedged"] + stats["requests_retried"]
    assert len(requests) <= (2 if kind == "sharded" else 1) * samples + again
    asked = Counter((request["path"], request["range"]) for request in requests)
    assert max(asked.values()) <= epochs + 2 + again, "in flight is another epoch, and ahead of that one more"


def test_a_large_chunk_is_fetched_in_parts_where_tags_tell_that_they_are_of_one_object(bucket, rng):
    data = rng.random((2, 2500, 2000)).astype("f4")
    array = zarr.create_array(
        store=bucket / "bucket" / "data.zarr", data=data, chunks=(1, 2500, 2000), compressors=None
    )
    assert array.nbytes == 40e6
    for tags in (True, False):
        with serving(bucket, tags=tags) as server:
            url = f"{server.url}/bucket/data.zarr"
            found, _ = read(url, window=(1,), stride=1, batch_size=1, batches=2)
            np.testing.assert_array_equal(found.reshape(data.shape), data)
            requests = chunk_requests(server)
        ranges = [request["range"] for request in requests if request["path"].endswith("c/0/0/0")]
        part = 12 << 20
        if tags:
            # DALI is ahead, in the next epoch.
            assert sorted(set(ranges)) == [f"bytes=0-{part - 1}", f"bytes={part}-{20_000_000 - 1}"]
            assert sum("if-match" in request["headers"] for request in requests) >= 1
        else:
            assert {None} <= set(ranges) <= {f"bytes=0-{part - 1}", None}


@pytest.mark.parametrize("kind", ["raw", "sharded"])
def test_a_body_that_breaks_off_is_fetched_again_without_tags(bucket, rng, kind):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, kind)
    with serving(bucket, tags=False, kinds=["short"], every=5) as server:
        found, stats = read(f"{server.url}/bucket/data.zarr")
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        assert stats["requests_retried"] > 0


@pytest.mark.alone
def test_a_server_that_has_no_time_is_asked_less(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "raw", chunks=(1, 8, 36))
    with serving(bucket, latency_s=0.02, capacity=12) as server:
        found, stats = read(f"{server.url}/bucket/data.zarr")
        np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
        requests = chunk_requests(server)
        refused = [request.get("refused", False) for request in requests]
    assert sum(refused) > 0 and stats["requests_retried"] > 0
    third = len(refused) // 3
    # First as many as may be, then as many as the server takes, and now and then some more.
    assert sum(refused[-third:]) < sum(refused[:third]), (sum(refused[:third]), sum(refused[-third:]))


def zipped(folder, file, compression=zipfile.ZIP_STORED, below=""):
    """The files of a folder in a zip file."""
    with zipfile.ZipFile(file, "w", compression) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, below + str(path.relative_to(folder)))


@pytest.mark.parametrize("kind", CODECS)
def test_zip_files_give_the_bits_of_the_folder(bucket, rng, kind):
    data = values(rng)
    data[8:16] = -1
    folder, file = bucket / "data.zarr", bucket / "bucket" / "data.zip"
    write(folder, data, kind)
    zipped(folder, file, below="in/data.zarr/")
    expected, _ = read(str(folder))
    found, _ = read(f"{file}|zip:in/data.zarr")
    np.testing.assert_array_equal(found, expected)
    with serving(bucket) as server:
        for url, options in [urls(server.url)["http"], urls(server.url, "data.zarr")["s3"]]:
            url = url.replace("data.zarr", "data.zip|zip:in/data.zarr/")
            found, _ = read(url, storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, expected)
        requests = server.requests()
    assert {request["path"] for request in requests} == {"/bucket/data.zip"}
    # What was found in the directory is asked for as long as the file is the same one.
    assert all("if-match" in request["headers"] or "=-" in request["range"] for request in requests)


def test_a_zip_file_of_zarr_python_is_known_by_its_name_and_begin(bucket, rng):
    data = values(rng)
    store = zarr.storage.ZipStore(bucket / "bucket" / "data.zip", mode="w")
    group = zarr.create_group(store)
    for name in ("a", "b"):
        group.create_array(name, data=data, chunks=(2, 24, 36))
    store.close()
    (bucket / "named").symlink_to(bucket / "bucket" / "data.zip")
    with serving(bucket) as server:
        for path in (str(bucket / "named"), f"{server.url}/bucket/data.zip"):
            found, _ = read(path, arrays=["b"])
            np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
            report = zarr_dali.info(path)
            assert [array.name for array in report.arrays] == ["a", "b"]


def test_zip_files_that_cannot_be_read_are_refused(bucket, rng):
    folder, file = bucket / "data.zarr", bucket / "data.zip"
    write(folder, values(rng), "raw")
    zipped(folder, file, zipfile.ZIP_DEFLATED)
    with pytest.raises((RuntimeError, ValueError), match=r"deflated.*zip -0"):
        read(str(file))
    zipped(folder, file)
    with pytest.raises((RuntimeError, ValueError), match="no Zarr metadata"):
        read(f"{file}|zip:nothing")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises((RuntimeError, ValueError), match="no central directory"):
        read(str(file))
    with pytest.raises((RuntimeError, ValueError), match="is no file"):
        read(f"{folder}|zip:x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty and not a zip archive; write it again"),
        (b"some bytes", "the file has 10 bytes, too few for a zip archive"),
    ],
    ids=["empty", "short"],
)
def test_a_file_that_is_too_short_for_a_zip_file(bucket, content, words):
    file = bucket / "bucket" / "data.zip"
    file.write_bytes(content)
    uses = (read, zarr_dali.info)
    with serving(bucket) as server:
        places = [(url.replace("data.zarr", "data.zip"), more) for url, more in urls(server.url).values()]
        for path, options in [(str(file), {}), *places]:
            more = {"storage_options": json.dumps(options)} if options else {}
            for use in uses:
                with pytest.raises((RuntimeError, ValueError), match=words):
                    use(path, **more)


DURATIONS = [
    (
        {"timeout": "abc"},
        r'"timeout" "abc", which is no duration; give a number of seconds.* or a text with units',
    ),
    ({"connect_timeout": -1}, r'"connect_timeout" -1, which is no duration'),
    ({"client_options": {"read_timeout": ""}}, r'"read_timeout" "", which is no duration'),
    ({"retry_config": {"retry_timeout": "soon"}}, r'"retry_timeout" "soon", which is no duration'),
    ({"timeout": float("nan")}, r'"timeout" nan, which is no finite number; .* such as "30 s"'),
    ({"retry_config": {"retry_timeout": float("inf")}}, r'"retry_timeout" inf, which is no finite number'),
]


@pytest.mark.parametrize(("options", "words"), DURATIONS, ids=str)
def test_a_duration_that_is_none_is_named(options, words):
    for url in ("https://localhost/a.zarr", "s3://bucket/a.zarr"):
        for use in (zarr_dali.info, zarr_dali.open_store):
            with pytest.raises(ValueError, match=f"argument `storage_options`: .*{words}"):
                use(url, storage_options=options)


def test_options_that_hold_themselves_or_have_no_names_are_refused():
    itself, row = {}, []
    itself["a"], _ = itself, row.append(row)
    for options, error, words in [
        (itself, ValueError, "holds itself"),
        ({"client_options": row}, ValueError, "holds itself"),
        ({b"key": "value"}, TypeError, "an option named b'key'"),
    ]:
        with pytest.raises(error, match=f"argument `storage_options`: .*{words}"):
            zarr_dali.open_store("https://localhost/a.zarr", storage_options=options)


@pytest.mark.parametrize("duration", ["30 s", "1min 30s", "500ms", 30, 1.5, timedelta(seconds=30)], ids=str)
def test_durations(duration):
    for options in ({"read_timeout": duration}, {"retry_config": {"retry_timeout": duration}}):
        zarr_dali.open_store("https://localhost/a.zarr", storage_options=options)


def test_a_zip_file_that_is_replaced_is_an_error(bucket, rng):
    folder, file = bucket / "data.zarr", bucket / "bucket" / "data.zip"
    data = values(rng)
    write(folder, data, "raw")
    zipped(folder, file)
    with serving(bucket, latency_s=0.02) as server:
        pipe = Pipeline(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
        with pipe:
            pipe.set_outputs(fn.readers.zarr(path=f"{server.url}/bucket/data.zip", window=[1], device="cpu"))
        pipe.build()
        np.testing.assert_array_equal(np.array(pipe.run()[0][0])[0], data[0])
        write(folder, data + 1, "raw", overwrite=True)
        zipped(folder, bucket / "other.zip")
        (bucket / "other.zip").replace(file)
        with pytest.raises(RuntimeError, match="changed while it was read"):
            # What was fetched before is right.
            for step in range(1, 10 * len(data)):
                np.testing.assert_array_equal(np.array(pipe.run()[0][0])[0], data[step % len(data)])
        del pipe


def test_a_store_that_is_forbidden_from_some_point_on_is_never_fill_values(bucket, rng):
    data = values(rng)
    folder = bucket / "bucket" / "data.zarr"
    write(folder, data, "raw")
    with serving(bucket, absent=403) as server:
        url, options = urls(server.url)["s3"]
        pipe = Pipeline(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
        with pipe:
            reader = {"storage_options": json.dumps(options), "missing_chunks": "fill-403"}
            pipe.set_outputs(fn.readers.zarr(path=url, window=[1], device="cpu", **reader))
        pipe.build()
        np.testing.assert_array_equal(np.array(pipe.run()[0][0])[0], data[0])
        # The credentials are not good any more, to judge by the answers.
        folder.rename(bucket / "elsewhere")
        with pytest.raises(RuntimeError, match="permission"):
            for step in range(1, 40):
                np.testing.assert_array_equal(np.array(pipe.run()[0][0])[0], data[step])
        del pipe


def test_profiles_of_the_aws_tools_are_read(bucket, rng, monkeypatch):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "raw")
    with serving(bucket) as server:
        (bucket / "config").write_text(
            f"[default]\nregion = eu-west-1\nendpoint_url = {server.url}\n"
            f"[profile dev]\nregion = eu-west-1\nendpoint_url = {server.url}\n"
            "[profile sso]\nsso_session = s\n"
        )
        (bucket / "credentials").write_text(
            "[default]\naws_access_key_id = ONE\naws_secret_access_key = s3cr3t\n"
            "[dev]\naws_access_key_id = TWO\naws_secret_access_key = s3cr3t\n"
        )
        monkeypatch.setenv("AWS_CONFIG_FILE", str(bucket / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(bucket / "credentials"))
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
        used = []
        for options in ({}, {"profile": "dev"}, {"profile": "dev", "key": "THREE", "secret": "s3cr3t"}):
            found, _ = read("s3://bucket/data.zarr", storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
            used.append(server.requests()[-1])
        assert [request["key"] for request in used] == ["ONE", "TWO", "THREE"]
        assert not any("x-amz-security-token" in request["headers"] for request in used)
        for profile, words in (("sso", "export-credentials"), ("nothing", "do not have")):
            with pytest.raises((RuntimeError, ValueError), match=words) as error:
                read("s3://bucket/data.zarr", storage_options=json.dumps({"profile": profile}))
            assert "s3cr3t" not in str(error.value)


def test_no_credentials_at_all_are_named(bucket, rng, monkeypatch):
    """Where none are given the machine's role is asked for some, and there may be none."""
    write(bucket / "bucket" / "data.zarr", values(rng), "v2")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(bucket))
    with serving(bucket) as server:
        options = {"endpoint_url": server.url, "region": "r", "metadata_endpoint": f"{server.url}/nothing"}
        with pytest.raises((RuntimeError, ValueError), match=r"no credentials could be had.*anon") as error:
            read("s3://bucket/data.zarr", storage_options=json.dumps(options))
        assert "s3://bucket/data.zarr" in str(error.value)


FAULTS = {
    # How it is answered, which words the error has; None: it is repeated until it works.
    "403": "permission",
    "405": "405 Method Not Allowed",
    "short": None,
    "reset": None,
    "503": None,
    "whole": "requests for a part of an object",
    "etag": "changed while it was read",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_in_the_right_bits_or_in_an_error(bucket, rng, fault):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "sharded")
    # A request that is repeated gets through. Where an object has another entity tag, its index is read
    # again and then its chunks, which ends well unless each answer has another one.
    with serving(bucket, kinds=[fault], every=1 if fault == "etag" else 4) as server:
        url, options = urls(server.url)["http" if fault == "405" else "s3"]
        if FAULTS[fault] is None:
            found, _ = read(url, storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
            return
        with pytest.raises(RuntimeError, match=FAULTS[fault]) as error:
            read(url, storage_options=json.dumps(options))
        assert url in str(error.value)


def test_random_faults_are_never_values(bucket, rng):
    """Of each schedule either all bits are right, or the error says something."""
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "sharded")
    ends = {"bits": 0, "error": 0}
    for seed in range(12):
        kinds = ["403", "405", "503", "reset", "short", "whole", "etag"]
        with serving(bucket, kinds=kinds, rate=0.02, seed=seed) as server:
            try:
                found, _ = read(f"{server.url}/bucket/data.zarr")
            except RuntimeError as error:
                assert "data.zarr" in str(error)
                ends["error"] += 1
            else:
                np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
                ends["bits"] += 1
    assert min(ends.values()) > 0, ends


@pytest.mark.parametrize(
    "path, options, words",
    [
        ("s3://bucket/data.zarr", '{"sekret": "s3cr3t"}', "no option of S3"),
        ("s3://bucket/data.zarr", "not JSON s3cr3t", "storage_options"),
        ("s3:///data.zarr", "", "names no bucket"),
        ("s3://bucket/data.zarr?sig=s3cr3t", "", "has a query"),
        ("gs://bucket/data.zarr", '{"token": "s3cr3t"}', "file of credentials"),
        ("https://host/*.zarr", "", "list of the stores"),
        ("ftp://host/data.zarr", "", "URL"),
        pytest.param(
            "http://127.0.0.1:1/data.zarr",
            '{"connect_timeout": "1 second"}',
            "127.0.0.1",
            marks=pytest.mark.full,  # Opening repeats requests for 15 s.
        ),
    ],
)
def test_what_cannot_be_opened_is_refused_when_it_is_built(path, options, words):
    with pytest.raises((RuntimeError, ValueError), match=words) as error:
        read(path, storage_options=options)
    assert "s3cr3t" not in str(error.value)


def test_a_store_that_is_not_there_is_named(bucket):
    with serving(bucket) as server, pytest.raises((RuntimeError, ValueError), match="no Zarr metadata"):
        read(f"{server.url}/bucket/nothing.zarr")


def test_a_pipeline_with_requests_in_flight_can_be_destroyed(bucket, rng):
    write(bucket / "bucket" / "data.zarr", values(rng), "raw")
    with serving(bucket, latency_s=0.5) as server:
        pipe = Pipeline(batch_size=20, num_threads=2, device_id=None)
        with pipe:
            pipe.set_outputs(fn.readers.zarr(path=f"{server.url}/bucket/data.zarr", device="cpu"))
        pipe.build()
        pipe.schedule_run()
        del pipe
        assert any("/c/" in request["path"] for request in server.requests())


def test_the_gpu_reads_from_a_url(bucket, rng, backend):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "zstd")
    with serving(bucket) as server:
        pipe = build(backend, f"{server.url}/bucket/data.zarr", window=[2], stride=[2])
        outputs = pipe.run()[0]
        batch = outputs.as_cpu() if backend.device == "gpu" else outputs
        found = np.stack([np.array(sample) for sample in batch])
        del outputs, batch, pipe
        np.testing.assert_array_equal(found, data[:10].reshape(5, 2, 24, 36))


LARGE_SHAPE = (40, 256, 512)
LARGE = {
    "raw": ((2, 256, 512), {"compressors": None}),
    "zstd": ((2, 256, 512), {"compressors": zarr.codecs.ZstdCodec()}),
    "crc32c": (
        (2, 256, 512),
        {"compressors": [zarr.codecs.ZstdCodec(checksum=True), zarr.codecs.Crc32cCodec()]},
    ),
    "blosc": ((2, 256, 512), {"compressors": zarr.codecs.BloscCodec(cname="zstd", shuffle="shuffle")}),
    "gzip": ((2, 256, 512), {"compressors": zarr.codecs.GzipCodec(level=1)}),
    "sharded": ((2, 256, 512), {"shards": (8, 256, 512), "compressors": zarr.codecs.ZstdCodec()}),
    "raw of several pieces": (LARGE_SHAPE, {"compressors": None}),
    "zstd of several pieces": (LARGE_SHAPE, {"compressors": zarr.codecs.ZstdCodec()}),
}
"""Chunks that are received in memory that the GPU's copies are made from (`src/decode/upload/received.rs`).
Smaller ones that the GPU decodes would be packed. The last two are longer than a piece of that memory."""


@pytest.mark.parametrize("decode", ["auto", "gpu"])
@pytest.mark.parametrize("kind", quick(LARGE, "zstd", "raw of several pieces"))
def test_large_chunks_of_a_url_are_copied_and_decoded_where_they_were_received(
    bucket, rng, backend, kind, decode
):
    if decode == "gpu" and backend.device == "cpu":
        pytest.skip("the CPU backend has no GPU to decode on")
    data = rng.normal(size=LARGE_SHAPE).astype("f4")
    chunks, codecs = LARGE[kind]
    zarr.create_array(store=bucket / "bucket" / "data.zarr", data=data, chunks=chunks, **codecs)
    with serving(bucket) as server:
        url = f"{server.url}/bucket/data.zarr"
        # Pinned memory grows by a block, of this budget 48 MiB, when as many bytes came elsewhere.
        settings = {"window": [2], "stride": [2], "random_shuffle": True, "seed": 7, "decode": decode}
        pipe = build(backend, url, host_memory_budget=256 << 20, **settings)
        # Memory is used again in later epochs.
        seen = Counter()
        for _ in range(32):
            for found in to_samples(pipe.run()[0]):
                (number,) = np.flatnonzero(data[::2, 0, 0] == found[0, 0, 0])
                np.testing.assert_array_equal(found, data[2 * number : 2 * number + 2])
                seen[int(number)] += 1
        received = zarr_dali.stats(pipe)["bytes_received_pinned"]
        del pipe
    assert set(seen.values()) == {8} and len(seen) == 20
    if backend.device == "cpu":
        assert received == 0
    elif (decode == "gpu" or kind == "raw") and "several" not in kind:
        assert received > 0


def test_a_redirect_to_another_server_has_no_authorization(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "raw")
    options = {"headers": {"authorization": "Bearer s3cr3t", "x-one": "1"}}
    with serving(bucket) as server, running() as other:
        schedule = Schedule(str(bucket), faults=[Fault("redirect-away")], elsewhere=server.url)
        with other.schedule("redirects", schedule) as (url, came):
            found, _ = read(f"{url}/bucket/data.zarr", storage_options=json.dumps(options))
        requests = chunk_requests(server)
    np.testing.assert_array_equal(found, data.reshape(20, 2, *SHAPE[1:]))
    assert came["faults"]["redirect-away"] >= len(requests) > 20
    assert not any("authorization" in request["headers"] for request in requests)


def test_requests_are_repeated_as_the_options_say(bucket, rng):
    """As often, and for as long; durations are texts or Python's own."""
    write(bucket / "bucket" / "data.zarr", values(rng), "raw")
    with running() as server:
        for number, (retries, asked) in enumerate(
            [({"max_retries": 0}, 1), ({"max_retries": 2}, 3), ({"retry_timeout": "0s"}, 1)]
        ):
            schedule = Schedule(str(bucket), faults=[Fault("503", "any")])
            with server.schedule(f"s{number}", schedule) as (url, came):
                options = json.dumps({"retry_config": retries})
                with pytest.raises((RuntimeError, ValueError), match="503"):
                    read(f"{url}/bucket/data.zarr", storage_options=options)
            assert came["requests"] == asked, retries
        schedule = Schedule(str(bucket), faults=[Fault("503", "any")])
        with server.schedule("loader", schedule) as (url, came):
            options = {"retry_config": {"retry_timeout": timedelta(seconds=0)}}
            with pytest.raises(ValueError, match="503"):
                zarr_dali.info(f"{url}/bucket/data.zarr", storage_options=options)
        assert came["requests"] == 1
    with pytest.raises((RuntimeError, ValueError), match=r"retry_config with \"retries\""):
        read("s3://bucket/data.zarr", storage_options='{"retry_config": {"retries": 3}}')


def test_a_bucket_that_is_gone_is_no_missing_chunk(bucket, rng):
    """Object stores answer 404 to both, and say which in the answer, apart from that to a HEAD."""
    for kind in ("raw", "sharded"):
        write(bucket / "bucket" / f"{kind}.zarr", values(rng), kind)
    with running() as server:
        for kind in ("raw", "sharded"):
            for name in ("s3", "gs", "az"):
                schedule = Schedule(str(bucket), faults=[Fault("no-bucket")])
                with server.schedule(f"{kind}-{name}", schedule) as (url, _):
                    path, options = urls(url)[name]
                    path = path.replace("data.zarr", f"{kind}.zarr")
                    with pytest.raises(RuntimeError, match="bucket or container is not there") as error:
                        read(path, storage_options=json.dumps(options))
                    assert path in str(error.value) and "NoSuchBucket" in str(error.value)


def test_what_is_denied_for_another_reason_than_absence_is_no_missing_chunk(bucket, rng):
    """With "fill-403" too. Stores say the reason in the answer, apart from that to a HEAD, by which Azure
    tells the length of sharded chunks."""
    for kind in ("raw", "sharded"):
        write(bucket / "bucket" / f"{kind}.zarr", values(rng), kind)
    with running() as server:
        for kind in ("raw", "sharded"):
            for name in ("s3", "gs", "az"):
                # All requests, and the first one for each range only.
                for times in (0, 1):
                    schedule = Schedule(str(bucket), faults=[Fault("403-archived", times=times)])
                    with server.schedule(f"{kind}-{name}-{times}", schedule) as (url, _):
                        path, options = urls(url, f"{kind}.zarr")[name]
                        with pytest.raises(RuntimeError, match="archived") as error:
                            read(path, storage_options=json.dumps(options), missing_chunks="fill-403")
                        assert path in str(error.value)


@pytest.mark.parametrize("kind", ["gzip", "transcoded"])
def test_objects_with_a_content_encoding_are_refused(bucket, rng, kind):
    write(bucket / "bucket" / "data.zarr", values(rng), "raw")
    with running() as server:
        for where in ("chunk", "metadata"):
            schedule = Schedule(str(bucket), faults=[Fault(kind, where)])
            with server.schedule(where, schedule) as (url, _):
                with pytest.raises((RuntimeError, ValueError), match="Content-Encoding: gzip") as error:
                    read(f"{url}/bucket/data.zarr")
                assert "store objects without it" in str(error.value)


@pytest.mark.parametrize("kind, words", [("signature", "SignatureDoesNotMatch"), ("403", "AccessDenied")])
def test_metadata_that_are_refused_later_are_named(bucket, rng, kind, words):
    """Behind the first file of metadata a refusal is an error, and no sign that the next one is absent."""
    write(bucket / "bucket" / "data.zarr", values(rng), "v2")
    with running() as server:
        for first in range(3):
            schedule = Schedule(str(bucket), faults=[Fault(kind, "metadata", first=first)])
            with server.schedule(f"first-{first}", schedule) as (url, _):
                path, options = urls(url)["s3"]
                with pytest.raises((RuntimeError, ValueError), match=words) as error:
                    read(path, storage_options=json.dumps(options))
                assert path in str(error.value)
