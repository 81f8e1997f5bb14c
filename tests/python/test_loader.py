"""`zarr_dali.Loader`: what is in its batches, epochs over ranks, states, life, and use by PyTorch Lightning.

What a rank gets in which order is the reader's own contract (test_order.py). Here the loader's arithmetic is
held against a naive one: which samples an epoch has, how often, in how many steps, also where several
configurations share an epoch.
"""

import json
import math
import multiprocessing
import pickle
import random
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import reference
import zarr_dali
from reading import CPU, run_python
from stores import write_array, write_group
from tiers import quick

SAMPLES = 23


def device_of(backend):
    return "cpu" if backend is CPU else f"cuda:{backend.device_id}"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """23 steps of two arrays on a 4 x 5 grid: `a` counts, `b` is its negative; `u` are unsigned."""
    path = tmp_path_factory.mktemp("loader") / "fields.zarr"
    write_group(path)
    values = np.arange(SAMPLES * 20, dtype="float32").reshape(SAMPLES, 4, 5)
    names = ("time", "lat", "lon")
    write_array(path, "a", values, chunks=(4, 4, 5), dimension_names=names)
    write_array(path, "b", -values, chunks=(4, 4, 5), dimension_names=names)
    write_array(path, "u", values.astype("uint16"), chunks=(4, 4, 5), dimension_names=names)
    write_array(path, "time", np.arange(SAMPLES), chunks=(SAMPLES,), dimension_names=("time",))
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """`numbers(n)`: an array of 0 to n - 1, so that a sample is its own number."""
    made = {}

    def get(count):
        if count not in made:
            made[count] = tmp_path_factory.mktemp("numbers") / "n.zarr"
            write_array(made[count], "", np.arange(count), chunks=(3,), codec="raw")
        return made[count]

    return get


def epoch_of(loader):
    """One epoch as lists of sample numbers."""
    return [batch["data"].tolist() for batch in loader]


def ranks_of(backend, path, batch_size, world_size, **arguments):
    """The loaders of all ranks, as if each were in its own process."""
    return [
        zarr_dali.Loader(
            path, (), batch_size, device=device_of(backend), rank=rank, world_size=world_size, **arguments
        )
        for rank in range(world_size)
    ]


def assert_whole(batches_of_ranks, samples, batch_size):
    """The ranks' batches of (a part of) an epoch hold each of `samples` once, and repeats only as fillers.

    A filler is a last batch of one sample, of a rank that has none left where others have.
    """
    assert len({len(batches) for batches in batches_of_ranks}) == 1, "all ranks take as many steps"
    assert all(len(batch) == batch_size for batches in batches_of_ranks for batch in batches[:-1])
    handed_out = Counter(number for batches in batches_of_ranks for batch in batches for number in batch)
    assert set(handed_out) == set(samples)
    lonely = [batches[-1][0] for batches in batches_of_ranks if batches and len(batches[-1]) == 1]
    repeated = handed_out - Counter(samples)
    assert not repeated - Counter(lonely)
    assert repeated.total() < len(batches_of_ranks)


