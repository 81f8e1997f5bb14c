"""`zarr_dali.rechunk` and the command `zarr-dali rechunk`: copies against their sources, bit for bit."""

import hashlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from forked import start_script
from reading import CPU, build
from stores import CODECS, FORMATS, chunk_files, random_values, read_array, write_array, write_group

if 3 not in FORMATS:
    pytest.skip("rechunk needs zarr-python 3", allow_module_level=True)

import zarr

import zarr_dali
from zarr_dali import _moments
from zarr_dali._rechunk import array_copy, copying, journal, proposal, publishing, rechunk, regions
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk_cli import rechunk as command


def bits(values):
    """What a value is, NaN payloads and signs of zeros included."""
    values = np.ascontiguousarray(values)
    values = values.astype(values.dtype.newbyteorder("="))
    return values.reshape(-1).view(np.uint8) if values.size else values


def assert_same(found, wanted):
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert np.array_equal(bits(found), bits(wanted))


def snapshot(folder):
    """Bytes and times of all files, to see that nothing has touched them."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in sorted(Path(folder).rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def era(tmp_path):
    """A group of two variables of 40 steps in chunks of 2, with coordinates, Zarr v2 as xarray writes it."""
    import xarray as xr

    rng = np.random.default_rng(7)
    values = {name: rng.normal(size=(40, 16, 24)).astype("float32") for name in ("t2m", "msl")}
    values["t2m"][3, :2] = np.nan
    dataset = xr.Dataset(
        {name: (("time", "lat", "lon"), data, {"units": "K"}) for name, data in values.items()},
        coords={
            "time": xr.date_range("2000-01-01", periods=40, freq="6h"),
            "lat": np.linspace(90, -90, 16),
            "lon": np.arange(24.0),
            "station": ("lon", np.array([f"s{i}" for i in range(24)], dtype=object)),
        },
        attrs={"title": "made up"},
    )
    dataset["packed"] = (("time", "lat"), np.where(np.arange(640).reshape(40, 16) % 7, 281.5, np.nan))
    encoding = {name: {"chunks": (2, 16, 24)} for name in values}
    encoding["packed"] = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -999}
    path = tmp_path / "era.zarr"
    dataset.to_zarr(path, zarr_format=2, encoding=encoding, consolidated=True)
    return path


# --- values ---------------------------------------------------------------------------------------

CHAINS = {2: ("raw", "zstd", "gzip", "zlib", "blosc-lz4", "shuffle-zstd"), 3: tuple(CODECS)}


@pytest.mark.parametrize("seed", range(40))
def test_any_chunks_to_any_chunks(tmp_path, seed):
    """Shapes, chunks, formats, codecs, types, ranges and memory, all drawn at random."""
    rng = np.random.default_rng(seed)
    zarr_format = int(rng.choice([2, 3]))
    chains = [name for name in CHAINS[zarr_format] if getattr(CODECS[name], f"v{zarr_format}")]
    chain = str(rng.choice([name for name in chains if "nested" not in name and "then" not in name]))
    shape = tuple(int(extent) for extent in rng.integers(1, 20, size=rng.integers(1, 5)))
    dtype = str(rng.choice(["float32", "float64", "float16", "int16", "uint8", "bool", "int64", "complex64"]))
    values = random_values(rng, shape, "float32" if dtype == "complex64" else dtype)
    if dtype == "complex64":
        values = (values + 1j * np.float32(-0.0)).astype(dtype)
    fill = 0
    if values.dtype.kind == "f" and rng.random() < 0.5:
        fill = np.nan
        values[rng.random(shape) < 0.3] = np.nan
    if rng.random() < 0.5:  # whole chunks of nothing, and of what is like nothing
        values[: shape[0] // 2] = fill if rng.random() < 0.5 else values.dtype.type(-0.0)
    folder = write_array(
        tmp_path / "a.zarr",
        None,
        values,
        chunks=tuple(int(rng.integers(1, extent + 1)) for extent in shape),
        codec=chain,
        zarr_format=zarr_format,
        fill_value=fill,
        endian=str(rng.choice(["little", "big"])),
        order=str(rng.choice(["C", "F"])) if zarr_format == 2 else "C",
    )
    source = read_array(folder)
    chunks = {f"dim_{axis}": int(rng.integers(1, extent + 3)) for axis, extent in enumerate(shape)}
    chunks = {name: extent for name, extent in chunks.items() if rng.random() < 0.7}
    shards = [None, "none", "some"][rng.integers(3)]
    part = {
        f"dim_{axis}": sorted(rng.choice(extent + 1, 2, replace=False).tolist())
        for axis, extent in enumerate(shape)
        if rng.random() < 0.4
    }
    if shards == "some":
        unsharded = rechunk(
            folder, tmp_path / "b.zarr", chunks=chunks, shards="none", index_range=part, dry_run=True
        )
        (plan,) = unsharded.plan.arrays
        shards = {
            name: int(rng.integers(1, 4)) * extent
            for name, extent in zip(plan.dimensions, plan.chunk)
            if rng.random() < 0.7
        }
    codec = str(rng.choice(["keep", "none", "zstd", "zstd:3", "blosc-lz4", "blosc-zstd:1"]))
    memory = int(rng.choice([30_000, 200_000, 10_000_000]))
    options = {
        "chunks": chunks,
        "shards": shards,
        "codec": codec,
        "index_range": part,
        "workers": int(rng.integers(1, 4)),
    }
    try:
        rechunk(folder, tmp_path / "b.zarr", memory=memory, dry_run=True, **options)
    except ValueError as error:
        assert "memory" in str(error)
        memory = 10_000_000
    before = snapshot(folder)
    done = rechunk(folder, tmp_path / "b.zarr", memory=memory, verify=True, **options)
    assert snapshot(folder) == before
    index = tuple(slice(*part.get(f"dim_{axis}", (None, None))) for axis in range(len(shape)))
    assert_same(read_array(tmp_path / "b.zarr"), source[index])
    copied = zarr.open_array(str(tmp_path / "b.zarr"), mode="r")
    (plan,) = done.plan.arrays
    assert (copied.chunks, copied.shards) == (plan.chunk, plan.shard)
    assert copied.metadata.zarr_format == 3
    assert not (tmp_path / "b.zarr.partial").exists() and not (tmp_path / "b.zarr" / journal.NAME).exists()


def test_codec_keep_keeps_the_chain(tmp_path, rng):
    values = rng.normal(size=(8, 6)).astype("float32")
    cases = {
        "transpose-zstd": ["transpose", "bytes", "zstd"],
        "zstd-crc32c": ["bytes", "zstd", "crc32c"],
        "shuffle-zstd": ["bytes", "numcodecs.shuffle", "zstd"],
        "zlib": ["bytes", "numcodecs.zlib"],
        "blosc-zstd": ["bytes", "blosc"],
        "raw": ["bytes"],
    }
    for chain, wanted in cases.items():
        folder = write_array(
            tmp_path / f"{chain}.zarr", None, values, chunks=(2, 3), codec=chain, endian="big"
        )
        rechunk(folder, tmp_path / f"{chain}-copy.zarr", chunks={"dim_0": 4})
        found = json.loads((tmp_path / f"{chain}-copy.zarr" / "zarr.json").read_text())["codecs"]
        assert [codec["name"] for codec in found] == wanted
        (order,) = [codec["configuration"] for codec in found if codec["name"] == "bytes"]
        assert order == {"endian": "big"}
        assert_same(read_array(tmp_path / f"{chain}-copy.zarr"), values)
    rechunk(folder, tmp_path / "other.zarr", codec="blosc-lz4:3")
    found = json.loads((tmp_path / "other.zarr" / "zarr.json").read_text())["codecs"]
    assert found[0]["configuration"] == {"endian": "little"}
    expected = {"cname": "lz4", "clevel": 3, "shuffle": "shuffle", "typesize": 4}
    assert expected.items() <= found[1]["configuration"].items()


def test_values_that_are_like_the_fill_value_keep_their_bits(tmp_path):
    """A chunk of -0.0 or of other NaN is not the fill value, though libraries may leave it out."""
    other_nan = np.array([0x7FC00123], "uint32").view("float32")[0]
    for number, (fill, value) in enumerate([(0.0, -0.0), (np.nan, other_nan)]):
        values = np.full((4, 6), fill, "float32")
        values[2:] = value
        source = zarr.create_array(
            str(tmp_path / f"{number}.zarr"),
            shape=(4, 6),
            chunks=(2, 3),
            dtype="float32",
            fill_value=fill,
            config={"write_empty_chunks": True},
        )
        source[...] = values
        for shards in ("none", {"dim_0": 4}):
            copy = tmp_path / f"{number}-{shards == 'none'}.zarr"
            rechunk(tmp_path / f"{number}.zarr", copy, chunks={"dim_0": 1}, shards=shards)
            assert_same(read_array(copy), values)
        copy = tmp_path / f"{number}-True.zarr"
        assert len(chunk_files(copy / "c")) == 4  # the two rows of nothing are not written


# --- groups ---------------------------------------------------------------------------------------


def test_group_of_format_2_reads_the_same_with_xarray(era, tmp_path):
    import xarray as xr

    before = snapshot(era)
    copy = tmp_path / "copy.zarr"
    rechunk(era, copy, chunks={"time": 1}, shards={"time": 16}, codec="blosc-lz4")
    assert snapshot(era) == before
    for decode in (False, True):
        found = xr.open_zarr(copy, consolidated=True, decode_cf=decode)
        wanted = xr.open_zarr(era, consolidated=True, decode_cf=decode)
        if not decode:  # xarray tells the fill value of numbers from that of coordinates in its own way
            for name in wanted.variables:
                np.testing.assert_array_equal(found[name].values, wanted[name].values)
        else:
            xr.testing.assert_identical(found.load(), wanted.load())
    root = zarr.open_group(str(copy), mode="r")
    assert root.metadata.zarr_format == 3 and root.metadata.consolidated_metadata is not None
    assert (root["t2m"].chunks, root["t2m"].shards) == ((1, 16, 24), (16, 16, 24))
    assert root["t2m"].metadata.dimension_names == ("time", "lat", "lon")
    assert (root["time"].chunks, root["time"].shards) == ((40,), None)
    assert "_ARRAY_DIMENSIONS" not in root["t2m"].attrs


def test_variables_and_ranges_take_their_coordinates_along(era, tmp_path):
    copy = tmp_path / "copy.zarr"
    done = rechunk(
        era, copy, variables="packed", index_range={"time": slice(5, 25), "lat": (-4, None)}, codec="none"
    )
    assert [plan.name for plan in done.plan.arrays] == ["lat", "packed", "time"]
    source, found = zarr.open_group(str(era), mode="r"), zarr.open_group(str(copy), mode="r")
    assert_same(found["packed"][...], source["packed"][5:25, -4:])
    assert_same(found["time"][...], source["time"][5:25])
    assert_same(found["lat"][...], source["lat"][-4:])


def test_labels_select_what_xarray_selects(era, tmp_path):
    """Both ends belong to a range, a day is all of it, and the coordinates come along."""
    import xarray as xr

    labels = {"time": ("2000-01-02", "2000-01-04"), "lat": slice(60.0, -60.0)}
    rechunk(era, tmp_path / "copy.zarr", range=labels, index_range={"lon": (2, -3)}, chunks={"time": 1})
    with xr.open_zarr(tmp_path / "copy.zarr") as found, xr.open_zarr(era) as whole:
        wanted = whole.sel(time=slice("2000-01-02", "2000-01-04"), lat=slice(60.0, -60.0))
        wanted = wanted.isel(lon=slice(2, -3))
        xr.testing.assert_identical(found.load(), wanted.load())
        assert found.sizes["time"] == 12
    options = ["--range", "time=2000-01-02:2000-01-04", "--range", "lat=60.:-60", "--index-range", "lon=2:-3"]
    assert run(era, tmp_path / "command.zarr", *options).exit_code == 0
    assert_same(read_array(tmp_path / "command.zarr", "t2m"), read_array(tmp_path / "copy.zarr", "t2m"))
    for part, text in (
        ({"time": (0, 3)}, "0 is no time.*positions are given by index_range"),
        (
            {"lon": (2, 5)},
            "could mean labels .* or positions .*lon=2.0:5.0, or give positions by index_range",
        ),
        ({"time": "1999"}, "selects nothing|is not there"),
    ):
        with pytest.raises(ValueError, match=text):
            rechunk(era, tmp_path / "none.zarr", range=part)
    assert "--index-range" in run(era, tmp_path / "none.zarr", "--range", "time=0:3").output


def test_groups_in_groups(tmp_path, rng):
    values = rng.integers(0, 99, size=(6, 4)).astype("int32")
    store = tmp_path / "a.zarr"
    write_group(store, zarr_format=3)
    zarr.open_group(str(store / "deep" / "er"), mode="a", zarr_format=3).attrs["level"] = 2
    write_array(store, "deep/er/x", values, chunks=(2, 4), dimension_names=("t", None))
    write_array(store, "y", values[0], chunks=(3,))
    write_array(store, "scalar", np.float64(3).reshape(()), chunks=())
    zarr.open_array(str(store / "scalar"), mode="a")[...] = 3.5
    rechunk(store, tmp_path / "b.zarr", chunks={"t": 3, "dim_1": 1}, verify=True)
    found = zarr.open_group(str(tmp_path / "b.zarr"), mode="r")
    assert found.metadata.consolidated_metadata is None
    assert found["deep/er"].attrs["level"] == 2
    assert found["deep/er/x"].chunks == (3, 1)
    assert found["deep/er/x"].metadata.dimension_names == ("t", None)
    assert_same(found["deep/er/x"][...], values)
    assert_same(found["y"][...], values[0])
    assert found["scalar"][()] == 3.5


def test_reader_reads_the_copy(era, tmp_path):
    copy = tmp_path / "copy.zarr"
    rechunk(era, copy, for_window=2, batch=4)
    (output,) = build(CPU, str(copy / "msl"), window=[2]).run()
    assert_same(np.asarray(output[0]), zarr.open_array(str(era / "msl"), mode="r")[:2])


def test_windows_are_not_of_static_arrays(tmp_path):
    """A reader has a land mask as a whole, and cuts it where the window covers its dimensions."""
    source = tmp_path / "fields.zarr"
    write_group(source)
    grid = ("latitude", "longitude")
    write_array(source, "t", np.zeros((40, 8, 6)), chunks=(4, 8, 6), dimension_names=("time", *grid))
    write_array(source, "mask", np.zeros((8, 6)), chunks=(4, 6), dimension_names=grid)
    whole, cut = (
        {array.name: array.reasons for array in found.plan.arrays}
        for found in (
            rechunk(source, tmp_path / "copy.zarr", for_window=window, dry_run=True)
            for window in (20, (1, 4, 6))
        )
    )
    assert "a sample of 8x6 needs" in whole["mask"][0] and "a sample of 20x8x6 needs" in whole["t"][0]
    assert "a sample of 4x6 needs" in cut["mask"][0]


def test_nothing_in_a_dimension(tmp_path):
    zarr.create_array(str(tmp_path / "a.zarr"), shape=(0, 5), chunks=(2, 5), dtype="float32")
    rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr", stats=True, verify=True)
    assert zarr.open_array(str(tmp_path / "b.zarr"), mode="r").shape == (0, 5)


# --- refusals -------------------------------------------------------------------------------------

REFUSALS = [
    ({"chunks": {"tme": 1}}, "no dimension 'tme'; there are .*time"),
    ({"chunks": {"time": 0}}, "time=0 is no extent"),
    ({"chunks": {"time": 4}, "shards": {"time": 10}}, "no multiple of the chunk's 4; give 8 or 12"),
    ({"shards": "all"}, "neither"),
    ({"codec": "brotli"}, "none of blosc-lz4"),
    ({"codec": "zstd:40"}, "levels of zstd"),
    ({"variables": ["t3m"]}, "no array 't3m'"),
    ({"variables": []}, "none are named"),
    ({"index_range": {"time": slice(0, 10, 2)}}, "step of 2"),
    ({"index_range": {"time": (30, 20)}}, "holds none of the 40"),
    ({"index_range": {"time": "3"}}, "neither a slice"),
    ({"range": {"time": (1, 2, 3)}}, "neither a slice"),
    ({"memory": "much"}, "no number of bytes"),
    ({"memory": "10kB"}, "needs .* of memory"),
    ({"workers": 0}, "1 at least"),
    ({"mask": True}, "stats"),
    ({"stats": "no/such/folder/stats.json"}, "no folder"),
    ({"for_window": 41}, "does not fit"),
    ({"for_window": 0}, "1 or more"),
]


@pytest.mark.parametrize("arguments, text", REFUSALS, ids=lambda value: str(value)[:40])
def test_arguments_that_do_not_fit(era, tmp_path, arguments, text):
    with pytest.raises(ValueError, match=text):
        rechunk(era, tmp_path / "copy.zarr", **arguments)
    assert not list(tmp_path.glob("copy*"))


def test_source_is_never_the_destination(era, tmp_path):
    before = snapshot(era)
    (tmp_path / "link").symlink_to(era)
    for destination in (
        era,
        era / "t2m",
        era / "inside",
        tmp_path,
        tmp_path / "link",
        tmp_path / "link" / "x",
    ):
        with pytest.raises(ValueError, match=r"source itself|inside the other"):
            rechunk(era, destination, overwrite=True)
    with pytest.raises(ValueError, match="inside the source"):
        rechunk(era, tmp_path / "copy.zarr", stats=era / "stats.json")
    with pytest.raises(ValueError, match="does not exist"):
        rechunk(tmp_path / "none", tmp_path / "copy.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no Zarr array or group"):
        rechunk(tmp_path / "empty", tmp_path / "copy.zarr")
    assert snapshot(era) == before


def test_what_is_in_the_way(era, tmp_path):
    copy = tmp_path / "copy.zarr"
    copy.mkdir()
    (copy / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists"):
        rechunk(era, copy)
    with pytest.raises(ValueError, match="no Zarr store"):
        rechunk(era, copy, overwrite=True)
    assert (copy / "thesis.tex").exists()
    other = tmp_path / "other.zarr"
    (tmp_path / "other.zarr.partial").mkdir()
    (tmp_path / "other.zarr.partial" / "notes").write_text("")
    with pytest.raises(ValueError, match="none of ours"):
        rechunk(era, other, overwrite=True)
    store = tmp_path / "store.zarr"
    rechunk(era, store)
    for arguments in ({}, {"resume": True, "codec": "none"}):
        with pytest.raises(ValueError, match="overwrite=True"):
            rechunk(era, store, **arguments)
    rechunk(era, store, chunks={"time": 2}, overwrite=True)
    assert zarr.open_group(str(store), mode="r")["t2m"].chunks[0] == 2


# --- stops ----------------------------------------------------------------------------------------

CHILD = """
    import sys, time
    from zarr_dali._rechunk import array_copy, copying, journal, rechunk, regions
    journal.FLUSH_SECONDS = 0
    regions.REGION_BYTES = 0
    copy = array_copy.ArrayCopy.copy
    def slowly(self, number):
        time.sleep(0.01)
        return copy(self, number)
    array_copy.ArrayCopy.copy = slowly
    rechunk(sys.argv[1], sys.argv[2], chunks={"time": 1}, shards={"time": 2}, codec="zstd", workers=2,
            stats=sys.argv[3], resume=True)
