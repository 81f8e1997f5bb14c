"""Dynamic mode: `ndd.readers.Zarr` against `ndd.readers.Numpy` and against the same reader in a pipeline.

The tests follow DALI's of its readers in dynamic mode: types of batches and samples, epochs of reader shards,
states and checkpoints. That the class is there whichever is imported first is in test_operator.py.
"""

import base64
import gc
import json
import re

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest

import reference
from reading import DALI_2_0, GPU, assert_same_bits, build, run_batches, run_python
from stores import read_array, write_array, write_group

COUNT = 34

needs_states = pytest.mark.skipif(DALI_2_0, reason="DALI 2.0 has no states of readers in dynamic mode")


@pytest.fixture
def store(cached_store):
    """34 steps of: number [], t2m [6, 5], half [3]."""

    def write(path):
        rng = np.random.default_rng(6)
        write_group(path)
        names = ("time", "lat", "lon")
        write_array(path, "number", np.arange(COUNT), chunks=(5,), dimension_names=names[:1])
        t2m = rng.random((COUNT, 6, 5), "float32")
        write_array(path, "t2m", t2m, chunks=(3, 6, 5), dimension_names=names)
        half = rng.random((COUNT, 3)).astype("float16")
        write_array(path, "half", half, chunks=(4, 3), dimension_names=names[:2])
        (path.parent / "files").mkdir()
        for i in range(COUNT):
            np.save(path.parent / "files" / f"{i:03}.npy", np.array([i]))

    return cached_store("dynamic", write)


def make(backend, store, arrays=("number",), **arguments):
    return ndd.readers.Zarr(path=str(store), arrays=list(arrays), device=backend.device, **arguments)


def host(tensor):
    return np.asarray(ndd.as_tensor(tensor, device="cpu"))


def numbers(batches):
    """The sample numbers of batches, or of samples, whose first output is `number`."""
    seen = []
    for first, *_ in batches:
        tensors = first.tensors if isinstance(first, ndd.Batch) else [first]
        seen += [int(np.ravel(host(tensor))[0]) for tensor in tensors]
    return seen


def test_batches(backend, store):
    arrays = {"number": ndd.int64, "t2m": ndd.float32, "half": ndd.float16}
    seen = 0
    for outputs in make(backend, store, arrays).next_epoch(batch_size=4):
        for output, (name, dtype) in zip(outputs, arrays.items(), strict=True):
            whole = read_array(store, name)
            assert isinstance(output, ndd.Batch)
            assert output.batch_size == 4
            assert output.dtype == dtype
            assert output.device == ndd.Device(backend.device)
            assert list(output.shape) == [whole.shape[1:]] * 4
            assert (output.layout or "") == ("HW" if name == "t2m" else "H" if name == "half" else "")
            for i, tensor in enumerate(output.evaluate().tensors):
                assert_same_bits(host(tensor), np.asarray(whole[(seen + i) % COUNT]))
        seen += 4
    assert seen == 36


def test_samples(backend, store):
    whole = read_array(store, "t2m")
    seen = 0
    for number, t2m in make(backend, store, ["number", "t2m"]).next_epoch():
        assert isinstance(number, ndd.Tensor) and isinstance(t2m, ndd.Tensor)
        assert (number.dtype, t2m.dtype) == (ndd.int64, ndd.float32)
        assert number.device == t2m.device == ndd.Device(backend.device)
        assert (number.shape, t2m.shape) == ((), (6, 5))
        assert int(host(number)) == seen
        assert_same_bits(host(t2m), whole[seen])
        seen += 1
    assert seen == COUNT


def test_other_operators_follow(backend, store):
    """Outputs go into arithmetic and into DALI's operators on the reader's device."""
    whole = read_array(store, "t2m")
    for start, (t2m,) in zip(range(0, COUNT, 6), make(backend, store, ["t2m"]).next_epoch(batch_size=6)):
        result = ndd.transpose(t2m * 2, perm=[1, 0])
        assert result.device == ndd.Device(backend.device)
        for i, tensor in enumerate(result.tensors):
            assert_same_bits(host(tensor), whole[(start + i) % COUNT].T * 2)


