"""What can stand in the place of a store's files, and what can become of them while they are read.

Nothing hangs, nothing that went away reads as fill value, and every error names the file and what to do.
"""

import json
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import zarr_dali
from forked import run_script
from reading import CPU, build, read_all, run_python, to_samples
from stores import FORMATS, edit_metadata, write_array, write_group
from tiers import quick
from zarr_dali import _local, cli

STEPS = 200
# More batches of two than a reader on the GPU has in flight.
MANY_STEPS = 800


def numbered(steps=STEPS):
    """Values of which none is the fill value."""
    return np.arange(1, steps * 6 + 1, dtype="float32").reshape(steps, 6)


WRITTEN = tempfile.TemporaryDirectory()


@lru_cache
def written(codec, zarr_format, steps):
    store = write_group(Path(WRITTEN.name, f"{codec}-{zarr_format}-{steps}"), zarr_format)
    sharded = {"shards": (1, 6)} if codec.startswith("sharded") else {}
    chunks = (1, 3) if sharded else (1, 6)
    write_array(store, "a", numbered(steps), chunks=chunks, codec=codec, zarr_format=zarr_format, **sharded)
    return store


def write(folder, codec="raw", zarr_format=3, steps=STEPS):
    """A group with the array `a` of one chunk, or sharded chunk, a step: copied from one like it."""
    if zarr_format not in FORMATS:
        pytest.skip("zarr-python 2 does not write it")
    return shutil.copytree(written(codec, zarr_format, steps), folder / "s.zarr")


def essence(text):
    return text.split("encountered:")[-1].split("Current pipeline object")[0].strip()


def until_error(pipe, expected):
    """Runs until an error, at most one epoch. What comes before it is right. Returns its text."""
    seen = 0
    with pytest.raises(RuntimeError) as caught:
        while seen < len(expected):
            for sample in to_samples(pipe.run()[0]):
                np.testing.assert_array_equal(sample, expected[seen])
                seen += 1
    return essence(str(caught.value))


# --- what is no file ------------------------------------------------------------------------------


def put(what, path):
    """Puts something else in the place of a file. Returns how it is called."""
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
        return "named pipe"
    if what == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(here)
        return "a socket"
    if what == "device":
        path.symlink_to("/dev/zero")
        return "a character device"
    path.mkdir()
    return "a folder"


# In a process of its own, with a limit on time: it may hang, in the destructor too.
READS = """
    import sys
    import zarr_dali
    from reading import CPU, GPU, build

    def read(what, path):
        if what == "info":
            found = zarr_dali.info(path, device="cpu")
            return [array.reason for array in found.arrays if array.decode_path == "refused"]
        if what == "select":
            zarr_dali.select(path, arrays=["a"], dim_0=0)
        elif what.startswith("rechunk"):
            zarr_dali.rechunk(path, path + ".copy", dry_run=what == "rechunk-dry")
        else:
            pipe = build(GPU if what == "gpu" else CPU, path, arrays=["a"])
            for _ in range(50):
                pipe.run()

    for what in sys.argv[1].split(","):
        for path in sys.argv[2:]:
            try:
                print(str(read(what, path)).replace("\\n", " "))
            except (ValueError, RuntimeError) as error:
                print(str(error).replace("\\n", " "))
"""
KINDS = ("pipe", "socket", "device", "folder")


def texts_of(what, stores):
    """What comes of each way of reading each store, one text each."""
    run = run_python if "gpu" in what else run_script
    done = run(READS, ",".join(what), *stores)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = done.stdout.strip().split("\n")
    assert len(texts) == len(what) * len(stores), done.stdout
    return texts


@pytest.mark.parametrize("codec", ["raw", "sharded-end-zstd"])
def test_no_chunk(backend, tmp_path, codec):
    stores = [write(tmp_path / kind, codec) for kind in KINDS]
    called = [put(kind, store / "a/c/7/0") for kind, store in zip(KINDS, stores)]
    texts = texts_of(["cpu" if backend is CPU else "gpu"], stores)
    for text, store, name in zip(texts, stores, called):
        assert f'"{store}/a/c/7/0"' in text and name in text and "write the file again" in text


