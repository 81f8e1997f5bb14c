"""Sample order, padding, epochs and reader_meta against DALI's own `fn.readers.numpy`.

The axes: reader shards 1 to 5 and every id among them x batches of 1, 3 and 7 x stick_to_shard x
pad_last_batch x three epochs x the three last-batch policies of `DALIGenericIterator`, on both backends.
The numpy reader reads as many files as the Zarr array has samples. Shuffled orders have no counterpart there:
they are checked by what they promise.
"""

import itertools
import math

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

import reference
from reading import CPU, GPU, build, define, run_batches
from stores import write_array

SAMPLES = 17
EPOCHS = 3
BATCH_SIZES = (1, 3, 7)
NUM_SHARDS = (1, 2, 3, 4, 5)
READERS = [
    {"shard_id": shard, "num_shards": shards, "stick_to_shard": stick, "pad_last_batch": pad}
    for shards in NUM_SHARDS
    for shard in range(shards)
    for stick in (False, True)
    for pad in (False, True)
]


def readers_of(num_shards, backend):
    """All readers of one number of shards; on the GPU, where the order comes from the same code, one id."""
    ids = range(num_shards) if backend is CPU else [num_shards - 1]
    return [reader for reader in READERS if reader["num_shards"] == num_shards and reader["shard_id"] in ids]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """`numbers(n)`: (folder of n .npy files, Zarr store) whose sample i is [i] and i."""
    made = {}

    def get(count):
        if count not in made:
            folder = tmp_path_factory.mktemp("numbers")
            for i in range(count):
                np.save(folder / f"{i:05d}.npy", np.array([i]))
            write_array(folder / "store.zarr", "", np.arange(count), chunks=(4,), codec="raw")
            made[count] = folder, folder / "store.zarr"
        return made[count]

    return get


