"""Samples by choice: lists of them, draws by weights, so many in an epoch, changed between epochs.

What is chosen is held against lists of Python; where and how samples lie against the enumeration in
`naive.py`, as in test_sampling.py. What a mask keeps is in test_mask.py.
"""

import json
import math
import re
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

import reference
import zarr_dali
from configurations import batches_to_read, draw_reader, draw_sampling
from counting import Chunks, settled_stats
from naive import Sampling, visits
from reading import CPU, build, on_host
from stores import write_array, write_group

SHAPE = (24, 9, 5)
TRIED = 60


def device_of(backend):
    return "cpu" if backend is CPU else f"cuda:{backend.device_id}"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """24 x 9 x 5 elements that count, in chunks of 4 x 4 x 5."""
    path = write_group(tmp_path_factory.mktemp("samples") / "fields.zarr")
    write_array(path, "a", values_of_store(), chunks=(4, 4, 5))
    return path


def values_of_store():
    return np.arange(math.prod(SHAPE), dtype="float32").reshape(SHAPE)


def given(tmp_path, rng, name, values):
    """A list as the operator takes it: JSON, or a file."""
    if rng.random() < 0.5:
        return json.dumps(values)
    path = tmp_path / f"{name}-{rng.integers(1 << 60)}.npy"
    np.save(path, np.array(values))
    return str(path)


def starts_of(pipe, how_many, sampling):
    """The starts of all samples of the next batches; their values have to be those of the enumeration."""
    whole, starts = values_of_store(), []
    for _ in range(how_many):
        values, index = (on_host(output) for output in pipe.run())
        for i in range(len(index)):
            starts.append(tuple(map(int, np.array(index.at(i)))))
            np.testing.assert_array_equal(np.array(values.at(i)), sampling.values(whole, starts[-1]))
    return starts


def draw_list(rng, tmp_path):
    """Windows, and a list of their starts, some of them several times."""
    while True:
        sampling = draw_sampling(rng, SHAPE, 3)
        # Without strides samples may start anywhere.
        free = Sampling(**(vars(sampling) | {"stride": (1,) * sampling.dimensions}))
        arguments = sampling.arguments()
        if sampling.stride is None or rng.random() < 0.5:
            sampling, arguments = free, free.arguments()
            del arguments["stride"]
        starts = sampling.samples(SHAPE)
        if starts:
            break
    count = int(rng.integers(1, min(60, 2 * len(starts)) + 1))
    chosen = [starts[i] for i in rng.integers(0, len(starts), count)]
    rows = [start[0] for start in chosen] if sampling.dimensions == 1 and rng.random() < 0.5 else chosen
    return sampling, chosen, arguments | {"samples": given(tmp_path, rng, "samples", rows)}


