"""Stores that are read separately: runs, positions, years with gaps.

Windows never cross from one store to the next, extents may differ, and each sample knows its store. Random
configurations are compared with the enumeration in `naive.py`, store by store.
"""

import contextlib
import json
import os
import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import reference
import zarr_dali
from configurations import batches_to_read, check_visits, draw_reader, draw_sampling, scenes
from counting import settled_stats
from forked import run_script
from reading import CPU, build, on_host, read_all, run_batches
from stores import chunk_files, write_array, write_group

CONFIGURATIONS = {"cpu": int(os.environ.get("ZARR_DALI_CONFIGURATIONS", 800)) // 2, "gpu": 320}
SCENES = 20
"""Sets of stores that share the configurations among them."""

LARGEST = {1: (24,), 2: (16, 8), 3: (10, 6, 6), 4: (7, 5, 4, 4)}
"""Largest extents of an array, by its number of dimensions."""


@dataclass(frozen=True)
class Scene:
    """Arrays of the same names in several stores."""

    paths: list
    stores: list
    """For each store: name -> values. An array "still" lacks the first dimension."""
    shared: int
    """Leading dimensions that the arrays have in common, but for "still"."""
    differing: int
    """Leading dimensions in which the stores have other extents."""

    @property
    def shapes(self):
        """Extents that windows are laid over, for each store."""
        return [arrays["a"].shape for arrays in self.stores]


def write_scene(folder, rng):
    """Writes two to four stores whose extents differ along the first, or all, dimensions."""
    largest = LARGEST[int(rng.integers(1, 5))]
    shared = ndim = len(largest)
    kind = str(rng.choice(["one", "alike", "different", "still"]))
    tail = ()
    if kind == "different":
        shared = int(rng.integers(1, ndim + 1))
        tail = tuple(int(rng.integers(1, 5)) for _ in range(rng.integers(0, 3)))
    if ndim == 1 and kind == "still":
        kind = "one"
    differing = int(rng.integers(1, ndim + 1))
    common = [int(rng.integers(max(1, extent // 2), extent + 1)) for extent in largest]
    paths, stores, first = [], [], 0
    for number in range(int(rng.integers(2, 5))):
        shape = tuple(
            int(rng.integers(max(1, extent // 3) if d else 1, extent + 1)) if d < differing else common[d]
            for d, extent in enumerate(largest)
        )
        shapes = {"a": (shape, [f"d{d}" for d in range(ndim)])}
        if kind == "alike":
            shapes["b"] = shapes["a"]
        elif kind == "different":
            names = [f"d{d}" for d in range(shared)] + [f"e{d}" for d in range(len(tail))]
            shapes["b"] = (shape[:shared] + tail, names)
        elif kind == "still":
            shapes["still"] = (shape[1:], [f"d{d}" for d in range(1, ndim)])
        paths.append(write_group(folder / f"run-{number}"))
        arrays = {}
        for name, (extents, names) in shapes.items():
            size = int(np.prod(extents))
            arrays[name] = np.arange(first, first + size, dtype="int32").reshape(extents)
            first += size
            chunks = tuple(int(rng.integers(1, extent + 1)) for extent in extents)
            options = {"chunks": chunks, "codec": "raw", "fill_value": -1, "dimension_names": names}
            write_array(paths[-1], name, arrays[name], **options)
        stores.append(arrays)
    return Scene(paths, stores, shared, differing)


def inside(sampling, shape):
    """The same with as much of the region as a store has; None without any."""

    def cut(bounds):
        return bounds and tuple(min(at, extent) for at, extent in zip(bounds, shape))

    own = replace(sampling, roi_start=cut(sampling.roi_start), roi_end=cut(sampling.roi_end))
    regions = [own.roi(d, extent) for d, extent in enumerate(shape)]
    return own if all(start < end for start, end in regions) else None


def draw_separate(rng, scene):
    """Arguments of a reader, and the samples of each store that they mean; None for a store left out."""
    largest = tuple(map(max, zip(*scene.shapes)))
    for _ in range(5):
        sampling = draw_sampling(rng, largest, scene.shared)
        if sampling.dimensions >= min(scene.differing, scene.shared):
            break
    if rng.random() < 0.7:
        samplings = [inside(sampling, shape) for shape in scene.shapes]
        return sampling.arguments(), samplings
    entries, samplings = [], []
    for shape in scene.shapes:
        own = draw_sampling(rng, shape, scene.shared)
        names = ("roi_start", "roi_end", "exclude", "breaks")
        own = replace(sampling, **{name: getattr(own, name) for name in names})
        left_out = rng.random() < 0.2
        samplings.append(None if left_out else own)
        entries.append(
            None if left_out else {name: getattr(own, name) for name in names if getattr(own, name)}
        )
    arguments = replace(sampling, **dict.fromkeys(names)).arguments()
    return arguments | {"per_store": json.dumps(entries)}, samplings


def sample_of(scene, samplings, name, store, start):
    """What the sample with this start in this store has of an array."""
    whole, sampling = scene.stores[store][name], samplings[store]
    if name == "still":
        return whole[np.ix_(*sampling.index(scene.shapes[store], start)[1:])]
    return sampling.values(whole, start)


def place_of(scene, samplings, name, names, store, start):
    """The `source_info` of that sample."""
    sampling, shape = samplings[store], scene.stores[store][name].shape
    if name == "still":
        beside = sampling.source_info("", scene.shapes[store], start)
        return f"{scene.paths[store]}/{names}[" + beside.split(", ", 1)[1]
    return sampling.source_info(f"{scene.paths[store]}/{names}", shape, start)


def check_configuration(backend, scene, rng, number):
    """Draws one configuration and reads it; returns its number of samples."""
    arguments, samplings = draw_separate(rng, scene)
    names = list(scene.stores[0])
    arguments |= {"arrays": names, "join": "separate"}
    path = [str(part) for part in scene.paths]
    starts = [
        (store, start)
        for store, sampling in enumerate(samplings)
        if sampling is not None
        for start in sampling.samples(scene.shapes[store])
    ]
    what = f"configuration {number}: shapes {scene.shapes}, {len(starts)} samples, {arguments}"
    expected = [[sample_of(scene, samplings, name, *at) for name in names] for at in starts]
    if len({tuple(values.shape for values in sample) for sample in expected}) != 1:
        with pytest.raises(ValueError) as caught:
            build(backend, path, **arguments)
        named = (
            "window",
            "offsets",
            "roi_start",
            "roi_end",
            "exclude",
            "per_store",
            "samples have the shape",
        )
        assert any(name in str(caught.value) for name in named), f"{what}: {caught.value}"
        return 0
    reader, order, batch_size = draw_reader(rng, len(starts))
    stack = "b" in names and all(s["a"].shape == s["b"].shape for s in scene.stores) and rng.random() < 0.4
    arguments |= {"stack": bool(stack), "return_index": bool(rng.random() < 0.5)}
    if backend is CPU and rng.random() < 0.3:
        batch_bytes = batch_size * sum(values.nbytes + 64 for values in expected[0])
        order |= {"host_memory_budget": 4 * batch_bytes + int(rng.integers(0, 20_000))}
    what = f"{what}, {arguments}, {reader}, {order}, batches of {batch_size}"
    shuffled = "random_shuffle" in order
    by_chunk = shuffled and any(sampling.dimensions > 1 for sampling in samplings if sampling)
    ids = range(reader["num_shards"]) if reader["stick_to_shard"] else [reader["shard_id"]]
    if stack:
        axis = 0 if samplings[starts[0][0]].drops_first else 1
        expected = [[np.stack(sample, axis=axis)] for sample in expected]
        places = [[place_of(scene, samplings, "a", f"[{','.join(names)}]", *at)] for at in starts]
    else:
        places = [[place_of(scene, samplings, name, name, *at) for name in names] for at in starts]
    seen = []
    for shard_id in ids if by_chunk else [reader["shard_id"]]:
        own = reader | {"shard_id": shard_id}
        pipe = build(backend, path, batch_size=batch_size, **arguments, **own, **order)
        assert pipe.reader_meta("reader") == reference.meta(len(starts), **own), what
        how_many = batches_to_read(len(starts), batch_size, own)
        numbers = read_numbers(pipe, how_many, starts, expected, places, arguments["return_index"], what)
        if shuffled:
            seen += check_visits(numbers, len(starts), batch_size, own, by_chunk, what)
        else:
            in_order = reference.batches(len(starts), batch_size, how_many, **own)
            assert numbers == sum(in_order, []), what
    if by_chunk:
        once = dict(seen)
        assert sorted(sum(once.values(), [])) == list(range(len(starts))), what
    return len(starts)


def read_numbers(pipe, how_many, starts, expected, places, with_index, what):
    """The sample numbers of the next batches, found by their values; everything else has to fit to them."""
    by_values = {sample[0].tobytes(): number for number, sample in enumerate(expected)}
    assert len(by_values) == len(starts), "samples of different starts differ in their values"
    numbers = []
    for _ in range(how_many):
        outputs = [on_host(output) for output in pipe.run()]
        assert len(outputs) == len(expected[0]) + with_index, what
        for i in range(len(outputs[0])):
            number = by_values.get(np.array(outputs[0].at(i)).tobytes())
            assert number is not None, f"{what}: no sample has these values"
            numbers.append(number)
            for output, values, place in zip(outputs, expected[number], places[number]):
                np.testing.assert_array_equal(np.array(output.at(i)), values, strict=True, err_msg=what)
                assert output[i].source_info() == place, what
            if with_index:
                store, start = starts[number]
                index = np.array([store, *start], "int64")
                np.testing.assert_array_equal(np.array(outputs[-1].at(i)), index, strict=True, err_msg=what)
    return numbers


scene_of = scenes(write_scene, seed=20261123)


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, SCENES))]
)
def test_random_configurations(backend, scene_of, number):
    """Number, set, order, values, indices and names of samples are those of the naive enumeration."""
    rng = np.random.default_rng([20261124, number])
    scene = scene_of(number)
    tried = -(-CONFIGURATIONS[backend.device] // SCENES)
    counts = [check_configuration(backend, scene, rng, i) for i in range(tried)]
    assert sum(count > 0 for count in counts) >= tried / 4, "many configurations have samples"


# --- one reader of several runs -------------------------------------------------------------------

STEPS = (8, 5, 1, 12)
"""Of the runs; the third is too short for a window of two."""


@pytest.fixture
def runs(tmp_path):
    """Stores run-8, run-9, run-10, run-11 with t (steps, 4, 5) and a field of its own; the values of each."""
    values, first = [], 0
    for number, steps in enumerate(STEPS):
        path = write_group(tmp_path / f"run-{number + 8}.zarr")
        t = np.arange(first, first + steps * 20, dtype="float32").reshape(steps, 4, 5)
        field = np.full((4, 5), -1 - number, "float32")
        first += t.size
        write_array(path, "t", t, chunks=(2, 4, 5), dimension_names=["time", "y", "x"], fill_value=-9)
        write_array(path, "field", field, chunks=(2, 5), dimension_names=["y", "x"])
        values.append({"t": t, "field": field})
    return tmp_path, values


def windows_of(values, window=2):
    """(store, start) of each window of steps."""
    return [(store, at) for store, arrays in enumerate(values) for at in range(len(arrays["t"]) - window + 1)]


def test_each_sample_lies_in_one_run(backend, runs, capfd):
    """A pattern is in the order of numbers; a run that is too short is named once."""
    folder, values = runs
    arguments = {"arrays": ["t", "field"], "window": [2], "join": "separate", "return_index": True}
    for _ in range(2):
        outputs = read_all(backend, f"{folder}/run-*.zarr", **arguments)
    expected = windows_of(values)
    assert [tuple(index) for index in outputs[2]] == expected
    for t, field, (store, at) in zip(*outputs[:2], expected):
        np.testing.assert_array_equal(t, values[store]["t"][at : at + 2], strict=True)
        np.testing.assert_array_equal(field, values[store]["field"], strict=True)
    said = capfd.readouterr().err
    assert said.count("1 of 4 stores have no samples") == 1 and f"{folder}/run-10.zarr" in said


def test_channels_are_the_same_in_all_runs(backend, runs):
    """Numbers of the first run would else be taken for other channels of the others."""
    folder, values = runs
    mean = [10.0, 20, 30, 40]
    numbers = json.dumps({"t": {"dim": "y", "mean": mean, "std": [1] * 4}})
    arguments = {"arrays": ["t"], "join": "separate", "normalize": numbers}
    found = read_all(backend, f"{folder}/*", window=[2], roi_start=[0, 1], roi_end=[2, 3], **arguments)[0]
    for sample, store in zip(found, (0, 1, 3), strict=True):
        expected = values[store]["t"][0:2, 1:3] - np.float32(mean[1:3])[:, None]
        np.testing.assert_array_equal(sample, expected)
    regions = [{"roi_start": [0, first], "roi_end": [2, first + 2]} for first in (0, 0, 1, 1)]
    regions[2] = None
    for more in ({}, {"normalize": "", "stack_channels": True}):
        with pytest.raises(ValueError, match=r"dimension 1 .*run-11.*same channels in all stores"):
            build(backend, f"{folder}/*", per_store=json.dumps(regions), window=[2], **(arguments | more))


def test_a_region_is_one_of_each_run(backend, runs):
    folder, _ = runs
    arguments = {"arrays": ["t"], "join": "separate", "return_index": True}
    _, indices = read_all(
        backend, f"{folder}/*", roi_start=[4, 1], roi_end=[10], exclude=[6, 11], **arguments
    )
    assert [tuple(index) for index in indices] == [
        (0, 4),
        (0, 5),
        (0, 7),
        (1, 4),
        *[(3, i) for i in (4, 5, 7, 8, 9)],
    ]
    entries = json.dumps([{"roi_start": [6]}, None, {}, {"roi_end": [3, 2], "exclude": [1]}])
    with pytest.raises(ValueError, match=r"samples have the shape \[1, 4, 5\], but \[1, 2, 5\] in .*window"):
        build(backend, f"{folder}/*", per_store=entries, **arguments)
    entries = entries.replace("[3, 2]", "[3]")
    _, indices = read_all(backend, f"{folder}/*", per_store=entries, **arguments)
    assert [tuple(index) for index in indices] == [(0, 6), (0, 7), (2, 0), (3, 0), (3, 2)]


def write_other(path, shape=(4, 4, 5), dtype="float32", names=("time", "y", "x"), **arrays):
    write_array(path, "t", np.zeros(shape, dtype), chunks=(1,) * len(shape), dimension_names=list(names))
    for name, extents in arrays.items():
        write_array(path, name, np.zeros(extents, dtype), chunks=extents, dimension_names=list(names[1:]))


REFUSED = {
    "rank": ({"shape": (4, 4), "names": ("time", "y")}, {}, ["shape is", r"\[4, 4\]"]),
    "names": ({"names": ("time", "x", "y")}, {}, ["list of dimensions", '"x", "y"']),
    "type": ({"dtype": "int16"}, {}, ["data type", "int16"]),
    "extent": (
        {"shape": (4, 4, 6)},
        {},
        [r"samples have the shape \[1, 4, 5\], but \[1, 4, 6\] in", "window"],
    ),
    "field": (
        {"field": (4, 6)},
        {"arrays": ["t", "field"]},
        ['dimension "x" has 5 steps, but 6 in array "field"'],
    ),
    "join": ({}, {"join": "merge"}, ["`join`", "merge", "concat", "separate"]),
    "no JSON": ({}, {"per_store": "[{]"}, ["`per_store`", "no JSON list"]),
    "too few": ({}, {"per_store": "[{}]"}, ["`per_store`", "1 entries for 5 stores"]),
    "twice": (
        {},
        {"per_store": '[{}, {"exclude": [0]}, {}, {}, {}]', "exclude": [3]},
        ["`per_store`", "exclude is given for all"],
    ),
    "outside": (
        {},
        {"per_store": '[{}, {"roi_end": [6]}, {}, {}, {}]'},
        ["`roi_end`", "holds 6", "run-9.zarr"],
    ),
    "none": ({}, {"per_store": "[null, null, null, null, null]"}, ["`per_store`", "leaves out every store"]),
    "concat": ({}, {"per_store": "[{}]", "join": "concat"}, ["`per_store`", 'give join="separate"']),
    "far": ({}, {"roi_start": [13]}, ["`roi_start`", "holds 13"]),
    "long": ({}, {"window": [13]}, ["`window`", "13 steps", "run-8.zarr"]),
    "negative": ({}, {"window": [-1]}, ["`window`", "-1"]),
    "index": ({}, {"exclude": [12]}, ["`exclude`", "12"]),
}


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(backend, runs, case):
    folder, _ = runs
    other, arguments, texts = REFUSED[case]
    write_other(folder / "run-12.zarr", **other)
    with pytest.raises(ValueError) as caught:
        build(backend, f"{folder}/*", **({"arrays": ["t"], "join": "separate"} | arguments))
    for text in texts:
        assert re.search(text, str(caught.value)), f"{text!r} is not in: {caught.value}"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_checkpoint_goes_on_in_its_run(backend, runs, shuffle):
    folder, _ = runs
    arguments = {"arrays": ["t"], "window": [2], "join": "separate", "batch_size": 3, "return_index": True}
    arguments |= {"random_shuffle": shuffle, "seed": 3, "pad_last_batch": True}
    arguments["pipeline"] = {"enable_checkpointing": True}
    pipe = build(backend, f"{folder}/*", **arguments)
    run_batches(pipe, 4)
    state = pipe.checkpoint()
    expected = run_batches(pipe, 9)
    arguments["pipeline"] = {"enable_checkpointing": True, "checkpoint": state}
    found = run_batches(build(backend, f"{folder}/*", **arguments), 9)
    for batch, other in zip(found, expected):
        for samples, others in zip(batch, other):
            np.testing.assert_array_equal(np.stack(samples), np.stack(others), strict=True)
    with pytest.raises(RuntimeError, match='written with join="separate", this reader has "concat"'):
        build(backend, f"{folder}/*", **(arguments | {"join": "concat"}))
    entries = json.dumps([{}, {"roi_start": [1]}, {}, {}])
    with pytest.raises(RuntimeError, match="per_store"):
        build(backend, f"{folder}/*", **(arguments | {"per_store": entries}))


def test_a_loader_goes_on_with_other_ranks(backend, runs):
    """What one rank left of an epoch, two ranks share, each sample once."""
    folder, values = runs
    torch_device = "cpu" if backend is CPU else "cuda"

    def loader(rank, world_size):
        options = {"window": [2], "join": "separate", "return_index": True, "shuffle": True, "seed": 1}
        return zarr_dali.Loader(
            f"{folder}/*", ["t"], 3, device=torch_device, rank=rank, world_size=world_size, **options
        )

    seen = []
    whole = loader(0, 1)
    for number, batch in enumerate(whole):
        seen += map(tuple, batch["index"].tolist())
        if number == 2:
            break
    state = json.loads(json.dumps(whole.state_dict()))
    for rank in range(2):
        part = loader(rank, 2)
        part.load_state_dict(state)
        for batch in part:
            for t, (store, at) in zip(batch["t"].cpu().numpy(), batch["index"].tolist()):
                np.testing.assert_array_equal(t, values[store]["t"][at : at + 2])
                seen.append((store, at))
    # The rank with the shorter part repeats one sample.
    assert sorted(set(seen)) == windows_of(values) and len(seen) - len(set(seen)) <= 1


def test_missing_chunks_are_those_of_the_run(backend, runs):
    folder, values = runs
    for store, chunk in ((1, 1), (3, 0)):
        chunk_files(folder / f"run-{store + 8}.zarr" / "t")[chunk].unlink()
        values[store]["t"][2 * chunk : 2 * chunk + 2] = -9
    arguments = {"arrays": ["t"], "window": [2], "join": "separate"}
    (samples,) = read_all(backend, f"{folder}/*", **arguments)
    for sample, (store, at) in zip(samples, windows_of(values)):
        np.testing.assert_array_equal(sample, values[store]["t"][at : at + 2], strict=True)
    pipe = build(backend, f"{folder}/*", missing_chunks="error", batch_size=20, **arguments)
    with pytest.raises(RuntimeError, match=r"run-9\.zarr.*c/1/0/0|run-11\.zarr.*c/0/0/0"):
        pipe.run()


@pytest.mark.parametrize("shuffle", [False, True])
def test_chunks_are_decoded_once_in_an_epoch(backend, runs, shuffle):
    """Those of the fields, too, once for each run and not for each sample."""
    folder, values = runs
    count = len(windows_of(values))
    arguments = {"window": [2], "join": "separate", "batch_size": 1, "pad_last_batch": True}
    decoded = []
    for arrays in (["t"], ["t", "field"]):
        pipe = build(backend, f"{folder}/*", arrays=arrays, random_shuffle=shuffle, seed=5, **arguments)
        run_batches(pipe, 2 * count)
        decoded.append(settled_stats(pipe)["chunks_decoded"])
    of_t = sum(-(-steps // 2) for steps in STEPS if steps > 1)
    of_fields = 2 * sum(steps > 1 for steps in STEPS)
    # A reader that has handed over two epochs has prepared a part of the third. On a GPU up to 128 batches
    # are in flight, and DALI has some more.
    epochs = 3 if backend.device == "cpu" else -(-(2 * count + 128 + 4) // count)
    assert 2 * of_t < decoded[0] <= epochs * of_t and decoded[1] - decoded[0] == of_fields, decoded


def test_info_of_separate_stores(runs):
    folder, _ = runs
    found = zarr_dali.info(f"{folder}/*", ["t"], device="cpu", window=[2], join="separate")
    (array,) = found.arrays
    assert array.shapes == tuple((steps, 4, 5) for steps in STEPS) and array.stores == 4
    assert array.decoded_bytes == 4 * 20 * sum(STEPS) and array.values == 20 * sum(STEPS)
    assert array.reading.samples == sum(max(0, steps - 1) for steps in STEPS)
    assert "1-12x4x5 in 4 stores" in str(found)
    assert "join" in json.loads(found.to_json())["arguments"]
    joined = zarr_dali.info(f"{folder}/*", ["t"], device="cpu", window=[2])
    assert joined.arrays[0].shapes == () and joined.arrays[0].reading.samples == sum(STEPS) - 1


@pytest.mark.gpu_where(False)
def test_hundreds_of_stores_have_one_set_of_threads(backend, tmp_path):
    """As many threads and open files as for one store."""
    for number in range(300):
        values = np.full((1 + number % 4, 3), number, "int16")
        write_array(tmp_path / f"{number}", "", values, chunks=(1, 3))
    code = """
        import os, sys
        from reading import CPU, build, read_epoch

        pipe = build(CPU, sys.argv[1], join="separate", batch_size=16, return_index=True)
        samples, indices = read_epoch(pipe)
        assert len(samples) == int(sys.argv[2])
        assert all((sample == index[0]).all() for sample, index in zip(samples, indices))
        print(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))
    """
    found = []
    for path, samples in ((tmp_path / "0", 1), (tmp_path / "*", 750)):
        done = run_script(code, path, samples)
        assert done.returncode == 0, done.stderr
        found.append(tuple(map(int, done.stdout.split())))
    (threads, files), (more_threads, more_files) = found
    assert more_threads == threads and more_files <= files + 4, found


# --- labels ---------------------------------------------------------------------------------------


def write_labelled(path, times, latitudes, first):
    """t(time, latitude) with its coordinates; returns the values."""
    values = first + np.arange(len(times) * len(latitudes), dtype="float64").reshape(len(times), -1)
    data = xr.Dataset(
        {"t": (("time", "latitude"), values)}, coords={"time": times, "latitude": np.asarray(latitudes)}
    )
    encoding = {"t": {"chunks": (3, len(latitudes))}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata of Zarr v3
        data.to_zarr(str(path), encoding=encoding)
    return data


@pytest.fixture
def labelled(tmp_path):
    """Stores a, b, c of six-hourly steps, b on a grid of its own; the datasets."""
    spans = {"a": ("2010-01-01", 12), "b": ("2011-01-01", 10), "c": ("2010-01-02", 9)}
    found = {}
    for number, (name, (start, steps)) in enumerate(spans.items()):
        times = pd.date_range(start, periods=steps, freq="6h")
        latitudes = np.linspace(60, -60, 7 if name == "b" else 5)
        found[name] = write_labelled(tmp_path / f"{name}.zarr", times, latitudes, 1000 * number)
    return tmp_path, found


LABELS = {
    "all": {},
    "one year": {"time": "2010"},
    "days": {"time": slice("2010-01-02", "2010-01-03T06")},
    "latitudes": {"latitude": slice(60, 0)},
    "both": {"time": slice("2010-01-03", "2011-01-02"), "latitude": slice(30, -30)},
    "in one store": {"latitude": slice(45, 35)},
}
EXCLUDED = {"none": None, "a day": ["2010-01-02"], "steps": [np.datetime64("2010-01-03T06"), "2011-01-01T12"]}


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("without", EXCLUDED)
@pytest.mark.parametrize("case", LABELS)
def test_labels_are_those_of_each_store(backend, labelled, case, without):
    """The samples are the pairs of steps that xarray selects of each store."""
    folder, datasets = labelled
    exclude = EXCLUDED[without]
    expected = []
    for data in datasets.values():
        selected = data["t"]
        with contextlib.suppress(KeyError):
            selected = selected.sel(LABELS[case])
            left_out = {time for label in exclude or [] for time in _labels(selected, label)}
            times = selected.indexes["time"]
            expected += [
                selected.values[at : at + 2]
                for at in range(len(times) - 1)
                if selected.size and not left_out & set(times[at : at + 2])
            ]
    chosen = zarr_dali.select(
        f"{folder}/*.zarr",
        arrays=["t"],
        join="separate",
        offsets=["0h", "6h"],
        exclude=exclude,
        **LABELS[case],
    )
    if len({sample.shape for sample in expected}) > 1:
        # The grids differ, and a sample has all of it.
        with pytest.raises(ValueError, match="samples have the shape"):
            build(backend, **chosen)
        return
    (samples,) = read_all(backend, **chosen)
    assert len(samples) == len(expected) > 0
    for sample, values in zip(samples, expected):
        np.testing.assert_array_equal(sample, values, strict=True)


def _labels(selected, label):
    """What a label excludes of what is selected: a day all of its steps."""
    try:
        return pd.DatetimeIndex(np.atleast_1d(selected["time"].sel(time=label).values))
    except KeyError:
        return pd.DatetimeIndex([])


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("kind", ["labels", "mask", "one label", "texts"])
def test_labels_of_a_dataset_are_excluded(backend, labelled, kind):
    """A DataArray of a Dataset means what a list of its labels does."""
    folder, datasets = labelled
    time = datasets["a"]["time"]
    exclude, labels = {
        "labels": (time[2:5], list(time.values[2:5])),
        "mask": ((time >= time[2]) & (time < time[5]), list(time.values[2:5])),
        "one label": (time[3], [time.values[3]]),
        "texts": (xr.DataArray(["2010-01-02", "2010-01-03"], dims=["day"]), ["2010-01-02", "2010-01-03"]),
    }[kind]
    given = {"arrays": ["t"], "join": "separate"}
    expected = zarr_dali.select(f"{folder}/*.zarr", exclude=labels, **given)
    assert zarr_dali.select(f"{folder}/*.zarr", exclude=exclude, **given) == expected
    loader = zarr_dali.Loader(f"{folder}/[ac].zarr", batch_size=3, device="cpu", exclude=exclude, **given)
    listed = zarr_dali.Loader(f"{folder}/[ac].zarr", batch_size=3, device="cpu", exclude=labels, **given)
    for found, wanted in zip(loader, listed, strict=True):
        np.testing.assert_array_equal(found["t"].numpy(), wanted["t"].numpy())


@pytest.mark.gpu_where(False)
def test_a_loader_selects_of_each_store(backend, labelled):
    folder, datasets = labelled
    loader = zarr_dali.Loader(
        f"{folder}/*.zarr",
        ["t"],
        4,
        device="cpu",
        join="separate",
        select={"time": slice("2010-01-02", "2010-01-03")},
        return_index=True,
    )
    batches = list(loader)
    found = [tuple(index) for batch in batches for index in batch["index"].tolist()]
    assert found == [(0, at) for at in range(4, 12)] + [(2, at) for at in range(8)]
    values = np.concatenate([batch["t"].numpy() for batch in batches])
    expected = [datasets["ac"[store // 2]]["t"].values[at] for store, at in found]
    np.testing.assert_array_equal(values, np.stack(expected))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "arguments, texts",
    [
        ({"time": "2012"}, ["in none of 3 stores", "2012"]),
        ({"exclude": ["2010-01-01", "2013-05"]}, ["exclude, in none of 3 stores", "2013-05"]),
        ({"exclude": [True] * 12}, ["exclude", "mask", "labels"]),
        ({"offsets": ["0h", "9h"]}, ["offsets", "no multiple"]),
        ({"join": "both"}, ["join", "both"]),
        ({"depth": 3}, ["no dimension of that name"]),
    ],
)
def test_labels_that_are_nowhere(backend, labelled, arguments, texts):
    folder, _ = labelled
    with pytest.raises(ValueError) as caught:
        zarr_dali.select(f"{folder}/*.zarr", **({"arrays": ["t"], "join": "separate"} | arguments))
    assert all(text in str(caught.value) for text in texts), caught.value


@pytest.mark.gpu_where(False)
def test_offsets_in_time_need_one_spacing(backend, labelled):
    folder, _ = labelled
    write_labelled(folder / "d.zarr", pd.date_range("2012-01-01", periods=5, freq="12h"), np.arange(5), 0)
    with pytest.raises(ValueError, match=r"time of .*d.zarr goes on by 0 days 12:00.* where 0 days 06:00"):
        zarr_dali.select(f"{folder}/*.zarr", arrays=["t"], join="separate", offsets=["0h", "12h"])
