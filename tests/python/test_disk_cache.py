"""The cache of encoded chunks on the local disk: no request for what is there, and never a wrong byte."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarr_dali
from forked import run_script
from range_server import serving
from reading import CPU, assert_same_bits, build, run_python, to_samples

SHAPE = (40, 24, 36)
METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
CODECS = {
    "raw": {"compressors": None},
    "zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    "sharded": {"shards": (8, 24, 36), "compressors": zarr.codecs.ZstdCodec()},
    "v2": {"zarr_format": 2, "compressors": "auto"},
}


def values(rng):
    return rng.integers(0, 1000, SHAPE).astype("f4")


def write(folder, data, kind="zstd", **more):
    settings = {"zarr_format": 3, "chunks": (2, 12, 36), "fill_value": -1.0} | CODECS[kind] | more
    array = zarr.create_array(
        store=folder, shape=data.shape, dtype=data.dtype, **settings, overwrite=folder.exists()
    )
    array[:] = data


@pytest.fixture
def root(tmp_path):
    (tmp_path / "served").mkdir()
    return tmp_path


def cache_of(root, most_bytes=1 << 30):
    return {"cache_dir": str(root / "cache"), "cache_dir_bytes": most_bytes}


def entries(root):
    return [path for path in (root / "cache").rglob("*") if path.is_file() and path.name != "usage"]


def used(root):
    """As it counts for `cache_dir_bytes`."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in entries(root))


def read(backend, path, epochs=1, batch_size=1, **arguments):
    """Epochs of a reader in order, as one array each, and its statistics at the end.

    The pipeline is gone then: one that outlives its server repeats requests for minutes, and what it has to
    write is written.
    """
    pipe = build(backend, path, batch_size=batch_size, **arguments)
    try:
        steps = pipe.reader_meta("reader")["epoch_size"] // batch_size
        found = [
            [sample for _ in range(steps) for sample in to_samples(pipe.run()[0])] for _ in range(epochs)
        ]
        return [np.stack(epoch) for epoch in found], zarr_dali.stats(pipe)
    finally:
        del pipe


def made_twice(stats):
    """Requests that a server sees besides those that `requests` counts: a machine under load answers late."""
    return stats["requests_hedged"] + stats["requests_retried"]


def read_once(path, **arguments):
    (found,), stats = read(CPU, path, **arguments)
    return found, stats


def chunk_paths(server, since=0):
    """The objects other than metadata that were asked for."""
    paths = [request["path"] for request in server.requests()[since:]]
    return [path for path in paths if not path.endswith(METADATA)]


def test_without_the_argument_there_is_no_cache(root, rng, backend):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served") as server:
        (found,), stats = read(backend, f"{server.url}/data.zarr")
    assert_same_bits(found, data)
    assert stats["disk_cache_hits"] == stats["disk_cache_misses"] == 0 and not (root / "cache").exists()


@pytest.mark.parametrize("kind", CODECS)
def test_later_epochs_and_runs_request_no_chunk_that_is_there(root, rng, backend, kind):
    data = values(rng)
    # A sharded chunk, or chunks, that are only fill value are not in the store.
    data[8:16] = -1
    write(root / "served" / "data.zarr", data, kind)
    absent = 1 if kind == "sharded" else 8
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        found, stats = read(backend, url, epochs=2, **cache_of(root))
        for epoch in found:
            assert_same_bits(epoch, data)
        asked = chunk_paths(server)
        # Each of them once, those too that are absent; a shard of several inner chunks for its index as well.
        assert len(set(asked)) == (5 if kind == "sharded" else 40)
        if kind != "sharded":
            assert len(asked) - len(set(asked)) <= made_twice(stats)
        assert stats["disk_cache_bytes_written"] > 0 and stats["disk_cache_dropped"] == 0
        before = len(server.requests())
        found, stats = read(backend, url, epochs=2, **cache_of(root))
        for epoch in found:
            assert_same_bits(epoch, data)
        asked = chunk_paths(server, before)
        assert len(set(asked)) == absent and len(asked) - absent <= made_twice(stats)
        assert stats["disk_cache_misses"] == absent and stats["requests"] == absent
        assert stats["disk_cache_bytes_read"] > 0 and stats["disk_cache_bytes_written"] == 0
        assert stats["bytes_fetched"] == 0 and stats["disk_cache_discarded"] == 0