@pytest.mark.parametrize("seed", range(4))
def test_listed_samples(backend, store, tmp_path, seed):
    """Random lists under shuffle, shards and padding: in order those of the list, shuffled each as often."""
    rng = np.random.default_rng([20261123, seed])
    for number in range(TRIED if backend is CPU else 3):
        sampling, chosen, arguments = draw_list(rng, tmp_path)
        reader, order, batch_size = draw_reader(rng, len(chosen))
        what = f"{number}: {arguments}, {reader}, {order}, batches of {batch_size}, {chosen}"
        epochs = {}
        for shard in range(reader["num_shards"]):
            own = reader | {"shard_id": shard}
            given_all = arguments | own | order | {"batch_size": batch_size, "return_index": True}
            pipe = build(backend, store, arrays=["a"], **given_all)
            assert pipe.reader_meta("reader") == reference.meta(len(chosen), **own), what
            how_many = batches_to_read(len(chosen), batch_size, own)
            found = starts_of(pipe, how_many, sampling)
            if not order:
                expected = reference.batches(len(chosen), batch_size, how_many, **own)
                assert found == [chosen[i] for i in sum(expected, [])], what
            for epoch, (part, samples, repeats) in enumerate(visits(found, len(chosen), batch_size, **own)):
                assert len(samples) == len(reference.shard_range(len(chosen), reader["num_shards"], part))
                assert all(repeat == samples[-1] for repeat in repeats), what
                epochs.setdefault(epoch, []).extend(samples)
        assert Counter(epochs[0]) == Counter(chosen), what
        whole = [samples for samples in epochs.values() if len(samples) == len(chosen)]
        assert all(Counter(samples) == Counter(chosen) for samples in whole), what


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("shared", [False, True])
def test_draws_are_one_for_all_shards(backend, store, tmp_path, shared):
    """Whatever the shards, an epoch has the same draws; another epoch and another seed have others."""
    rng = np.random.default_rng(5)
    window = [2] if shared else [4]
    stride = [1] if shared else [4]
    count = len(Sampling(window=tuple(window), stride=tuple(stride)).samples(SHAPE))
    weights = rng.random(count) * (rng.random(count) < 0.7)

    def draws(num_shards, seed, per_epoch=50, epochs=2):
        found = [[] for _ in range(epochs)]
        for shard in range(num_shards):
            reader = {"num_shards": num_shards, "shard_id": shard, "pad_last_batch": True}
            pipe = build(
                backend, store, arrays=["a"], batch_size=4, window=window, stride=stride, return_index=True,
                weights=given(tmp_path, rng, "weights", weights.tolist()), samples_per_epoch=per_epoch,
                random_shuffle=True, seed=seed, **reader,
            )  # fmt: skip
            how_many = reference.batches_per_epoch(per_epoch, num_shards, 4) * epochs
            starts = starts_of(pipe, how_many, Sampling(window=tuple(window), stride=tuple(stride)))
            for epoch, (_, samples, _) in enumerate(visits(starts, per_epoch, 4, **reader)):
                found[epoch] += samples
        return [Counter(epoch) for epoch in found]

    first, second = draws(1, 3)
    assert first.total() == second.total() == 50
    assert draws(2, 3) == draws(5, 3) == [first, second]
    assert first != second and draws(1, 4)[0] not in (first, second)
    left_out = {(int(i) * stride[0],) for i in np.flatnonzero(weights == 0)}
    assert left_out and not left_out & set(first + second)


