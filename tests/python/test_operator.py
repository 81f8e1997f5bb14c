"""The operator as DALI sees it: names, arguments, source_info, layouts, serialization, checkpoints,
lifetimes, executors, several pipelines at once, dynamic mode, and the import of the package.
"""

import gc
import itertools
import os
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, ops, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

import reference
from reading import (
    CPU,
    DALI_2_0,
    GPU,
    assert_same_bits,
    assert_samples,
    build,
    define,
    read_all,
    read_epoch,
    run_batches,
    run_python,
    to_samples,
)
from stores import FORMATS, read_array, write_array, write_group

SAMPLES = 34


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """34 steps of: number [], t2m [6, 5], z500 [6, 5] in sharded chunks, mask [3] behind gzip."""
    path = tmp_path_factory.mktemp("operator") / "weather.zarr"
    rng = np.random.default_rng(4)
    write_group(path)
    write_array(path, "number", np.arange(SAMPLES), chunks=(5,))
    write_array(path, "t2m", rng.random((SAMPLES, 6, 5), "float32"), chunks=(1, 6, 5))
    sharded = "sharded-end-zstd" if 3 in FORMATS else "zstd"
    z500 = rng.random((SAMPLES, 6, 5))
    write_array(path, "z500", z500, chunks=(2, 3, 5), shards=(8, 6, 5), codec=sharded)
    write_array(path, "mask", rng.random((SAMPLES, 3)) < 0.5, chunks=(4, 3), codec="gzip")
    return path


ARGUMENTS = (
    "path",
    "arrays",
    "window",
    "stride",
    "random_shuffle",
    "seed",
    "shard_id",
    "num_shards",
    "stick_to_shard",
    "pad_last_batch",
    "prefetch_queue_depth",
    "lazy_init",
    "missing_chunks",
    "decode",
    "num_io_threads",
    "num_decode_threads",
    "io",
    "cache_bytes",
    "device_memory_budget",
    "host_memory_budget",
)
ARRAYS = ["number", "t2m", "z500", "mask"]


def numbers(pipe, how_many):
    """Values of the first output, which has to be `number`, batch by batch."""
    return [[int(sample) for sample in outputs[0]] for outputs in run_batches(pipe, how_many)]


def assert_all_arrays(outputs, store, names=ARRAYS):
    for name, samples in zip(names, outputs, strict=True):
        assert_samples(samples, read_array(store, name), what=name)


# --- names and arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param(lambda **arguments: fn.readers.zarr(**arguments), id="fn.readers.zarr"),
        pytest.param(lambda **arguments: fn.zarr_reader(**arguments), id="fn.zarr_reader"),
        pytest.param(lambda **arguments: ops.ZarrReader(**arguments)(), id="ops.ZarrReader"),
        pytest.param(lambda **arguments: ops.readers.Zarr(**arguments)(), id="ops.readers.Zarr"),
    ],
)
def test_every_name_is_the_same_operator(backend, store, reader):
    pipe = Pipeline(batch_size=5, num_threads=2, device_id=backend.device_id)
    with pipe:
        pipe.set_outputs(
            *reader(
                name="reader",
                device=backend.device,
                path=str(store),
                arrays=ARRAYS,
                random_shuffle=True,
                seed=3,
                num_shards=2,
            )
        )
    pipe.build()
    expected = build(backend, store, batch_size=5, arrays=ARRAYS, random_shuffle=True, seed=3, num_shards=2)
    for ours, theirs in zip(run_batches(pipe, 9), run_batches(expected, 9), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                assert_same_bits(x, y)
    assert pipe.reader_meta("reader") == expected.reader_meta("reader")


def test_documentation_names_every_argument():
    text = fn.readers.zarr.__doc__
    for argument in ARGUMENTS:
        assert re.search(rf"`?{argument}`? : ", text), argument


def test_path_is_required(backend):
    pipe = Pipeline(batch_size=1, num_threads=1, device_id=backend.device_id)
    with pytest.raises((TypeError, ValueError, RuntimeError), match="path"):
        with pipe:
            pipe.set_outputs(fn.readers.zarr(device=backend.device))
        pipe.build()


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "pathlib"])
@pytest.mark.parametrize("arrays", ["t2m", ["t2m"], ("t2m",)], ids=["name", "list", "tuple"])
def test_forms_of_arguments(backend, store, as_path, arrays):
    (samples,) = read_all(backend, as_path(store), arrays=arrays, window=(2, 3), stride=(2, 1))
    assert_samples(samples, read_array(store, "t2m"), (2, 3), (2, 1))


