"""Stores that change while they are read, and positions of other readers: `../hostile.py` reads them."""

import os
import shutil
import subprocess
import sys
from functools import cache

import numcodecs
import numpy as np

from cases import (
    MIB,
    Read,
    add,
    case,
    metadata,
    metadata_v2,
    put,
    raw_v3,
    read,
    samples_of,
    zstd_v3,
)
from stores import chunk_files, edit_metadata, write_array

# --- stores that change while they are read -------------------------------------------------------

STEPS, WIDTH = 192, 65_536


def _long(folder, zarr_format=3, compressed=False):
    """192 chunks of 256 KiB, each of one value; the readers have memory for a few of them."""
    values = np.repeat(np.arange(1, STEPS + 1, dtype="float32"), WIDTH).reshape(STEPS, WIDTH)
    shape, chunks = values.shape, (1, WIDTH)
    encode = numcodecs.Zstd(level=1).encode if compressed else np.ndarray.tobytes
    if zarr_format == 2:
        compressor = {"id": "zstd", "level": 1} if compressed else None
        meta, key = metadata_v2(shape, chunks, compressor=compressor), "{}.0"
    else:
        meta, key = metadata(shape, chunks, zstd_v3() if compressed else raw_v3()), "c/{}/0"
    return put(folder / "store.zarr", meta, {key.format(i): encode(values[i]) for i in range(STEPS)}), values


def _going(folder, **options):
    path, values = _long(folder, **options)
    return read(path, values, batch_size=1)


def _or_zeros(folder, **options):
    """Chunks that are gone while the array is there are missing chunks."""
    made = _going(folder, **options)
    made.alternatives = [[np.zeros(WIDTH, "float32")] * STEPS]
    return made


def _removed(read):
    shutil.rmtree(read.path)


def _renamed(read):
    os.rename(read.path, f"{read.path}-elsewhere")


def _without_chunks(read):
    for file in chunk_files(read.path):
        file.unlink()


def _without_metadata(read):
    _without_chunks(read)
    for name in ("zarr.json", ".zarray"):
        if os.path.exists(f"{read.path}/{name}"):
            os.unlink(f"{read.path}/{name}")


def _with_other_metadata(read):
    _without_chunks(read)
    edit_metadata(f"{read.path}/zarr.json", lambda meta: meta.update(fill_value=9.0))


def _with_dangling_chunks(read):
    for file in chunk_files(read.path):
        file.unlink()
        file.symlink_to("gone")


def _as_a_file(read):
    shutil.rmtree(read.path)
    with open(read.path, "w") as it:
        it.write("no store any more")


def _cut(read):
    for file in chunk_files(read.path):
        os.truncate(file, 1000)


def _emptied(read):
    for file in chunk_files(read.path):
        os.truncate(file, 0)


def _closed(read):
    _without_chunks(read)
    os.mkfifo(f"{read.path}/fifo")
    for row in range(STEPS):
        key = f"{read.path}/c/{row}/0"
        if os.path.isdir(os.path.dirname(key)):
            os.symlink("../../fifo", key)


MIDWAY = {"budget_bytes": 4 * MIB, "interfaces": ("operator",)}
for _format in (3, 2):
    for _name, _do in {
        "removed": _removed,
        "renamed": _renamed,
        "without-metadata": _without_metadata,
        "a-file": _as_a_file,
        "dangling-links": _with_dangling_chunks,
        "cut": _cut,
        "emptied": _emptied,
    }.items():
        add(
            f"midway-{_name}-v{_format}",
            "changing stores",
            lambda folder, fmt=_format: _going(folder, zarr_format=fmt),
            "error",
            midway=_do,
            **MIDWAY,
        )
    add(
        f"midway-without-chunks-v{_format}",
        "changing stores",
        lambda folder, fmt=_format: _or_zeros(folder, zarr_format=fmt),
        "either",
        midway=_without_chunks,
        **MIDWAY,
    )