@pytest.mark.parametrize(
    "file",
    [
        "a/zarr.json",
        *(
            pytest.param(n, marks=pytest.mark.full)
            for n in ("zarr.json", "a/.zarray", "a/.zattrs", ".zgroup")
        ),
    ],
)
def test_no_metadata(tmp_path, file):
    stores = [write(tmp_path / kind, zarr_format=3 if file.endswith("json") else 2) for kind in KINDS]
    for store in stores:
        (store / file).touch()
    called = [put(kind, store / file) for kind, store in zip(KINDS, stores)]
    for text, store, name in zip(texts_of(["cpu", "info"], stores), stores * 2, called * 2):
        assert str(store / file) in text and name in text


@pytest.mark.full
@pytest.mark.parametrize("reads", ["select", "rechunk", "rechunk-dry"])
def test_what_zarr_python_reads(tmp_path, reads):
    files = ("a/zarr.json", "zarr.json", "a/c/7/0", "dim_0/c/0")
    if 3 not in FORMATS:
        pytest.skip("rechunk needs zarr-python 3")
    stores = [write(tmp_path / str(number)) for number in range(len(files))]
    for store, file in zip(stores, files):
        edit_metadata(store / "a/zarr.json", lambda metadata: metadata.update(dimension_names=["dim_0", "x"]))
        write_array(store, "dim_0", np.arange(STEPS), chunks=(STEPS,), dimension_names=["dim_0"])
        put("pipe", store / file)
    for text, store, file in zip(texts_of([reads], stores), stores, files):
        is_read = file.endswith("json") or reads == "rechunk" or (reads == "select" and "dim_0" in file)
        assert ("named pipe" in text and file in text) == is_read, text
        assert not Path(f"{store}.copy").exists()


def test_metadata_that_are_too_large(tmp_path):
    """A file of a tebibyte that takes no room on the disk."""
    store = write(tmp_path)
    os.truncate(store / "a/zarr.json", 2**40)
    for reads in (
        lambda: build(CPU, store, arrays=["a"]),
        lambda: zarr_dali.select(store, arrays=["a"], dim_0=0),
        lambda: zarr_dali.rechunk(store, tmp_path / "copy.zarr", dry_run=True),
    ):
        with pytest.raises(ValueError, match=rf"{2**40} bytes.*{64 << 20}"):
            reads()


# --- what goes away -------------------------------------------------------------------------------


def remove(store):
    """Metadata first: while they are there, chunks that are gone already are missing ones."""
    for metadata in [*store.glob("a/.z*"), *store.glob("a/zarr.json")]:
        metadata.unlink()
    shutil.rmtree(store)


GOES = {
    "store": lambda store: store.rename(store.with_name("elsewhere")),
    "array": lambda store: (store / "a").rename(store / "b"),
    "removed": remove,
}


@pytest.mark.parametrize("codec, zarr_format", [("raw", 2), ("zstd", 3), ("sharded-end-zstd", 3)])
@pytest.mark.parametrize("what", quick(GOES, "store", "removed"))
@pytest.mark.gpu_where(lambda case: case["zarr_format"] == 3)
def test_a_store_that_goes_away(backend, tmp_path, codec, zarr_format, what):
    store = write(tmp_path, codec, zarr_format, MANY_STEPS)
    pipe = build(backend, store, arrays=["a"], batch_size=2)
    pipe.run()
    GOES[what](store)
    text = until_error(pipe, numbered(MANY_STEPS)[2:])
    assert "went away" in text and "mount or restore" in text and str(store) in text


def test_a_store_that_goes_away_where_missing_chunks_are_errors(tmp_path):
    store = write(tmp_path)
    pipe = build(CPU, store, arrays=["a"], missing_chunks="error")
    pipe.run()
    GOES["store"](store)
    assert "went away" in until_error(pipe, numbered()[5:])


