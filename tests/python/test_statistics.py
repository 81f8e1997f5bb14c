"""`zarr_dali.statistics` and the command `zarr-dali statistics`: against xarray, digit for digit."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from forked import start_script
from reading import read_all
from stores import FORMATS, chunk_files, write_array

if 3 not in FORMATS:
    pytest.skip("statistics need zarr-python 3", allow_module_level=True)
import zarr

import references
import zarr_dali
from range_server import serving
from zarr_dali import _moments, _store_coordinates, cli
from zarr_dali._rechunk import journal, regions
from zarr_dali._statistics import computing

xr = pytest.importorskip("xarray")


def by_xarray(path, names, by, select=None, positions=None, **how):
    """The same by xarray, on float64."""
    options = {"consolidated": False, "chunks": None} | how
    datasets = [
        xr.open_zarr(one, **options) for one in ([path] if isinstance(path, (str, os.PathLike)) else path)
    ]
    found = {}
    for name in names:
        arrays = [dataset[name] for dataset in datasets]
        array = arrays[0] if len(arrays) == 1 or "time" not in arrays[0].dims else xr.concat(arrays, "time")
        array = array.sel({dim: label for dim, label in (select or {}).items() if dim in array.dims})
        array = array.isel({dim: part for dim, part in (positions or {}).items() if dim in array.dims})
        array = array.astype("float64")
        over = [dim for dim in array.dims if dim != by]
        finite = array.where(np.isfinite(array))
        found[name] = {
            "mean": finite.mean(over),
            "std": finite.std(over),
            "min": finite.min(over),
            "max": finite.max(over),
            "count": finite.count(over),
            "missing": array.isnull().sum(over),
            "infinite": np.isinf(array).sum(over),
        }
    return found


def assert_same(found, wanted, by, rtol=1e-12):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        its = found[name]
        assert ("dim" in its) == (values["mean"].ndim == 1) and its.get("dim", by) == by
        for key, value in values.items():
            ours = np.array(its[key], dtype="float64")  # None becomes NaN
            scale = float(np.abs(values["max"]).max()) if key in ("mean", "std") else 0.0
            np.testing.assert_allclose(
                ours,
                value.values,
                rtol=rtol,
                atol=rtol * (scale if np.isfinite(scale) else 0),
                err_msg=f"{name} {key}",
            )


@pytest.fixture
def era(tmp_path):
    """Three variables of 40 steps, two of them on 5 levels, and a mask; Zarr v2 as xarray writes it."""
    rng = np.random.default_rng(7)
    dims = ("time", "level", "lat", "lon")
    t = rng.normal(250, 10, (40, 5, 12, 16)).astype("float32")
    t[3, 1, :2] = np.nan
    dataset = xr.Dataset(
        {
            "t": (dims, t + np.arange(5, dtype="float32")[:, None, None]),
            "sp": (("time", "lat", "lon"), rng.normal(1e5, 100, (40, 12, 16)).astype("float32")),
            "land": (("lat", "lon"), rng.random((12, 16)) < 0.3),
            "name": (("lat",), np.array([f"row {i}" for i in range(12)], dtype=object)),
        },
        coords={
            "time": xr.date_range("2010-12-27", periods=40, freq="6h"),
            "level": [50, 500, 700, 850, 1000],
            "lat": np.linspace(90, -90, 12),
        },
    )
    packed = np.where(np.arange(40 * 5 * 12 * 16).reshape(t.shape) % 7, np.round(t), np.nan)
    dataset["packed"] = (dims, packed)
    encoding = {"t": {"chunks": (3, 2, 12, 16)}, "sp": {"chunks": (7, 5, 16)}}
    encoding["packed"] = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -999}
    path = tmp_path / "era.zarr"
    dataset.to_zarr(path, zarr_format=2, encoding=encoding, consolidated=True)
    return path


NUMERIC = ["land", "packed", "sp", "t"]

# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [None, "level", "time", "lat", "lon"])
def test_statistics_are_those_of_xarray(era, by):
    found = zarr_dali.statistics(era, by=by)
    assert_same(found, by_xarray(era, NUMERIC, by), by)
    if by == "level":
        assert found["t"]["labels"] == [50, 500, 700, 850, 1000]
    if by == "time":
        assert found["t"]["labels"][:2] == ["2010-12-27T00:00:00", "2010-12-27T06:00:00"]
    if by == "lon":
        assert "labels" not in found["t"]
    assert all(
        ("dim" in found[name]) == (by in dims)
        for name, dims in [("land", ("lat", "lon")), ("sp", ("time", "lat", "lon"))]
    )


def test_labels_and_positions(era):
    labels = {"time": ("2010-12-30", "2010"), "lat": slice(60.0, -60.0), "level": slice(500, 850)}
    found = zarr_dali.statistics(era, ["t", "sp"], by="level", range=labels, index_range={"lon": (3, -2)})
    select = {"time": slice("2010-12-30", "2010"), "lat": slice(60.0, -60.0), "level": slice(500, 850)}
    assert_same(found, by_xarray(era, ["t", "sp"], "level", select, {"lon": slice(3, -2)}), "level")
    assert found["t"]["labels"] == [500, 700, 850]


@pytest.mark.parametrize("seed", range(40))
def test_any_array_by_any_dimension(tmp_path, seed, monkeypatch):
    """Shapes, chunks, sharding, formats, types, missing values and chunks, parts, memory: drawn at random."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(regions, "REGION_BYTES", int(rng.choice([0, 2000, 64_000_000])))
    monkeypatch.setattr(_moments, "PIECE_ELEMENTS", int(rng.choice([1, 7, 64, 1 << 16])))
    ndim = int(rng.integers(1, 5))
    shape = tuple(int(one) for one in rng.integers(1, 14, size=ndim))
    kind = str(rng.choice(["float32", "float64", "float16", "int16", "uint8", "int8", "bool", "int64"]))
    values = (rng.normal(100, 30, shape)).astype(kind)
    zarr_format = int(rng.choice([2, 3]))
    fill = {"f": np.nan, "b": False}.get(np.dtype(kind).kind, 77)
    attributes = {}
    if np.dtype(kind).kind == "f":
        values[rng.random(shape) < 0.3] = np.nan
        values[rng.random(shape) < 0.02] = np.inf
    elif kind != "bool":
        values[rng.random(shape) < 0.2] = 77
        if zarr_format == 3 and rng.random() < 0.7:
            attributes["_FillValue"] = 77
        if rng.random() < 0.5:
            attributes |= {"scale_factor": -0.25, "add_offset": 12.0}
        if kind == "int8" and rng.random() < 0.5:
            attributes["_Unsigned"] = "true"
    if rng.random() < 0.5:
        values[: shape[0] // 2] = fill
    folder = tmp_path / "a.zarr"
    names = [f"d{axis}" for axis in range(ndim)]
    group = zarr.open_group(str(folder), mode="w", zarr_format=zarr_format)
    chunks = tuple(int(rng.integers(1, extent + 1)) for extent in shape)
    shards = (
        tuple(one * int(rng.integers(1, 4)) for one in chunks)
        if zarr_format == 3 and rng.random() < 0.5
        else None
    )
    named = {"dimension_names": names} if zarr_format == 3 else {}
    array = group.create_array(
        "a", shape=shape, chunks=chunks, shards=shards, dtype=kind, fill_value=fill, **named
    )
    array.attrs.update(attributes | ({"_ARRAY_DIMENSIONS": names} if zarr_format == 2 else {}))
    array[...] = values
    by = str(rng.choice(names)) if rng.random() < 0.8 else None
    part = {
        name: slice(*sorted(rng.choice(extent + 1, 2, replace=False).tolist()))
        for name, extent in zip(names, shape)
        if rng.random() < 0.4
    }
    options = {"workers": int(rng.integers(1, 4)), "memory": int(rng.choice([60_000, 10_000_000]))}
    raw = bool(rng.random() < 0.2)
    found = zarr_dali.statistics(folder, by=by, index_range=part, mask_and_scale=not raw, **options)
    wanted = by_xarray(folder, ["a"], by, positions=part, mask_and_scale=not raw)
    # What xarray unpacks to float32 has its digits only.
    assert_same(found, wanted, by, rtol=1e-6 if "scale_factor" in attributes else 1e-12)


def test_digits_far_from_zero(tmp_path, rng):
    """A mean of 1e8 beside a standard deviation of 0.01, which sums of squares would lose."""
    values = rng.normal(1e8, 1e-2, (200, 3, 50)) * np.array([1.0, -1.0, 3.0])[:, None]
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(7, 2, 50))
    found = zarr_dali.statistics(folder, by="dim_1", workers=2)["a.zarr"]
    np.testing.assert_allclose(found["mean"], values.mean((0, 2)), rtol=1e-15)
    np.testing.assert_allclose(found["std"], values.std((0, 2)), rtol=1e-6)