@pytest.mark.gpu_where(lambda case: case["pad"] and not case["stick"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("pad", [False, True], ids=["run-on", "padded"])
@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
def test_shards(backend, store, stick, pad, batch_size):
    """Eight reader shards over eight epochs: what DALI's numpy reader gives in dynamic mode."""
    shards = 8
    for shard_id in range(shards) if backend is not GPU else (5,):
        reader = {
            "shard_id": shard_id,
            "num_shards": shards,
            "stick_to_shard": stick,
            "pad_last_batch": pad,
        }
        ours = make(backend, store, **reader)
        theirs = ndd.readers.Numpy(
            file_root=str(store.parent / "files"), file_filter="*.npy", device="cpu", **reader
        )
        for epoch in range(shards):
            read = numbers(ours.next_epoch(batch_size=batch_size))
            assert read == numbers(theirs.next_epoch(batch_size=batch_size)), (shard_id, epoch)
            if pad:
                part = shard_id if stick else (shard_id + epoch) % shards
                assert set(read) == set(reference.shard_range(COUNT, shards, part))
        assert ours.get_metadata() == theirs.get_metadata() == reference.meta(COUNT, **reader)


@pytest.mark.parametrize("stick", [False, True], ids=["move", "stick"])
def test_shuffled_shards(backend, store, stick):
    """Every epoch holds every sample once over the shards, in the order that a pipeline has."""
    reader = {"num_shards": 3, "stick_to_shard": stick, "pad_last_batch": True}
    reader |= {"random_shuffle": True, "seed": 12, "initial_fill": 8}
    epochs = [[] for _ in range(3)]
    for shard_id in range(3):
        ours = make(backend, store, shard_id=shard_id, **reader)
        pipe = build(backend, store, arrays=["number"], batch_size=4, shard_id=shard_id, **reader)
        for epoch, seen in enumerate(epochs):
            read = numbers(ours.next_epoch(batch_size=4))
            assert read == [int(n) for (samples,) in run_batches(pipe, 3) for n in samples]
            part = shard_id if stick else (shard_id + epoch) % 3
            seen += read[: len(reference.shard_range(COUNT, 3, part))]
    assert [sorted(seen) for seen in epochs] == [list(range(COUNT))] * 3


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "arguments, named",
    [
        ({"num_shards": 99999}, ["num_shards", "99999", str(COUNT)]),
        ({"arrays": ["t2n"]}, ["t2n", "t2m"]),
        ({"arrays": ["t2m"], "window": [99]}, ["window", "99"]),
        ({"shard_id": 3, "num_shards": 3}, ["shard_id"]),
    ],
    ids=lambda value: json.dumps(value).replace(" ", "") if isinstance(value, dict) else "",
)
def test_errors(backend, store, arguments, named):
    """What cannot be used is said in the words that pipelines use, and the process lives on."""
    with pytest.raises(ValueError) as caught:
        list(make(backend, store, **arguments).next_epoch(batch_size=2))
    for part in named:
        assert re.search(part, str(caught.value)), (part, str(caught.value))
    assert numbers(make(backend, store).next_epoch()) == list(range(COUNT))


def test_damage_is_an_error(backend, tmp_path):
    """A damaged chunk raises where its batch is evaluated, again and again."""
    write_array(tmp_path, "a", np.arange(12.0), chunks=(2,), codec="zstd")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name == "3")
    file.write_bytes(b"damage")
    batches = make(backend, tmp_path, ["a"]).next_epoch(batch_size=2)
    with pytest.raises(RuntimeError, match=r"chunk \[3\]"):
        for (batch,) in batches:
            batch.evaluate()


@pytest.mark.parametrize("mode", list(ndd.EvalMode), ids=lambda mode: mode.name)
def test_evaluation_modes(backend, store, mode):
    with mode:
        reader = make(backend, store, pad_last_batch=True)
        for _ in range(2):
            read = numbers(reader.next_epoch(batch_size=5))
            assert read == [min(i, COUNT - 1) for i in range(35)]


@pytest.mark.skipif(DALI_2_0, reason="dynamic mode of DALI 2.0 captures nothing")
def test_capture(backend, store):
    """Operators captured into a pipeline give the epochs that dynamic mode gives."""

    def epochs(**arguments):
        reader = make(backend, store, ["number", "t2m"], pad_last_batch=True, random_shuffle=True, seed=4)
        seen = []
        for _ in range(3):
            for number, t2m in reader.next_epoch(batch_size=5, **arguments):
                doubled = ndd.cast(t2m * 2, dtype=ndd.float32)
                seen += [(int(host(n)), host(x)) for n, x in zip(number.tensors, doubled.tensors)]
        return seen

    dynamic, captured = epochs(), epochs(capture=True)
    assert [number for number, _ in captured] == [number for number, _ in dynamic]
    for (_, ours), (_, theirs) in zip(captured, dynamic, strict=True):
        assert_same_bits(ours, theirs)


def test_batches_outlive_the_reader(backend, store):
    whole = read_array(store, "t2m")
    reader = make(backend, store, ["t2m"])
    kept = [batch.evaluate() for (batch,) in reader.next_epoch(batch_size=5)]
    del reader
    gc.collect()
    list(make(backend, store, ["t2m"], random_shuffle=True).next_epoch(batch_size=5))
    for number, batch in enumerate(kept):
        for i, tensor in enumerate(batch.tensors):
            assert_same_bits(host(tensor), whole[(5 * number + i) % COUNT])


# --- states ---------------------------------------------------------------------------------------

SHUFFLED = {"random_shuffle": True, "seed": 9, "num_shards": 2, "shard_id": 1, "pad_last_batch": True}


def advanced(backend, store, batches, **arguments):
    """A reader with checkpointing after that many batches of 4, and its epoch in progress."""
    reader = make(backend, store, enable_checkpointing=True, **arguments)
    epoch = reader.next_epoch(batch_size=4)
    for _ in range(batches):
        next(epoch)
    return reader, epoch