def test_a_store_that_goes_away_behind_its_cache(tmp_path):
    """What was there is kept; what was not is asked for again."""
    store = write(tmp_path, steps=8)
    shutil.rmtree(store / "a/c/3")
    pipe = build(CPU, store, arrays=["a"], batch_size=4, cache_bytes=100_000)
    expected = numbered(8)
    expected[3] = 0
    first = [sample for _ in range(2) for sample in to_samples(pipe.run()[0])]
    np.testing.assert_array_equal(first, expected)


def test_metadata_that_change(backend, tmp_path):
    store = write(tmp_path, steps=MANY_STEPS)
    shutil.rmtree(store / "a/c/750")
    pipe = build(backend, store, arrays=["a"], batch_size=2)
    pipe.run()
    edit_metadata(store / "a/zarr.json", lambda metadata: metadata["attributes"].update(more=1))
    expected = numbered(MANY_STEPS)
    expected[750] = 0
    text = until_error(pipe, expected[2:])
    assert "metadata changed" in text and "a/zarr.json" in text


def test_metadata_that_are_written_again(backend, tmp_path):
    """The same bytes in another file are the same metadata."""
    store = write(tmp_path)
    shutil.rmtree(store / "a/c/150")
    pipe = build(backend, store, arrays=["a"], batch_size=50)
    pipe.run()
    shutil.copy(store / "a/zarr.json", store / "a/new.json")
    (store / "a/new.json").replace(store / "a/zarr.json")
    expected = numbered()
    expected[150] = 0
    found = [sample for _ in range(3) for sample in to_samples(pipe.run()[0])]
    np.testing.assert_array_equal(found, expected[50:])


@pytest.mark.parametrize("codec", ["zstd", "sharded-end-zstd"])
@pytest.mark.parametrize("link", ["a/c/7/0", "a/c/7", "a/c"])
def test_a_link_that_leads_nowhere(backend, tmp_path, codec, link):
    store = write(tmp_path, codec)
    disk = tmp_path / "disk"
    (store / link).rename(disk)
    (store / link).symlink_to(disk)
    np.testing.assert_array_equal(read_all(backend, store, arrays=["a"])[0], numbered())
    disk.rename(tmp_path / "unmounted")
    text = until_error(build(backend, store, arrays=["a"], batch_size=2), numbered())
    assert f'"{store}/{link}" is a symbolic link to "{disk}"' in text and "mount or restore" in text


def test_a_link_that_leads_nowhere_any_more(backend, tmp_path):
    """In the middle of an epoch, with the metadata where they were."""
    store = write(tmp_path, "zstd", steps=MANY_STEPS)
    disk = tmp_path / "disk"
    (store / "a/c").rename(disk)
    (store / "a/c").symlink_to(disk)
    pipe = build(backend, store, arrays=["a"], batch_size=2)
    pipe.run()
    disk.rename(tmp_path / "unmounted")
    assert "symbolic link" in until_error(pipe, numbered(MANY_STEPS)[2:])


def test_rechunk_of_a_link_that_leads_nowhere(tmp_path):
    if 3 not in FORMATS:
        pytest.skip("rechunk needs zarr-python 3")
    store = write(tmp_path)
    shutil.rmtree(store / "a/c/7")
    (store / "a/c/7").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"symbolic link .*gone"):
        zarr_dali.rechunk(store, tmp_path / "copy.zarr")


# --- what is written to ---------------------------------------------------------------------------


WRITES = """
    import os, sys, time
    import numpy as np

    path, count, enough = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    slow = []
    with open(path, "r+b", buffering=0) as file:
        until = time.monotonic() + 6
        value = 1
        # On a busy machine longer: until the reader has seen what it needs.
        while time.monotonic() < until or not os.path.exists(enough) and time.monotonic() < until + 40:
            value += 1
            half = np.full(count // 2, value, "float32").tobytes()
            file.seek(0)
            begun = time.monotonic()
            file.write(half)
            time.sleep(0.02)
            file.write(half)
            if time.monotonic() - begun > 0.09:
                slow.append(value)
            time.sleep(0.2)
    print(slow)
"""