@contextmanager
def nothing_written(root):
    """Readers of the folder write nothing to it: another program has the lock that all who write need."""
    folder = root / "cache" / "zarr-dali-1"
    folder.mkdir(mode=0o700, parents=True)
    opened = os.open(folder, os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(opened)


@pytest.mark.parametrize("kind", CODECS)
def test_what_waits_to_be_written_is_not_requested_again(root, rng, kind):
    data = values(rng)
    write(root / "served" / "data.zarr", data, kind)
    chunks = 5 if kind == "sharded" else 40
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        with nothing_written(root):
            first = build(CPU, url, batch_size=1, **cache_of(root))
            found = [to_samples(first.run()[0])[0] for _ in range(80)]
            assert_same_bits(np.stack(found), np.concatenate([data, data]))
            stats, asked = zarr_dali.stats(first), chunk_paths(server)
            assert len(set(asked)) == chunks
            if kind != "sharded":
                assert len(asked) - chunks <= made_twice(stats)
                assert stats["disk_cache_misses"] == 40 <= stats["disk_cache_hits"]
            assert stats["disk_cache_dropped"] == stats["disk_cache_bytes_read"] == 0 and not entries(root)
            # Another reader of the process finds it, too.
            (found,), stats = read(CPU, url, **cache_of(root))
            assert_same_bits(found, data)
            assert stats["requests"] == stats["disk_cache_misses"] == 0
        # It is written when that can be done.
        del first
        (found,), stats = read(CPU, url, **cache_of(root))
        assert_same_bits(found, data)
        assert stats["requests"] == 0 and stats["disk_cache_bytes_read"] > 0
        assert len(chunk_paths(server)) == len(asked)


@pytest.mark.parametrize("batch_size", [4, 40])
def test_what_is_in_flight_is_not_requested_for_the_next_epoch(root, rng, backend, batch_size):
    data = values(rng)
    # Absent chunks have no entry on the disk, and are remembered once their answer is there.
    data[8:16] = -1
    write(root / "served" / "data.zarr", data)
    # An epoch has 10 batches, or one. One waits; batches of the next epoch are looked at, or planned, before.
    with serving(root / "served", late="/c/10/", late_s=1.0) as server:
        url = f"{server.url}/data.zarr"
        found, stats = read(backend, url, epochs=2, batch_size=batch_size, **cache_of(root))
        for epoch in found:
            assert_same_bits(epoch, data)
        assert len(chunk_paths(server)) - 40 <= made_twice(stats)


def test_what_a_reader_could_not_write_before_it_ended_is_requested(root, rng):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        with nothing_written(root):
            found, stats = read_once(url, **cache_of(root))
            assert_same_bits(found, data)
            assert stats["disk_cache_misses"] >= 40
            # Under load the first reader may not have ended yet.
            for _ in range(5):
                found, stats = read_once(url, **cache_of(root))
                assert_same_bits(found, data)
                if stats["disk_cache_misses"] >= 40:
                    break
            assert stats["disk_cache_misses"] >= 40
        assert not entries(root)


def test_a_store_in_a_zip_file_at_a_url_is_kept_and_a_local_one_is_not(root, rng):
    data = values(rng)
    write(root / "folder.zarr", data, "sharded")
    with zipfile.ZipFile(root / "served" / "data.zip", "w") as archive:
        for file in (root / "folder.zarr").rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(root / "folder.zarr"))
    with serving(root / "served") as server:
        for run in range(2):
            found, stats = read_once(f"{server.url}/data.zip", **cache_of(root))
            assert_same_bits(found, data)
            assert (stats["requests"] > 0) == (run == 0)
        kept = len(entries(root))
        assert kept > 0
    for path in (root / "folder.zarr", root / "served" / "data.zip"):
        found, stats = read_once(str(path), **cache_of(root))
        assert_same_bits(found, data)
        assert stats["disk_cache_hits"] == stats["disk_cache_misses"] == 0
    assert len(entries(root)) == kept


