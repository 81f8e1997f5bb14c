"""What DALI tests of its own readers, tested of this one, on both backends.

The table names each test of DALI that has a meaning for a Zarr reader, and where it is re-created; `here` is
this file. What the tests compare with are DALI's own readers on the CPU where there is a counterpart, else
numpy. Of the iterators PyTorch's are tested, which are the ones installed.

Two things differ on purpose. DALI's file readers cut their reader shards from a random permutation of all
files; a shuffled shard here is the same part as an unshuffled one, so that ranks do not decode each other's
chunks, and only its order is random. And every epoch has another order, as with `shuffle_after_epoch` there,
which is no argument here; tests of `shuffle_after_epoch` are re-created with `random_shuffle`.

    reader/test_numpy.py
      test_types_and_shapes              here::test_types_and_shapes, test_parity.py::test_every_dtype
      test_unsupported_types             test_arguments.py::test_data_types_dali_does_not_have,
                                         test_stores.py::test_types_that_are_no_numbers
      test_cache_headers                 no such argument: metadata are read once for all samples
      test_dim_mismatch, _type_mismatch  test_stores.py::test_stores_that_do_not_fit_together (shape, rank and
                                         type), test_arguments.py::test_arrays_of_different_first_dimension
      test_numpy_reader_alias            here::test_alias,
                                         test_operator.py::test_every_name_is_the_same_operator
      test_numpy_reader_roi              here::test_roi_is_slicing, here::test_roi_of_samples
        empty axes                       here::test_roi_of_nothing_given
        empty range                      here::test_roi_errors; refused, since such a sample has no values
      test_numpy_reader_roi_error        here::test_roi_errors; what lies outside is never padded or trimmed
      test_pad_last_sample               here::test_pad_last_sample,
                                         test_operator.py::test_source_info_of_padding_repeats
      test_shuffling                     test_order.py::test_shuffled_order_is_the_same_on_both_backends
    reader/test_fits.py
      test_reading_uncompressed, _compressed  here::test_many_outputs
      test_concurrent_pipelines          test_operator.py::test_five_pipelines_at_once
    reader/test_file.py
      test_invalid_number_of_shards      test_arguments.py::test_num_shards_names_the_number_of_samples
    reader/test_shuffling.py
      test_shuffling_patterns            here::test_shuffling_patterns
      test_global_shuffle_random_shuffle, _2, _dont_mix_epochs  here::test_global_shuffle,
                                         test_order.py::test_shuffled_epochs_differ
      test_dont_mix_epochs               here::test_dont_mix_epochs
      test_pad_last_batch_epoch_size     here::test_pad_last_batch_epoch_size
      test_pad_last_batch                here::test_pad_last_batch
      test_shuffle_after_epoch_seed_*    test_order.py::test_shuffle_depends_on_the_seed_alone,
                                         test_order.py::test_shuffle_follows_the_seed_of_the_pipeline,
                                         test_order.py::test_shards_of_different_seeds_stay_disjoint
    test_fw_iterators.py
      test_*_last_batch_no_pad_last_batch, _last_batch_pad_last_batch,
      _not_fill_last_batch_pad_last_batch  here::test_iterator_of_a_given_size
      test_*_pass_reader_name            here::test_pass_reader_name, test_order.py::test_pytorch_iterator,
                                         test_order.py::test_iterator_over_all_readers_at_once
      test_*_pass_reader_name_autoreset  here::test_auto_reset
      "no data in the pipeline"          here::test_no_data_in_the_pipeline
      test_*_feed_ndarray                here::test_feed_ndarray, test_operator.py::test_epoch_through_pytorch
    checkpointing/test_dali_checkpointing.py
      test_file_reader, test_numpy_reader and the other readers' tables
                                         test_checkpoints.py::test_restored_pipeline,
                                         test_operator.py::test_resume
      test_file_reader_pytorch           test_checkpoints.py::test_restored_iterator
      test_multiple_readers              test_checkpoints.py::test_multiple_readers
    checkpointing/test_dali_checkpointing_fw_iterators.py
      test_last_batch_policy             test_checkpoints.py::test_last_batch_policy,
                                         test_operator.py::test_resume_of_the_pytorch_iterator
      test_file_reader                   test_checkpoints.py::test_restored_iterator
      test_reset                         test_checkpoints.py::test_reset
      test_multiple_restores             test_checkpoints.py::test_multiple_restores,
                                         test_operator.py::test_checkpoint_of_a_restored_pipeline
    reader_op_test.cc
      PrefetchQueueTest                  test_operator.py::test_prefetch_queue_depth_of_the_reader
      LazyInitTest                       test_operator.py::test_lazy_init,
                                         test_order.py::test_meta_before_the_first_run_and_with_lazy_init,
                                         test_arguments.py::test_errors_of_a_lazy_reader_come_at_the_first_run
      ResetLoaderTestWrap, _StickToShard, _NoPad, _Pad  test_order.py::test_order_and_meta
      SimpleCheckpointing, CheckpointingRandomShuffle, _MultipleShards, _StickToShard
                                         test_checkpoints.py::test_checkpoint_of_every_epoch
      CheckpointingResumeThenSave        test_checkpoints.py::test_multiple_restores
    test_dali_cpu_only.py
      test_numpy_reader_cpu              every test on the CPU backend: device_id is None
      test_get_property                  here::test_get_property,
                                         test_operator.py::test_source_info_inside_the_pipeline
      test_separated_exec_setup          here::test_separated_exec_setup, test_operator.py::test_executors
      GPU operator in a CPU pipeline     here::test_gpu_operator_in_a_cpu_pipeline
      test_coverage                      here::test_both_backends_are_registered
    test_pipeline.py
      test_epoch_size                    here::test_epoch_size
      serialization with output_dtype, output_ndim  here::test_serialized_with_output_dtype_and_ndim,
                                         test_operator.py::test_serialized_pipeline
    experimental_mode/test_reader_decoder.py
      test_reader_batch, test_reader_sample  test_dynamic.py::test_batches, test_dynamic.py::test_samples
      test_reader_shards                 test_dynamic.py::test_shards
      test_reader_shards_error           test_dynamic.py::test_errors
    experimental_mode/test_checkpoint.py
      test_reader_get_state_before_iteration_errors, _state_str_roundtrip, _get_set_state_resume,
      _set_state_after_iteration_errors, _set_state_invalid_type, _accepts_bytes  test_dynamic.py::test_state
      test_checkpoint_*_end_to_end, _collect_restore_reader_roundtrip  test_dynamic.py::test_checkpoint
    Not DALI's, but of the same kind
      second copy of the library         test_operator.py::test_second_copy_of_the_library
      dynamic mode imported first        test_operator.py::test_dynamic_mode
      outputs kept after the pipeline    test_operator.py::test_outputs_live_longer_than_the_pipeline,
                                         test_life.py::test_batches_outlive_everything
      the constructor with the GIL held  here::test_other_threads_run_on
      sticky errors                      test_damage.py::test_chunk_file
      arguments of 64 bits               test_arguments.py::test_values_that_do_not_fit
      batches that vary in size          test_operator.py::test_batches_that_vary_in_size
"""

