"""Icechunk repositories: the bits that zarr-python reads through Icechunk's own store, of one snapshot."""

import json
import os
import re
import time
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
import zarr
from nvidia.dali import Pipeline, fn

import zarr_dali
from range_server import serving, urls
from tiers import quick

icechunk = pytest.importorskip("icechunk", reason="icechunk, which needs zarr-python 3, is not installed")

SHAPE = (40, 24, 36)
CODECS = {
    "raw": {"compressors": None},
    "zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "crc32c": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    "sharded": {"shards": (8, 24, 36), "compressors": zarr.codecs.ZstdCodec()},
    "small": {"chunks": (2, 2, 3), "compressors": None},
    "large": {"chunks": (40, 24, 36), "compressors": None},
}
"""Chunks of "small" have 48 bytes and are in the manifests; those of the others are objects."""

FORMAT_2 = Path(__file__).with_name("icechunk-2.zip")
"""A repository that Icechunk 2.3.0 wrote, which needs Python 3.12.

The arrays `group/a`, in 5 chunks, and `b`, sharded, have `values` at the tag `v1` and the branch `a/b`, and
`values + 1` at `main`; their third chunk is missing. The 20 chunks of `virtual` are in s3://archive, where
they would be in a file with all of them behind 100 bytes: the even ones in objects of their own, the odd ones
in one below the name that the repository has for s3://archive/data. Manifests have the locations compressed.
"""


def values():
    return (np.arange(np.prod(SHAPE)) % 9973).astype("f4").reshape(SHAPE)


def create(path, **settings):
    config = icechunk.RepositoryConfig.default()
    for name, value in settings.items():
        setattr(config, name, value)
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config)


def commit(repository, write, branch="main"):
    """Commits what `write` does to the root group. Returns the snapshot."""
    session = repository.writable_session(branch)
    write(zarr.open_group(session.store, mode="a"))
    return session.commit("data")


def overwrite(value):
    """Writes a value to the whole array `a`."""
    return lambda root: root["a"].__setitem__(slice(None), float(value))


def oracle(repository):
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def read(path, *, window=(2,), stride=2, batch_size=5, batches=4, **arguments):
    """The first batches of a reader in order, and where samples came from. The pipeline is gone then."""
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=None)
    with pipe:
        reader = {"window": list(window), "stride": [stride], "device": "cpu", "name": "reader"}
        pipe.set_outputs(fn.readers.zarr(path=path, **reader, **arguments))
    try:
        pipe.build()
        found, places = [], []
        for _ in range(batches):
            (output,) = pipe.run()
            found.append(np.stack([np.array(sample) for sample in output]))
            places += [sample.source_info() for sample in output]
        return np.concatenate(found), places
    finally:
        del pipe


def windows(data):
    return data.reshape(-1, 2, *data.shape[1:])


def refused(path, **arguments):
    with pytest.raises((RuntimeError, ValueError)) as error:
        read(path, **arguments)
    return str(error.value)


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.mark.parametrize("kind", quick(CODECS, "zstd", "sharded", "small", "large"))
def test_arrays_of_a_repository_are_those_of_icechunks_own_store(bucket, kind):
    data = values()
    # A sharded chunk, or some chunks, that are only fill value are not in the repository.
    data[8:16] = -1
    repository = create(bucket / "bucket" / "repo")

    def write(root):
        settings = {"chunks": (2, 12, 36), "fill_value": -1.0} | CODECS[kind]
        root.create_array("group/a", shape=SHAPE, dtype="f4", **settings)[:] = data

    snapshot = commit(repository, write)
    expected = windows(oracle(repository)["group/a"][:])
    np.testing.assert_array_equal(expected, windows(data))
    folder = bucket / "bucket" / "repo"
    # A local repository is known by what is in it.
    for path in (folder, f"{folder}/|icechunk:", f"{folder}|icechunk:@branch.main/|zarr3:"):
        found, places = read(str(path), arrays=["group/a"])
        np.testing.assert_array_equal(found, expected)
        assert places[1] == f"{folder}|icechunk:@{snapshot}/group/a[2:4, 0:24, 0:36]"
    with serving(bucket) as server:
        for url, options in urls(server.url, "repo").values():
            found, places = read(f"{url}|icechunk:@{snapshot}/group/a", storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, expected)
            assert places[0] == f"{url}|icechunk:@{snapshot}/group/a[0:2, 0:24, 0:36]"


