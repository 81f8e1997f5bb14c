"""`select` for each array by name and value: what a reader yields is `.isel` and `.sel` of xarray.

Indices in any order, levels of arrays with more dimensions than others, static arrays, and longitudes across
the end of their coordinate.
"""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import zarr_dali
from naive import Sampling
from reading import CPU, build, read_all
from stores import write_array, write_group
from zarr_dali import _pieces

TIME, LEVEL, LAT, LON = "time", "level", "latitude", "longitude"
SIZES = {TIME: 9, LEVEL: 6, LAT: 7, LON: 12}
LEVELS = np.array([1000, 925, 850, 700, 500, 300])
LATITUDES = np.linspace(90, -90, 7)
LONGITUDES = np.arange(0, 360, 30)
FIELDS = {
    "q": (TIME, LEVEL, LAT, LON),
    "t": (TIME, LAT, LON),
    "mask": (LAT, LON),
    "orography": (LEVEL, LON),
}


def write_world(path, rng, longitudes=LONGITUDES):
    write_group(path, 3)
    for name, dimensions in FIELDS.items():
        shape = tuple(SIZES[dimension] for dimension in dimensions)
        chunks = tuple(int(rng.integers(1, extent + 1)) for extent in shape)
        values = rng.normal(size=shape).astype("float32")
        codec = str(rng.choice(["zstd", "raw", "sharded-end-zstd", "transpose-zstd"]))
        write_array(path, name, values, chunks=chunks, codec=codec, dimension_names=dimensions)
    for name, values in ((LEVEL, LEVELS), (LAT, LATITUDES), (LON, longitudes)):
        write_array(path, name, values, chunks=values.shape, dimension_names=(name,))
    return path


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Stores of the same shapes, with chunks and codecs of their own."""
    folder = tmp_path_factory.mktemp("worlds")
    return [write_world(folder / f"{seed}.zarr", np.random.default_rng(seed)) for seed in range(4)]


@pytest.fixture
def world(worlds):
    return worlds[0]


def dataset(path):
    return xr.open_zarr(path, chunks=None, consolidated=False)


def indices_of(rng, extent):
    """Indices in the order of a sample, and the same as the reader takes them."""
    choice = int(rng.integers(5))
    if choice == 0:
        indices = rng.permutation(extent)[: rng.integers(1, extent + 1)].tolist()
        return indices, indices
    if choice == 1:
        start, end = sorted(rng.choice(extent + 1, 2, replace=False).tolist())
        return list(range(start, end)), [[start, end]]
    if choice == 2:
        step = int(rng.integers(1, 4))
        return list(range(0, extent, step)), [[0, extent, step]]
    if choice == 3:
        cut = int(rng.integers(1, extent))
        return [*range(cut, extent), *range(cut)], [[cut, extent], [0, cut]]
    indices = rng.integers(0, extent, 4).tolist()
    return [*indices, 0, 1], [*indices, [0, 2]]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.gpu_where(lambda case: case["seed"] < 8)
def test_indices_are_laid_one_behind_another(backend, worlds, seed):
    """Of all arrays with the dimension, under windows along the first and windows that cover the others."""
    rng, world = np.random.default_rng(seed), worlds[seed % len(worlds)]
    names = [LEVEL, LAT, LON]
    chosen = {name: indices_of(rng, SIZES[name]) for name in names if rng.random() < 0.6}
    arrays = [str(name) for name in rng.permutation(["q", "t", "mask", "orography"])[: rng.integers(1, 5)]]
    if not {"q", "t"} & set(arrays):
        arrays.append("t")
    there = {dimension for name in arrays for dimension in FIELDS[name]}
    chosen = {name: given for name, given in chosen.items() if name in there}
    indices = {name: given[0] for name, given in chosen.items()}
    select = {name: given[1] for name, given in chosen.items()}
    window, offsets = None, None
    steps = int(rng.integers(1, 4))
    if (kind := rng.random()) < 0.3:
        window = [steps]
    elif kind < 0.5:
        offsets = [2, 0, 1]
    elif kind < 0.7 and "t" not in arrays:
        window = [steps, len(indices.get(LEVEL, range(SIZES[LEVEL])))]
    arguments = {"window": window, "offsets": offsets}
    outputs = read_all(
        backend,
        str(world),
        arrays=arrays,
        batch_size=3,
        select=json.dumps(select),
        **{name: value for name, value in arguments.items() if value is not None},
    )
    sampling = Sampling(window=window and (window[0],), offsets=offsets and tuple(offsets))
    wholes = dataset(world)
    for name, samples in zip(arrays, outputs):
        along = {dimension: at for dimension, at in indices.items() if dimension in FIELDS[name]}
        whole = wholes[name].isel(along).values
        starts = sampling.samples((SIZES[TIME],))
        assert len(samples) == len(starts)
        for sample, start in zip(samples, starts):
            expected = sampling.values(whole, start) if TIME in FIELDS[name] else whole
            np.testing.assert_array_equal(sample, expected, err_msg=f"{name} {start} {select}")


LABELS = [
    {LEVEL: [500, 850]},
    {LEVEL: [850, 500], LAT: slice(60, -60)},
    {LEVEL: 500, LAT: slice(None, None, -1)},
    {LEVEL: [500], LAT: slice(60, -60), LON: slice(330, 30)},
    {LON: [300, 0, 90]},
    {LON: slice(None, None, 3)},
]


def by_xarray(array, labels):
    """`.sel` of the dimensions that there are; single labels keep their dimension."""
    its = {name: label for name, label in labels.items() if name in array.dims}
    if its.get(LON) == slice(330, 30):
        its[LON] = [330, 0, 30]
    return array.sel({name: [label] if np.isscalar(label) else label for name, label in its.items()}).values


@pytest.mark.gpu_where(lambda case: len(case["labels"]) > 1)
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_apply_to_every_array_that_has_the_dimension(backend, world, labels):
    arrays = list(FIELDS)
    chosen = zarr_dali.select(world, arrays=arrays, **labels)
    outputs = read_all(backend, batch_size=4, window=[2], **chosen)
    for name, samples in zip(arrays, outputs):
        expected = by_xarray(dataset(world)[name], labels)
        for start, sample in enumerate(samples):
            wanted = expected[start : start + 2] if TIME in FIELDS[name] else expected
            np.testing.assert_array_equal(sample, wanted, err_msg=name)


@pytest.mark.gpu_where(lambda case: case["shuffle"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_loader_selects_and_normalizes(backend, world, shuffle):
    """Levels in an order of their own, each by its numbers in the store; longitudes across the end."""
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    means = np.arange(6.0)
    labels = {TIME: slice(1, 7), LEVEL: [500, 850], LON: slice(-60, 60), LAT: slice(60, -60)}
    loader = zarr_dali.Loader(
        str(world), ["q", "t"], 2, device=device, shuffle=shuffle, seed=3, window=[2], return_index=True,
        normalize={"q": {"dim": LEVEL, "mean": means, "std": means + 1}}, select=labels,
    )  # fmt: skip
    place = {LAT: slice(1, 6), LON: [10, 11, 0, 1, 2]}
    q = dataset(world)["q"].isel(place | {LEVEL: [4, 2]}).values
    mean, std = (np.array(numbers, "float32").reshape(2, 1, 1) for numbers in ([4, 2], [5, 3]))
    wanted = {"q": (q - mean) / std, "t": dataset(world)["t"].isel(place).values}
    seen = []
    with loader:
        for batch in loader:
            for number, (start,) in enumerate(batch["index"].tolist()):
                seen.append(start)
                for name, values in wanted.items():
                    sample = batch[name][number].cpu().numpy()
                    np.testing.assert_array_equal(sample, values[start : start + 2])
    # A dimension without a coordinate is selected by position.
    assert sorted(seen) == list(range(1, 6))


def test_patches_in_a_range_beside_chosen_levels(backend, world):
    """Windows lie along one dimension while indices of another are chosen."""
    chosen = zarr_dali.select(world, arrays=["q"], **{LEVEL: [300, 850], LAT: slice(60, -60)})
    outputs = read_all(backend, window=[1, 2, 2], stride=[4, 1, 1], return_index=True, **chosen)
    q = dataset(world)["q"].isel({LEVEL: [5, 2]}).values
    assert len(outputs[0]) == 3 * 4
    for sample, (time, level, lat) in zip(*outputs):
        assert level == 0
        np.testing.assert_array_equal(sample, q[time : time + 1, :, lat : lat + 2])


def test_chunks_between_are_not_read(backend, tmp_path, rng):
    """Of levels in chunks of their own only the chosen ones are touched: the others are gone."""
    values = rng.normal(size=(6, 5, 4)).astype("float32")
    folder = write_array(
        tmp_path, "q", values, chunks=(2, 1, 4), codec="raw", dimension_names=(TIME, LEVEL, LAT)
    )
    for level in (1, 2, 4):
        for chunk in folder.glob(f"c/*/{level}/*"):
            chunk.unlink()
    (samples,) = read_all(
        backend, str(tmp_path), arrays=["q"], missing_chunks="error", select='{"level": [3, 0]}'
    )
    np.testing.assert_array_equal(np.stack(samples), values[:, [3, 0]])


@pytest.mark.parametrize(
    ("longitudes", "label", "expected"),
    [
        (LONGITUDES, slice(330, 30), [330, 0, 30]),
        (LONGITUDES, slice(-30, 30), [330, 0, 30]),
        (LONGITUDES, slice(350, 10), [0]),
        (LONGITUDES, slice(0, 360), LONGITUDES),
        (LONGITUDES, slice(-180, 180), [*range(180, 360, 30), *range(0, 180, 30)]),
        (LONGITUDES, slice(None, 60), [0, 30, 60]),
        (LONGITUDES, slice(300, None), [300, 330]),
        (np.arange(-180, 180, 30), slice(330, 30), [-30, 0, 30]),
        (np.arange(-180, 180, 30), slice(150, -150), [150, -180, -150]),
        (np.arange(-180, 180, 30), slice(-30, 30), [-30, 0, 30]),
        (np.arange(-180, 180, 30), slice(0, 359), [*range(0, 180, 30), *range(-180, 0, 30)]),
        (LONGITUDES, -30, [330]),
        (LONGITUDES, [-30, 60, -90], [330, 60, 270]),
        (LONGITUDES, np.array([-30, 390.0, 720]), [330, 30, 0]),
        (np.arange(-180, 180, 30), 330, [-30]),
        (np.arange(-180, 180, 30), (300, 30), [-60, 30]),
        (np.arange(150, -210, -30), [330, 180], [-30, -180]),
    ],
    ids=str,
)
def test_longitudes_are_a_circle(tmp_path, rng, longitudes, label, expected):
    path = write_world(tmp_path / "w.zarr", rng, np.asarray(longitudes))
    chosen = zarr_dali.select(path, arrays=["q", "t"], longitude=label)
    (samples,) = read_all(CPU, **{**chosen, "arrays": ["t"]})
    wanted = dataset(path)["t"].sel({LON: list(expected)}).values
    np.testing.assert_array_equal(np.stack(samples), wanted)


@pytest.mark.parametrize(
    ("longitudes", "label", "words"),
    [
        (
            LONGITUDES,
            -45,
            r"longitude=-45 is not there: .*0 to 330, ascending; -45, the same longitude as 315, is",
        ),
        (LONGITUDES, [-30, -44], r"; -44, the same longitude as 316, is not among them, the nearest is 330$"),
        (LONGITUDES, 44, r"; 44 is not among them, the nearest is 30$"),
        (LONGITUDES, 359, r"; 359 is not among them, the nearest is 0$"),
        (
            np.arange(0, 120, 10),
            -45,
            r"; -45, the same longitude as 315, is not among them, the nearest is 0$",
        ),
        (LONGITUDES, np.nan, r"longitude=nan is not there: .* ascending$"),
    ],
    ids=str,
)
def test_a_longitude_that_is_not_there(tmp_path, rng, longitudes, label, words):
    path = write_world(tmp_path / "w.zarr", rng, np.asarray(longitudes))
    with pytest.raises(ValueError, match=words):
        zarr_dali.select(path, arrays=["q"], longitude=label)


@pytest.mark.parametrize(
    ("values", "dtype", "label", "expected"),
    [
        # Both ends are there: a label that is in the coordinate is meant itself.
        ([0, 180, 360], "int64", [360, -180, 720], [360, 180, 0]),
        ([0.1, 314.9, 359.7], "float32", [-45.1, 0.1], [314.9, 0.1]),
        ([0.1, 314.9, 359.7], "float64", [-45.1, -0.3], [314.9, 359.7]),
        ([0.1, 314.9, 359.7], "float64", [-45.1, -0.3001], [-45.1, -0.3001]),
        ([0.1, 314.9, 359.7], "float32", [-45.1, 314.9001], [-45.1, 314.9001]),
    ],
)
def test_numbers_of_a_longitude_differ_by_rounding(values, dtype, label, expected):
    (found,) = _pieces.around(pd.Index(values, dtype=dtype), label)
    np.testing.assert_array_equal(np.asarray(found, dtype), np.asarray(expected, dtype))


@pytest.mark.parametrize("label", ["west", [[1], [2, 3]], {1, 2}, None, [], [0.5, "west"]], ids=str)
@pytest.mark.parametrize("values", [[0.5, 1.5], ["west", "east"], []], ids=str)
def test_what_is_no_number_is_left_alone(label, values):
    index = pd.Index(values)
    assert _pieces.around(index, label) == [label] and _pieces.remark(index, label) == ""


def test_other_coordinates_are_no_circle(world):
    with pytest.raises(ValueError, match=r"latitude=\S+ is not there: .*descending, among them 90\.0$"):
        zarr_dali.select(world, arrays=["q"], latitude=360 + dataset(world)[LAT].values[0])


def test_a_region_has_no_slice_around_the_earth(tmp_path, rng):
    path = write_world(tmp_path / "w.zarr", rng, np.arange(0, 120, 10))
    with pytest.raises(ValueError, match=r"longitude=slice\(20, 10.*selects nothing"):
        zarr_dali.select(path, arrays=["q"], longitude=slice(20, 10))


def test_a_slice_across_the_end_is_of_longitudes_only(world):
    with pytest.raises(ValueError, match=r"latitude=.*selects nothing.*descending"):
        zarr_dali.select(world, arrays=["q"], latitude=slice(-60, 60))
    with pytest.raises(ValueError, match=r"longitude=slice\(100, 110.*selects nothing"):
        zarr_dali.select(world, arrays=["q"], longitude=slice(100, 110))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"select": "[]"}, "no JSON object"),
        ({"select": '{"level": 3}'}, r'"level" it has 3; give a list'),
        ({"select": '{"level": []}'}, '"level" it has no index'),
        ({"select": '{"level": [[4, 2]]}'}, r"it has \[4,2\]; give a list"),
        ({"select": '{"level": [-1]}'}, r"it has -1; give a list"),
        ({"select": '{"level": [0, 6]}'}, 'its dimension "level" has 6 indices.*from 0 to 5'),
        ({"select": '{"level": [[0, 18446744073709551615, 9]]}'}, "has 6 indices"),
        ({"select": '{"height": [0]}'}, r'no array has a dimension "height", only \["time", "level"'),
        ({"select": '{"time": [0, 1]}'}, 'samples are taken along "time"; give `roi_start`'),
        ({"select": '{"level": [0, 3, 1]}', "window": [1, 1]}, "give the extent 3"),
    ],
)
def test_what_cannot_be_selected_is_refused(backend, world, arguments, message):
    with pytest.raises(ValueError, match=f"argument `select`.*{message}"):
        build(backend, str(world), arrays=["q"], **arguments)


@pytest.mark.gpu_where(False)
def test_windows_follow_the_names_of_dimensions(backend, tmp_path, rng):
    values = rng.normal(size=(4, 3, 3)).astype("float32")
    write_array(tmp_path, "a", values, chunks=(2, 3, 3), dimension_names=(TIME, LAT, LON))
    write_array(tmp_path, "b", values, chunks=(2, 3, 3), dimension_names=(TIME, LON, LAT))
    a, b = read_all(backend, str(tmp_path), arrays=["a", "b"], window=[1, 1], select='{"latitude": [2]}')
    np.testing.assert_array_equal(np.concatenate(a), values[:, [2]])
    np.testing.assert_array_equal(np.concatenate(b), values[:, :, [2]])
    with pytest.raises(ValueError, match="its selection is along one dimension"):
        build(backend, str(tmp_path), arrays=["a", "b"], stack=True, select='{"latitude": [0]}')
    with pytest.raises(ValueError, match=r'its list of dimensions is .*"latitude", "longitude".*stack'):
        build(backend, str(tmp_path), arrays=["a", "b"], stack=True, window=[1, 1])
    (stacked,) = read_all(
        backend, str(tmp_path), arrays=["a", "a"], stack=True, select='{"latitude": [2, 0]}'
    )
    np.testing.assert_array_equal(np.stack(stacked), np.stack([values[:, [2, 0]]] * 2, axis=1))


@pytest.mark.gpu_where(False)
def test_info_and_source_info_know_what_is_selected(backend, world):
    select = {LEVEL: [4, 2], LON: [[10, 12], [0, 3]]}
    report = zarr_dali.info(world, ["q", "mask"], device="cpu", select=select)
    assert report.problem is None
    assert [array.problem for array in report.arrays] == [None, None]
    pipe = build(backend, str(world), arrays=["q"], select=json.dumps(select), window=[2])
    (batch,) = pipe.run()
    assert batch[0].source_info() == f"{world}/q[0:2, [4,2], 0:7, [10,11,0,1,2]]"