import itertools
import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, fn, types
from nvidia.dali import backend as dali_backend
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator, feed_ndarray

import reference
from reading import CPU, GPU, assert_same_bits, build, define, on_host, read_all, run_batches, to_samples
from stores import INTEGERS, write_array, write_group

POLICIES = pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)


@pytest.fixture
def numbers(cached_store):
    """`numbers(n)`: (folder of n .npy files, Zarr array) whose sample i is [i] and i."""

    def get(count):
        store = cached_store(
            ("numbers", count), lambda at: write_array(at, "", np.arange(count), chunks=(4,), codec="raw")
        )
        files = store.parent / "files"
        if not files.exists():
            files.mkdir()
            for i in range(count):
                np.save(files / f"{i:05d}.npy", np.array([i]))
        return files, store

    return get


def numpy_pipeline(files, batch_size, **arguments):
    """DALI's own reader over the .npy files, not built yet."""
    pipe = Pipeline(batch_size=batch_size, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(
            fn.readers.numpy(file_root=str(files), file_filter="*.npy", name="reader", **arguments)
        )
    return pipe


def numbers_of(pipe, how_many):
    """The next batches as one list of sample numbers."""
    batches = run_batches(pipe, how_many)
    return [int(np.ravel(sample)[0]) for outputs in batches for sample in outputs[0]]


def test_table_names_tests_that_exist():
    """Every test on the right of the table above is there."""
    here = Path(__file__)
    targets = re.findall(r"(here|test_\w+\.py)::(test_\w+)", __doc__)
    assert len(targets) > 60
    missing = [
        f"{file}::{name}"
        for file, name in targets
        if f"def {name}(" not in (here if file == "here" else here.with_name(file)).read_text()
    ]
    assert missing == []


# --- values ---------------------------------------------------------------------------------------

SHAPES = ((), (10,), (6, 11), (5, 3, 4), (2, 3, 5, 2))
"""Shapes of a sample, of 0 to 4 dimensions."""
SIZES = list(itertools.product((1, 3, 4, 8, 16), (1, 2, 3, 5, 8)))
"""Batch sizes and threads; they take turns over the types and shapes."""


@pytest.mark.gpu_where(lambda case: case["dtype"] in ("uint8", "float16", "float64"))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)}d")
@pytest.mark.parametrize("dtype", ("bool", *INTEGERS, "float16", "float32", "float64"))
def test_types_and_shapes(backend, tmp_path, rng, dtype, shape):
    """Each sample is what numpy reads from the .npy file of it, and what DALI's reader makes of that file."""
    values = (rng.random((9, *shape)) * 10).astype(dtype)
    write_array(tmp_path, "a", values, chunks=(2,) + (2,) * len(shape))
    (tmp_path / "files").mkdir()
    for i, sample in enumerate(values):
        np.save(tmp_path / "files" / f"{i}.npy", sample)
    turn = SHAPES.index(shape) + 7 * np.dtype(dtype).num
    batch_size, threads = SIZES[turn % len(SIZES)]
    pipe = build(
        backend,
        tmp_path / "a",
        batch_size=batch_size,
        num_io_threads=threads,
        pipeline={"num_threads": threads},
    )
    dali = numpy_pipeline(tmp_path / "files", batch_size)
    dali.build()
    for start in range(0, 9, batch_size):
        (ours,), (theirs,) = pipe.run(), dali.run()
        for i, (a, b) in enumerate(zip(to_samples(ours), to_samples(theirs), strict=True)):
            assert_same_bits(a, np.load(tmp_path / "files" / f"{(start + i) % 9}.npy"))
            assert_same_bits(a, b)
        assert ours.dtype == theirs.dtype


