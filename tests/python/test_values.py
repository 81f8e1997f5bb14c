"""What happens to values between chunks and outputs: CF decoding against xarray, `mean`, `std` and `dtype`
against NumPy, and types that DALI does not have against ml_dtypes.

Values that were computed are compared bit for bit but for NaNs, of which only that they are NaNs.
"""

import base64
import json
import struct
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from nvidia.dali import types

import reading
import stores
from reading import assert_same_bits, build, read_all

xarray = pytest.importorskip("xarray")
ml_dtypes = pytest.importorskip("ml_dtypes")

SHAPE, CHUNKS = (5, 4, 6), (2, 4, 4)

DALI_TYPES = {
    "bool": types.BOOL,
    "int8": types.INT8,
    "int16": types.INT16,
    "int32": types.INT32,
    "int64": types.INT64,
    "uint8": types.UINT8,
    "uint16": types.UINT16,
    "uint32": types.UINT32,
    "uint64": types.UINT64,
    "float16": types.FLOAT16,
    "float32": types.FLOAT,
    "float64": types.FLOAT64,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(3 not in stores.FORMATS, reason="xarray here needs zarr-python 3"),
]


def assert_same(actual, expected, what=""):
    """The same type and bits, or NaN in both."""
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    if expected.dtype.kind == "f":
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan, err_msg=what)
        actual, expected = np.where(nan, 0, actual), np.where(nan, 0, expected)
    assert_same_bits(actual, expected, what)


def assert_reads(backend, store, wholes, **arguments):
    """A reader of the arrays that `wholes` names yields their steps. One pipeline for all of them."""
    outputs = read_all(backend, str(store), arrays=list(wholes), **arguments)
    for (name, whole), samples in zip(wholes.items(), outputs):
        assert_same(np.stack(samples), whole, f"{name} {arguments}")


def write(store, name, data, *, zarr_format, attributes, fill_value, missing=False, **options):
    """Writes an array as xarray expects it; with `missing` the first chunk is left out."""
    group = zarr.open_group(store, mode="a", zarr_format=zarr_format)
    if zarr_format == 2:
        attributes = attributes | {"_ARRAY_DIMENSIONS": ["x", "y", "z"]}
        options.setdefault("compressors", None)
    else:
        options["dimension_names"] = ["x", "y", "z"]
    array = group.create_array(
        name,
        shape=data.shape,
        chunks=CHUNKS,
        dtype=data.dtype,
        fill_value=fill_value,
        attributes=attributes,
        **options,
    )
    if missing:
        array[CHUNKS[0] :] = data[CHUNKS[0] :]
        array[: CHUNKS[0], :, CHUNKS[2] :] = data[: CHUNKS[0], :, CHUNKS[2] :]
    else:
        array[:] = data


def by_xarray(store):
    """The values of each array by xarray; None where it cannot decode them or not into numbers."""
    dataset = xarray.open_zarr(
        store, consolidated=False, mask_and_scale=True, decode_times=False, chunks=None
    )

    def numbers(name):
        try:
            values = dataset[name].values
        except Exception:
            return None
        return values if values.dtype.kind in "biuf" else None

    return {name: numbers(name) for name in dataset.variables}


def v3_fill(value, dtype):
    """`_FillValue` as xarray writes it to Zarr v3."""
    if np.dtype(dtype).kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
    return value.item() if hasattr(value, "item") else value


def sample_values(rng, dtype):
    """Random bits, small numbers and one that comes often, which is returned too."""
    dtype = np.dtype(dtype)
    values = stores.random_values(rng, SHAPE, dtype)
    small = rng.integers(0, 100, SHAPE).astype(dtype)
    values = np.where(rng.random(SHAPE) < 0.5, values, small)
    common = values.dtype.type(-7 if dtype.kind in "if" else 1)
    return np.where(rng.random(SHAPE) < 0.2, common, values), common


