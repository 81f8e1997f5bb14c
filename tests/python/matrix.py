"""The combinations that `test_matrix.py` reads.

Every chain of `chains.py` meets at least three data types, and a main one every writer that encodes it, in
both formats. The other axes (dimensions and chunk shapes, byte order, memory order, fill value, separator,
kind of values, windows) turn at a pace of their own, so that neighbouring cases differ in all of them.
Everything about a case follows from its place in the list, and its values from its name.
"""

import zlib
from dataclasses import dataclass
from itertools import count, product
from random import Random

import numpy as np

import writers
from chains import (
    BY_HAND,
    CHAINS,
    COMPLEX,
    FLOATS,
    PLAIN_DTYPES,
    TENSORSTORE,
    WIDENED,
    ZARR_PYTHON,
    ZARRS,
    storage_dtype,
)
from stores import random_values, write_group


@dataclass(frozen=True)
class Layout:
    """Extents of an array, of its read chunks, and of its chunks if these are sharded."""

    shape: tuple
    chunks: tuple
    shards: tuple
    missing: bool = False
    """Every second read chunk, and all of the last sharded ones, hold nothing but the fill value."""


LAYOUTS = {
    "1d-prime": Layout((211,), (37,), (74,)),
    "1d-whole": Layout((199,), (199,), (199,)),
    "1d-one": Layout((1,), (1,), (1,)),
    "1d-missing": Layout((131,), (17,), (51,), missing=True),
    "2d-edge": Layout((13, 29), (5, 7), (10, 14)),
    "2d-whole": Layout((11, 23), (11, 23), (11, 23)),
    "2d-beyond": Layout((6, 5), (8, 9), (16, 9)),
    "2d-ones": Layout((4, 3), (1, 1), (2, 2)),
    "2d-missing": Layout((9, 31), (2, 8), (4, 16), missing=True),
    "3d-edge": Layout((5, 7, 9), (2, 3, 4), (4, 6, 8)),
    "3d-unit": Layout((3, 1, 64), (2, 1, 64), (4, 1, 64)),
    "3d-missing": Layout((6, 8, 10), (2, 4, 5), (4, 8, 5), missing=True),
    "4d-edge": Layout((4, 3, 5, 7), (2, 2, 3, 7), (4, 2, 3, 7)),
    "4d-missing": Layout((3, 4, 6, 5), (1, 2, 3, 5), (2, 4, 3, 5), missing=True),
}
LARGE = {
    "1d-blocks": Layout((40009,), (40009,), (40009,)),
    "2d-blocks": Layout((3, 20011), (2, 20011), (2, 20011)),
}
"""For chunks of several Blosc blocks."""


# --- data types -----------------------------------------------------------------------------------

TIMES = ("datetime64[ns]", "datetime64[10ms]", "timedelta64[s]", "timedelta64[D]")
DTYPES = (*PLAIN_DTYPES, *TIMES, *WIDENED)
NOT_IN_TENSORSTORE = ("float8_e4m3", "float6_e2m3fn", "float6_e3m2fn", "uint2", "uint4")
STORED_BITS = {
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
    "float4_e2m1fn": 4,
    "int2": 2,
    "int4": 4,
    "uint2": 2,
    "uint4": 4,
}


def fill_values(dtype):
    """Fill values of a data type; the first is the usual one."""
    if dtype == "bool":
        return [False, True]
    if dtype in TIMES:
        return ["NaT", 12345]
    if dtype in COMPLEX:
        return [0, complex(1.5, -2), complex(np.nan, -0.0)]
    if dtype in FLOATS:
        return [0.0, np.nan, -0.0, 1.5, -np.inf]
    if dtype in WIDENED:
        return [1, 2] if dtype == "float8_e8m0fnu" else [0, 1]
    limits = np.iinfo(dtype)
    return [0, limits.max, limits.min, 7]


# --- values ---------------------------------------------------------------------------------------


def _random(rng, shape, dtype):
    return random_values(rng, shape, dtype, entropy=1)


def _mixed(rng, shape, dtype):
    return random_values(rng, shape, dtype)


def _smooth(rng, shape, dtype):
    """A random walk of whole numbers, all of them small."""
    if dtype == np.bool_ or dtype.kind in "Mm":
        return _mixed(rng, shape, dtype)
    steps = rng.integers(-2, 3, size=int(np.prod(shape)))
    walk = np.abs(np.cumsum(steps)) % 120
    return walk.reshape(shape).astype(dtype)


def _few(rng, shape, dtype):
    return rng.integers(3, 25, size=shape).astype(dtype)


def _constant(rng, shape, dtype):
    return np.full(shape, random_values(rng, 1, dtype, entropy=1))