@pytest.mark.parametrize(
    "arrays, arguments, expected",
    [
        (["a", "b"], {}, {"a": lambda a: a, "b": lambda a: -a}),
        ("a", {"names": "x", "dtype": "float16"}, {"x": lambda a: a.astype("float16")}),
        (["a", "b"], {"names": ["x", "y"], "return_index": True}, {"x": lambda a: a, "y": lambda a: -a}),
        (["a", "b"], {"stack": True}, {"data": lambda a: np.stack([a, -a], axis=1)}),
        (["a"], {"mean": np.float32(2), "std": [4.0]}, {"a": lambda a: (a - 2) / 4}),
        (["u"], {"dtype": torch.int32}, {"u": lambda a: a.astype("int32")}),
    ],
)
@pytest.mark.gpu_where(lambda case: "stack" in case["arguments"] or "return_index" in case["arguments"])
def test_batches(backend, store, arrays, arguments, expected):
    """Keys, values, types and devices; windows of two steps, in order."""
    device = device_of(backend)
    loader = zarr_dali.Loader(store, arrays, 4, device=device, window=np.array([2]), **arguments)
    values = np.arange(SAMPLES * 20, dtype="float32").reshape(SAMPLES, 4, 5)
    assert len(loader) == math.ceil((SAMPLES - 1) / 4)
    first = 0
    for batch in loader:
        size = min(4, SAMPLES - 1 - first)
        assert list(batch) == [*expected, "index"] if "return_index" in arguments else list(expected)
        if "index" in batch:
            assert batch["index"].dtype == torch.int64
            assert batch["index"].tolist() == [[first + i] for i in range(size)]
        for name, change in expected.items():
            tensor = batch[name]
            assert tensor.device == torch.device(device)
            windows = np.stack([change(values[first + i : first + i + 2]) for i in range(size)])
            np.testing.assert_array_equal(tensor.cpu().numpy(), windows)
            assert tensor.cpu().numpy().dtype == windows.dtype
        first += size
    assert first == SAMPLES - 1


@pytest.mark.parametrize("count", [5, SAMPLES])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
@pytest.mark.gpu_where(
    lambda case: (case["count"], case["world_size"], case["batch_size"]) == (SAMPLES, 3, 4)
)
def test_epochs(backend, numbers, count, world_size, batch_size):
    """Unshuffled, the ranks' epochs are the reader's without repeats; shuffled, they have its samples."""
    for stick in (False, True):
        options = {"stick_to_shard": stick, "num_io_threads": 1}
        loaders = ranks_of(backend, numbers(count), batch_size, world_size, **options)
        steps = reference.batches_per_epoch(count, world_size, batch_size)
        orders = [
            reference.batches(
                count, batch_size, 2 * steps, shard_id=rank, num_shards=world_size, stick_to_shard=stick,
                pad_last_batch=True,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        for epoch in range(2):
            assert [loader.epoch for loader in loaders] == [epoch] * world_size
            batches = [epoch_of(loader) for loader in loaders]
            assert_whole(batches, range(count), batch_size)
            for rank, loader in enumerate(loaders):
                assert len(loader) == len(batches[rank]) == steps
                padded = orders[rank][epoch * steps : (epoch + 1) * steps]
                assert batches[rank] == [full[: len(cut)] for full, cut in zip(padded, batches[rank])]
    loaders = ranks_of(backend, numbers(count), batch_size, world_size, shuffle=True, seed=3)
    for _ in range(2):
        assert_whole([epoch_of(loader) for loader in loaders], range(count), batch_size)


def test_shuffle_and_seed(backend, numbers):
    """The order depends on seed and epoch and on nothing else."""

    def orders(seed):
        loader = zarr_dali.Loader(
            numbers(SAMPLES), batch_size=4, device=device_of(backend), shuffle=True, seed=seed
        )
        return [sum(epoch_of(loader), []) for _ in range(2)]

    default = orders(None)
    assert default == orders(0) != orders(1)
    assert default[0] != default[1]
    assert default[0] != sorted(default[0]) == sorted(default[1]) == list(range(SAMPLES))


@pytest.mark.parametrize("world_size, batch_size", [(1, 4), (2, 11), (3, 7), (3, 4), (5, 4)])
@pytest.mark.gpu_where(lambda case: case["world_size"] == 2)
def test_drop_last(backend, numbers, world_size, batch_size):
    """Every batch is full, ranks take as many steps, and the epoch after begins where it has to."""
    loaders = ranks_of(backend, numbers(SAMPLES), batch_size, world_size, drop_last=True)
    whole = ranks_of(backend, numbers(SAMPLES), batch_size, world_size)
    steps = SAMPLES // world_size // batch_size
    for _ in range(3):
        for loader, other in zip(loaders, whole):
            batches = epoch_of(loader)
            assert len(loader) == len(batches) == steps
            assert batches == epoch_of(other)[:steps]
            assert all(len(batch) == batch_size for batch in batches)


@pytest.mark.gpu_where(lambda case: False)
@pytest.mark.parametrize("after", [0, 2, 5])
def test_break_begins_the_next_epoch(backend, numbers, after):
    """Also where Lightning's sanity check leaves off, and with the last batch of an epoch."""
    options = {"device": device_of(backend), "shuffle": True}
    whole = zarr_dali.Loader(numbers(SAMPLES), (), 4, **options)
    epochs = [epoch_of(whole) for _ in range(4)]
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, **options)
    assert epoch_of(loader) == epochs[0]
    for number, batch in enumerate(loader):
        assert batch["data"].tolist() == epochs[1][number]
        if number == after:
            break
    assert loader.epoch == (1 if after + 1 < len(loader) else 2)
    assert epoch_of(loader) == epochs[2]
    iter(loader)  # nothing was asked for
    assert epoch_of(loader) == epochs[3]


def test_set_epoch(backend, numbers):
    options = {"device": device_of(backend), "shuffle": True}
    whole = zarr_dali.Loader(numbers(SAMPLES), (), 4, **options)
    epochs = [epoch_of(whole) for _ in range(3)]
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, **options)
    for epoch in (2, 0, 1, 1):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert epoch_of(loader) == epochs[epoch]
    loader.set_epoch(1)
    first = next(iter(loader))["data"].tolist()
    state = loader.state_dict()
    loader.set_epoch(1)  # broken off: from its start
    assert epoch_of(loader) == epochs[1]
    loader.load_state_dict(state)
    loader.set_epoch(1)  # what a training loop says after it was resumed
    assert [first, *epoch_of(loader)] == epochs[1]
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_set_epoch_takes_whole_numbers_only(numbers):
    loader = zarr_dali.Loader(numbers(5), batch_size=2, shuffle=True, device="cpu")
    loader.set_epoch(np.int64(3))
    first = [batch["data"].tolist() for batch in loader]
    json.dumps(loader.state_dict())
    loader.set_epoch(3)
    assert [batch["data"].tolist() for batch in loader] == first
    for epoch in (1.5, "1", None):
        with pytest.raises(TypeError, match="epoch is"):
            loader.set_epoch(epoch)