# Attributes beside the fill value; `{common}` stands for the value that comes often.
ATTRIBUTES = {
    "none": {},
    "scale": {"scale_factor": 0.01},
    "offset": {"add_offset": 273.15},
    "both": {"scale_factor": 0.1, "add_offset": -3.3},
    "integer-offset": {"add_offset": 7},
    "integers": {"scale_factor": 3, "add_offset": -2},
    "integer-and-float": {"scale_factor": 3, "add_offset": 0.1},
    "integer-scale": {"scale_factor": 3},
    "huge-scale": {"scale_factor": 1e300, "add_offset": 1e300},
    "one": {"scale_factor": 1.0, "add_offset": 0.0},
    "lists": {"scale_factor": [0.1], "add_offset": [4.5]},
    "list-offset": {"add_offset": [4.5]},
    "missing": {"missing_value": "{common}"},
    "missing-list": {"missing_value": ["{common}", 3, 5]},
    "missing-float": {"missing_value": 5.0},
    "missing-inexact": {"missing_value": 0.1},
    "missing-far": {"missing_value": 1e20, "scale_factor": 0.5},
    "missing-scaled": {"missing_value": ["{common}", 1], "scale_factor": 0.1, "add_offset": 1.0},
    "missing-nan": {"missing_value": float("nan"), "scale_factor": 0.1},
    "missing-nan-too": {"missing_value": [5, float("nan")], "valid_max": float("inf")},
    "unsigned": {"_Unsigned": "true"},
    "unsigned-scaled": {"_Unsigned": "true", "scale_factor": 0.1},
    "unsigned-missing": {"_Unsigned": "true", "missing_value": 4},
    "signed": {"_Unsigned": "false"},
    "signed-both": {"_Unsigned": "false", "scale_factor": 0.1, "add_offset": 1.0},
    "signed-other": {"_Unsigned": "perhaps"},
    "time": {"units": "hours since 1900-01-01", "scale_factor": 0.5},
    "bool": {"dtype": "bool"},
    "bool-scaled": {"dtype": "bool", "scale_factor": 0.5},
}
FILLS = ("none", "common", "nan", "zero")


def cf_cases(dtype, zarr_format, common):
    """(name, attributes, fill value of the array) of every case that can be written."""
    kind = np.dtype(dtype).kind
    for fill in FILLS:
        if (fill == "nan" and kind != "f") or (fill == "zero" and zarr_format == 3):
            continue
        value = {"none": None, "common": common, "nan": np.dtype(dtype).type("nan") if kind == "f" else None}
        value = value.get(fill, np.dtype(dtype).type(0))
        for name, attributes in ATTRIBUTES.items():
            text = json.dumps(attributes).replace('"{common}"', json.dumps(common.item()))
            attributes = json.loads(text)
            if zarr_format == 3 and value is not None:
                attributes["_FillValue"] = v3_fill(value, dtype)
            # Of v3 arrays the fill value is another matter; xarray does not mask it.
            yield f"{fill}-{name}", attributes, value if zarr_format == 2 else np.dtype(dtype).type(3)


def is_refused(name, dtype):
    """What xarray decodes and we refuse: products in int64 that may overflow, or of numbers whose fractions
    are cut off, and bools that become objects on their way to bools."""
    if dtype == "bool":
        return name.endswith("-bool") and not name.startswith("none")
    is_float = np.dtype(dtype).kind == "f"
    kind = "none-integer-scale" if is_float else "-integer-scale"
    return name.endswith(kind) and (is_float or np.dtype(dtype).itemsize == 8)


@pytest.mark.parametrize("zarr_format", [pytest.param(2, marks=pytest.mark.full), 3])
@pytest.mark.parametrize(
    "dtype",
    [
        dtype if dtype == "float32" else pytest.param(dtype, marks=pytest.mark.full)
        for dtype in (*stores.INTEGERS, *stores.FLOATS, "bool")
    ],
)
def test_cf_decoding_is_that_of_xarray(backend, cached_store, tmp_path, rng, dtype, zarr_format):
    values, common = sample_values(rng, dtype)
    cases = list(cf_cases(dtype, zarr_format, common))

    def fill(store):
        for name, attributes, fill_value in cases:
            missing = fill_value is not None
            write(
                store,
                name,
                values,
                zarr_format=zarr_format,
                attributes=attributes,
                fill_value=fill_value,
                missing=missing,
            )

    store = cached_store(("cf", dtype, zarr_format), fill)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        decoded = by_xarray(store)
    assert decoded.keys() == {name for name, *_ in cases}
    wholes = {
        name: whole for name, whole in decoded.items() if whole is not None and not is_refused(name, dtype)
    }
    assert len(wholes) > len(cases) / 3
    assert_reads(backend, store, wholes, mask_and_scale=True)
    if backend == reading.CPU:
        for name in decoded.keys() - wholes.keys():
            with pytest.raises(ValueError, match=r"argument `mask_and_scale`: array .* its .*; "):
                build(backend, str(store), arrays=[name], mask_and_scale=True)