@pytest.mark.gpu_where(lambda case: case["outputs"] in (1, 8))
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("outputs", range(1, 9))
def test_many_outputs(backend, tmp_path, rng, outputs, codec):
    write_group(tmp_path)
    arrays = {}
    for k in range(outputs):
        arrays[f"a{k}"] = rng.random((6, 2 + k, 3)).astype(("float32", "float64")[k % 2])
        write_array(tmp_path, f"a{k}", arrays[f"a{k}"], chunks=(2, 3, 3), codec=codec)
    read = read_all(backend, tmp_path, arrays=list(arrays), batch_size=4)
    for samples, expected in zip(read, arrays.values(), strict=True):
        assert_same_bits(np.stack(samples), expected)


def test_alias(backend, numbers):
    """`fn.zarr_reader` and `fn.readers.zarr` give the same 50 shuffled batches."""
    _, store = numbers(20)

    def pipeline(reader):
        pipe = Pipeline(batch_size=64, num_threads=4, device_id=backend.device_id)
        with pipe:
            pipe.set_outputs(reader(path=store, device=backend.device, random_shuffle=True, seed=1234))
        pipe.build()
        return pipe

    assert numbers_of(pipeline(fn.zarr_reader), 50) == numbers_of(pipeline(fn.readers.zarr), 50)


# --- region of interest ---------------------------------------------------------------------------


@pytest.fixture
def field(cached_store):
    """(store, values) of an array of 7 x 10 x 12 with many chunks."""
    values = np.arange(7 * 10 * 12, dtype="int32").reshape(7, 10, 12)
    return cached_store("field", lambda at: write_array(at, "", values, chunks=(2, 3, 5))), values