@pytest.mark.parametrize("consolidated", [False, True])
def test_entries_are_used_as_long_as_the_metadata_have_their_version(root, rng, consolidated):
    first, second = values(rng), values(rng)
    group = root / "served" / "data.zarr"

    def written(data, **attributes):
        zarr.open_group(group, mode="a")
        write(group / "a", data, attributes=attributes)
        if consolidated:
            zarr.consolidate_metadata(group)

    written(first)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        found, _ = read_once(url, arrays=["a"], **cache_of(root))
        assert_same_bits(found, first)
        # Overwritten under the same metadata: not noticed, until the folder is removed.
        zarr.open_array(group / "a")[:] = second
        found, _ = read_once(url, arrays=["a"], **cache_of(root))
        assert_same_bits(found, first)
        shutil.rmtree(root / "cache")
        found, _ = read_once(url, arrays=["a"], **cache_of(root))
        assert_same_bits(found, second)
        written(first, version=2)
        found, stats = read_once(url, arrays=["a"], **cache_of(root))
        assert_same_bits(found, first)
        assert stats["requests"] >= 40


def test_inner_chunks_are_of_the_object_whose_index_is_read(root, rng):
    """An index that had no room is read anew, and inner chunks of the object before it do not fit it."""
    first, second = values(rng), values(rng)
    store = root / "served" / "data.zarr"
    # Without compression all inner chunks lie at the same place in both.
    write(store, first, "sharded", compressors=None)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        read_once(url, **cache_of(root))
        zarr.open_array(store)[:] = second
        indexes = [path for path in entries(root) if path.stat().st_size < 2048]
        assert len(indexes) == 5
        for index in indexes:
            index.unlink()
        found, _ = read_once(url, **cache_of(root))
        assert_same_bits(found, second)


@pytest.mark.parametrize("kind", ["raw", "sharded"])
@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "swapped"])
def test_damaged_entries_are_fetched_again(root, rng, backend, kind, damage):
    data = values(rng)
    write(root / "served" / "data.zarr", data, kind)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        read(backend, url, **cache_of(root))
        paths = sorted(entries(root))
        contents = [path.read_bytes() for path in paths]
        for number, path in enumerate(paths):
            content = bytearray(contents[number])
            if damage == "flipped":
                content[rng.integers(len(content))] ^= 1 << rng.integers(8)
            elif damage == "short":
                content = content[: rng.integers(len(content))]
            elif damage == "empty":
                content = b""
            else:
                content = contents[number - 1]
            path.write_bytes(content)
        (found,), stats = read(backend, url, **cache_of(root))
        assert_same_bits(found, data)
        assert stats["bytes_fetched"] > 0 and stats["disk_cache_discarded"] > 0
        # Damage in the padding of a header is damage, too.
        assert kind == "sharded" or stats["disk_cache_discarded"] >= len(paths)
        if kind == "sharded":
            # Inner chunks whose index was requested are not looked for. Their damage is found when the index
            # comes out of the cache: in the same run by a reader that is ahead by an epoch, else in the next.
            (found,), _ = read(backend, url, **cache_of(root))
            assert_same_bits(found, data)
        before = len(server.requests())
        (found,), stats = read(backend, url, **cache_of(root))
        assert_same_bits(found, data)
        assert chunk_paths(server, before) == [] and stats["disk_cache_discarded"] == 0


# A Blosc chunk of blocks of 2 KiB has thousands of zstd streams. The GPU backend reads such a chunk in pieces
# of 2 MiB and keeps the header of each stream; some of these headers lie across the end of a piece.
SMALL_BLOCKS = {
    "compressors": zarr.codecs.BloscCodec(cname="zstd", shuffle="noshuffle", typesize=4, blocksize=2048)
}


@pytest.mark.parametrize("kind, codecs", [("raw", {}), ("zstd", {}), ("blosc", SMALL_BLOCKS)])
def test_a_large_chunk_that_is_read_in_pieces_is_checked(root, rng, backend, kind, codecs):
    data = rng.integers(0, 1 << 16, (3, 1500, 1500)).astype("f4")
    write(root / "served" / "data.zarr", data, kind, chunks=(1, 1500, 1500), **codecs)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        read(backend, url, **cache_of(root))
        for damaged in (False, True):
            for path in entries(root) if damaged else ():
                with path.open("r+b") as file:
                    file.seek(-7, os.SEEK_END)
                    file.write(b"\xa5")
            (found,), stats = read(backend, url, **cache_of(root))
            assert_same_bits(found, data)
            # The reader is epochs ahead of the three batches.
            assert stats["disk_cache_discarded"] >= 3 if damaged else stats["disk_cache_discarded"] == 0