def test_empty_list_of_arrays_means_the_path_itself(backend, store):
    (samples,) = read_all(backend, store / "t2m", arrays=[])
    assert_samples(samples, read_array(store, "t2m"))


def test_number_of_outputs_follows_arrays(backend, store):
    with Pipeline(1, 1, backend.device_id):
        one = fn.readers.zarr(device=backend.device, path=str(store), arrays=["t2m"])
        three = fn.readers.zarr(device=backend.device, path=str(store), arrays=["t2m", "mask", "t2m"])
        itself = fn.readers.zarr(device=backend.device, path=str(store / "t2m"))
    assert not isinstance(one, (list, tuple))
    assert not isinstance(itself, (list, tuple))
    assert len(three) == 3


def test_outputs_that_nobody_uses(backend, store):
    pipe = Pipeline(batch_size=5, num_threads=2, device_id=backend.device_id)
    with pipe:
        outputs = fn.readers.zarr(path=str(store), arrays=ARRAYS, device=backend.device, name="reader")
        pipe.set_outputs(outputs[2])
    pipe.build()
    assert_all_arrays(read_epoch(pipe), store, ["z500"])


# --- source_info and layout -----------------------------------------------------------------------


@pytest.mark.parametrize("window, stride", [(None, None), ([2], [3]), ([1, 4, 2], None)])
def test_source_info(backend, store, window, stride):
    pipe = build(backend, store, arrays=["t2m", "z500"], window=window, stride=stride, batch_size=6)
    indices = reference.windows((SAMPLES, 6, 5), window, stride)
    for start in range(0, len(indices) - 6, 6):
        for name, output in zip(("t2m", "z500"), pipe.run(), strict=True):
            infos = [output[i].source_info() for i in range(len(output))]
            assert infos == [
                reference.source_info(store, name, index) for index in indices[start : start + 6]
            ]


def test_source_info_of_a_store_that_is_an_array(backend, store):
    path = store / "t2m"
    (output,) = build(backend, path, batch_size=2).run()
    assert output[1].source_info() == f"{path}[1, 0:6, 0:5]"


def test_source_info_of_padding_repeats(backend, store):
    pipe = build(backend, store, arrays=["number"], batch_size=8, pad_last_batch=True)
    outputs = [pipe.run()[0] for _ in range(5)]
    infos = [outputs[-1][i].source_info() for i in range(8)]
    assert infos == [f"{store}/number[{min(32 + i, 33)}]" for i in range(8)]


def test_source_info_inside_the_pipeline(store):
    pipe = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipe:
        data = fn.readers.zarr(path=str(store), arrays=["number"])
        pipe.set_outputs(fn.get_property(data, key="source_info"))
    pipe.build()
    (text,) = to_samples(pipe.run()[0])
    assert bytes(text).decode() == f"{store}/number[0]"


LAYOUTS = [
    (("time", "lat", "lon"), "THW"),
    (("time", "latitude", "longitude"), "THW"),
    (("time", "y", "x"), "THW"),
    (("time", "level", "lat"), "TDH"),
    (("z", "y", "x"), "DHW"),
    (("depth", "channel", "x"), "DCW"),
    (("variable", "H", "W"), "CHW"),
    (("N", "C", "H"), "NCH"),
    (("time", "station", "lon"), ""),
    (("time", "lat", "y"), ""),
    (None, ""),
]


