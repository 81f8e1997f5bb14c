"""`zarr_dali.select`: labels become the reader's arguments, with xarray as the reference.

What a reader with these arguments yields is held against `.sel` of xarray on the same store, and the
refusals against what a reader cannot take.
"""

import datetime
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import zarr_dali
from reading import read_all
from stores import FORMATS, write_array, write_group
from zarr_dali._store_coordinates import stores

STEPS = 60
TIMES = pd.date_range("2010-01-30", periods=STEPS, freq="6h")
LATITUDES = np.linspace(75, -75, 6)
LONGITUDES = np.arange(0, 360, 45.0)
LEVELS = np.array([1000, 850, 500])


def write_fields(path, times, zarr_format=None, units="hours since 1900-01-01", values=None):
    """t(time, lat, lon), q(time, level, lat, lon), mask(lat, lon), bare(step), and the coordinates."""
    zarr_format = zarr_format or max(FORMATS)
    write_group(path, zarr_format)

    def write(name, data, dimensions):
        data = np.asarray(data)
        options = {"dimension_names": dimensions, "zarr_format": zarr_format}
        # Of Zarr v2 xarray takes the fill value for a missing one.
        write_array(path, name, data, chunks=data.shape, fill_value=-999, **options)

    steps = np.arange(len(times)) if values is None else values
    grid = np.arange(48.0).reshape(6, 8) / 100
    write("t", steps[:, None, None] + grid, ("time", "latitude", "longitude"))
    write(
        "q",
        steps[:, None, None, None] + 1000 * np.arange(3)[:, None, None] + grid,
        ("time", "level", "latitude", "longitude"),
    )
    write("mask", grid, ("latitude", "longitude"))
    write("bare", np.arange(10), ("step",))
    write("turned", np.zeros((6, len(times), 8)), ("latitude", "time", "longitude"))
    write("level", LEVELS, ("level",))
    write("latitude", LATITUDES, ("latitude",))
    write("longitude", LONGITUDES, ("longitude",))
    epoch = pd.Timestamp(units.split(" since ")[1])
    hours = ((times - epoch) / pd.Timedelta("1h")).to_numpy()
    assert (hours == np.round(hours)).all()
    write("time", hours.astype("int64"), ("time",))
    group = zarr_group(path)
    group["time"].attrs.update({"units": units, "calendar": "proleptic_gregorian"})
    return path


def zarr_group(path):
    return zarr.open_group(str(path), mode="r+")