@pytest.mark.gpu_where(lambda case: case["drop_last"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_resume(backend, store, drop_last):
    """From any place the rest of the epoch and the next equal the uninterrupted run, bit for bit."""

    def make():
        options = {"window": [2], "shuffle": True, "seed": 7, "drop_last": drop_last, "return_index": True}
        return zarr_dali.Loader(store, ["a", "b"], 4, device=device_of(backend), **options)

    whole = make()
    states, batches = [whole.state_dict()], []
    for _ in range(3):
        for batch in whole:
            batches.append({name: tensor.cpu() for name, tensor in batch.items()})
            states.append(whole.state_dict())
    steps = len(whole)
    assert len(batches) == 3 * steps == 3 * (22 // 4 if drop_last else math.ceil(22 / 4))
    for place in range(0, 2 * steps, 1 if backend is CPU else 4):
        loader = make()
        loader.load_state_dict(json.loads(json.dumps(states[place])))
        assert loader.state_dict() == states[place]
        rest = [*loader, *loader]
        expected = batches[place : (place // steps + 2) * steps]
        assert len(rest) == len(expected)
        for actual, wanted in zip(rest, expected):
            assert all(torch.equal(actual[name].cpu(), wanted[name]) for name in wanted)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("chain", quick(range(25), *range(8)))
@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_on_other_ranks(backend, numbers, chain, shuffle):
    """Configurations that take turns in an epoch hand out each sample once; the next epoch is regular."""
    chance = random.Random(chain)
    count = chance.choice([4, 7, SAMPLES])
    state, last, epoch, left = None, None, chance.randrange(3), set(range(count))
    for turn in range(4):
        # In one and the same configuration a filler may repeat a sample of before.
        others = [(ranks, size) for ranks in range(1, 5) for size in range(1, 6) if (ranks, size) != last]
        last = world_size, batch_size = chance.choice(others)
        loaders = ranks_of(backend, numbers(count), batch_size, world_size, shuffle=shuffle, seed=chain)
        for loader in loaders:
            if state is None:
                loader.set_epoch(epoch)
            else:
                loader.load_state_dict(state)
            assert loader.epoch == epoch
        stop = math.inf if turn == 3 else chance.randint(0, 3)
        seen = [[] for _ in loaders]
        for batches, loader in zip(seen, loaders):
            for batch in loader:
                batches.append(batch["data"].tolist())
                if len(batches) >= stop:
                    break
        ended = loaders[0].epoch != epoch
        gone = {number for batches in seen for batch in batches for number in batch}
        assert gone <= left
        assert_whole(seen, left if ended else gone, batch_size)
        left -= gone
        assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
        state = loaders[0].state_dict()
        if ended:
            assert not left
            epoch, left = epoch + 1, set(range(count))
    regular = ranks_of(backend, numbers(count), batch_size, world_size, shuffle=shuffle, seed=chain)
    for loader, other in zip(loaders, regular):
        other.set_epoch(epoch)
        assert epoch_of(loader) == epoch_of(other)


@pytest.mark.gpu_where(False)
def test_states_that_do_not_fit(backend, numbers, store):
    """Are refused in words, and leave the loader usable."""
    device = device_of(backend)
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device, shuffle=True)
    good = loader.state_dict()
    other = zarr_dali.Loader(store, "a", 4, device=device, shuffle=True).state_dict()
    ordered = zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device).state_dict()
    for state, words in [
        ({}, "version"),
        (None, "state_dict"),
        (good | {"version": 1}, "version"),
        (good | {"played": [[1]]}, "state_dict"),
        ({name: value for name, value in good.items() if name != "epoch"}, "epoch"),
        (other, "samples|arrays"),
        (ordered, "random_shuffle"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=words):
            loader.load_state_dict(state)
    assert sorted(sum(epoch_of(loader), [])) == list(range(SAMPLES))
    loader.load_state_dict(good | {"seed": 5})
    assert loader.state_dict()["seed"] == 5
    seeded = zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device, shuffle=True, seed=5)
    assert epoch_of(loader) == epoch_of(seeded)


def test_tensors_outlive_their_loader(backend, store):
    """Batches that are kept hold their own values, whatever the loader does afterwards."""
    loader = zarr_dali.Loader(store, ["a"], 3, device=device_of(backend))
    kept = [batch["a"] for _ in range(3) for batch in loader]
    pipeline = weakref.ref(loader._pipeline)
    del loader
    assert pipeline() is None, "no cycle of references keeps the reader"
    values = np.arange(SAMPLES * 20, dtype="float32").reshape(SAMPLES, 4, 5)
    np.testing.assert_array_equal(torch.cat(kept).cpu().numpy(), np.concatenate([values] * 3))
    assert len({tensor.data_ptr() for tensor in kept}) == len(kept)


def test_closing(backend, store):
    with zarr_dali.Loader(store, ["a"], 3, device=device_of(backend)) as loader:
        iteration = iter(loader)
        next(iteration)
        assert loader.stats()["batches"] >= 1
        state = loader.state_dict()
    for use in (
        lambda: next(iteration),
        lambda: iter(loader),
        loader.stats,
        lambda: loader.load_state_dict(state),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert loader.state_dict() == state


@pytest.mark.gpu_where(False)
def test_epochs_broken_off_leave_nothing(backend, numbers):
    """Each makes a new reader, and ends the old one with its threads."""
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device_of(backend), num_io_threads=2)
    threads = []
    for _ in range(15):
        next(iter(loader))
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    assert loader.epoch == 14
    assert max(threads[2:]) <= threads[1]


def test_one_iteration_at_a_time(numbers):
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device="cpu")
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    assert loader.epoch == 1
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"path": "nowhere.zarr"}, ValueError, "nowhere.zarr"),
        ({"arrays": ["a", "z"]}, ValueError, "z"),
        ({"arrays": ["a", "a"]}, ValueError, "names.*arrays"),
        ({"names": ["x"]}, ValueError, "names"),
        ({"names": ["x", "x"]}, ValueError, "names"),
        ({"window": [99]}, ValueError, "window"),
        ({"random_shuffle": True}, ValueError, "random_shuffle.*shuffle"),
        ({"num_shards": 2}, ValueError, "num_shards.*world_size"),
        ({"position": "{}"}, ValueError, "position.*load_state_dict"),
        ({"rank": 0}, ValueError, "rank.*world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank=2.*world_size=2"),
        ({"rank": 0, "world_size": SAMPLES + 1}, ValueError, "num_shards"),
        ({"device": "tpu"}, ValueError, "device.*tpu"),
        ({"device": "meta"}, ValueError, "device.*meta"),
        ({"drop_last": True, "batch_size": SAMPLES + 1}, ValueError, "drop_last.*batch_size"),
        ({"select": {"time": slice(0, 3)}, "roi_start": [0]}, ValueError, "roi_start.*select"),
        ({"select": {"depth": 3}}, ValueError, "depth"),
        ({"no_such_argument": 3}, TypeError, "no_such_argument"),
        ({"windw": [2]}, TypeError, "windw.*did you mean `window`"),
        ({"num_workers": 4}, TypeError, "num_workers.*DataLoader.*num_io_threads"),
        ({"dtype": "text"}, TypeError, "dtype.*text"),
        # What DALI would convert to something else, or refuse without a name.
        ({"window": 2.5}, TypeError, r"window is 2\.5"),
        ({"window": "2"}, TypeError, "window is '2'"),
        ({"window": [1, None]}, TypeError, "window is None"),
        ({"window": {"time": 2}}, TypeError, "window is .*time"),
        ({"roi_end": [2**70]}, ValueError, "roi_end is 1180591620717411303424"),
        ({"offsets": [0, 2**70]}, ValueError, "offsets is 1180591620717411303424"),
        ({"offsets": [0, None]}, ValueError, "offsets: None"),
        ({"offsets": {"time": [0, None]}}, ValueError, "offsets: None"),
        ({"exclude": {1, 2}}, TypeError, "exclude is .1, 2."),
        ({"mean": "280"}, TypeError, "mean is '280'"),
        ({"host_memory_budget": "1 QB"}, ValueError, "host_memory_budget.*4GB"),
        ({"batch_size": "4"}, TypeError, "batch_size is '4'"),
        ({"batch_size": 2**31}, ValueError, "batch_size is 2147483648"),
        ({"num_threads": 1.5}, TypeError, r"num_threads is 1\.5"),
        ({"prefetch": 0}, ValueError, "prefetch is 0"),
        ({"seed": 2**63}, ValueError, "seed is 9223372036854775808"),
        ({"shuffle": "False"}, TypeError, "shuffle is 'False'"),
        ({"rank": "0", "world_size": "2"}, TypeError, "rank is '0'"),
        ({"device": None}, ValueError, "device is None"),
        ({"select": '{"time": 3}'}, TypeError, "select: has to be a dictionary.*str"),
        ({"arrays": {"a", "b"}}, TypeError, "arrays.*set"),
        ({"names": {"c": "x"}}, ValueError, "names.*'c'.*'a', 'b'"),
        ({"names": [0, 1]}, TypeError, "names: 0"),
    ],
)
def test_bad_arguments(store, arguments, error, words):
    """Fail when the loader is made, not with its first batch."""
    given = {"path": store, "arrays": ["a", "b"], "batch_size": 2, "device": "cpu"} | arguments
    with pytest.raises(error, match=words):
        zarr_dali.Loader(**given)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"window": [2.0]}, {"window": [2]}),
        ({"window": np.array([2, 3])}, {"window": [2, 3]}),
        ({"window": (extent for extent in [2, 3])}, {"window": [2, 3]}),
        ({"exclude": (step for step in [3, 4])}, {"exclude": [3, 4]}),
        ({"offsets": range(0, 4, 2)}, {"offsets": [0, 2]}),
        (
            {"batch_size": np.int64(2), "seed": np.uint8(3), "shuffle": np.bool_(True)},
            {"seed": 3, "shuffle": True},
        ),
        ({"host_memory_budget": "1GB", "num_threads": 1.0}, {"host_memory_budget": 10**9}),
        ({"shuffle": None}, {}),
        ({"names": {"b": "second"}}, {"names": ["a", "second"]}),
    ],
)
def test_values_of_other_types(store, arguments, expected):
    """Numbers of NumPy and torch, and what is gone through once, mean what plain ones do."""

    def batches(**given):
        given = {"batch_size": 2, "device": "cpu", "return_index": True} | given
        loader = zarr_dali.Loader(store, ["a", "b"], **given)
        return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in loader]

    assert batches(**arguments) == batches(**expected)


