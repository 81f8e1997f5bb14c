"""Gaps in a coordinate: windows and offsets, in steps or in time, that reach over them or do not.

Random axes with missing days are compared with what pandas says about the labels: with `gaps="skip"` a
sample is there if each of its steps has the label that the spacing tells.
"""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import zarr_dali
from reading import build, read_all

SPACING = pd.Timedelta("6h")


def write(path, times, first=0, **attributes):
    """t(time, x), each value its own number; returns the values."""
    values = first + np.arange(len(times) * 2, dtype="float64").reshape(len(times), 2)
    data = xr.Dataset({"t": (("time", "x"), values)}, coords={"time": times})
    data["time"].encoding = attributes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata of Zarr v3
        data.to_zarr(str(path), encoding={"t": {"chunks": (3, 2)}})
    return values


def axis_with_gaps(rng, steps=40, start="2010-01-01"):
    """Six-hourly times of which some stretches are missing."""
    times = pd.date_range(start, periods=steps, freq=SPACING)
    kept = np.ones(steps, bool)
    for _ in range(rng.integers(0, 4)):
        at = int(rng.integers(1, steps))
        kept[at : at + int(rng.integers(1, 9))] = False
    return times[kept]


def samples_without_gaps(times, values, offsets, stride):
    """The samples whose steps lie as far apart in time as in number."""
    least, most = min(offsets), max(offsets)
    found = []
    for at in range(-least, len(times) - most, stride):
        labels = times[[at + step for step in offsets]]
        if all(label - labels[0] == (step - offsets[0]) * SPACING for label, step in zip(labels, offsets)):
            found.append(values[[at + step for step in offsets]])
    return found


def assert_same(samples, expected, what):
    assert len(samples) == len(expected), what
    for sample, values in zip(samples, expected):
        np.testing.assert_array_equal(sample, values, strict=True, err_msg=str(what))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("joined", marks=pytest.mark.full),
        pytest.param("separate", marks=pytest.mark.full),
        "one store",
    ],
)
def test_no_sample_reaches_over_a_gap(backend, tmp_path, kind):
    """Offsets in steps and in time, windows, strides and selected ranges, against the labels."""
    rng = np.random.default_rng([20261123, len(kind)])
    for number in range(24):
        starts = ["2010-01-01"] if kind == "one store" else ["2010-01-01", "2010-01-11", "2010-02-01"]
        axes = [axis_with_gaps(rng, start=start) for start in starts]
        folder, whole = tmp_path / f"{number}", []
        for place, times in enumerate(axes):
            folder.mkdir(exist_ok=True)
            whole.append(write(folder / f"{place}.zarr", times, 1000 * place))
        offsets = sorted(set(rng.integers(-3, 4, 3).tolist()))
        stride = int(rng.integers(1, 4))
        arguments = {"offsets": offsets}
        if rng.random() < 0.4:
            window = int(rng.integers(2, 5))
            arguments, offsets = {"window": [window]}, list(range(window))
        elif rng.random() < 0.5:
            arguments = {"offsets": [f"{6 * step}h" for step in offsets]}
        if kind == "joined":
            axes, whole = [pd.DatetimeIndex(np.concatenate(axes))], [np.concatenate(whole)]
        expected, labels = [], {}
        if rng.random() < 0.4:
            labels = {"time": slice("2010-01-03", "2010-02-04")}
        for times, values in zip(axes, whole):
            inside = slice(0, None)
            if labels:
                found = times.slice_indexer(labels["time"].start, labels["time"].stop)
                inside = slice(found.start, found.stop)
            expected += samples_without_gaps(times[inside], values[inside], offsets, stride)
        join = {"join": "separate"} if kind == "separate" else {}
        what = (number, arguments, stride, labels)
        chosen = zarr_dali.select(
            f"{folder}/*.zarr", arrays=["t"], gaps="skip", **join, **arguments, **labels
        )
        if not expected:
            with pytest.raises(ValueError, match=r"breaks|window|offsets"):
                build(backend, **chosen, stride=[stride])
            continue
        (samples,) = read_all(backend, **chosen, stride=[stride])
        assert_same(samples, expected, what)
        select = {"select": labels} if labels else {}
        if labels or not any(isinstance(step, str) for step in arguments.get("offsets", ())):
            loader = zarr_dali.Loader(
                f"{folder}/*.zarr",
                ["t"],
                7,
                device="cpu",
                gaps="skip",
                stride=[stride],
                **select,
                **arguments,
                **join,
            )
            assert_same([sample for batch in loader for sample in batch["t"].numpy()], expected, what)