@pytest.mark.gpu_where(
    lambda case: case["zarr_format"] == 3 and case["names"] in (("time", "lat", "lon"), None)
)
@pytest.mark.parametrize("names, expected", LAYOUTS)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_layout(backend, tmp_path, zarr_format, names, expected):
    values = np.zeros((4, 3, 2), "float32")
    write_array(tmp_path, "a", values, chunks=(2, 3, 2), zarr_format=zarr_format, dimension_names=names)
    assert reference.layout(names or [None]) == expected
    (output,) = build(backend, tmp_path, arrays=["a"], window=[2]).run()
    assert output.layout() == expected
    (output,) = build(backend, tmp_path, arrays=["a"]).run()
    assert output.layout() == expected[1:]


def test_layout_where_some_names_are_missing(backend, tmp_path):
    write_array(tmp_path, "a", np.zeros((4, 3), "float32"), chunks=(2, 3), dimension_names=("time", None))
    assert build(backend, tmp_path, arrays=["a"], window=[1]).run()[0].layout() == ""


# --- in the graph ---------------------------------------------------------------------------------


def test_other_operators_follow(backend, store):
    pipe = Pipeline(batch_size=5, num_threads=2, device_id=backend.device_id)
    with pipe:
        t2m, z500 = fn.readers.zarr(
            path=str(store), arrays=["t2m", "z500"], window=[2], device=backend.device, name="reader"
        )
        pipe.set_outputs(fn.stack(t2m, fn.cast(z500, dtype=types.FLOAT)) * 2)
    pipe.build()
    t2m, z500 = read_array(store, "t2m"), read_array(store, "z500").astype("float32")
    (samples,) = read_epoch(pipe)
    for i, sample in enumerate(samples):
        np.testing.assert_array_equal(sample, np.stack([t2m[i : i + 2], z500[i : i + 2]]) * 2)


@pytest.mark.gpu
def test_cpu_output_goes_to_the_gpu(store):
    pipe = Pipeline(batch_size=5, num_threads=2, device_id=0)
    with pipe:
        outputs = fn.readers.zarr(path=str(store), arrays=ARRAYS, name="reader")
        pipe.set_outputs(*(output.gpu() for output in outputs))
    pipe.build()
    assert_all_arrays(read_epoch(pipe), store)


def test_two_readers_in_one_pipeline(backend, store):
    """Epochs of different length run on side by side."""
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=backend.device_id)
    with pipe:
        shared = {"path": str(store), "arrays": ["number"], "device": backend.device}
        a = fn.readers.zarr(name="a", **shared)
        b = fn.readers.zarr(name="b", num_shards=5, shard_id=2, stick_to_shard=True, **shared)
        pipe.set_outputs(a, b)
    pipe.build()
    batches = run_batches(pipe, 20)
    assert [[int(n) for n in batch[0]] for batch in batches] == reference.batches(SAMPLES, 4, 20)
    assert [[int(n) for n in batch[1]] for batch in batches] == reference.batches(
        SAMPLES, 4, 20, shard_id=2, num_shards=5, stick_to_shard=True
    )
    assert set(pipe.reader_meta()) == {"a", "b"}


def test_batches_that_vary_in_size(backend, store):
    """The reader reads ahead in whole batches, and says so where another input asks for less."""
    sizes = iter([4, 4, 3, 4])

    def other():
        return [np.zeros(1, "float32")] * next(sizes)

    pipe = Pipeline(batch_size=4, num_threads=2, device_id=backend.device_id)
    with pipe:
        number = fn.readers.zarr(path=str(store), arrays=["number"], device=backend.device)
        pipe.set_outputs(number, fn.external_source(other, batch=True))
    pipe.build()
    with pytest.raises(RuntimeError, match=r"batch.* 4 .* 3"):
        for _ in range(4):
            pipe.run()
    assert_all_arrays(read_all(backend, store, arrays=ARRAYS), store)


