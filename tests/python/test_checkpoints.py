"""Resuming: in the same process, in another one, and on another number of reader shards.

The axes of DALI's own tests come first (epochs, batches into an epoch, reader shards, shuffle, padding,
initial_fill, iterators and their policies), then what DALI's readers do not promise: the same bits in another
process from random positions, refusals in words, and an epoch that is finished on another number of shards.
"""

import base64
import hashlib
import inspect
import itertools
import json
import math
import os
import re
import shutil

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator, DALIRaggedIterator

import reference
import zarr_dali
from reading import CPU, GPU, build, define, on_host, run_batches, run_python
from stores import write_array, write_group

CHECKPOINTED = {"enable_checkpointing": True}
POSITIONS = int(os.environ.get("ZARR_DALI_POSITIONS", "40"))
"""How many random positions are resumed from in another process; a fifth of that on the GPU."""
MOST_BYTES = 1000
"""The most that the reader's state may take in a checkpoint."""


@pytest.fixture
def numbers(cached_store):
    """`numbers(n)`: a Zarr array whose sample i is i."""

    def get(count):
        return cached_store(
            ("numbers", count), lambda at: write_array(at, "", np.arange(count), chunks=(4,), codec="raw")
        )

    return get


def numbers_of(pipe, how_many):
    """The next batches as lists of sample numbers."""
    return [[int(sample) for sample in outputs[0]] for outputs in run_batches(pipe, how_many)]


def state_of(checkpoint):
    """What the reader put into a pipeline's checkpoint, as text and parsed."""
    text = checkpoint[checkpoint.index(b'{"version"') :].decode(errors="replace")
    state, end = json.JSONDecoder().raw_decode(text)
    return text[:end], state


# --- DALI's tables --------------------------------------------------------------------------------

COUNT = 67
RUNS = [
    # epochs, batch size, shard id, shards, batches into the last epoch, initial_fill
    (0, 4, 0, 1, None, 1024),
    (0, 16, 3, 4, None, 3),
    (1, 3, 0, 1, 1, 1),
    (2, 4, 0, 2, 5, 16),
    (3, 64, 3, 4, None, 1024),
    (5, 10, 0, 2, None, 2),
    (7, 5, 2, 5, 3, 64),
    (10, 9, 1, 3, 2, 1024),
    (12, 2, 6, 10, 1, 7),
    (4, 128, 2, 3, None, 100),
]


@pytest.mark.gpu_where(lambda case: case["run"] == RUNS[6] and case["shuffle"] and not case["stick"])
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_restored_pipeline(backend, numbers, run, shuffle, stick, pad):
    """After whole epochs or in the middle of one: restored and original read the same for P + 1 epochs."""
    epochs, batch_size, shard_id, num_shards, batches, initial_fill = run
    reader = {
        "shard_id": shard_id,
        "num_shards": num_shards,
        "stick_to_shard": stick,
        "pad_last_batch": pad,
    }
    arguments = reader | {
        "batch_size": batch_size,
        "random_shuffle": shuffle,
        "initial_fill": initial_fill,
    }
    length = reference.batches_per_epoch(COUNT, num_shards, batch_size)
    assert length >= (batches or 0)
    done = epochs * length if batches is None else (epochs - 1) * length + batches
    compared = (num_shards + 1) * length
    original = build(backend, numbers(COUNT), pipeline=CHECKPOINTED, seed=5, **arguments)
    numbers_of(original, done)
    restored = build(
        backend, numbers(COUNT), pipeline=CHECKPOINTED | {"checkpoint": original.checkpoint()}, **arguments
    )
    read = numbers_of(restored, compared)
    assert read == numbers_of(original, compared)
    if not shuffle:
        assert read == reference.batches(COUNT, batch_size, done + compared, **reader)[done:]


ITERATORS = pytest.mark.parametrize("iterator", [DALIGenericIterator, DALIRaggedIterator])


def values(batches):
    """The sample numbers of an iterator's batch: for each pipeline a list."""
    parts = [batch["x"] for batch in batches]
    return [[int(sample) for sample in part] for part in parts]


def observe(it, steps):
    """What comes in each step: values, or None at the end of an epoch."""
    seen = []
    for _ in range(steps):
        try:
            seen.append(values(next(it)))
        except StopIteration:
            seen.append(None)
    return seen