@pytest.mark.parametrize("by", [None, "level", "time"])
def test_the_same_digits_in_each_run(era, by):
    """Whichever region is finished first."""
    found = [zarr_dali.statistics(era, by=by, workers=3, memory="3MB") for _ in range(3)]
    assert found[0] == found[1] == found[2]


def test_coordinates_of_groups_in_groups(tmp_path):
    """Those of the own group go before those of the groups around it."""
    folder, values = tmp_path / "a.zarr", np.arange(12.0)
    times = xr.Dataset(coords={"time": xr.date_range("2010-12-26", periods=12)})
    times.to_zarr(folder)
    xr.Dataset({"t": ("time", values)}).to_zarr(folder, group="inner", mode="a")
    later = {"time": xr.date_range("2010-12-31", periods=12)}
    xr.Dataset({"t": ("time", values)}, later).to_zarr(folder, group="other/inner", mode="a")
    found = zarr_dali.statistics(folder, range={"time": "2010"})
    assert {name: values["count"] for name, values in found.items()} == {"inner/t": 6, "other/inner/t": 1}


def test_nothing_counts(tmp_path):
    values = np.full((4, 3), np.nan, "float32")
    values[:, 1] = 5
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(2, 3))
    found = zarr_dali.statistics(folder, by="dim_1")["a.zarr"]
    assert found["mean"] == [None, 5.0, None] and found["std"] == [None, 0.0, None]
    assert found["count"] == [0, 4, 0] and found["missing"] == [4, 0, 4]
    result = CliRunner().invoke(cli.main, ["statistics", str(folder), "--by", "dim_1"])
    assert result.exit_code == 0, result.output
    assert "a.zarr, dim_1=0, 2: no value counts" in result.output
    assert "a.zarr, dim_1=1: all values are the same, std is 0" in result.output


