"""A small store to try things with: two weeks or more of made-up weather."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarr_dali import _locations

LATITUDES = np.linspace(90, -90, 16)
LONGITUDES = np.arange(0, 360, 360 / 32)
LEVELS = np.array([850, 500, 250])
"""In hPa."""
HOURS = 6
"""Between two steps."""
EPOCH = np.datetime64("2000-01-01T00", "h")
"""What times are counted from."""
VERSION = 1
"""Of the values: the same version, the same values."""
MARK = "zarr_dali_example"
"""The attribute by which an example is known."""


def example_store(
    path: str | os.PathLike[str], *, start: str = "2010-01-01", steps: int = 240, chunk_steps: int = 1
) -> str:
    """Writes a small store of made-up weather, always with the same values, as the documentation uses it.

        loader = zarr_dali.Loader(zarr_dali.example_store("era5.zarr"), ["t2m", "msl"], device="cpu")

    A Zarr v3 group on a grid of 16 latitudes, from north to south, and 32 longitudes: `t2m` (2 m temperature,
    K) and `msl` (sea-level pressure, Pa) with the dimensions (time, latitude, longitude), `t` (temperature,
    K) with (time, level, latitude, longitude) on 850, 500 and 250 hPa, a static `land_mask` (0 or 1), and
    coordinates. Fields are float32, waves that move eastwards over seasons and hours of the day, compressed
    with gzip. A value depends on its time and place alone, so that stores of other years can be joined.

    Args:
        path: Folder to write. One that has the same example is left as it is.
        start: Time of the first step.
        steps: Steps, each six hours.
        chunk_steps: Steps of a chunk.

    Returns:
        The path, as text.

    Raises:
        FileExistsError: There is something else at the path.
        ValueError: A number is below 1, or `start` is no time.
    """
    if steps < 1 or chunk_steps < 1:
        raise ValueError(f"steps={steps} and chunk_steps={chunk_steps} have to be 1 or more")
    try:
        first = np.datetime64(start, "h")
    except ValueError as error:
        raise ValueError(f"start={start!r} is no time ({error}); write it as in 2010-01-01") from error
    about = {"version": VERSION, "start": str(first), "steps": steps, "chunk_steps": chunk_steps}
    times = first + np.arange(steps) * HOURS
    return written_once(path, about, lambda folder: _write(folder, times, chunk_steps, about))


def written_once(
    path: str | os.PathLike[str], about: Mapping[str, Any], write: Callable[[Path], None]
) -> str:
    """The path of an example that `write` writes into a folder, unless it is there.

    Raises:
        FileExistsError: There is something else at the path.
    """
    text = _locations.as_text(path)
    folder = Path(text)
    if folder.exists():
        if _mark_of(folder) == about:
            return text
        raise FileExistsError(f"{text} is there and not this example; remove it or choose another path")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        write(partial)
        partial.rename(folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        # Another process, such as another rank, may have been faster.
        if not isinstance(error, OSError) or _mark_of(folder) != about:
            raise
    return text


def _mark_of(folder: Path) -> Any:
    """How the example in a folder was made; None if there is none."""
    try:
        return json.loads((folder / "zarr.json").read_text())["attributes"][MARK]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(folder: Path, times: np.ndarray, chunk_steps: int, about: Mapping[str, Any]) -> None:
    grid = ("latitude", "longitude")
    hours = (times - EPOCH).astype("int64")
    since = {"units": "hours since 2000-01-01", "calendar": "proleptic_gregorian"}
    write_array(folder, "time", hours, ("time",), since)
    write_array(folder, "latitude", LATITUDES, ("latitude",), {"units": "degrees_north"})
    write_array(folder, "longitude", LONGITUDES, ("longitude",), {"units": "degrees_east"})
    write_array(folder, "level", LEVELS, ("level",), {"units": "hPa"})
    write_array(folder, "land_mask", _land().astype("float32"), grid, {"long_name": "land, 1, or sea, 0"})
    fields = {
        "t2m": (("time", *grid), "2 m temperature", "K", _temperature(hours, 0.0)),
        "msl": (("time", *grid), "sea-level pressure", "Pa", _pressure(hours)),
        "t": (("time", "level", *grid), "temperature", "K", _by_level(hours)),
    }
    for name, (dimensions, title, units, values) in fields.items():
        write_array(folder, name, values, dimensions, {"long_name": title, "units": units}, chunk_steps)
    title = {"title": "Made-up weather to try zarr-dali with", MARK: about}
    write_metadata(folder, {"node_type": "group", "attributes": title})


# --- values ---------------------------------------------------------------------------------------


def _land() -> np.ndarray:
    """Where land is: a few continents with smooth coasts."""
    latitude, longitude = np.meshgrid(np.deg2rad(LATITUDES), np.deg2rad(LONGITUDES), indexing="ij")
    height = np.sin(2 * longitude + 1) * np.cos(latitude) + np.sin(3 * latitude + np.cos(longitude))
    return height > 0.6


def _temperature(hours: np.ndarray, altitude: float) -> np.ndarray:
    """In K, at an altitude in km: colder poles, seasons, days and nights over land, and waves."""
    time, latitude, longitude = _broadcast(hours)
    year, day = 2 * np.pi * time / (24 * 365.25), 2 * np.pi * time / 24
    mean = 300 - 34 * np.sin(latitude) ** 2 - 5 * altitude
    season = -12 * np.sin(latitude) * np.cos(year)
    sun = np.where(_land(), 6.0, 1.0) * np.cos(latitude) * np.cos(day + longitude - np.pi)
    return mean + season + sun * np.exp(-altitude) + 4 * np.cos(latitude) * _wave(time, longitude, 3)


def _by_level(hours: np.ndarray) -> np.ndarray:
    altitudes = 44.3 * (1 - (LEVELS / 1013.25) ** 0.19)
    return np.stack([_temperature(hours, altitude) for altitude in altitudes], axis=1)


def _pressure(hours: np.ndarray) -> np.ndarray:
    """In Pa: highs and lows that move eastwards, strongest in middle latitudes."""
    time, latitude, longitude = _broadcast(hours)
    belts = 101_300 + 900 * np.cos(6 * latitude)
    return belts + 1_500 * np.sin(2 * latitude) ** 2 * (
        _wave(time, longitude, 4) + 0.5 * _wave(time, longitude, 7)
    )


def _wave(time: np.ndarray, longitude: np.ndarray, number: int) -> np.ndarray:
    """So many crests around the globe, each at the place of the next after four days, growing and fading."""
    phase = number * longitude - 2 * np.pi * time / (24 * 4)
    return np.sin(phase) * (1 + 0.3 * np.sin(2 * np.pi * time / (24 * 13) + number))


def _broadcast(hours: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    latitude, longitude = np.deg2rad(LATITUDES)[:, None], np.deg2rad(LONGITUDES)
    return hours[:, None, None].astype("float64"), latitude, longitude


# --- files ----------------------------------------------------------------------------------------


def write_array(
    folder: Path,
    name: str,
    values: np.ndarray,
    dimensions: tuple[str, ...],
    attributes: Mapping[str, Any],
    chunk_steps: int | None = None,
) -> None:
    """An array in Zarr v3, in chunks of steps or in one. Fields are float32."""
    values = values.astype("<f4" if chunk_steps else values.dtype.newbyteorder("<"))
    chunk = (min(chunk_steps, len(values)) if chunk_steps else len(values), *values.shape[1:])
    metadata = {
        "node_type": "array",
        "shape": values.shape,
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "gzip", "configuration": {"level": 5}},
        ],
        "dimension_names": dimensions,
        "attributes": dict(attributes),
    }
    write_metadata(folder / name, metadata)
    for number, part in _chunks(values, chunk[0]):
        file = folder.joinpath(name, "c", str(number), *["0"] * (values.ndim - 1))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(part.tobytes(), 5, mtime=0))


def _chunks(values: np.ndarray, steps: int) -> Iterator[tuple[int, np.ndarray]]:
    """The chunks along the first dimension; the last one is filled up."""
    for number, start in enumerate(range(0, len(values), steps)):
        part = values[start : start + steps]
        missing = [(0, steps - len(part)), *[(0, 0)] * (values.ndim - 1)]
        yield number, np.pad(part, missing)


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps({"zarr_format": 3, **metadata}, indent=1))
