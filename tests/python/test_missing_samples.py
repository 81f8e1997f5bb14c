"""`missing_chunks="skip"`: samples that touch a missing chunk are left out.

What is expected is made with numpy: a sample is left out if one of its elements lies in a missing chunk.
"""

import itertools
import json
import shutil
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pytest

import zarr_dali
from range_server import serving
from reading import assert_same_bits, build, read_all, run_batches
from stores import FORMATS, read_array, write_array, write_group

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

import zarr

SHAPE, NAMES = (24, 10, 12), ("time", "y", "x")


def write(path, missing, chunks=(5, 4, 6), shards=None, name="a"):
    """An array in a folder, or another store of zarr-python, whose chunks at `missing` are not there; which
    elements are."""
    values = np.random.default_rng(7).random(SHAPE, "float32") + 1
    # Whoever compares reads what is there of it, so that nothing is written where chunks are missing.
    there = np.ones(SHAPE, bool)
    for cell in missing:
        there[tuple(slice(c * n, (c + 1) * n) for c, n in zip(cell, chunks, strict=True))] = False
    group = zarr.open_group(path, mode="a")
    array = group.create_array(
        name,
        shape=SHAPE,
        chunks=chunks,
        shards=shards,
        dtype="float32",
        fill_value=0,
        dimension_names=NAMES,
        config={"write_empty_chunks": False},
    )
    array[...] = np.where(there, values, 0)
    return there


