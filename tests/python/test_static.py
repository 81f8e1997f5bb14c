"""Static arrays: a land mask or an orography beside fields that have one dimension more in front.

They are outputs as all others, the same for every sample but for what windows and regions cut out of the
dimensions that they share with the fields, and their chunks are read once however long a reader lives. What
is static is told by dimension names, of Zarr v3 or in xarray's attribute `_ARRAY_DIMENSIONS`, or, where there
are none, by shape.
"""

import re
import shutil

import numpy as np
import pytest
from nvidia.dali import types

import zarr_dali
from counting import settled_stats
from naive import Sampling
from reading import assert_same_bits, build, on_host, read_all, run_batches
from stores import chunk_files, edit_metadata, write_array, write_group

TIME, LAT, LON = "time", "lat", "lon"
SHAPE = (9, 8, 10)
FORMATS_AND_NAMES = [(2, True), (2, False), (3, True), (3, False)]


def values_of(shape, first=0):
    return (np.arange(np.prod(shape)) + first).astype("float32").reshape(shape)


FIELD, MASK, HEIGHTS = values_of(SHAPE), values_of(SHAPE[1:], 5000), values_of(SHAPE[1:], 9000)


@pytest.fixture
def world(cached_store):
    """`world(zarr_format, named)`: a store with t (time, lat, lon) and mask and height (lat, lon)."""

    def get(zarr_format, named):
        def write(path):
            write_group(path, zarr_format)
            options = {"codec": "zstd", "zarr_format": zarr_format, "fill_value": -1}
            names = (TIME, LAT, LON)
            for name, values, chunks in (
                ("t", FIELD, (2, 3, 10)),
                ("mask", MASK, (3, 4)),
                ("height", HEIGHTS, (8, 10)),
            ):
                dimensions = names[-values.ndim :] if named else None
                write_array(path, name, values, chunks=chunks, dimension_names=dimensions, **options)

        return cached_store(f"static-{zarr_format}-{named}", write)

    return get


def static_sample(sampling, whole, start):
    """The part of an array without the first dimension that belongs to the sample with this start."""
    return whole[np.ix_(*sampling.index(SHAPE, start)[1:])]


SAMPLINGS = {
    "steps": Sampling(),
    "windows": Sampling(window=(3,), stride=(2,)),
    "offsets": Sampling(offsets=(-2, 0, 3)),
    "patches": Sampling(window=(2, 4, 5)),
    "overlapping patches": Sampling(window=(1, 3), stride=(4, 1), dilation=(1, 2)),
    "region": Sampling(roi_start=(1, 2, 3), roi_end=(8, 7)),
    "patches in a region": Sampling(window=(2, 2), stride=(2, 3), roi_start=(0, 1, 4), roi_end=(9, 8, 9)),
    "excluded steps": Sampling(window=(2, 4), exclude=(3, 4)),
}


