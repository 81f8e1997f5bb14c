"""How `zarr_dali.info` reports: widths of terminals, dimensions, coordinates, static arrays, exit codes."""

import io
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import zarr_dali
from stores import FORMATS, write_array
from zarr_dali import _advice, cli

if 3 not in FORMATS:
    pytest.skip("the stores are written with zarr-python 3", allow_module_level=True)

import zarr

NAMES = ("time", "level", "latitude", "longitude")
SIZES = {"time": 58440, "level": 13, "latitude": 721, "longitude": 1440}


@pytest.fixture(scope="module", params=[2, 3])
def weather(request, tmp_path_factory):
    """A group as xarray writes it, of which hardly a chunk is there: fields, a mask, coordinates, text."""
    path = tmp_path_factory.mktemp("weather") / "w.zarr"
    group = zarr.open_group(str(path), mode="w", zarr_format=request.param)

    def create(name, dimensions, chunks, **options):
        shape = tuple(SIZES[one] for one in dimensions)
        named = {"dimension_names": dimensions} if request.param == 3 else {}
        options = {"dtype": "float32"} | options
        array = group.create_array(name, shape=shape, chunks=chunks, **options, **named)
        if request.param == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)
        return array

    sharded = {"shards": (10, 13, 721, 1440)} if request.param == 3 else {}
    create("temperature", NAMES, (1, 13, 721, 1440), **sharded)
    surface = create("2m_temperature", ("time", "latitude", "longitude"), (744, 20, 20))
    surface.attrs["coordinates"] = "height valid_time"
    create("land_sea_mask", ("latitude", "longitude"), (721, 1440), dtype="int8")[...] = 1
    create("valid_time", ("time",), (58440,), dtype="int64")
    create("height", (), ())
    for name in NAMES:
        create(name, (name,), (SIZES[name],), dtype="float64")
    zarr.consolidate_metadata(str(path)) if request.param == 2 else None
    return path


def shown(report, width):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(report)
    return console.file.getvalue()


def numbers(text):
    return re.findall(r"\d[\d,.]*", text)


# --- widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("width", [60, 80, 120, 139, 140, 160, 200])
def test_no_number_is_broken(weather, width, device):
    found = zarr_dali.info(weather, device=device, window=[2], batch_size=8)
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    tables = "58440x13x721x1440" in text
    # The same lists, or tables, with all the room that there can be.
    if width < 140:
        assert not tables and numbers(text) == numbers(shown(found, 139))
    if width >= 160:
        assert tables and sorted(numbers(text)) == sorted(numbers(shown(found, 400)))
    extents = ("58440x721x1440", "744x20x20") if tables else ("time=58440,", "latitude=721,", "744 x 20 x 20")
    assert all(one in text for one in extents)


def test_text_for_a_file_has_room(weather):
    text = str(zarr_dali.info(weather, device="cpu"))
    assert "58440x13x721x1440" in text and max(map(len, text.splitlines())) <= 160


def test_names_that_are_long(tmp_path):
    """Of which a table of 160 columns would break a number."""
    path = tmp_path / "g.zarr"
    zarr.open_group(str(path), mode="w")
    name = "a_variable_with_a_name_of_more_than_sixty_letters_as_models_write_them"
    write_array(path, name, np.zeros((3, 4), "float32"), chunks=(1, 4))
    shape = (1234567, 12345, 1234)
    zarr.create_array(f"{path}/b", shape=shape, chunks=(1000, 12345, 617), dtype="float32")
    text = shown(zarr_dali.info(path, device="cpu"), 160)
    assert name in text and "1234567 x 12345 x 1234" in text and "1000 x 12345 x 617" in text


# --- what belongs to what -------------------------------------------------------------------------