@pytest.mark.full
def test_a_chunk_that_is_rewritten_in_place(backend, tmp_path):
    """By a writer that stops in the middle, but for less than files are waited for: never a mixture."""
    store = tmp_path / "s.zarr"
    count = 4096
    write_array(store, "", np.ones((2, count), "float32"), chunks=(1, count), codec="raw")
    written, enough = [], tmp_path / "enough"
    writer = threading.Thread(
        target=lambda: written.append(run_python(WRITES, store / "c/0/0", count, enough, timeout=60))
    )
    writer.start()
    mixtures, whole, refused = [], 0, 0
    while writer.is_alive():
        pipe = build(backend, store, batch_size=2)
        try:
            sample = to_samples(pipe.run()[0])[0]
        except RuntimeError as error:
            assert "written to" in str(error)
            refused += 1
            continue
        values = np.unique(sample)
        if len(values) > 1:
            mixtures.append(int(values[-1]))
        whole += 1
        if whole > 5:
            enough.touch()
    slow = json.loads(written[0].stdout)
    assert set(mixtures) <= set(slow)
    assert whole > 5, refused


# --- links out of the store -----------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """`inside` is linked in the store, `outside` from elsewhere, `parts` in one chunk."""
    store, others = write(tmp_path), tmp_path / "others"
    (store / "inside").symlink_to(store / "a")
    others.mkdir()
    write_array(others, "b", numbered(), chunks=(1, 6), codec="raw")
    (store / "outside").symlink_to("../others/b")
    write_array(store, "parts", numbered(), chunks=(1, 6), codec="raw")
    (store / "parts/c/7/0").unlink()
    (store / "parts/c/7/0").symlink_to(others / "b/c/7/0")
    return store


def leaves(link, target):
    return (
        re.escape(f'"{link}" is a symbolic link to "{target}"') + ".*not in the store's folder.*follow_links"
    )


def test_links_are_followed_by_default(backend, linked, tmp_path):
    for name in ("inside", "outside", "parts"):
        np.testing.assert_array_equal(read_all(backend, linked, arrays=[name])[0], numbered())
    assert {array.name for array in zarr_dali.info(linked).arrays} == {"a", "inside", "outside", "parts"}


@pytest.mark.parametrize("sharded", [False, True])
def test_links_that_leave_the_store(backend, linked, tmp_path, sharded):
    assert len(read_all(backend, linked, arrays=["inside"], follow_links=False)[0]) == STEPS
    with pytest.raises(ValueError, match=leaves(linked / "outside", "../others/b")):
        build(backend, linked, arrays=["outside"], follow_links=False)
    if sharded:
        file = write(tmp_path / "sharded", "sharded-end-zstd") / "a/c/7/0"
        file.rename(tmp_path / "shard")
        file.symlink_to(tmp_path / "shard")
        store, array, link, target = file.parents[3], "a", file, tmp_path / "shard"
    else:
        store, array, link = linked, "parts", linked / "parts/c/7/0"
        target = linked.parent / "others/b/c/7/0"
    text = until_error(build(backend, store, arrays=[array], follow_links=False), numbered())
    assert re.search(leaves(link, target), text)
    # The store itself may be a link.
    (tmp_path / "link.zarr").symlink_to(linked)
    assert len(read_all(backend, tmp_path / "link.zarr", arrays=["a"], follow_links=False)[0]) == STEPS


def test_info_without_links_that_leave(linked):
    arrays = {array.name: array for array in zarr_dali.info(linked, follow_links=False, device="cpu").arrays}
    assert {name for name, array in arrays.items() if array.decode_path == "refused"} == {"outside"}
    assert "symbolic link" in arrays["outside"].reason
    shown = CliRunner().invoke(cli.main, ["info", str(linked), "--no-follow-links", "--json"])
    assert shown.exit_code == 0 and shown.output.count("symbolic link") == 1