@pytest.mark.gpu_where(lambda case: case["start"] == [0, 1, 2])
@pytest.mark.parametrize(
    "start, end",
    [
        ([0, 1, 2], [7, 8, 9]),
        ([0, 1, 2], None),
        (None, [7, 8, 7]),
        ([0, 9], None),
        (None, [7, 1]),
        ([0, 0, 11], [7, 10, 12]),
        ([0, 4], [7, 9, 8]),
    ],
    ids=str,
)
def test_roi_is_slicing(backend, field, start, end):
    """A region read is the region that `fn.slice` cuts out of the whole sample."""
    store, values = field
    low = (*(start or ()), 0, 0, 0)[:3]
    high = (end or []) + list(values.shape)[len(end or []) :]
    pipe = Pipeline(batch_size=7, num_threads=2, device_id=backend.device_id)
    with pipe:
        whole = fn.readers.zarr(path=store, device=backend.device)
        roi = fn.readers.zarr(path=store, device=backend.device, roi_start=start, roi_end=end)
        pipe.set_outputs(roi, fn.slice(whole, start=list(low[1:]), end=high[1:], axes=[0, 1]))
    pipe.build()
    ours, theirs = (to_samples(output) for output in pipe.run())
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert_same_bits(a, b)
        assert_same_bits(a, values[i, low[1] : high[1], low[2] : high[2]])


def test_roi_of_samples(backend, field):
    """In the first dimension the region says which samples there are."""
    store, values = field
    (samples,) = read_all(backend, store, roi_start=[2], roi_end=[6])
    assert_same_bits(np.stack(samples), values[2:6])
    pipe = build(backend, store, roi_start=[2, 3], roi_end=[6], window=[2, 4], stride=[2, 3])
    assert pipe.reader_meta("reader")["epoch_size"] == 2 * 2


def test_roi_of_nothing_given(backend, field):
    """Empty lists are no region."""
    store, values = field
    (samples,) = read_all(backend, store, roi_start=[], roi_end=[])
    assert_same_bits(np.stack(samples), values)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "start, end, named",
    [
        ([0, -1, 2], None, ["roi_start", "-1"]),
        (None, [7, 100, 8], ["roi_end", r"\b100\b", r"\b10\b"]),
        (None, [8], ["roi_end", r"\b8\b", r"\b7\b"]),
        ([0, 3], [7, 3], ["roi_start", "roi_end", r"\b3\b"]),
        ([5], [4], ["roi_start", "roi_end", r"\b5\b", r"\b4\b"]),
        ([7], None, ["roi_start", r"\b7\b"]),
        ([0, 0, 0, 0], None, ["roi_start", r"\[7, 10, 12\]"]),
        (None, [7, 10, 12, 1], ["roi_end", r"\[7, 10, 12\]"]),
        ([0, 2**40], None, ["roi_start", str(2**40)]),
    ],
    ids=str,
)
def test_roi_errors(backend, field, start, end, named):
    store, _ = field
    with pytest.raises(ValueError) as caught:
        build(backend, store, roi_start=start, roi_end=end)
    for part in named:
        assert re.search(part, str(caught.value)), (part, str(caught.value))


# --- padding and reader shards --------------------------------------------------------------------


@pytest.mark.gpu_where(lambda case: case["sizes"] in ((1, 2, 1), (3, 1, 2)))
@pytest.mark.parametrize("sizes", [(1, 2, 1), (3, 1, 2), (3, 2, 2), (7, 4, 3), (5, 9, 4)], ids=str)
def test_pad_last_sample(backend, numbers, sizes):
    """Where DALI's reader repeats a file, the same sample repeats here, and `source_info` says so."""
    count, batch_size, num_shards = sizes
    files, store = numbers(count)
    for shard_id in range(num_shards):
        reader = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
        dali = numpy_pipeline(files, batch_size, **reader)
        dali.build()
        ours = build(backend, store, batch_size=batch_size, **reader)
        for _ in range(2 * num_shards):
            (theirs,), (output,) = dali.run(), ours.run()
            names = [int(Path(theirs[i].source_info()).stem) for i in range(batch_size)]
            assert [int(sample) for sample in to_samples(output)] == names
            assert [output[i].source_info() for i in range(batch_size)] == [f"{store}[{i}]" for i in names]