"""


def lines(partial):
    try:
        return (partial / journal.NAME).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def killed_after(count, era, copy, tmp_path, number=signal.SIGKILL):
    """Runs a copy until its journal has so many more lines."""
    partial = copying.partial_of(copy)
    enough = lines(partial) + count
    with start_script(CHILD, era, copy, tmp_path / "stats.json") as child:
        while lines(partial) < enough and child.poll() is None:
            time.sleep(0.002)
        child.send_signal(number)
        _, text = child.communicate()
    assert child.returncode == -number, text


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_killed_twice_and_resumed(era, tmp_path, seed):
    rng = np.random.default_rng(seed)
    copy, partial = tmp_path / "copy.zarr", tmp_path / "copy.zarr.partial"
    for _ in range(2):
        killed_after(int(rng.integers(2, 14)), era, copy, tmp_path)
        assert not copy.exists() and partial.exists()
    with pytest.raises(ValueError, match="resume=True goes on"):
        rechunk(era, copy)
    with pytest.raises(ValueError, match="other arguments"):
        rechunk(era, copy, chunks={"time": 2}, stats=True, resume=True)
    # What a power failure could do on top: half a file of a region that is not noted, half a line.
    lines = journal.parse((partial / journal.NAME).read_bytes())[0]
    noted = {(line[0], line[1]) for line in lines if isinstance(line, list)}
    (store,) = partial.glob("store-*")
    for number in range(20):
        if ("t2m", number) not in noted:
            file = store / "t2m" / "c" / str(number) / "0" / "0"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"half")
    with (partial / journal.NAME).open("ab") as log:
        log.write(b'0123abcd ["t2m",')
    before = snapshot(era)
    arguments = {"chunks": {"time": 1}, "shards": {"time": 2}, "codec": "zstd", "stats": True}
    done = rechunk(era, copy, resume=True, verify=True, **arguments)
    assert snapshot(era) == before
    assert 0 < done.resumed_bytes < done.plan.bytes
    source, found = zarr.open_group(str(era), mode="r"), zarr.open_group(str(copy), mode="r")
    for name in ("t2m", "msl", "packed", "lat", "time"):
        assert_same(found[name][...], source[name][...])
    at_once = rechunk(era, tmp_path / "again.zarr", **arguments)
    assert done.statistics.keys() == at_once.statistics.keys() == {"t2m", "msl", "packed"}
    for name, found in done.statistics.items():
        assert found == pytest.approx(at_once.statistics[name], rel=1e-9)
    assert done.statistics["t2m"]["count"] == 40 * 16 * 24 - 2 * 24


def interrupted(*arguments):
    raise KeyboardInterrupt


def test_region_of_the_array_end_with_half_a_file(tmp_path, rng, monkeypatch):
    """A file that reaches beyond the array is read before it is written, which half of it would not stand."""
    monkeypatch.setattr(regions, "REGION_BYTES", 0)
    values = rng.normal(size=(7, 5)).astype("float32")
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(7, 5))
    copy = tmp_path / "b.zarr"
    for shards in ("none", {"dim_0": 4}):
        arguments = {"chunks": {"dim_0": 2, "dim_1": 2}, "shards": shards, "codec": "zstd", "overwrite": True}
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(publishing, "publish", interrupted)
            rechunk(folder, copy, **arguments)
        lock = Lock(copying.partial_of(copy), copy, journal.holder)
        log = journal.Journal(lock)
        log.forget([key for key in log.done if key != ("", 0)])
        lock.release(None)
        (store,) = lock.folder.glob("store-*")
        for file in chunk_files(store):
            if file.parts[-2:] != ("0", "0"):
                file.write_bytes(b"half")
        rechunk(folder, copy, resume=True, verify=True, **arguments)
        assert_same(read_array(copy), values)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "end of a job"])
def test_stop_says_how_to_go_on(era, tmp_path, number):
    copy = tmp_path / "copy.zarr"
    child = textwrap.dedent(CHILD).split("rechunk(sys.argv[1]")[0]
    # A shell's background job ignores SIGINT, and so would its child.
    child += "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    child += "from zarr_dali._rechunk_cli import rechunk as command\ncommand(sys.argv[1:])"
    options = ["--chunks", "time=1", "--workers", "1"]
    with start_script(child, era, copy, *options) as process:
        while lines(copying.partial_of(copy)) < 5 and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(number)
        _, text = process.communicate()
    assert process.returncode == 130, text
    assert "copy.zarr.partial" in text and "--resume" in text
    result = CliRunner().invoke(command, [str(era), str(copy), *options, "--resume", "--verify"])
    assert result.exit_code == 0, result.output
    assert "verified" in result.output


def test_full_disk_is_explained_and_resumable(era, tmp_path, monkeypatch):
    copy = tmp_path / "copy.zarr"
    write, left = array_copy.ArrayCopy._write, itertools.count()

    def full(self, values, place):
        if next(left) > 12:
            raise OSError(28, "No space left on device")
        write(self, values, place)

    monkeypatch.setattr(regions, "REGION_BYTES", 0)
    arguments = {"chunks": {"time": 1}, "shards": {"time": 2}, "codec": "zstd"}
    with monkeypatch.context() as patch:
        patch.setattr(array_copy.ArrayCopy, "_write", full)
        with pytest.raises(
            RuntimeError, match=r"array .*source: .*No space left.*make room.*resume=True goes on"
        ):
            rechunk(era, copy, **arguments)
    assert not copy.exists()
    done = rechunk(era, copy, resume=True, **arguments)
    assert done.resumed_bytes > 0
    assert_same(read_array(copy, "t2m"), read_array(era, "t2m"))


def test_a_store_is_replaced_only_by_a_whole_copy(era, tmp_path, monkeypatch):
    copy = tmp_path / "copy.zarr"
    rechunk(era, copy)
    before = snapshot(copy)
    damaged = sorted(chunk_files(era / "t2m"))[0]
    damaged.write_bytes(damaged.read_bytes()[:20])
    with pytest.raises(RuntimeError, match=r'array "t2m", time=0:'):
        rechunk(era, copy, chunks={"time": 1}, overwrite=True)
    assert snapshot(copy) == before


# --- verification ---------------------------------------------------------------------------------


def test_verify_finds_what_is_wrong(era, tmp_path, monkeypatch):
    write = array_copy.ArrayCopy._write

    def wrong(self, values, place):
        if self.plan.name == "msl":
            values = values.copy()
            values.flat[-1] += 1
        write(self, values, place)

    monkeypatch.setattr(array_copy.ArrayCopy, "_write", wrong)
    with pytest.raises(RuntimeError, match=r'array "msl".*differs from the source'):
        rechunk(era, tmp_path / "copy.zarr", verify=True)
    assert not (tmp_path / "copy.zarr").exists()
    with pytest.raises(ValueError, match="overwrite=True begins anew"):
        rechunk(era, tmp_path / "copy.zarr")


def test_checksums_are_of_values_and_not_of_chunks(era, tmp_path):
    one = rechunk(era, tmp_path / "one.zarr", verify=True, codec="none", memory="1GB")
    two = rechunk(tmp_path / "one.zarr", tmp_path / "two.zarr", verify=True, codec="zstd")
    assert one.checksums.keys() == {"t2m", "msl", "packed", "lat", "lon", "time", "station"}
    assert one.checksums == two.checksums


# --- statistics -----------------------------------------------------------------------------------


def test_statistics_are_those_of_numpy(era, tmp_path):
    path = tmp_path / "stats.json"
    rechunk(era, tmp_path / "copy.zarr", chunks={"time": 1}, stats=path, index_range={"time": (2, 33)})
    found = json.loads(path.read_text())
    assert found["arrays"] == ["msl", "packed", "t2m"]
    for name, mean, std in zip(found["arrays"], found["mean"], found["std"]):
        values = zarr.open_group(str(era), mode="r")[name][2:33].astype("float64")
        assert mean == pytest.approx(np.nanmean(values), rel=1e-12)
        assert std == pytest.approx(np.nanstd(values), rel=1e-12)
        assert found["statistics"][name]["nan"] == np.isnan(values).sum()


def test_statistics_are_what_the_reader_normalizes_with(era, tmp_path):
    done = rechunk(era, tmp_path / "copy.zarr", stats=True, mask=True)
    found = done.statistics["packed"]
    pipe = build(CPU, str(tmp_path / "copy.zarr" / "packed"), batch_size=40, mask_and_scale=True)
    (output,) = pipe.run()
    values = np.asarray(output.as_tensor()).astype("float64")
    assert found["mean"] == pytest.approx(np.nanmean(values), rel=1e-6)
    assert found["std"] == pytest.approx(np.nanstd(values), abs=1e-6)
    assert (found["min"], found["max"]) == (np.nanmin(values), np.nanmax(values))
    assert (found["masked"], found["nan"]) == (np.isnan(values).sum(), 0)


def test_moments_keep_their_digits(rng):
    """Far from zero, in any order of joining, with values that do not count."""
    values = rng.normal(loc=1e8, scale=1e-2, size=2_000_003)
    values[::1000] = np.nan
    values[5] = np.inf
    rule = _moments.Rule(missing=(values[7],), scale=(-2.0, 1.0))
    parts = [rule.moments(part) for part in np.array_split(values, 13)]
    parts = [_moments.Moments(*json.loads(json.dumps(part.as_list()))) for part in parts]
    counting = values[np.isfinite(values) & (values != values[7])]
    found = rule.result(parts)
    assert found["count"] == counting.size
    assert (found["nan"], found["infinite"]) == (2001, 1)
    assert found["masked"] == np.sum(values == values[7]) > 0
    assert found["mean"] == pytest.approx(1 - 2 * counting.mean(), rel=1e-14)
    assert found["std"] == pytest.approx(2 * counting.std(), rel=1e-6)
    assert (found["min"], found["max"]) == (1 - 2 * counting.max(), 1 - 2 * counting.min())
    assert _moments.Rule().result([_moments.Moments()])["mean"] is None


def test_attributes_that_mask(rng):
    attributes = {"_Unsigned": "true", "_FillValue": -1, "missing_value": [7, 8], "scale_factor": 0.5}
    rule = _moments.Rule.of(attributes, np.dtype("int8"), True)
    found = rule.result([rule.moments(np.array([-1, 7, 8, -2, 1], "int8"))])
    assert (found["count"], found["masked"], found["max"], found["min"]) == (2, 3, 127.0, 0.5)
    encoded = _moments.Rule.of({"_FillValue": "AAAAAAAA+H8="}, np.dtype("float32"), True)
    assert len(encoded.missing) == 1 and np.isnan(encoded.missing[0])
    with pytest.raises(ValueError, match="_FillValue"):
        _moments.Rule.of({"_FillValue": "no number"}, np.dtype("float32"), True)


# --- regions and memory ---------------------------------------------------------------------------


def brute_force_reads(grid, region):
    """Source chunks that each region touches, counted one by one, over how many there are."""
    seen, touched = set(), 0
    for box in regions.each_box(grid.shape, region):
        ranges = [
            range((part.start + start) // chunk, (part.stop - 1 + start) // chunk + 1)
            for part, start, chunk in zip(box, grid.start, grid.source_chunk)
        ]
        chunks = set(itertools.product(*ranges))
        touched += len(chunks)
        seen |= chunks
    return touched / len(seen)


def test_reads_are_counted_right_and_the_cut_keeps_to_its_memory():
    rng = np.random.default_rng(3)
    for _ in range(200):
        dimensions = int(rng.integers(1, 4))
        draw = lambda most: tuple(int(value) for value in rng.integers(1, most, size=dimensions))  # noqa: E731
        grid = regions.Grid(draw(40), draw(9), draw(15), draw(15), 4)
        memory, workers = int(rng.integers(100, 100_000)), int(rng.integers(1, 5))
        cores = int(rng.integers(1, 20))
        found = regions.cut(grid, memory, workers, lambda count, cores=cores: max(1, cores // count))
        if found is None:
            assert grid.memory(grid.unit, 1) > memory
            continue
        assert all(extent % unit == 0 for extent, unit in zip(found.region, grid.unit))
        assert found.memory == grid.memory(found.region, found.decoding)
        assert found.memory * found.workers <= memory
        assert found.workers * found.decoding <= max(cores, found.workers)
        assert found.reads == pytest.approx(brute_force_reads(grid, found.region))
        whole = tuple(-(-extent // unit) * unit for extent, unit in zip(grid.shape, grid.unit))
        if grid.memory(whole, 1) <= memory:
            assert found.reads == pytest.approx(1.0)


def test_many_cores_need_no_more_memory(tmp_path, monkeypatch):
    """Chunks of 197 MB: 16 of them at once do not fit into the usual 2 GB."""
    source = tmp_path / "long.zarr"
    zarr.create_array(str(source), shape=(104, 6, 640, 1280), chunks=(10, 6, 640, 1280), dtype="float32")
    for cores in (1, 2, 16, 128):
        monkeypatch.setattr("zarr_dali._arguments.cores", lambda cores=cores: cores)
        (array,) = rechunk(source, tmp_path / "copy.zarr", for_window=2, batch=16, dry_run=True).plan.arrays
        assert array.cut.workers * array.cut.memory <= 2e9
        assert array.cut.workers * array.cut.decoding == min(cores, 2)
    with pytest.raises(ValueError, match=r"more than 500 MB: give more memory$"):
        rechunk(source, tmp_path / "copy.zarr", for_window=2, memory="500MB", dry_run=True)
    with pytest.raises(ValueError, match=r"more than 1 GB: give more memory or smaller shards$"):
        rechunk(
            source,
            tmp_path / "copy.zarr",
            chunks={"dim_0": 1},
            shards={"dim_0": -1},
            memory="1GB",
            dry_run=True,
        )


def test_so_many_chunks_are_decoded_at_once_as_planned(era, tmp_path, monkeypatch):
    seen = {}
    copy = array_copy.ArrayCopy.copy

    def watched(self, number):
        seen.setdefault(self.plan.name, set()).add(zarr.config.get("async.concurrency"))
        return copy(self, number)

    monkeypatch.setattr(array_copy.ArrayCopy, "copy", watched)
    before = zarr.config.get("async.concurrency")
    done = rechunk(era, tmp_path / "copy.zarr", chunks={"time": 1})
    assert seen == {array.name: {array.cut.decoding} for array in done.plan.arrays}
    assert zarr.config.get("async.concurrency") == before


def test_plan_says_how_often_chunks_are_read(era, tmp_path):
    def plan(**arguments):
        made = rechunk(era, tmp_path / "copy.zarr", variables="t2m", dry_run=True, **arguments).plan
        (array,) = [one for one in made.arrays if one.name == "t2m"]
        return array.cut, str(made)

    cut, text = plan(chunks={"time": 1})
    assert cut.reads == 1 and "each source chunk is read 1.0 times" in text
    cut, text = plan(chunks={"time": -1, "lat": 1}, memory="150kB")
    assert cut.reads > 1.5 and f"is read {cut.reads:.1f} times" in text
    assert "as few as possible with" in text
    cut, _ = plan(chunks={"time": -1, "lat": 1}, memory=cut.memory_for_least)
    assert cut.reads == 1
    assert not list(tmp_path.glob("copy*"))


MEASURED = """
    import resource, sys
    from zarr_dali._rechunk import reading, rechunk
    rechunk(sys.argv[1], sys.argv[2], chunks={"dim_0": 1}, shards={"dim_0": 4}, codec="blosc-lz4", workers=4,
            memory=int(sys.argv[3]), stats=True, verify=True, index_range={"dim_0": (0, int(sys.argv[4]))})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.full
