"""OME-Zarr 0.4 and 0.5: axes as names of dimensions, levels, labels beside images, plates.

Readers are compared with NumPy's own indexing of the arrays that were written, with random axes, extents,
windows and selections.
"""

import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import zarr

import zarr_dali
from configurations import draw_sampling, scenes
from naive import expected_beside
from ome_stores import (
    AXES,
    FORMATS,
    SCALE,
    VERSIONS,
    axes_of,
    values_of,
    write_cells,
    write_image,
    write_labels,
)
from reading import batches_of, build, read_all

CONFIGURATIONS = {"cpu": int(os.environ.get("ZARR_DALI_CONFIGURATIONS", 800)) // 2, "gpu": 80}
SCENES = 20
"""Images that share the configurations among them."""
LARGEST = {"t": 5, "c": 4, "z": 5, "y": 9, "x": 8}

pytestmark = pytest.mark.skipif(3 not in FORMATS.values(), reason="zarr-python 2 writes no Zarr v3")


# --- labels beside images -------------------------------------------------------------------------


def write_scene(folder, rng):
    """Writes an image with some of the axes t, c and z, and three labels, which lack some of its axes or have
    one index along them. Returns its path, its axes, and of each array its axes and values by name."""
    version = str(rng.choice(VERSIONS))
    axes = "".join(axis for axis in "tcz" if rng.random() < 0.7) + "yx"
    shape = [int(rng.integers(max(2, LARGEST[axis] // 2), LARGEST[axis] + 1)) for axis in axes]
    own_names = bool(rng.random() < 0.5)
    options = {"version": version, "own_names": own_names}
    image = values_of(shape)
    path = write_image(folder / "image.zarr", [image], axes, chunks=_chunks(rng, shape), **options)
    arrays, first = {"0": (axes, image)}, image.size
    for name in ("a", "b", "d"):
        own = "".join(axis for axis in axes if axis in "yx" or rng.random() < 0.6)
        extents = [
            1 if axis not in "yx" and rng.random() < 0.4 else extent
            for axis, extent in zip(axes, shape)
            if axis in own
        ]
        values = values_of(extents, first)
        first += values.size
        write_labels(path, name, [values], own, chunks=_chunks(rng, extents), **options)
        arrays[f"labels/{name}/0"] = (own, values)
    return path, axes, arrays


def _chunks(rng, shape):
    return tuple(int(rng.integers(1, extent + 1)) for extent in shape)


scene_of = scenes(write_scene, seed=20261125)


NUMBERS = [0, 1, 2, *(pytest.param(n, marks=pytest.mark.full) for n in range(3, SCENES))]


@pytest.mark.parametrize("number", NUMBERS)
def test_labels_are_in_lockstep(backend, scene_of, number):
    """Windows lie at the same place of the axes that labels share with the image, in any order of arrays."""
    path, axes, arrays = scene_of(number)
    shape = arrays["0"][1].shape
    rng = np.random.default_rng([20261126, number])
    tried, with_samples = -(-CONFIGURATIONS[backend.device] // SCENES), 0
    for _ in range(tried):
        sampling = draw_sampling(rng, shape, len(shape))
        names = ["0", *rng.choice(list(arrays)[1:], int(rng.integers(1, 4)), replace=False)]
        names = [str(name) for name in rng.permutation(names)]
        what = f"{axes} {shape}, {[(name, *arrays[name][0]) for name in names]}, {sampling}"
        starts = sampling.samples(shape)
        arguments = {"arrays": names, "batch_size": max(4, len(starts) // 6), **sampling.arguments()}
        if not starts:
            with pytest.raises(ValueError):
                build(backend, path, **arguments)
            continue
        with_samples += 1
        shuffled = bool(rng.random() < 0.5)
        if shuffled:
            fill = int(rng.choice([1, 5, 30, 1024]))
            arguments |= {"random_shuffle": True, "seed": int(rng.integers(99)), "initial_fill": fill}
        outputs = read_all(backend, path, return_index=True, **arguments)
        order = [starts.index(tuple(index)) for index in outputs[-1]]
        assert sorted(order) == list(range(len(starts))) and (shuffled or order == sorted(order)), what
        for name, samples in zip(names, outputs):
            expected = expected_beside(sampling, shape, axes, *arrays[name])
            assert len(samples) == len(expected), what
            for at, sample in zip(order, samples):
                np.testing.assert_array_equal(sample, expected[at], strict=True, err_msg=f"{name}: {what}")
    assert with_samples >= tried / 4, "many configurations have samples"


def draw_labels(rng, axes, shape):
    """Positions of some axes as `select` takes them, the indices that they mean, and how many leading axes
    windows may cover."""
    labels, selected, coverable = {}, [range(extent) for extent in shape], len(axes)
    for number, (axis, extent) in enumerate(zip(axes, shape)):
        kind = str(rng.choice(["all", "all", "one", "range", "list"]))
        if kind == "one" or (kind == "list" and number == 0):
            at = int(rng.integers(0, extent))
            labels[axis], selected[number] = at, [at]
        elif kind == "range":
            start = int(rng.integers(0, extent))
            end = int(rng.integers(start + 1, extent + 1))
            labels[axis], selected[number] = slice(start, end), range(start, end)
        elif kind == "list":
            some = rng.permutation(extent)[: int(rng.integers(1, extent + 1))].tolist()
            labels[axis], selected[number] = some, some
            coverable = min(coverable, number)
    return labels, selected, coverable


@pytest.mark.parametrize("number", NUMBERS)
def test_axes_are_selected_by_name(backend, scene_of, number):
    """Of each array that has the axis, whatever its place; windows lie in what is selected."""
    path, axes, arrays = scene_of(number)
    shape = arrays["0"][1].shape
    rng = np.random.default_rng([20261127, number])
    for _ in range(-(-CONFIGURATIONS[backend.device] // SCENES)):
        labels, selected, coverable = draw_labels(rng, axes, shape)
        names = ["0", *map(str, rng.choice(list(arrays)[1:], int(rng.integers(1, 3)), replace=False))]
        extents = [len(indices) for indices in selected]
        sampling = draw_sampling(rng, extents, max(coverable, 1))
        # Positions that count in the whole array, where `expected_beside` counts in what is selected.
        unset = dict.fromkeys(("roi_start", "roi_end", "exclude", "breaks", "breaks_along", "offsets"))
        sampling = replace(sampling, **unset)
        if not sampling.samples(extents):
            continue
        window = sampling.window and list(sampling.window)
        chosen = zarr_dali.select(path, arrays=names, window=window, **labels)
        rest = {name: value for name, value in sampling.arguments().items() if name != "window"}
        what = (
            f"{axes} {shape}, {[(name, arrays[name][0]) for name in names]}, {labels}, {sampling}, {chosen}"
        )
        try:
            outputs = read_all(backend, batch_size=8, **chosen, **rest)
        except ValueError as error:
            raise AssertionError(what) from error
        for name, samples in zip(names, outputs):
            expected = expected_beside(sampling, shape, axes, *arrays[name], selected)
            assert len(samples) == len(expected), what
            for sample, values in zip(samples, expected):
                np.testing.assert_array_equal(sample, values, strict=True, err_msg=f"{name}: {what}")


# --- images, levels and labels by name ------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def cells(request, tmp_path):
    """The path of an image of each version, and the levels of the image and its labels."""
    path = tmp_path / "cells.zarr"
    return path, write_cells(path, request.param)


@pytest.mark.parametrize("level", [0, 1])
def test_a_loader_reads_a_level_and_labels(backend, cells, level):
    path, levels = cells
    window = [1, 1, 2, 4, 6]
    loader, found = batches_of(path, backend, level=level, labels=["cells", "depth"], window=window)
    image, cells_, depth = (levels[name][level] for name in ("image", "cells", "depth"))
    at = [range(0, extent, step) for extent, step in zip(image.shape, window)]
    places = list(itertools.product(*at))
    assert list(found) == ["image", "cells", "depth"] and len(found["image"]) == len(places)
    for number, (t, c, z, y, x) in enumerate(places):
        grid = np.s_[z : z + 2, y : y + 4, x : x + 6]
        np.testing.assert_array_equal(found["image"][number], image[t : t + 1, c : c + 1][(..., *grid)])
        np.testing.assert_array_equal(found["cells"][number], cells_[t : t + 1][(..., *grid)])
        np.testing.assert_array_equal(found["depth"][number], depth[grid])
    factor = 2.0**level
    scale = {axis: size * factor if axis in "yx" else size for axis, size in SCALE.items()}
    assert loader.scale["image"] == loader.scale["cells"] == pytest.approx(scale)
    assert loader.scale["depth"] == pytest.approx({axis: scale[axis] for axis in "zyx"})


@pytest.mark.gpu_where(False)
def test_the_highest_resolution_is_the_default(backend, cells):
    path, levels = cells
    _, found = batches_of(path, backend)
    np.testing.assert_array_equal(found["image"], levels["image"][0])
    _, found = batches_of(str(path / "labels" / "cells"), backend, level=1)
    np.testing.assert_array_equal(found["image"], levels["cells"][1])
    _, found = batches_of(zarr.open_group(path, mode="r"), backend, labels="cells", names=["a", "b"])
    assert list(found) == ["a", "b"]


SELECTIONS = {
    "an index": ({"c": 0}, np.s_[:, [0]]),
    "a name": ({"c": "GFP"}, np.s_[:, [1]]),
    "names": ({"c": ["RFP", "DAPI"]}, np.s_[:, [2, 0]]),
    "planes": ({"z": slice(1, 3)}, np.s_[:, :, 1:3]),
    "steps": ({"t": slice(1, 3), "c": [2]}, np.s_[1:3, [2]]),
    "a part": ({"y": slice(2, 10), "x": slice(None, 8)}, np.s_[:, :, :, 2:10, :8]),
}


@pytest.mark.parametrize("case", SELECTIONS)
def test_axes_are_selected(backend, cells, case):
    """`select={"c": 0}` on OME-Zarr, which xarray cannot open: its levels conflict."""
    path, levels = cells
    select, part = SELECTIONS[case]
    _, found = batches_of(path, backend, labels=["cells"], select=select)
    np.testing.assert_array_equal(found["image"], levels["image"][0][part])
    _, found = batches_of(path, backend, arrays=["0"], select=select)
    np.testing.assert_array_equal(found["0"], levels["image"][0][part])
    _, found = batches_of(
        path, backend, arrays=["0", "labels/cells/0"], names=["image", "cells"], select=select
    )
    along_channels = tuple(slice(None) if i == 1 else own for i, own in enumerate(part))
    np.testing.assert_array_equal(found["cells"], levels["cells"][0][along_channels])


@pytest.mark.gpu_where(False)
def test_a_level_by_its_path(backend, cells):
    """The array itself is in the image, whose axes `select` knows."""
    path, levels = cells
    select = {"c": "GFP", "x": slice(2, 6)}
    for given, array in ((path / "1", levels["image"]), (path / "labels" / "depth" / "1", levels["depth"])):
        own = select if array is levels["image"] else {"x": slice(2, 6)}
        _, found = batches_of(given, backend, select=own)
        expected = array[1][:, 1:2, ..., 2:6] if "c" in own else array[1][..., 2:6]
        np.testing.assert_array_equal(found["data"], expected)


@pytest.mark.gpu_where(False)
def test_select_knows_levels(backend, cells):
    path, levels = cells
    chosen = zarr_dali.select(path, level=1, labels="cells", c="RFP", z=slice(2, 4), window=[1, 1, 1])
    assert chosen["arrays"] == ["1", "labels/cells/1"]
    image, found = read_all(backend, **chosen)
    np.testing.assert_array_equal(
        np.concatenate(image)[:, 0], levels["image"][1][:, 2, 2:4].reshape(-1, 1, 8, 6)
    )
    np.testing.assert_array_equal(
        np.concatenate(found)[:, 0], levels["cells"][1][:, 0, 2:4].reshape(-1, 1, 8, 6)
    )
    assert zarr_dali.select(**zarr_dali.ome_zarr(path, level=1), c=0) == {
        "path": str(path),
        "arrays": ["1"],
        "roi_start": [0, 0],
        "roi_end": [4, 1],
    }


@pytest.mark.gpu_where(False)
def test_channels_have_their_names(backend, cells):
    path, _ = cells
    options = {"stack": "channels", "dtype": "float32", "device": "cpu"}
    select = {"z": 0, "c": ["RFP", "GFP"]}
    with zarr_dali.Loader(path, level=0, select=select, **options) as loader:
        assert loader.channels == ["image_RFP_0", "image_GFP_0"]
        assert loader.names == ["data"] and tuple(next(iter(loader))["data"].shape) == (1, 2, 16, 12)


@pytest.mark.gpu_where(False)
def test_the_operator_knows_the_axes(backend, cells):
    """Layouts and `select` of the operator itself, and labels in lockstep."""
    path, levels = cells
    arrays = ["labels/cells/0", "0", "labels/depth/0"]
    options = {"arrays": arrays, "window": [1, 3, 2], "select": json.dumps({"x": [[3, 7]]})}
    pipe = build(backend, path, **options)
    assert [output.layout() for output in pipe.run()] == ["TCDHW", "TCDHW", "DHW"]
    cells_, image, depth = read_all(backend, path, **options)
    np.testing.assert_array_equal(image[1], levels["image"][0][:1, :, 2:4, :, 3:7])
    np.testing.assert_array_equal(cells_[1], levels["cells"][0][:1, :, 2:4, :, 3:7])
    np.testing.assert_array_equal(depth[1], levels["depth"][0][2:4, :, 3:7])


def test_info_shows_axes_and_scales(cells):
    path, _ = cells
    found = zarr_dali.info(path, device="cpu")
    axes = {array.name: array.axes for array in found.arrays}
    assert set(axes) == {
        f"{group}{level}" for group in ("", "labels/cells/", "labels/depth/") for level in (0, 1)
    }
    t, c, *_, x = axes["1"]
    assert (t.name, t.type, t.unit, t.scale) == ("t", "time", "second", 2.0)
    assert (c.type, c.unit, c.scale, x.unit, x.scale) == ("channel", None, 1.0, "micrometer", 0.52)
    assert found.arrays[0].dimensions == tuple(AXES)
    assert "(t 2 s, c, z 0.5 µm, y 0.52 µm, x 0.52 µm)" in str(found)
    assert json.loads(found.to_json())["arrays"][1]["axes"][4]["scale"] == 0.52
    level = zarr_dali.info(path, level=1, labels="cells", device="cpu", window=[1, 3])
    assert [array.name for array in level.arrays] == ["1", "labels/cells/1"]
    assert [output.shape for output in level.together.outputs] == [(1, 3, 4, 8, 6), (1, 1, 4, 8, 6)]
    # Labels are read beside an image, alone they have no room for three channels.
    assert level.unreadable == zarr_dali.info(path, device="cpu", window=[1, 3]).unreadable == ()
    too_large = zarr_dali.info(path, device="cpu", window=[1, 3, 9])
    assert too_large.unreadable == ("0", "1", "labels/cells/0", "labels/cells/1", "labels/depth/1")


def test_transformations_are_composed():
    """Those of a level, then those of all levels; several of a kind."""
    scales = [{"type": "scale", "scale": [2, 3]}, {"type": "translation", "translation": [1, 10]}]
    whole = [{"type": "scale", "scale": [5, 7]}, {"type": "translation", "translation": [0.5, 0]}]
    image = {
        "axes": axes_of("yx"),
        "datasets": [{"path": "./s0/", "coordinateTransformations": scales}],
        "coordinateTransformations": whole,
    }
    from zarr_dali import _ome

    found = _ome.image_of({"multiscales": [image]}, "here").level("s0").axes
    assert [(axis.scale, axis.translation) for axis in found] == [(10, 5.5), (21, 70)]