def test_serialized_pipeline(backend, store):
    pipe = define(backend, store, arrays=ARRAYS, window=[2], random_shuffle=True, seed=1)
    text = pipe.serialize()
    pipe.build()
    again = Pipeline.deserialize(text, batch_size=5, num_threads=2, device_id=backend.device_id)
    again.build()
    for ours, theirs in zip(run_batches(pipe, 8), run_batches(again, 8), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                assert_same_bits(x, y)


def test_lazy_init(backend, store):
    assert_all_arrays(read_all(backend, store, arrays=ARRAYS, lazy_init=True), store)
    pipe = build(backend, store, arrays=["number"], lazy_init=True, batch_size=4)
    assert numbers(pipe, 3) == reference.batches(SAMPLES, 4, 3)


@pytest.mark.parametrize(
    "executor",
    [
        {"exec_dynamic": True},
        {"exec_dynamic": False},
        {"exec_dynamic": False, "exec_pipelined": False, "exec_async": False},
        {"exec_dynamic": False, "prefetch_queue_depth": {"cpu_size": 3, "gpu_size": 2}},
        {"prefetch_queue_depth": 1},
        {"prefetch_queue_depth": 4},
    ],
    ids=str,
)
def test_executors(backend, store, executor):
    pipe = build(backend, store, arrays=ARRAYS, pipeline=executor)
    for _ in range(2):
        assert_all_arrays(read_epoch(pipe), store)
        run_batches(pipe, 27)  # 34 batches of 5 end on an epoch


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 100])
def test_prefetch_queue_depth_of_the_reader(backend, store, depth):
    pipe = build(backend, store, arrays=ARRAYS, prefetch_queue_depth=depth, batch_size=2)
    for _ in range(2):
        assert_all_arrays(read_epoch(pipe), store)