@ITERATORS
@pytest.mark.gpu_where(lambda case: case["run"] == RUNS[6] and case["shuffle"] and not case["stick"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("run", [run for run in RUNS if run[0] < 9], ids=str)
def test_restored_iterator(backend, numbers, run, shuffle, stick, iterator):
    epochs, batch_size, shard_id, num_shards, batches, initial_fill = run

    def make(checkpoint=None):
        pipe = define(
            backend,
            numbers(COUNT),
            pipeline=CHECKPOINTED | {"checkpoint": checkpoint},
            batch_size=batch_size,
            random_shuffle=shuffle,
            initial_fill=initial_fill,
            pad_last_batch=True,
            shard_id=shard_id,
            num_shards=num_shards,
            stick_to_shard=stick,
        )
        return iterator([pipe], ["x"], reader_name="reader", auto_reset=True)

    original = make()
    for epoch in range(epochs):
        last = batches if epoch == epochs - 1 else None
        for _ in itertools.islice(original, last):
            pass
    restored = make(original.checkpoints()[0])
    for _ in range(2):
        assert [values(batch) for batch in restored] == [values(batch) for batch in original]


@pytest.mark.gpu_where(lambda case: case["batches"] == 3)
@pytest.mark.parametrize("batches", range(9))
def test_multiple_readers(backend, numbers, batches):
    """Readers with epochs of two and three samples in one pipeline."""

    def pipeline(checkpoint=None):
        pipe = Pipeline(
            batch_size=1,
            num_threads=2,
            device_id=backend.device_id,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        with pipe:
            pipe.set_outputs(
                *(
                    fn.readers.zarr(
                        path=numbers(count),
                        device=backend.device,
                        name=f"reader{count}",
                        pad_last_batch=True,
                        random_shuffle=True,
                    )
                    for count in (2, 3)
                )
            )
        pipe.build()
        return pipe

    def both(pipe, how_many):
        return [[int(output[0]) for output in outputs] for outputs in run_batches(pipe, how_many)]

    original = pipeline()
    both(original, batches)
    assert both(pipeline(original.checkpoint()), 20) == both(original, 20)


@ITERATORS
@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
@pytest.mark.gpu_where(
    lambda case: (
        (case["data"], case["steps"], case["stick"], case["pad"], case["iterator"])
        == ((34, 3, 4), 7, False, True, DALIGenericIterator)
    )
)
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
@pytest.mark.parametrize("steps", [2, 3, 7])
@pytest.mark.parametrize("data", [(34, 3, 4), (9, 2, 3)], ids=str)
def test_last_batch_policy(backend, numbers, data, steps, stick, pad, policy, iterator):
    """An iterator over all reader shards: the same batches and the same ends of epochs after a restore."""
    count, num_shards, batch_size = data

    def make(checkpoints=None):
        pipes = [
            define(
                backend,
                numbers(count),
                batch_size=batch_size,
                pipeline=CHECKPOINTED | {"checkpoint": checkpoints[shard_id] if checkpoints else None},
                num_shards=num_shards,
                shard_id=shard_id,
                stick_to_shard=stick,
                pad_last_batch=pad,
                random_shuffle=True,
            )
            for shard_id in range(num_shards)
        ]
        return iterator(
            pipes,
            ["x"],
            reader_name="reader",
            last_batch_policy=policy,
            auto_reset=True,
            prepare_first_batch=False,
        )

    original = make()
    completed = 0
    while completed < steps:
        completed += observe(original, 1) != [None]
    restored = make(original.checkpoints())
    compared = 2 * count // batch_size
    assert observe(restored, compared) == observe(original, compared)


@ITERATORS
def test_reset(backend, numbers, iterator):
    """A checkpoint of the end of an epoch restores to its end; one taken after `reset` to the next epoch."""

    def make(checkpoint=None):
        pipe = define(backend, numbers(9), batch_size=1, pipeline=CHECKPOINTED | {"checkpoint": checkpoint})
        return iterator([pipe], ["x"], reader_name="reader", auto_reset=False)

    it = make()
    assert len(list(it)) == 9
    ended = it.checkpoints()[0]
    it.reset()
    begun = it.checkpoints()[0]
    assert observe(make(ended), 1) == [None]
    assert observe(make(begun), 2) == [[[0]], [[1]]]


@pytest.mark.gpu_where(lambda case: case["warmup"] == 3)
@pytest.mark.parametrize("warmup", [0, 3])
def test_multiple_restores(backend, numbers, warmup):
    """A checkpoint of a pipeline that was restored and did not run, or ran, restores as well."""
    arguments = {"batch_size": 4, "random_shuffle": True, "num_shards": 2, "pad_last_batch": True}

    def restored(checkpoint):
        settings = CHECKPOINTED | {"checkpoint": checkpoint}
        return build(backend, numbers(COUNT), pipeline=settings, **arguments)

    original = build(backend, numbers(COUNT), pipeline=CHECKPOINTED, **arguments)
    numbers_of(original, warmup)
    second = restored(original.checkpoint())
    third = restored(second.checkpoint())
    assert second.checkpoint() == third.checkpoint()
    expected = numbers_of(original, 40)
    assert numbers_of(second, 40) == expected
    assert numbers_of(third, 5) == expected[:5]
    assert numbers_of(restored(third.checkpoint()), 35) == expected[5:]


@pytest.mark.gpu_where(lambda case: case["depth"] == 20)
@pytest.mark.parametrize("depth, initial_fill", [(20, 3), (1, 3), (9, 10), (11, 20)])
def test_checkpoint_of_every_epoch(backend, numbers, depth, initial_fill):
    """Each of eight epochs again, from the checkpoint at its start, however far the reader ran ahead."""
    for reader in (
        {"batch_size": 7, "random_shuffle": True},
        {"batch_size": 5, "num_shards": 5, "shard_id": 2},
        {"batch_size": 3, "num_shards": 3, "shard_id": 1, "stick_to_shard": True, "random_shuffle": True},
    )[: 1 if backend is GPU else 3]:
        arguments = reader | {"prefetch_queue_depth": depth, "pad_last_batch": True}
        arguments["initial_fill"] = initial_fill
        length = reference.batches_per_epoch(16, reader.get("num_shards", 1), reader["batch_size"])
        original = build(backend, numbers(16), pipeline=CHECKPOINTED, **arguments)
        epochs = []
        for _ in range(8):
            epochs.append((original.checkpoint(), numbers_of(original, length)))
        for number, (checkpoint, expected) in enumerate(epochs[:2] if backend is GPU else epochs):
            assert state_of(checkpoint)[1]["epoch"] == number
            settings = CHECKPOINTED | {"checkpoint": checkpoint}
            again = build(backend, numbers(16), pipeline=settings, **arguments)
            assert numbers_of(again, length) == expected, (reader, number)


# --- another process ------------------------------------------------------------------------------

STEPS = 90


def write_weather(path, steps=STEPS, field_chunks=(4, 3, 4)):
    """number [], field [6, 8] and flux [6], with the first dimension; mask [6, 8] without it."""
    rng = np.random.default_rng(8)
    write_group(path)
    names = ("time", "y", "x")
    write_array(path, "number", np.arange(steps), chunks=(10,), dimension_names=names[:1])
    field = rng.random((steps, 6, 8), "float32")
    write_array(path, "field", field, chunks=field_chunks, dimension_names=names)
    write_array(path, "wind", field, chunks=(4, 3, 4), dimension_names=names)
    write_array(path, "flux", rng.random((steps, 6)), chunks=(7, 6), dimension_names=names[:2])
    write_array(path, "mask", rng.random((6, 8)) < 0.5, chunks=(6, 5), dimension_names=names[1:])


@pytest.fixture
def weather(cached_store):
    return cached_store("weather", write_weather)


SHUFFLED = {"random_shuffle": True, "seed": 77}
LEGACY = {"exec_dynamic": False}
CONFIGURATIONS = {
    "in-order": ({"arrays": ["number", "field"], "num_shards": 2, "shard_id": 1}, {}),
    "in-order, padded": ({"arrays": ["number"], "pad_last_batch": True}, LEGACY),
    "shuffled": ({"arrays": ["number", "flux"], **SHUFFLED}, {}),
    "shuffled shards": (
        {"arrays": ["number", "field"], "num_shards": 3, "shard_id": 2, "initial_fill": 16, **SHUFFLED},
        LEGACY,
    ),
    "padded shards": (
        {"arrays": ["field"], "num_shards": 4, "shard_id": 1, "pad_last_batch": True, **SHUFFLED},
        {},
    ),
    "stick": (
        {"arrays": ["number"], "num_shards": 2, "shard_id": 1, "stick_to_shard": True, **SHUFFLED},
        {"prefetch_queue_depth": 4},
    ),
    "windows": (
        {"arrays": ["field", "flux"], "window": [3], "dilation": [2], "pad_last_batch": True, **SHUFFLED},
        LEGACY,
    ),
    "offsets": (
        {
            "arrays": ["number", "field", "mask"],
            "offsets": [-6, 0, 3],
            "exclude": [20, 41],
            "return_index": True,
            **SHUFFLED,
        },
        {},
    ),
    "patches": (
        {
            "arrays": ["field"],
            "window": [2, 3, 4],
            "stride": [2, 2, 2],
            "roi_start": [3, 0, 1],
            "roi_end": [80],
            "num_shards": 2,
            "pad_last_batch": True,
            "return_index": True,
            "initial_fill": 40,
            **SHUFFLED,
        },
        {},
    ),
    "stack": (
        {
            "arrays": ["field", "wind"],
            "stack": True,
            "window": [2],
            "num_shards": 3,
            "stick_to_shard": True,
            "pad_last_batch": True,
            "prefetch_queue_depth": 5,
            **SHUFFLED,
        },
        LEGACY,
    ),
}
BATCH_SIZE = 7


def digests(pipe, how_many):
    """For each of the next batches a digest of every bit and of every `source_info`."""
    seen = []
    for _ in range(how_many):
        digest = hashlib.sha256()
        for output in pipe.run():
            host = on_host(output)
            for i in range(len(host)):
                digest.update(np.ascontiguousarray(host.at(i)).tobytes())
                digest.update(output[i].source_info().encode())
        seen.append(digest.hexdigest()[:16])
    return seen


RESUME = (
    """
import base64, hashlib, json, sys
import numpy as np
from reading import Backend, build, on_host

"""
    + inspect.getsource(digests)
    + """
job = json.load(open(sys.argv[1]))
resumed = {}
for position, checkpoint in job["checkpoints"].items():
    settings = job["pipeline"] | {"checkpoint": base64.b64decode(checkpoint)}
    pipe = build(Backend(*job["backend"]), job["path"], pipeline=settings, **job["arguments"])
    resumed[position] = digests(pipe, job["batches"])
print(json.dumps(resumed))
"""
)


@pytest.mark.gpu_where(lambda case: case["name"] in ("shuffled shards", "offsets", "patches"))
@pytest.mark.parametrize(
    "name",
    [
        name if name == "shuffled shards" else pytest.param(name, marks=pytest.mark.full)
        for name in CONFIGURATIONS
    ],
)
def test_another_process(backend, weather, tmp_path, name):
    """From random positions the rest of the epoch and the next two are what the uninterrupted run reads.

    The process that resumes knows the checkpoint and the arguments, without the seed.
    """
    arguments, settings = CONFIGURATIONS[name]
    arguments = {"batch_size": BATCH_SIZE} | arguments
    original = build(backend, weather, pipeline=CHECKPOINTED | settings, **arguments)
    samples = original.reader_meta("reader")["epoch_size"]
    length = reference.batches_per_epoch(samples, arguments.get("num_shards", 1), BATCH_SIZE)
    turn = list(CONFIGURATIONS).index(name)
    share = POSITIONS // (5 if backend is GPU else 1) // len(CONFIGURATIONS) + 1
    drawn = np.random.default_rng(turn).choice(max(4 * length, share), size=share, replace=False)
    checkpoints, uninterrupted = {}, []
    for position in sorted(int(at) for at in drawn):
        uninterrupted += digests(original, position - len(uninterrupted))
        checkpoint = original.checkpoint()
        assert len(state_of(checkpoint)[0]) < MOST_BYTES
        checkpoints[position] = base64.b64encode(checkpoint).decode()
    compared = 3 * length
    uninterrupted += digests(original, max(checkpoints) + compared - len(uninterrupted))
    assert uninterrupted == digests(
        build(backend, weather, pipeline=settings, **arguments), len(uninterrupted)
    ), "checkpoints disturb the run that they are taken of"
    job = {
        "backend": [backend.device, backend.device_id],
        "path": str(weather),
        "pipeline": CHECKPOINTED | settings,
        "arguments": {key: value for key, value in arguments.items() if key != "seed"},
        "checkpoints": checkpoints,
        "batches": compared,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = run_python(RESUME, tmp_path / "job.json")
    assert done.returncode == 0, done.stderr
    for position, resumed in json.loads(done.stdout).items():
        at = int(position)
        assert resumed == uninterrupted[at : at + compared], position


# --- what is refused ------------------------------------------------------------------------------

REFUSALS = {
    "another array": ({"arrays": ["wind"]}, r"field|wind"),
    "stack": ({"arrays": ["field"], "stack": True}, r"stack"),
    "another window": ({"window": [3]}, r"window"),
    "another stride": ({"stride": [2]}, r"stride"),
    "dilation": ({"dilation": [3]}, r"dilation"),
    "offsets": ({"window": None, "dilation": None, "offsets": [0, 3]}, r"offsets|window"),
    "roi_start": ({"roi_start": [5]}, r"roi_start"),
    "roi_end": ({"roi_end": [80]}, r"roi_end"),
    "exclude": ({"exclude": [13]}, r"exclude"),
    "no shuffle": ({"random_shuffle": False}, r"random_shuffle"),
    "stick_to_shard": ({"stick_to_shard": True}, r"stick_to_shard"),
    "padding": ({"pad_last_batch": True}, r"pad_last_batch"),
    "batch size without padding": ({"batch_size": 5}, r"batch.*7.*5.*pad_last_batch"),
    "shards without padding": ({"num_shards": 2}, r"\b1 .*shard.*\b2\b.*pad_last_batch"),
}
REFUSED_BASE = {
    "arrays": ["field"],
    "window": [2],
    "dilation": [2],
    "random_shuffle": True,
    "seed": 3,
    "batch_size": BATCH_SIZE,
}


def assert_restore_refused(backend, path, checkpoint, word, **arguments):
    with pytest.raises((RuntimeError, ValueError), match=r"checkpoint|position") as caught:
        build(backend, path, pipeline=CHECKPOINTED | {"checkpoint": checkpoint}, **arguments)
    assert re.search(word, str(caught.value)), str(caught.value)


@pytest.fixture
def checkpoint(backend, weather):
    """Of the third batch of a reader with the arguments above."""
    pipe = build(backend, weather, pipeline=CHECKPOINTED, **REFUSED_BASE)
    for _ in range(3):
        pipe.run()
    return pipe.checkpoint()


@pytest.mark.gpu_where(lambda case: case["case"] == "another window")
@pytest.mark.parametrize("case", REFUSALS)
def test_other_reader_is_refused(backend, weather, checkpoint, case):
    """The text names what differs."""
    change, word = REFUSALS[case]
    assert_restore_refused(backend, weather, checkpoint, word, **(REFUSED_BASE | change))


@pytest.mark.gpu_where(False)
def test_other_store_is_refused(backend, weather, checkpoint, tmp_path):
    """A store that grew is another data set: its samples have other numbers."""
    write_weather(tmp_path, STEPS + 1)
    assert_restore_refused(
        backend, tmp_path, checkpoint, rf"\b{STEPS - 2}\b.*\b{STEPS - 1}\b", **REFUSED_BASE
    )


@pytest.mark.parametrize("field_chunks", [(5, 3, 4), (1, 6, 8)])
def test_other_chunks_are_refused_where_the_order_depends_on_them(
    backend, weather, checkpoint, tmp_path, field_chunks
):
    """A shuffle keeps chunks together: in a rechunked copy the same state would repeat and drop samples."""
    write_weather(tmp_path, field_chunks=field_chunks)
    word = rf"chunks of \[\[\[4\]\]\].*(of \[\[\[{field_chunks[0]}\]\]\]|belongs to one sample)"
    assert_restore_refused(backend, tmp_path, checkpoint, word, **REFUSED_BASE)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("change", "field_chunks"), [({}, (4, 6, 8)), ({"random_shuffle": False}, (5, 3, 4))]
)
def test_chunks_that_the_order_does_not_depend_on_may_change(
    backend, weather, tmp_path, change, field_chunks
):
    """Chunks along dimensions that belong whole to every sample; all chunks where samples come in order."""
    arguments = REFUSED_BASE | change
    pipe = build(backend, weather, pipeline=CHECKPOINTED, **arguments)
    for _ in range(3):
        pipe.run()
    settings = CHECKPOINTED | {"checkpoint": pipe.checkpoint()}
    write_weather(tmp_path, field_chunks=field_chunks)
    again = build(backend, tmp_path, pipeline=settings, **arguments)
    assert names_of(again, tmp_path, 30) == names_of(pipe, weather, 30)


@pytest.mark.gpu_where(False)
def test_another_order_of_samples_is_refused(backend, weather, checkpoint):
    """A state of a release whose sampler draws another order says so."""
    assert b'"sampler":2' in checkpoint
    other = checkpoint.replace(b'"sampler":2', b'"sampler":7')
    assert_restore_refused(backend, weather, other, r"sampler=7.*\b2\b", **REFUSED_BASE)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("version", [1, 2, 9])
def test_other_version_is_refused(backend, weather, checkpoint, version):
    """A checkpoint of another release says which version it has and which one is known."""
    assert b'"version":3' in checkpoint
    other = checkpoint.replace(b'"version":3', b'"version":%d' % version)
    assert_restore_refused(backend, weather, other, rf"version.*\b{version}\b.*\b3\b", **REFUSED_BASE)
    build(backend, weather, pipeline=CHECKPOINTED | {"checkpoint": checkpoint}, **REFUSED_BASE)


@pytest.mark.gpu_where(False)
def test_state_that_is_damaged_is_refused(backend, weather, checkpoint):
    """Not JSON, or JSON of something else: an error that names the checkpoint, no crash and no start anew."""
    for old, new in (
        (b'"version"', b'"virsion"'),
        (b'{"version"', b'["version"'),
        (b'"seed":3', b'"seed":x'),
        (b'"epoch":', b'"epoch"-'),
        (b'"batch":', b'"batsh":'),
    ):
        assert old in checkpoint
        assert_restore_refused(
            backend, weather, checkpoint.replace(old, new, 1), "checkpoint|position", **REFUSED_BASE
        )


def names_of(pipe, path, how_many):
    """Where each sample of the next batches comes from, without the store's folder."""
    outputs = [pipe.run()[0] for _ in range(how_many)]
    return [[out[i].source_info().removeprefix(str(path)) for i in range(len(out))] for out in outputs]


@pytest.mark.gpu_where(lambda case: "decode" in case["change"])
@pytest.mark.parametrize(
    "change",
    [
        {"num_io_threads": 1},
        {"prefetch_queue_depth": 6},
        {"lazy_init": True},
        {"decode": "cpu"},
        {"seed": 4},
        {"initial_fill": 20},
        {"host_memory_budget": 1 << 24},
        {},
    ],
    ids=lambda change: next(iter(change), "copied"),
)
def test_what_may_change(backend, weather, checkpoint, tmp_path, change):
    """How a store is read and where it lies do not matter; seed and buffer are the checkpoint's."""
    settings = CHECKPOINTED | {"checkpoint": checkpoint}
    path = weather if change else shutil.copytree(weather, tmp_path / "copy.zarr")
    expected = build(backend, weather, pipeline=settings, **REFUSED_BASE)
    pipe = build(backend, path, pipeline=settings, **(REFUSED_BASE | change))
    assert names_of(pipe, path, 30) == names_of(expected, weather, 30)


# --- another number of reader shards --------------------------------------------------------------


def cut(count, parts):
    """Sizes of the parts that `count` samples are cut into."""
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]


class Epoch:
    """What is left of an epoch that several configurations read one after the other, in numbers."""

    def __init__(self, samples):
        self.rest = samples

    def length(self, num_shards, batch_size):
        """Batches until the end, for each shard."""
        return math.ceil(math.ceil(self.rest / num_shards) / batch_size)

    def valid(self, number, part, num_shards, batch_size):
        """How many samples of a batch of a part are no repeats."""
        return min(max(cut(self.rest, num_shards)[part] - number * batch_size, 0), batch_size)

    def advance(self, batches, num_shards, batch_size):
        self.rest = sum(max(0, size - batches * batch_size) for size in cut(self.rest, num_shards))


def part_of(shard_id, epoch, num_shards, stick):
    return shard_id if stick else (shard_id + epoch) % num_shards


def read_segment(pipes, epoch, number, batches, batch_size, stick):
    """The valid samples of the next batches of all shards; what follows in a batch repeats the last one."""
    read = []
    for shard_id, pipe in enumerate(pipes):
        part = part_of(shard_id, number, len(pipes), stick)
        for at, batch in enumerate(names_of(pipe, "", batches)):
            valid = epoch.valid(at, part, len(pipes), batch_size)
            read += batch[:valid]
            assert len(batch) == batch_size
            assert len(set(batch[max(valid - 1, 0) :])) == 1, "what pads a batch is its last sample"
    return read


def chains(how_many):
    """Random (first epoch, segments of (shards, batch size, batches), last shards and batch size)."""
    rng = np.random.default_rng(11)
    for _ in range(how_many):
        segments = [
            (int(rng.integers(1, 7)), int(rng.integers(1, 9)), int(rng.integers(0, 6)))
            for _ in range(rng.integers(1, 4))
        ]
        yield int(rng.integers(0, 4)), segments, (int(rng.integers(1, 7)), int(rng.integers(1, 9)))


CHAINS = [
    (0, [(2, 4, 3)], (3, 4)),
    (1, [(3, 5, 2), (2, 5, 1)], (4, 3)),
    (2, [(4, 2, 4), (1, 7, 2), (3, 3, 3)], (2, 6)),
    (0, [(1, 80, 1)], (6, 2)),  # fewer samples left than shards, or none
    *chains(12),
]
RESHARDED = {
    "in-order": {"arrays": ["number"]},
    "shuffled": {"arrays": ["number", "field"], "initial_fill": 30, **SHUFFLED},
    "stick": {"arrays": ["field"], "stick_to_shard": True, **SHUFFLED},
    "patches": {"arrays": ["field"], "window": [3, 3, 4], "stride": [5, 3, 4], **SHUFFLED},
}


@pytest.mark.gpu_where(lambda case: case["name"] in ("shuffled", "patches") and case["chain"] == CHAINS[1])
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: f"{chain[0]}-{chain[1]}-{chain[2]}")
@pytest.mark.parametrize("name", RESHARDED)
def test_other_number_of_shards(backend, weather, name, chain):
    """An epoch read by several numbers of shards in turn: every sample once, and the next epoch is regular.

    Every step restores all its shards from one shard's checkpoint of the step before; all shards' are equal.
    """
    first_epoch, segments, last = chain
    arguments = RESHARDED[name]
    stick = arguments.get("stick_to_shard", False)

    def restored(num_shards, batch_size, checkpoint=None):
        return [
            build(
                backend,
                weather,
                pipeline=CHECKPOINTED | {"checkpoint": checkpoint},
                batch_size=batch_size,
                pad_last_batch=True,
                num_shards=num_shards,
                shard_id=shard_id,
                **arguments,
            )
            for shard_id in range(num_shards)
        ]

    num_shards, batch_size, _ = segments[0]
    pipes = restored(num_shards, batch_size)
    samples = pipes[0].reader_meta("reader")["epoch_size"]
    before = first_epoch * Epoch(samples).length(num_shards, batch_size)
    for pipe in pipes:
        run_batches(pipe, before)
    epoch, read, checkpoint = Epoch(samples), [], None
    for num_shards, batch_size, batches in segments:
        if checkpoint:
            pipes = restored(num_shards, batch_size, checkpoint)
        batches = min(batches, epoch.length(num_shards, batch_size))
        read += read_segment(pipes, epoch, first_epoch, batches, batch_size, stick)
        epoch.advance(batches, num_shards, batch_size)
        checkpoint, *others = (pipe.checkpoint() for pipe in pipes)
        text, state = state_of(checkpoint)
        assert len(text) < MOST_BYTES
        # Of readers in order without a seed the seeds differ, and mean nothing.
        assert all(state_of(other)[1] | {"seed": state["seed"]} == state for other in others)
    num_shards, batch_size = last
    pipes = restored(num_shards, batch_size, checkpoint)
    read += read_segment(pipes, epoch, first_epoch, epoch.length(num_shards, batch_size), batch_size, stick)
    whole = {key: value for key, value in arguments.items() if key in ("arrays", "window", "stride")}
    (everything,) = names_of(build(backend, weather, batch_size=samples, **whole), "", 1)
    assert sorted(read) == sorted(everything)
    # The next two epochs are those of a reader that never knew another number of shards.
    following = Epoch(samples).length(num_shards, batch_size)
    for shard_id, pipe in enumerate(pipes):
        regular = build(
            backend,
            weather,
            batch_size=batch_size,
            pad_last_batch=True,
            num_shards=num_shards,
            shard_id=shard_id,
            position=json.dumps({"version": 3, "epoch": first_epoch + 1, "batch": 0}),
            **arguments,
        )
        assert names_of(pipe, "", 2 * following) == names_of(regular, "", 2 * following), shard_id


@pytest.mark.gpu_where(False)
def test_rest_of_an_epoch_in_order(backend, weather):
    """Unshuffled the rest is cut in the order of the samples: numbers worked out by hand.

    90 samples on 2 shards, 3 batches of 5 each: 15..44 and 60..89 are left. On 3 shards these are 20 each.
    """
    shared = {"arrays": ["number"], "batch_size": 5, "pad_last_batch": True}
    first = build(backend, weather, pipeline=CHECKPOINTED, num_shards=2, **shared)
    numbers_of(first, 3)
    left = [*range(15, 45), *range(60, 90)]
    for shard_id in range(3):
        settings = CHECKPOINTED | {"checkpoint": first.checkpoint()}
        pipe = build(backend, weather, pipeline=settings, num_shards=3, shard_id=shard_id, **shared)
        assert sum(numbers_of(pipe, 4), []) == left[20 * shard_id : 20 * shard_id + 20]
        regular = 30 * ((shard_id + 1) % 3)
        assert sum(numbers_of(pipe, 6), []) == list(range(regular, regular + 30))


# --- the argument `position` ----------------------------------------------------------------------


def test_position_is_what_a_checkpoint_holds(backend, weather):
    """`stats` and the checkpoint tell the same position, and the argument starts there, seed included.

    `stats` tells what the reader handed to DALI: with a queue of one that is what the user has.
    """
    arguments = {"arrays": ["number"], "batch_size": 4, "num_shards": 3, "pad_last_batch": True}
    settings = CHECKPOINTED | {"prefetch_queue_depth": 1}
    original = build(backend, weather, pipeline=settings, random_shuffle=True, **arguments)
    numbers_of(original, 11)
    position = zarr_dali.stats(original)["position"]
    assert position == state_of(original.checkpoint())[1]
    assert (position["version"], position["epoch"], position["batch"]) == (3, 1, 3)
    pipe = build(backend, weather, random_shuffle=True, position=json.dumps(position), **arguments)
    assert numbers_of(pipe, 20) == numbers_of(original, 20)


@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
def test_position_of_an_epoch(backend, weather, pad):
    """Epoch and batch alone are enough: the reader's own shards and batch size are meant."""
    reader = {"num_shards": 4, "shard_id": 1, "pad_last_batch": pad}
    length = reference.batches_per_epoch(STEPS, 4, 4)
    position = json.dumps({"version": 3, "epoch": 2 if pad else 0, "batch": 3})
    pipe = build(backend, weather, arrays=["number"], batch_size=4, position=position, **reader)
    skipped = 2 * length + 3 if pad else 3
    assert numbers_of(pipe, 9) == reference.batches(STEPS, 4, skipped + 9, **reader)[skipped:]


@pytest.mark.gpu_where(lambda case: not case["stick"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
def test_checkpoint_behind_a_position(backend, weather, pad, stick):
    """The epoch that `position` names is not forgotten: a checkpoint taken later restores to its order."""
    arguments = {
        "arrays": ["number"],
        "batch_size": 4,
        "num_shards": 3,
        "shard_id": 1,
        "stick_to_shard": stick,
        "pad_last_batch": pad,
        **SHUFFLED,
    }
    position = json.dumps({"version": 3, "epoch": 5 if pad else 0, "batch": 2})
    original = build(backend, weather, pipeline=CHECKPOINTED, position=position, **arguments)
    for batches in (1, 7, 30):
        numbers_of(original, batches)
        settings = CHECKPOINTED | {"checkpoint": original.checkpoint()}
        restored = build(backend, weather, pipeline=settings, **arguments)
        assert numbers_of(restored, 10) == numbers_of(original, 10)


POSITION = {"version": 3, "epoch": 1, "batch": 2}


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "position, words",
    [
        ("{", "JSON"),
        ("[1]", "object"),
        ({"epoch": 1, "batch": 0}, "version"),
        (POSITION | {"version": 2}, "version.*2.*3"),
        ({"version": 3, "batch": 0}, "epoch"),
        ({"version": 3, "epoch": 0}, "batch"),
        (POSITION | {"epoch": -1}, "epoch"),
        (POSITION | {"batch": -1}, "batch"),
        (POSITION | {"batch": 1.5}, "batch"),
        (POSITION | {"num_shards": 0}, "num_shards"),
        (POSITION | {"batch_size": 0}, "batch_size"),
        (POSITION | {"played": [[2, 4]]}, "played"),
        (POSITION | {"played": [[0, 4, 1]]}, "played"),
        (POSITION | {"reader": {"arrays": []}}, "reader|arrays"),
    ],
    ids=lambda value: json.dumps(value).replace(" ", "") if isinstance(value, dict) else value,
)
def test_positions_that_cannot_be_used(backend, weather, position, words):
    text = position if isinstance(position, str) else json.dumps(position)
    with pytest.raises(ValueError, match="position") as caught:
        build(backend, weather, arrays=["number"], batch_size=4, pad_last_batch=True, position=text)
    assert re.search(words, str(caught.value)), str(caught.value)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("change", [{"num_shards": 2}, {"batch_size": 5}, {"played": [[2, 4, 1]]}], ids=str)
def test_positions_of_others_need_padding(backend, weather, change):
    """Without padding batches run on across epochs, so that another cut would lose or repeat samples."""
    text = json.dumps(POSITION | {"num_shards": 1, "batch_size": 4} | change)
    with pytest.raises(ValueError, match="position") as caught:
        build(backend, weather, arrays=["number"], batch_size=4, position=text)
    assert "pad_last_batch" in str(caught.value)
    build(backend, weather, arrays=["number"], batch_size=4, pad_last_batch=True, position=text)


@pytest.mark.gpu
def test_positions_of_the_other_backend(weather):
    """A run goes on from CPU to GPU. Checkpoints of DALI name nodes of one backend, positions do not."""
    arguments = {"arrays": ["number"], "batch_size": 4, "num_shards": 2, "pad_last_batch": True, **SHUFFLED}
    position = json.dumps({"version": 3, "epoch": 1, "batch": 3})
    here, there = (build(backend, weather, position=position, **arguments) for backend in (CPU, GPU))
    assert numbers_of(here, 40) == numbers_of(there, 40)