@pytest.mark.gpu_where(lambda case: case["zarr_format"] == 3 or case["case"] == "patches")
@pytest.mark.parametrize("case", SAMPLINGS)
@pytest.mark.parametrize("zarr_format, named", FORMATS_AND_NAMES)
def test_static_outputs(backend, world, zarr_format, named, case):
    """Each sample of a static output is what the sample's window and region cut out of it, wherever it stands
    among the arrays."""
    path, sampling = world(zarr_format, named), SAMPLINGS[case]
    starts = sampling.samples(SHAPE)
    names = {"t": FIELD, "mask": MASK, "height": HEIGHTS}
    for arrays in (["t", "mask"], ["mask", "t", "height"]):
        outputs = read_all(
            backend,
            path,
            arrays=arrays,
            batch_size=max(5, len(starts) // 8),
            return_index=True,
            **sampling.arguments(),
        )
        assert len(outputs) == len(arrays) + 1
        for name, samples in zip(arrays, outputs):
            assert len(samples) == len(starts)
            for sample, start in zip(samples, starts):
                whole = names[name]
                expected = (
                    sampling.values(whole, start) if name == "t" else static_sample(sampling, whole, start)
                )
                assert_same_bits(sample, expected, f"{name} at {start}")
        assert [tuple(index) for index in outputs[-1]] == starts


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("zarr_format, named", [(2, True), (3, False)])
def test_static_chunks_are_read_once(backend, world, tmp_path, zarr_format, named, shuffle):
    """After the first batch nobody needs the files of a static array any more, over several epochs."""
    path = tmp_path / "copy.zarr"
    shutil.copytree(world(zarr_format, named), path)
    pipe = build(
        backend,
        path,
        arrays=["t", "mask", "height"],
        window=[2],
        random_shuffle=shuffle,
        seed=1,
        missing_chunks="error",
        pad_last_batch=True,
    )
    batches = run_batches(pipe, 1)
    for name in ("mask", "height"):
        for file in chunk_files(path / name):
            file.unlink()
    batches += run_batches(pipe, 7)
    for _, masks, heights in batches:
        for mask, height in zip(masks, heights):
            assert_same_bits(mask, MASK)
            assert_same_bits(height, HEIGHTS)
    assert zarr_dali.stats(pipe, "reader")["chunks_missing"] == 0


@pytest.mark.parametrize("case", ["patches", "overlapping patches"])
def test_static_chunks_of_patches_are_counted_once(backend, world, case):
    """Each chunk of the mask is decoded once in many epochs, although no batch holds them all."""
    path, arguments = world(3, True), SAMPLINGS[case].arguments()
    settings = {"random_shuffle": True, "seed": 2, "pad_last_batch": True, "batch_size": 2, **arguments}
    decoded = []
    for arrays in (["t"], ["t", "mask"]):
        pipe = build(backend, path, arrays=arrays, **settings)
        run_batches(pipe, 120)
        decoded.append(settled_stats(pipe)["chunks_decoded"])
    assert decoded[1] - decoded[0] == len(chunk_files(path / "mask"))


def test_names_and_shards_of_static_outputs(backend, world):
    """`source_info` says what was cut out; every reader shard gets the static arrays."""
    path = world(3, True)
    for shard_id in range(3):
        pipe = build(
            backend,
            path,
            arrays=["mask", "t"],
            window=[2, 4],
            num_shards=3,
            shard_id=shard_id,
            batch_size=2,
        )
        mask, field = (on_host(output) for output in pipe.run())
        for i in range(2):
            window = re.fullmatch(rf"{re.escape(str(path))}/t\[\d+:\d+, (.*)\]", field[i].source_info())
            assert mask[i].source_info() == f"{path}/mask[{window.group(1)}]"
            first, end = map(int, window.group(1).split(",")[0].split(":"))
            assert_same_bits(np.array(mask.at(i)), MASK[first:end])


def test_static_arrays_of_other_dimensions(backend, tmp_path):
    """Dimensions are shared by name: fewer of them, one more, or one that has the extent of the first."""
    write_group(tmp_path)
    field, lat = values_of((8, 8, 10)), values_of((8,), 100)
    soil, square = values_of((3, 8, 10), 200), values_of((8, 10), 500)
    arrays = {
        "t": (field, (TIME, LAT, LON)),
        "lat": (lat, (LAT,)),
        "soil": (soil, ("soil", LAT, LON)),
        # The extents alone could be (time, lon) as well.
        "square": (square, (LAT, LON)),
        "hovmoller": (square, (TIME, LON)),
    }
    for name, (values, dimensions) in arrays.items():
        chunks = tuple(-(-extent // 2) for extent in values.shape)
        write_array(tmp_path, name, values, chunks=chunks, dimension_names=dimensions)
    outputs = read_all(backend, tmp_path, arrays=list(arrays), window=[2], batch_size=8)
    for start, (t, *static, moving) in enumerate(zip(*outputs, strict=True)):
        assert_same_bits(t, field[start : start + 2])
        for sample, whole in zip(static, (lat, soil, square), strict=True):
            assert_same_bits(sample, whole)
        assert_same_bits(moving, square[start : start + 2])
    del arrays["hovmoller"]
    sampling = Sampling(window=(1, 4), stride=(3, 2), roi_start=(0, 1, 2), roi_end=(8, 8, 9))
    outputs = read_all(backend, tmp_path, arrays=list(arrays), batch_size=8, **sampling.arguments())
    for (_, at), (_, *static) in zip(sampling.samples((8, 8, 10)), zip(*outputs), strict=True):
        rows, columns = slice(at, at + 4), slice(2, 9)
        for sample, expected in zip(static, (lat[rows], soil[:, rows, columns], square[rows, columns])):
            assert_same_bits(sample, expected)


def test_static_arrays_of_joined_stores(backend, tmp_path):
    """Stores of one year each repeat the mask; it stays as it is and is not joined."""
    for number, rows in enumerate((np.s_[:4], np.s_[4:])):
        path = write_group(tmp_path / f"{number}")
        write_array(path, "t", FIELD[rows], chunks=(3, 8, 5), dimension_names=(TIME, LAT, LON))
        write_array(path, "mask", MASK, chunks=(8, 5), dimension_names=(LAT, LON))
    fields, masks = read_all(backend, f"{tmp_path}/*", arrays=["t", "mask"], window=[3])
    assert len(fields) == len(masks) == 7
    for start, (field, mask) in enumerate(zip(fields, masks)):
        assert_same_bits(field, FIELD[start : start + 3])
        assert_same_bits(mask, MASK)


def test_decoding_and_normalizing(backend, tmp_path):
    """`mask_and_scale` follows each array's own attributes; `mean` and `std` count static arrays, too."""
    write_group(tmp_path)
    packed = np.arange(80, dtype="int16").reshape(8, 10) - 7
    path = write_array(tmp_path, "mask", packed, chunks=(3, 4), dimension_names=(LAT, LON))
    attributes = {"scale_factor": 0.5, "_FillValue": 11}
    edit_metadata(path / "zarr.json", lambda metadata: metadata.update(attributes=attributes))
    write_array(tmp_path, "t", FIELD, chunks=(2, 8, 10), dimension_names=(TIME, LAT, LON))
    fields, masks = read_all(
        backend,
        tmp_path,
        arrays=["t", "mask"],
        window=[2, 4],
        mask_and_scale=True,
        dtype=types.FLOAT,
        mean=[100.0, 4.0],
        std=[2.0, 8.0],
    )
    decoded = np.where(packed == 11, np.float32(np.nan), packed * np.float32(0.5))
    for (at, row), field, mask in zip(Sampling(window=(2, 4)).samples(SHAPE), fields, masks, strict=True):
        rows = slice(row, row + 4)
        np.testing.assert_allclose(field, (FIELD[at : at + 2, rows] - 100) / 2, rtol=1e-6)
        np.testing.assert_allclose(mask, (decoded[rows] - 4) / 8, rtol=1e-6)
        assert field.dtype == mask.dtype == np.float32


def test_static_array_alone(backend, world):
    """Without an array that has more dimensions there is nothing static: rows are samples."""
    (rows,) = read_all(backend, world(3, True), arrays=["mask"])
    assert_same_bits(np.stack(rows), MASK)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "arguments, parts",
    [
        ({"arrays": ["t", "mask"], "stack": True}, ["stack", "t", "mask"]),
        ({"arrays": ["t", "mask"], "mean": [1.0, 2.0, 3.0]}, ["mean", "3", "2"]),
        ({"arrays": ["t", "mask"], "std": [1.0, 2.0, 3.0]}, ["std", "3", "2"]),
        ({"arrays": ["t", "narrow"], "window": [1, 8]}, ["t", "narrow", "lat", "8", "7"]),
        ({"arrays": ["t", "mask"], "window": [1, 9]}, ["window", "9", "8"]),
    ],
)
def test_what_does_not_fit_is_refused(backend, tmp_path, world, arguments, parts):
    """A ValueError when the pipeline is built, which names both sides."""
    path = tmp_path / "copy.zarr"
    shutil.copytree(world(3, True), path)
    write_array(path, "narrow", values_of((7, 10)), chunks=(7, 10), dimension_names=(LAT, LON))
    with pytest.raises(ValueError) as caught:
        build(backend, path, **arguments)
    for part in parts:
        assert re.search(part, str(caught.value)), f"{part!r} is not in: {caught.value}"