def test_times_that_are_none(tmp_path):
    """xarray takes the least number for "not a time", without an attribute that says so."""
    times = np.array(["2001-01-01", "NaT", "2001-01-03"], "datetime64[ns]")
    path = tmp_path / "a.zarr"
    xr.Dataset({"when": ("station", times)}).to_zarr(path, zarr_format=3, consolidated=False)
    stored = zarr.open_array(str(path / "when"), mode="r")[:]
    (found,) = zarr_dali.statistics(path).values()
    assert (found["count"], found["missing"]) == (2, 1) and found["mean"] == stored[[0, 2]].mean()


def test_arrays_without_elements(tmp_path):
    folder = tmp_path / "a.zarr"
    zarr.create_array(str(folder), shape=(0, 3), chunks=(2, 3), dtype="float32")
    assert zarr_dali.statistics(folder)["a.zarr"]["count"] == 0
    assert zarr_dali.statistics(folder, by="dim_1")["a.zarr"]["mean"] == [None] * 3


def test_the_reader_normalizes_with_them(backend, era):
    found = zarr_dali.statistics(era, ["packed"])["packed"]
    options = {"arrays": ["packed"], "mask_and_scale": True, "mean": [found["mean"]], "std": [found["std"]]}
    (samples,) = read_all(backend, era, **options)
    values = np.stack(samples).astype("float64")
    assert abs(np.nanmean(values)) < 1e-5 and abs(np.nanstd(values) - 1) < 1e-5
    assert np.isnan(values).sum() == found["missing"]


@pytest.mark.parametrize("unpacks", [True, False])
def test_a_reader_of_other_values_refuses_them(backend, era, unpacks):
    """Numbers of unpacked values would leave stored ones with a mean of thousands, silently."""
    found = zarr_dali.statistics(era, ["packed", "t"], mask_and_scale=unpacks)
    assert found["packed"]["mask_and_scale"] is unpacks and "mask_and_scale" not in found["t"]
    options = {"arrays": ["packed"], "normalize": json.dumps({"packed": found["packed"]})}
    read_all(backend, era, mask_and_scale=unpacks, **options)
    remedy = "give mask_and_scale=True" if unpacks else "leave mask_and_scale out"
    with pytest.raises(ValueError, match=f'normalize.*"packed".*{remedy}'):
        read_all(backend, era, mask_and_scale=not unpacks, **options)
    wrong = found["packed"] | {"mask_and_scale": 1}
    with pytest.raises(ValueError, match="give true or false"):
        read_all(backend, era, arrays=["packed"], normalize=json.dumps({"packed": wrong}))


