"""OME-Zarr 0.4 and 0.5: axes as names of dimensions, levels, labels beside images, plates.

Readers are compared with NumPy's own indexing of the arrays that were written, with random axes, extents,
windows and selections.
"""

import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarr_dali
from configurations import draw_sampling
from ome_stores import (
    FORMATS,
    VERSIONS,
    axes_of,
    put,
    pyramid,
    values_of,
    write_image,
    write_labels,
    write_plate,
)
from reading import CPU, build, read_all
from stores import edit_metadata, write_array, write_group

CONFIGURATIONS = {"cpu": int(os.environ.get("ZARR_DALI_CONFIGURATIONS", 1600)) // 2, "gpu": 80}
SCENES = 20
"""Images that share the configurations among them."""
LARGEST = {"t": 5, "c": 4, "z": 5, "y": 9, "x": 8}
SCALE = {"t": 2.0, "c": 1.0, "z": 0.5, "y": 0.26, "x": 0.26}

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


def beside(axes, index, own, values):
    """What of labels belongs to the part of an image with these indices along its axes."""
    along = dict(zip(axes, index))
    return values[
        np.ix_(*([0] if extent == 1 else list(along[axis]) for axis, extent in zip(own, values.shape)))
    ]


def expected_samples(sampling, shape, axes, own, values, selected=None):
    """The samples of an array with these axes, one for each window over an image of this shape.

    `selected` holds for each axis of the image the indices that windows count in.
    """
    selected = selected or [range(extent) for extent in shape]
    found = []
    for start in sampling.samples([len(indices) for indices in selected]):
        places = sampling.index([len(indices) for indices in selected], start)
        index = [[indices[place] for place in its] for indices, its in zip(selected, places)]
        part = beside(axes, index, own, values)
        follows = own[0] == axes[0] and values.shape[0] == shape[0]
        found.append(part[0] if sampling.drops_first and follows else part)
    return found


@pytest.fixture(scope="module")
def scene_of(tmp_path_factory):
    """`scene_of(number)`: the image of that number, written once."""
    made = {}

    def get(number):
        if number not in made:
            rng = np.random.default_rng([20261125, number])
            made[number] = write_scene(tmp_path_factory.mktemp("scene"), rng)
        return made[number]

    return get


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
            expected = expected_samples(sampling, shape, axes, *arrays[name])
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
        unset = dict.fromkeys(("roi_start", "roi_end", "exclude", "breaks", "offsets"))
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
            expected = expected_samples(sampling, shape, axes, *arrays[name], selected)
            assert len(samples) == len(expected), what
            for sample, values in zip(samples, expected):
                np.testing.assert_array_equal(sample, values, strict=True, err_msg=f"{name}: {what}")


# --- images, levels and labels by name ------------------------------------------------------------

AXES = "tczyx"


def write_cells(path, version, **options):
    """An image of two levels with three named channels, labels `cells` of one channel and `depth` (z, y, x);
    the levels of each."""
    image = pyramid(values_of((4, 3, 4, 16, 12)), AXES, 2)
    cells = pyramid(values_of((4, 1, 4, 16, 12), 100_000), AXES, 2)
    depth = pyramid(values_of((4, 16, 12), 200_000), "zyx", 2)
    scale = [SCALE[axis] for axis in AXES]
    channels = ["DAPI", "GFP", "RFP"]
    write_image(path, image, AXES, version, scale=scale, channels=channels, **options)
    write_labels(path, "cells", cells, AXES, version, scale=scale)
    write_labels(path, "depth", depth, "zyx", version, scale=scale[2:])
    return {"image": image, "cells": cells, "depth": depth}


@pytest.fixture(params=VERSIONS)
def cells(request, tmp_path):
    """The path of an image of each version, and the levels of the image and its labels."""
    path = tmp_path / "cells.zarr"
    return path, write_cells(path, request.param)


def batches_of(path, backend=CPU, **arguments):
    """All samples of a loader, by key."""
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    with zarr_dali.Loader(path, device=device, batch_size=4, **arguments) as loader:
        batches = list(loader)
        return loader, {key: np.concatenate([b[key].cpu().numpy() for b in batches]) for key in loader.names}


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


# --- plates ---------------------------------------------------------------------------------------

WELLS = {"B/3": ["0", "1"], "A/10": ["0"], "A/2": ["1", "0"]}
"""Not in the order of names."""


@pytest.fixture(params=VERSIONS)
def plate(request, tmp_path):
    """A plate whose fields differ in their extents along y, and the levels of each field in its order."""
    values, version = {}, request.param

    def write_field(folder, well, field):
        shape = (1, 2, 8 + 4 * len(values), 8)
        first = 10_000 * len(values)
        levels = pyramid(values_of(shape, first), "tcyx", 2)
        write_image(folder, levels, "tcyx", version, codec="zstd")
        labels = pyramid(values_of((1, 1, *shape[2:]), first + 5_000), "tcyx", 2)
        write_labels(folder, "nuclei", labels, "tcyx", version)
        values[f"{well}/{field}"] = {"image": levels, "nuclei": labels}

    return write_plate(tmp_path / "plate.zarr", WELLS, write_field, version), values


@pytest.mark.parametrize("level", [0, 1])
def test_fields_of_a_plate_are_separate_stores(backend, plate, level):
    path, values = plate
    window = [1, 2, 2, 4]
    _, found = batches_of(path, backend, level=level, labels="nuclei", window=window, return_index=True)
    expected = [
        (store, y, x, levels)
        for store, levels in enumerate(values.values())
        for y in range(0, levels["image"][level].shape[2] - 1, 2)
        for x in range(0, 8 // 2**level, 4)
    ]
    assert len(expected) == len(found["image"])
    for number, (store, y, x, levels) in enumerate(expected):
        assert found["index"][number].tolist() == [store, 0, 0, y, x]
        for name in ("image", "nuclei"):
            part = levels[name][level][:, :, y : y + 2, x : x + 4]
            np.testing.assert_array_equal(found[name][number], part)


@pytest.mark.gpu_where(False)
def test_a_sample_knows_its_well_and_field(backend, plate):
    path, values = plate
    arguments = zarr_dali.ome_zarr(path, labels=["nuclei"])
    assert arguments["path"] == [f"{path}/{field}" for field in values]
    assert arguments["arrays"] == ["0", "labels/nuclei/0"] and arguments["join"] == "separate"
    pipe = build(backend, window=[1, 1, 8, 8], stride=[1, 2, 8, 8], batch_size=6, **arguments)
    image, labels = pipe.run()
    assert image[1].source_info() == f"{path}/B/3/1/0[0:1, 0:1, 0:8, 0:8]"
    assert labels[4].source_info() == f"{path}/A/2/1/labels/nuclei/0[0:1, 0:1, 0:8, 0:8]"


@pytest.mark.gpu_where(False)
def test_wells_and_lists_of_images(backend, plate):
    """A well stands for its fields; images and wells may be listed, in an order of their own."""
    path, values = plate
    window = {"window": [1, 2, 8, 8], "return_index": True}
    for given, fields in (
        (path / "A" / "2", ["A/2/1", "A/2/0"]),
        ([path / "A" / "2" / "0", path / "B" / "3"], ["A/2/0", "B/3/0", "B/3/1"]),
    ):
        _, found = batches_of(given, backend, **window)
        for sample, (store, *_, y, _x) in zip(found["image"], found["index"].tolist()):
            np.testing.assert_array_equal(sample, values[fields[store]]["image"][0][:, :, y : y + 8])
        assert set(found["index"][:, 0]) == set(range(len(fields)))
    chosen = zarr_dali.select(path, c=1, window=[1, 1, 8, 8])
    (samples,) = read_all(backend, **chosen)
    np.testing.assert_array_equal(samples[0], values["B/3/0"]["image"][0][:, 1:, :8])


def test_info_describes_all_fields_together(plate):
    path, values = plate
    found = zarr_dali.info(path, device="cpu", window=[1, 1, 4, 4])
    assert found.path == (str(path),)
    assert [array.name for array in found.arrays] == ["0", "1", "labels/nuclei/0", "labels/nuclei/1"]
    assert found.arrays[0].shapes == tuple(levels["image"][0].shape for levels in values.values())
    assert "in 5 stores" in str(found)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("listed", [True, False])
def test_images_that_bioformats2raw_wrote(backend, tmp_path, listed):
    """Those that the group OME lists, or all of the groups from 0 on."""
    images = [values_of((4, 6), 100 * number) for number in range(3)]
    put(tmp_path, "0.4", **{"bioformats2raw.layout": 3})
    for number, values in enumerate(images):
        write_image(tmp_path / str(number), [values], "yx", "0.4")
    if listed:
        put(tmp_path / "OME", "0.4", series=["2", "0"])
        images = [images[2], images[0]]
    _, found = batches_of(tmp_path, backend)
    np.testing.assert_array_equal(found["image"], np.concatenate(images))


def test_the_example_is_a_plate(tmp_path):
    path = zarr_dali.example_plate(tmp_path / "plate.zarr")
    assert zarr_dali.example_plate(path) == path
    _, found = batches_of(path, labels="nuclei", dtype="int32", window=[1, 2])
    assert found["image"].shape == (12, 1, 2, 4, 64, 64) and found["nuclei"].shape == (12, 1, 1, 4, 64, 64)
    inside = np.broadcast_to(found["nuclei"] > 0, found["image"].shape)
    first, second = found["image"][:, :, 0], found["image"][:, :, 1]
    assert (first[inside[:, :, 0]].min() > first[~inside[:, :, 0]].max()) and 0.01 < inside.mean() < 0.5
    assert second[inside[:, :, 1]].max() < second[~inside[:, :, 1]].min()
    with pytest.raises(FileExistsError):
        zarr_dali.example_store(path)


# --- what does not fit ----------------------------------------------------------------------------


def edit_ome(group, version, change):
    """Changes what OME-Zarr says of a group."""
    file = Path(group, ".zattrs" if version == "0.4" else "zarr.json")
    edit_metadata(file, lambda node: change(node if version == "0.4" else node["attributes"]["ome"]))


def _drop_axes(count):
    def change(ome):
        (image,) = ome["multiscales"]
        del image["axes"][:count]
        for dataset in image["datasets"]:
            dataset["coordinateTransformations"] = []

    return change


def _set(**changes):
    return lambda ome: ome["multiscales"][0].update(changes)


MALFORMED = {
    "axes of another rank": (_drop_axes(1), [r"4, 3, 4, 16, 12", "axes c, z, y, x"]),
    "no axes": (_drop_axes(5), ["axes", "0.4 and 0.5"]),
    "axes are a number": (_set(axes=3), ["axes"]),
    "axes of one name": (_set(axes=axes_of("tcyyx")), ["different texts"]),
    "no datasets": (lambda ome: ome["multiscales"][0].pop("datasets"), ["datasets"]),
    "datasets are none": (_set(datasets=[]), ["datasets"]),
    "datasets without a path": (_set(datasets=[{"paths": "0"}]), [r"datasets\[0\]", "path"]),
    "a path that leads out": (_set(datasets=[{"path": "x/../../other"}]), [r"datasets\[0\]", "path"]),
    "a level that is not there": (_set(datasets=[{"path": "7"}]), ['no array "7"', "copy it again"]),
    "no multiscales": (lambda ome: ome.update(multiscales=[]), ["no list"]),
    "a scale of another rank": (
        lambda ome: ome["multiscales"][0]["datasets"][0]["coordinateTransformations"][0].update(scale=[1, 2]),
        ["scale", r"\[1, 2\]", "5 numbers"],
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_metadata_are_named(cells, case):
    path, _ = cells
    version = "0.4" if (path / ".zattrs").exists() else "0.5"
    change, parts = MALFORMED[case]
    edit_ome(path, version, change)
    with pytest.raises(ValueError) as caught:
        zarr_dali.Loader(path, level=0, device="cpu")
    for part in [*parts, str(path)]:
        assert re.search(part, str(caught.value)), f"{part!r} is not in: {caught.value}"


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("change", [_drop_axes(2), _set(axes=axes_of("tcyyx"))], ids=["rank", "names"])
def test_arrays_of_malformed_images_are_read_by_their_paths(backend, tmp_path, change, capfd):
    """Without names, and it is said why."""
    levels = write_cells(tmp_path / "a.zarr", "0.4")
    edit_ome(tmp_path / "a.zarr", "0.4", change)
    (samples,) = read_all(backend, tmp_path / "a.zarr", arrays=["0"])
    np.testing.assert_array_equal(np.stack(samples), levels["image"][0])
    said = capfd.readouterr().err
    assert "a.zarr/0: the metadata of its OME-Zarr image name the axes" in said and "without names" in said
    with pytest.raises(ValueError, match='no array has a dimension "c", only dimensions without names'):
        build(backend, tmp_path / "a.zarr", arrays=["0"], select='{"c": [0]}')


REFUSED = {
    "a level that does not exist": ({"level": 2}, ["level", "2 levels, from 0 to 1", "no 2"]),
    "a negative level": ({"level": -1}, ["level", "-1"]),
    "a level by name": ({"level": "1"}, ["level", "'1'"]),
    "labels that do not exist": ({"labels": "nuclei"}, ["labels", "nuclei", "cells, depth"]),
    "levels and paths": ({"level": 1, "arrays": ["0"]}, ["arrays, level and labels"]),
    "an index that is not there": ({"select": {"c": 3}}, ["c=3", "0 to 2"]),
    "a channel that is not there": ({"select": {"c": "Cy5"}}, ["Cy5", "DAPI, GFP, RFP"]),
    "an axis that is not there": ({"select": {"w": 3}}, ["w", "no dimension", "'t', 'c', 'z', 'y', 'x'"]),
    "a window that is too large": ({"window": [1, 4]}, ["window", "4", "3"]),
    "two levels": ({"arrays": ["0", "1"], "select": {"c": 0}}, ["1", "8 indices along y", "16"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(cells, case):
    path, _ = cells
    arguments, parts = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        zarr_dali.Loader(path, device="cpu", **arguments)
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"


@pytest.mark.parametrize("version", VERSIONS)
def test_labels_of_another_extent_are_refused(tmp_path, version):
    """Also where no window covers the axis; the operator says so where one does."""
    path = tmp_path / "a.zarr"
    write_image(path, [values_of((4, 8, 8))], "cyx", version)
    write_labels(path, "small", [values_of((1, 4, 8))], "cyx", version)
    write_labels(path, "other", [values_of((2, 8, 8))], "cyx", version)
    with pytest.raises(ValueError, match='"labels/small/0" has 4 indices along y, but "0" has 8'):
        zarr_dali.Loader(path, labels="small", device="cpu")
    with pytest.raises(ValueError, match=r'dimension "y" has 8 steps, but 4 in .*small'):
        build(CPU, path, arrays=["0", "labels/small/0"], window=[1, 2])
    with pytest.raises(ValueError, match="along c"):
        zarr_dali.Loader(path, labels="other", device="cpu")
    with pytest.raises(ValueError, match=r"\[4, 8, 8\].*labels/other/0.*\[2, 8, 8\]"):
        build(CPU, path, arrays=["0", "labels/other/0"])


@pytest.mark.gpu_where(False)
def test_samples_are_taken_along_one_first_dimension(backend, tmp_path):
    write_group(tmp_path)
    for name, axes in (("a", ["t", "y", "x"]), ("b", ["y", "t"])):
        write_array(tmp_path, name, np.zeros([6] * len(axes)), chunks=(3,) * len(axes), dimension_names=axes)
    with pytest.raises(ValueError, match=r'first dimension "t", which is not the first in .*"b"'):
        build(backend, tmp_path, arrays=["a", "b"])


@pytest.mark.gpu_where(False)
def test_one_step_is_not_repeated_in_joined_stores(backend, tmp_path):
    """Which of the stores it belongs to is not known."""
    for number in range(2):
        path = write_group(tmp_path / str(number))
        for name, steps in (("a", 6), ("b", 1)):
            write_array(path, name, np.zeros((steps, 4)), chunks=(1, 4), dimension_names=["t", "x"])
    with pytest.raises(ValueError, match='dimension "t" has 6 steps, but 1 in'):
        build(backend, f"{tmp_path}/*", arrays=["a", "b"])
    samples, repeated = read_all(backend, tmp_path / "0", arrays=["a", "b"], window=[2])
    assert {sample.shape for sample in samples} == {(2, 4)} and {one.shape for one in repeated} == {(1, 4)}


@pytest.mark.parametrize("version", VERSIONS)
def test_plates_that_do_not_fit_are_refused(tmp_path, version):
    def write_field(folder, well, field):
        axes = "cyx" if well == "A/1" else "zyx"
        write_image(folder, [values_of((2, 4, 4))], axes, version)

    path = write_plate(tmp_path / "plate.zarr", {"A/1": ["0"], "B/1": ["0"]}, write_field, version)
    with pytest.raises(ValueError, match=r'list of dimensions is .*"c", "y", "x".*"z", "y", "x".*B/1/0'):
        zarr_dali.Loader(path, device="cpu")
    edit_ome(path / "B" / "1", version, lambda ome: ome.update(well={"images": []}))
    with pytest.raises(ValueError, match=r'plate.zarr/B/1: "well".* no list "images"'):
        zarr_dali.Loader(path, device="cpu")
    edit_ome(path, version, lambda ome: ome["plate"]["wells"].append({"path": "../outside/1"}))
    with pytest.raises(ValueError, match=r'"plate".* no list "wells" of paths'):
        zarr_dali.Loader(path, device="cpu")
    edit_ome(path, version, lambda ome: ome["plate"].pop("wells"))
    with pytest.raises(ValueError, match=r'"plate".* no list "wells"'):
        zarr_dali.Loader(path, device="cpu")
    with pytest.raises(ValueError, match="no OME-Zarr image, plate or well"):
        zarr_dali.ome_zarr(write_group(tmp_path / "none.zarr"))


@pytest.mark.gpu_where(False)
def test_the_path_of_a_level_says_how_to_select(backend, cells):
    path, levels = cells
    _, found = batches_of(path / "0", backend)
    np.testing.assert_array_equal(found["data"], levels["image"][0])
    with pytest.raises(ValueError, match=r"give the path of the image, and its arrays by name"):
        zarr_dali.select(path / "0", c=0)


def test_python_and_the_core_name_dimensions_alike(tmp_path, rng):
    """Of arrays with names of their own, of images, and of neither."""
    from zarr_dali import _core, _dimensions

    for version in VERSIONS:
        path = tmp_path / version
        write_image(path, [values_of((2, 4, 4))], "cyx", version, own_names=False)
        write_image(path / "in" / "side", [values_of((4, 4))], "yx", version)
        write_array(path, "9", values_of((4, 4)), chunks=(4, 4), zarr_format=FORMATS[version])
        names = ["0", "in/side/0", "9"]
        nodes = _dimensions.nodes_of(_core.Objects(path), names)
        assert [nodes[name].dimensions for name in names] == [("c", "y", "x"), ("y", "x"), ()]
        for name, layout in zip(names, ("CHW", "HW", "")):
            (output,) = build(CPU, path, arrays=[name], window=[1]).run()
            assert output.layout() == layout
