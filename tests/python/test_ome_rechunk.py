"""Copies of OME-Zarr: `rechunk` writes Zarr v3, and so the metadata of OME-Zarr 0.5, about what it copies."""

import json
from pathlib import Path

import numpy as np
import pytest

from ome_stores import (
    FORMATS,
    VERSIONS,
    metadata_in,
    put,
    pyramid,
    values_of,
    write_image,
    write_labels,
    write_plate,
)

if 3 not in FORMATS.values():
    pytest.skip("rechunk needs zarr-python 3", allow_module_level=True)

import zarr

import zarr_dali
from stores import edit_metadata, write_array

AXES = "tczyx"
SHAPE = (2, 3, 4, 16, 12)
SCALE = (2.0, 1.0, 0.5, 0.25, 0.25)
CHANNELS = ["DAPI", "GFP", "RFP"]


def write_image_with_cells(path, version, own_names=True):
    """An image of two levels with labels of one channel."""
    options = {"version": version, "scale": SCALE, "own_names": own_names}
    write_image(path, pyramid(values_of(SHAPE), AXES, 2), AXES, channels=CHANNELS, **options)
    labels = values_of((2, 1, 4, 16, 12), 100_000)
    return write_labels(path, "cells", pyramid(labels, AXES, 2), AXES, **options).parents[1]


def own(path):
    """What a copy says of OME-Zarr in a group."""
    return metadata_in(path, "0.5")


def assert_valid(path):
    """A hierarchy as OME-Zarr 0.5 has it, as far as its text says MUST; returns the paths of its images."""
    images = []
    for file in sorted(Path(path).rglob("zarr.json")):
        node = json.loads(file.read_text())
        attributes = node.get("attributes", {})
        assert not {"multiscales", "plate", "well", "omero", "image-label"} & set(attributes), file
        ome = attributes.get("ome")
        if ome is None:
            continue
        assert node["node_type"] == "group" and ome["version"] == "0.5"
        group = file.parent
        for image in ome.get("multiscales", []):
            images.append(str(group.relative_to(path)))
            assert_valid_image(group, image)
        for label in ome.get("labels", []):
            assert "multiscales" in own(group / label)
        for well in ome.get("plate", {}).get("wells", []):
            row, column = well["path"].split("/")
            assert ome["plate"]["rows"][well["rowIndex"]]["name"] == row
            assert ome["plate"]["columns"][well["columnIndex"]]["name"] == column
            assert "well" in own(group / well["path"])
        for field in ome.get("well", {}).get("images", []):
            assert "multiscales" in own(group / field["path"])
        if "plate" in ome:
            assert ome["plate"]["version"] == "0.5" and ome["plate"]["wells"]
    return sorted(images)


def assert_valid_image(group, image):
    names = [axis["name"] for axis in image["axes"]]
    order = {"time": 0, "channel": 1, "space": 2}
    kinds = [order[axis["type"]] for axis in image["axes"]]
    assert 2 <= len(set(names)) == len(names) <= 5 and kinds == sorted(kinds) and kinds.count(2) in (2, 3)
    assert "version" not in image and image["datasets"]
    sizes = []
    for dataset in image["datasets"]:
        array = zarr.open_array(str(group / dataset["path"]), mode="r")
        assert list(array.metadata.dimension_names) == names
        sizes.append(array.size)
        steps = dataset["coordinateTransformations"]
        assert [step["type"] for step in steps] in (["scale"], ["scale", "translation"])
        assert all(len(step[step["type"]]) == len(names) for step in steps)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("version, own_names", [("0.4", False), ("0.5", True), ("0.5", False)])