def test_dimensions_coordinates_and_static_arrays(weather):
    found = zarr_dali.info(weather, device="cpu", window=[2], batch_size=8)
    arrays = {array["name"]: array for array in json.loads(found.to_json())["arrays"]}
    assert arrays["temperature"]["dimensions"] == list(NAMES)
    assert arrays["land_sea_mask"]["dimensions"] == ["latitude", "longitude"]
    assert {name for name, array in arrays.items() if array["coordinate"]} == {*NAMES, "height", "valid_time"}
    static = {
        name: array["static"] for name, array in arrays.items() if array["static"] and not array["coordinate"]
    }
    assert static == {"land_sea_mask": {"type": "int8", "shape": [721, 1440], "layout": "HW"}}
    assert arrays["land_sea_mask"]["reading"] is None
    assert arrays["temperature"]["reading"]["outputs"][0]["shape"] == [2, 13, 721, 1440]
    assert found.unreadable == ()
    before, after = str(found).split("Coordinates")
    assert not re.search(r"^ +(time|latitude|valid_time) ", before, re.MULTILINE)
    assert "time 58440 float64" in after.split("Reading")[0]
    assert re.search(r"land_sea_mask +int8 721x1440 +static", after)


def test_static_arrays_under_a_window_of_patches(weather):
    found = zarr_dali.info(weather, device="cpu", window=[2, 13, 128, 64])
    (mask,) = [array for array in found.arrays if array.name == "land_sea_mask"]
    assert mask.static.shape == (128, 64) and mask.problem is None
    # 2m_temperature has no level: a window of four extents is not for it.
    assert found.unreadable == ("2m_temperature",)


def test_static_arrays_are_those_of_the_reader(weather):
    names = ["temperature", "land_sea_mask"]
    found = zarr_dali.info(weather, names, device="cpu", window=[1, 13, 32, 32])
    assert found.arrays[1].static == found.together.outputs[1]
    assert found.arrays[0].static is None and not any(array.coordinate for array in found.arrays)


def test_arrays_without_names_of_dimensions(tmp_path):
    path = tmp_path / "g.zarr"
    zarr.open_group(str(path), mode="w")
    write_array(path, "a", np.zeros((6, 4), "float32"), chunks=(1, 4))
    write_array(path, "b", np.zeros((4,), "float32"), chunks=(4,))
    found = zarr_dali.info(path, device="cpu")
    assert all(array.dimensions == () and not array.coordinate and not array.static for array in found.arrays)
    # What is asked for by name is no coordinate, and a group of nothing but coordinates has arrays.
    time = zarr.create_array(
        f"{path}/time", shape=(6,), chunks=(6,), dtype="int32", dimension_names=("time",)
    )
    time[...] = 1
    assert not zarr_dali.info(path, "time", device="cpu").arrays[0].coordinate
    (alone,) = zarr_dali.info(path / "time", device="cpu").arrays
    assert alone.dimensions == ("time",) and not alone.coordinate


# --- advice ---------------------------------------------------------------------------------------


def test_advised_chunks_are_of_sane_sizes():
    """Any shape, chunk and window: enough bytes or the whole array, not too many, within the array."""
    rng = np.random.default_rng(5)
    for _ in range(500):
        ndim = int(rng.integers(1, 6))
        shape = tuple(int(2 ** rng.uniform(0, 14)) for _ in range(ndim))
        window = [int(rng.integers(1, extent + 3)) for extent in shape[: int(rng.integers(1, ndim + 1))]]
        element_bytes = int(rng.choice([1, 2, 4, 8]))
        whole = math.prod(shape) * element_bytes
        array = SimpleNamespace(shape=shape, decoded_bytes=whole, values=math.prod(shape))
        stride = [int(rng.integers(1, 5)) for _ in window] if rng.random() < 0.3 else None
        chunk = _advice.better_chunks(array, {"window": window, "stride": stride})
        size = math.prod(chunk) * element_bytes
        assert len(chunk) == ndim and all(1 <= one <= extent for one, extent in zip(chunk, shape))
        assert min(whole, _advice.TINY_INNER_CHUNK_BYTES) <= size <= _advice.LARGE_CHUNK_BYTES