add("midway-other-metadata", "changing stores", _going, "error", midway=_with_other_metadata, **MIDWAY)
add("midway-fifos", "changing stores", _going, "error", midway=_closed, **MIDWAY)
add(
    "midway-removed-zstd",
    "changing stores",
    lambda folder: _going(folder, compressed=True),
    "error",
    midway=_removed,
    **MIDWAY,
)
add(
    "midway-removed-loader",
    "changing stores",
    _going,
    "error",
    midway=_removed,
    **MIDWAY | {"interfaces": ("loader",)},
)
add(
    "midway-renamed-loader",
    "changing stores",
    _going,
    "error",
    midway=_renamed,
    **MIDWAY | {"interfaces": ("loader",)},
)


@case("changing stores", "error", midway=lambda read: os.unlink(read.path), **MIDWAY)
def midway_link_to_the_store_removed(folder):
    made = _going(folder)
    os.rename(made.path, folder / "real")
    os.symlink("real", made.path)
    return made


@case("changing stores", "error", midway=_removed, **MIDWAY)
def midway_group_removed(folder):
    store = folder / "store.zarr"
    made = _going(folder)
    os.rename(store / "c", folder / "c")
    (store / "a").mkdir()
    os.rename(folder / "c", store / "a" / "c")
    os.rename(store / "zarr.json", store / "a" / "zarr.json")
    put(store, {"zarr_format": 3, "node_type": "group"})
    made.arguments = {"arrays": ["a"]}
    return made


@case("changing stores", "error", midway=lambda read: shutil.rmtree(read.path[1]), **MIDWAY)
def midway_second_of_joined_stores_removed(folder):
    made = [_long(folder / name) for name in ("one", "two")]
    values = np.concatenate([values for _, values in made])
    return Read([str(path) for path, _ in made], samples_of(values), batch_size=1)


def _rewritten(read, change=lambda data: data, in_place=True):
    for file in chunk_files(read.path):
        data = (np.frombuffer(file.read_bytes(), "float32") + 1000).astype("float32").tobytes()
        if in_place:
            with open(file, "r+b") as it:
                it.write(change(data))
        else:
            new = file.with_name("new")
            new.write_bytes(data)
            os.replace(new, file)


def _or_rewritten(folder):
    made = _going(folder)
    made.alternatives = [[sample + np.float32(1000) for sample in made.samples]]
    return made


add("midway-rewritten-in-place", "changing stores", _or_rewritten, "either", midway=_rewritten, **MIDWAY)
add(
    "midway-replaced",
    "changing stores",
    _or_rewritten,
    "either",
    midway=lambda read: _rewritten(read, in_place=False),
    **MIDWAY,
)
add(
    "midway-longer",
    "changing stores",
    _going,
    "error",
    midway=lambda read: [os.truncate(file, 4 * WIDTH + 100) for file in chunk_files(read.path)],
    **MIDWAY,
)

WRITER = """
import os, sys, time
files, parent, end, value = sys.argv[1:], os.getppid(), time.monotonic() + 8, 1
while time.monotonic() < end and os.getppid() == parent:
    value += 1
    data = bytes([value % 250] * 65536)
    for file in files:
        with open(file, "r+b", buffering=0) as it:
            for _ in range(4):
                it.write(data)
"""


@cache
def _writer(path):
    return subprocess.Popen([sys.executable, "-c", WRITER, *map(str, chunk_files(path)[1:9])])


def _keep_writing(read):
    """Rewrites chunks in place without a pause, each with bytes that are all the same."""
    _writer(read.path)


def _mixed(sample):
    """What is wrong with a sample that is neither all old nor all new."""
    values = np.unique(sample)
    return f"a mixture of {values[:4]}" if len(values) > 1 else None


@case("changing stores", "either", midway=_keep_writing, accepts=_mixed, repeat_s=6, patience=2, **MIDWAY)
def midway_written_without_a_pause(folder):
    values = np.tile(np.arange(9, dtype="uint8").repeat(4).reshape(9, 4), (1, WIDTH))
    path = write_array(folder / "store.zarr", "", values, chunks=(1, 4 * WIDTH), codec="raw")
    return Read(str(path), None, batch_size=1, batches=36)