@pytest.fixture
def repository(bucket):
    """A repository with the tag `v1` and the branch `old` at the first commit, and `main` at a second one."""
    made = create(bucket / "bucket" / "repo")

    def write(root):
        for name in ("a", "deep/b"):
            array = root.create_array(name, shape=SHAPE, dtype="f4", chunks=(2, 12, 36))
            array[:] = values()

    first = commit(made, write)
    made.create_tag("v1", snapshot_id=first)
    made.create_branch("old", snapshot_id=first)

    def change(root):
        root["a"][:] = values() + 1

    commit(made, change)
    return made


def test_branches_tags_and_snapshots(repository, bucket):
    first = repository.lookup_tag("v1")
    for path in (f"{bucket}/bucket/repo", "s3://bucket/repo"):
        with serving(bucket) as server:
            _, options = urls(server.url, "repo")["s3"]
            for version, expected in (
                ("", values() + 1),
                ("@branch.main/", values() + 1),
                ("@branch.old/", values()),
                ("@tag.v1/", values()),
                (f"@{first}/", values()),
            ):
                found, _ = read(f"{path}|icechunk:{version}a", storage_options=json.dumps(options))
                np.testing.assert_array_equal(found, windows(expected))


def test_groups_and_arrays_are_listed(repository, bucket):
    folder = bucket / "bucket" / "repo"
    report = zarr_dali.info(str(folder))
    assert [array.name for array in report.arrays] == ["a", "deep/b"]
    snapshot = repository.lookup_branch("main")
    assert report.arrays[0].snapshots == (snapshot,) and snapshot in str(report)
    with serving(bucket) as server:
        url, options = urls(server.url, "repo")["http"]
        report = zarr_dali.info(f"{url}|icechunk:@tag.v1", storage_options=options)
        assert [array.name for array in report.arrays] == ["a", "deep/b"]
        assert not any(request["method"] != "GET" for request in server.requests())
    assert 'there are: "a", "deep/b"' in refused(str(folder))
    assert 'there are: "a", "deep/b"' in refused(str(folder), arrays=["x"])


def test_metadata_and_manifests_are_requested_once(repository, bucket):
    with serving(bucket) as server:
        url, _ = urls(server.url, "repo")["http"]
        read(f"{url}|icechunk:a")
        asked = [request["path"].removeprefix("/bucket/repo/") for request in server.requests()]
    # Without `repo` the repository has format 1; what is opened a second time is read again.
    metadata = [path.split("/")[0] for path in asked if not path.startswith("chunks/")]
    assert metadata.count("manifests") == 1
    assert metadata.count("snapshots") <= 2 and metadata.count("repo") <= 2
    chunks = [path for path in asked if path.startswith("chunks/")]
    assert len(set(chunks)) == 40


def test_what_is_not_there_is_refused_with_the_remedy(repository, bucket):
    folder = bucket / "bucket" / "repo"
    with serving(bucket) as server:
        for place in (str(folder), f"{server.url}/bucket/repo"):
            for version, words in (
                ("@branch.dev", 'no branch "dev"'),
                ("@tag.v2", 'no tag "v2"'),
                ("@00000000000000000000", "no snapshot 00000000000000000000"),
            ):
                error = refused(f"{place}|icechunk:{version}/a")
                assert words in error and "@branch.NAME" in error and place in error
            assert "is no snapshot" in refused(f"{place}|icechunk:@dev/a")
            assert "cannot follow" in refused(f"{place}|icechunk:a|zarr2:")
        assert "is URL|icechunk:" in refused(f"{server.url}/bucket/repo")
        assert "there is neither" in refused(f"{server.url}/bucket|icechunk:")
    assert 'its branches are "main", "old"' in refused(f"{folder}|icechunk:@branch.dev")
    assert "there is neither" in refused(f"{bucket}|icechunk:")
    assert "does not exist" in refused(f"{bucket}/nowhere|icechunk:")