def test_no_arrays(numbers):
    """None is no name, as for `select` and `info`."""
    (batch,) = zarr_dali.Loader(numbers(3), None, 3, device="cpu")
    assert batch["data"].tolist() == [0, 1, 2]


def test_types_that_dali_has_no_tensors_of(store):
    """Of a graph it is known with the first batch only; else see test_loader_outputs.py."""
    loader = zarr_dali.Loader(store, "u", 2, device="cpu", graph=lambda nodes: nodes["u"])
    with pytest.raises(ValueError, match=r"uint16.*dtype"):
        next(iter(loader))


def test_selection(backend, store):
    """Labels become a region, spans and labels become offsets and indices."""
    loader = zarr_dali.Loader(
        store, ["a"], 2, device=device_of(backend), select={"time": slice(5, 14)}, offsets=[-1, 2],
        exclude=slice(8, 9), return_index=True,
    )  # fmt: skip
    index = torch.cat([batch["index"] for batch in loader]).ravel().tolist()
    assert index == [t for t in range(6, 13) if not {t - 1, t + 2} & {8, 9}]


def test_damage_surfaces(tmp_path, backend):
    """What the reader finds in a chunk arrives as its own error, and the process lives."""
    path = tmp_path / "damaged.zarr"
    write_array(path, "", np.arange(12.0), chunks=(4,), zarr_format=2)
    (path / "1").write_bytes(b"nothing that zstd knows")
    loader = zarr_dali.Loader(path, (), 4, device=device_of(backend))
    with pytest.raises(RuntimeError, match="chunk"):
        for _ in loader:
            pass