def test_loader_without_links_that_leave(linked):
    pytest.importorskip("torch")
    loader = zarr_dali.Loader(linked, ["a"], 8, device="cpu", follow_links=False)
    assert sum(len(batch["a"]) for batch in loader) == STEPS
    for select in ({}, {"select": {"dim_0": slice(0, 5)}}):
        with pytest.raises(ValueError, match="symbolic link"):
            zarr_dali.Loader(linked, ["outside"], 8, device="cpu", follow_links=False, **select)


def test_select_without_links_that_leave(linked, tmp_path):
    for name in ("a", "inside", "outside", "parts"):
        path = linked / name
        edit_metadata(path / "zarr.json", lambda metadata: metadata.update(dimension_names=["t", "x"]))
    assert "follow_links" not in zarr_dali.select(linked, arrays=["outside"], t=slice(0, 5))
    with pytest.raises(ValueError, match="symbolic link"):
        zarr_dali.select(linked, arrays=["outside"], follow_links=False, t=slice(0, 5))
    (linked / "outside").unlink()
    chosen = zarr_dali.select(linked, arrays=["inside"], follow_links=False, t=slice(0, 5))
    assert chosen["follow_links"] is False
    assert len(read_all(CPU, **chosen)[0]) == 5


def test_select_confines_an_array_by_itself(linked, tmp_path):
    """To its own folder, which may be a link, as the reader does; the rest of its group to the group."""
    for name in ("a", "outside", "parts"):
        path = linked / name / "zarr.json"
        edit_metadata(path, lambda metadata: metadata.update(dimension_names=["t", "x"]))
    for link in ("inside", "outside", "parts/c/7/0"):
        (linked / link).unlink()
    # A link into the group that it stands in, one out of it, and one that stands in no group.
    (linked / "same").symlink_to("a")
    (tmp_path / "link").symlink_to(linked / "a")
    for path in (linked / "a", linked / "same", tmp_path / "link"):
        chosen = zarr_dali.select(path, follow_links=False, t=slice(0, 5))
        assert len(read_all(CPU, **chosen)[0]) == 5
    (linked / "outside").symlink_to("../others/b")
    _local.check_store(linked, False, chunks=True, array="outside")  # before zarr-python 2 reads
    chosen = zarr_dali.select(linked / "outside", follow_links=False, t=slice(0, 5))
    assert len(read_all(CPU, **chosen)[0]) == 5
    with pytest.raises(ValueError, match="outside is a symbolic link"):
        zarr_dali.select(linked / "a", follow_links=False, t=slice(0, 5))
    (linked / "outside").unlink()
    # A link out of the array, though to a place in the same group.
    (linked / "parts/zarr.json").unlink()
    (linked / "parts/zarr.json").symlink_to("../a/zarr.json")
    for reads in (zarr_dali.select, lambda *path, **named: build(CPU, *path, **named)):
        assert reads(linked / "parts")
        with pytest.raises(ValueError, match=r"parts/zarr.json.* is a symbolic link to .*\.\./a/zarr.json"):
            reads(linked / "parts", follow_links=False)
    (linked / "same").unlink()
    (linked / "same").symlink_to("parts")
    # Whichever of the two is met first.
    for array in ("parts", "same"):
        with pytest.raises(ValueError, match=f"{array}/zarr.json is a symbolic link"):
            _local.check_store(linked, False, chunks=True, array=array)


def test_rechunk_without_links_that_leave(linked, tmp_path):
    if 3 not in FORMATS:
        pytest.skip("rechunk needs zarr-python 3")
    with pytest.raises(ValueError, match="symbolic link"):
        zarr_dali.rechunk(linked, tmp_path / "copy.zarr", follow_links=False)
    arguments = ["rechunk", str(linked), str(tmp_path / "copy.zarr"), "--no-follow-links"]
    refused = CliRunner().invoke(cli.main, arguments)
    assert refused.exit_code == 1 and "symbolic link" in refused.output
    (linked / "outside").unlink()
    (linked / "parts/c/7/0").unlink()
    zarr_dali.rechunk(linked, tmp_path / "copy.zarr", follow_links=False)
    np.testing.assert_array_equal(zarr.open(str(tmp_path / "copy.zarr/inside"))[:], numbered())


