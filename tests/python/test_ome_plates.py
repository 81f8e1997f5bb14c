"""Plates, wells and other collections of OME-Zarr images as separate stores."""

import numpy as np
import pytest

import zarr_dali
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
from reading import batches_of, build, read_all

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
