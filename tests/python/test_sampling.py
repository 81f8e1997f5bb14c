"""The samples of a reader against their enumeration in `naive.py`, for random configurations; and arguments
that contradict each other.

Each configuration draws windows, strides, dilations, offsets, regions of interest, exclusions, reader
shards, batch sizes, padding and shuffling over arrays of one to four dimensions: one or two of them, of one
store or of several joined ones, each with its own chunks, stacked or not. Number, set, order where it is
defined, values, `return_index` and `source_info` have to be the enumeration's. The environment variable
ZARR_DALI_CONFIGURATIONS sets how many are tried on the CPU.
"""

import json
import os
import re
from dataclasses import dataclass

import numpy as np
import pytest

import reference
from configurations import batches_to_read, check_visits, draw_reader, draw_sampling, scenes
from naive import Sampling
from reading import CPU, build, on_host, read_all
from stores import write_array, write_group

CONFIGURATIONS = {"cpu": int(os.environ.get("ZARR_DALI_CONFIGURATIONS", 800)), "gpu": 40}
SCENES = 20
"""Sets of stores that share the configurations among them."""

LARGEST = {1: (40,), 2: (24, 9), 3: (12, 7, 6), 4: (8, 5, 4, 4)}
"""Largest extents of an array, by its number of dimensions."""


@dataclass(frozen=True)
class Scene:
    """Arrays on disk, in one store or in several that are joined along the first dimension."""

    paths: list
    arrays: dict
    """Name -> values of the whole."""
    shared: int
    """Leading dimensions that all arrays have in common."""

    @property
    def shape(self):
        """Extents that windows are laid over: those of the first array."""
        return next(iter(self.arrays.values())).shape

    def place(self, names):
        first, last = self.paths[0], self.paths[-1]
        return f"{first}/{names}" if first == last else f"{first}..{last}/{names}"


