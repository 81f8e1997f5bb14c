"""Samples that have foreground in a mask, against NumPy: which they are, and what is kept of it."""

import json
import math
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import zarr_dali
from configurations import draw_sampling
from forked import run_script
from naive import Sampling
from reading import CPU, build, on_host
from stores import write_array, write_group

NAMES = ("t", "z", "y", "x")
SHAPE = (9, 8, 12, 10)


def spots(rng, shape):
    """A mask in which some regions are empty and others are full."""
    mask = np.zeros(shape, "uint16")
    for _ in range(3):
        corner = [int(rng.integers(0, extent)) for extent in shape]
        spot = tuple(slice(at, at + max(2, extent // 2)) for at, extent in zip(corner, shape))
        mask[spot] = rng.integers(1, 9)
    return mask


def fraction(mask, along, sampling, shape, start):
    """The part of a sample's mask that is not 0. `along`: the array's dimension of each one of the mask."""
    indices = sampling.index(shape, start)
    own = [[0] if extent == 1 else indices[d] for extent, d in zip(mask.shape, along)]
    return (mask[np.ix_(*own)] != 0).mean()


def enough(part, least):
    return part >= least if least else part > 0


def kept_starts(backend, store, **arguments):
    """The starts of all samples of an epoch in order."""
    pipe = build(backend, store, arrays=["image"], return_index=True, batch_size=7, **arguments)
    count = pipe.reader_meta("reader")["epoch_size"]
    found = []
    for _ in range(math.ceil(count / 7)):
        index = on_host(pipe.run()[-1])
        found += [tuple(map(int, np.array(index.at(i)))) for i in range(len(index))]
    return found[:count]


@pytest.mark.gpu_where(lambda case: case["seed"] == 0)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("named", [False, True])
def test_samples_with_foreground(backend, tmp_path, seed, named):
    """Random windows over masks of all dimensions, of some of them, and of extents of 1."""
    rng = np.random.default_rng([20261124, seed])
    dimensions = int(rng.integers(1, 5))
    shape, names = SHAPE[4 - dimensions :], NAMES[4 - dimensions :]
    along = list(range(dimensions))
    if dimensions > 1 and rng.random() < 0.5:
        along = sorted(rng.choice(along, int(rng.integers(1, dimensions)), replace=False).tolist())
        if not named:
            along = along if rng.random() < 0.5 else list(range(dimensions))
            along = list(range(dimensions - len(along), dimensions))
    extents = [1 if len(along) > 1 and rng.random() < 0.2 else shape[d] for d in along]
    mask = spots(rng, extents).astype(rng.choice(["uint16", "bool", "int64", "float32"]))
    store = write_group(tmp_path / "images.zarr")
    image = np.arange(math.prod(shape), dtype="int32").reshape(shape)
    chunks = [int(rng.integers(1, extent + 1)) for extent in shape]
    write_array(store, "image", image, chunks=chunks, codec="raw", dimension_names=names if named else None)
    chunks = [int(rng.integers(1, extent + 1)) for extent in mask.shape]
    write_array(
        store, "labels/0", mask, chunks=chunks, codec="raw",
        dimension_names=[names[d] for d in along] if named else None,
    )  # fmt: skip
    tried = 0
    while tried < (12 if backend is CPU else 2):
        sampling = draw_sampling(rng, shape, dimensions)
        starts = sampling.samples(shape)
        if not starts:
            continue
        tried += 1
        least = float(rng.choice([0, 0.05, 0.3, 0.5, 1]))
        expected = [s for s in starts if enough(fraction(mask, along, sampling, shape, s), least)]
        arguments = sampling.arguments() | {"mask": "labels/0", "min_foreground": least}
        what = f"{shape} {extents} {along} {arguments}"
        if expected:
            assert kept_starts(backend, store, **arguments) == expected, what
        else:
            with pytest.raises(ValueError, match=r"mask.*none of the"):
                kept_starts(backend, store, **arguments)


@pytest.fixture
def store(tmp_path):
    """An image of 8 x 40 x 30, a mask with 5 % of foreground in some windows of 20 x 20, and others."""
    path = write_group(tmp_path / "image.zarr")
    rng = np.random.default_rng(3)
    write_array(path, "image", np.arange(8 * 40 * 30).reshape(8, 40, 30).astype("int32"), chunks=(2, 16, 16))
    mask = np.zeros((8, 40, 30), "uint8")
    mask[2:5, 10:14, 0:5] = 7  # 20 of 400 elements
    write_array(path, "labels/0", mask, chunks=(3, 16, 30))
    write_array(path, "nothing", np.zeros((8, 40, 30), "uint8"), chunks=(8, 40, 30))
    write_array(path, "larger", np.ones((8, 40, 31), "uint8"), chunks=(8, 40, 31))
    write_array(path, "random", (rng.random((8, 40, 30)) < 0.3).astype("uint8"), chunks=(3, 7, 11))
    return path


WINDOW = {"window": [1, 20, 20], "stride": [1, 10, 10]}


def test_at_least_five_percent_are_exactly_that(backend, store):
    """20 of 400 are enough for 0.05, which DALI hands on in 32 bits."""
    expected = [(t, y, 0) for t in (2, 3, 4) for y in (0, 10)]
    assert kept_starts(backend, store, mask="labels/0", min_foreground=0.05, **WINDOW) == expected
    with pytest.raises(ValueError, match=r"5.1 %.*none of the 48 samples"):
        kept_starts(backend, store, mask="labels/0", min_foreground=0.051, **WINDOW)


@pytest.mark.gpu_where(False)
def test_masked_samples_in_a_loader(backend, store):
    """Shuffled, over ranks, drawn by weights of all samples, and resumed."""
    sampling = Sampling(window=(1, 20, 20), stride=(1, 10, 10))
    starts = sampling.samples((8, 40, 30))
    kept = [(t, y, 0) for t in (2, 3, 4) for y in (0, 10)]

    def make(rank=0, world_size=1, **arguments):
        return zarr_dali.Loader(
            store, "image", 2, device="cpu", shuffle=True, return_index=True, mask="labels/0",
            min_foreground=0.05, rank=rank, world_size=world_size, **WINDOW, **arguments,
        )  # fmt: skip

    def indices(loader):
        return [tuple(row) for batch in loader for row in batch["index"].tolist()]

    assert len(make()) == 3
    assert sorted(indices(make())) == kept
    seen = Counter(index for rank in range(2) for index in indices(make(rank, 2)))
    assert set(seen) == set(kept) and seen.total() <= len(kept) + 1
    weights = np.array([float(start == (3, 10, 0)) for start in starts])
    assert set(indices(make(weights=weights, samples_per_epoch=5))) == {(3, 10, 0)}
    with pytest.raises(ValueError, match=r"weights.*6 numbers.*48 samples"):
        make(weights=[1] * 6)
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    loader.load_state_dict(state)
    assert indices(again) == indices(loader)
    loader.set_samples(weights=weights)
    # As many draws as there are samples that the mask keeps.
    assert indices(loader) == [(3, 10, 0)] * 6
    with pytest.raises(ValueError, match=r"mask.*samples"):
        loader.set_samples([[0, 0, 0]])


@pytest.mark.gpu_where(False)
def test_what_is_kept_of_a_mask(backend, store, tmp_path):
    """The file counts as long as windows, threshold and the mask's metadata are the same."""
    before = set(Path(store).rglob("*"))
    cache = tmp_path / "kept.mask"

    def read(**arguments):
        arguments = {"mask": "random", "min_foreground": 0.3} | WINDOW | arguments
        return kept_starts(backend, store, mask_cache=str(cache), **arguments)

    whole = np.asarray(zarr_array(store, "random"))

    def expected(least=0.3, stride=(1, 10, 10)):
        sampling = Sampling(window=(1, 20, 20), stride=stride)
        starts = sampling.samples(whole.shape)
        return [s for s in starts if fraction(whole, range(3), sampling, whole.shape, s) >= least]

    assert read() == expected() != []
    made = cache.read_bytes()
    line, _, numbers = made.partition(b"\n")
    assert json.loads(line)["kept"] == len(expected()) == len(numbers) // 8
    # Without the chunks of the mask nothing else than the file can say it.
    files = [path for path in Path(store, "random").rglob("*") if path.is_file()]
    chunks = [path for path in files if path.name not in METADATA]
    for chunk in chunks:
        chunk.rename(chunk.with_name(chunk.name + ".away"))
    assert read() == in_other_process(store, cache) == expected()
    assert cache.read_bytes() == made
    for chunk in chunks:
        chunk.with_name(chunk.name + ".away").rename(chunk)
    # Other windows, another threshold, a damaged file: made anew.
    assert read(stride=[1, 5, 10]) == expected(stride=(1, 5, 10))
    assert read(min_foreground=0.31) == expected(0.31)
    for damage in (cache.read_bytes()[:-3], cache.read_bytes()[:-1] + b"\xff"):
        cache.write_bytes(damage)
        assert in_other_process(store, cache, 0.31) == expected(0.31)
        assert cache.read_bytes()[-8:] != damage[-8:]
    assert set(Path(store).rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.zarr", "kept.mask"]
    # The process has another mask in mind, whose metadata were written again.
    touched = next(path for path in Path(store, "random").iterdir() if path.name in METADATA)
    os.utime(touched, ns=(1, 1))
    assert read() == expected()
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for path, words in [
        (other, "no cache of a mask"),
        (tmp_path / "nowhere" / "kept", "no folder"),
        (Path(store) / "kept", "lies in the store"),
        (tmp_path, "is a folder"),
    ]:
        with pytest.raises(ValueError, match=f"mask_cache.*{words}"):
            kept_starts(backend, store, mask="random", mask_cache=str(path), **WINDOW)
    assert other.read_text() == "mine"


METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup")


def zarr_array(store, name):
    import zarr

    return zarr.open_group(store, mode="r")[name][:]


def in_other_process(store, cache, least=0.3):
    done = run_script(
        """
        import sys
        from test_mask import WINDOW, kept_starts
        from reading import CPU
        arguments = {"mask": "random", "mask_cache": sys.argv[2], "min_foreground": float(sys.argv[3])}
        print(kept_starts(CPU, sys.argv[1], **arguments, **WINDOW))
        """,
        store,
        cache,
        least,
    )
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


@pytest.mark.gpu_where(False)
def test_masks_of_several_stores(backend, tmp_path):
    """Joined to one, or each with its own; a mask without the joined dimension is that of the first store."""
    rng = np.random.default_rng(8)
    paths, masks, fields = [], [], []
    for number, steps in enumerate((5, 4, 7)):
        path = write_group(tmp_path / f"{number}.zarr")
        image = np.arange(steps * 60).reshape(steps, 6, 10).astype("int32")
        mask = (rng.random((steps, 6, 10)) < 0.4).astype("uint8")
        field = (rng.random((6, 10)) < 0.4).astype("uint8")
        for name, values, names in (("image", image, "tyx"), ("mask", mask, "tyx"), ("field", field, "yx")):
            write_array(path, name, values, chunks=(3,) * values.ndim, dimension_names=list(names))
        paths.append(str(path))
        masks.append(mask)
        fields.append(field)
    sampling = Sampling(window=(2, 3, 5))
    arguments = sampling.arguments() | {"min_foreground": 0.5}
    whole = np.concatenate(masks)
    for name, mask, along in (("mask", whole, (0, 1, 2)), ("field", fields[0], (1, 2))):
        starts = sampling.samples(whole.shape)
        expected = [s for s in starts if fraction(mask, along, sampling, whole.shape, s) >= 0.5]
        assert kept_starts(backend, paths, mask=name, **arguments) == expected
    for name, of_stores, along in (("mask", masks, (0, 1, 2)), ("field", fields, (1, 2))):
        expected = []
        for number, (values, own) in enumerate(zip(masks, of_stores)):
            for start in sampling.samples(values.shape):
                if fraction(own, along, sampling, values.shape, start) >= 0.5:
                    expected.append((number, *start))
        assert kept_starts(backend, paths, mask=name, join="separate", **arguments) == expected


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"mask": "nowhere"}, ["mask", "nowhere", "labels/0"]),
        ({"mask": "larger"}, ["mask", "larger", "31", "30"]),
        ({"mask": "nothing"}, ["mask", "nothing", "none of the 48 samples"]),
        ({"mask": "labels/0", "min_foreground": -0.1}, ["min_foreground", "-0.1"]),
        ({"mask": "labels/0", "num_shards": 7, "min_foreground": 0.05}, ["num_shards", "6 sample"]),
    ],
)
def test_masks_that_cannot_be(backend, store, arguments, words):
    with pytest.raises(ValueError) as caught:
        kept_starts(backend, store, **WINDOW, **arguments)
    text = str(caught.value)
    assert all(re.search(word, text) for word in words), text