# --- messages -------------------------------------------------------------------------------------

FIELDS = {
    "zarr_format": (4, 3),
    "node_type": ("leaf", "array"),
    "shape": ([-6, 4], "integers"),
    "chunk_grid": (7, "configuration"),
    "chunk_key_encoding": (None, "name"),
    "codecs": ("zstd", "list of codecs"),
    "attributes": ([], "an object"),
    "dimension_names": ([1, 2], "names"),
}
FIELDS_V2 = {
    "zarr_format": ("2", 2),
    "shape": ("long", "integers"),
    "chunks": ([0, 6], "integers"),
    "order": ("K", "C"),
    "compressor": ("zstd", "id"),
    "filters": ({}, "list"),
}
CASES = [(3, *case) for case in FIELDS.items()] + [(2, *case) for case in FIELDS_V2.items()]


@pytest.mark.parametrize("zarr_format, field, case", CASES, ids=lambda value: str(value)[:12])
def test_metadata_name_the_field_that_is_wrong(tmp_path, zarr_format, field, case):
    store = write(tmp_path, zarr_format=zarr_format)
    file = store / "a" / ("zarr.json" if zarr_format == 3 else ".zarray")
    wrong, should = case
    edit_metadata(file, lambda metadata: metadata.update({field: wrong}))
    with pytest.raises(ValueError) as caught:
        build(CPU, store, arrays=["a"])
    text = essence(str(caught.value))
    assert "untagged" not in text and str(file) in text
    assert re.search(rf'"{field}" is {re.escape(json.dumps(wrong).replace(", ", ","))}.*{should}', text), text
    if field in ("attributes", "dimension_names"):
        return
    edit_metadata(file, lambda metadata: metadata.pop(field))
    if field not in ("filters", "compressor"):
        with pytest.raises(ValueError, match=f'"{field}"'):
            build(CPU, store, arrays=["a"])


def test_metadata_that_are_no_json(tmp_path):
    store = write(tmp_path)
    (store / "a/zarr.json").write_text("{" * 100_000)
    with pytest.raises(ValueError, match=re.escape(f"{store}/a/zarr.json") + ".*no JSON.*line 1 column"):
        build(CPU, store, arrays=["a"])
    (store / "a/zarr.json").write_text('{"a":' * 100_000)
    with pytest.raises(ValueError, match=r"no JSON.*recursion limit"):
        build(CPU, store, arrays=["a"])


ORDERS = {
    "compressed-before-bytes": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}, "bytes"],
    "bytes-twice": ["bytes", "bytes"],
    "transposed-behind-bytes": ["bytes", {"name": "transpose", "configuration": {"order": [1, 0]}}],
}


@pytest.mark.parametrize("case", ORDERS)
def test_codecs_in_an_order_that_cannot_be(tmp_path, case):
    if 3 not in FORMATS:
        pytest.skip("chains in the metadata are of Zarr v3")
    store = write(tmp_path)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    chain = [little if codec == "bytes" else codec for codec in ORDERS[case]]
    edit_metadata(store / "a/zarr.json", lambda metadata: metadata.update(codecs=chain))
    name = chain[1]["name"]
    with pytest.raises(ValueError, match=f'codec "{name}".*stands behind "{chain[0]["name"]}"'):
        build(CPU, store, arrays=["a"])


def test_filters_of_v2_in_an_order_that_cannot_be(tmp_path):
    """numcodecs would take differences of shuffled bytes."""
    store = write(tmp_path, zarr_format=2)
    filters = [{"id": "shuffle", "elementsize": 4}, {"id": "delta", "dtype": "<f4"}]
    edit_metadata(store / "a/.zarray", lambda metadata: metadata.update(filters=filters))
    with pytest.raises(ValueError, match=r'codec "delta".*stands behind "shuffle"'):
        build(CPU, store, arrays=["a"])