@pytest.fixture
def two_days_missing(tmp_path):
    """A store whose third and fourth day are missing, after which a step is missing, too."""
    times = pd.date_range("2010-01-01", periods=40, freq=SPACING)
    times = times.delete([*range(8, 16), 30])
    return tmp_path / "era5.zarr", write(tmp_path / "era5.zarr", times)


@pytest.mark.gpu_where(False)
def test_a_gap_between_two_stores_names_the_other_way_to_join(tmp_path):
    times = [pd.date_range(start, periods=4, freq=SPACING) for start in ("2010-01-01", "2015-01-01")]
    paths = [tmp_path / f"{number}.zarr" for number in range(2)]
    for path, its in zip(paths, times):
        write(path, its)
    with pytest.warns(
        UserWarning, match='goes on by .* another store begins there, and with join="separate"'
    ):
        zarr_dali.Loader(paths, ["t"], device="cpu", window=[2])
    write(tmp_path / "2.zarr", times[0].delete(2))
    with pytest.warns(UserWarning, match="goes on by") as caught:
        zarr_dali.Loader([tmp_path / "2.zarr", paths[1]], ["t"], device="cpu", window=[2])
    assert all("; another store begins at index 3, and" in str(one.message) for one in caught)
    write(tmp_path / "4.zarr", pd.date_range("2010-01-01", periods=8, freq=SPACING).delete(2))
    with pytest.warns(UserWarning, match="goes on by") as caught:
        zarr_dali.Loader(tmp_path / "4.zarr", ["t"], device="cpu", window=[2])
    assert not any("another store" in str(one.message) for one in caught)
    write(tmp_path / "3.zarr", times[0].append(times[0] + pd.Timedelta("9D")))
    with pytest.warns(UserWarning, match=r"\(index 3\).* 2 gaps, .*; another store begins at index 8, and"):
        zarr_dali.Loader([tmp_path / "3.zarr", paths[1]], ["t"], device="cpu", window=[2])
    # What is misspelt is said first.
    for wrong, meant in (
        ("seperate", '; did you mean "separate"\\?'),
        ("concatenate", '; .*"concat"\\?'),
        ("x", ""),
    ):
        message = f'join is "{wrong}", but has to be "concat" or "separate"{meant}$'
        with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
            warnings.simplefilter("error")
            zarr_dali.Loader(paths, ["t"], device="cpu", window=[2], join=wrong)
        with pytest.raises(ValueError, match=message):
            zarr_dali.select(paths, arrays=["t"], window=[2], join=wrong)
    with pytest.raises(ValueError, match=r'gaps is "skp", .* "skip" or "allow"; did you mean "skip"\?'):
        zarr_dali.Loader(paths, ["t"], device="cpu", window=[2], gaps="skp")