@pytest.mark.parametrize(
    "tunables",
    [
        {"num_io_threads": 1},
        {"num_io_threads": 3},
        {"num_decode_threads": 1},
        {"io": "posix", "cache_bytes": 1 << 20},
        {"host_memory_budget": 1 << 20},
        {"device_memory_budget": 1 << 26},
        {"num_io_threads": 1, "host_memory_budget": 1 << 20, "device_memory_budget": 1 << 26},
        {"host_memory_budget": 1 << 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("decode", ["auto", "cpu"])
def test_tunables_change_nothing_but_speed(backend, store, tunables, decode):
    pipe = build(backend, store, arrays=ARRAYS, window=[3], decode=decode, **tunables)
    for name, samples in zip(ARRAYS, read_epoch(pipe), strict=True):
        assert_samples(samples, read_array(store, name), [3], what=name)


def test_smallest_budget_that_is_accepted(backend, store):
    """An error about a budget names one that does; with it every sample arrives."""
    names = ["host_memory_budget"] + (["device_memory_budget"] if backend is GPU else [])
    arguments = dict.fromkeys(names, 1)
    for _ in range(10):
        try:
            pipe = build(backend, store, arrays=ARRAYS, **arguments)
            pipe.run()
            break
        except ValueError as error:
            name, least = re.search(r"(\w+_memory_budget).*at least (\d+)", str(error)).groups()
            assert int(least) > arguments[name]
            arguments[name] = int(least)
    # Sizes that nothing divides: no part of the memory may lean on a round budget.
    for more in (0, 1, 1_003, 40_007, 1_000_003):
        larger = {name: least + more for name, least in arguments.items()}
        assert_all_arrays(read_all(backend, store, arrays=ARRAYS, **larger), store)


# --- lifetimes ------------------------------------------------------------------------------------


def test_batches_stay_unchanged_while_later_ones_run(backend, store):
    pipe = build(backend, store, arrays=ARRAYS, batch_size=3, prefetch_queue_depth=2)
    kept = [pipe.run() for _ in range(25)]
    wholes = [read_array(store, name) for name in ARRAYS]
    for number, outputs in enumerate(kept):
        for whole, output in zip(wholes, outputs, strict=True):
            for i, sample in enumerate(to_samples(output)):
                assert_same_bits(sample, np.asarray(whole[(3 * number + i) % SAMPLES]))


def test_outputs_live_longer_than_the_pipeline(backend, store):
    pipe = build(backend, store, arrays=ARRAYS, batch_size=5)
    kept = [pipe.run() for _ in range(6)]
    views = [np.asarray(kept[2][1][0])] if backend is CPU else []
    del pipe
    gc.collect()
    other = build(backend, store, arrays=ARRAYS, batch_size=5, random_shuffle=True)
    other.run()
    wholes = [read_array(store, name) for name in ARRAYS]
    for number, outputs in enumerate(kept):
        for whole, output in zip(wholes, outputs, strict=True):
            for i, sample in enumerate(to_samples(output)):
                assert_same_bits(sample, np.asarray(whole[5 * number + i]))
    for view in views:
        np.testing.assert_array_equal(view, wholes[1][10])


def test_tensors_of_the_pytorch_iterator_stay_unchanged(backend, store):
    pipe = define(backend, store, arrays=ARRAYS, batch_size=4, pad_last_batch=True)
    iterator = DALIGenericIterator(
        [pipe], ARRAYS, reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL
    )
    kept = [batch[0] for batch in iterator]
    assert [len(batch["t2m"]) for batch in kept] == [4] * 8 + [2]
    assert all(tensor.device.type == ("cuda" if backend is GPU else "cpu") for tensor in kept[0].values())
    del pipe, iterator
    gc.collect()
    for name in ARRAYS:
        whole = np.concatenate([batch[name].cpu().numpy() for batch in kept])
        assert_same_bits(whole, read_array(store, name))


def test_five_pipelines_at_once(backend, store):
    """Pipelines of one process share nothing that could mix their batches, from one thread or from many."""
    pipes = [
        build(backend, store, arrays=["number", "t2m"], batch_size=4, shard_id=i, num_shards=5)
        for i in range(5)
    ]
    for _ in range(3):
        for pipe in pipes:
            pipe.run()
    failures = []

    def check(i, pipe):
        try:
            batches = run_batches(pipe, 30)
            expected = reference.batches(SAMPLES, 4, 33, shard_id=i, num_shards=5)[3:]
            assert [[int(n) for n in batch[0]] for batch in batches] == expected
            whole = read_array(store, "t2m")
            for batch, order in zip(batches, expected, strict=True):
                for sample, n in zip(batch[1], order, strict=True):
                    assert_same_bits(sample, whole[n])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=check, args=item) for item in enumerate(pipes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_slow_consumer(backend, store):
    """The reader's threads wait for room instead of running away; what they read ahead is in order."""
    pipe = build(backend, store, arrays=["number"], batch_size=4)
    assert numbers(pipe, 2) == reference.batches(SAMPLES, 4, 2)
    time.sleep(0.3)
    assert numbers(pipe, 20) == reference.batches(SAMPLES, 4, 22)[2:]


def held():
    """Threads and file descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_a_dropped_pipeline(backend, store):
    """Threads end and files are closed, however far the pipeline got."""

    def use(runs):
        pipe = build(backend, store, arrays=ARRAYS, num_io_threads=3, prefetch_queue_depth=2)
        for _ in range(runs):
            pipe.run()

    for runs in (0, 1, 9):
        use(runs)
    gc.collect()
    before = held()
    for runs in (0, 1, 2, 9) * 4:
        use(runs)
    gc.collect()
    deadline = time.monotonic() + 10
    while any(now > then for now, then in zip(held(), before, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1], (
        f"(threads, files): {before} before, {after} after"
    )


def test_the_store_is_only_read(backend, store):
    def snapshot():
        files = sorted(store.rglob("*"))
        return [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]

    before = snapshot()
    read_all(backend, store, arrays=ARRAYS, random_shuffle=True)
    assert snapshot() == before


def test_store_that_cannot_be_written(backend, store, tmp_path):
    """Reading needs no permission to write; the archive lies under a folder without it."""
    values = np.arange(12, dtype="float32").reshape(4, 3)
    write_array(tmp_path / "s", "a", values, chunks=(2, 3))
    folders = [tmp_path / "s", *(path for path in (tmp_path / "s").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert_samples(read_all(backend, tmp_path / "s", arrays=["a"])[0], values)
    finally:
        for folder in folders:
            folder.chmod(0o755)


# --- checkpoints ----------------------------------------------------------------------------------

CHECKPOINTED = {"enable_checkpointing": True}
CHECKPOINT_READERS = [
    {"shard_id": shard_id, "num_shards": num_shards, "stick_to_shard": stick, "pad_last_batch": pad}
    for shard_id, num_shards in ((0, 1), (0, 3), (2, 3))
    for stick in (False, True)
    for pad in (False, True)
]


@pytest.mark.gpu_where(lambda case: case["shuffle"] and case["reader"]["num_shards"] == 3)
@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("reader", CHECKPOINT_READERS, ids=str)
def test_resume(backend, store, reader, shuffle):
    """A restored pipeline yields what the original yields after the checkpoint, over several epochs."""
    arguments = {"arrays": ["number"], "batch_size": 4, "random_shuffle": shuffle, **reader}
    length = 4 * reference.batches_per_epoch(SAMPLES, reader["num_shards"], 4)
    original = build(backend, store, pipeline=CHECKPOINTED, seed=21, **arguments)
    positions = (
        {0, length // 4 + 1}
        if backend is GPU
        else sorted({0, 1, 2, length // 4 - 1, length // 4, length // 4 + 1, length // 2 + 1, length})
    )
    expected, checkpoints = [], {}
    for position in range(length + 1):
        if position in positions:
            checkpoints[position] = original.checkpoint()
        expected += numbers(original, 1)
    expected += numbers(original, length)
    if not shuffle:
        assert expected == reference.batches(SAMPLES, 4, len(expected), **reader)
    for position, checkpoint in checkpoints.items():
        # Another seed in the restoring pipeline must not matter: the checkpoint carries the order.
        restored = build(
            backend, store, pipeline=CHECKPOINTED | {"checkpoint": checkpoint}, seed=22, **arguments
        )
        assert numbers(restored, length) == expected[position : position + length], position


@pytest.mark.gpu_where(lambda case: case["depth"] == 3)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("pipeline_depth", [1, 2, 4])
def test_checkpoint_knows_nothing_of_what_was_read_ahead(backend, store, depth, pipeline_depth):
    settings = CHECKPOINTED | {"prefetch_queue_depth": pipeline_depth}
    arguments = {"arrays": ["number", "t2m"], "batch_size": 3, "prefetch_queue_depth": depth}
    pipe = build(backend, store, pipeline=settings, **arguments)
    numbers(pipe, 5)
    time.sleep(0.05)
    restored = build(backend, store, pipeline=settings | {"checkpoint": pipe.checkpoint()}, **arguments)
    assert numbers(restored, 4) == reference.batches(SAMPLES, 3, 9)[5:]


def test_resume_of_a_lazy_reader(backend, store):
    arguments = {"arrays": ["number"], "batch_size": 4, "lazy_init": True}
    pipe = build(backend, store, pipeline=CHECKPOINTED, **arguments)
    untouched = pipe.checkpoint()
    numbers(pipe, 3)
    later = pipe.checkpoint()
    for checkpoint, position in ((untouched, 0), (later, 3)):
        restored = build(backend, store, pipeline=CHECKPOINTED | {"checkpoint": checkpoint}, **arguments)
        assert numbers(restored, 3) == reference.batches(SAMPLES, 4, position + 3)[position:]


def test_checkpoint_of_a_restored_pipeline(backend, store):
    arguments = {"arrays": ["number"], "batch_size": 4, "random_shuffle": True}
    pipe = build(backend, store, pipeline=CHECKPOINTED, seed=1, **arguments)
    expected = numbers(build(backend, store, seed=1, **arguments), 20)
    for step in range(6):
        assert numbers(pipe, 3) == expected[3 * step : 3 * step + 3]
        pipe = build(backend, store, pipeline=CHECKPOINTED | {"checkpoint": pipe.checkpoint()}, **arguments)


@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.gpu_where(lambda case: case["pad"])
@pytest.mark.parametrize("stick", [False, True])
def test_resume_of_the_pytorch_iterator(backend, store, policy, pad, stick):
    reader = {"shard_id": 1, "num_shards": 3, "stick_to_shard": stick, "pad_last_batch": pad}
    arguments = {"arrays": ["number"], "batch_size": 4, "random_shuffle": True, "seed": 8, **reader}

    def iterator(checkpoint=None):
        pipe = define(backend, store, pipeline=CHECKPOINTED | {"checkpoint": checkpoint}, **arguments)
        return DALIGenericIterator(
            [pipe], ["n"], reader_name="reader", last_batch_policy=policy, auto_reset=True
        )

    def rest(it, epochs):
        return [[batch[0]["n"].cpu().numpy().tolist() for batch in it] for _ in range(epochs)]

    for iterations in (0, 1, 2):
        original = iterator()
        for batch in itertools.islice(original, iterations):
            assert batch
        restored = iterator(original.checkpoints()[0])
        assert rest(restored, 3) == rest(original, 3), iterations


def test_checkpoint_of_another_reader_is_refused(backend, store):
    arguments = {"arrays": ["number"], "batch_size": 4}
    pipe = build(backend, store, pipeline=CHECKPOINTED, **arguments)
    numbers(pipe, 2)
    settings = CHECKPOINTED | {"checkpoint": pipe.checkpoint()}
    for change in (
        {"batch_size": 5},
        {"arrays": ["t2m"]},
        {"arrays": ["number", "t2m"]},
        {"window": [2]},
        {"num_shards": 2},
        {"num_shards": 2, "shard_id": 1},
        {"pad_last_batch": True},
    ):
        with pytest.raises(RuntimeError, match="checkpoint"):
            build(backend, store, pipeline=settings, **(arguments | change))
    build(backend, store, pipeline=settings, **arguments)


# --- PyTorch --------------------------------------------------------------------------------------


def test_epoch_through_pytorch(backend, store):
    import torch

    pipe = define(backend, store, arrays=ARRAYS, batch_size=8, window=[2])
    iterator = DALIGenericIterator(
        [pipe], ARRAYS, reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL
    )
    seen = {name: [] for name in ARRAYS}
    for (batch,) in iterator:
        for name in ARRAYS:
            seen[name].append(batch[name].cpu())
    types_ = {"number": torch.int64, "t2m": torch.float32, "z500": torch.float64, "mask": torch.bool}
    for name in ARRAYS:
        whole = torch.cat(seen[name])
        assert whole.dtype == types_[name]
        assert_samples(list(whole.numpy()), read_array(store, name), [2], what=name)


# --- dynamic mode ---------------------------------------------------------------------------------

DYNAMIC = """
    import sys
    {imports}
    import numpy as np
    path, device = sys.argv[1:]

    def reader(**arguments):
        arrays = ["number", "t2m"]
        return ndd.readers.Zarr(path=path, arrays=arrays, device=device, pad_last_batch=True, **arguments)

    def numbers(batches):
        seen = []
        for number, t2m in batches:
            seen += [int(np.asarray(tensor.cpu())) for tensor in number.tensors]
            assert t2m.shape[0] == (6, 5)
        return seen

    two_epochs = reader()
    print(numbers(two_epochs.next_epoch(batch_size=5)))
    print(numbers(two_epochs.next_epoch(batch_size=5)))
    assert two_epochs.get_metadata()["epoch_size"] == 34

    if {stops_here}:
        sys.exit()
    original, restored = reader(enable_checkpointing=True), reader(enable_checkpointing=True)
    batches = original.next_epoch(batch_size=5)
    numbers([next(batches), next(batches)])
    restored.set_state(str(original.get_state()))
    print(numbers([next(restored.next_epoch(batch_size=5))]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "imports",
    [
        "import zarr_dali, nvidia.dali.experimental.dynamic as ndd",
        "import nvidia.dali.experimental.dynamic as ndd, zarr_dali",
    ],
    ids=["before", "after"],
)
def test_dynamic_mode(backend, store, imports):
    """The class is there whether the package is imported before DALI's dynamic mode or after it."""
    # Dynamic mode of DALI 2.0 has no states of readers.
    done = run_python(DYNAMIC.format(imports=imports, stops_here=DALI_2_0), store, backend.device)
    assert done.returncode == 0, done.stderr
    epoch = str([min(i, SAMPLES - 1) for i in range(35)])
    restored = [] if DALI_2_0 else [str([10, 11, 12, 13, 14])]
    assert done.stdout.splitlines() == [epoch, epoch, *restored]


# --- the package ----------------------------------------------------------------------------------


def test_import_twice():
    done = run_python(
        """
        import importlib, sys
        import zarr_dali
        import zarr_dali
        importlib.reload(zarr_dali)
        del sys.modules["zarr_dali"]
        import zarr_dali
        from nvidia.dali import fn
        print(callable(fn.readers.zarr))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


def test_import_under_another_dali_release():
    """The text names the release that is there and the one that is needed, and nothing is loaded."""
    done = run_python(
        """
        import nvidia.dali
        nvidia.dali.__version__ = "1.99.0"
        try:
            import zarr_dali
        except ImportError as error:
            print(error)
        print(hasattr(nvidia.dali.fn.readers, "zarr"))
        """
    )
    assert done.returncode == 0, done.stderr
    text, loaded = done.stdout.rsplit("\n", 2)[:2]
    assert "1.99.0" in text and "2.4.0" in text and "install" in text
    assert loaded == "False"


def test_second_copy_of_the_library(tmp_path):
    """DALI would end the process at a second registration; the import refuses it, naming the first copy."""
    import zarr_dali

    package = Path(zarr_dali.__file__).parent
    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    done = run_python(
        """
        import sys
        from nvidia.dali import plugin_manager
        plugin_manager.load_library(sys.argv[1])
        try:
            import zarr_dali
        except ImportError as error:
            print(error)
        """,
        copy / zarr_dali.library_path().relative_to(package),
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


def test_preloaded_library(store):
    """`DALI_PRELOAD_PLUGINS` loads the plugin with DALI itself; the import then has nothing left to do."""
    import zarr_dali

    done = run_python(
        """
        import sys
        from nvidia.dali import fn
        assert callable(fn.readers.zarr)
        from reading import CPU, read_all
        print(len(read_all(CPU, sys.argv[1], arrays=["number"])[0]))
        """,
        store,
        env={"DALI_PRELOAD_PLUGINS": str(zarr_dali.library_path())},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(SAMPLES)


def test_each_decode_path_is_logged_once(backend, store):
    """On the GPU backend a line per array says where it is decoded; the CPU backend has one path."""
    done = run_python(
        """
        import sys
        from reading import Backend, read_all
        path, device, device_id = sys.argv[1:]
        for _ in range(3):
            read_all(Backend(device, eval(device_id)), path, arrays=["number", "mask"])
        """,
        store,
        backend.device,
        backend.device_id,
    )
    assert done.returncode == 0, done.stderr
    if backend is CPU:
        assert done.stderr == ""
    else:
        for name, path in {"number": "GPU", "mask": "gzip"}.items():
            (line,) = [line for line in done.stderr.splitlines() if f'"{name}"' in line]
            assert str(store) in line and path in line


def test_import_without_any_gpu_library():
    """Importing touches no driver, no nvCOMP and no cuFile."""
    done = run_python(
        """
        import nvidia.dali
        before = open("/proc/self/maps").read()
        import zarr_dali
        after = open("/proc/self/maps").read()
        names = ("libcuda.so", "libnvcomp", "libcufile")
        print([name for name in names if name in after and name not in before])
        """,
        env={"ZARR_DALI_NVCOMP_LIBRARY": "/nonexistent"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_version():
    import zarr_dali

    assert re.fullmatch(r"\d+\.\d+\.\d+.*", zarr_dali.__version__)