@pytest.mark.gpu_where(lambda case: case["num_shards"] == 3 and case["batch_size"] == 10)
@pytest.mark.parametrize("initial_fill", [1, 1024])
@pytest.mark.parametrize("batch_size", [1, 10, 100])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
def test_shuffling_patterns(backend, numbers, num_shards, batch_size, initial_fill):
    """In each of three epochs every sample comes once over all shards; repeats come from padding alone."""
    count = 67
    _, store = numbers(count)
    pad = batch_size != 1
    for stick in (False, True):
        epochs = [[] for _ in range(3)]
        for shard_id in range(num_shards):
            reader = {"shard_id": shard_id, "num_shards": num_shards, "stick_to_shard": stick}
            pipe = build(
                backend,
                store,
                batch_size=batch_size,
                random_shuffle=True,
                pad_last_batch=pad,
                initial_fill=initial_fill,
                **reader,
            )
            for epoch, (_, _, samples) in enumerate(
                itertools.islice(reference.visits(count, **reader), len(epochs))
            ):
                batches = reference.batches_per_epoch(count, num_shards, batch_size)
                read = numbers_of(pipe, batches if pad else len(samples))
                assert read[len(samples) :] == [read[len(samples) - 1]] * (len(read) - len(samples))
                epochs[epoch] += read[: len(samples)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(count))] * len(epochs), stick


