"""OME-Zarr that does not fit: malformed metadata, levels and labels that are not there, other extents."""

import re

import numpy as np
import pytest

import zarr_dali
from ome_stores import (
    FORMATS,
    VERSIONS,
    axes_of,
    edit_ome,
    values_of,
    write_cells,
    write_image,
    write_labels,
    write_plate,
)
from reading import CPU, build, read_all
from stores import write_array, write_group

pytestmark = pytest.mark.skipif(3 not in FORMATS.values(), reason="zarr-python 2 writes no Zarr v3")


@pytest.fixture(params=VERSIONS)
def cells(request, tmp_path):
    """The path of an image of each version, and the levels of the image and its labels."""
    path = tmp_path / "cells.zarr"
    return path, write_cells(path, request.param)


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
    "labels by number": ({"labels": 5}, ["labels", "5"]),
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