def test_draws_are_as_likely_as_their_weights(backend, store):
    """Pearson's statistic over 30 epochs of draws with a fixed seed."""
    weights = np.arange(24.0) ** 2
    loader = zarr_dali.Loader(
        store, "a", 64, device=device_of(backend), shuffle=True, seed=11, weights=weights,
        samples_per_epoch=1000, return_index=True,
    )  # fmt: skip
    times = Counter(int(i) for _ in range(30) for batch in loader for i in batch["index"].ravel())
    expected = 30_000 * weights / weights.sum()
    assert times[0] == 0
    statistic = sum((times[i] - expected[i]) ** 2 / expected[i] for i in range(1, 24))
    # Of 22 degrees of freedom, a value above 48 has a probability of 0.1 %.
    assert statistic < 48, statistic


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("per_epoch", [1, 5, 23, 24, 60])
@pytest.mark.parametrize("listed", [False, True])
def test_so_many_samples_of_a_pass(backend, store, shuffle, per_epoch, listed):
    """Epochs are the parts of passes over all samples, each of which has every sample once."""
    rng = np.random.default_rng(9)
    all_of = rng.permutation(24)[:17].tolist() if listed else list(range(24))
    arguments = {"samples": all_of} if listed else {}
    for world_size in (1, 3) if per_epoch > 3 else (1,):
        loaders = [
            zarr_dali.Loader(
                store, "a", 4, device=device_of(backend), shuffle=shuffle, seed=2,
                samples_per_epoch=per_epoch, return_index=True, rank=rank, world_size=world_size, **arguments,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        seen = []
        for epoch in range(max(2, math.ceil(70 / per_epoch))):
            parts = {}
            for rank, loader in enumerate(loaders):
                numbers = [int(i) for batch in loader for i in batch["index"].ravel()]
                part = (rank + epoch) % world_size
                size = len(reference.shard_range(per_epoch, world_size, part))
                parts[part] = numbers[:size]
            seen += sum((parts[part] for part in range(world_size)), [])
        for start in range(0, len(seen) - len(all_of) + 1, len(all_of)):
            one = seen[start : start + len(all_of)]
            assert sorted(one) == sorted(all_of)
            assert shuffle or one == all_of
        assert not shuffle or seen[: len(all_of)] != all_of


def choices(rng):
    """Random arguments of `Loader` that choose among the 22 windows of three steps, and what an epoch has."""
    starts = range(22)
    chosen, arguments = list(starts), {}
    if rng.random() < 0.6:
        chosen = [int(i) for i in rng.integers(0, 22, int(rng.integers(5, 40)))]
        arguments["samples"] = chosen
    if rng.random() < 0.5:
        arguments["weights"] = rng.random(len(chosen)) + 0.01
    if not arguments or rng.random() < 0.5:
        arguments["samples_per_epoch"] = int(rng.integers(5, 50))
    shuffle = "weights" in arguments or bool(rng.random() < 0.6)
    return arguments | {"shuffle": shuffle}


@pytest.mark.gpu_where(lambda case: case["seed"] == 0)
@pytest.mark.parametrize("seed", range(12))
def test_resuming(backend, store, seed):
    """From any place the rest of the epoch and the next are those of the uninterrupted run."""
    rng = np.random.default_rng([7, seed])
    arguments = choices(rng) | {"drop_last": bool(rng.random() < 0.3), "seed": seed, "window": [3]}
    batch_size = int(rng.integers(1, 5))

    def make():
        options = arguments | {"device": device_of(backend), "return_index": True}
        return zarr_dali.Loader(store, "a", batch_size, **options)

    whole = make()
    states, batches = [whole.state_dict()], []
    for _ in range(4):
        for batch in whole:
            batches.append(batch)
            states.append(whole.state_dict())
    steps = len(whole)
    assert len(batches) == 4 * steps
    for place in rng.choice(2 * steps, min(6, 2 * steps), replace=False):
        loader = make()
        loader.load_state_dict(json.loads(json.dumps(states[place])))
        rest = [*loader, *loader]
        expected = batches[place : (place // steps + 2) * steps]
        assert len(rest) == len(expected)
        assert all(torch.equal(one[name], other[name]) for one, other in zip(rest, expected) for name in one)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("seed", range(12))
def test_resuming_on_other_ranks(backend, store, seed):
    """The rest of an epoch is shared out anew: together all ranks have what the epoch has, each as often."""
    rng = np.random.default_rng([8, seed])
    arguments = choices(rng) | {"seed": seed, "window": [3], "return_index": True}

    def ranks(world_size, batch_size):
        return [
            zarr_dali.Loader(
                store, "a", batch_size, device="cpu", rank=rank, world_size=world_size, **arguments
            )
            for rank in range(world_size)
        ]

    (alone,) = ranks(1, 1)
    alone.set_epoch(1)
    epoch = Counter(int(batch["index"]) for batch in alone)
    before, batches = ranks(2, 1), int(rng.integers(0, 3))
    seen = Counter()
    for loader in before:
        loader.set_epoch(1)
        for batch in islice(loader, batches):
            seen.update(batch["index"].ravel().tolist())
    after = ranks(3, 2)
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
        left = loader._place.left(loader._count)
        part = loader._part(loader._place)
        numbers = [i for batch in loader for i in batch["index"].ravel().tolist()]
        seen.update(numbers[:part])
    assert left == epoch.total() - 2 * batches
    assert seen == epoch


@pytest.mark.gpu_where(False)
def test_a_state_of_other_samples_is_refused(backend, store):
    """In the middle of an epoch; between epochs samples may change."""

    def make(**arguments):
        arguments = {"samples": [1, 5, 9, 12, 3], "shuffle": True} | arguments
        return zarr_dali.Loader(store, "a", 2, device="cpu", return_index=True, **arguments)

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    for others in (
        {"samples": [1, 5, 9, 12, 4]},
        {"samples": None},
        {"weights": [1, 2, 3, 4, 5]},
        {"samples_per_epoch": 4},
    ):
        with pytest.raises((ValueError, RuntimeError), match=r"epoch of other samples.*set_samples"):
            make(**others).load_state_dict(state)
    end = make()
    list(end)
    other = make(samples=[7, 8, 9])
    other.load_state_dict(end.state_dict())
    assert other.epoch == 1
    expected = make(samples=[7, 8, 9])
    expected.set_epoch(1)
    assert indices(other) == indices(expected)


def indices(loader):
    return [batch["index"].ravel().tolist() for batch in loader]


@pytest.mark.gpu_where(lambda case: case["seed"] == 0)
@pytest.mark.parametrize("seed", range(6))
def test_set_samples(backend, store, seed):
    """Each epoch is that of a loader that was made with its lists, with states of any place between them."""
    rng = np.random.default_rng([9, seed])

    def make(**arguments):
        options = {"shuffle": True, "seed": 4, "window": [3], "return_index": True} | arguments
        return zarr_dali.Loader(store, "a", 3, device=device_of(backend), **options)

    lists = [{name: value for name, value in choices(rng).items() if name != "shuffle"} for _ in range(4)]
    loader = make()
    for epoch, arguments in enumerate(lists):
        loader.set_samples(**arguments)
        assert loader.epoch == epoch
        fresh = make(**arguments)
        fresh.set_epoch(epoch)
        assert len(loader) == len(fresh)
        expected = indices(fresh)
        broken = int(rng.integers(0, len(expected))) if rng.random() < 0.5 else None
        found = []
        for number, batch in enumerate(loader):
            if number == broken:
                state = loader.state_dict()
                resumed = make()
                resumed.set_samples(**arguments)
                resumed.load_state_dict(json.loads(json.dumps(state)))
                resumed.set_samples(**arguments)  # as a training loop says it at the top of each epoch
                assert indices(resumed) == expected[number + 1 :] or number + 1 == len(expected)
            found.append(batch["index"].ravel().tolist())
        assert found == expected
    loader.set_samples()
    fresh = make()
    fresh.set_epoch(len(lists))
    assert indices(loader) == indices(fresh)


@pytest.mark.gpu_where(False)
def test_set_samples_in_the_middle(backend, store):
    loader = zarr_dali.Loader(store, "a", 4, device="cpu", return_index=True)
    batches = iter(loader)
    next(batches)
    loader.set_samples([3, 4, 5])
    with pytest.raises(RuntimeError, match="another iteration"):
        next(batches)
    assert (loader.epoch, indices(loader)) == (1, [[3, 4, 5]])
    first = next(iter(loader))
    state = loader.state_dict()
    assert first["index"].ravel().tolist() == [3, 4, 5]
    loader.set_samples([7, 8, 9, 10, 11])
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="middle of epoch"):
        loader.set_samples([1])
    assert indices(loader) == [[11]]
    # What cannot be leaves what was there.
    for lists, problem in [
        (([24],), "names no sample"),
        (([1.5],), "named by indices"),
        (([[1, 2]],), "named by 1"),
        (([],), "empty"),
        (([1, 2], [1, 2]), "random"),
        ((None, [1]), "random"),
    ]:
        with pytest.raises(ValueError, match=problem):
            loader.set_samples(*lists)
    with pytest.raises(ValueError, match="samples_per_epoch"):
        loader.set_samples(samples_per_epoch=0)
    assert len(loader) == 2 and sum(indices(loader), []) == [7, 8, 9, 10, 11]


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"samples": [[0, 9, 0]]}, ["samples", "row 0", "dimension 1", "0 to 8"]),
        ({"samples": [[0, 0, 0], [24, 0, 0]]}, ["samples", "row 1", r"\[24, 0, 0\]", "0 to 23"]),
        ({"samples": [[0, -1, 0]]}, ["samples", "dimension 1"]),
        ({"samples": [[0, 0]]}, ["samples", "2 numbers", "named by 3"]),
        ({"samples": [0, 1]}, ["samples", "1 numbers", "named by 3"]),
        ({"samples": [[0, 0, 0], [1]]}, ["samples", "not alike"]),
        ({"samples": []}, ["samples", "empty"]),
        ({"samples": np.zeros((1, 3))}, ["samples", "float64"]),
        ({"samples": np.zeros((1, 1, 3), int)}, ["samples", "shape"]),
        ({"samples": "nowhere.npy"}, ["samples", "nowhere"]),
        ({"samples": [[0, 1, 0]], "stride": [1, 2, 1]}, ["samples", "steps of 2"]),
        ({"samples": [[3, 0, 0]], "exclude": [3]}, ["samples", "left out"]),
        ({"weights": [1, 2]}, ["weights", "2 numbers", "1080 samples"]),
        ({"samples": [[0, 0, 0]], "weights": [1, 2]}, ["weights", "2 numbers", "has 1 samples"]),
        ({"samples": [[0, 0, 0]], "weights": [-1]}, ["weights", "-1"]),
        ({"samples": [[0, 0, 0]], "weights": [math.nan]}, ["weights", "NaN"]),
        ({"samples": [[0, 0, 0]], "weights": [math.inf]}, ["weights", "inf"]),
        ({"samples": [[0, 0, 0]], "weights": [0]}, ["weights", "all 0"]),
        ({"samples": [[0, 0, 0]], "weights": ["a"]}, ["weights", "number"]),
        ({"samples": [[0, 0, 0]], "weights": [1], "shuffle": False}, ["weights", "shuffle=True"]),
        ({"samples_per_epoch": 0}, ["samples_per_epoch"]),
        ({"samples_per_epoch": -3}, ["samples_per_epoch"]),
        ({"samples": [[0, 0, 0]], "rank": 0, "world_size": 2}, ["num_shards", "1 sample"]),
        ({"min_foreground": 0.5}, ["min_foreground", "mask"]),
        ({"mask_cache": "x"}, ["mask_cache", "mask"]),
        ({"mask": "a", "samples": [[0, 0, 0]]}, ["mask", "samples"]),
        ({"mask": "a", "min_foreground": 1.5}, ["min_foreground", "1.5"]),
    ],
)
def test_what_cannot_be_is_refused(backend, store, arguments, words):
    with pytest.raises(ValueError) as caught:
        given_all = {"device": "cpu", "window": [1, 1, 1], "shuffle": True} | arguments
        zarr_dali.Loader(store, "a", 1, **given_all)
    text = str(caught.value)
    assert all(re.search(word, text) for word in words), text