def test_a_loader_refuses_labels_of_another_store(era):
    """Of levels in another order, say, whose numbers would be those of other levels."""
    found = zarr_dali.statistics(era, ["t", "sp"], by="level")
    options = {"batch_size": 2, "device": "cpu"}
    zarr_dali.Loader(era, ["t", "sp"], normalize=found, **options)
    labels = found["t"]["labels"]
    rounded = found["t"] | {"labels": [float(np.float32(label)) for label in labels]}
    zarr_dali.Loader(era, ["t"], normalize={"t": rounded}, **options)
    zarr_dali.Loader(era, ["t"], normalize=[found["t"] | {"labels": None}], **options)
    other = found["t"] | {"labels": [*labels[:-1], labels[-1] + 1]}
    message = rf'normalize: the statistics of "t" have none for level={labels[-1]}, only for {labels[0]}, .*'
    for given in ({"t": other}, [other]):
        with pytest.raises(ValueError, match=message):
            zarr_dali.Loader(era, ["t"], normalize=given, **options)
    # Of an array that is not read they may be whatever they are.
    zarr_dali.Loader(era, ["t"], normalize={"t": found["t"], "u": other}, **options)
    short = found["t"] | {"labels": labels[1:]}
    with pytest.raises(ValueError, match=r'"t" have 4 "labels" and 5 numbers in "mean"'):
        zarr_dali.Loader(era, ["t"], normalize=[short], **options)


@pytest.mark.parametrize("statistics_of", ["all", "some", "turned"])
@pytest.mark.parametrize("level", [[850, 500], slice(500, 850), [700], 700, None], ids=str)
@pytest.mark.parametrize("form", ["dictionary", "list", "renamed"])
@pytest.mark.gpu_where(lambda case: case["form"] == "list" and case["statistics_of"] == "some")
def test_statistics_are_chosen_by_label(backend, era, statistics_of, level, form):
    """Each selected level is normalized by its own numbers, whichever levels the statistics have."""
    levels = slice(500, 850) if statistics_of == "some" else slice(None)
    entry = zarr_dali.statistics(era, ["t"], by="level", range={"level": levels})["t"]
    if statistics_of == "turned":
        entry = {key: one[::-1] if isinstance(one, list) else one for key, one in entry.items()}
    # A level that is not read may have what nothing can be normalized by.
    if 50 in entry["labels"] and level is not None:
        entry["std"][entry["labels"].index(50)] = None
    named = {"dictionary": {"t": entry}, "list": [entry], "renamed": {"x": entry}}[form]
    options = {"names": ["x"]} if form == "renamed" else {}
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    select = {"lat": slice(60.0, -60.0)} | ({} if level is None else {"level": level})

    def loader():
        return zarr_dali.Loader(
            era, ["t"], 4, device=device, select=select, normalize=named, dtype="float64", **options
        )

    if statistics_of == "some" and level is None:
        with pytest.raises(ValueError, match=r"have none for level=50, 1000, only for 500, 700, 850; select"):
            loader()
        return
    with xr.open_zarr(era, chunks=None) as opened:
        wanted = opened["t"].sel(lat=select["lat"])
        wanted = (
            wanted if level is None else wanted.sel(level=np.atleast_1d(level) if level == 700 else level)
        )
        numbers = xr.Dataset(
            {key: ("level", np.array(entry[key], float)) for key in ("mean", "std")},
            {"level": entry["labels"]},
        ).sel(level=wanted["level"])
        wanted = ((wanted - numbers["mean"]) / numbers["std"]).transpose(*wanted.dims)
    found = torch.cat([next(iter(batch.values())).cpu() for batch in loader()])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_statistics_of_separate_stores_are_chosen_by_label(tmp_path):
    """Stores with other levels at the same index have no numbers in common there."""
    stores_of = {"a": [850, 500, 300], "b": [850, 500, 200], "c": [500, 850, 300]}
    for name, levels in stores_of.items():
        values = np.random.default_rng(1).normal(levels, 5, (4, 3))
        xr.Dataset({"t": (("time", "level"), values)}, {"level": levels, "time": np.arange(4)}).to_zarr(
            tmp_path / name
        )
    entry = zarr_dali.statistics(tmp_path / "a", by="level")

    def loader(*names, **options):
        paths = [tmp_path / name for name in names]
        return zarr_dali.Loader(paths, ["t"], 16, device="cpu", join="separate", normalize=entry, **options)

    (batch,) = loader("a", "b", select={"level": [500, 850]})
    parts = [xr.open_zarr(tmp_path / name)["t"].sel(level=[500, 850]).values for name in "ab"]
    mean, std = (np.array(entry["t"][key])[[1, 0]] for key in ("mean", "std"))
    np.testing.assert_allclose(batch["t"], (np.concatenate(parts) - mean) / std)
    with pytest.raises(ValueError, match=r"have none for level=200, only for 850, 500, 300"):
        loader("a", "b")
    with pytest.raises(ValueError, match=r"others at index 0: 850 and 500; give each store a reader"):
        loader("a", "c")
    assert len(loader("a", "c", per_store='[{"roi_start": [1]}, null]')) == 1