def test_a_reader_stays_at_its_snapshot(repository, bucket):
    with serving(bucket, latency_s=0.01) as server:
        url, _ = urls(server.url, "repo")["http"]
        for path in (str(bucket / "bucket" / "repo"), url):
            before = oracle(repository)["a"][:]
            pipe = Pipeline(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
            with pipe:
                reader = {"window": [1], "device": "cpu", "host_memory_budget": 1 << 26}
                pipe.set_outputs(fn.readers.zarr(path=f"{path}|icechunk:a", **reader))
            pipe.build()
            for step in range(40):
                if step % 10 == 1:
                    commit(repository, overwrite(step))
                np.testing.assert_array_equal(np.array(pipe.run()[0][0])[0], before[step])
            del pipe


def test_checkpoints_hold_the_snapshot(repository, bucket):
    pytest.importorskip("torch")
    folder = bucket / "bucket" / "repo"
    settings = {"batch_size": 4, "window": [2], "shuffle": True, "device": "cpu", "seed": 3}

    def load(version):
        return zarr_dali.Loader(f"{folder}|icechunk:{version}a", **settings)

    expected = [batch["data"].numpy() for batch in load("@branch.main/")]
    loader = load("@branch.main/")
    steps = iter(loader)
    found = [next(steps)["data"].numpy() for _ in range(3)]
    state = loader.state_dict()
    snapshot = repository.lookup_branch("main")
    del steps, loader
    newer = commit(repository, overwrite(0))
    words = f'snapshot "{snapshot}", this reader has "{newer}".*@SNAPSHOT'
    with pytest.raises((RuntimeError, ValueError), match=words):
        again = load("@branch.main/")
        again.load_state_dict(state)
        list(again)
    again = load(f"@{snapshot}/")
    again.load_state_dict(state)
    found += [batch["data"].numpy() for batch in again]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_snapshots_and_folders_are_joined(repository, bucket):
    data = values()
    zarr.create_array(bucket / "plain.zarr", data=data[:8], chunks=(2, 24, 36))
    folder = bucket / "bucket" / "repo"
    paths = [f"{folder}|icechunk:@tag.v1/a", f"{folder}|icechunk:a", str(bucket / "plain.zarr")]
    found, _ = read(paths, batches=9, batch_size=4, stride=2)
    joined = np.concatenate([data, data + 1, data[:8]])
    np.testing.assert_array_equal(found, windows(joined)[:36])


def test_manifests_in_parts(bucket):
    """Each manifest has some chunks of the array, and only those that are needed are read."""
    split = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Any(): 5}}
    )
    repository = create(bucket / "bucket" / "repo", manifest=icechunk.ManifestConfig(splitting=split))
    data = values()
    commit(repository, lambda root: root.create_array("a", data=data, chunks=(2, 12, 36)))
    # Longer, and shorter.
    commit(repository, lambda root: root["a"].resize((60, 24, 36)))
    commit(repository, lambda root: root["a"].resize((50, 24, 36)))
    expected = oracle(repository)["a"][:]
    with serving(bucket) as server:
        url, _ = urls(server.url, "repo")["http"]
        found, _ = read(f"{url}|icechunk:a", batches=1, roi_start=[0], roi_end=[10])
        np.testing.assert_array_equal(found, windows(expected[:10]))
        manifests = [request["path"] for request in server.requests() if "/manifests/" in request["path"]]
        assert len(manifests) == 1 and len(list((bucket / "bucket" / "repo" / "manifests").iterdir())) >= 4
        found, _ = read(f"{url}|icechunk:a", batches=5)
        np.testing.assert_array_equal(found, windows(expected))


def test_chunks_that_were_removed_are_missing(bucket):
    repository = create(bucket / "repo")
    commit(repository, lambda root: root.create_array("a", data=values(), chunks=(2, 12, 36), fill_value=7.0))

    def fill(root):
        root["a"][4:12] = 7.0
        root["a"][20:22, :12] = 7.0

    commit(repository, fill)
    expected = oracle(repository)["a"][:]
    assert (expected[4:12] == 7).all()
    found, _ = read(f"{bucket}/repo|icechunk:a")
    np.testing.assert_array_equal(found, windows(expected))
    assert "missing" in refused(f"{bucket}/repo|icechunk:a", missing_chunks="error")
    # All of them.
    commit(repository, overwrite(7))
    found, _ = read(f"{bucket}/repo|icechunk:a")
    assert (found == 7).all()