FIRST = r"time goes on by 2 days 06:00:00 from 2010-01-02 18:00:00 \(index 7\) to 2010-01-05 00:00:00"


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("select", [None, {"x": slice(0, 1)}])
@pytest.mark.parametrize("steps", [{"window": [2]}, {"window": 2}, {"offsets": [-1, 0]}], ids=str)
def test_a_gap_that_nobody_asked_about_is_said(backend, two_days_missing, steps, select):
    """Once, with its place; not where samples are single steps, nor where gaps are allowed."""
    path, values = two_days_missing

    def loader(**arguments):
        return zarr_dali.Loader(path, ["t"], 4, device="cpu", select=select, **arguments)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = loader(**steps)
        list(found)
    (said,) = (str(warning.message) for warning in caught if "goes on" in str(warning.message))
    assert re.search(FIRST + r", where 0 days 06:00:00 is usual, the first of 2 gaps.*gaps=\"skip\"", said)
    assert caught[0].filename == __file__
    assert len(found) == -(-(len(values) - 1) // 4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*goes on")
        assert len(loader(gaps="allow", **steps)) == len(found)
        assert len(loader()) == len(loader(window=[1])) == -(-len(values) // 4)
        loader(gaps="skip", **steps)
        with pytest.raises(ValueError, match=FIRST):
            loader(gaps="error", **steps)


@pytest.mark.gpu_where(False)
def test_only_the_region_counts(backend, two_days_missing):
    path, _ = two_days_missing
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*goes on")
        for region in ({"roi_end": [8]}, {"roi_start": [8], "roi_end": [22]}):
            zarr_dali.Loader(path, ["t"], 4, device="cpu", window=[2], **region)
        zarr_dali.select(path, arrays=["t"], window=[2], time="2010-01-02")
    chosen = zarr_dali.select(
        path, arrays=["t"], window=[2], gaps="skip", time=slice("2010-01-02", "2010-01-06")
    )
    assert chosen["breaks"] == [8] and chosen["window"] == [2]


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("offsets", [["-6h", "0h"], {"time": ["-6h", "0h"]}, {"time": [-1, 0]}], ids=str)
def test_only_the_region_of_the_reader_counts(backend, two_days_missing, offsets):
    """Gaps are behind the steps 7 and 21."""
    path, values = two_days_missing

    def loader(**arguments):
        return zarr_dali.Loader(path, ["t"], 40, device="cpu", offsets=offsets, **arguments)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*goes on")
        for first, end in ((0, 8), (8, 22), (22, len(values))):
            for more in ({}, {"gaps": "error"}, {"gaps": "skip"}):
                (batch,) = loader(roi_start=[first], roi_end=[end], **more)
                np.testing.assert_array_equal(batch["t"].numpy()[:, 1], values[first + 1 : end])
        (batch,) = loader(roi_start=8, gaps="skip")
        kept = [step for step in range(9, len(values)) if step != 22]
        np.testing.assert_array_equal(batch["t"].numpy()[:, 1], values[kept])
        with pytest.raises(ValueError, match=r"index 21.* where 0 days 06:00:00 is usual; gaps="):
            loader(roi_start=[8], gaps="error")


@pytest.mark.gpu_where(False)
def test_only_the_region_of_each_store_counts(backend, two_days_missing, tmp_path):
    path, _ = two_days_missing
    write(tmp_path / "whole.zarr", pd.date_range("2011-01-01", periods=5, freq=SPACING))
    stores = {"path": [path, tmp_path / "whole.zarr"], "arrays": ["t"], "join": "separate"}
    arguments = {"batch_size": 80, "device": "cpu", "offsets": ["-6h", "0h"], "gaps": "error"}
    regions = [{"roi_start": [8], "roi_end": [22]}, {}]
    assert len(next(iter(zarr_dali.Loader(**stores, **arguments, per_store=regions)))["t"]) == 13 + 4
    (batch,) = zarr_dali.Loader(**stores, **arguments, per_store=[None, {}])
    assert len(batch["t"]) == 4
    (batch,) = zarr_dali.Loader(**stores, **arguments, roi_end=[8])
    assert len(batch["t"]) == 7 + 4
    with pytest.raises(ValueError, match="index 7"):
        zarr_dali.Loader(**stores, **arguments, per_store=[{"roi_end": [9]}, None])
    with pytest.raises(ValueError, match="per_store: it leaves out every store"):
        zarr_dali.Loader(**stores, **arguments, per_store=[None, None])


@pytest.mark.gpu_where(False)
def test_offsets_in_time_allow_no_gap_unless_asked(backend, two_days_missing):
    path, values = two_days_missing
    with pytest.raises(ValueError, match=r"offsets: '-6h' is a time span, but .*" + FIRST):
        zarr_dali.select(path, arrays=["t"], offsets=["-6h", "0h"])
    chosen = zarr_dali.select(path, arrays=["t"], offsets=["-6h", "0h"], gaps="allow")
    assert chosen["offsets"] == [-1, 0] and "breaks" not in chosen
    chosen = zarr_dali.select(path, arrays=["t"], offsets=["-6h", "0h"], gaps="skip")
    assert chosen["breaks"] == [8, 22]
    (samples,) = read_all(backend, **chosen)
    assert len(samples) == len(values) - 3


QUIET = {
    "months": pd.date_range("2000-01-01", periods=30, freq="MS"),
    "years": pd.date_range("2000-01-01", periods=9, freq="YS"),
    "backwards": pd.date_range("2000-01-01", periods=9, freq="D")[::-1],
    "numbers": np.arange(10, 30, 2),
    "one": pd.date_range("2000-01-01", periods=1),
    "texts": np.array(["a", "b", "d"]),
}


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("case", QUIET)
def test_axes_without_gaps(backend, tmp_path, case):
    """Months and years differ in length, and of labels without differences nobody knows."""
    write(tmp_path / "a.zarr", QUIET[case])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*goes on")
        chosen = zarr_dali.select(tmp_path / "a.zarr", arrays=["t"], window=[2])
        if case != "texts":
            skipped = zarr_dali.select(tmp_path / "a.zarr", arrays=["t"], window=[2], gaps="skip")
            assert skipped == chosen


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "labels, breaks",
    [
        (np.array([0.0, 0.5, 1.0, 3.0, 3.5]), [3]),
        (pd.to_datetime(["2000-01-05", "2000-01-04", "2000-01-03", "2000-01-01"]), [3]),
        (pd.to_datetime(["2000-01-01", "2000-01-02", "2000-01-02", "2000-01-03", "2000-01-04"]), [2]),
        (xr.date_range("2001-02-26", periods=6, calendar="noleap", use_cftime=True)[[0, 1, 2, 3, 5]], [4]),
    ],
    ids=["numbers", "backwards", "repeated", "noleap"],
)
def test_gaps_of_every_kind_of_label(backend, tmp_path, labels, breaks):
    write(tmp_path / "a.zarr", labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = zarr_dali.select(tmp_path / "a.zarr", arrays=["t"], window=[2], gaps="skip")
    assert chosen["breaks"] == breaks
    (samples,) = read_all(backend, **chosen)
    assert len(samples) == len(labels) - 1 - len(breaks)


@pytest.mark.gpu_where(False)
def test_gaps_that_cannot_be_found_are_no_gaps(backend, tmp_path):
    """Without a coordinate nothing is said; who asks is told."""
    data = xr.Dataset({"t": (("time", "x"), np.zeros((4, 2)))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.to_zarr(str(tmp_path / "a.zarr"))
    zarr_dali.Loader(tmp_path / "a.zarr", ["t"], 2, device="cpu", window=[2])
    for gaps, text in (("skip", "has no coordinate"), ("error", "has no coordinate"), ("never", "has to be")):
        with pytest.raises(ValueError, match=f"gaps.*{text}"):
            zarr_dali.Loader(tmp_path / "a.zarr", ["t"], 2, device="cpu", window=[2], gaps=gaps)


@pytest.mark.gpu_where(False)
def test_a_loader_goes_on_between_gaps(backend, two_days_missing):
    """What is left out stays out after a state is loaded, and states know what was left out."""
    path, values = two_days_missing

    def loader(**arguments):
        options = {"window": [2], "shuffle": True, "seed": 3, "return_index": True}
        return zarr_dali.Loader(path, ["t"], 4, device="cpu", **(options | arguments))

    seen = []
    whole = loader(gaps="skip")
    for number, batch in enumerate(whole):
        seen += batch["index"][:, 0].tolist()
        if number == 2:
            break
    other = loader(gaps="skip", seed=5)
    other.load_state_dict(whole.state_dict())
    seen += [index for batch in other for index in batch["index"][:, 0].tolist()]
    assert sorted(seen) == [at for at in range(len(values) - 1) if at + 1 not in (8, 22)]
    with pytest.raises(ValueError, match="breaks"):
        loader(gaps="allow").load_state_dict(whole.state_dict())


def test_gaps_and_breaks_are_one_or_both_say_so(tmp_path):
    times = pd.date_range("2010-01-01", periods=20, freq=SPACING).delete(5)
    write(tmp_path / "a.zarr", times)
    path = str(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="breaks and gaps: give one of them"):
        zarr_dali.Loader(path, "t", 1, device="cpu", window=2, breaks=[3], gaps="skip")
    # What is said of a store stays when gaps are found in it.
    found = zarr_dali.Loader(
        path, "t", 1, device="cpu", window=2, join="separate", per_store='[{"breaks": [3, 9]}]', gaps="skip"
    )
    assert len(found) == 18 - 3
    # A region of one number, and arrays as offsets.
    assert len(zarr_dali.Loader(path, "t", 1, device="cpu", window=2, roi_start=6)) == 12
    for offsets in (np.array([-1, 0]), np.array([-6, 0], "timedelta64[h]"), pd.to_timedelta(["-6h", "0h"])):
        assert zarr_dali.select(path, arrays=["t"], offsets=offsets, gaps="skip")["offsets"] == [-1, 0]