def test_a_chunk_that_is_damaged_in_the_store_and_repaired_is_fetched_again(root, rng):
    data = values(rng)
    store = root / "served" / "data.zarr"
    write(store, data, "zstd")
    chunk = store / "c" / "4" / "0" / "0"
    good = chunk.read_bytes()
    chunk.write_bytes(good[:-4] + bytes(4))
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        for _ in range(2):
            with pytest.raises(RuntimeError, match="c/4/0/0"):
                read_once(url, **cache_of(root))
        chunk.write_bytes(good)
        found, _ = read_once(url, **cache_of(root))
        assert_same_bits(found, data)


def test_the_bound_holds_and_what_has_no_room_is_requested(root, rng, backend):
    data = values(rng)
    write(root / "served" / "data.zarr", data, "raw")
    bound = 11 * 8192
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        for run in range(2):
            before = len(server.requests())
            found, stats = read(backend, url, epochs=2, **cache_of(root, bound))
            for epoch in found:
                assert_same_bits(epoch, data)
            assert used(root) == bound
            # Random access and cyclic order: what is there stays.
            assert stats["disk_cache_hits"] >= 11 * (run + 1)
            assert len(set(chunk_paths(server, before))) == 40 - 11 * run
    assert stats["disk_cache_dropped"] > 0


def test_arrays_that_no_reader_needs_make_room(root, rng):
    data = [values(rng), values(rng)]
    for name, array in zip("ab", data):
        write(root / "served" / name, array, "raw")
    bound = 45 * 8192
    with serving(root / "served") as server:
        for name, array in zip("aba", [*data, data[0]]):
            for run in range(2):
                before = len(server.requests())
                found, stats = read_once(f"{server.url}/{name}", **cache_of(root, bound))
                assert_same_bits(found, array)
                assert used(root) <= bound
                if run == 1:
                    assert chunk_paths(server, before) == [] and stats["requests"] == 0


def test_without_entity_tags_nothing_is_kept(root, rng, capfd):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served", tags=False) as server:
        for _ in range(2):
            found, stats = read_once(f"{server.url}/data.zarr", **cache_of(root))
            assert_same_bits(found, data)
            assert stats["requests"] >= 40 and stats["disk_cache_misses"] == 0
    assert entries(root) == []
    assert "cache_dir" in capfd.readouterr().err


def test_endpoints_are_told_apart(root, rng):
    """The same bucket, key and metadata behind two endpoints."""
    data = [values(rng), values(rng)]
    for name, array in zip("ab", data):
        write(root / name / "bucket" / "data.zarr", array)
        os.utime(root / name / "bucket" / "data.zarr" / "zarr.json", (1, 1))
    for name, array in zip("abab", data * 2):
        with serving(root / name) as server:
            options = {"anon": True, "region": "eu-west-1", "endpoint_url": server.url}
            found, _ = read_once(
                "s3://bucket/data.zarr", storage_options=json.dumps(options), **cache_of(root)
            )
            assert_same_bits(found, array)


def test_no_secret_is_in_the_folder(root, rng):
    write(root / "served" / "data.zarr", values(rng))
    with serving(root / "served") as server:
        options = {"headers": {"authorization": "Bearer s3cr3t"}}
        read_once(f"{server.url}/data.zarr", storage_options=json.dumps(options), **cache_of(root))
    assert entries(root)
    for path in (root / "cache").rglob("*"):
        assert path.is_dir() or b"s3cr3t" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0