# --- positions ------------------------------------------------------------------------------------


def _position(position, shape=(10, 6), chunks=(2, 6), **arguments):
    """A position as text, or what is changed in one that the reader gave."""

    def make(folder):
        path = put(folder / "store.zarr", metadata(shape, chunks, fill_value=3))
        given = {"position": position, "pad_last_batch": True, "seed": 1}
        return Read(str(path), None, arguments=given | arguments, batches=3)

    return make


_AT = {"epoch": 1, "batch": 1}
POSITIONS = {
    "empty-object": "{}",
    "half": '{"version": 3, "epo',
    "a-list": "[]",
    "deep": "[" * 100_000,
    "a-number": "7",
    "zeros": "\x01\x02",
    "no-version": '{"epoch": 1, "batch": 1}',
    "version-99": _AT | {"version": 99},
    "version-a-word": _AT | {"version": "two"},
    "epoch-negative": _AT | {"epoch": -1},
    "epoch-2-to-70": _AT | {"epoch": 2**70},
    "epoch-a-word": _AT | {"epoch": "one"},
    "batch-negative": _AT | {"batch": -1},
    "batch-2-to-70": _AT | {"batch": 2**70},
    "batch-of-fractions": _AT | {"batch": 1.5},
    "batch-1e308": _AT | {"batch": 1e308},
    "shards-0": _AT | {"num_shards": 0},
    "shards-negative": _AT | {"num_shards": -4},
    "batch-size-0": _AT | {"batch_size": 0},
    "played-a-word": _AT | {"played": "much"},
    "played-short": _AT | {"played": [[1, 2]]},
    "played-negative": _AT | {"played": [[1, -4, 1]]},
    "played-zero": _AT | {"played": [[0, 4, 1]]},
    "seed-a-word": _AT | {"seed": "one"},
    "reader-a-list": _AT | {"reader": []},
}
for _name, _value in POSITIONS.items():
    add(
        f"position-{_name}",
        "positions",
        _position(_value),
        "error",
        names="position",
        interfaces=("operator",),
    )
# Great numbers that may be right, with little memory and in time.
for _name, _value in {
    "that-is-right": _AT,
    "epoch-2-to-60": _AT | {"epoch": 2**60},
    "batch-2-to-60": _AT | {"batch": 2**60},
    "shards-2-to-60": _AT | {"num_shards": 2**60, "batch_size": 4},
    "batch-size-2-to-60": _AT | {"num_shards": 1, "batch_size": 2**60},
    "played-2-to-60": _AT | {"played": [[2**60, 2**60, 2**60]]},
    "played-100000-times": _AT | {"played": [[2, 1, 1]] * 100_000},
    "played-to-the-end": _AT | {"played": [[1, 4, 1000]]},
}.items():
    add(
        f"position-{_name}",
        "positions",
        _position(_value),
        "either",
        names="position",
        interfaces=("operator",),
    )
    add(
        f"position-{_name}-shuffled",
        "positions",
        _position(_value, random_shuffle=True),
        "either",
        names="position",
        interfaces=("operator",),
    )
for _name, _value in {
    "another-batch-size": _AT | {"batch": 3, "num_shards": 1, "batch_size": 7},
    "other-shards": _AT | {"batch": 3, "num_shards": 3, "batch_size": 7},
    "far-in-it": _AT | {"batch": 2**30, "num_shards": 3, "batch_size": 7},
    "the-same": _AT | {"batch": 2**30, "num_shards": 1, "batch_size": 4},
}.items():
    for _shuffle in (False, True):
        add(
            f"position-in-2-to-40-samples-{_name}{'-shuffled' if _shuffle else ''}",
            "positions",
            _position(_value, shape=[2**40, 1], chunks=[2**12, 1], random_shuffle=_shuffle),
            "either",
            names=r"position|store\.zarr|argument",
            interfaces=("operator",),
        )