def test_lists_in_all_forms(backend, store, tmp_path):
    """Arrays, tensors, files and texts are the same list; states are those of the same list."""
    rows = [[3, 1], [0, 4], [20, 8]]
    np.save(tmp_path / "rows.npy", np.array(rows, "uint16"))
    forms = [rows, np.array(rows, "int32"), torch.tensor(rows), tmp_path / "rows.npy", json.dumps(rows)]
    states = set()
    for form in forms:
        loader = zarr_dali.Loader(
            store, "a", 3, device=device_of(backend), window=[2, 1], samples=form, return_index=True
        )
        (batch,) = loader
        assert batch["index"].tolist() == rows
        whole = values_of_store()
        for sample, (t, y) in zip(batch["a"].cpu().numpy(), rows):
            np.testing.assert_array_equal(sample, whole[t : t + 2, y : y + 1])
        states.add(json.dumps(loader.state_dict()))
    assert len(states) == 1


@pytest.mark.gpu_where(False)
def test_listed_samples_of_separate_stores(backend, tmp_path):
    """The number of the store comes first."""
    paths = []
    for number, steps in enumerate((5, 2, 9)):
        paths.append(str(tmp_path / f"{number}.zarr"))
        write_array(paths[-1], "", np.arange(steps) + 100 * number, chunks=(3,), codec="raw")
    rows = [[2, 6], [0, 1], [2, 0], [0, 1]]
    for shuffle in (False, True):
        loader = zarr_dali.Loader(
            paths, (), 4, device="cpu", join="separate", window=[3], samples=rows, return_index=True,
            shuffle=shuffle,
        )  # fmt: skip
        (batch,) = loader
        assert (sorted if shuffle else list)(batch["index"].tolist()) == (sorted(rows) if shuffle else rows)
        for sample, (number, start) in zip(batch["data"].numpy(), batch["index"].tolist()):
            assert sample.tolist() == [100 * number + start + i for i in range(3)]
    problems = [([1, 0], "store 1"), ([3, 0], "store 3"), ([0, 3], "of store 0 samples are at 0 to 2")]
    for row, problem in problems:
        with pytest.raises(ValueError, match=problem):
            zarr_dali.Loader(paths, (), 1, device="cpu", join="separate", window=[3], samples=[row])