WRONG = {
    "without a bound": ({"cache_dir": "{root}/cache"}, "cache_dir_bytes.*bound"),
    "without a folder": ({"cache_dir_bytes": 1 << 20}, "cache_dir_bytes.*cache_dir"),
    "negative": ({"cache_dir": "{root}/cache", "cache_dir_bytes": -1}, "cache_dir_bytes.*too small"),
    "a URL": ({"cache_dir": "s3://bucket/cache", "cache_dir_bytes": 1 << 20}, "cache_dir.*local disk"),
    "a file": (
        {"cache_dir": "{root}/file", "cache_dir_bytes": 1 << 20},
        "cache_dir.*{root}/file.*local disk",
    ),
    "no folder that can be made": (
        {"cache_dir": "/proc/cache", "cache_dir_bytes": 1 << 20},
        "cache_dir.*/proc",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_options_that_cannot_be_used_are_refused_when_it_is_built(root, rng, wrong):
    write(root / "data.zarr", values(rng))
    (root / "file").write_text("no folder")
    arguments, words = WRONG[wrong]
    arguments = {
        name: value.format(root=root) if isinstance(value, str) else value
        for name, value in arguments.items()
    }
    with pytest.raises((RuntimeError, ValueError), match=words.format(root=root)):
        build(CPU, str(root / "data.zarr"), **arguments)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(root, rng):
    write(root / "data.zarr", values(rng))
    (root / "cache").mkdir(mode=0o500)
    with pytest.raises((RuntimeError, ValueError), match="cache_dir"):
        build(CPU, str(root / "data.zarr"), **cache_of(root))


def test_info_takes_the_arguments_and_makes_no_folder(root, rng):
    write(root / "data.zarr", values(rng))
    report = zarr_dali.info(
        root / "data.zarr", device="cpu", cache_dir=root / "cache", cache_dir_bytes=1 << 20
    )
    assert report.arguments["cache_dir"] == str(root / "cache") and not (root / "cache").exists()


def test_the_loader_takes_a_path(root, rng):
    pytest.importorskip("torch")
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served") as server:
        for run in range(2):
            settings = {"cache_dir": root / "cache", "cache_dir_bytes": 1 << 30}
            with zarr_dali.Loader(
                f"{server.url}/data.zarr", batch_size=4, shuffle=True, device="cpu", seed=run, **settings
            ) as loader:
                found = np.concatenate([batch["data"].numpy() for batch in loader])
                stats = loader.stats()
            order = [int(np.flatnonzero((data == one).all(axis=(1, 2)))[0]) for one in found]
            assert sorted(order) == list(range(40))
            assert (stats["requests"] == 0) == (run == 1)


def test_files_of_chunks_that_stay_decoded_are_closed(root, rng):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served") as server:
        url = f"{server.url}/data.zarr"
        read_once(url, **cache_of(root))
        pipe = build(CPU, url, batch_size=1, cache_bytes=1 << 28, **cache_of(root))
        found = np.stack([to_samples(pipe.run()[0])[0] for _ in range(80)])
        assert_same_bits(found, np.concatenate([data, data]))
        assert zarr_dali.stats(pipe)["disk_cache_hits"] == zarr_dali.stats(pipe)["chunks_decoded"] == 40
        opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert not {str(path) for path in entries(root)} & set(opened)
        del pipe


def test_a_folder_that_is_removed_while_it_is_used_is_no_error(root, rng, capfd):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    with serving(root / "served") as server:
        pipe = build(CPU, f"{server.url}/data.zarr", batch_size=1, **cache_of(root))
        for step in range(120):
            if step in (5, 70):
                shutil.rmtree(root / "cache", ignore_errors=True)
            (found,) = to_samples(pipe.run()[0])
            assert_same_bits(found, data[step % 40])
        assert zarr_dali.stats(pipe)["requests"] > 40
        del pipe
    assert not entries(root)
    said = capfd.readouterr().err
    assert said.count("is not used any more") == 1, said


def test_a_disk_without_room_is_no_error(root, rng):
    """A file system of its own that is full: of bytes, and of files."""
    data = values(rng)
    write(root / "served" / "data.zarr", data, "raw")
    np.save(root / "data.npy", data)
    (root / "disk").mkdir()
    for limit in ("size=256k", "size=10m,nr_inodes=30"):
        mount = [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f'mount -t tmpfs -o {limit} none "$0" && exec "$@"',
            root / "disk",
        ]
        if subprocess.run([*mount, "true"], capture_output=True).returncode:
            pytest.skip("no file system can be mounted in a namespace here")
        with serving(root / "served") as server:
            script = textwrap.dedent(
                """
                import sys
                import numpy as np
                import reading, zarr_dali
                url, disk, data = sys.argv[1], sys.argv[2], np.load(sys.argv[3])
                cache = {"cache_dir": disk, "cache_dir_bytes": 1 << 30}
                pipe = reading.build(reading.CPU, url, batch_size=1, **cache)
                found = np.stack([reading.to_samples(pipe.run()[0])[0] for _ in range(120)])
                reading.assert_same_bits(found, np.concatenate([data, data, data]))
                stats = zarr_dali.stats(pipe)
                print(stats["disk_cache_hits"] > 0, stats["disk_cache_dropped"] > 0, stats["requests"] > 40)
                """
            )
            arguments = [
                sys.executable,
                "-c",
                script,
                f"{server.url}/data.zarr",
                root / "disk",
                root / "data.npy",
            ]
            path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
            done = subprocess.run(
                [*mount, *arguments], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
            )
        assert done.returncode == 0 and done.stdout.split() == ["True"] * 3, done.stdout + done.stderr
        assert "not used any more" not in done.stderr


@pytest.mark.full
def test_a_forked_child_does_not_find_what_its_parent_has_not_written(root, rng):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    np.save(root / "data.npy", data)
    with serving(root / "served") as server, nothing_written(root):
        done = run_script(
            """
            import os, sys
            import numpy as np
            import reading, zarr_dali
            url, cache, data = sys.argv[1], sys.argv[2], np.load(sys.argv[3])

            def read():
                pipe = reading.build(reading.CPU, url, batch_size=1, cache_dir=cache, cache_dir_bytes=1 << 30)
                found = [reading.to_samples(pipe.run()[0])[0] for _ in range(40)]
                reading.assert_same_bits(np.stack(found), data)
                return pipe, zarr_dali.stats(pipe)["disk_cache_misses"]

            pipe, misses = read()
            child = os.fork()
            if child == 0:
                os._exit(read()[1])
            print(misses, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), read()[1])
            """,
            f"{server.url}/data.zarr",
            root / "cache",
            root / "data.npy",
        )
    assert done.returncode == 0 and done.stdout.split() == ["40", "40", "0"], done.stdout + done.stderr


def test_a_forked_child_leaves_the_cache_to_its_parent(root, rng):
    data = values(rng)
    write(root / "served" / "data.zarr", data)
    np.save(root / "data.npy", data)
    with serving(root / "served") as server:
        done = run_script(
            """
            import os, sys
            import numpy as np
            import reading, zarr_dali
            url, cache, data = sys.argv[1], sys.argv[2], np.load(sys.argv[3])
            pipe = reading.build(reading.CPU, url, batch_size=1, cache_dir=cache, cache_dir_bytes=1 << 30)
            (first,) = reading.to_samples(pipe.run()[0])
            child = os.fork()
            if child == 0:
                try:
                    pipe.run()
                except RuntimeError as error:
                    os._exit(7 if "fork" in str(error) else 8)
                os._exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            rest = [reading.to_samples(pipe.run()[0])[0] for _ in range(79)]
            reading.assert_same_bits(np.stack([first, *rest]), np.concatenate([data, data]))
            print(zarr_dali.stats(pipe)["requests"])
            """,
            f"{server.url}/data.zarr",
            root / "cache",
            root / "data.npy",
        )
    assert done.returncode == 0 and done.stdout.strip() == "40", done.stderr
    assert len(entries(root)) == 40


KILLED = Path(__file__).with_name("disk_cache_kills.py")


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.full)])
def test_ranks_that_are_killed_leave_right_bytes_within_the_bound(root, rng, kills):
    """Two processes on one cache folder, each killed at a random moment and started again."""
    for name in "abc":
        data = values(rng)
        write(root / "served" / name, data, "sharded" if name == "c" else "raw")
        np.save(root / f"{name}.npy", data)
    bound = 50 * 8192
    with serving(root / "served") as server:
        done = run_python(
            KILLED.read_text(), server.url, root, str(bound), str(kills), timeout=60 + 6 * kills
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        print(report)
        assert report["kills"] == kills and report["wrong"] == 0
        assert 0 < report["most_used"] <= report["most_noted"] <= bound and report["above"] == 0
        assert report["batches"] > 0 and report["hits"] > 0
        # Who is alone afterwards counts what is there, and can use all of the bound again.
        for name in "abc":
            for _ in range(2):
                found, stats = read_once(f"{server.url}/{name}", **cache_of(root, bound))
                assert_same_bits(found, np.load(root / f"{name}.npy"))
                assert used(root) <= bound
            assert stats["requests"] == 0