def test_what_a_snapshot_names_has_to_be_there(repository, bucket):
    folder = bucket / "bucket" / "repo"
    path = f"{folder}|icechunk:@tag.v1/a"
    chunks = {file: file.read_bytes() for file in sorted((folder / "chunks").iterdir())}
    for file, data in chunks.items():
        file.write_bytes(data[:-10])
    assert "end past" in refused(path)
    for file in chunks:
        file.unlink()
    assert re.search('names "chunks/.*which is not there', refused(path))
    for file, data in chunks.items():
        file.write_bytes(data)
    for name in ("manifests", "snapshots"):
        for file in sorted((folder / name).iterdir()):
            data = file.read_bytes()
            for damaged in (data[: len(data) // 2], data[:20], b"", data[:60] + bytes(len(data) - 60)):
                file.write_bytes(damaged)
                try:
                    found, _ = read(path)
                    # A file of the other snapshot, or of the other array.
                    np.testing.assert_array_equal(found, windows(values()))
                except (RuntimeError, ValueError) as error:
                    assert f"{name}/" in str(error), error
            file.unlink()
            if name == "snapshots" and file.name == repository.lookup_tag("v1"):
                assert "has no snapshot" in refused(path)
            file.write_bytes(data)
    found, _ = read(path)
    np.testing.assert_array_equal(found, windows(values()))


def test_faults_of_the_server_are_errors_or_repeated(repository, bucket):
    with serving(bucket, kinds=["503", "short", "reset"], rate=0.2, seed=1) as server:
        url, _ = urls(server.url, "repo")["http"]
        found, _ = read(f"{url}|icechunk:@tag.v1/a")
        np.testing.assert_array_equal(found, windows(values()))


def test_a_repository_of_format_2(bucket):
    with zipfile.ZipFile(FORMAT_2) as archive:
        archive.extractall(bucket / "bucket" / "repo")
    data = values()
    data[16:24] = -1
    folder = bucket / "bucket" / "repo"
    with serving(bucket) as server:
        for place in (str(folder), f"{server.url}/bucket/repo"):
            for version, expected in (("", data + 1), ("@tag.v1/", data), ("@branch.a%2Fb/", data)):
                expected[16:24] = -1
                for array in ("group/a", "b"):
                    found, _ = read(f"{place}|icechunk:{version}{array}")
                    np.testing.assert_array_equal(found, windows(expected))
            error = refused(f"{place}|icechunk:@branch.dev/b")
            assert 'its branches are "a/b", "main"' in error
        # A folder with nothing but the repository is known by it.
        found, _ = read(str(folder), arrays=["b"])
        expected = data + 1
        expected[16:24] = -1
        np.testing.assert_array_equal(found, windows(expected))


def test_virtual_chunks_of_a_repository_of_format_2(bucket):
    with zipfile.ZipFile(FORMAT_2) as archive:
        archive.extractall(bucket / "bucket" / "repo")
    data = values()
    folder = bucket / "archive" / "data"
    pieces = [piece.tobytes() for piece in data.reshape(20, 2, *SHAPE[1:])]
    whole = bytes(100) + b"".join(pieces)
    for number in range(0, 20, 2):
        file = folder / str(number) / f"{number**2}.bin"
        file.parent.mkdir(parents=True)
        file.write_bytes(whole[: 100 + (number + 1) * len(pieces[0])])
    (folder / "a file.bin").write_bytes(whole)
    with serving(bucket) as server:
        s3 = urls(server.url, "repo")["s3"][1]
        path = f"{bucket}/bucket/repo|icechunk:virtual"
        found, _ = read(path, storage_options=json.dumps({"s3://archive": s3}))
        np.testing.assert_array_equal(found, windows(data))
        error = refused(path, storage_options=json.dumps({"s3://archive": s3 | {"anon": False, "key": "k"}}))
        assert "s3://archive" in error and "secret" in error.lower()
        (folder / "a file.bin").unlink()
        assert "a file.bin" in refused(path, storage_options=json.dumps({"s3://archive": s3}))


@pytest.fixture
def netcdf(bucket):
    """A file with the chunks of `values`, behind 100 bytes, and a repository with a virtual array of them.

    The first chunk of the array is in the repository, the second one in a manifest, the third is missing.
    """
    file = bucket / "data" / "some file.nc"
    file.parent.mkdir()
    file.write_bytes(bytes(100) + values().tobytes())

    def make(url, **reference):
        folder = bucket / "bucket" / "repo"
        prefix = url[: url.rindex("/") + 1]
        config = icechunk.RepositoryConfig.default()
        if url.startswith("file:"):
            store = icechunk.local_filesystem_store(str(file.parent))
            config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
        storage = icechunk.local_filesystem_storage(str(folder))
        allowed = {prefix: None} if url.startswith("file:") else None
        repository = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)
        session = repository.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        size = 24 * 36 * 4
        settings = {"shape": SHAPE, "dtype": "f4", "compressors": None, "filters": None, "fill_value": 7.0}
        for name, chunks in (("a", (1, 24, 36)), ("small", (1, 2, 36))):
            array = root.create_array(name, chunks=chunks, **settings)
            array[0] = values()[0]
            for row in range(3, SHAPE[0]):
                for part in range(24 // chunks[1]):
                    bytes_of_part = size * chunks[1] // 24
                    at = {"offset": 100 + row * size + part * bytes_of_part, "length": bytes_of_part}
                    key = f"{name}/c/{row}/{part}/0"
                    session.store.set_virtual_ref(key, url, **at, **reference, validate_container=False)
        session.commit("virtual")
        return repository, folder

    return make, file


def expected_of_netcdf():
    data = values()
    data[1:3] = 7
    return data


@pytest.mark.parametrize("array", ["a", "small"])
def test_virtual_chunks_in_files(netcdf, array):
    make, file = netcdf
    repository, folder = make("file://" + str(file).replace(" ", "%20"))
    np.testing.assert_array_equal(oracle(repository)[array][:], expected_of_netcdf())
    found, _ = read(f"{folder}|icechunk:{array}")
    np.testing.assert_array_equal(found, windows(expected_of_netcdf()))
    error = refused(f"{folder}|icechunk:{array}", follow_links=False)
    assert "some file.nc" in error and "follow_links" in error
    with serving(folder.parent.parent) as server:
        error = refused(f"{server.url}/bucket/repo|icechunk:{array}")
        assert "some file.nc" in error and "file of this machine" in error
    file.rename(file.with_name("moved"))
    assert "some file.nc" in refused(f"{folder}|icechunk:{array}")


def test_virtual_chunks_in_another_bucket(netcdf, bucket):
    make, _ = netcdf
    _, folder = make("s3://data/some%20file.nc")
    with serving(bucket) as other, serving(bucket) as server:
        # A header for the repository's own host is sent nowhere else.
        options = {"headers": {"authorization": "Bearer t"}, "s3://data": urls(other.url, "repo")["s3"][1]}
        for path in (str(folder), f"{server.url}/bucket/repo"):
            found, _ = read(f"{path}|icechunk:a", storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, windows(expected_of_netcdf()))
        assert other.requests() and server.requests()
        assert not any("authorization" in request["headers"] for request in other.requests())
        assert all("authorization" in request["headers"] for request in server.requests())


@pytest.mark.parametrize("kind", ["time", "tag"])
def test_a_virtual_chunk_whose_file_changed_is_an_error(netcdf, kind):
    make, file = netcdf
    found = file.stat()
    if kind == "time":
        checksum = datetime.fromtimestamp(int(found.st_mtime) + 1, timezone.utc)
    else:
        checksum = f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"
    repository, folder = make("file://" + str(file).replace(" ", "%20"), checksum=checksum)
    np.testing.assert_array_equal(oracle(repository)["a"][:], expected_of_netcdf())
    found, _ = read(f"{folder}|icechunk:a")
    np.testing.assert_array_equal(found, windows(expected_of_netcdf()))
    later = time.time() + 100
    os.utime(file, (later, later))
    with pytest.raises(icechunk.IcechunkError, match="changed"):
        oracle(repository)["a"][:]
    assert "changed" in refused(f"{folder}|icechunk:a")
