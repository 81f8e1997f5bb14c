"""Normalization by channel, `normalize`, against NumPy: random stores, windows and numbers."""

import json
import re

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from nvidia.dali import types

import stores
import zarr_dali
from naive import Sampling
from reading import build, read_all
from test_values import assert_same, cast, normalized

TIME, LEVEL, LAT, LON = "time", "level", "lat", "lon"
SIZES = {TIME: 7, LEVEL: 5, LAT: 6, LON: 8}
DTYPES = ("float32", "float32", "float16", "float64", "int16", "int32", "uint8", "bool")
CODECS = ("zstd", "raw", "gzip", "transpose-zstd", "sharded-end-zstd")


def world(rng, folder, codec):
    """A group with fields of four, three and two dimensions, of which some chunks are missing."""
    stores.write_group(folder, 3)
    for name, dimensions in (("t", (TIME, LEVEL, LAT, LON)), ("s", (TIME, LAT, LON)), ("mask", (LAT, LON))):
        shape = tuple(SIZES[dimension] for dimension in dimensions)
        chunks = tuple(int(rng.integers(1, extent + 2)) for extent in shape)
        dtype = str(rng.choice(DTYPES))
        values = rng.integers(-100, 100, shape).astype(dtype)
        fill = values.flat[0]
        values[tuple(slice(0, extent // 2 + 1) for extent in shape)] = fill
        options = {"shards": tuple(2 * extent for extent in chunks)} if "sharded" in codec else {}
        stores.write_array(
            folder,
            name,
            values,
            chunks=chunks,
            codec=codec,
            fill_value=fill,
            dimension_names=dimensions,
            **options,
        )
        yield name, dimensions, values


def sampling_of(rng):
    """A way to take samples, and the dimensions of t that have one window only."""
    choice = int(rng.integers(6))
    if choice == 0:
        return Sampling(), (LEVEL, LAT, LON)
    if choice == 1:
        return Sampling(window=(int(rng.integers(1, 4)),)), (LEVEL, LAT, LON)
    if choice == 2:
        return Sampling(offsets=(2, 0, 1), stride=(2,)), (LEVEL, LAT, LON)
    if choice == 3:
        return Sampling(window=(2,), roi_start=(1, 1, 2, 3), roi_end=(6, 4, 6, 7)), (LEVEL, LAT, LON)
    if choice == 4:
        return Sampling(window=(2, 5)), (LEVEL, LAT, LON)
    return Sampling(window=(1, 2), stride=(1, 1)), (LAT, LON)


def entry_of(rng, dimensions, whole):
    """What an array is normalized by, and the same as arrays that go with all of its values."""
    if rng.random() < 0.15:
        return None, None
    along = [dimension for dimension in dimensions if dimension in whole]
    dimension = str(rng.choice(along)) if along and rng.random() < 0.85 else None
    entry, numbers = {}, []
    for key in ("mean", "std"):
        several = dimension is not None and (key == "mean" or rng.random() < 0.7)
        given = rng.normal(3, 2, SIZES[dimension] if several else ())
        entry[key] = given.tolist()
        shape = [SIZES[each] if several and each == dimension else 1 for each in dimensions]
        numbers.append(given.reshape(shape))
    if dimension is not None:
        entry["dim"] = dimension
    return entry, numbers


def by_numpy(values, numbers):
    if numbers is None:
        return values
    single = values.dtype.kind == "b" or values.dtype.itemsize <= (4 if values.dtype.kind == "f" else 2)
    compute = np.float32 if single else np.float64
    mean, std = (number.astype(compute) for number in numbers)
    return (values.astype(compute) - mean) / std


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.gpu_where(lambda case: case["seed"] < 8)
def test_channels_have_numbers_of_their_own(backend, tmp_path, seed):
    """Each value is normalized by the numbers of its index along a dimension, wherever windows, regions and
    chunks lie, and where chunks are missing."""
    rng = np.random.default_rng(seed)
    fields = list(world(rng, tmp_path, str(rng.choice(CODECS))))
    sampling, whole = sampling_of(rng)
    if (sampling.window and len(sampling.window) > 1) or sampling.roi_start:
        fields = [field for field in fields if field[0] == "t"]
    normalize, expected = {"unread": {"mean": 0, "std": 1}}, {}
    for name, dimensions, values in fields:
        entry, numbers = entry_of(rng, dimensions, whole)
        normalize[name] = entry
        expected[name] = by_numpy(values, numbers)
    chosen = {} if rng.random() < 0.5 else {"dtype": types.FLOAT16}
    starts = sampling.samples(tuple(SIZES.values()))
    outputs = read_all(
        backend,
        str(tmp_path),
        arrays=list(expected),
        batch_size=3,
        normalize=json.dumps(normalize),
        **chosen,
        **sampling.arguments(),
    )
    for (name, values), samples in zip(expected.items(), outputs):
        if chosen:
            values = cast(values, "float16")
        assert len(samples) == len(starts)
        for sample, start in zip(samples, starts):
            wanted = values if name == "mask" else sampling.values(values, start)
            assert_same(sample, wanted, f"{name} {start} {normalize[name]}")


def test_decoded_stacked_and_joined(backend, tmp_path, rng):
    """By channel behind CF decoding and fixedscaleoffset, of stacked arrays of two stores, and cast."""
    numbers = [(np.linspace(-1, 1, 3), np.linspace(1, 2, 3)), (np.array(4.0), np.linspace(3, 5, 3))]
    wholes = {"a": [], "b": []}
    for part in range(2):
        group = zarr.open_group(tmp_path / f"{part}.zarr", mode="w", zarr_format=2)
        for name in wholes:
            packed = rng.integers(0, 200, (4, 3, 5)).astype("uint8")
            codec = numcodecs.FixedScaleOffset(offset=10, scale=4, dtype="f4", astype="u1")
            array = group.create_array(
                name,
                shape=packed.shape,
                chunks=(2, 2, 4),
                dtype="f4",
                filters=[codec],
                compressors=None,
                fill_value=10.0,
                attributes={"add_offset": 2.0, "_ARRAY_DIMENSIONS": ["x", "y", "z"]},
            )
            array[2:] = (packed / 4 + 10).astype("f4")[2:]
            raw = array[:]
            wholes[name].append(np.where(raw == np.float32(10), np.nan, raw.astype("f4") + np.float32(2)))
    expected = []
    for (mean, std), parts in zip(numbers, wholes.values()):
        values = np.concatenate(parts).astype("f4")
        shaped = [np.broadcast_to(number, 3).reshape(1, 3, 1) for number in (mean, std)]
        expected.append(cast(by_numpy(values, shaped), "float16"))
    entries = [{"mean": mean.tolist(), "std": std.tolist()} for mean, std in numbers]
    (samples,) = read_all(
        backend,
        [str(tmp_path / "0.zarr"), str(tmp_path / "1.zarr")],
        arrays=["a", "b"],
        stack=True,
        mask_and_scale=True,
        normalize=json.dumps(entries),
        dtype=types.FLOAT16,
    )
    assert_same(np.stack(samples), np.stack(expected, axis=1))


def test_one_number_for_an_array_is_what_mean_and_std_are(backend, tmp_path, rng):
    values = rng.normal(280, 20, (6, 4)).astype("float32")
    stores.write_array(tmp_path, "t", values, chunks=(2, 4))
    (plain,) = read_all(backend, str(tmp_path), arrays=["t"], mean=280.5, std=2.0)
    (named,) = read_all(backend, str(tmp_path), arrays=["t"], normalize='{"/t": {"mean": 280.5, "std": 2}}')
    (itself,) = read_all(backend, str(tmp_path / "t"), normalize='{"t": {"mean": 280.5, "std": 2}}')
    assert_same(np.stack(named), np.stack(plain))
    assert_same(np.stack(itself), normalized(values, 280.5, 2.0))


@pytest.fixture
def levels(tmp_path, rng):
    values = rng.normal(250, 20, (6, 3, 4)).astype("float32")
    stores.write_array(tmp_path / "w.zarr", "t", values, chunks=(2, 2, 4), dimension_names=(TIME, LEVEL, LAT))
    stores.write_array(tmp_path / "w.zarr", "s", values[:, 0], chunks=(2, 4), dimension_names=(TIME, LAT))
    return tmp_path / "w.zarr", values


MEANS, STDS = [220.0, 250.0, 280.0], [10.0, 20.0, 30.0]


@pytest.mark.gpu_where(lambda case: case["form"] == "lists")
@pytest.mark.parametrize("form", ["lists", "tensors", "dictionary", "file", "text"])
def test_the_loader_takes_numbers_as_people_have_them(backend, levels, tmp_path, form):
    path, values = levels
    entries = {"t": {"dim": LEVEL, "mean": np.array(MEANS), "std": STDS}, "s": {"mean": 280.0, "std": 1.0}}
    if form == "lists":
        given = {"mean": [MEANS, 280.0], "std": [STDS, 1]}
    elif form == "tensors":
        given = {"mean": [torch.tensor(MEANS), np.float32(280)], "std": [np.array(STDS), 1.0]}
    elif form == "dictionary":
        given = {"normalize": entries}
    else:
        entries["t"]["mean"] = MEANS
        given = {"normalize": json.dumps(entries)}
        if form == "file":
            (tmp_path / "stats.json").write_text(given["normalize"])
            given = {"normalize": tmp_path / "stats.json"}
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    with zarr_dali.Loader(str(path), ["t", "s"], 6, device=device, **given) as loader:
        (batch,) = loader
    mean, std = (np.array(numbers, "float32").reshape(1, 3, 1) for numbers in (MEANS, STDS))
    np.testing.assert_array_equal(batch["t"].cpu().numpy(), (values - mean) / std)
    np.testing.assert_array_equal(batch["s"].cpu().numpy(), values[:, 0] - np.float32(280))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ("{t: 1}", "no JSON"),
        ("3", "no object"),
        ('[{"mean": 1, "std": 1}]', r"1 entries for 2 array\(s\)"),
        ('{"t": 3}', '"t" it has 3; give an object'),
        ('{"x": {"mean": 1, "std": 1}, "s": null}', '"x", which is none of the arrays, and not "t"'),
        ('{"t": {"mean": 1}}', '"t" it has no "std"'),
        ('{"t": {"mean": [1, 2, 3], "std": [1, 0, 1]}}', r'"std" is 0 at index 1; .* 1 where nothing'),
        ('{"t": {"mean": [1, 2, 3], "std": [1, NaN, 1]}}', '"std" is "NaN" at index 1'),
        ('{"t": {"mean": [1, 2, 3], "std": [1, 1, 1e-60]}}', '"std" is 1e-60 at index 2'),
        ('{"t": {"mean": "a", "std": 1}}', '"mean" is "a"'),
        ('{"t": {"mean": [1, 2], "std": [1, 2, 3]}}', "2 means and 3 standard deviations"),
        ('{"t": {"mean": [1, 2], "std": 1}}', 'lists of 2 numbers, but its dimension "level" has 3 indices'),
        ('{"t": {"dim": "height", "mean": [1, 2], "std": 1}}', 'no dimension "height", only "time", "level"'),
        ('{"t": {"dim": "time", "mean": [1, 2], "std": 1}}', 'windows along its dimension "time"'),
        ('{"t": {"dim": "level", "mean": 1, "std": 1}}', "one mean and one standard deviation"),
        ('{"t": {"dim": 1, "mean": [1, 2], "std": 1}}', '"dim": 1; give a name'),
    ],
)
def test_what_cannot_be_used_is_refused(backend, levels, normalize, message):
    with pytest.raises(ValueError, match=f"argument `normalize`.*{message}"):
        build(backend, str(levels[0]), arrays=["t", "s"], normalize=normalize)


@pytest.mark.gpu_where(False)
def test_what_does_not_go_together_is_refused(backend, levels, tmp_path):
    path = str(levels[0])
    with pytest.raises(ValueError, match="it says what `mean` and `std` say"):
        build(backend, path, arrays=["s"], mean=1.0, normalize='{"s": {"mean": 1, "std": 1}}')
    with pytest.raises(ValueError, match="no dimension behind those of the window"):
        build(backend, path, arrays=["s"], window=[2, 4], normalize='{"s": {"mean": [1, 2], "std": 1}}')
    with pytest.raises(ValueError, match="it says what mean and std say"):
        zarr_dali.Loader(path, ["t"], device="cpu", mean=[MEANS], normalize={"t": {"mean": 1, "std": 1}})
    with pytest.raises(ValueError, match=r"mean: it has 3 entries for 2 array\(s\)"):
        zarr_dali.Loader(path, ["t", "s"], device="cpu", mean=[MEANS, 2, 3])
    with pytest.raises(ValueError, match=r"std: it has 3 entries for 1 array\(s\); .* as in std="):
        zarr_dali.Loader(path, ["t"], device="cpu", std=torch.tensor(STDS))
    with pytest.raises(ValueError, match=re.escape("no statistics can be read from 'nowhere.json'")):
        zarr_dali.Loader(path, ["t"], device="cpu", normalize="nowhere.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"t": {"mean": [1')
    message = r"read from '.*broken.json' \(.*line 1 column 18.*`zarr-dali statistics -o FILE`"
    with pytest.raises(ValueError, match=message):
        zarr_dali.Loader(path, ["t"], device="cpu", normalize=broken)
    with pytest.raises(ValueError, match=r"^argument `normalize`: it is no JSON \(.* line 1 column 17\)"):
        zarr_dali.Loader(path, ["t"], device="cpu", normalize=broken.read_text())
    with pytest.raises(ValueError, match="it holds a object, which JSON does not have"):
        zarr_dali.Loader(path, ["t"], device="cpu", normalize={"t": {"mean": object(), "std": 1}})
    stores.write_array(tmp_path, "c", np.ones((4, 3), "complex64"), chunks=(2, 3))
    with pytest.raises(ValueError, match=r"`normalize`.*complex numbers cannot be normalized"):
        build(backend, str(tmp_path), arrays=["c"], normalize='{"c": {"mean": 1, "std": 1}}')


@pytest.mark.gpu_where(False)
def test_info_takes_the_numbers_of_each_array(backend, levels):
    entries = {"t": {"dim": LEVEL, "mean": MEANS, "std": STDS}}
    report = zarr_dali.info(levels[0], ["t", "s"], device="cpu", normalize=entries)
    assert report.problem is None
    assert [array.problem for array in report.arrays] == [None, None]
    wrong = zarr_dali.info(levels[0], device="cpu", normalize={"t": {"mean": [1, 2], "std": 1}})
    problems = {array.name: array.problem for array in wrong.arrays}
    assert problems["s"] is None and "lists of 2 numbers" in problems["t"]
