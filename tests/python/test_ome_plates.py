"""Plates, wells and other collections of OME-Zarr images as separate stores."""

import numpy as np
import pytest

import zarr_dali
from naive import Sampling, expected_beside
from ome_stores import (
    FORMATS,
    VERSIONS,
    put,
    pyramid,
    values_of,
    write_image,
    write_labels,
    write_plate,
)
from range_server import serving, urls
from reading import batches_of, build, read_all
from test_remote import zipped

pytestmark = pytest.mark.skipif(3 not in FORMATS.values(), reason="zarr-python 2 writes no Zarr v3")


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


@pytest.mark.parametrize("well", [None, "A/2"])
@pytest.mark.parametrize("names", [["1"], ["0", "labels/nuclei/0"], ["labels/nuclei/1"]], ids=" ".join)
def test_arrays_by_name_are_those_of_all_fields(backend, plate, names, well):
    path, values = plate
    fields = [name for name in values if well is None or name.startswith(well)]
    given = {"arrays": names, "return_index": True, "window": [1, 1, 2, 4]}
    _, found = batches_of(path / (well or ""), backend, **given)
    level = int(names[0][-1])
    expected = [
        (store, y, x)
        for store, field in enumerate(fields)
        for channel in range(2 if names[0] in "01" else 1)
        for y in range(0, values[field]["image"][level].shape[2] - 1, 2)
        for x in range(0, 8 // 2**level, 4)
    ]
    assert len(expected) == len(found["index"])
    for number, (store, _t, c, y, x) in enumerate(found["index"].tolist()):
        for name in names:
            kind, channels = ("nuclei", 0) if "nuclei" in name else ("image", c)
            whole = values[fields[store]][kind][level]
            np.testing.assert_array_equal(
                found[name][number], whole[:, channels : channels + 1, y : y + 2, x : x + 4]
            )
    chosen = zarr_dali.select(path / (well or ""), arrays=names, window=[1, 1, 2, 4])
    assert chosen["path"] == [f"{path}/{field}" for field in fields] and chosen["join"] == "separate"
    (samples, *_) = read_all(backend, **chosen)
    np.testing.assert_array_equal(samples, found[names[0]])
    described = zarr_dali.info(path / (well or ""), names, device="cpu", window=[1, 1, 2, 4])
    assert [array.name for array in described.arrays] == names and not described.unreadable


@pytest.mark.gpu_where(False)
def test_arrays_of_one_field_by_their_path_in_the_plate(backend, plate):
    path, values = plate
    _, found = batches_of(path, backend, arrays=["B/3/1/0"], window=[1, 2, 8, 8], stride=[1, 2, 4, 8])
    first = values["B/3/1"]["image"][0]
    np.testing.assert_array_equal(found["B/3/1/0"][0], first[:, :, :8])
    with pytest.raises(ValueError, match=r'"7" of ".*B/3/0" is not an array'):
        batches_of(path, backend, arrays=["7"])


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


def write_random_plate(folder, rng):
    """A plate of some fields of random extents, with labels; its axes, and the arrays of each field."""
    version = str(rng.choice(VERSIONS))
    axes = "".join(axis for axis in "tcz" if rng.random() < 0.6) + "yx"
    own = "".join(axis for axis in axes if axis in "yx" or rng.random() < 0.6)
    single = {axis for axis in own if axis not in "yx" and rng.random() < 0.4}
    largest, fields = {"t": 4, "c": 4, "z": 4, "y": 9, "x": 8}, []

    def write_field(path, well, field):
        shape = [int(rng.integers(2, largest[axis] + 1)) for axis in axes]
        extents = [1 if axis in single else shape[axes.index(axis)] for axis in own]
        first = 20_000 * len(fields)
        image, labels = values_of(shape, first), values_of(extents, first + 10_000)
        chunks = [tuple(int(rng.integers(1, one + 1)) for one in array.shape) for array in (image, labels)]
        write_image(path, [image], axes, version, chunks=chunks[0])
        write_labels(path, "cells", [labels], own, version, chunks=chunks[1])
        fields.append({"0": (axes, image), "labels/cells/0": (own, labels)})

    wells = {
        f"A/{column + 1}": ["0", "1"][: int(rng.integers(1, 3))] for column in range(int(rng.integers(1, 3)))
    }
    return write_plate(folder / "plate.zarr", wells, write_field, version), axes, fields


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 24))])
def test_random_plates(backend, tmp_path, seed):
    """Each sample is what the images and labels of its field have under its window."""
    rng = np.random.default_rng([20261128, seed])
    path, axes, fields = write_random_plate(tmp_path, rng)
    shapes = [field["0"][1].shape for field in fields]
    tried = {"cpu": 20, "gpu": 3}[backend.device]
    for _ in range(tried):
        window = tuple(int(rng.integers(1, max(extents) // 2 + 1)) for extents in zip(*shapes))
        stride = tuple(int(rng.integers(1, 4)) for _ in window)
        sampling = Sampling(window=window, stride=stride)
        starts = [(store, *start) for store, shape in enumerate(shapes) for start in sampling.samples(shape)]
        arguments = zarr_dali.ome_zarr(path, labels="cells") | sampling.arguments()
        if not starts:
            with pytest.raises(ValueError, match="window"):
                build(backend, **arguments)
            continue
        order = {"random_shuffle": True, "seed": 3} if rng.random() < 0.5 else {}
        outputs = read_all(
            backend, return_index=True, batch_size=max(4, len(starts) // 6), **order, **arguments
        )
        found = [tuple(index)[-len(axes) - 1 :] for index in outputs[-1]]
        if len(fields) == 1:
            found = [(0, *index) for index in found]
        assert sorted(found) == starts and (order or found == starts)
        for name, samples in zip(arguments["arrays"], outputs):
            expected = [
                sample
                for shape, field in zip(shapes, fields)
                for sample in expected_beside(sampling, shape, axes, *field[name])
            ]
            for index, sample in zip(found, samples):
                what = f"{name} at {index}: {axes} {shapes}, {sampling}"
                np.testing.assert_array_equal(
                    sample, expected[starts.index(index)], strict=True, err_msg=what
                )


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("kind", ["s3", "http", "signed", "zip at a URL", "zip"])
def test_plates_elsewhere(backend, plate, kind):
    """At URLs, whose queries stay behind the path, and in zip files."""
    path, values = plate
    folder = path.parent / "bucket"
    folder.mkdir()
    path.rename(folder / "plate.zarr")
    if "zip" in kind:
        zipped(folder / "plate.zarr", folder / "plate.zip")
    with serving(path.parent) as server:
        stores = {
            **urls(server.url),
            "signed": (f"{server.url}/bucket/data.zarr?sig=1", {}),
            "zip at a URL": (f"{server.url}/bucket/plate.zip", {}),
            "zip": (str(folder / "plate.zip"), None),
        }
        given, options = stores[kind]
        given = given.replace("data.zarr", "plate.zarr")
        arguments = {"level": 1, "labels": "nuclei", "storage_options": options}
        read = {"window": [1, 1, 2, 4], "return_index": True, "select": {"c": slice(0, 1)}}
        _, found = batches_of(given, backend, **arguments, **read)
    stores = list(values.values())
    for image, labels, (store, _t, _c, y, _x) in zip(
        found["image"], found["nuclei"], found["index"].tolist()
    ):
        np.testing.assert_array_equal(image, stores[store]["image"][1][:, :1, y : y + 2])
        np.testing.assert_array_equal(labels, stores[store]["nuclei"][1][:, :, y : y + 2])
    assert set(found["index"][:, 0]) == set(range(len(stores)))