def two_shards(backend, store, **arguments):
    """For each of two epochs: the samples of each of two reader shards, in order."""
    pipes = [build(backend, store, batch_size=1, num_shards=2, shard_id=i, **arguments) for i in range(2)]
    count = pipes[0].epoch_size("reader")
    assert count % 2 == 0
    return [[numbers_of(pipe, count // 2) for pipe in pipes] for _ in range(2)]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
def test_dont_mix_epochs(backend, numbers, shuffle):
    """What shard 0 reads in the second epoch is what shard 1 read in the first, and the other way round."""
    _, store = numbers(64)
    first, second = two_shards(backend, store, random_shuffle=shuffle)
    assert [set(order) for order in second] == [set(order) for order in reversed(first)]
    if not shuffle:
        assert second == first[::-1]


@pytest.mark.parametrize("stick", [False, True])
def test_global_shuffle(backend, numbers, stick):
    """Epochs differ in every shard; together the shards hold every sample once in each.

    A shard that sticks keeps its samples and changes their order; one that moves on changes its samples.
    """
    _, store = numbers(64)
    first, second = two_shards(backend, store, random_shuffle=True, stick_to_shard=stick)
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert all((set(a) == set(b)) == stick for a, b in zip(first, second, strict=True))
    assert [sorted(sum(epoch, [])) for epoch in (first, second)] == [list(range(64))] * 2


@pytest.mark.gpu_where(lambda case: case["num_shards"] == 9)
@pytest.mark.parametrize("num_shards", range(1, 10))
def test_pad_last_batch_epoch_size(backend, numbers, num_shards):
    _, store = numbers(64)
    pipe = build(
        backend, store, batch_size=10, num_shards=num_shards, random_shuffle=True, pad_last_batch=True
    )
    assert pipe.epoch_size("reader") == math.ceil(64 / num_shards) * num_shards
    assert pipe.reader_meta("reader")["epoch_size"] == 64


@pytest.mark.parametrize("batch_size", [100, 30])
def test_pad_last_batch(backend, numbers, batch_size):
    """The rest of a shuffled epoch's last batch repeats its last sample."""
    _, store = numbers(67)
    pipe = build(backend, store, batch_size=batch_size, random_shuffle=True, pad_last_batch=True)
    for _ in range(2):
        read = numbers_of(pipe, math.ceil(67 / batch_size))
        assert sorted(read[:67]) == list(range(67))
        assert set(read[67:]) == {read[66]}


# --- iterators ------------------------------------------------------------------------------------


def values(batch):
    """The sample numbers of one pipeline's part of an iterator's batch."""
    return batch["x"].cpu().numpy().ravel().tolist()


def iterator(pipes, policy, **arguments):
    return DALIGenericIterator(pipes, ["x"], last_batch_policy=policy, **arguments)


def epochs_of(it, how_many, reset=False):
    """For each epoch: the iterator's length, and the sample numbers of each batch and pipeline."""
    seen = []
    for _ in range(how_many):
        seen.append((len(it), [[values(part) for part in batch] for batch in it]))
        if reset:
            it.reset()
    return seen


COUNT = 64
PASSED_BY_NAME = [
    pytest.param(*case, id="-".join([case[2].name, *map(str, case[:2])]))
    for case in itertools.product((3, 5, 17), (3, 5, 7), LastBatchPolicy)
    if case[2] is not LastBatchPolicy.DROP or case[1] <= COUNT // case[0]
]
"""Reader shards, batch size and policy; without a full batch DROP has its own test below."""


@pytest.mark.gpu_where(
    lambda case: (case["num_shards"], case["batch_size"], case["stick"], case["pad"]) == (3, 5, False, True)
)
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
@pytest.mark.parametrize("num_shards, batch_size, policy", PASSED_BY_NAME)
def test_pass_reader_name(backend, numbers, num_shards, batch_size, stick, pad, policy):
    """One pipeline for 2P epochs and one for each shard for 3: batches and lengths are the numpy reader's."""
    files, store = numbers(COUNT)
    shared = {"num_shards": num_shards, "stick_to_shard": stick, "pad_last_batch": pad}
    settings = {"reader_name": "reader", "auto_reset": True}
    for pipes, epochs in ((1, 2 * num_shards), (num_shards, 3)):
        theirs = [numpy_pipeline(files, batch_size, shard_id=i, **shared) for i in range(pipes)]
        ours = [define(backend, store, batch_size=batch_size, shard_id=i, **shared) for i in range(pipes)]
        expected = epochs_of(iterator(theirs, policy, **settings), epochs)
        seen = epochs_of(iterator(ours, policy, **settings), epochs)
        assert seen == expected, pipes
        for length, batches in seen:
            assert length == len(batches)
            read = sum(itertools.chain.from_iterable(batches), [])
            if pipes == num_shards and pad and policy is LastBatchPolicy.PARTIAL:
                assert sorted(read) == list(range(COUNT)), "shards overlap, or are not complete"


@POLICIES
@pytest.mark.gpu_where(lambda case: case["policy"] is LastBatchPolicy.DROP)
@pytest.mark.parametrize("auto_reset", [True, False, "yes", "no"])
def test_auto_reset(backend, numbers, auto_reset, policy):
    files, store = numbers(COUNT)
    reader = {"batch_size": 3, "num_shards": 3, "pad_last_batch": True}
    settings = {"reader_name": "reader", "auto_reset": auto_reset}
    reset = auto_reset in (False, "no")
    theirs = epochs_of(iterator([numpy_pipeline(files, **reader)], policy, **settings), 3, reset)
    ours = epochs_of(iterator([define(backend, store, **reader)], policy, **settings), 3, reset)
    assert ours == theirs


def test_no_data_in_the_pipeline(backend, numbers):
    """A shard smaller than a batch leaves nothing for DROP: the iterator says so, as with DALI's readers."""
    files, store = numbers(COUNT)
    reader = {"batch_size": 5, "num_shards": 17}
    texts = []
    for pipe in (numpy_pipeline(files, **reader), define(backend, store, **reader)):
        with pytest.raises(RuntimeError, match=r"no data in the pipeline.*last_batch_policy") as caught:
            iterator([pipe], LastBatchPolicy.DROP, reader_name="reader")
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@POLICIES
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
def test_iterator_of_a_given_size(backend, numbers, pad, policy):
    """`size` and `last_batch_padded` in place of the reader's name, for two epochs."""
    files, store = numbers(67)
    settings = {"size": 67, "last_batch_padded": pad, "auto_reset": True}

    def epochs(pipe):
        return epochs_of(iterator([pipe], policy, **settings), 2)

    seen = epochs(define(backend, store, batch_size=20, pad_last_batch=pad))
    assert seen == epochs(numpy_pipeline(files, 20, pad_last_batch=pad))
    shuffled = epochs(define(backend, store, batch_size=20, pad_last_batch=pad, random_shuffle=True))
    assert [length for length, _ in shuffled] == [length for length, _ in seen]
    for epoch, ((_, batches), (_, in_order)) in enumerate(zip(shuffled, seen, strict=True)):
        read, expected = (sum(itertools.chain.from_iterable(b), []) for b in (batches, in_order))
        assert len(read) == len(expected)
        if policy is not LastBatchPolicy.DROP and (pad or epoch == 0):
            assert sorted(read[:67]) == list(range(67))
        if policy is LastBatchPolicy.FILL and pad:
            assert read[67:] == [read[66]] * 13


def test_feed_ndarray(backend, numbers):
    """A batch goes into a tensor that the user owns."""
    _, store = numbers(COUNT)
    (output,) = build(backend, store, batch_size=9).run()
    device = torch.device("cuda", backend.device_id) if backend is GPU else torch.device("cpu")
    tensor = torch.zeros(9, dtype=torch.int64, device=device)
    stream = torch.cuda.current_stream(device) if backend is GPU else None
    feed_ndarray(output.as_tensor(), tensor, cuda_stream=stream)
    assert tensor.cpu().tolist() == list(range(9))


# --- in the pipeline ------------------------------------------------------------------------------


def test_get_property(backend, numbers):
    """`source_info` of samples on any device, as text inside the pipeline."""
    _, store = numbers(COUNT)
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=backend.device_id)
    with pipe:
        data = fn.readers.zarr(path=store, device=backend.device)
        pipe.set_outputs(data, fn.get_property(data, key="source_info"))
    pipe.build()
    for start in (0, 4):
        outputs = pipe.run()
        texts = [bytes(text).decode() for text in to_samples(outputs[1])]
        assert texts == [f"{store}[{start + i}]" for i in range(4)]
        assert texts == [outputs[0][i].source_info() for i in range(4)]


@pytest.mark.parametrize("dynamic", [None, False], ids=["default", "exec_dynamic=False"])
def test_separated_exec_setup(backend, numbers, dynamic):
    """Queues of their own for the CPU and the GPU stage, batches larger than the data."""
    _, store = numbers(COUNT)
    settings = {"prefetch_queue_depth": {"cpu_size": 5, "gpu_size": 3}, "num_threads": 3}
    if dynamic is False:
        settings["exec_dynamic"] = False
    pipe = build(backend, store, batch_size=128, pipeline=settings)
    for _ in range(7):
        (output,) = pipe.run()
        assert output.is_dense_tensor()
        assert on_host(output).as_array().tolist() == [i % COUNT for i in range(128)]


def test_gpu_operator_in_a_cpu_pipeline(numbers):
    """As with DALI's own GPU operators; no GPU is asked for."""
    _, store = numbers(COUNT)
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)device|gpu"):
        build(type(CPU)("gpu", None), store)


def test_both_backends_are_registered():
    assert "readers__Zarr" in dali_backend.RegisteredCPUOps()
    assert "readers__Zarr" in dali_backend.RegisteredGPUOps()


def test_epoch_size(backend, numbers):
    """Of every reader of a pipeline, by name and all at once."""
    stores = {f"reader{n}": numbers(n)[1] for n in (7, 20, 64)}
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=backend.device_id)
    with pipe:
        pipe.set_outputs(
            *(fn.readers.zarr(path=at, device=backend.device, name=name) for name, at in stores.items())
        )
    pipe.build()
    assert pipe.epoch_size() == {"reader7": 7, "reader20": 20, "reader64": 64}
    assert pipe.epoch_size("reader20") == 20