@pytest.mark.gpu_where(False)
def test_a_mask_beside_a_selection(backend, tmp_path):
    """It counts what is selected, whether a window takes all of that or none is given."""
    path = write_group(tmp_path / "selected.zarr")
    mask = (np.random.default_rng(5).random((9, 12, 4)) < 0.5).astype("uint8")
    for name, values in (("image", mask.astype("float32")), ("mask", mask)):
        write_array(path, name, values, chunks=(2, 5, 4), dimension_names=["t", "y", "x"])
    rows = [1, 2, 3, 8]
    arguments = {"mask": "mask", "min_foreground": 0.5, "select": json.dumps({"y": rows})}
    expected = [(t,) for t in range(9) if mask[t, rows].mean() >= 0.5]
    assert kept_starts(backend, path, window=[1], **arguments) == expected
    assert kept_starts(backend, path, window=[1, 4], **arguments) == [(t, 0) for (t,) in expected]


@pytest.mark.full
@pytest.mark.gpu_where(False)
def test_a_mask_is_read_in_blocks(backend, tmp_path):
    """One that is larger than a block, of 2^24 elements, with windows across the borders of blocks."""
    path = write_group(tmp_path / "large.zarr")
    shape = (6, 3000, 2500)
    rng = np.random.default_rng(0)
    mask = np.kron(rng.random((6, 30, 25)) < 0.3, np.ones((1, 100, 100))).astype("uint8")
    write_array(path, "image", np.zeros(shape, "uint8"), chunks=(1, 1000, 1000))
    write_array(path, "mask", mask, chunks=(1, 512, 512))
    sampling = Sampling(window=(2, 256, 256), stride=(1, 64, 64))
    sums = np.zeros((7, 3001, 2501), "int64")
    sums[1:, 1:, 1:] = mask.cumsum(0, "int64").cumsum(1).cumsum(2)

    def part(start):
        (a, b, c), (d, e, f) = start, np.add(start, (2, 256, 256))
        upper = sums[d, e, f] - sums[d, b, f] - sums[d, e, c] + sums[d, b, c]
        return (upper - (sums[a, e, f] - sums[a, b, f] - sums[a, e, c] + sums[a, b, c])) / (2 * 256 * 256)

    expected = [start for start in sampling.samples(shape) if part(start) >= 0.35]
    arguments = sampling.arguments() | {"mask": "mask", "min_foreground": 0.35, "return_index": True}
    loader = zarr_dali.Loader(path, "image", 256, device="cpu", **arguments)
    assert [tuple(row) for batch in loader for row in batch["index"].tolist()] == expected
