"""`zarr_dali.example_store`: what is in it, for the reader and for xarray, and that it stays the same."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dali
from forked import start_script
from reading import CPU, read_all
from stores import FORMATS
from zarr_dali import cli

SHAPES = {"t2m": (16, 32), "msl": (16, 32), "t": (3, 16, 32)}


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


@pytest.mark.parametrize("steps, chunk_steps", [(240, 1), (240, 60), (7, 3), (2, 5)])
@pytest.mark.gpu_where(lambda case: case["chunk_steps"] == 3)
def test_values(backend, tmp_path, steps, chunk_steps):
    """In chunks of any length the same weather, within what the Earth has."""
    path = zarr_dali.example_store(tmp_path / "e.zarr", steps=steps, chunk_steps=chunk_steps)
    found = read_all(backend, path, arrays=[*SHAPES, "land_mask"])
    fields = {name: np.stack(samples) for name, samples in zip((*SHAPES, "land_mask"), found)}
    for name, shape in SHAPES.items():
        assert fields[name].shape == (steps, *shape) and fields[name].dtype == np.float32
    assert fields["t"].min() > 195 and fields["t2m"].max() < 325
    assert (fields["t"][:, 0] > fields["t"][:, 2]).all()
    assert 95_000 < fields["msl"].min() < fields["msl"].max() < 106_000
    assert 0.1 < fields["land_mask"].mean() < 0.6 and set(np.unique(fields["land_mask"])) == {0, 1}
    assert len({field.tobytes() for field in fields["t2m"]}) == steps, "each step differs"


def test_xarray_reads_it(tmp_path):
    xr = pytest.importorskip("xarray")
    if 3 not in FORMATS:
        pytest.skip("this zarr-python does not read Zarr v3")
    path = zarr_dali.example_store(tmp_path / "e.zarr", steps=7, chunk_steps=3)
    dataset = xr.open_zarr(path, consolidated=False, chunks=None)
    assert dict(dataset.sizes) == {"time": 7, "latitude": 16, "longitude": 32, "level": 3}
    assert dataset.time.values[1] == np.datetime64("2010-01-01T06") and dataset.t.attrs["units"] == "K"
    for name in SHAPES:
        (samples,) = read_all(CPU, path, arrays=[name])
        np.testing.assert_array_equal(np.stack(samples), dataset[name].values)


def test_years_join(tmp_path):
    """A value depends on its time and place alone."""
    whole = zarr_dali.example_store(tmp_path / "whole.zarr", start="2010-12-30", steps=16)
    for year, start in (("2010", "2010-12-30"), ("2011", "2011-01-01")):
        zarr_dali.example_store(tmp_path / "years" / f"{year}.zarr", start=start, steps=8, chunk_steps=4)
    (expected,) = read_all(CPU, whole, arrays=["t2m"])
    (found,) = read_all(CPU, str(tmp_path / "years" / "20??.zarr"), arrays=["t2m"])
    np.testing.assert_array_equal(found, expected)


def test_it_is_always_the_same(tmp_path, monkeypatch):
    """Byte by byte on one machine, and by its values everywhere: a change of them needs a new VERSION."""
    first = zarr_dali.example_store(tmp_path / "a.zarr", steps=8)
    monkeypatch.setenv("HOME", str(tmp_path))
    second = zarr_dali.example_store("~/b.zarr", steps=8)
    assert contents(first) == contents(second) and second == str(tmp_path / "b.zarr")
    digest = hashlib.sha256()
    for samples in read_all(CPU, first, arrays=[*SHAPES, "land_mask"]):
        # Sines may differ by a last bit between processors.
        digest.update(np.stack(samples).astype("f8").round(1).tobytes())
    assert digest.hexdigest()[:16] == "1f110036f0c8045d"


def test_what_is_there_is_kept(tmp_path):
    path = tmp_path / "e.zarr"
    assert zarr_dali.example_store(path, steps=4) == str(path)
    before = {file: os.stat(path / file).st_mtime_ns for file in contents(path)}
    zarr_dali.example_store(path, steps=4)
    assert {file: os.stat(path / file).st_mtime_ns for file in contents(path)} == before
    other = tmp_path / "other"
    other.mkdir()
    for taken, arguments in ((path, {"steps": 5}), (path, {"steps": 4, "chunk_steps": 2}), (other, {})):
        with pytest.raises(FileExistsError, match="is there and not this example; remove it"):
            zarr_dali.example_store(taken, **arguments)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["e.zarr", "other"], (
        "nothing is left beside them"
    )


@pytest.mark.full
def test_ranks_may_write_it_at_once(tmp_path):
    """As processes of one training do: all get the path, and no part of a store is ever seen."""
    code = "import sys, zarr_dali; print(zarr_dali.example_store(sys.argv[1]))"
    path = tmp_path / "e.zarr"
    for rank in [start_script(code, path) for _ in range(3)]:
        printed, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert printed.strip() == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["e.zarr"]
    assert contents(path) == contents(zarr_dali.example_store(tmp_path / "again.zarr"))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"steps": 0}, "steps=0"),
        ({"chunk_steps": 0}, "chunk_steps=0"),
        ({"start": "x"}, "start='x' is no time"),
    ],
)
def test_bad_arguments(tmp_path, arguments, words):
    with pytest.raises(ValueError, match=words):
        zarr_dali.example_store(tmp_path / "e.zarr", **arguments)
    assert not list(tmp_path.iterdir())


def test_command(tmp_path):
    path = str(tmp_path / "e.zarr")
    done = CliRunner().invoke(cli.main, ["example", path, "--steps", "4", "--start", "2020-01-01"])
    assert (done.exit_code, done.output.strip()) == (0, path)
    assert contents(path) == contents(
        zarr_dali.example_store(tmp_path / "x.zarr", steps=4, start="2020-01-01")
    )
    done = CliRunner().invoke(cli.main, ["example", path])
    assert done.exit_code == 1 and "remove it or choose another path" in done.output