@pytest.mark.full
def test_codecs_are_listed_where_they_are_known(tmp_path):
    """What the list of an unknown codec's error names, the reader knows in that version of the format."""
    if 3 not in FORMATS:
        pytest.skip("both formats are written")
    stores = {
        zarr_format: write(tmp_path / str(zarr_format), zarr_format=zarr_format) for zarr_format in (2, 3)
    }

    def refusal(zarr_format, name):
        file = stores[zarr_format] / "a" / ("zarr.json" if zarr_format == 3 else ".zarray")
        if zarr_format == 3:
            edit_metadata(
                file, lambda metadata: metadata.update(codecs=[{"name": name, "configuration": {}}])
            )
        else:
            edit_metadata(file, lambda metadata: metadata.update(compressor=None, filters=[{"id": name}]))
        try:
            build(CPU, stores[zarr_format], arrays=["a"])
        except ValueError as error:
            return essence(str(error))
        return ""

    for zarr_format in (2, 3):
        text = refusal(zarr_format, "squeeze")
        assert "is not known" in text
        listed = text.split("can be read: ")[1].strip(". \n").split(", ")
        assert len(listed) > 10
        for name in listed:
            assert "is not known" not in refusal(zarr_format, name), name
        assert ("packbits" in listed) == (zarr_format == 3)
        assert any(name.endswith("bz2") for name in listed)


@pytest.mark.full
def test_a_store_without_permission():
    """As another user, because root may read everything."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = write(Path(folder))
        code = """
            import os, sys
            from reading import CPU, build
            import zarr_dali
            try:
                build(CPU, "nowhere")  # loads what another user may not be able to
            except ValueError:
                os.seteuid(65534)
            for read in (lambda: build(CPU, sys.argv[1], arrays=["a"]), lambda: zarr_dali.info(sys.argv[1])):
                try:
                    found = read()
                    print([array.reason for array in getattr(found, "arrays", ())])
                except ValueError as error:
                    print(error)
        """
        for path, asked in ((store, store), (store / "a", store), (store / "a/zarr.json", store)):
            mode = path.stat().st_mode
            path.chmod(0)
            done = run_python(code, asked)
            assert done.stdout.count("Permission denied") == 2, done.stdout + done.stderr
            assert "check the permissions" in done.stdout and str(path) in done.stdout
            path.chmod(stat.S_IMODE(mode))
        # It can be entered, but not be listed.
        store.chmod(0o711)
        done = run_python(code, store)
        assert done.stdout.count("Permission denied") == 1, done.stdout


@pytest.mark.parametrize("url", ["ftp://host/era5.zarr", "zip::https://host/era5.zip"])
def test_urls_that_are_not_read(tmp_path, url):
    reads = [
        lambda: zarr_dali.select(url, arrays=["a"], time=0),
        lambda: zarr_dali.rechunk(url, tmp_path / "copy.zarr"),
        lambda: build(CPU, url, arrays=["a"]),
        lambda: zarr_dali.info(url),
    ]
    for read in reads:
        with pytest.raises(ValueError, match=re.escape(url) + ".*is a URL of a kind that is not read"):
            read()
    with pytest.raises(
        ValueError, match=re.escape(url) + " is a URL, and copies are written to folders only"
    ):
        zarr_dali.rechunk(tmp_path, url)


def test_a_pattern_that_fits_in_too_many_ways(tmp_path):
    (tmp_path / ("a" * 200)).mkdir()
    start = time.monotonic()
    with pytest.raises(ValueError, match="no folder matches"):
        build(CPU, str(tmp_path / ("*a" * 40 + "b")))
    assert time.monotonic() - start < 5


def test_limits_are_those_of_the_core():
    source = Path(__file__).parents[2] / "src/dataset/metadata_file.rs"
    (shift,) = re.findall(r"MOST_METADATA_BYTES: u64 = 64 << (\d+)", source.read_text())
    assert 64 << int(shift) == _local.MOST_METADATA_BYTES