@pytest.mark.parametrize("form", ("big-endian", "sharded", "zstd", "transposed"))
@pytest.mark.parametrize("dtype", ("int16", "uint8", "float32"))
def test_cf_decoding_of_any_chain(backend, tmp_path, rng, dtype, form):
    values, common = sample_values(rng, dtype)
    options = {
        "big-endian": {"serializer": stores.BytesCodec(endian="big"), "compressors": None},
        "sharded": {"shards": (4, 4, 8)},
        "zstd": {"compressors": stores.ZstdCodec()},
        "transposed": {"filters": stores.TransposeCodec(order=(2, 0, 1))},
    }[form]
    attributes = {"scale_factor": 0.1, "add_offset": 3.0, "_FillValue": v3_fill(common, dtype)}
    write(
        tmp_path,
        "a",
        values,
        zarr_format=3,
        attributes=attributes,
        fill_value=common,
        missing=True,
        **options,
    )
    assert_reads(backend, tmp_path, by_xarray(tmp_path), mask_and_scale=True)


def test_without_mask_and_scale_attributes_change_nothing(backend, tmp_path, rng):
    values, common = sample_values(rng, "int16")
    write(
        tmp_path,
        "a",
        values,
        zarr_format=2,
        attributes={"scale_factor": 0.1, "missing_value": common.item()},
        fill_value=common,
    )
    assert_reads(backend, tmp_path, {"a": values})


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"scale_factor": "0.1"}, 'attribute "scale_factor"'),
        ({"add_offset": [1.0, 2.0]}, 'attribute "add_offset"'),
        ({"scale_factor": None}, 'attribute "scale_factor"'),
        ({"missing_value": "none"}, 'attribute "missing_value"'),
        ({"missing_value": list(range(40))}, 'attribute "missing_value"'),
        ({"_FillValue": "AAAA"}, 'attribute "_FillValue"'),
        ({"_FillValue": [1, 2]}, 'attribute "_FillValue"'),
    ],
)
def test_attributes_that_cannot_be_used_are_named(backend, tmp_path, attributes, named):
    data = np.zeros(SHAPE, "float32")
    write(tmp_path, "a", data, zarr_format=3, attributes=attributes, fill_value=0)
    build(backend, str(tmp_path), arrays=["a"])
    with pytest.raises(ValueError, match=rf'argument `mask_and_scale`: array "a" .*{named}'):
        build(backend, str(tmp_path), arrays=["a"], mask_and_scale=True)


def test_plain_fill_values_of_zarr_v3_floats_are_understood(backend, tmp_path):
    """Writers other than xarray write numbers, which xarray itself cannot read."""
    data = np.arange(120, dtype="float32").reshape(SHAPE)
    write(tmp_path, "a", data, zarr_format=3, attributes={"_FillValue": 7.0}, fill_value=0)
    whole = np.where(data == 7, np.float32("nan"), data)
    assert_reads(backend, tmp_path, {"a": whole}, mask_and_scale=True)


def test_times_are_left_alone(backend, tmp_path, rng):
    values = rng.integers(-9, 9, SHAPE).astype("datetime64[s]")
    attributes = {"scale_factor": 2.0, "missing_value": 3}
    write(tmp_path, "a", values, zarr_format=2, attributes=attributes, fill_value=np.datetime64(3, "s"))
    assert_reads(backend, tmp_path, {"a": values.view("int64")}, mask_and_scale=True)


def saturated(values, dtype):
    """What the schema says of casts to integers, in exact arithmetic."""
    limits = np.iinfo(dtype)

    def one(value):
        if value != value:
            return 0
        if value in (float("inf"), float("-inf")):
            return limits.max if value > 0 else limits.min
        return min(max(round(value), limits.min), limits.max)

    return np.array([one(value) for value in values.ravel().tolist()], dtype).reshape(values.shape)