def test_serialized_with_output_dtype_and_ndim(backend, tmp_path, rng):
    """What a pipeline promises of its outputs travels with it, and is checked when it runs."""
    write_group(tmp_path)
    arrays = {"a": rng.random((6, 4, 3), "float32"), "n": np.arange(6)}
    for name, whole in arrays.items():
        write_array(tmp_path, name, whole, chunks=(2,) * whole.ndim)
    promised = {"output_dtype": [types.FLOAT, types.INT64], "output_ndim": [2, 0]}
    reader = {"arrays": list(arrays), "batch_size": 3}
    text = define(backend, tmp_path, pipeline=promised, **reader).serialize()
    again = Pipeline.deserialize(text, device_id=backend.device_id, num_threads=2)
    again.build()
    assert again.output_dtype() == promised["output_dtype"]
    assert again.output_ndim() == promised["output_ndim"]
    for start in (0, 3):
        for output, whole in zip(again.run(), arrays.values(), strict=True):
            assert_same_bits(np.stack(to_samples(output)), whole[start : start + 3])
    for wrong in ({"output_dtype": [types.FLOAT, types.INT32]}, {"output_ndim": [3, 0]}):
        with pytest.raises(RuntimeError, match=r"type|dimension"):
            build(backend, tmp_path, pipeline=wrong, **reader).run()


def test_other_threads_run_on(backend, numbers):
    """DALI builds and destroys operators with the GIL held, so a reader must not wait for a Python thread.

    The thread here logs and runs Python code all the time while pipelines come and go.
    """
    _, store = numbers(COUNT)
    done, turns = threading.Event(), 0

    def spin():
        nonlocal turns
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        for _ in range(5 if backend is CPU else 2):
            pipe = build(backend, store, batch_size=4)
            assert numbers_of(pipe, 2) == list(range(8))
            assert pipe.reader_meta("reader")["epoch_size"] == COUNT
            del pipe
    finally:
        done.set()
        thread.join()
    assert turns > 0