@pytest.mark.parametrize(
    "shape, chunks, window",
    [
        ((3, 20_000_000), (1, 1000), [1, 1]),
        ((2, 3000, 3000), (1, 10, 10), [1, 1, 1]),
        pytest.param((40_000_000,), (1000,), [2], marks=pytest.mark.full),
    ],
)
def test_small_windows_get_no_tiny_chunks(tmp_path, shape, chunks, window):
    zarr.create_array(str(tmp_path / "a.zarr"), shape=shape, chunks=chunks, dtype="int16")
    found = zarr_dali.info(tmp_path / "a.zarr", device="cpu", window=window)
    texts = [one.text for one in found.advice]
    assert any("inner chunks of (" in text for text in texts), texts
    assert not any(re.search(r"inner chunks of \(.*\) \(\d+ B\)", text) for text in texts)


def test_chunks_that_are_as_good_as_any_are_left_alone(tmp_path):
    """A sample of one value decodes a chunk, whatever the chunk is."""
    zarr.create_array(str(tmp_path / "a.zarr"), shape=(16_000_000,), chunks=(131_072,), dtype="int16")
    found = zarr_dali.info(tmp_path / "a.zarr", device="cpu", window=[1])
    assert not any("(131072,)" in one.text for one in found.advice)


# --- the command ----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(cli.main, [*map(str, arguments)])


def test_strict_exit_codes(tmp_path):
    path = tmp_path / "g.zarr"
    zarr.open_group(str(path), mode="w")
    options = {"dtype": "float32", "dimension_names": ("time", "x")}
    zarr.create_array(f"{path}/good", shape=(100, 100_000), chunks=(3, 100_000), **options)
    info = ("info", path, "--device", "cpu")
    assert run(*info, "--strict").exit_code == 0
    assert run(*info, "--strict", "--window", "101").exit_code == 3
    zarr.create_array(f"{path}/small", shape=(100, 100_000), chunks=(1, 100), **options)
    assert run(*info, "--strict").exit_code == 4
    assert run(*info, "--strict", "--arrays", "good").exit_code == 0
    assert run(*info).exit_code == 0
    # A coordinate of text is no reason not to read the rest.
    zarr.create_array(f"{path}/x", shape=(100_000,), chunks=(100_000,), dtype=str, dimension_names=("x",))
    assert run(*info, "--strict").exit_code == 4
    zarr.create_array(f"{path}/text", shape=(100,), chunks=(100,), dtype=str, dimension_names=("time",))
    refused = run(*info, "--strict", "--json")
    assert refused.exit_code == 3 and json.loads(refused.stdout)["arrays"]
    assert run("info", path / "nowhere", "--strict").exit_code == 1


def test_repeated_arrays_add_up(weather):
    options = (
        "--arrays",
        "temperature,land_sea_mask",
        "--arrays",
        "2m_temperature",
        "--arrays",
        "temperature",
    )
    values = json.loads(run("info", weather, *options, "--json", "--device", "cpu").stdout)
    assert [array["name"] for array in values["arrays"]] == ["temperature", "land_sea_mask", "2m_temperature"]


def test_json_means_the_same_in_every_command(tmp_path):
    """It is a flag, and what is printed is JSON alone."""
    path = write_array(tmp_path / "a.zarr", None, np.ones((8, 100), "float32"), chunks=(2, 100))
    planned = json.loads(run("rechunk", path, tmp_path / "b.zarr", "--dry-run", "--json").stdout)
    assert planned["arrays"][0]["chunk"] == [2, 100] and not (tmp_path / "b.zarr").exists()
    done = json.loads(run("rechunk", path, tmp_path / "b.zarr", "--verify", "--json").stdout)
    assert done["checksums"] and done["arrays"] == planned["arrays"]
    assert json.loads(run("statistics", path, "--json").stdout)["a.zarr"]["mean"] == 1.0
    assert json.loads(run("info", path, "--json", "--device", "cpu").stdout)["arrays"]
    for name, command in cli.main.commands.items():
        assert all(option.is_flag for option in command.params if "--json" in option.opts), name