@pytest.fixture(scope="module", params=FORMATS, ids=lambda version: f"v{version}")
def store(request, tmp_path_factory):
    return write_fields(tmp_path_factory.mktemp("select") / "fields.zarr", TIMES, request.param)


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    return write_fields(tmp_path_factory.mktemp("select") / "fields.zarr", TIMES)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A step is missing behind index 20, and another behind 40."""
    times = TIMES.delete([21, 42])
    return write_fields(tmp_path_factory.mktemp("select") / "uneven.zarr", times)


@pytest.fixture(scope="module")
def months(tmp_path_factory):
    """The same steps in stores of 25, 25 and 10, with units of their own: part-8, part-9, part-10."""
    folder = tmp_path_factory.mktemp("months")
    for name, start, end in [("part-8", 0, 25), ("part-9", 25, 50), ("part-10", 50, STEPS)]:
        write_fields(
            folder / f"{name}.zarr", TIMES[start:end], units=f"hours since {TIMES[start]}",
            values=np.arange(start, end),
        )  # fmt: skip
    return folder


def dataset(path):
    return xr.open_zarr(path, chunks=None, consolidated=False)


LABELS = [
    {},
    {"time": slice("2010-02-01", "2010-02-03")},
    {"time": slice("2010-02", None)},
    {"time": slice(None, "2010-02-01T06")},
    {"time": "2010-02-02"},
    {"time": TIMES[7]},
    {"time": np.datetime64("2010-01-31T12")},
    {"time": datetime.datetime(2010, 1, 31, 12)},
    {"time": ["2010-01-31", "2010-01-31T06"]},
    {"latitude": slice(60, -30)},
    {"latitude": 45},
    {"longitude": slice(90, 180)},
    {"time": slice("2010-02-01", "2010-02-03"), "longitude": [45, 90, 135]},
    {"latitude": [15.0], "longitude": slice(300, 315)},
    {"time": slice(None), "latitude": slice(None, None)},
]


@pytest.mark.gpu_where(lambda case: len(case["labels"]) == 2)
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_selects_as_xarray_does(backend, store, labels):
    """What the reader yields is `.sel` of the array; single labels keep their dimension."""
    arguments = zarr_dali.select(store, arrays=["t"], **labels)
    assert arguments["path"] == str(store)
    expected = dataset(store)["t"].sel(labels)
    for name in ("time", "latitude", "longitude"):
        if name not in expected.dims:
            expected = expected.expand_dims(name)
    expected = expected.transpose("time", "latitude", "longitude").values
    (samples,) = read_all(backend, **arguments)
    np.testing.assert_array_equal(np.stack(samples), expected)


def test_inner_dimensions_and_static_arrays(newest):
    """Dimensions in front are whole, those behind are left to the reader; static arrays are no obstacle."""
    arguments = zarr_dali.select(newest, arrays=["mask", "q"], level=500)
    assert arguments == {
        "path": str(newest), "arrays": ["mask", "q"], "roi_start": [0, 2], "roi_end": [STEPS, 3],
    }  # fmt: skip
    both = zarr_dali.select(newest, arrays=["t", "q"], time="2010-02-01")
    assert (both["roi_start"], both["roi_end"]) == ([8], [12])
    static = zarr_dali.select(newest, arrays=["t", "mask"], latitude=slice(60, 0))
    assert (static["roi_start"], static["roi_end"]) == ([0, 1], [STEPS, 3])


def test_paths(newest, months):
    """An array by itself has the coordinates of its group; nested groups and single names work as well."""
    alone = zarr_dali.select(newest / "t", time="2010-02-01")
    assert alone == {"path": str(newest / "t"), "roi_start": [8], "roi_end": [12]}
    nested = zarr_dali.select(newest.parent, arrays=f"{newest.name}/t", time="2010-02-01")
    assert nested["arrays"] == ["fields.zarr/t"]
    assert (nested["roi_start"], nested["roi_end"]) == ([8], [12])
    assert zarr_dali.select(newest, arrays="bare", step=slice(2, 5))["roi_end"] == [5]
    parts = [str(months / f"part-{number}.zarr") for number in (8, 9, 10)]
    for path in (parts, tuple(parts), f"{months}/part-*.zarr", [f"{months}/part-?.zarr", parts[-1]]):
        joined = zarr_dali.select(path, arrays=["t"], time=slice(TIMES[20], TIMES[55]))
        assert joined["path"] == (path if isinstance(path, str) else list(path))
        assert (joined["roi_start"], joined["roi_end"]) == ([20], [56])


def test_patterns_are_sorted_as_the_reader_does(tmp_path):
    """Numbers by value, hidden folders and files left out, an existing path is no pattern."""
    names = ["a-", "a1", "p", "p-1a", "p-1b", "p-02", "p-2", "p-9", "p-10", "p-010x", "q1", "q[1]"]
    for name in [*names, ".p"]:
        (tmp_path / name).mkdir()
    (tmp_path / "p-3").write_text("a file")
    assert stores(f"{tmp_path}/*") == [str(tmp_path / name) for name in names]
    assert stores([tmp_path / "q[1]", f"{tmp_path}/[!a-o]1"]) == [f"{tmp_path}/q[1]", f"{tmp_path}/q1"]


def test_joined_stores_are_read_as_selected(backend, months):
    """Indices count through all stores, in the order in which the reader joins them."""
    arguments = zarr_dali.select(
        f"{months}/part-*.zarr", arrays=["t"], time=slice("2010-02-04", "2010-02-13"), offsets=["-6h", "1D"]
    )
    (samples,) = read_all(backend, **arguments)
    first = TIMES.get_loc(pd.Timestamp("2010-02-04"))
    assert [sample[:, 0, 0].tolist() for sample in samples] == [
        [t - 1, t + 4] for t in range(first + 1, STEPS - 4)
    ]


@pytest.mark.parametrize(
    "offsets, steps",
    [
        ([-1, 0, np.int64(3)], [-1, 0, 3]),
        (["-6h", "0h", "12h", "1D"], [-1, 0, 2, 4]),
        ([datetime.timedelta(hours=-6), np.timedelta64(18, "h"), pd.Timedelta("6h"), 2], [-1, 3, 1, 2]),
        ("12h", [2]),
    ],
)
def test_offsets(newest, offsets, steps):
    """Time spans are steps of the first dimension's coordinate."""
    found = zarr_dali.select(newest, arrays=["t"], offsets=offsets)
    assert found["offsets"] == steps
    assert all(type(step) is int for step in found["offsets"])