@needs_states
@pytest.mark.parametrize("arguments", [{}, SHUFFLED], ids=["in-order", "shuffled"])
def test_state(backend, store, arguments):
    """As object, text and bytes; before the first batch of a reader, and refused after it."""
    with pytest.raises(RuntimeError, match="before its first iteration"):
        make(backend, store, **arguments).get_state()
    with pytest.raises(TypeError, match="ReaderState"):
        make(backend, store, **arguments).set_state(42)
    reader, epoch = advanced(backend, store, 2, **arguments)
    state = reader.get_state()
    with pytest.raises(RuntimeError, match="after iteration has begun"):
        reader.set_state(state)
    assert isinstance(str(state), str)
    assert len(base64.b64decode(str(state))) < 1000
    expected = numbers([next(epoch), next(epoch)])
    for form in (state, str(state), str(state).encode()):
        restored = make(backend, store, **arguments)
        restored.set_state(form)
        batches = restored.next_epoch(batch_size=4)
        assert numbers([next(batches), next(batches)]) == expected


@needs_states
def test_state_of_a_restored_reader(backend, store):
    """A chain of readers, each restored from the one before, reads what one reader does."""
    reader, epoch = advanced(backend, store, 0, **SHUFFLED)
    next(epoch)
    state, expected = reader.get_state(), numbers(epoch)
    for step in range(3):
        reader = make(backend, store, enable_checkpointing=True, **SHUFFLED)
        reader.set_state(state)
        assert numbers([next(reader.next_epoch(batch_size=4))]) == expected[4 * step : 4 * step + 4]
        state = reader.get_state()


@needs_states
def test_state_goes_to_a_pipeline(backend, store):
    """The position in a state is the one that the argument `position` takes."""
    reader, epoch = advanced(backend, store, 2, **SHUFFLED)
    position = base64.b64decode(str(reader.get_state())).decode()
    pipe = build(backend, store, arrays=["number"], batch_size=4, position=position, **SHUFFLED)
    (first,) = run_batches(pipe, 1)
    assert [int(sample) for sample in first[0]] == numbers([next(epoch)])


@needs_states
@pytest.mark.gpu_where(False)
def test_state_of_another_reader_is_refused(backend, store):
    state = advanced(backend, store, 1)[0].get_state()
    for change, word in (
        ({"arrays": ["t2m"]}, "array|t2m"),
        ({"window": [2]}, "window"),
        ({"random_shuffle": True}, "random_shuffle"),
    ):
        restored = make(backend, store, **change)
        restored.set_state(state)
        with pytest.raises((RuntimeError, ValueError), match=word):
            next(restored.next_epoch(batch_size=4))


CHECKPOINT = """
    import sys
    import numpy as np
    import nvidia.dali.experimental.dynamic as ndd
    import zarr_dali

    path, device, payload = sys.argv[1:]
    reader = ndd.readers.Zarr(path=path, arrays=["number"], device=device, random_shuffle=True, seed=1)
    rng = ndd.random.RNG(seed=12345)
    checkpoint = ndd.checkpoint.Checkpoint()
    checkpoint.deserialize(open(payload).read())
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    (number,) = next(reader.next_epoch(batch_size=4))
    print([int(np.asarray(ndd.as_tensor(tensor, device="cpu"))) for tensor in number.tensors])
    print([float(rng()) for _ in range(3)])
"""


@needs_states
@pytest.mark.full
def test_checkpoint(backend, store, tmp_path):
    """Reader and random numbers go on in another process; the reader's own type is in the payload."""
    reader, epoch = advanced(backend, store, 3, random_shuffle=True, seed=1)
    rng = ndd.random.RNG(seed=2024)
    rng()
    checkpoint = ndd.checkpoint.Checkpoint()
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    checkpoint.collect()
    payload = checkpoint.serialize()
    assert json.loads(payload)["states"]["reader"]["type"] == "Zarr"
    expected = [numbers([next(epoch)]), [float(rng()) for _ in range(3)]]
    (tmp_path / "payload").write_text(payload)
    done = run_python(CHECKPOINT, store, backend.device, tmp_path / "payload")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    again = ndd.checkpoint.Checkpoint()
    again.load(checkpoint.save(str(tmp_path / "state_{seq:03d}.json")).replace("000", "{seq:03d}"))
    with pytest.raises(TypeError, match=r"'Zarr'.*'RNG'"):
        again.register(ndd.random.RNG(seed=1), "reader")


@needs_states
def test_checkpoint_registered_before_the_first_batch(backend, store):
    """Registering turns checkpointing on; the state is collected later."""
    reader = make(backend, store, random_shuffle=True, seed=3)
    checkpoint = ndd.checkpoint.Checkpoint()
    checkpoint.register(reader, "reader")
    epoch = reader.next_epoch(batch_size=4)
    next(epoch)
    checkpoint.collect()
    restored, later = make(backend, store, random_shuffle=True, seed=3), ndd.checkpoint.Checkpoint()
    later.deserialize(checkpoint.serialize())
    later.register(restored, "reader")
    assert numbers([next(restored.next_epoch(batch_size=4))]) == numbers([next(epoch)])
