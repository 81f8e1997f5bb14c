"""Offsets along dimensions by name: forecast runs over `init_time` and `lead_time`, against NumPy.

Random lists of steps and time spans become samples of every run and every lead time from which all of them
are there, whatever order, shards, lists, masks and stacks are asked for.
"""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import zarr_dali
from reading import build, read_all
from zarr_dali import readers

RUNS, LEADS, LAT, LON = 7, 14, 3, 4
STARTS = pd.date_range("2024-01-01", periods=RUNS, freq="12h")
STEPS = pd.timedelta_range("0h", periods=LEADS, freq="6h")


def write(path, leads=STEPS, runs=STARTS, first=0):
    """t(init_time, lead_time, lat, lon), z(init_time, lat, lon), land(lat, lon), good over both times."""
    shape = (len(runs), len(leads), LAT, LON)
    t = first + np.arange(np.prod(shape), dtype="float64").reshape(shape)
    good = (np.arange(shape[0] * shape[1]) % 5 > 1).astype("uint8").reshape(shape[:2])
    dimensions = ("init_time", "lead_time", "lat", "lon")
    arrays = {"t": t, "z": t[:, 0] + 0.25, "land": t[0, 0] + 0.5}
    data = xr.Dataset(
        {
            "t": (dimensions, arrays["t"]),
            "z": (("init_time", "lat", "lon"), arrays["z"]),
            "land": (("lat", "lon"), arrays["land"]),
            "good": (dimensions[:2], good),
        },
        coords={"init_time": runs, "lead_time": leads},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata of Zarr v3
        data.to_zarr(str(path), encoding={"t": {"chunks": (2, 5, 3, 2)}, "z": {"chunks": (3, 3, 4)}})
    return arrays | {"good": good}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "runs.zarr"
    return path, write(path)


def starts_of(offsets, extents=(RUNS, LEADS)):
    """The indices that name samples, along both dimensions."""
    along = [
        [at for at in range(-20, 30) if all(0 <= at + step < extent for step in steps)]
        for steps, extent in zip(offsets, extents)
    ]
    return [(run, lead) for run in along[0] for lead in along[1]]


def sample_of(values, offsets, start):
    index = [[at + step for step in steps] for at, steps in zip(start, offsets)]
    return values[np.ix_(*index)]


def drawn(rng):
    return [
        rng.integers(-2, 4, rng.integers(1, 4)).tolist(),
        rng.integers(-4, 8, rng.integers(1, 5)).tolist(),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_random_offsets(backend, runs, seed):
    """All arrays, in steps and in time, in order and shuffled."""
    path, arrays = runs
    rng = np.random.default_rng([20261124, seed])
    for _ in range({"cpu": 12, "gpu": 3}[backend.device]):
        offsets = drawn(rng)
        spans = {
            "init_time": [f"{12 * step}h" for step in offsets[0]],
            1: [f"{6 * step}h" for step in offsets[1]],
        }
        given = spans if rng.random() < 0.5 else {0: offsets[0], "lead_time": offsets[1]}
        starts = starts_of(offsets)
        assert starts
        chosen = zarr_dali.select(path, arrays=["t", "z", "land"], offsets=given)
        assert json.loads(chosen["dimension_offsets"]) == {"lead_time": offsets[1]}
        assert chosen["offsets"] == offsets[0]
        order = {"random_shuffle": True, "seed": 5} if rng.random() < 0.5 else {}
        size = max(1, len(starts) // 3)
        t, z, land, index = read_all(backend, return_index=True, batch_size=size, **order, **chosen)
        found = [tuple(its) for its in np.asarray(index).tolist()]
        assert sorted(found) == starts and (order or found == starts)
        for number, start in enumerate(found):
            what = f"{offsets} at {start}"
            np.testing.assert_array_equal(t[number], sample_of(arrays["t"], offsets, start), err_msg=what)
            its = sample_of(arrays["z"], offsets[:1], start[:1])
            np.testing.assert_array_equal(z[number], its, err_msg=what)
            np.testing.assert_array_equal(land[number], arrays["land"], err_msg=what)


@pytest.mark.parametrize("shuffle", [False, True])
def test_loader(backend, runs, shuffle):
    """Only one dimension has offsets; two ranks have every sample, and a loader goes on where one stood."""
    path, arrays = runs
    leads = [0, 1, 4, 12]
    starts = starts_of([[0], leads])
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]

    def loader(rank):
        return zarr_dali.Loader(
            path, ["t"], 2, shuffle=shuffle, rank=rank, world_size=2, device=device, return_index=True,
            offsets={"lead_time": ["0h", "6h", "24h", "72h"]}, names=["x"],
        )  # fmt: skip

    found = []
    for rank in range(2):
        whole = loader(rank)
        batches = [{name: one.cpu().numpy().copy() for name, one in batch.items()} for batch in whole]
        for batch in batches:
            for sample, start in zip(batch["x"], batch["index"].tolist()):
                np.testing.assert_array_equal(sample, sample_of(arrays["t"], [[0], leads], start))
        found += [tuple(start) for batch in batches for start in batch["index"].tolist()]
        again = loader(rank)
        iterator = iter(again)
        next(iterator)
        other = loader(rank)
        other.load_state_dict(again.state_dict())
        for batch, rest in zip(batches[1:], other, strict=True):
            np.testing.assert_array_equal(rest["x"].cpu().numpy(), batch["x"])
    assert sorted(set(found)) == sorted(starts)
    state = whole.state_dict()
    other = zarr_dali.Loader(path, ["t"], 2, rank=1, world_size=2, device=device, offsets={1: [0, 1, 5, 12]})
    with pytest.raises((ValueError, RuntimeError)):
        other.load_state_dict(state)


@pytest.mark.gpu_where(False)
def test_lists_weights_and_masks(backend, runs):
    path, arrays = runs
    offsets = [[0], [0, 3, 4]]
    given = {"dimension_offsets": json.dumps({"lead_time": offsets[1]}), "return_index": True}
    wanted = [[3, 9], [0, 1], [3, 9], [6, 0]]
    t, index = read_all(backend, path, arrays=["t"], samples=json.dumps(wanted), **given)
    assert np.asarray(index).tolist() == wanted
    for sample, start in zip(t, wanted):
        np.testing.assert_array_equal(sample, sample_of(arrays["t"], offsets, start))
    starts = starts_of(offsets)
    weights = json.dumps([float(lead == 2) for _, lead in starts])
    _, index = read_all(backend, path, arrays=["t"], weights=weights, random_shuffle=True, **given)
    assert {lead for _, lead in np.asarray(index).tolist()} == {2}
    for least in (0.5, 0.7, 1.0):
        share = [sample_of(arrays["good"], offsets, start).mean() for start in starts]
        expected = [list(start) for start, part in zip(starts, share) if part >= least - 1e-9]
        _, index = read_all(backend, path, arrays=["t"], mask="good", min_foreground=least, **given)
        assert np.asarray(index).tolist() == expected, least
    _, index = read_all(backend, path, arrays=["t"], stride=[2, 3], **given)
    assert np.asarray(index).tolist() == [
        [run, lead] for run in range(0, RUNS, 2) for lead in range(0, 10, 3)
    ]


@pytest.mark.gpu_where(False)
def test_stores_by_themselves_and_channels(backend, tmp_path):
    """Separate stores, of which one has more runs; and one anchor, whose leads are channels."""
    values = [write(tmp_path / "a.zarr")["t"], write(tmp_path / "b.zarr", runs=STARTS[:3], first=1000)["t"]]
    paths = [str(tmp_path / name) for name in ("a.zarr", "b.zarr")]
    chosen = zarr_dali.select(
        paths, arrays=["t"], join="separate", offsets={"lead_time": ["0h", "18h", "24h"]},
        init_time=slice(None, STARTS[4]),
    )  # fmt: skip
    t, index = read_all(backend, return_index=True, **chosen)
    expected = [
        (store, run, lead) for store, count in ((0, 5), (1, 3)) for run in range(count) for lead in range(10)
    ]
    assert [tuple(its) for its in np.asarray(index).tolist()] == expected
    for sample, (store, *start) in zip(t, expected):
        np.testing.assert_array_equal(sample, sample_of(values[store], [[0], [0, 3, 4]], start))
    channels = zarr_dali.select(paths[0], arrays=["t"], offsets={"lead_time": [0, 3, 13]})
    (t,) = read_all(backend, stack_channels=True, **channels)
    np.testing.assert_array_equal(t[2], values[0][2:3, [0, 3, 13]])
    with pytest.raises(ValueError, match=r"stack_channels.*dimension 1"):
        build(
            backend,
            path=paths[0],
            arrays=["t"],
            stack_channels=True,
            dimension_offsets='{"lead_time": [0, 3]}',
        )


@pytest.mark.gpu_where(False)
def test_gaps_in_lead_times(backend, tmp_path):
    """Lead times of which one is missing are treated as times of the first dimension are."""
    path, leads = tmp_path / "gaps.zarr", STEPS.delete(6)
    values = write(path, leads=leads)["t"]
    with pytest.raises(
        ValueError, match=r"offsets: '6h' is a time span, but the coordinate lead_time goes on by"
    ):
        zarr_dali.select(path, arrays=["t"], offsets={"lead_time": ["6h", "0h"]})
    chosen = zarr_dali.select(path, arrays=["t"], offsets={"lead_time": ["0h", "6h"]}, gaps="skip")
    assert json.loads(chosen["dimension_offsets"]) == {"lead_time": {"offsets": [0, 1], "breaks": [6]}}
    t, index = read_all(backend, return_index=True, **chosen)
    starts = [(run, lead) for run in range(RUNS) for lead in range(LEADS - 2) if lead != 5]
    assert [tuple(its) for its in np.asarray(index).tolist()] == starts
    for sample, start in zip(t, starts):
        np.testing.assert_array_equal(sample, sample_of(values, [[0], [0, 1]], start))
    with pytest.warns(UserWarning, match="lead_time"):
        zarr_dali.select(path, arrays=["t"], offsets={"lead_time": [0, 1]})
    write(tmp_path / "whole.zarr", leads=STEPS[:-1])
    with pytest.raises(ValueError, match=r'gaps="skip".*lead_time.*reader of its own'):
        zarr_dali.select(
            [str(path), str(tmp_path / "whole.zarr")], arrays=["t"], join="separate", gaps="skip",
            offsets={"lead_time": [0, 1]},
        )  # fmt: skip


@pytest.mark.gpu_where(False)
def test_what_is_selected_counts(backend, runs):
    path, arrays = runs
    chosen = zarr_dali.select(
        path, arrays=["t"], offsets={"lead_time": ["0h", "12h"]}, lead_time=slice("12h", "36h"), lat=[2, 0]
    )
    t, index = read_all(backend, return_index=True, **chosen)
    assert sorted({lead for _, lead in np.asarray(index).tolist()}) == [2, 3, 4]
    np.testing.assert_array_equal(t[1], arrays["t"][:1, [3, 5]][:, :, [2, 0]])


@pytest.mark.gpu_where(False)
def test_wrapper_and_info_take_dictionaries(backend, runs):
    path, _ = runs
    found = zarr_dali.info(path, ["t"], device="cpu", offsets={"lead_time": [0, 2]})
    assert found.arrays[0].reading is not None and found.arrays[0].problem is None
    for offsets, text in [
        ({"lead": [0]}, "lead"),
        ({"lead_time": [0, 40]}, "dimension_offsets.*40"),
        ({"lead_time": []}, "lead_time|empty"),
    ]:
        with pytest.raises(ValueError, match=text):
            zarr_dali.Loader(path, ["t"], 2, device="cpu", offsets=offsets)
    with pytest.raises(ValueError, match=r"no number of steps; zarr_dali\.select"):
        readers.zarr(path=str(path), arrays=["t"], offsets={"lead_time": ["6h"]})
    with pytest.raises(ValueError, match=r"both are given"):
        zarr_dali.select(path, arrays=["t"], offsets={"lead_time": [0], 1: [2]})
    with pytest.raises(ValueError, match=r"no dimension 'level'.*init_time, lead_time"):
        zarr_dali.select(path, arrays=["t"], offsets={"level": [0]})
