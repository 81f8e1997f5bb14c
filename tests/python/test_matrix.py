"""Stores of every kind that people have, against zarr-python and against what was written, bit for bit.

The axes are in `matrix.py`: format x writer (zarr-python, tensorstore, zarrs, by hand) x codec chain x data
type x dimensions and chunk shapes (edge chunks, missing ones, one element, the whole array, primes) x memory
order x byte order x fill value x key separator x kind of values.
"""

from collections import Counter, defaultdict

import numpy as np
import pytest

import matrix
from chains import CHAINS, COMPLEX, REFUSED, WIDENED, WRITERS, Chain, compressor
from matrix import CASES, DTYPES, as_read
from reading import assert_same_bits, build, read_all
from stores import FORMATS, chunk_files, read_array
from writers import Description, write


def expected(case, path, written):
    """What the reader has to hand out: what was written, and what zarr-python reads."""
    chain = CHAINS[case.chain]
    if case.dtype in WIDENED or not chain.read_by_zarr_python:
        return as_read(written, case.dtype)
    values = read_array(path)
    if not chain.lossy:
        assert_same_bits(as_read(values, case.dtype), as_read(written, case.dtype), "zarr-python reads")
    return as_read(values, case.dtype)


def only_nan(values):
    """Values with one kind of NaN: a narrow NaN says nothing of the bits of a wider one."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def parameter(case):
    reason = matrix.pending(case)
    return pytest.param(case, id=case.id, marks=[pytest.mark.xfail(reason=reason)] if reason else [])


@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_case(backend, cached_store, case):
    written = {}
    path = cached_store(case, lambda at: written.update(values=case.write(at)))
    values = written.get("values")
    if values is None:
        values = case.make_values(case.describe())
    assert_shows(case, path)
    want = expected(case, path, values)
    steps = 1 if case.window else want.shape[0]
    (samples,) = read_all(backend, path, window=case.window, batch_size=steps)
    got = samples[0] if case.window else np.stack(samples)
    if case.dtype in WIDENED and case.dtype != "bfloat16" and want.dtype.kind == "f":
        got, want = only_nan(got), only_nan(want)
    assert_same_bits(got, want, case.id)


def assert_shows(case, path):
    """Every chunk has the feature that its chain is there for."""
    chunks = [file.read_bytes() for file in chunk_files(path)]
    assert all(CHAINS[case.chain].shows(chunk) for chunk in chunks), case.chain


@pytest.mark.parametrize("case", matrix.CF_CASES, ids=lambda case: case.id)
def test_cf_attributes(backend, cached_store, case):
    """Masked and scaled as xarray does it, with its type of values."""
    path = cached_store(case, case.write)
    want = as_xarray_reads(path)
    (samples,) = read_all(backend, path, arrays=["a"], batch_size=want.shape[0], mask_and_scale=True)
    got = np.stack(samples)
    assert got.dtype == want.dtype
    assert_same_bits(only_nan(got), only_nan(want), case.id)


def as_xarray_reads(path):
    xarray = pytest.importorskip("xarray")
    with xarray.open_zarr(
        path, mask_and_scale=True, decode_times=False, consolidated=False, chunks=None
    ) as it:
        return it["a"].values


@pytest.mark.parametrize("array_order, delta_order", ["<>", "><"])
def test_delta_in_another_byte_order(backend, tmp_path, array_order, delta_order):
    """numcodecs adds up the bytes in the filter's own order: read so, or refused."""
    values = 1000 * np.arange(12, dtype="uint64").reshape(3, 4)
    delta = compressor("delta", dtype=f"{delta_order}u8", astype=f"{delta_order}u8")
    chain = Chain("delta", v2_filters=lambda dtype: (delta,))
    endian = "big" if array_order == ">" else "little"
    write(
        "zarr-python", tmp_path / "a", values, Description(2, chain, "uint64", (3, 4), (2, 4), endian=endian)
    )
    assert np.array_equal(read_array(tmp_path / "a"), values)
    try:
        (samples,) = read_all(backend, tmp_path / "a")
    except ValueError as error:
        assert "delta" in str(error)
    else:
        assert_same_bits(np.stack(samples), values)


@pytest.mark.gpu_where(lambda case: case["name"] == "lzma")
@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(backend, tmp_path, name, zarr_format):
    chain = REFUSED[name]
    (dtype,) = chain.dtypes
    values = np.ones((4, 6), dtype)
    write("zarr-python", tmp_path / "a", values, Description(zarr_format, chain, dtype, (4, 6), (2, 3)))
    with pytest.raises(ValueError, match=name) as caught:
        build(backend, tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)


# --- what the matrix holds ------------------------------------------------------------------------


def test_matrix_is_large_enough():
    assert len({case.id for case in CASES}) == len(CASES) >= 400
    dtypes_of = defaultdict(set)
    for case in CASES:
        dtypes_of[case.chain].add(case.dtype)
    assert set(dtypes_of) == set(CHAINS)
    assert {chain for chain, dtypes in dtypes_of.items() if len(dtypes) < 3} == set()
    counts = Counter(case.writer for case in CASES)
    assert all(counts[writer] > 40 for writer in WRITERS), counts
    assert {case.dtype for case in CASES} == set(DTYPES)
    by_dtype = Counter(case.dtype for case in CASES)
    assert min(by_dtype.values()) >= 4, by_dtype


def test_matrix_turns_every_axis():
    def most_common_share(axis):
        counts = Counter(axis(case) for case in CASES)
        return min(counts.values()), len(counts)

    assert most_common_share(lambda case: case.zarr_format)[0] > 150
    assert most_common_share(lambda case: case.endian)[0] > 60
    assert most_common_share(lambda case: case.order)[0] > 40
    assert most_common_share(lambda case: case.separator)[0] > 100
    assert most_common_share(lambda case: len(case.extents.shape))[0] > 50
    assert most_common_share(lambda case: case.layout) >= (10, len(matrix.LAYOUTS) + len(matrix.LARGE))
    fills = {(case.dtype, case.fill_number) for case in CASES if case.extents.missing}
    assert {dtype for dtype, _ in fills} >= {"bool", "int32", "float32", "float64", *COMPLEX}
    assert len(fills) > 40