def cast(values, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu" and values.dtype != dtype:
        return saturated(values, dtype)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


@pytest.mark.parametrize("output", stores.DTYPES)
def test_casts(backend, cached_store, rng, output):
    arrays = {dtype: sample_values(rng, dtype)[0] for dtype in stores.DTYPES}
    for dtype in stores.FLOATS:
        # Halves, and the borders of the integer types.
        edges = [0.5, 1.5, -2.5, *(sign * 2.0**n for n in (7, 8, 15, 31, 32, 63, 64) for sign in (-1, 1))]
        with np.errstate(all="ignore"):
            arrays[dtype].flat[: len(edges)] = np.array(edges).astype(dtype)

    def fill(store):
        for dtype, values in arrays.items():
            write(store, dtype, values, zarr_format=3, attributes={}, fill_value=values.flat[0])

    store = cached_store("casts", fill)
    wholes = {dtype: cast(values, output) for dtype, values in arrays.items()}
    assert_reads(backend, store, wholes, dtype=DALI_TYPES[output])


def normalized(values, mean, std):
    single = values.dtype.kind == "b" or values.dtype.itemsize <= (4 if values.dtype.kind == "f" else 2)
    compute = np.float32 if single else np.float64
    with np.errstate(all="ignore"):
        return (values.astype(compute) - compute(np.float32(mean))) / compute(np.float32(std))


@pytest.mark.parametrize("output", (None, "float16", "float32", "float64", "int16", "uint8"))
def test_normalizing(backend, cached_store, rng, output):
    arrays = {dtype: sample_values(rng, dtype)[0] for dtype in stores.DTYPES}

    def fill(store):
        for dtype, values in arrays.items():
            fill_value = values.flat[0]
            write(store, dtype, values, zarr_format=3, attributes={}, fill_value=fill_value, missing=True)

    store = cached_store(("normalizing",), fill)
    whole = {dtype: zarr.open_array(store, path=dtype)[:] for dtype in arrays}
    chosen = {} if output is None else {"dtype": DALI_TYPES[output]}
    means, stds = [0.1 * n - 0.3 for n in range(len(arrays))], [1.7 + n for n in range(len(arrays))]
    for mean, std in ((means, stds), ([0.7], [3.0]), (means, None), (None, stds)):
        arguments = chosen | ({"mean": mean} if mean else {}) | ({"std": std} if std else {})
        mean = (mean or [0.0]) * len(arrays)
        std = (std or [1.0]) * len(arrays)
        wholes = {}
        for number, (dtype, values) in enumerate(whole.items()):
            values = normalized(values, mean[number], std[number])
            wholes[dtype] = values if output is None else cast(values, output)
        assert_reads(backend, store, wholes, **arguments)


def test_everything_at_once(backend, tmp_path, rng):
    """CF decoding, normalization and cast, in this order, of stacked arrays with missing chunks."""
    for name in ("a", "b"):
        values, common = sample_values(rng, "int16")
        attributes = {"scale_factor": 0.01, "add_offset": 5.0, "_FillValue": common.item()}
        write(
            tmp_path,
            name,
            values,
            zarr_format=3,
            attributes=attributes,
            fill_value=common,
            missing=True,
        )
    decoded = by_xarray(tmp_path)
    wholes = [decoded["a"], decoded["b"]]
    expected = [
        cast(normalized(wholes[0], 1.5, 2.5), "float16"),
        cast(normalized(wholes[1], -1.5, 0.5), "float16"),
    ]
    (samples,) = read_all(
        backend,
        str(tmp_path),
        arrays=["a", "b"],
        stack=True,
        mask_and_scale=True,
        mean=[1.5, -1.5],
        std=[2.5, 0.5],
        dtype=types.FLOAT16,
    )
    assert_same(np.stack(samples), np.stack(expected, axis=1))


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std": 0.0}, r"argument `std`: values cannot be divided by 0"),
        ({"std": [1.0, 2.0]}, r"argument `std`: it has 2 values for 1 array"),
        ({"mean": float("nan")}, r"argument `mean`: NaN is not finite"),
        ({"mean": float("inf")}, r"argument `mean`: inf is not finite"),
        ({"dtype": types.STRING}, r'argument `dtype`: ".*" is no type of numbers'),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(backend, tmp_path, arguments, message):
    write(tmp_path, "a", np.zeros(SHAPE), zarr_format=3, attributes={}, fill_value=0)
    with pytest.raises(ValueError, match=message):
        build(backend, str(tmp_path), arrays=["a"], **arguments)


# Zarr's name, NumPy's type of the stored bytes, the type that it becomes.
WIDENED = {
    "bfloat16": (ml_dtypes.bfloat16, "float32"),
    "float4_e2m1fn": (ml_dtypes.float4_e2m1fn, "float16"),
    "float6_e2m3fn": (ml_dtypes.float6_e2m3fn, "float16"),
    "float6_e3m2fn": (ml_dtypes.float6_e3m2fn, "float16"),
    "float8_e3m4": (ml_dtypes.float8_e3m4, "float16"),
    "float8_e4m3": (ml_dtypes.float8_e4m3, "float16"),
    "float8_e4m3b11fnuz": (ml_dtypes.float8_e4m3b11fnuz, "float16"),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, "float16"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "float16"),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, "float16"),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, "float32"),
    "int2": (ml_dtypes.int2, "int8"),
    "int4": (ml_dtypes.int4, "int8"),
    "uint2": (ml_dtypes.uint2, "uint8"),
    "uint4": (ml_dtypes.uint4, "uint8"),
}


