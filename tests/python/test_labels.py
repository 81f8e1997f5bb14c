"""Ranges by labels and by positions: what xarray selects, or an error that names both."""

import numpy as np
import pandas as pd
import pytest

import zarr_dali
from zarr_dali._labels import Coordinate, Ranges, parse

xr = pytest.importorskip("xarray")

TIMES = pd.date_range("2009-11-20", periods=900, freq="36h")
LEVELS = pd.Index([50, 100, 500, 700, 850])
MODEL_LEVELS = pd.Index(np.arange(1, 138))
LATITUDES = pd.Index(np.linspace(90, -90, 19))
CALENDAR = xr.date_range("2000-01-01", periods=720, calendar="360_day", use_cftime=True)
NAMES = pd.Index(["a", "b", "c", "d"])


def bounds(index, labels=None, positions=None, size=None):
    ranges = Ranges.of(
        None if labels is None else {"x": labels}, None if positions is None else {"x": positions}
    )
    coordinate = None if index is None else Coordinate(index)
    return ranges.bounds("x", len(index) if size is None else size, lambda: coordinate)


def by_xarray(index, label):
    found = np.atleast_1d(xr.DataArray(np.arange(len(index)), {"x": index}, ["x"]).sel(x=label).values)
    return int(found[0]), int(found[-1]) + 1


@pytest.mark.parametrize(
    "text, found",
    [
        ("2010", "2010"),
        ("2010:2015", slice("2010", "2015")),
        ("2010:", slice("2010", None)),
        (":2010-05", slice(None, "2010-05")),
        ("2010-01-01T06:00", "2010-01-01T06:00"),
        ("2010-01-01T06:00:00", "2010-01-01T06:00:00"),
        ("2010-01-01T06:00:2011", slice("2010-01-01T06:00", "2011")),
        ("2010-01-01T06:2011-01-01T06:00:00Z", slice("2010-01-01T06", "2011-01-01T06:00:00Z")),
        ("60:-60", slice("60", "-60")),
        (":", slice(None, None)),
        ("a:b", slice("a", "b")),
    ],
)
def test_ranges_of_the_command_line(text, found):
    assert parse(text) == found


@pytest.mark.parametrize("text", ["", "a:b:c", "06:00:07:00"])
def test_ranges_that_are_not_clear(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    "index, label",
    [
        (TIMES, "2010"),
        (TIMES, "2010-03"),
        (TIMES, ("2010", "2011")),
        (TIMES, slice("2010-02-03", "2010-12-01T12:00")),
        (TIMES, slice(None, "2010")),
        (TIMES, slice(np.datetime64("2010-01-01"), TIMES[300])),
        (LEVELS, slice(500, 850)),
        (LEVELS, 500),
        (LATITUDES, slice(60.0, -60.0)),
        (LATITUDES, slice(None, 0.0)),
        (NAMES, slice("b", "c")),
        (NAMES, "d"),
        (MODEL_LEVELS, slice(10.0, 20.0)),
        (CALENDAR, slice("2000-02", "2001")),
    ],
    ids=str,
)
def test_labels_are_those_of_xarray(index, label):
    as_slice = slice(*label) if isinstance(label, tuple) else label
    assert bounds(index, label) == by_xarray(index, as_slice)


def test_a_year_is_a_year():
    """900 steps have a position 2009 nowhere, 9000 have: it is the year either way."""
    for periods in (900, 9000):
        index = pd.date_range("2009-11-20", periods=periods, freq="36h")
        start, stop = bounds(index, parse("2010:2011"))
        assert set(index[start:stop].year) == {2010, 2011}
        assert start == (index.year < 2010).sum() and stop == (index.year <= 2011).sum()


@pytest.mark.parametrize("label, number", [("500:850", slice(500, 850)), ("700", 700)])
def test_numbers_in_texts(label, number):
    assert bounds(LEVELS, parse(label)) == by_xarray(LEVELS, number)


@pytest.mark.parametrize(
    "positions, found",
    [((3, 7), (3, 7)), (slice(None, -2), (0, 898)), ((2, None), (2, 900)), (5, (5, 6)), (-1, (899, 900))],
)
def test_positions_are_those_of_a_slice(positions, found):
    assert bounds(TIMES, positions=positions) == found


def test_dimensions_without_coordinates_have_positions():
    assert bounds(None, slice(2, 5), size=10) == bounds(None, parse("2:5"), size=10) == (2, 5)
    with pytest.raises(ValueError, match="no coordinate; give positions from 0 to 9 by index_range"):
        bounds(None, "2010-01", size=10)
    with pytest.raises(ValueError, match="x=2010:2011 holds none of the 10 indices"):
        bounds(None, "2010", size=10)