def test_a_copy_is_a_valid_image(tmp_path, version, own_names):
    """With chunks by the names of its axes; levels, labels and scales are those of the source."""
    source, copy = write_image_with_cells(tmp_path / "a.zarr", version, own_names), tmp_path / "copy.zarr"
    edit_metadata(
        source / (".zattrs" if version == "0.4" else "zarr.json"),
        lambda node: (node if version == "0.4" else node["attributes"]).update(note="kept"),
    )
    zarr_dali.rechunk(source, copy, chunks={"c": 1, "y": 8, "x": -1}, shards={"z": 4}, codec="zstd")
    assert assert_valid(copy) == [".", "labels/cells"]
    assert json.loads((copy / "zarr.json").read_text())["attributes"]["note"] == "kept"
    was = {
        key: value
        for key, value in metadata_in(source, version)["multiscales"][0].items()
        if key != "version"
    }
    assert own(copy)["multiscales"] == [was] and own(copy)["omero"] == metadata_in(source, version)["omero"]
    assert own(copy / "labels") == {"version": "0.5", "labels": ["cells"]}
    assert own(copy / "labels" / "cells")["image-label"]["source"] == {"image": "../../"}
    for name in ("0", "1", "labels/cells/0", "labels/cells/1"):
        here, there = (zarr.open_array(str(path / name), mode="r") for path in (copy, source))
        np.testing.assert_array_equal(here[...], there[...], strict=True)
    assert zarr.open_array(str(copy / "0"), mode="r").chunks == (1, 1, 2, 8, 12)
    loaders = [zarr_dali.Loader(path, labels="cells", device="cpu", level=1) for path in (source, copy)]
    for here, there in zip(*loaders, strict=True):
        assert all((here[name] == there[name]).all() for name in ("image", "cells"))
    again = tmp_path / "again.zarr"
    zarr_dali.rechunk(copy, again, codec="none")
    assert own(again) == own(copy) and assert_valid(again)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_copied_is_not_named(tmp_path, version):
    source = write_image_with_cells(tmp_path / "a.zarr", version)
    zarr_dali.rechunk(source, tmp_path / "level.zarr", variables=["1"])
    assert assert_valid(tmp_path / "level.zarr") == ["."]
    (image,) = own(tmp_path / "level.zarr")["multiscales"]
    assert [level["path"] for level in image["datasets"]] == ["1"]
    assert image["datasets"][0]["coordinateTransformations"] == [
        {"type": "scale", "scale": [2.0, 1.0, 0.5, 0.5, 0.5]}
    ]
    assert not (tmp_path / "level.zarr" / "labels").exists()
    zarr_dali.rechunk(source, tmp_path / "labels.zarr", variables=["labels/cells/0"])
    assert assert_valid(tmp_path / "labels.zarr") == ["labels/cells"]
    assert own(tmp_path / "labels.zarr") == {}, "there is no image"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_part_has_its_place(tmp_path, version):
    """A translation of levels, behind one that they have, and the channels that are copied."""
    source = write_image_with_cells(tmp_path / "a.zarr", version)
    zarr_dali.rechunk(
        source, tmp_path / "b.zarr", index_range={"c": (1, 3), "z": (2, 4)}, variables=["0", "1"]
    )
    assert assert_valid(tmp_path / "b.zarr") == ["."]
    omero = own(tmp_path / "b.zarr")["omero"]["channels"]
    assert [channel["label"] for channel in omero] == ["GFP", "RFP"]
    zarr_dali.rechunk(
        tmp_path / "b.zarr", tmp_path / "c.zarr", index_range={"z": (1, 2), "y": (4, 12)}, variables=["0"]
    )
    assert assert_valid(tmp_path / "c.zarr") == ["."]
    (level,) = own(tmp_path / "c.zarr")["multiscales"][0]["datasets"]
    assert level["coordinateTransformations"][1:] == [
        {"type": "translation", "translation": [0.0, 1.0, 1.5, 1.0, 0.0]}
    ]
    part = zarr.open_array(str(tmp_path / "c.zarr" / "0"), mode="r")[...]
    np.testing.assert_array_equal(part, values_of(SHAPE)[:, 1:, 3:4, 4:12])
    (array,) = zarr_dali.info(tmp_path / "c.zarr", device="cpu").arrays
    assert [axis.translation for axis in array.axes] == [0.0, 1.0, 1.5, 1.0, 0.0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_range_of_several_levels_is_refused(tmp_path, version):
    source = write_image_with_cells(tmp_path / "a.zarr", version)
    with pytest.raises(ValueError, match=r"differ along y \(16 in 0, 8 in 1\).*variables=\['0'\]"):
        zarr_dali.rechunk(source, tmp_path / "b.zarr", index_range={"y": (0, 8)})
    zarr_dali.rechunk(
        source, tmp_path / "b.zarr", index_range={"y": (0, 8)}, variables=["0", "labels/cells/0"]
    )
    assert assert_valid(tmp_path / "b.zarr") == [".", "labels/cells"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_of_a_plate(tmp_path, version):
    def write_field(folder, well, field):
        write_image_with_cells(folder, version)

    source = write_plate(tmp_path / "a.zarr", {"A/1": ["0", "1"], "B/2": ["0"]}, write_field, version)
    zarr_dali.rechunk(source, tmp_path / "b.zarr", chunks={"z": 1})
    fields = ["A/1/0", "A/1/1", "B/2/0"]
    assert assert_valid(tmp_path / "b.zarr") == [
        f"{field}{part}" for field in fields for part in ("", "/labels/cells")
    ]
    stores = [zarr_dali.ome_zarr(path)["path"] for path in (source, tmp_path / "b.zarr")]
    assert [[Path(store).relative_to(tmp_path).parts[1:] for store in own] for own in stores] == [
        [tuple(field.split("/")) for field in fields]
    ] * 2
    zarr_dali.rechunk(source, tmp_path / "c.zarr", variables=["A/1/1/0"])
    assert assert_valid(tmp_path / "c.zarr") == ["A/1/1"]
    assert zarr_dali.ome_zarr(tmp_path / "c.zarr") == {"path": f"{tmp_path}/c.zarr/A/1/1", "arrays": ["0"]}


def test_other_versions_stay_as_they_are(tmp_path):
    """Axes of 0.3 are no axes of 0.5; arrays get their names all the same."""
    path = write_image_with_cells(tmp_path / "a.zarr", "0.4")
    edit_metadata(path / ".zattrs", lambda ome: ome["multiscales"][0].update(axes=list(AXES), version="0.3"))
    zarr_dali.rechunk(path, tmp_path / "b.zarr", chunks={"c": 1})
    attributes = json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())["attributes"]
    assert attributes["multiscales"][0]["version"] == "0.3" and "ome" not in attributes
    assert zarr.open_array(str(tmp_path / "b.zarr" / "0"), mode="r").metadata.dimension_names == tuple(AXES)


def test_labels_of_other_stores_are_no_labels(tmp_path):
    """An attribute of that name, or a series, means what its writer means."""
    put(tmp_path / "a.zarr", "0.4", labels=["cat", "dog"], series=[1, 2], well="deep")
    write_array(tmp_path / "a.zarr", "x", values_of((4,)), chunks=(2,), zarr_format=2)
    edit_metadata(tmp_path / "a.zarr" / ".zattrs", lambda attributes: attributes.pop("well"))
    zarr_dali.rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr")
    attributes = json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())["attributes"]
    assert attributes == {"labels": ["cat", "dog"], "series": [1, 2]}


def test_statistics_by_channel(tmp_path):
    """The axes of images are names of dimensions there, too."""
    path = write_image_with_cells(tmp_path / "a.zarr", "0.4")
    found = zarr_dali.statistics(path, ["0"], by="c", mask_and_scale=False)
    channels = values_of(SHAPE).astype("float64").swapaxes(0, 1).reshape(3, -1)
    np.testing.assert_allclose(found["0"]["mean"], channels.mean(axis=1))
    loader = zarr_dali.Loader(path, level=0, normalize={"image": found["0"]}, device="cpu")
    assert abs(float(next(iter(loader))["image"].mean())) < 1