def test_stats(backend, numbers):
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device_of(backend))
    epoch_of(loader)
    stats = loader.stats()
    assert stats["samples"] == SAMPLES
    assert stats["batches"] >= len(loader)


def test_pickling_is_refused(numbers):
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device="cpu")
    with pytest.raises(RuntimeError, match=r"pickled.*DataLoader"):
        pickle.dumps(loader)


class InWorker(IterableDataset):
    """Makes a loader where it is iterated, and hands out what comes of it."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        try:
            yield epoch_of(zarr_dali.Loader(self.path, (), 4, device="cpu"))
        except RuntimeError as error:
            yield str(error)


def test_workers_of_a_data_loader_are_refused(numbers):
    in_worker = DataLoader(
        InWorker(numbers(SAMPLES)), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    (outcome,) = in_worker
    assert "worker process of a torch DataLoader" in outcome


def test_forked_child(numbers):
    """A loader of the parent raises in a child, and one that the child makes works."""
    loader = zarr_dali.Loader(numbers(SAMPLES), (), 4, device="cpu")
    iteration = iter(loader)
    next(iteration)

    def child(results):
        for use in (lambda: next(iteration), lambda: iter(loader), loader.stats):
            try:
                use()
                results.put("no error")
            except RuntimeError as error:
                results.put(str(error))
        results.put(sum(epoch_of(zarr_dali.Loader(numbers(SAMPLES), (), 4, device="cpu")), []))

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=child, args=(results,))
    process.start()
    for _ in range(3):
        text = results.get()
        assert "fork" in text and "spawn" in text
    assert results.get() == list(range(SAMPLES))
    process.join(20)
    assert process.exitcode == 0
    assert next(iteration)["data"].tolist() == [4, 5, 6, 7]


@pytest.mark.full
def test_ranks_of_torch_distributed(numbers, tmp_path):
    """Two processes of one group share the samples without being told their ranks."""
    script = """
        import sys
        import torch.distributed as dist
        import zarr_dali

        path, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
        early = zarr_dali.Loader(path, (), 4, device="cpu")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        loader = zarr_dali.Loader(path, (), 4, device="cpu")
        assert (loader.rank, loader.world_size) == (rank, 2)
        print([batch["data"].tolist() for batch in loader])
        try:
            iter(early)
        except RuntimeError as error:
            assert "rank" in str(error) and "torch.distributed" in str(error), error
            print("refused")
        dist.destroy_process_group()
    """
    with ThreadPoolExecutor(2) as pool:
        runs = list(
            pool.map(lambda rank: run_python(script, numbers(SAMPLES), tmp_path / "meeting", rank), range(2))
        )
    batches = []
    for run in runs:
        assert run.returncode == 0, run.stderr
        lines = run.stdout.splitlines()
        assert lines[-1] == "refused"
        batches.append(json.loads(lines[-2]))
    assert_whole(batches, range(SAMPLES), 4)


def lightning_module(pl):
    """A module that records the sample numbers it is given, by stage."""

    class Recorder(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen = {"train": [], "val": [], "predict": []}

        def training_step(self, batch, number):
            self.seen["train"].append((self.current_epoch, batch["data"].tolist()))
            return (batch["data"].float().mean() * self.weight).sum()

        def validation_step(self, batch, number):
            self.seen["val"].append(batch["data"].tolist())

        def predict_step(self, batch, number):
            self.seen["predict"].append(batch["data"].tolist())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Recorder()


@pytest.mark.full
def test_lightning(backend, numbers, tmp_path):
    """Sanity check, two epochs with validation, a checkpoint in the middle of one, and its resume.

    Lightning takes the loader as it is: it has no `sampler` and no `dataset` that could be replaced, and its
    state is part of Lightning's checkpoints.
    """
    pl = pytest.importorskip("lightning.pytorch")
    quiet = {
        "accelerator": "cpu" if backend is CPU else "gpu", "devices": 1, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 2,
        "default_root_dir": tmp_path,
    }  # fmt: skip

    def train_loader():
        return zarr_dali.Loader(numbers(SAMPLES), (), 4, device=device_of(backend), shuffle=True)

    def val_loader():
        return zarr_dali.Loader(numbers(7), (), 3, device=device_of(backend))

    whole = train_loader()
    epochs = [epoch_of(whole) for _ in range(3)]
    steps = len(whole)

    module = lightning_module(pl)
    loaders = train_loader(), val_loader()
    trainer = pl.Trainer(max_epochs=3, enable_checkpointing=False, **quiet)
    trainer.fit(module, *loaders)
    assert trainer.train_dataloader is loaders[0]
    assert trainer.num_training_batches == steps
    assert module.seen["train"] == [(epoch, batch) for epoch in range(3) for batch in epochs[epoch]]
    # The sanity check takes two batches of the three and leaves the rest.
    assert module.seen["val"] == [[0, 1, 2], [3, 4, 5], *[[0, 1, 2], [3, 4, 5], [6]] * 3]
    trainer.predict(module, val_loader())
    assert module.seen["predict"] == [[0, 1, 2], [3, 4, 5], [6]]

    first = lightning_module(pl)
    place = steps + 2
    saving = pl.callbacks.ModelCheckpoint(tmp_path, "mid", every_n_train_steps=place, save_top_k=-1)
    trainer = pl.Trainer(max_steps=place, callbacks=[saving], **quiet)
    trainer.fit(first, train_loader())
    second = lightning_module(pl)
    trainer = pl.Trainer(max_epochs=3, enable_checkpointing=False, **quiet)
    trainer.fit(second, train_loader(), ckpt_path=tmp_path / "mid.ckpt")
    assert first.seen["train"] + second.seen["train"] == module.seen["train"]
