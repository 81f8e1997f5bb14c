"""The scripts in `pipelines/` run as a person would run them, on every device that is there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reading import assert_reads
from stores import FORMATS, read_array, write_array, write_group

PIPELINES = Path(__file__).parents[2] / "pipelines"


def run_script(name, *arguments, cwd, timeout=300):
    """Runs one script in an empty folder; returns the finished process."""
    return subprocess.run(
        [sys.executable, str(PIPELINES / name), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )


@pytest.fixture
def store(tmp_path, rng):
    """12 steps of two variables on a 48 x 64 grid, with latitude and longitude beside them."""
    path = tmp_path / "weather.zarr"
    write_group(path)
    steps = np.linspace(0, 1, 12, dtype="float32")[:, None, None]
    for name in ("t2m", "msl"):
        field = rng.standard_normal((48, 64), dtype="float32") + steps
        write_array(
            path, name, field, chunks=(1, 48, 64), fill_value=0, dimension_names=("time", "lat", "lon")
        )
    write_array(path, "lat", np.linspace(90, -90, 48), chunks=(48,))
    return path


@pytest.mark.parametrize("script", sorted(path.name for path in PIPELINES.glob("*.py")))
def test_help(script, tmp_path):
    done = run_script(script, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_minimal(backend, store, tmp_path):
    done = run_script(
        "minimal.py", store, "--arrays", "t2m", "msl", "--window", 2, "--batch-size", 3, "--batches", 2,
        "--device", backend.device, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "11 samples" in done.stdout
    for batch in range(2):
        for step in range(3 * batch, 3 * batch + 3):
            for name in ("t2m", "msl"):
                assert f"{store}/{name}[{step}:{step + 2}, 0:48, 0:64]" in done.stdout
    assert "[3, 2, 48, 64] float32" in done.stdout
    assert "THW" in done.stdout


def test_minimal_over_one_array(backend, store, tmp_path):
    done = run_script("minimal.py", store / "lat", "--device", backend.device, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "48 samples" in done.stdout


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["nowhere.zarr"], "nowhere.zarr"),
        (["weather.zarr"], "msl"),
        (["weather.zarr", "--arrays", "t2n"], "t2m"),
        (["weather.zarr", "--arrays", "t2m", "--window", "99"], "window"),
    ],
)
def test_minimal_says_what_is_wrong(store, tmp_path, arguments, part):
    done = run_script("minimal.py", *arguments, "--device", "cpu", cwd=store.parent)
    assert done.returncode == 1
    assert part in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr


def test_train_unet_on_a_store(backend, store, tmp_path):
    summary = tmp_path / "summary.json"
    done = run_script(
        "train_unet.py", "--store", store, "--arrays", "t2m", "msl", "--batch-size", 3, "--epochs", 2,
        "--warmup", 1, "--device", backend.device, "--json", summary, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d samples/s", done.stdout)
    assert "waiting for data" in done.stdout
    result = json.loads(summary.read_text())
    # 11 pairs in batches of 3 make 4 steps an epoch, the last one of 2 samples; one step warms up.
    assert result["steps"] == 7
    assert result["samples"] == 2 * 11 - 3
    assert np.isfinite([result["first_loss"], result["last_loss"]]).all()


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--store", "nowhere.zarr"], "nowhere.zarr"),
        (["--store", "weather.zarr/lat"], "T, H, W"),
    ],
)
def test_train_unet_says_what_is_wrong(store, tmp_path, arguments, part):
    done = run_script("train_unet.py", *arguments, "--device", "cpu", cwd=store.parent)
    assert done.returncode == 1
    assert part in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr


def test_train_unet_without_a_store(backend, tmp_path):
    """Writes its small store, uses it, and does not write it again."""
    arguments = ["--steps", 2, "--batch-size", 2, "--warmup", 0, "--quiet", "--device", backend.device]
    for wrote in (True, False):
        done = run_script("train_unet.py", *arguments, "--data-dir", tmp_path / "data", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("wrote " in done.stdout) == wrote
        assert "6 channels" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.skipif(3 not in FORMATS, reason="needs zarr-python 3")
def test_era5_like_stores_hold_the_same_values(backend, tmp_path):
    """Chunks and codecs of the benchmark's stores change nothing about the values, and all can be read."""
    layouts = ["raw", "zstd", "sharded", "blosc-lz4", "blosc-zstd"]
    done = run_script(
        "era5_like.py", "all", "--steps", 3, "--grid", 32, 40, "--layout", *layouts, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    values = read_array(tmp_path / "all/raw.zarr")
    assert values.shape == (3, 6, 32, 40)
    assert len(np.unique(values)) > 1000
    for layout in layouts:
        assert_reads(backend, tmp_path / f"all/{layout}.zarr", "", values)
    again = run_script(
        "era5_like.py", "all", "--steps", 3, "--grid", 32, 40, "--layout", *layouts, cwd=tmp_path
    )
    assert again.stdout.count("already there") == 5