def test_an_array_by_itself_has_the_labels_of_its_group(era, tmp_path):
    whole = zarr_dali.statistics(era, ["t"], by="level", range={"level": (500, 850), "time": "2010"})["t"]
    for path in (era / "t", [era / "t"]):
        found = zarr_dali.statistics(path, by="level", range={"level": (500, 850), "time": "2010"})
        assert found == {"t": whole} and whole["labels"] == [500, 700, 850]
    zarr_dali.Loader(era / "t", device="cpu", select={"level": [850, 500]}, normalize=found)
    with pytest.raises(ValueError, match=r"range: time=0:3: 0 is no time"):
        zarr_dali.statistics(era / "t", range={"time": (0, 3)})
    with serving(era) as server:
        assert zarr_dali.statistics(f"{server.url}/t", by="level")["t"]["labels"][0] == 50
    # In no group nothing but positions can be meant.
    alone = shutil.copytree(era / "t", tmp_path / "elsewhere" / "t")
    found = zarr_dali.statistics(alone, by="level", range={"level": (1, 4)})
    assert "labels" not in found["t"] and len(found["t"]["mean"]) == 3


def test_coordinates_are_read_once(era, monkeypatch):
    opened = []
    once = _store_coordinates.opened_stores
    monkeypatch.setattr(
        _store_coordinates, "opened_stores", lambda *given: opened.append(given) or once(*given)
    )
    found = zarr_dali.statistics(era, ["t"], by="level")
    zarr_dali.Loader(era, ["t"], device="cpu", window=[2], select={"level": [500]}, normalize=found)
    assert len(opened) == 1
    zarr_dali.Loader(era, ["t"], device="cpu", window=[2], normalize=found)
    assert len(opened) == 2


def test_a_table_keeps_names_and_labels_on_a_narrow_terminal(era, capsys):
    from rich.console import Console

    from zarr_dali._statistics_cli import _table

    found = zarr_dali.statistics(era, ["t", "sp"], by="level")
    Console(width=80, highlight=False).print(_table(found))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    for label in found["t"]["labels"]:
        assert any(line.split()[:2] == ["t", str(label)] for line in lines), label