def test_offsets_where_the_axis_is_uneven(uneven):
    """Spacing counts inside the selection only."""
    even = zarr_dali.select(uneven, arrays=["t"], offsets=["6h"], time=slice(TIMES[22], TIMES[41]))
    assert (even["roi_start"], even["roi_end"], even["offsets"]) == ([21], [41], [1])
    with pytest.raises(ValueError, match=r"offsets.*time.*0 days 12:00:00.*2010-02-04 00:00:00 \(index 20\)"):
        zarr_dali.select(uneven, arrays=["t"], offsets=["6h"])
    assert zarr_dali.select(uneven, arrays=["t"], offsets=[1])["offsets"] == [1]


@pytest.mark.parametrize(
    "exclude, indices",
    [
        ("2010-02-01", range(8, 12)),
        (slice("2010-02-01", "2010-02-02"), range(8, 16)),
        ([slice("2010-02-01", "2010-02-02"), "2010-02-02", TIMES[3], TIMES[50]], [3, *range(8, 16), 50]),
        (TIMES[[5, 2, 5]], [2, 5]),
        (np.array(TIMES[[5, 2]]), [2, 5]),
        (lambda data: data["time"][7], [7]),
        (lambda data: data["time"][[5, 2]], [2, 5]),
        (np.array(TIMES[7]), [7]),
        (np.arange(STEPS) % 20 == 1, [1, 21, 41]),
        ((np.arange(STEPS) % 20 == 1).tolist(), [1, 21, 41]),
        (lambda data: data["t"].isel(latitude=0, longitude=0) > 56.5, [57, 58, 59]),
        (lambda data: data["time"].dt.hour[:10] == 18, [3, 7]),
        ([], None),
        (slice("1999", "2000"), None),
        (np.zeros(STEPS, bool), None),
    ],
    # The names of functions hold addresses, which differ from process to process.
    ids=lambda value: "computed" if callable(value) else str(value),
)
def test_exclude(newest, exclude, indices):
    """Labels, ranges of them and masks name the indices that no sample may touch."""
    if callable(exclude):
        exclude = exclude(dataset(newest))
    found = zarr_dali.select(newest, arrays=["t"], exclude=exclude).get("exclude")
    assert found == (None if indices is None else list(indices))
    inside = zarr_dali.select(newest, arrays=["t"], exclude=exclude, time=slice(TIMES[2], TIMES[9]))
    assert inside.get("exclude", []) == [index for index in indices or [] if 2 <= index <= 9]


def test_tuples_are_lists(newest):
    """As they are in numpy and torch; no coordinate has tuples for labels."""
    found, expected = (
        zarr_dali.select(newest, arrays=["q"], level=levels, latitude=latitudes)
        for levels, latitudes in [((500, 1000), (75.0, 45.0)), ([500, 1000], [75.0, 45.0])]
    )
    assert found == expected and '"level": [2, 0]' in found["select"]


@pytest.mark.parametrize("window", ["2", {"time": 2}, [1, None], 2.5, slice(2)])
def test_windows_that_are_none(newest, window):
    with pytest.raises(TypeError, match="window is"):
        zarr_dali.select(newest, arrays=["t"], window=window)


def test_what_is_gone_through_once(newest):
    found = zarr_dali.select(newest, arrays=["t"], offsets=iter(["-6h", "6h"]), window=iter([2, 3]))
    assert (found["offsets"], found["window"]) == ([-1, 1], [2, 3])


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_arrays_without_names_of_dimensions(tmp_path, zarr_format):
    path = write_group(tmp_path / "fields.zarr", zarr_format)
    write_array(path, "a", np.zeros((4, 3)), chunks=(2, 3), zarr_format=zarr_format)
    with pytest.raises(
        ValueError, match=r"arrays: a in .* no names of dimensions.*dimension_names.*roi_start"
    ):
        zarr_dali.select(path, arrays=["a"], time=slice(0, 2))


REPEATED = r"the label 2010-01-31 00:00:00 occurs 2 times in the coordinate time, at the indices 4, 9; write"