def write_scene(folder, rng):
    """Writes one or two arrays of random shapes and chunks in one to three stores."""
    largest = LARGEST[int(rng.integers(1, 5))]
    shape = tuple(int(rng.integers(max(1, extent // 2), extent + 1)) for extent in largest)
    shapes, shared = {"a": shape}, len(shape)
    kind = rng.choice(["one", "alike", "different"])
    if kind == "alike":
        shapes["b"] = shape
    elif kind == "different":
        shared = int(rng.integers(1, len(shape) + 1))
        tail = tuple(int(rng.integers(1, 5)) for _ in range(rng.integers(0, 3)))
        shapes["b"] = shape[:shared] + tail
    arrays, first = {}, 0
    for name, extents in shapes.items():
        size = int(np.prod(extents))
        arrays[name] = np.arange(first, first + size, dtype="int32").reshape(extents)
        first += size
    count = int(rng.integers(1, min(3, shape[0]) + 1))
    seams = [0, *sorted(rng.choice(np.arange(1, shape[0]), count - 1, replace=False).tolist()), shape[0]]
    paths = []
    for number in range(count):
        paths.append(write_group(folder / f"part-{number}"))
        for name, whole in arrays.items():
            part = whole[seams[number] : seams[number + 1]]
            chunks = tuple(int(rng.integers(1, extent + 1)) for extent in part.shape)
            write_array(paths[-1], name, part, chunks=chunks, codec="raw", fill_value=-1)
    return Scene(paths, arrays, shared)


def check_configuration(backend, scene, rng, number):
    """Draws one configuration and reads it; returns its number of samples."""
    sampling = draw_sampling(rng, scene.shape, scene.shared)
    arguments = sampling.arguments() | {"arrays": list(scene.arrays)}
    path = [str(part) for part in scene.paths] if len(scene.paths) > 1 else str(scene.paths[0])
    starts = sampling.samples(scene.shape)
    what = f"configuration {number}: shape {scene.shape}, {len(starts)} samples, {arguments}"
    if not starts:
        with pytest.raises(ValueError) as caught:
            build(backend, path, **arguments)
        named = ("window", "offsets", "dimension_offsets", "roi_start", "roi_end", "exclude", "breaks")
        assert any(name in arguments and name in str(caught.value) for name in named), (
            f"{what}: {caught.value}"
        )
        return 0
    reader, order, batch_size = draw_reader(rng, len(starts))
    stack = len({array.shape for array in scene.arrays.values()}) == 1 and bool(rng.random() < 0.4)
    arguments |= {"stack": stack, "return_index": bool(rng.random() < 0.5)}
    what = f"{what}, {arguments}, {reader}, {order}, batches of {batch_size}"
    # A reader that moves on visits all shards; one that sticks shows only its own.
    shuffled = "random_shuffle" in order
    shuffled_cells = shuffled and sampling.dimensions > 1
    ids = range(reader["num_shards"]) if reader["stick_to_shard"] else [reader["shard_id"]]
    seen = []
    if backend is CPU and rng.random() < 0.3:
        # Room for some batches and for some of the chunks that they share, or hardly any.
        batch_bytes = batch_size * sum(
            sampling.values(a, starts[0]).nbytes + 64 for a in scene.arrays.values()
        )
        order |= {"host_memory_budget": 4 * batch_bytes + int(rng.integers(0, 20_000))}
        what = f"{what}, {order}"
    for shard_id in ids if shuffled_cells else [reader["shard_id"]]:
        own = reader | {"shard_id": shard_id}
        pipe = build(backend, path, batch_size=batch_size, **arguments, **own, **order)
        assert pipe.reader_meta("reader") == reference.meta(len(starts), **own), what
        how_many = batches_to_read(len(starts), batch_size, own)
        numbers = read_numbers(pipe, how_many, scene, sampling, starts, arguments, what)
        if shuffled:
            seen += check_visits(numbers, len(starts), batch_size, own, shuffled_cells, what)
        else:
            expected = reference.batches(len(starts), batch_size, how_many, **own)
            assert numbers == sum(expected, []), what
    if shuffled_cells:
        # What a shard holds is up to the chunks; all of them together hold every sample once.
        once = dict(seen)
        assert all(once[shard] == samples for shard, samples in seen), what
        assert sorted(once) == list(range(reader["num_shards"])), what
        assert sorted(sum(once.values(), [])) == list(range(len(starts))), what
    return len(starts)


def read_numbers(pipe, how_many, scene, sampling, starts, arguments, what):
    """The sample numbers of the next batches, found by their values; everything else has to fit to them."""
    arrays = list(scene.arrays.values())
    if arguments["stack"]:
        places = [scene.place(f"[{','.join(scene.arrays)}]")]
        expected = [[sampling.stacked(arrays, start)] for start in starts]
    else:
        places = [scene.place(name) for name in scene.arrays]
        expected = [[sampling.values(array, start) for array in arrays] for start in starts]
    by_values = {sample[0].tobytes(): number for number, sample in enumerate(expected)}
    assert len(by_values) == len(starts), "samples of different starts differ in their values"
    numbers = []
    for _ in range(how_many):
        outputs = [on_host(output) for output in pipe.run()]
        assert len(outputs) == len(places) + arguments["return_index"], what
        for i in range(len(outputs[0])):
            sample = np.array(outputs[0].at(i))
            number = by_values.get(sample.tobytes())
            assert number is not None, f"{what}: no sample has the values {sample.tolist()}"
            numbers.append(number)
            for k, place in enumerate(places):
                np.testing.assert_array_equal(
                    np.array(outputs[k].at(i)), expected[number][k], strict=True, err_msg=what
                )
                text = sampling.source_info(place, arrays[k].shape, starts[number])
                assert outputs[k][i].source_info() == text, what
            if arguments["return_index"]:
                index = np.array(outputs[-1].at(i))
                np.testing.assert_array_equal(
                    index, np.array(starts[number], "int64"), strict=True, err_msg=what
                )
    return numbers


scene_of = scenes(write_scene, seed=20260102)


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, SCENES))]
)
def test_random_configurations(backend, scene_of, number):
    """Number, set, order, values, indices and names of samples are those of the naive enumeration."""
    rng = np.random.default_rng([20260103, number])
    scene = scene_of(number)
    tried = -(-CONFIGURATIONS[backend.device] // SCENES)
    counts = [check_configuration(backend, scene, rng, i) for i in range(tried)]
    assert sum(count > 0 for count in counts) >= tried / 2, "most configurations have samples"


# --- arguments that contradict each other ---------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A group: t2m (6, 4, 3), mask (6, 4), hour (6,), short (5, 4), wide (6, 9)."""
    path = write_group(tmp_path_factory.mktemp("contradictions") / "weather.zarr")
    shapes = {"t2m": (6, 4, 3), "mask": (6, 4), "hour": (6,), "short": (5, 4), "wide": (6, 9)}
    for name, shape in shapes.items():
        values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        write_array(path, name, values, chunks=(2,) * len(shape), codec="raw")
    return path


CONTRADICTIONS = [
    # what has to be named, the arguments; "arrays" is ["mask"], of shape (6, 4), where nothing else is said
    (["offsets", "window", "3", "2"], {"offsets": [0, 1], "window": [3]}),
    (["offsets", "window"], {"offsets": [0, 1, 2], "window": [2, 2]}),
    (["offsets", "dilation", "2"], {"offsets": [0, 1], "dilation": [2]}),
    (["offsets", "dilation", "3"], {"offsets": [0, 1], "window": [2, 2], "dilation": [3, 1]}),
    (["offsets", "empty"], {"offsets": []}),
    (
        ["offsets", "dimension 1", "window", "2", "3"],
        {"dimension_offsets": '{"1": [0, 1]}', "window": [1, 3]},
    ),
    (["offsets", "dimension 1", "window"], {"dimension_offsets": '{"1": [0, 1]}', "window": [2]}),
    (
        ["dilation", "offsets", "2"],
        {"dimension_offsets": '{"1": [0, 1]}', "window": [1, 2], "dilation": [1, 2]},
    ),
    (["offsets", "4", "5"], {"dimension_offsets": '{"1": [0, 4]}'}),
    (["stride", "2"], {"dimension_offsets": '{"1": [0, 1]}', "stride": [1]}),
    (["dimension_offsets", "lead", "2"], {"dimension_offsets": '{"lead": [0, 1]}'}),
    (["dimension_offsets", "JSON"], {"dimension_offsets": "lead"}),
    (["offsets", "dimension_offsets"], {"dimension_offsets": '{"0": [0, 1]}', "offsets": [0]}),
    (["dimension_offsets", "1 breaks"], {"dimension_offsets": '{"1": {"offsets": [0, 3], "breaks": [1]}}'}),
    (["dimension_offsets", "99"], {"dimension_offsets": '{"1": {"offsets": [0], "breaks": [99]}}'}),
    (["offsets", "6"], {"offsets": [-3, 3]}),
    (["offsets", "6"], {"offsets": [0, 6]}),
    (["offsets"], {"offsets": [0, 2**62]}),
    (["offsets"], {"offsets": [-(2**63), 2**63 - 1]}),
    (["offsets", "roi", "5"], {"offsets": [0, 5], "roi_end": [5]}),
    (["dilation", "window"], {"window": [2], "dilation": [1, 1]}),
    (["dilation", "window"], {"window": [2, 2], "dilation": [1]}),
    (["dilation"], {"window": [2], "dilation": [0]}),
    (["dilation"], {"window": [2], "dilation": [-1]}),
    (["dilation"], {"window": [2], "dilation": [2**62]}),
    (["dilation", "window", "7", "6"], {"window": [3], "dilation": [3]}),
    (["dilation", "window", "4"], {"window": [1, 3], "dilation": [1, 2]}),
    (["stride", "window"], {"window": [2], "stride": [1, 1]}),
    (["roi_start", "-1"], {"roi_start": [-1]}),
    (["roi_start", "-1"], {"roi_start": [0, -1]}),
    (["roi_end", "7", "6"], {"roi_end": [7]}),
    (["roi_end", "5", "4"], {"roi_end": [6, 5]}),
    (["roi_end", "-1"], {"roi_end": [-1]}),
    (["roi_end", "0"], {"roi_end": [0]}),
    (["roi_start", "6"], {"roi_start": [6]}),
    (["roi_start", "roi_end", "3"], {"roi_start": [3], "roi_end": [3]}),
    (["roi_start", "roi_end", "4", "2"], {"roi_start": [4], "roi_end": [2]}),
    (["roi_start", "roi_end", "3", "1"], {"roi_start": [0, 3], "roi_end": [6, 1]}),
    (["roi_start", r"\[6, 4\]"], {"roi_start": [0, 0, 0]}),
    (["roi_end", r"\[6, 4\]"], {"roi_end": [6, 4, 1]}),
    (["window", "roi", "3", "4"], {"window": [4], "roi_start": [1], "roi_end": [4]}),
    (["window", "roi"], {"window": [1, 3], "roi_start": [0, 2]}),
    (["dilation", "window", "roi"], {"window": [2], "dilation": [3], "roi_end": [3]}),
    (["exclude", "6"], {"exclude": [6]}),
    (["exclude", "-1"], {"exclude": [-1]}),
    (["exclude", "sample"], {"exclude": [0, 1, 2, 3, 4, 5]}),
    (["exclude", "sample"], {"exclude": [1, 4], "window": [3]}),
    (["exclude", "sample"], {"exclude": [2], "roi_start": [2], "roi_end": [3]}),
    (["exclude", "sample"], {"exclude": [0], "offsets": [0, 5]}),
    (["num_shards", "5", r"\b4\b"], {"num_shards": 5, "exclude": [0, 5]}),
    (["num_shards", "3", r"\b2\b"], {"num_shards": 3, "roi_start": [2], "roi_end": [4]}),
    (["num_shards", "4", r"\b3\b"], {"num_shards": 4, "offsets": [-2, 1]}),
    (["stack", "mask", "wide"], {"stack": True, "arrays": ["mask", "wide"]}),
    (["stack", "t2m", "mask"], {"stack": True, "arrays": ["t2m", "mask"], "window": [2]}),
    (["mean", "3", "2"], {"mean": [1.0, 2.0, 3.0], "std": [1.0], "arrays": ["mask", "wide"]}),
    (["std", "2", "1"], {"mean": [1.0], "std": [1.0, 2.0]}),
    (["mask", "short", "6", "5"], {"arrays": ["mask", "short"], "offsets": [0, 1]}),
    (["mask", "wide"], {"arrays": ["mask", "wide"], "window": [2, 2], "dilation": [1, 2]}),
    (["initial_fill"], {"random_shuffle": True, "initial_fill": 0}),
    (["initial_fill"], {"random_shuffle": True, "initial_fill": -5}),
]


@pytest.mark.gpu_where(lambda case: case["arguments"].get("exclude") == [6])
@pytest.mark.parametrize(
    "parts, arguments", CONTRADICTIONS, ids=[json.dumps(case[1]).replace(" ", "") for case in CONTRADICTIONS]
)
def test_contradictions_are_refused(backend, store, parts, arguments):
    """A ValueError when the pipeline is built, which names both sides and their numbers."""
    with pytest.raises(ValueError) as caught:
        build(backend, store, **({"arrays": ["mask"]} | arguments))
    # Numbers in the traceback and in the folder's name are not meant.
    text = str(caught.value).partition("encountered:")[2].replace(str(store), "STORE")
    for part in parts:
        part = rf"(?<!\d){part}\b" if re.fullmatch(r"-?\d+", part) else part
        assert re.search(part, text), f"{part!r} is not in: {text}"


@pytest.mark.gpu_where(False)
def test_neighbours_of_contradictions_are_read(backend, store):
    """What is one step away from a refusal works, and reads the enumeration's samples."""
    whole = np.arange(24, dtype="float32").reshape(6, 4)
    for sampling in (
        Sampling(offsets=(-2, 3)),
        Sampling(offsets=(5, 5, 0)),
        Sampling(along={1: (0, 3)}),
        Sampling(offsets=(0, -2), along={1: (1, 0, 0)}, breaks_along={1: (2,)}),
        Sampling(window=(2, 2), along={1: (3, 0)}, stride=(2, 1), dilation=(2, 1)),
        Sampling(offsets=(5,)),
        Sampling(offsets=(0, 1), window=(2,), dilation=(1,)),
        Sampling(window=(2, 2), dilation=(5, 3)),
        Sampling(roi_start=(5,)),
        Sampling(roi_start=(0, 3), roi_end=(6, 4)),
        Sampling(window=(3,), roi_start=(1,), roi_end=(4,)),
        Sampling(exclude=(0, 1, 2, 3, 4, 4)),
        Sampling(exclude=()),
        Sampling(exclude=(1, 5), window=(3,)),
        Sampling(window=(1,), stride=(2**62,)),
    ):
        (samples,) = read_all(backend, store, arrays=["mask"], **sampling.arguments())
        starts = sampling.samples(whole.shape)
        assert len(samples) == len(starts), sampling
        for sample, start in zip(samples, starts):
            np.testing.assert_array_equal(sample, sampling.values(whole, start), strict=True)