@pytest.mark.parametrize(
    "index, label, text",
    [
        # The levels 10 to 20, or the positions: labels would be one more and begin one earlier.
        (
            MODEL_LEVELS,
            slice(10, 20),
            r"labels \(positions 9 to 19\) or positions \(labels 11 to 20\).*x=10.0:20.0.*index_range",
        ),
        (MODEL_LEVELS, 5, r"labels .* or positions .*x=5.0, or give positions by index_range"),
        (
            LATITUDES,
            slice(0, 5),
            r"selects nothing.*order of the coordinate.*positions are given by index_range",
        ),
        (
            LATITUDES,
            slice(-60.0, 60.0),
            r"selects nothing: the coordinate x has 19 values from 90.0 to -90.0, descending",
        ),
        (LEVELS, 3, r"is not there.*positions are given by index_range"),
        (TIMES, slice(0, 100), r"0 is no time.*write times as 2010.*positions are given by index_range"),
        (TIMES, slice("0", "100"), r"'0' is no time"),
        (TIMES, slice("2030", "2040"), r"selects nothing: the coordinate x has 900 values from 2009-11-20"),
        (TIMES, (1, 2, 3), "neither a slice nor"),
        (LEVELS, slice(50, 850, 2), "step of 2"),
        (pd.Index([1.0, 2.0, 1.0]), 1.0, "more than one range"),
    ],
    ids=str,
)
def test_what_is_refused(index, label, text):
    with pytest.raises(ValueError, match=text):
        bounds(index, label)


def test_both_at_once():
    with pytest.raises(ValueError, match="range, index_range: both say what is meant of x"):
        bounds(TIMES, "2010", (0, 3))


@pytest.mark.parametrize("seed", range(20))
def test_any_range_is_that_of_xarray_or_refused(seed):
    """Coordinates of whole numbers: taken where only labels can be meant, or both mean the same."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        index = pd.Index(np.unique(rng.integers(-5, 60, size=12)))
        index = index[:: rng.choice([1, -1])]
        label = slice(*(None if rng.random() < 0.2 else int(end) for end in rng.integers(-5, 60, size=2)))
        wanted = xr.DataArray(np.arange(len(index)), {"x": index}, ["x"]).sel(x=label).values
        try:
            found = bounds(index, label)
        except ValueError as error:
            assert not wanted.size or "index_range" in str(error)
            continue
        assert found == (wanted[0], wanted[-1] + 1)
        decimal = slice(*(None if end is None else float(end) for end in (label.start, label.stop)))
        assert bounds(index, decimal) == found


# --- longitudes ------------------------------------------------------------------------------------

EAST = pd.Index(np.arange(0.0, 360.0, 10.0))
BOTH = pd.Index(np.arange(-180.0, 180.0, 10.0))


def longitudes(index, label):
    return Ranges.of({"longitude": label}, None).bounds(
        "longitude", len(index), lambda: Coordinate(index, is_longitude=True)
    )


@pytest.mark.parametrize(
    "index, label, expected",
    [
        (EAST, slice(30, 60), (3, 7)),
        (EAST, slice(-45, -15), (32, 35)),
        (EAST, slice("-45", "-15"), (32, 35)),
        (BOTH, slice(200, 300), (2, 13)),
        (BOTH, slice(0, 360), (0, 36)),
        (EAST, slice(0.0, 360.0), (0, 36)),
        (BOTH, 190, (1, 2)),
    ],
)
def test_longitudes_are_a_circle(index, label, expected):
    assert longitudes(index, label) == expected


@pytest.mark.parametrize(
    "index, label, parts",
    [
        (EAST, slice(-10, 10), ("350", "10")),
        (EAST, slice(350, 10), ("350", "10")),
        (BOTH, slice(170, -170), ("170", "-170")),
    ],
)
def test_a_range_of_longitudes_is_one_piece(index, label, parts):
    west, east = (rf"longitude={parts[0]}(\.0)?:", rf"longitude=:{parts[1]}(\.0)?")
    with pytest.raises(ValueError, match=f"crosses the end of the coordinate .*: take {west} and {east} one"):
        longitudes(index, label)


def test_what_is_called_a_longitude_and_has_metres_is_no_circle(tmp_path):
    for units, expected in (("degrees_east", (0, 36)), ("m", (18, 36))):
        path = tmp_path / f"{units}.zarr"
        data = {"a": ("lon", np.arange(36.0))}
        coordinates = {"lon": ("lon", np.arange(-180.0, 180.0, 10.0), {"units": units})}
        xr.Dataset(data, coordinates).to_zarr(path, zarr_format=3, consolidated=False)
        found = zarr_dali.statistics(path, ["a"], range={"lon": (0.0, 360.0)})["a"]
        assert (found["min"], found["count"]) == (expected[0], expected[1] - expected[0])