@pytest.mark.parametrize(
    "labels",
    [
        {"time": TIMES[4]},
        {"time": str(TIMES[4])},
        {"time": [TIMES[3], TIMES[4]]},
        {"time": slice(TIMES[3], TIMES[4])},
    ],
    ids=str,
)
def test_a_label_that_occurs_several_times(tmp_path, labels):
    times = TIMES[:12].to_series()
    times.iloc[9] = times.iloc[4]
    path = write_fields(tmp_path / "a.zarr", pd.DatetimeIndex(times))
    with pytest.raises(ValueError, match=REPEATED):
        zarr_dali.select(path, arrays=["t"], **labels)
    # Other labels are found as ever, all indices of a label are excluded, and neighbours are one range.
    for exclude, expected in ((TIMES[4], [4, 9]), ([TIMES[4], TIMES[6]], [4, 6, 9])):
        assert zarr_dali.select(path, arrays=["t"], exclude=exclude)["exclude"] == expected
    assert zarr_dali.select(path, arrays=["t"], time=TIMES[5])["roi_start"] == [5]
    times.iloc[9] = TIMES[9]
    times.iloc[5] = times.iloc[4]
    path = write_fields(tmp_path / "b.zarr", pd.DatetimeIndex(times))
    found = zarr_dali.select(path, arrays=["t"], time=slice(TIMES[4], TIMES[7]))
    assert (found["roi_start"], found["roi_end"]) == ([4], [8])
    with pytest.raises(ValueError, match=r"is not there: the coordinate time has 12 values"):
        zarr_dali.select(path, arrays=["t"], time=TIMES[5])


