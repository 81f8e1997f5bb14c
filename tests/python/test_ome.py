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
    metadata_in,
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
        outputs = read_all(backend, path, return_index=True, **arguments)
        assert [tuple(index) for index in outputs[-1]] == starts, what
        for name, samples in zip(names, outputs):
            expected = expected_samples(sampling, shape, axes, *arrays[name])
            assert len(samples) == len(expected), what
            for sample, values in zip(samples, expected):
                np.testing.assert_array_equal(sample, values, strict=True, err_msg=f"{name}: {what}")
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
        what = f"{axes} {shape}, {[(name, arrays[name][0]) for name in names]}, {labels}, {sampling}, {chosen}"
        try:
            outputs = read_all(backend, batch_size=8, **chosen, **rest)
        except ValueError as error:
            raise AssertionError(what) from error
        for name, samples in zip(names, outputs):
            expected = expected_samples(sampling, shape, axes, *arrays[name], selected)
            assert len(samples) == len(expected), what
            for sample, values in zip(samples, expected):
                np.testing.assert_array_equal(sample, values, strict=True, err_msg=f"{name}: {what}")