@pytest.mark.parametrize("zarrs", [True, False], ids=["zarrs", "zarr-python"])
def test_memory_stays_under_its_bound(tmp_path, zarrs):
    """150 MB of values with bounds of 20 and 60 MB, beside what a copy of one chunk takes."""
    if zarrs:
        pytest.importorskip("zarrs")
    rng = np.random.default_rng(1)
    values = rng.normal(size=(140, 256, 1024)).astype("float32")
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(2, 256, 1024), codec="zstd")
    child = textwrap.dedent(MEASURED)
    if not zarrs:
        child = child.replace("rechunk(", "reading.zarrs_takes = lambda *of: False\nrechunk(", 1)

    def peak(memory, steps):
        copy = tmp_path / f"{memory}-{steps}.zarr"
        arguments = [sys.executable, "-c", child, folder, copy, str(memory), str(steps)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        return int(done.stdout)

    baseline = peak(20_000_000, 1)
    for memory in (20_000_000, 60_000_000):
        used = peak(memory, 140) - baseline
        assert used < memory, f"{used / 1e6:.0f} MB above a baseline of {baseline / 1e6:.0f} MB"


def test_memory_too_small_for_the_regions_of_before(era, tmp_path):
    copy = tmp_path / "copy.zarr"
    killed_after(3, era, copy, tmp_path)
    arguments = {"chunks": {"time": 1}, "shards": {"time": 2}, "codec": "zstd", "stats": True}
    rechunk(era, copy, resume=True, memory="200kB", workers=8, **arguments)
    assert_same(read_array(copy, "msl"), read_array(era, "msl"))


# --- proposals ------------------------------------------------------------------------------------

PROPOSALS = [
    # window, shuffle, shape, chunk of the source; chunk, sharded chunk
    ((2,), True, (1000, 640, 1280), (10, 640, 1280), (1, 640, 1280), (30, 640, 1280)),
    ((2,), True, (1000, 6, 640, 1280), (10, 6, 640, 1280), (1, 6, 640, 1280), (10, 6, 640, 1280)),
    ((4,), True, (100000, 80, 160), (100, 80, 160), (8, 80, 160), (2400, 80, 160)),
    ((4,), False, (100000, 80, 160), (100, 80, 160), (32, 80, 160), (2400, 80, 160)),
    ((1, 256, 256), True, (5000, 721, 1440), (744, 100, 100), (1, 256, 256), (30, 768, 1536)),
    ((1,), True, (3, 4), (3, 4), (3, 4), None),
    # Of samples of a few bytes neighbours are put together, in all dimensions.
    ((1, 1), True, (3, 20_000_000), (1, 1000), (3, 32768), (3, 10_027_008)),
    ((1, 1), False, (3, 20_000_000), (1, 1000), (3, 131072), (3, 10_092_544)),
    ((1, 8, 8), True, (5000, 721, 1440), (1, 721, 1440), (16, 64, 64), (16, 768, 1472)),
]


@pytest.mark.parametrize("window, shuffle, shape, source, chunk, shard", PROPOSALS, ids=str)
def test_proposals(window, shuffle, shape, source, chunk, shard):
    use = proposal.Use(window, 16, shuffle)
    found = proposal.propose(use, shape, 4, source, 250_000_000)
    assert (found.chunk, found.shard) == (chunk, shard)
    assert 3 <= len(found.reasons) <= 5
    assert "in random order" in found.reasons[1] if shuffle else "in order" in found.reasons[1]
    if shard:
        assert all(outer % inner == 0 for outer, inner in zip(shard, chunk))
        assert math.prod(shard) * 4 <= 250_000_000


STATIC = [
    # window, shape; words
    ((721, 1440), (721, 1440), "static: every sample has all of it, so that a batch touches 4.15 MB"),
    (
        (64, 64),
        (721, 1440),
        "static: every sample has 64x64 of it, whichever step it is of; a batch of 16 uses at most 262 kB",
    ),
    ((3,), (3,), "static: every sample has all of it, so that a batch touches 12 B"),
    (
        (20_000, 20_000),
        (20_000, 20_000),
        "static: every sample has all of it, so that a batch touches 1.6 GB",
    ),
]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("window, shape, words", STATIC, ids=str)
def test_a_static_array_has_no_windows(window, shape, words, shuffle):
    use = proposal.Use(window, 16, shuffle, is_static=True)
    found = proposal.propose(use, shape, 4, shape, 250_000_000)
    assert found.reasons[1] == words
    assert not any(word in reason for word in ("step of", "windows", "order") for reason in found.reasons)


def test_reasons_of_a_store_with_a_static_array(tmp_path):
    store = zarr_dali.example_store(tmp_path / "era5.zarr", steps=4)
    planned = rechunk(store, tmp_path / "copy.zarr", for_window=2, batch=4, dry_run=True).plan
    (mask,) = (array for array in planned.arrays if array.name == "land_mask")
    assert mask.reasons[0].endswith(": a sample of 16x32 needs 1 chunk")
    assert mask.reasons[1].startswith("static: every sample has all of it")
    assert all(
        "windows of 2 steps" in array.reasons[1] for array in planned.arrays if array.name in ("t2m", "t")
    )


def test_what_is_given_goes_before_the_proposal(era, tmp_path):
    made = rechunk(
        era, tmp_path / "copy.zarr", for_window=2, chunks={"time": 5}, codec="zstd", dry_run=True
    ).plan
    (array,) = [one for one in made.arrays if one.name == "t2m"]
    assert array.chunk == (5, 16, 24)
    assert [type(codec).__name__ for codec in array.codecs.compressors] == ["ZstdCodec"]
    assert "goes before the proposal" in array.reasons[-1]


# --- the command ----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_command(era, tmp_path):
    copy = tmp_path / "copy.zarr"
    shown = run(era, copy, "--for-window", 2, "--batch", 16, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "Why" in shown.output and "each source chunk is read" in shown.output
    assert not copy.exists()
    options = ["--chunks", "time=2,lat=all", "--shards", "time=4", "--codec", "blosc-zstd"]
    options += [
        "--variables",
        "t2m,msl",
        "--index-range",
        "time=:20",
        "--stats",
        tmp_path / "s.json",
        "--verify",
    ]
    done = run(era, copy, *options)
    assert done.exit_code == 0, done.output
    assert "verified" in done.output and "Statistics" in done.output
    found = zarr.open_group(str(copy), mode="r")
    assert (found["t2m"].chunks, found["t2m"].shards) == ((2, 16, 24), (4, 16, 24))
    assert_same(found["msl"][...], zarr.open_group(str(era), mode="r")["msl"][:20])
    assert json.loads((tmp_path / "s.json").read_text())["arrays"] == ["msl", "t2m"]
    again = run(era, copy)
    assert again.exit_code == 1 and "--overwrite" in again.output


@pytest.mark.parametrize(
    "option",
    [("--chunks", "time"), ("--chunks", "time=x"), ("--index-range", "time=3"), ("--for-window", "a")],
    ids=str,
)
def test_command_line_that_is_not_understood(era, tmp_path, option):
    result = run(era, tmp_path / "copy.zarr", *option)
    assert result.exit_code == 2 and option[0] in result.output, result.output


def test_without_zarr_python_3(monkeypatch, era, tmp_path):
    monkeypatch.setattr(zarr, "__version__", "2.18.0")
    with pytest.raises(ImportError, match="zarr-python 3"):
        rechunk(era, os.fspath(tmp_path / "copy.zarr"))