def test_exclude_reaches_the_reader(backend, newest):
    arguments = zarr_dali.select(newest, arrays=["t"], time=slice(TIMES[4], TIMES[15]), exclude="2010-02-01")
    (samples,) = read_all(backend, window=[2], **arguments)
    assert [int(sample[0, 0, 0]) for sample in samples] == [4, 5, 6, 12, 13, 14]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"time": "2011"}, r"time='2011'.*2010-01-30.*2010-02-13"),
        ({"time": TIMES[0] + pd.Timedelta("1h")}, r"time=.*2010-01-30"),
        ({"time": [(1, 2)]}, r"time=\[\(1, 2\)\].*is not there: the coordinate time has"),
        ({"time": slice(0, 3)}, r"time=slice\(0, 3, None\).*2010-01-30"),
        ({"time": slice("2012", "2013")}, r"time=slice\('2012', '2013', None\) selects nothing.*2010"),
        ({"latitude": slice(-30, 60)}, r"latitude=slice\(-30, 60.*75\.0 to -75\.0, descending"),
        ({"latitude": 44}, r"latitude=44.*75\.0 to -75\.0"),
        ({"latitude": [45, 44]}, r"latitude=\[45, 44\] is not there \(44 is missing\): .*75\.0 to -75\.0"),
        ({"latitude": [45, 44]}, r"descending, among them 45\.0, 15\.0$"),
        ({"latitude": 44}, r"latitude=44 is not there: .*descending, among them 45\.0, 15\.0$"),
        ({"latitude": [44, 45, 90, 91]}, r"\(44, 90, 91 are missing\): .* among them 75\.0, 45\.0, 15\.0$"),
        ({"time": ["2010-01-30T00", "2010-01-30T01"]}, r"\(2010-01-30T01 is missing\): .*, among them"),
        ({"longitude": slice(10, 20)}, r"longitude=slice\(10, 20.*nothing.*0\.0 to 315\.0, ascending"),
        ({"time": slice(TIMES[0], TIMES[9], 2)}, r"time.*every 2th.*stride.*dilation"),
        ({"time": slice(None, None, -1)}, r"time.*opposite order"),
        ({"time": [TIMES[0], TIMES[1], TIMES[3]]}, r"time.*index 1 and then 3.*exclude"),
        ({"time": [TIMES[1], TIMES[0], TIMES[2]]}, r"time.*index 1 and then 0"),
        ({"longitude": []}, r"longitude=\[\] selects nothing"),
        ({"longitude": [[0.0, 45.0]]}, r"longitude.*more than one dimension|longitude.*looked up"),
        ({"level": 500}, r"level.*no dimension.*'time', 'latitude', 'longitude'"),
        ({"heigth": 500}, r"heigth.*no dimension.*latitude"),
        ({"arrays": ["t", "turned"]}, r"arrays: time is the first dimension.*turned"),
        ({"arrays": ["t", "z"]}, r"arrays.*no array z.*'q'.*'t'"),
        ({"arrays": []}, "arrays.*one group"),
        ({"arrays": ["t", "other/t"]}, "arrays.*one group.*other"),
        ({"arrays": ["other/t"]}, "path.*other"),
        ({"arrays": None}, "arrays.*group"),
        ({"path": "nowhere.zarr"}, "path.*nowhere.zarr"),
        ({"path": "no*where.zarr"}, r"path.*no\*where.zarr"),
        ({"path": []}, "path.*empty"),
        ({"offsets": ["5h"]}, r"offsets: '5h'.*0 days 06:00:00.*time"),
        ({"offsets": ["soon"]}, "offsets: 'soon'"),
        ({"offsets": [0.5]}, r"offsets: 0\.5"),
        ({"offsets": [True]}, "offsets: True"),
        ({"offsets": [0, None]}, "offsets: None"),
        ({"offsets": 1.5}, r"offsets: 1\.5"),
        ({"offsets": {0, 1}}, "offsets: a set"),
        ({"offsets": slice(0, 3)}, r"offsets: slice\(0, 3"),
        ({"time": {TIMES[0]}}, r"time=\{.*is no label.*2010-01-30"),
        ({"time": int}, r"time=.*is no label"),
        ({"offsets": [np.timedelta64("NaT")]}, "offsets.*NaT"),
        ({"offsets": ["6h"], "time": TIMES[3]}, "offsets: '6h'.*time"),
        ({"offsets": ["6h"], "arrays": ["bare"]}, "offsets: '6h'.*step.*no coordinate"),
        ({"offsets": ["6h"], "arrays": ["latitude"]}, "offsets: '6h'.*latitude holds no times"),
        ({"exclude": "2011"}, "2011"),
        ({"exclude": [TIMES[0], TIMES[0] + pd.Timedelta("1h")]}, "time.*2010-01-30"),
        ({"exclude": np.zeros(3, bool)}, r"exclude.*3.*60"),
        ({"exclude": xr.DataArray(np.zeros((2, 2), bool), dims=["time", "x"])}, "exclude.*time.*x"),
        (
            {"exclude": xr.DataArray([True], dims=["time"], coords={"time": pd.to_datetime(["2001-01-01"])})},
            "exclude.*2001-01-01",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(newest, arguments, words):
    """Each names the argument and what there is, or what to do instead."""
    with pytest.raises(ValueError, match=words):
        zarr_dali.select(**({"path": newest, "arrays": ["t"]} | arguments))


def test_stores_that_do_not_belong_together(newest, months, tmp_path):
    other = write_fields(tmp_path / "other.zarr", TIMES)
    zarr_group(other)["latitude"][0] = 74
    with pytest.raises(ValueError, match=r"path.*latitude.*other.zarr"):
        zarr_dali.select([newest, other], arrays=["t"], time="2010-02-01")
    with pytest.raises(ValueError, match=r"path.*dimensions"):
        write_group(tmp_path / "flat.zarr")
        write_array(tmp_path / "flat.zarr", "t", np.arange(3), chunks=(3,), dimension_names=("time",))
        zarr_dali.select([newest, tmp_path / "flat.zarr"], arrays=["t"], time="2010-02-01")


def test_calendars(tmp_path):
    """Times that are no datetime64 work the same, if cftime is there to decode them."""
    pytest.importorskip("cftime")
    path = write_fields(tmp_path / "noleap.zarr", TIMES)
    zarr_group(path)["time"].attrs["calendar"] = "noleap"
    first = str(dataset(path)["time"].values[4])
    chosen = zarr_dali.select(path, arrays=["t"], time=slice(first, None), offsets=["-6h"])
    assert (chosen["roi_start"], chosen["offsets"]) == ([4], [-1])


def test_data_are_never_read(newest, tmp_path):
    """Only metadata and coordinates: it works where no other chunk exists."""
    path = shutil.copytree(newest, tmp_path / "hollow.zarr")
    chunks = [file for name in ("t", "q") for file in (path / name).rglob("*") if file.name != "zarr.json"]
    if max(FORMATS) == 3:
        assert chunks
        for file in chunks:
            if file.is_file():
                file.write_bytes(b"no zstd frame")
    assert zarr_dali.select(path, arrays=["t", "q"], time="2010-02-01")["roi_start"] == [8]


def test_without_xarray(newest):
    """The error says what to install; importing the package does not need it."""
    code = (
        "import sys; sys.modules['xarray'] = None\n"
        "import zarr_dali\n"
        "try: zarr_dali.select(sys.argv[1], arrays=['t'])\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(newest)], capture_output=True, text=True)
    assert "xarray" in done.stdout and "zarr-dali[labels]" in done.stdout, done.stderr