def _patchy(rng, shape, dtype):
    """Stretches of noise and of one value, so that of neighbouring blocks one is stored and one is not."""
    noise = random_values(rng, shape, dtype, entropy=1)
    noise.reshape(-1)[: noise.size // 4] = noise.reshape(-1)[0]
    noise.reshape(-1)[noise.size // 2 : -noise.size // 8] = noise.reshape(-1)[-1]
    return noise


VALUES = {
    "mixed": _mixed,
    "random": _random,
    "smooth": _smooth,
    "constant": _constant,
    "patchy": _patchy,
    "few": _few,
}
ANY_VALUES = ("mixed", "smooth", "patchy", "random", "mixed", "constant")


# --- cases ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One array and how it is read."""

    zarr_format: int
    writer: str
    chain: str
    dtype: str
    layout: str
    values: str
    fill_number: int = 0
    endian: str = "little"
    order: str = "C"
    separator: str | None = None
    one_window: bool = False
    """One sample that is the whole array, instead of one per step of the first dimension."""

    @property
    def id(self):
        parts = [f"v{self.zarr_format}", self.writer, self.chain, self.dtype, self.layout, self.values]
        parts += ["big"] * (self.endian == "big") + ["F"] * (self.order == "F")
        parts += [f"fill{self.fill_number}"] * (self.fill_number > 0)
        return "-".join(parts)

    @property
    def extents(self):
        return LAYOUTS.get(self.layout) or LARGE[self.layout]

    @property
    def window(self):
        return list(self.extents.shape) if self.one_window else None

    def describe(self):
        """What is to be written."""
        layout = self.extents
        return writers.Description(
            zarr_format=self.zarr_format,
            chain=CHAINS[self.chain],
            dtype=self.dtype,
            shape=layout.shape,
            chunks=layout.chunks,
            shards=layout.shards,
            endian=self.endian,
            order=self.order,
            fill=writers.scalar(self.dtype, fill_values(self.dtype)[self.fill_number]),
            separator=self.separator,
        )

    def make_values(self, what):
        """The array's values, or its stored bits where NumPy lacks the type."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        layout, dtype = self.extents, storage_dtype(self.dtype)
        if dtype.kind in "cMm":
            # Bits of its parts: two floats, or the integer that a time is; "not a time" among them.
            part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else np.dtype("int64")
            parts = (*layout.shape, dtype.itemsize // part.itemsize)
            values = VALUES[self.values](rng, parts, part).view(dtype)[..., 0]
        else:
            values = VALUES[self.values](rng, layout.shape, dtype)
        if self.dtype in STORED_BITS:
            values = values & ((1 << STORED_BITS[self.dtype]) - 1)
        if layout.missing:
            values = values.copy()
            fill = writers.fill_bits(what) if self.dtype in WIDENED else what.fill
            grid = [range(0, extent, chunk) for extent, chunk in zip(layout.shape, layout.chunks)]
            last = (layout.shape[0] - 1) // layout.shards[0] * layout.shards[0]
            for corner in product(*grid):
                if sum(at // chunk for at, chunk in zip(corner, layout.chunks)) % 2 or corner[0] >= last:
                    box = tuple(slice(at, at + chunk) for at, chunk in zip(corner, layout.chunks))
                    values[box] = fill
        return values

    def write(self, path):
        """Writes the array; returns its values or stored bits."""
        what = self.describe()
        values = self.make_values(what)
        writers.write(self.writer, path, values, what)
        return values


def as_read(values, dtype):
    """Values or stored bits as the reader hands them out."""
    if dtype in COMPLEX:
        return np.ascontiguousarray(values).view(f"f{values.dtype.itemsize // 2}").reshape(*values.shape, 2)
    if dtype in TIMES:
        return values.view("int64")
    if dtype in WIDENED:
        return values.view(writers.narrow_type(dtype)).astype(WIDENED[dtype])
    return values


def _case(number, chain, place, dtype, layouts):
    """The case of that number; everything that is not given turns with it."""
    random = Random(number)
    zarr_format, writer = place
    names = [name for name in layouts if len((LAYOUTS | LARGE)[name].shape) in chain.ndims]
    layout = names[number % len(names)]
    extents = (LAYOUTS | LARGE)[layout]
    # zarrs' pipeline takes only C-ordered chunks from zarr-python.
    may_be_column_major = zarr_format == 2 and len(extents.shape) > 1 and writer != ZARRS
    special = dtype in WIDENED
    has_order = storage_dtype(dtype).itemsize > 1 and not chain.serializer
    may_be_big = has_order and zarr_format not in chain.little_only
    return Case(
        zarr_format=zarr_format,
        writer=writer,
        chain=chain.name,
        dtype=dtype,
        layout=layout,
        values=chain.values or ("random" if special else random.choice(ANY_VALUES)),
        fill_number=random.randrange(len(fill_values(dtype))) if extents.missing else 0,
        endian="big" if random.random() < 0.35 and may_be_big else "little",
        order="F" if may_be_column_major and random.random() < 0.5 else "C",
        separator=random.choice([None, "/", "."]),
        one_window=len(extents.shape) == 1 or random.random() < 0.25,
    )


MAIN = ("raw", "zstd", "gzip", "zlib", "bz2", "lz4", "snappy", "sharded")
"""Chains whose names begin so are main ones, and so are Blosc's at their default parameters."""


def _is_main(chain):
    return chain.name.startswith(MAIN) or (chain.name.startswith("blosc") and chain.name.count(".") == 2)


def _cases():
    numbers = count()
    dtypes = count()
    for chain in CHAINS.values():
        places = chain.places()
        turn = next(dtypes)
        for i in range(max(3, len(places) if _is_main(chain) else 0)):
            dtype = chain.dtypes[(3 * turn + i) % len(chain.dtypes)]
            layouts = LARGE if chain.blocks else LAYOUTS
            yield _case(next(numbers), chain, places[(turn + i) % len(places)], dtype, layouts)
    for i, dtype in enumerate((*TIMES, *WIDENED)):
        names = (
            "raw",
            "zstd.3",
            "gzip.5",
            "blosc.lz4.shuffle",
            "sharded.end.zstd.3",
            "sharded.start.blosc.zstd.bitshuffle",
        )
        for j, name in enumerate(names):
            if dtype in TIMES:
                place = ((2, 3)[j % 2] if "sharded" not in name else 3, ZARR_PYTHON)
            elif dtype in NOT_IN_TENSORSTORE or (i + j) % 3 == 0:
                place = (3, BY_HAND)
            else:
                place = (3, TENSORSTORE)
            yield _case(next(numbers), CHAINS[name], place, dtype, LAYOUTS)


CASES = tuple(_cases())


# --- CF attributes --------------------------------------------------------------------------------

CF_ATTRIBUTES = {
    "scaled": {"scale_factor": 0.01, "add_offset": 273.15},
    "scaled-by-a-power": {"scale_factor": 0.5},
    "moved": {"add_offset": -20.0},
    "masked": {"missing_value": 7},
    "scaled-and-masked": {"scale_factor": 0.1, "add_offset": 5.0, "missing_value": 9},
}
CF_CHAINS = (
    "raw",
    "zstd.3",
    "gzip.5",
    "blosc.lz4.shuffle",
    "blosc.zstd.bitshuffle",
    "transpose-zstd",
    "sharded.end.zstd.3",
    "sharded.start.blosc.blosclz.shuffle",
)
CF_DTYPES = ("int16", "uint8", "float32", "int32", "uint16", "float64", "int8")


@dataclass(frozen=True)
class CfCase:
    """An array with CF attributes in a group of its own."""

    zarr_format: int
    chain: str
    dtype: str
    attributes: str
    endian: str

    @property
    def id(self):
        return f"v{self.zarr_format}-{self.chain}-{self.dtype}-{self.attributes}-{self.endian}"

    def write(self, path):
        """Writes the array `a`, with missing chunks."""
        layout = LAYOUTS["3d-missing"]
        names = ["time", "y", "x"]
        v2 = self.zarr_format == 2
        what = writers.Description(
            zarr_format=self.zarr_format,
            chain=CHAINS[self.chain],
            dtype=self.dtype,
            shape=layout.shape,
            chunks=layout.chunks,
            shards=layout.shards,
            endian=self.endian,
            fill=writers.scalar(self.dtype, 3),
            attributes=CF_ATTRIBUTES[self.attributes] | ({"_ARRAY_DIMENSIONS": names} if v2 else {}),
            dimension_names=None if v2 else tuple(names),
        )
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        values = rng.integers(0, 40, layout.shape).astype(self.dtype)
        values[:, :4, :5] = what.fill
        write_group(path, self.zarr_format)
        writers.write(ZARR_PYTHON, path / "a", values, what)


CF_CASES = tuple(
    CfCase(
        zarr_format=3 if "sharded" in chain or "transpose" in chain else 2 + (i + j) % 2,
        chain=chain,
        dtype=CF_DTYPES[(2 * i + j) % len(CF_DTYPES)],
        attributes=attributes,
        endian=("little", "big")[(i + j) % 3 == 0],
    )
    for i, chain in enumerate(CF_CHAINS)
    for j, attributes in enumerate(CF_ATTRIBUTES)
)


# --- what does not pass yet -----------------------------------------------------------------------

PENDING = {
    "numcodecs.blosc of format 3 is not known": lambda case: case.chain == "numcodecs.blosc",
    "delta of float16 is not known": lambda case: "delta" in case.chain and case.dtype == "float16",
}
"""Why some cases fail, for the cases that do."""


def pending(case):
    """Why the case fails; None where it has to pass."""
    return next((reason for reason, of in PENDING.items() if of(case)), None)
