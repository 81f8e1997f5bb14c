"""Levels and arrays as the channels of one output, `stack="channels"`: against NumPy, with random stores."""

import json
import shutil

import numpy as np
import pytest
import torch
from nvidia.dali import types

import zarr_dali
from naive import Sampling
from reading import build, read_all
from stores import write_array, write_group
from test_channels import by_numpy
from test_values import assert_same, cast

TIME, LEVEL, LAT, LON = "time", "level", "latitude", "longitude"
SIZES = {TIME: 8, LEVEL: 4, LAT: 5, LON: 6}
LEVELS = np.array([1000.0, 850.0, 500.0, 62.5])
FIELDS = {
    "q": (TIME, LEVEL, LAT, LON),
    "w": (TIME, LEVEL, LAT, LON),
    "t": (TIME, LAT, LON),
    "mask": (LAT, LON),
    "heights": (LEVEL, LAT, LON),
}


def write_world(path, rng):
    write_group(path, 3)
    values = {}
    for name, dimensions in FIELDS.items():
        shape = tuple(SIZES[dimension] for dimension in dimensions)
        chunks = tuple(int(rng.integers(1, extent + 1)) for extent in shape)
        dtype = str(rng.choice(["float32", "int16"]))
        values[name] = rng.integers(-99, 99, shape).astype(dtype)
        # A part of the chunks is missing.
        values[name][tuple(slice(0, extent // 2) for extent in shape)] = 7
        codec = str(rng.choice(["zstd", "raw", "sharded-end-zstd", "transpose-zstd"]))
        write_array(
            path, name, values[name], chunks=chunks, codec=codec, fill_value=7, dimension_names=dimensions
        )
    write_array(path, LEVEL, LEVELS, chunks=(4,), dimension_names=(LEVEL,))
    return path, values


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    return [write_world(folder / f"{seed}.zarr", np.random.default_rng(seed)) for seed in range(4)]


def as_channels(sample, dropped):
    """(window, channels, latitude, longitude) of a sample that lacks the first if `dropped`."""
    sample = sample[None] if dropped else sample
    return sample.reshape(sample.shape[0], -1, *sample.shape[-2:])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.gpu_where(lambda case: case["seed"] < 8)
def test_channels_are_arrays_and_levels(backend, worlds, seed):
    rng = np.random.default_rng(seed)
    path, values = worlds[seed % len(worlds)]
    arrays = [str(name) for name in rng.permutation(list(FIELDS))[: rng.integers(1, 6)]]
    # Samples are taken along the first dimension of the array with the most dimensions.
    if not {"q", "w"} & set(arrays):
        arrays.append("q")
    levels = [int(level) for level in rng.permutation(4)[: rng.integers(1, 5)]]
    latitudes = [4, 0, 1] if rng.random() < 0.5 else list(range(5))
    normalize = {}
    for name in arrays:
        if rng.random() < 0.7:
            along = str(rng.choice([each for each in FIELDS[name] if each != TIME]))
            numbers = rng.normal(2, 1, (2, SIZES[along])).tolist()
            normalize[name] = {"dim": along, "mean": numbers[0], "std": numbers[1]}
    sampling = [Sampling(), Sampling(window=(int(rng.integers(1, 4)),)), Sampling(offsets=(1, 0, 3))]
    sampling = sampling[int(rng.integers(3))]
    select = {LAT: latitudes}
    if any(LEVEL in FIELDS[name] for name in arrays):
        select[LEVEL] = levels
    (samples,) = read_all(
        backend,
        str(path),
        arrays=arrays,
        stack_channels=True,
        batch_size=3,
        select=json.dumps(select),
        normalize=json.dumps(normalize) if normalize else "",
        dtype=types.FLOAT,
        **sampling.arguments(),
    )
    starts = sampling.samples((SIZES[TIME],))
    assert len(samples) == len(starts)
    steps = len(sampling.steps(0))
    for sample, start in zip(samples, starts):
        expected = []
        for name in arrays:
            entry, whole = normalize.get(name), values[name]
            if entry:
                shape = [SIZES[each] if each == entry["dim"] else 1 for each in FIELDS[name]]
                whole = by_numpy(whole, [np.array(entry[key]).reshape(shape) for key in ("mean", "std")])
            whole = cast(whole, "float32")
            if LEVEL in FIELDS[name]:
                whole = whole.take(levels, FIELDS[name].index(LEVEL))
            whole = whole[..., latitudes, :]
            if TIME in FIELDS[name]:
                expected.append(as_channels(sampling.values(whole, start), sampling.drops_first))
            else:
                expected.append(as_channels(np.broadcast_to(whole, (steps, *whole.shape)), False))
        expected = np.concatenate(expected, axis=1)
        assert_same(sample, expected[0] if sampling.drops_first else expected, f"{arrays} {start}")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.gpu_where(lambda case: case["shuffle"])
def test_the_loader_names_its_channels(backend, worlds, shuffle):
    path, values = worlds[0]
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    loader = zarr_dali.Loader(
        str(path), ["mask", "q", "t"], 3, device=device, window=[2], shuffle=shuffle, stack="channels",
        select={LEVEL: [62.5, 850]}, dtype="float32", return_index=True,
    )  # fmt: skip
    seen = []
    with loader:
        assert loader.channels == ["mask", "q_62.5", "q_850", "t"]
        for batch in loader:
            assert batch["data"].dtype == torch.float32
            for sample, (start,) in zip(batch["data"].cpu().numpy(), batch["index"].tolist()):
                seen.append(start)
                steps = slice(start, start + 2)
                expected = [values["q"][steps, 3], values["q"][steps, 1], values["t"][steps]]
                np.testing.assert_array_equal(sample[:, 1:], np.stack(expected, axis=1))
                np.testing.assert_array_equal(sample[:, 0], np.stack([values["mask"]] * 2))
    assert sorted(seen) == list(range(7))


@pytest.mark.gpu_where(False)
def test_channels_without_labels_are_named_by_index(backend, tmp_path, rng):
    values = rng.normal(size=(4, 2, 3)).astype("float32")
    for names in (None, (TIME, "z", LON)):
        path = tmp_path / str(names is None)
        write_array(path, "a", values, chunks=(2, 2, 3), dimension_names=names)
        write_array(path, "b", values[:, 0], chunks=(2, 3), dimension_names=names and (TIME, LON))
        with zarr_dali.Loader(str(path), ["a", "b"], device="cpu", stack="channels") as loader:
            assert loader.channels == ["a_0", "a_1", "b"]
            batch = next(iter(loader))["data"].numpy()
        np.testing.assert_array_equal(batch[0], [values[0, 0], values[0, 1], values[0, 0]])
    with zarr_dali.Loader(str(path), ["a"], device="cpu") as loader:
        assert loader.channels is None


@pytest.mark.gpu_where(False)
def test_joined_stores_and_layouts(backend, worlds, tmp_path):
    path, other = str(worlds[0][0]), str(shutil.copytree(worlds[0][0], tmp_path / "other.zarr"))
    arrays = ["t", "q", "heights"]
    pipe = build(backend, [path, other], arrays=arrays, stack_channels=True, window=[3], dtype=types.FLOAT)
    count = pipe.reader_meta("reader")["epoch_size"]
    assert count == 2 * SIZES[TIME] - 2
    (batch,) = pipe.run()
    assert batch.layout() == "TCHW"
    assert batch[0].source_info() == f"{path}..{other}/[t,q,heights][0:3, 0:5, 0:6]"
    channels = zarr_dali.stats(pipe)["channels"]
    assert channels == [["t", {}]] + [[name, {LEVEL: i}] for name in ("q", "heights") for i in range(4)]


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arrays": ["q", "t"], "stack": True}, "argument `stack_channels`: `stack` stacks"),
        ({"arrays": ["q"], "window": [1, 2]}, "windows along dimension 1, whose indices are channels"),
        ({"arrays": ["q", "level"]}, r"level.* has no dimension|its last dimensions have the extents"),
        ({"arrays": ["floats", "t"]}, "its element type is float64, but .*; arrays that are stacked.*dtype"),
        ({"arrays": ["q", "other"]}, r"extents \[5, 6\] in a sample, but \[5, 2\] in"),
        ({"arrays": ["complex"]}, "complex numbers"),
    ],
)
def test_what_cannot_be_channels_is_refused(backend, worlds, tmp_path, arguments, message):
    path = tmp_path / "w.zarr"
    shutil.copytree(worlds[0][0], path)
    for name, shape, dtype in (
        ("floats", (8, 5, 6), "float64"),
        ("other", (8, 5, 2), "float32"),
        ("complex", (8, 5, 6), "complex64"),
    ):
        write_array(path, name, np.zeros(shape, dtype), chunks=shape, dimension_names=(TIME, LAT, "x"))
    with pytest.raises((ValueError, RuntimeError), match=message):
        build(backend, str(path), **({"stack_channels": True} | arguments))


@pytest.mark.gpu_where(False)
def test_another_word_for_stack_is_refused(backend, worlds):
    with pytest.raises(ValueError, match="stack is 'levels', but has to be True, False or \"channels\""):
        zarr_dali.Loader(str(worlds[0][0]), ["q"], device="cpu", stack="levels")