def cells(chunks=(5, 4, 6)):
    return list(itertools.product(*(range(-(-n // c)) for n, c in zip(SHAPE, chunks, strict=True))))


def left(there, window, stride, offsets=None):
    """The indices of the samples that have all their elements."""
    steps = [np.arange(n) for n in window]
    if offsets is not None:
        steps[0] = np.array(offsets) - min(offsets)
    first = -min(offsets) if offsets is not None and min(offsets) < 0 else 0
    ends = [n - steps[d].max() for d, n in zip(range(len(window)), there.shape, strict=False)]
    found = []
    for start in itertools.product(*(range(0, end, s) for end, s in zip(ends, stride, strict=True))):
        place = np.ix_(*(s + steps[d] for d, s in enumerate(start)))
        if there[place].all():
            found.append([start[0] + first, *start[1:]])
    return found


def indices_of(backend, path, **arguments):
    """The indices of all samples, and their values."""
    path = [str(one) for one in path] if isinstance(path, list) else str(path)
    values, indices = read_all(
        backend, path, arrays=["a"], return_index=True, missing_chunks="skip", **arguments
    )
    return [np.atleast_1d(index).tolist() for index in indices], values


@pytest.mark.parametrize("seed", range(6))
def test_samples_are_those_without_a_missing_chunk(backend, tmp_path, seed):
    draw = np.random.default_rng(seed)
    chunks = [(5, 4, 6), (1, 10, 12), (3, 5, 4)][seed % 3]
    all_cells = cells(chunks)
    missing = [all_cells[i] for i in draw.choice(len(all_cells), 1 + len(all_cells) // 10, replace=False)]
    shards = tuple(c * n for c, n in zip(chunks, (2, 1, 1), strict=True)) if seed >= 3 else None
    there = write(tmp_path / "a.zarr", missing, chunks, shards)
    whole = read_array(tmp_path / "a.zarr", "a")
    window = [int(draw.integers(1, 4)), int(draw.integers(1, 5))][: 1 + seed % 2]
    stride = [int(draw.integers(1, 3)) for _ in window]
    expected = left(there, window, stride)
    assert len(expected) > 0
    seen, values = indices_of(backend, tmp_path / "a.zarr", window=window, stride=stride)
    assert seen == expected
    for index, value in zip(seen, values, strict=True):
        place = tuple(slice(i, i + n) for i, n in zip(index, window, strict=True))
        assert_same_bits(value, whole[place])
    shuffled, _ = indices_of(
        backend, tmp_path / "a.zarr", window=window, stride=stride, random_shuffle=True, seed=3
    )
    assert sorted(shuffled) == expected


def test_offsets_and_selections(backend, tmp_path):
    there = write(tmp_path / "a.zarr", [(1, 0, 0), (4, 2, 1)])
    expected = left(there, [3], [1], offsets=[-4, 0, 2])
    seen, _ = indices_of(backend, tmp_path / "a.zarr", offsets=[-4, 0, 2])
    assert seen == expected
    # Only chunks that are selected count.
    seen, _ = indices_of(backend, tmp_path / "a.zarr", select=json.dumps({"y": [[8, 10]]}), window=[2])
    assert seen == left(there[:, 8:], [2], [1])


def test_reader_shards_samples_weights_and_a_mask(backend, tmp_path):
    there = write(tmp_path / "a.zarr", [(1, 0, 0)])
    path = tmp_path / "a.zarr"
    expected = left(there, [2], [1])
    parts = []
    for shard in range(3):
        sharing = {"shard_id": shard, "num_shards": 3, "window": [2], "missing_chunks": "skip"}
        pipe = build(backend, str(path), batch_size=1, arrays=["a"], return_index=True, **sharing)
        count = len(expected) * (shard + 1) // 3 - len(expected) * shard // 3
        parts += [np.atleast_1d(index[0]).tolist() for _, index in run_batches(pipe, count)]
    assert parts == expected
    seen, _ = indices_of(backend, path, window=[2], samples="[0, 7, 4, 20, 5]")
    assert seen == [[i] for i in (0, 7, 4, 20, 5) if [i] in expected]
    weights = [1.0 if i in (0, 6, 15) else 0.0 for i in range(23)]
    seen, _ = indices_of(backend, path, window=[2], weights=json.dumps(weights), random_shuffle=True)
    assert {i for (i,) in seen} == {i for i in (0, 6, 15) if [i] in expected}
    write_array(path, "m", (np.arange(24) >= 12).astype("uint8"), chunks=(24,), dimension_names=NAMES[:1])
    seen, _ = indices_of(backend, path, window=[2], mask="m")
    assert seen == [[i] for (i,) in expected if i >= 11]
    seen, _ = indices_of(backend, path, window=[2], mask="m", samples="[20, 0, 14]")
    assert seen == [[20], [14]]


def test_stores_that_are_joined_or_separate(backend, tmp_path):
    one, two = tmp_path / "1.zarr", tmp_path / "2.zarr"
    there = [write(one, [(0, 0, 0)]), write(two, [(4, 1, 1)])]
    seen, _ = indices_of(backend, [one, two], window=[3])
    assert seen == left(np.concatenate(there), [3], [1])
    seen, _ = indices_of(backend, [one, two], window=[3], join="separate")
    assert seen == [[number, *place] for number, own in enumerate(there) for place in left(own, [3], [1])]


def test_a_loader_resumes_and_states_know_what_is_left(tmp_path):
    there = write(tmp_path / "a.zarr", [(1, 0, 0)])
    arguments = {"window": [2], "return_index": True, "missing_chunks": "skip", "device": "cpu"}
    make = lambda: zarr_dali.Loader(tmp_path / "a.zarr", ["a"], 4, shuffle=True, **arguments)  # noqa: E731
    loader = make()
    expected = left(there, [2], [1])
    epoch = [batch["index"].flatten().tolist() for batch in loader]
    assert sorted(i for batch in epoch for i in batch) == [i for (i,) in expected]
    again = make()
    places = iter(again)
    next(places)
    state = again.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert [batch["index"].flatten().tolist() for batch in resumed] == epoch[1:]
    # Another chunk is gone: other samples, so that the state does not fit.
    shutil.rmtree(tmp_path / "a.zarr" / "a" / "c" / "3")
    with pytest.raises((ValueError, RuntimeError), match="samples"):
        other = make()
        other.load_state_dict(state)
        next(iter(other))


def test_info_counts_what_is_left(tmp_path):
    there = write(tmp_path / "a.zarr", [(1, 0, 0)])
    found = zarr_dali.info(tmp_path / "a.zarr", ["a"], device="cpu", window=[2], missing_chunks="skip")
    assert found.arrays[0].reading.samples == len(left(there, [2], [1]))


def test_nothing_is_left_out_of_a_whole_store(backend, tmp_path):
    there = write(tmp_path / "a.zarr", [])
    seen, _ = indices_of(backend, tmp_path / "a.zarr", window=[2])
    assert seen == left(there, [2], [1])


def test_zip_files_know_what_is_missing(backend, tmp_path):
    there = write(tmp_path / "a.zarr", [(2, 1, 1)])
    with ZipFile(tmp_path / "stored.zip", "w", ZIP_STORED) as made:
        for file in sorted((tmp_path / "a.zarr").rglob("*")):
            if file.is_file():
                made.write(file, file.relative_to(tmp_path / "a.zarr"))
    seen, _ = indices_of(backend, tmp_path / "stored.zip", window=[2])
    assert seen == left(there, [2], [1])


def test_icechunk_knows_what_is_missing(backend, tmp_path):
    icechunk = pytest.importorskip("icechunk")
    folder = tmp_path / "repository"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    there = write(session.store, [(2, 1, 1), (4, 0, 0)])
    session.commit("written")
    seen, _ = indices_of(backend, folder, window=[2])
    assert seen == left(there, [2], [1])


def test_what_cannot_be_is_refused(tmp_path):
    write_group(tmp_path / "a.zarr")
    write(tmp_path / "a.zarr", cells())

    def refused(**arguments):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            zarr_dali.Loader(
                arguments.pop("path", tmp_path / "a.zarr"),
                arguments.pop("arrays", ["a"]),
                device="cpu",
                window=[2],
                missing_chunks="skip",
                **arguments,
            ).__iter__().__next__()
        return str(caught.value)

    text = refused()
    assert "missing_chunks" in text and "each of 23 samples" in text and "a/c/0/0/0" in text
    write(tmp_path / "b.zarr", [(0, 0, 0)])
    text = refused(path=tmp_path / "b.zarr", samples=[0, 1])
    assert "samples" in text and "none of its 2" in text
    with serving(tmp_path) as server:
        text = refused(path=f"{server.url}/b.zarr")
    assert "missing_chunks" in text and "a request for each chunk" in text and "`exclude`" in text