def numpy_pipeline(folder, batch_size, **arguments):
    """A pipeline over the .npy files, not built yet."""
    pipe = Pipeline(batch_size=batch_size, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(
            fn.readers.numpy(file_root=str(folder), file_filter="*.npy", name="reader", **arguments)
        )
    return pipe


def numbers_of(pipe, how_many):
    """The next batches as lists of sample numbers."""
    return [[int(np.ravel(s)[0]) for s in outputs[0]] for outputs in run_batches(pipe, how_many)]


def batches_of_epochs(count, num_shards, batch_size, epochs=EPOCHS):
    """As many batches as the longest reader needs for that many epochs, and two more."""
    return math.ceil(math.ceil(count / num_shards) / batch_size) * epochs + 2


@pytest.mark.gpu_where(lambda case: case["count"] == SAMPLES and case["batch_size"] > 1)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("num_shards", NUM_SHARDS)
@pytest.mark.parametrize("count", [5, SAMPLES])
def test_order_and_meta(backend, numbers, count, num_shards, batch_size):
    folder, store = numbers(count)
    how_many = batches_of_epochs(count, num_shards, batch_size)
    for reader in readers_of(num_shards, backend):
        dali = numpy_pipeline(folder, batch_size, **reader)
        dali.build()
        ours = build(backend, store, batch_size=batch_size, **reader)
        formula = reference.batches(count, batch_size, how_many, **reader)
        assert numbers_of(dali, how_many) == formula, reader
        assert numbers_of(ours, how_many) == formula, reader
        assert dali.reader_meta("reader") == reference.meta(count, **reader), reader
        assert ours.reader_meta("reader") == reference.meta(count, **reader), reader


def test_meta_before_the_first_run_and_with_lazy_init(backend, numbers):
    _, store = numbers(SAMPLES)
    pipe = build(backend, store, lazy_init=True, num_shards=2, shard_id=1)
    assert pipe.reader_meta("reader") == reference.meta(SAMPLES, num_shards=2, shard_id=1)
    assert pipe.reader_meta() == {"reader": reference.meta(SAMPLES, num_shards=2, shard_id=1)}
    assert pipe.epoch_size("reader") == SAMPLES


@pytest.mark.parametrize("count, batch_size, num_shards", [(1, 2, 1), (3, 1, 2), (3, 7, 3), (2, 50, 1)])
@pytest.mark.parametrize("pad", [False, True])
def test_batches_larger_than_the_data(backend, numbers, count, batch_size, num_shards, pad):
    _, store = numbers(count)
    for shard in range(num_shards):
        reader = {"shard_id": shard, "num_shards": num_shards, "pad_last_batch": pad}
        ours = build(backend, store, batch_size=batch_size, **reader)
        assert numbers_of(ours, 7) == reference.batches(count, batch_size, 7, **reader)


def iterate(pipe, policy, epochs):
    """Lengths and values of whole epochs through the PyTorch iterator."""
    iterator = DALIGenericIterator(
        [pipe], ["x"], reader_name="reader", last_batch_policy=policy, auto_reset=True
    )
    seen = []
    for _ in range(epochs):
        seen.append((len(iterator), [batch[0]["x"].cpu().numpy().ravel().tolist() for batch in iterator]))
    return seen


def constructed(make):
    """What `make` returns, or the exception it raises, for comparison of two constructions."""
    try:
        return make()
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
@pytest.mark.gpu_where(lambda case: case["batch_size"] == 7 or case["num_shards"] == 3)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_pytorch_iterator(backend, numbers, num_shards, batch_size, policy):
    """Batches, their number and `len` are the numpy reader's, in all three policies."""
    folder, store = numbers(SAMPLES)
    for reader in readers_of(num_shards, backend):
        theirs = constructed(lambda: iterate(numpy_pipeline(folder, batch_size, **reader), policy, EPOCHS))
        pipe = define(backend, store, batch_size=batch_size, **reader)
        ours = constructed(lambda: iterate(pipe, policy, EPOCHS))
        assert ours == theirs, reader
        if policy is LastBatchPolicy.PARTIAL and reader["pad_last_batch"]:
            for epoch, shard, samples in itertools.islice(
                reference.visits(
                    SAMPLES,
                    shard_id=reader["shard_id"],
                    num_shards=num_shards,
                    stick_to_shard=reader["stick_to_shard"],
                ),
                EPOCHS,
            ):
                length, batches = ours[epoch]
                assert sum(batches, []) == list(samples), (reader, epoch, shard)
                assert length == len(batches)


@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
def test_iterator_over_all_readers_at_once(backend, numbers, policy):
    """Three pipelines, one per reader shard, behind one iterator: each epoch is every sample once."""
    _, store = numbers(18)
    pipes = [
        define(backend, store, batch_size=2, shard_id=shard, num_shards=3, pad_last_batch=True)
        for shard in range(3)
    ]
    iterator = DALIGenericIterator(
        pipes, ["x"], reader_name="reader", last_batch_policy=policy, auto_reset=True
    )
    for _ in range(EPOCHS):
        assert len(iterator) == 3
        seen = [n for parts in iterator for part in parts for n in part["x"].cpu().numpy().ravel().tolist()]
        assert sorted(seen) == list(range(18))


# --- shuffle --------------------------------------------------------------------------------------


def visit_orders(backend, store, count, epochs, **reader):
    """The order of each visit of a reader shard, read one sample at a time without padding."""
    arguments = {key: reader[key] for key in ("shard_id", "num_shards", "stick_to_shard") if key in reader}
    pipe = build(backend, store, batch_size=1, random_shuffle=True, **reader)
    orders = []
    for _, _, samples in itertools.islice(reference.visits(count, **arguments), epochs):
        orders.append([numbers[0] for numbers in numbers_of(pipe, len(samples))])
    return orders


@pytest.mark.gpu_where(lambda case: case["num_shards"] == 3)
@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_shuffled_visits_hold_each_sample_of_the_shard_once(backend, numbers, num_shards, stick):
    _, store = numbers(SAMPLES)
    for shard_id in range(num_shards):
        reader = {"shard_id": shard_id, "num_shards": num_shards, "stick_to_shard": stick}
        orders = visit_orders(backend, store, SAMPLES, 4, seed=11, **reader)
        visits = itertools.islice(reference.visits(SAMPLES, **reader), 4)
        for order, (_, _, samples) in zip(orders, visits, strict=True):
            assert sorted(order) == list(samples), reader


def test_shuffled_epochs_differ(backend, numbers):
    _, store = numbers(40)
    orders = visit_orders(backend, store, 40, 4, seed=5)
    assert all(a != b for a, b in itertools.combinations([*orders, list(range(40))], 2))


def test_shuffle_depends_on_the_seed_alone(backend, numbers):
    _, store = numbers(40)
    first, again, other = (visit_orders(backend, store, 40, 2, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_shuffle_follows_the_seed_of_the_pipeline(backend, numbers):
    _, store = numbers(40)

    def order(seed):
        pipe = build(backend, store, random_shuffle=True, pipeline={"seed": seed})
        return sum(numbers_of(pipe, 8), [])

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_shards_of_different_seeds_stay_disjoint(backend, numbers):
    """Ranks may well be seeded differently: what a shard holds must not depend on it."""
    _, store = numbers(SAMPLES)
    for epochs in (1, 2):
        seen = []
        for shard_id in range(3):
            orders = visit_orders(
                backend, store, SAMPLES, epochs, seed=shard_id, shard_id=shard_id, num_shards=3
            )
            seen += orders[-1]
        assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.gpu_where(lambda case: case["batch_size"] == 3)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("stick", [False, True])
def test_shuffled_batches(backend, numbers, batch_size, pad, stick):
    """Batch size and padding only cut the order: the visits, read one by one, predict every batch."""
    _, store = numbers(SAMPLES)
    for shard_id, num_shards in ((0, 1), (1, 3), (2, 3)):
        reader = {"shard_id": shard_id, "num_shards": num_shards, "stick_to_shard": stick}
        orders = visit_orders(CPU, store, SAMPLES, 10, seed=7, **reader)
        how_many = batches_of_epochs(SAMPLES, num_shards, batch_size)
        expected = reference.batches(
            SAMPLES,
            batch_size,
            how_many,
            pad_last_batch=pad,
            arrange=lambda epoch, shard, samples, orders=orders: orders[epoch],
            **reader,
        )
        pipe = build(
            backend,
            store,
            batch_size=batch_size,
            random_shuffle=True,
            seed=7,
            pad_last_batch=pad,
            **reader,
        )
        assert numbers_of(pipe, how_many) == expected, reader


@pytest.mark.gpu
def test_shuffled_order_is_the_same_on_both_backends(numbers):
    _, store = numbers(40)
    assert visit_orders(CPU, store, 40, 3, seed=5) == visit_orders(GPU, store, 40, 3, seed=5)


@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
def test_shuffled_pytorch_iterator(backend, numbers, policy):
    _, store = numbers(SAMPLES)
    for shard_id in range(3):
        pipe = define(
            backend,
            store,
            batch_size=4,
            random_shuffle=True,
            seed=9,
            shard_id=shard_id,
            num_shards=3,
            pad_last_batch=True,
        )
        for epoch, (length, batches) in enumerate(iterate(pipe, policy, EPOCHS)):
            samples = reference.shard_range(SAMPLES, 3, (shard_id + epoch) % 3)
            seen = sum(batches, [])
            assert length == {"FILL": 2, "DROP": 1, "PARTIAL": 2}[policy.name]
            assert set(seen) <= set(samples)
            if policy is not LastBatchPolicy.DROP:
                assert set(seen) == set(samples)
            if policy is not LastBatchPolicy.FILL:
                assert len(set(seen)) == len(seen)