@pytest.mark.gpu_where(False)
def test_what_info_says_of_chosen_samples(backend, store):
    """The samples of an epoch; a problem in words."""
    text = json.dumps([[0, 1, 2], [3, 4, 1]])
    told = zarr_dali.info(store, ["a"], device="cpu", window=[2, 3, 1], samples=text)
    assert told.to_dict()["arrays"][0]["reading"]["samples"] == 2
    told = zarr_dali.info(store, ["a"], device="cpu", window=[2, 3, 1], samples="[[0, 7, 0]]")
    assert "row 0" in told.to_dict()["arrays"][0]["problem"]


# --- what is decoded, counted ---------------------------------------------------------------------

STEPS, WIDTH, CHUNK = 400, 2048, 10


@pytest.fixture(scope="module")
def long_store(tmp_path_factory):
    """400 steps of 2048 elements, ten in a chunk."""
    path = write_group(tmp_path_factory.mktemp("long") / "long.zarr")
    values = np.arange(STEPS * WIDTH, dtype="int32").reshape(STEPS, WIDTH)
    write_array(path, "a", values, chunks=(CHUNK, WIDTH))
    return path


CHOICES = {
    "half of them": lambda rng: {"samples": rng.permutation(397)[:200].tolist()},
    "a few of each chunk": lambda rng: {"samples": [10 * i + int(rng.integers(7)) for i in range(39)]},
    "some several times": lambda rng: {"samples": rng.integers(0, 397, 500).tolist()},
    "weighted": lambda rng: {"weights": rng.random(397) ** 4},
    "few draws": lambda rng: {"weights": rng.random(397), "samples_per_epoch": 90},
}