def test_normalize_takes_them_level_by_level(backend, era, tmp_path):
    """As they are in the file: lists along the dimension, and single numbers of arrays without it."""
    output = tmp_path / "stats.json"
    found = zarr_dali.statistics(era, ["t", "sp"], by="level", output=output)
    (t, sp) = read_all(backend, era, arrays=["t", "sp"], normalize=output.read_text())
    t, sp = np.stack(t).astype("float64"), np.stack(sp).astype("float64")
    np.testing.assert_allclose(np.nanmean(t, (0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(np.nanstd(t, (0, 2, 3)), 1, atol=1e-5)
    assert abs(sp.mean()) < 1e-3 and abs(sp.std() - 1) < 1e-4
    assert len(found["t"]["mean"]) == 5 and "dim" not in found["sp"]


# --- joined stores --------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [None, "level", "time"])
def test_joined_stores(tmp_path, rng, by):
    """Other chunks, and other scales, in each; a range that leaves the first one out."""
    paths = []
    for number, steps in enumerate((6, 9, 4)):
        values = np.round(rng.normal(250, 10, (steps, 3, 8)))
        dataset = xr.Dataset(
            {"t": (("time", "level", "x"), values), "mask": (("x",), np.arange(8.0) + number)},
            coords={"time": xr.date_range(f"201{number}-01-01", periods=steps, freq="D"), "level": [1, 2, 3]},
        )
        packed = {
            "dtype": "int16",
            "scale_factor": 0.5 + number,
            "add_offset": 100.0 * number,
            "_FillValue": -1,
        }
        paths.append(tmp_path / f"201{number}.zarr")
        dataset.to_zarr(paths[-1], encoding={"t": packed | {"chunks": (2 + number, 2, 8)}}, zarr_format=2)
    for select in ({}, {"time": slice("2011-01-03", "2012-01-02")}):
        found = zarr_dali.statistics(str(tmp_path / "201?.zarr"), by=by, range=select)
        assert_same(found, by_xarray(paths, ["mask", "t"], by, select), by, rtol=1e-6)
    positions = {"time": slice(4, 8)}
    found = zarr_dali.statistics(paths, ["t"], by=by, index_range=positions)
    assert_same(found, by_xarray(paths, ["t"], by, positions=positions), by, rtol=1e-6)
    xr.Dataset({"t": (("time", "level", "x"), values[:, :2])}).to_zarr(tmp_path / "2013.zarr")
    with pytest.raises(ValueError, match=r"cannot be joined along time.*'level': 3.*'level': 2"):
        zarr_dali.statistics(str(tmp_path / "201?.zarr"), ["t"])


# --- other kinds of stores ------------------------------------------------------------------------


def test_stores_of_all_kinds(era, tmp_path):
    names = ["t", "packed"]
    wanted = zarr_dali.statistics(era, names, by="level", range={"time": "2010"})
    with zipfile.ZipFile(tmp_path / "era.zip", "w") as file:
        for one in sorted(era.rglob("*")):
            if one.is_file():
                file.write(one, one.relative_to(era))
    (tmp_path / "bucket").mkdir()
    era.rename(tmp_path / "bucket" / "era.zarr")
    with serving(tmp_path) as server:
        options = {"endpoint": server.url, "anon": True, "allow_http": True}
        for path, given in (
            (tmp_path / "era.zip", None),
            (f"{server.url}/bucket/era.zarr", None),
            ("s3://bucket/era.zarr", options | {"region": "us-east-1"}),
            (f"{server.url}/era.zip", None),
        ):
            found = zarr_dali.statistics(
                path, names, by="level", range={"time": "2010"}, storage_options=given
            )
            assert found == wanted, path
        output = tmp_path / "stats.json"
        arguments = [f"{server.url}/bucket/era.zarr", "--arrays", "t", "--arrays", "packed", "--by", "level"]
        arguments += ["--range", "time=2010", "--storage-options", '{"allow_http": true}', "-o", str(output)]
        result = CliRunner().invoke(cli.main, ["statistics", *arguments])
        assert result.exit_code == 0, result.output
        assert json.loads(output.read_text()) == wanted


def test_arrays_of_a_web_server_are_named(tmp_path):
    """Which has no listing."""
    folder = tmp_path / "a.zarr"
    values = np.arange(60.0).reshape(6, 10)
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": xr.date_range("2010-12-30", periods=6)})
    dataset.to_zarr(folder, zarr_format=3, consolidated=False)
    with serving(tmp_path) as server:
        url, options = f"{server.url}/a.zarr", {"allow_http": True}
        found = zarr_dali.statistics(url, "t", range={"time": "2011"}, storage_options=options)
        assert found["t"]["mean"] == values[2:].mean() and found["t"]["count"] == 40
        with pytest.raises(ValueError, match=r"cannot be listed.* or name them in `arrays`"):
            zarr_dali.statistics(url, storage_options=options)


def test_objects_that_stand_for_a_store(era):
    wanted = zarr_dali.statistics(era, ["t", "sp"])
    group = zarr.open_group(str(era), mode="r")
    dataset = xr.open_zarr(era)
    assert zarr_dali.statistics(group, ["t", "sp"]) == zarr_dali.statistics(dataset[["t", "sp"]]) == wanted
    assert zarr_dali.statistics(dataset, "sp") == {"sp": wanted["sp"]}
    assert zarr_dali.statistics(group["sp"]) == {"sp": wanted["sp"]}


def test_references(tmp_path, rng):
    data = rng.normal(size=(20, 6, 8)).astype("float32")
    document = references.kerchunk_json(
        references.hdf5(tmp_path / "a.h5", data, data[:, :, 0]), tmp_path / "a.json"
    )
    names = sorted(zarr.open_group(zarr_dali.open_store(document), mode="r").array_keys())
    found = zarr_dali.statistics(document)
    assert found and set(found) <= set(names)
    assert any(
        values["mean"] == pytest.approx(data.mean(dtype="float64"), rel=1e-12) for values in found.values()
    )


def test_icechunk(tmp_path, rng):
    icechunk = pytest.importorskip("icechunk", reason="icechunk needs zarr-python 3")
    data = rng.normal(size=(20, 6, 8)).astype("float32")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("a", data=data, chunks=(4, 6, 8))
    session.commit("data")
    found = zarr_dali.statistics(tmp_path / "repo", by="dim_1")["a"]
    np.testing.assert_allclose(found["mean"], data.mean((0, 2), dtype="float64"), rtol=1e-12)


# --- stops ----------------------------------------------------------------------------------------

CHILD = """
    import sys, time
    import zarr_dali
    from zarr_dali import cli
    from zarr_dali._rechunk import journal, reading, regions
    journal.FLUSH_SECONDS = 0
    regions.REGION_BYTES = 0
    read = reading.SourceArray.read
    def slowly(self, place):
        time.sleep(0.02)
        return read(self, place)
    reading.SourceArray.read = slowly
    cli.main(["statistics", *sys.argv[1:]])
"""


def stopped_after(count, arguments, output, number):
    """Runs the command until its journal has so many more lines; its exit status and what it said."""
    path = computing.partial_of(output) / journal.NAME

    def lines():
        return path.read_bytes().count(b"\n") if path.exists() else 0

    enough = lines() + count
    with start_script(CHILD, *arguments) as child:
        while lines() < enough and child.poll() is None:
            time.sleep(0.002)
        child.send_signal(number)
        _, text = child.communicate()
    return child.returncode, text


def test_killed_stopped_and_resumed(era, tmp_path, monkeypatch):
    monkeypatch.setattr(regions, "REGION_BYTES", 0)
    output = tmp_path / "stats.json"
    arguments = [era, "--by", "level", "--workers", 2, "--memory", "1MB", "-o", output]
    status, text = stopped_after(8, arguments, output, signal.SIGKILL)
    assert status == -signal.SIGKILL, text
    status, text = stopped_after(5, [*arguments, "--resume"], output, signal.SIGTERM)
    assert status == 130 and "stats.json.partial" in text and "--resume" in text
    assert not output.exists()
    options = {"by": "level", "output": output}
    with pytest.raises(ValueError, match="resume=True goes on, overwrite=True begins anew"):
        zarr_dali.statistics(era, **options)
    with pytest.raises(ValueError, match="begun with other arguments"):
        zarr_dali.statistics(era, by="lat", output=output, resume=True)
    # A chunk that an earlier run has read changes: the largest value is now there.
    array = zarr.open_group(str(era), mode="r+")["t"]
    array[0, 0, 0, 0] = 5000
    ticks = []
    found = zarr_dali.statistics(era, resume=True, progress=lambda *tick: ticks.append(tick), **options)
    assert ticks[0][0] == "reading" and 0 < ticks[0][1] < ticks[0][2] == ticks[-1][1]
    assert found["t"]["max"][0] == 5000
    assert found == zarr_dali.statistics(era, by="level", memory="1MB") == json.loads(output.read_text())
    assert not computing.partial_of(output).exists()
    with pytest.raises(ValueError, match="exists; choose another name, or overwrite=True"):
        zarr_dali.statistics(era, **options)
    zarr_dali.statistics(era, ["sp"], output=output, overwrite=True)
    assert json.loads(output.read_text()).keys() == {"sp"}


def test_one_run_at_a_time(era, tmp_path):
    output = tmp_path / "stats.json"

    def second(what, done, total):
        with pytest.raises(ValueError, match=f"another process is writing it \\(process {os.getpid()}"):
            zarr_dali.statistics(era, output=output)

    zarr_dali.statistics(era, output=output, progress=second)
    assert output.exists()


def test_a_damaged_chunk_is_named(era, tmp_path):
    damaged = sorted(chunk_files(era / "t"))[0]
    damaged.write_bytes(damaged.read_bytes()[:20])
    with pytest.raises(
        RuntimeError, match=r'era\.zarr: array "t", time=0:3, level=0:5, .*resume=True goes on'
    ):
        zarr_dali.statistics(era, output=tmp_path / "stats.json")
    with pytest.raises(RuntimeError, match=r'array "t", time=0:3') as caught:
        zarr_dali.statistics(era)
    assert "resume" not in str(caught.value)


@pytest.mark.alone
def test_memory_stays_under_its_bound(tmp_path):
    """80 MB of values with a bound of 20 MB, beside what a first chunk takes."""
    values = np.random.default_rng(1).normal(size=(80, 256, 1024)).astype("float32")
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(2, 256, 1024), codec="zstd")
    child = (
        "import resource, sys, zarr_dali\n"
        "zarr_dali.statistics(sys.argv[1], by='dim_1', memory=20_000_000, workers=4,"
        " index_range={'dim_0': (0, int(sys.argv[2]))})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )

    def peak(steps):
        arguments = [sys.executable, "-c", child, str(folder), str(steps)]
        return int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)

    assert peak(80) - peak(1) < 20_000_000


# --- what does not fit ----------------------------------------------------------------------------

REFUSALS = [
    ({"arrays": ["u"]}, "there is no array 'u' in"),
    ({"arrays": []}, "none are named"),
    ({"arrays": ["name"]}, "'name' in .* of which there is no mean"),
    ({"by": "levels"}, "by: the arrays have no dimension 'levels', only"),
    ({"range": {"day": "2010"}}, "no dimension 'day'"),
    ({"range": {"time": (0, 10)}}, "positions are given by index_range"),
    ({"range": {"time": "2010"}, "index_range": {"time": (0, 1)}}, "both say what is meant of time"),
    ({"memory": "1kB"}, "one chunk of .* needs .* of memory"),
    ({"workers": 0}, "1 at least"),
    ({"resume": True}, "`output`, which names no file"),
    ({"output": "no/such/folder/stats.json"}, "no folder"),
]


@pytest.mark.parametrize("arguments, text", REFUSALS, ids=lambda value: str(value)[:40])
def test_arguments_that_do_not_fit(era, arguments, text):
    with pytest.raises(ValueError, match=text):
        zarr_dali.statistics(era, **arguments)


def test_outputs_that_do_not_fit(era, tmp_path):
    with pytest.raises(ValueError, match="inside the store"):
        zarr_dali.statistics(era, output=era / "stats.json")
    with pytest.raises(ValueError, match="is a folder"):
        zarr_dali.statistics(era, output=tmp_path)
    with pytest.raises(ValueError, match="leave `arrays` out"):
        zarr_dali.statistics(era / "t", ["t"])


# --- the command ----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(cli.main, ["statistics", *map(str, arguments)])


def test_command(era, tmp_path):
    output = tmp_path / "stats.json"
    shown = run(
        era, "--arrays", "t,sp", "--arrays", "land", "--by", "level", "--range", "time=2010", "-o", output
    )
    assert shown.exit_code == 0, shown.output
    assert "stats.json: 3 arrays" in shown.output and "850" in shown.output
    found = json.loads(output.read_text())
    assert found == zarr_dali.statistics(era, ["t", "sp", "land"], by="level", range={"time": "2010"})
    assert found["t"]["dim"] == "level" and len(found["t"]["mean"]) == len(found["t"]["std"]) == 5
    printed = run(era, "--arrays", "t", "--index-range", "time=0:4", "--index-range", "level=:2", "--json")
    positions = {"time": (0, 4), "level": (0, 2)}
    assert json.loads(printed.stdout) == zarr_dali.statistics(era, ["t"], index_range=positions)
    again = run(era, "-o", output)
    assert again.exit_code == 1 and "--overwrite" in again.output
    either = run(era, "--range", "time=0:3")
    assert either.exit_code == 1 and "--index-range" in either.output and "--range" in either.output
    twice = run(era, "--range", "time=2010", "--range", "time=2011")
    assert twice.exit_code == 2 and "time is given twice" in twice.output
    raw = json.loads(run(era, "--arrays", "packed", "--raw", "--json").stdout)["packed"]
    stored = zarr.open_group(str(era), mode="r")["packed"][...]
    assert raw["mean"] == pytest.approx(stored.mean(dtype="float64"), rel=1e-12) and raw["missing"] == 0
    assert math.isclose(raw["std"], stored.std(dtype="float64"), rel_tol=1e-12)