# Those that do not use all of their byte.
BITS = {
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
}


def write_raw(folder, data_type, stored, shape):
    """A Zarr v3 array of one chunk with these bytes."""
    folder.mkdir(parents=True)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0 if "int" in data_type else "0x00" if "float8" in data_type else 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }
    (folder / "zarr.json").write_text(json.dumps(metadata))
    chunk = folder / "c" / "/".join("0" * len(shape))
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(stored)


@pytest.mark.parametrize("output", (None, "float64", "int8"))
def test_types_that_dali_does_not_have(backend, tmp_path, output):
    wholes = {}
    for name, (stored_type, widened) in WIDENED.items():
        shape = [2, 128 if np.dtype(stored_type).itemsize == 1 else 32768]
        codes = np.arange(np.prod(shape), dtype=f"u{np.dtype(stored_type).itemsize}")
        if narrow := BITS.get(name):
            codes %= 1 << narrow
        write_raw(tmp_path / name, name, codes.tobytes(), shape)
        with np.errstate(all="ignore"):
            values = codes.view(stored_type).astype("float64").astype(widened).reshape(shape)
        wholes[name] = values if output is None else cast(values, output)
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    arguments = {} if output is None else {"dtype": DALI_TYPES[output]}
    assert_reads(backend, tmp_path, wholes, **arguments)
    if output is None:
        # bfloat16 is the upper half of a float32, of NaNs too.
        (samples,) = read_all(backend, str(tmp_path), arrays=["bfloat16"])
        upper = np.arange(65536, dtype="uint32").reshape(2, 32768) << 16
        assert_same_bits(np.stack(samples), upper.view("float32"))


@pytest.mark.parametrize(
    "astype", ("int8", "uint8", "int16", "int32", "uint32", "int64", "float32", "float64")
)
@pytest.mark.parametrize("dtype", ("float32", "float64", "int16", "int64", "uint8"))
def test_fixedscaleoffset_is_that_of_numcodecs(backend, tmp_path, rng, dtype, astype):
    names = {}
    for offset, scale in ((0, 1), (5, 10), (1.7, 0.3), (-100.25, 3)):
        name = f"o{offset}s{scale}"
        codec = numcodecs.FixedScaleOffset(offset=offset, scale=scale, dtype=dtype, astype=astype)
        # Encoded numbers that the stored type does not have are garbage.
        least = 6 if astype.startswith("u") else 0
        values = rng.integers(least, 30, SHAPE).astype(dtype)
        write(
            tmp_path,
            name,
            values,
            zarr_format=2,
            attributes={},
            fill_value=np.dtype(dtype).type(77),
            missing=True,
            filters=[codec],
        )
        names[name] = zarr.open_array(tmp_path, path=name)[:]
    assert_reads(backend, tmp_path, names)
    wholes = {name: cast(normalized(values, 2.0, 3.0), "float32") for name, values in names.items()}
    assert_reads(backend, tmp_path, wholes, mean=2.0, std=3.0, dtype=types.FLOAT)