@pytest.mark.gpu_where(lambda case: case["name"] in ("half of them", "weighted"))
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("window", [1, 4])
def test_each_chunk_is_decoded_once_an_epoch(backend, long_store, tmp_path, name, window):
    """Shuffled, with memory for 16 groups of chunks: no chunk is decoded twice in an epoch."""
    rng = np.random.default_rng(3)
    arguments = {
        key: value if key == "samples_per_epoch" else given(tmp_path, rng, key, np.asarray(value).tolist())
        for key, value in CHOICES[name](rng).items()
    }
    sampling = Sampling(window=(window,), roi_end=(396 + window,))
    arguments |= {"random_shuffle": True, "seed": 5, "return_index": True, "pad_last_batch": True}
    arguments |= {"arrays": ["a"], "batch_size": 4, **sampling.arguments()}
    memory = 2 * 16 * CHUNK * WIDTH * 4
    budget = {"cpu": {"host_memory_budget": memory}, "gpu": {"device_memory_budget": memory}}
    pipe = build(backend, long_store, **arguments, **budget[backend.device])
    count = pipe.reader_meta("reader")["epoch_size"]
    every = reference.batches_per_epoch(count, 1, 4)

    def starts(pipe, how_many):
        found = []
        for _ in range(how_many):
            index = on_host(pipe.run()[-1])
            found += [int(np.array(index.at(i))[0]) for i in range(len(index))]
        return found

    order = starts(build(CPU, long_store, **arguments, **budget["cpu"]), every * 4)
    chunks = Chunks((STEPS, WIDTH), [(STEPS, (CHUNK, WIDTH))])
    needed, seen = [0], set()
    for place, start in enumerate(order):
        touched = chunks.of(sampling.index((STEPS, WIDTH), (start,)))
        seen |= {(place // (4 * every), chunk) for chunk in touched}
        if place % 4 == 3:
            needed.append(len(seen))
    assert starts(pipe, 2 * every) == order[: 8 * every]
    stats = settled_stats(pipe)
    assert stats["chunks_decoded"] == stats["chunks_read"]
    # As many more batches are prepared as there are behind it.
    assert stats["chunks_decoded"] in needed[2 * every :], (stats["chunks_decoded"], needed[2 * every])


@pytest.mark.gpu_where(False)
def test_a_list_in_order_decodes_each_chunk_once(backend, long_store, tmp_path):
    """Neighbours in the list share chunks, and repeats too, as far as memory allows."""
    np.save(tmp_path / "list.npy", np.repeat(np.arange(0, 397, 3), 2))
    pipe = build(
        backend, long_store, arrays=["a"], window=[4], samples=str(tmp_path / "list.npy"), batch_size=5,
        pad_last_batch=True,
    )  # fmt: skip
    every = reference.batches_per_epoch(266, 1, 5)
    for _ in range(every):
        pipe.run()
    assert settled_stats(pipe)["chunks_decoded"] <= 40 + 10


@pytest.mark.gpu_where(False)
def test_short_epochs_of_a_pass_decode_each_chunk_about_once(backend, long_store):
    """Four epochs of a hundred samples are one pass; at each border the chunks of the buffer are cut."""
    loader = zarr_dali.Loader(
        long_store, "a", 5, device="cpu", shuffle=True, samples_per_epoch=100, initial_fill=20
    )
    for _ in range(4):
        assert len(list(loader)) == 20
    stats = loader.stats()
    assert stats["chunks_decoded"] <= 40 + 8 * 4, stats["chunks_decoded"]


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("arguments", [{"samples_per_epoch": 1000}, {"samples": [[999, 984, 984, 984]] * 9}])
def test_of_any_number_of_patches_some_are_chosen(backend, tmp_path, arguments):
    """An epoch of 1000 out of 10^12 patches, and patches at any place of the same array."""
    import zarr

    zarr.create_array(
        tmp_path / "volume.zarr", shape=(1000,) * 4, chunks=(1, 128, 128, 128), dtype="uint8", fill_value=3
    )
    loader = zarr_dali.Loader(
        tmp_path / "volume.zarr", (), 8, device="cpu", shuffle=True, window=[1, 16, 16, 16], stride=[1] * 4,
        return_index=True, **arguments,
    )  # fmt: skip
    seen = [tuple(row) for batch in loader for row in batch["index"].tolist()]
    if "samples" in arguments:
        assert seen == [(999, 984, 984, 984)] * 9
    else:
        assert len(set(seen)) == len(seen) == 1000
        # Of a pass of 9.5 x 10^11 the next thousand are others.
        again = [tuple(row) for batch in loader for row in batch["index"].tolist()]
        assert len(again) == 1000 and not set(seen) & set(again)


@pytest.mark.full
@pytest.mark.gpu_where(False)
def test_ten_million_samples(backend, tmp_path):
    """Lists of any length are read within seconds; the first batch comes at once."""
    write_array(tmp_path / "n.zarr", "", np.arange(1 << 24, dtype="int32"), chunks=(1 << 16,))
    rng = np.random.default_rng(1)
    samples = rng.permutation(1 << 24)[:10_000_000]
    lists = {"samples": samples, "weights": rng.random(10_000_000)}
    loader = zarr_dali.Loader(tmp_path / "n.zarr", (), 1024, device="cpu", shuffle=True, **lists)
    first = next(iter(loader))["data"].tolist()
    assert len(loader) == math.ceil(10_000_000 / 1024) and set(first) <= set(samples.tolist())
