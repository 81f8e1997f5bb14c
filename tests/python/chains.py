"""Codec chains as both formats write them down, and which writers can encode them.

`matrix.py` crosses them with data types, shapes and so on; `../damage.py` breaks what they encode.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from stores import (
    crc32c_over,
    gzip_with_fields,
    snappy_encode,
    zstd_frame_without_size,
)

ZARR_PYTHON, TENSORSTORE, ZARRS = "zarr-python", "tensorstore", "zarrs"
BY_HAND = "by-hand"
"""zarr-python writes, and then a function of ours rewrites the chunks: for what no writer at hand encodes."""
WRITERS = (ZARR_PYTHON, TENSORSTORE, ZARRS, BY_HAND)

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
PLAIN_DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
"""What all writers write and NumPy has."""
WIDE_DTYPES = tuple(name for name in PLAIN_DTYPES if np.dtype(name).itemsize > 1)
WIDENED = {
    "bfloat16": "float32",
    "float8_e3m4": "float16",
    "float8_e4m3": "float16",
    "float8_e4m3b11fnuz": "float16",
    "float8_e4m3fnuz": "float16",
    "float8_e5m2": "float16",
    "float8_e5m2fnuz": "float16",
    "float8_e8m0fnu": "float32",
    "float6_e2m3fn": "float16",
    "float6_e3m2fn": "float16",
    "float4_e2m1fn": "float16",
    "int2": "int8",
    "int4": "int8",
    "uint2": "uint8",
    "uint4": "uint8",
}
"""Types that NumPy and DALI lack, and those that they are read as."""


@dataclass(frozen=True)
class Sharding:
    """How the codecs of a chain are used inside `sharding_indexed`."""

    location: str = "end"
    checksum: bool = True
    index_endian: str = "little"
    nested: bool = False
    outer: tuple = ()
    """Bytes-to-bytes codecs over the whole sharded chunk."""


@dataclass(frozen=True)
class Chain:
    """A codec chain in metadata; codecs between arrays are made for a data type and a rank."""

    name: str
    compressors: tuple = ()
    """Bytes-to-bytes codecs of v3."""
    compressor: dict | None = None
    """The one of v2."""
    filters: Callable = lambda dtype, ndim: ()
    """Array-to-array codecs of v3."""
    v2_filters: Callable = lambda dtype: ()
    """The filters of v2; `dtype` has the byte order of the array."""
    typed_compressors: Callable | None = None
    """Bytes-to-bytes codecs of v3 that depend on the data type."""
    serializer: dict | None = None
    """In place of `bytes`."""
    v3: tuple = ()
    """Writers that encode it in format 3."""
    v2: tuple = ()
    little_only: tuple = ()
    """Formats in which numcodecs and zarr-python get big-endian elements wrong."""
    dtypes: tuple = PLAIN_DTYPES
    ndims: tuple = (1, 2, 3, 4)
    values: str | None = None
    """What kind of values it needs, see `matrix.VALUES`; any by default."""
    blocks: bool = False
    """Needs chunks of several blocks to show what it is about."""
    sharding: Sharding | None = None
    lossy: bool = False
    read_by_zarr_python: bool = True
    written_as: str | None = None
    """By hand: the chain that is written first, ..."""
    rewrite: Callable | None = None
    """... and what is then done to each of its chunks."""
    shows: Callable = lambda chunk: True
    """Whether a chunk has the feature that the chain is in the table for."""

    def places(self):
        """(format, writer) pairs."""
        return [(3, writer) for writer in self.v3] + [(2, writer) for writer in self.v2]

    def codecs(self, dtype, ndim, endian="little"):
        """The codecs of format 3, as (array to array, array to bytes, bytes to bytes)."""
        dtype_name, dtype = dtype, storage_dtype(dtype)
        compressors = self.typed_compressors(dtype) if self.typed_compressors else self.compressors
        filters = tuple(self.filters(dtype, ndim))
        serializer = self.serializer or bytes_codec(dtype_name, endian)
        return filters, serializer, tuple(compressors)


def storage_dtype(name):
    """NumPy's type for the stored elements of a data type; of those that it lacks it has the bits."""
    if name == "bfloat16":
        return np.dtype("uint16")
    return np.dtype("uint8" if name in WIDENED else name)


def bytes_codec(dtype, endian):
    return codec("bytes", endian=endian) if storage_dtype(dtype).itemsize > 1 else {"name": "bytes"}


def codec(name, **configuration):
    """A codec of format 3. zarr-python wants a configuration from numcodecs' codecs, even an empty one."""
    if not configuration and not name.startswith("numcodecs."):
        return {"name": name}
    return {"name": name, "configuration": configuration}


def compressor(id, **configuration):
    """A codec of format 2."""
    return {"id": id, **configuration}


ALL = (ZARR_PYTHON, TENSORSTORE, ZARRS)
NOT_TENSORSTORE = (ZARR_PYTHON, ZARRS)


# --- bytes to bytes -------------------------------------------------------------------------------


def zstd_checksummed(frame):
    return bool(frame[4] & 4)


ZSTD = codec("zstd", level=1, checksum=False)
ZSTD_CHAINS = (
    *(
        Chain(
            f"zstd.{level}",
            compressors=(codec("zstd", level=level, checksum=False),),
            compressor=compressor("zstd", level=level),
            v3=ALL,
            v2=ALL,
        )
        for level in (-5, 0, 3, 19, 22)
    ),
    Chain(
        "zstd.3.checksum",
        compressors=(codec("zstd", level=3, checksum=True),),
        compressor=compressor("zstd", level=3, checksum=True),
        v3=ALL,
        v2=(ZARR_PYTHON,),
        shows=zstd_checksummed,
    ),
    *(
        Chain(
            f"zstd.3.{'checksum.' if checksum else ''}no-size",
            compressors=(codec("zstd", level=3, checksum=checksum),),
            compressor=compressor("zstd", level=3, checksum=checksum),
            v3=(BY_HAND,),
            v2=(BY_HAND,),
            rewrite=zstd_frame_without_size,
            shows=lambda frame: frame[4] & 0b1110_0000 == 0,
        )
        for checksum in (False, True)
    ),
    Chain(
        "numcodecs.zstd",
        compressors=(codec("numcodecs.zstd", level=1, checksum=True),),
        v3=(ZARR_PYTHON,),
        shows=zstd_checksummed,
    ),
)


def blosc(cname, shuffle, clevel=5, blocksize=0, typesize=None, **options):
    """The Blosc chain of these parameters; `typesize` is that of the elements if not given, as in v2."""
    named = (
        [f"l{clevel}"] * (clevel != 5)
        + [f"b{blocksize}"] * (blocksize > 0)
        + [f"t{typesize}"] * bool(typesize)
    )
    number = ("noshuffle", "shuffle", "bitshuffle").index(shuffle)
    # The wheels of numcodecs have no snappy in their Blosc.
    writers = tuple(writer for writer in ALL if writer != ZARR_PYTHON or cname != "snappy")
    chain = Chain(
        ".".join(["blosc", cname, shuffle, *named]),
        typed_compressors=lambda dtype: (
            codec(
                "blosc",
                cname=cname,
                shuffle=shuffle,
                clevel=clevel,
                blocksize=blocksize,
                typesize=typesize or dtype.itemsize,
            ),
        ),
        compressor=compressor("blosc", cname=cname, shuffle=number, clevel=clevel, blocksize=blocksize),
        v3=writers,
        v2=writers if typesize is None else (),
        read_by_zarr_python=cname != "snappy",
    )
    return replace(chain, **options)


def blosc_blocksize(chunk):
    return int.from_bytes(chunk[8:12], "little")


def several_blocks(chunk):
    return blosc_blocksize(chunk) < int.from_bytes(chunk[4:8], "little")


CNAMES = ("lz4", "lz4hc", "zstd", "zlib", "snappy", "blosclz")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
BLOSC_CHAINS = (
    *(blosc(cname, shuffle) for cname, shuffle in product(CNAMES, SHUFFLES)),
    # Level 0 stores, level 1 cuts into the smallest blocks, each of them into streams.
    *(
        blosc(cname, SHUFFLES[i % 3], clevel=0, shows=lambda chunk: chunk[2] & 2)
        for i, cname in enumerate(CNAMES)
    ),
    *(
        blosc(cname, shuffle, clevel=1, dtypes=WIDE_DTYPES, blocks=True, shows=several_blocks)
        for cname, shuffle in product(CNAMES, SHUFFLES)
    ),
    *(blosc(cname, SHUFFLES[i % 3], clevel=9) for i, cname in enumerate(CNAMES)),
    # Blocks that are no power of two, the last one shorter, and blocks stored among encoded ones.
    *(
        blosc(
            cname,
            shuffle,
            blocksize=300,
            values="patchy",
            dtypes=WIDE_DTYPES,
            blocks=True,
            shows=several_blocks,
        )
        for cname, shuffle in product(CNAMES, SHUFFLES[1:])
    ),
    # Element sizes that are not those of the array, bytes left over at a block's end.
    *(
        blosc(
            cname,
            SHUFFLES[(i + j) % 3],
            typesize=typesize,
            blocksize=(0, 1001)[i % 2],
            shows=lambda chunk, typesize=typesize: chunk[3] == typesize,
        )
        for i, cname in enumerate(CNAMES)
        for j, typesize in enumerate((1, 3, 7, 16))
    ),
    Chain(
        "numcodecs.blosc",
        compressors=(codec("numcodecs.blosc", cname="lz4", clevel=5, shuffle=1, blocksize=0),),
        v3=(ZARR_PYTHON,),
    ),
)

DEFLATE_CHAINS = (
    *(
        Chain(
            f"gzip.{level}",
            compressors=(codec("gzip", level=level),),
            compressor=compressor("gzip", level=level),
            v3=ALL,
            v2=ALL,
        )
        for level in (0, 1, 5, 9)
    ),
    *(
        Chain(
            f"zlib.{level}",
            compressors=(codec("numcodecs.zlib", level=level),),
            compressor=compressor("zlib", level=level),
            v3=NOT_TENSORSTORE,
            v2=ALL,
        )
        for level in (0, 1, 9)
    ),
    Chain("numcodecs.gzip", compressors=(codec("numcodecs.gzip", level=3),), v3=(ZARR_PYTHON,)),
    Chain(
        "gzip.all-fields",
        compressors=(codec("gzip", level=5),),
        compressor=compressor("gzip", level=5),
        v3=(BY_HAND,),
        v2=(BY_HAND,),
        rewrite=gzip_with_fields,
        shows=lambda member: member[3] == 0b1_1110,
    ),
)

SNAPPY = codec("snappy")
OTHER_CHAINS = (
    Chain("raw", v3=ALL, v2=ALL),
    *(
        Chain(
            f"lz4.{acceleration}",
            compressors=(codec("numcodecs.lz4", acceleration=acceleration),),
            compressor=compressor("lz4", acceleration=acceleration),
            v3=(ZARR_PYTHON,),
            v2=(ZARR_PYTHON,),
        )
        for acceleration in (1, 50)
    ),
    Chain(
        "snappy",
        compressors=(SNAPPY,),
        compressor=compressor("snappy"),
        v3=(BY_HAND,),
        v2=(BY_HAND,),
        written_as="raw",
        rewrite=snappy_encode,
        read_by_zarr_python=False,
    ),
    Chain(
        "bz2.1",
        compressors=(codec("numcodecs.bz2", level=1),),
        compressor=compressor("bz2", level=1),
        v3=NOT_TENSORSTORE,
        v2=ALL,
    ),
    Chain(
        "pcodec",
        serializer=codec("numcodecs.pcodec", level=3, mode_spec="auto"),
        compressor=compressor("pcodec", level=3),
        v3=NOT_TENSORSTORE,
        v2=NOT_TENSORSTORE,
        # What both have, and bytes came to pcodec only lately.
        dtypes=("int16", "int32", "int64", "uint16", "uint32", "uint64", *FLOATS),
    ),
)

# --- checksums ------------------------------------------------------------------------------------

CRC32C = codec("crc32c")
BASES = {
    "raw": ((), ALL),
    "zstd": ((ZSTD,), ALL),
    "blosc.lz4": ((codec("blosc", cname="lz4", shuffle="shuffle", clevel=5, blocksize=0, typesize=4),), ALL),
    "gzip": ((codec("gzip", level=5),), ALL),
    "zlib": ((codec("numcodecs.zlib", level=5),), NOT_TENSORSTORE),
    "lz4": ((codec("numcodecs.lz4", acceleration=1),), (ZARR_PYTHON,)),
}
SUMS = ("fletcher32", "adler32")
CHECKSUM_CHAINS = (
    *(
        Chain(f"{name}-crc32c", compressors=(*codecs, CRC32C), v3=writers)
        for name, (codecs, writers) in BASES.items()
    ),
    Chain(
        "snappy-crc32c",
        compressors=(SNAPPY, CRC32C),
        v3=(BY_HAND,),
        written_as="raw",
        rewrite=lambda chunk: crc32c_over(snappy_encode(chunk)),
        read_by_zarr_python=False,
    ),
    Chain("crc32c-zstd-crc32c", compressors=(CRC32C, ZSTD, CRC32C), v3=ALL),
    *(
        Chain(
            f"{name}",
            compressors=(codec(f"numcodecs.{name}"),),
            v2_filters=lambda dtype, name=name: (compressor(name),),
            v3=(ZARR_PYTHON,),
            v2=(ZARR_PYTHON,),
        )
        for name in SUMS
    ),
    *(
        Chain(
            f"{name}-zstd",
            compressors=(codec(f"numcodecs.{name}"), ZSTD),
            v2_filters=lambda dtype, name=name: (compressor(name),),
            compressor=compressor("zstd", level=1),
            v3=(ZARR_PYTHON,),
            v2=(ZARR_PYTHON,),
        )
        for name in SUMS
    ),
    Chain(
        "fletcher32-gzip-adler32",
        compressors=(codec("numcodecs.fletcher32"), codec("gzip", level=1), codec("numcodecs.adler32")),
        v3=(ZARR_PYTHON,),
    ),
)

# --- filters --------------------------------------------------------------------------------------


def shuffle(dtype):
    return codec("numcodecs.shuffle", elementsize=dtype.itemsize)


def v2_shuffle(dtype):
    return (compressor("shuffle", elementsize=dtype.itemsize),)


def delta(dtype, astype=None):
    return {"dtype": dtype.str, "astype": (np.dtype(astype) if astype else dtype).str}


def fixedscaleoffset(dtype, astype):
    return {"dtype": dtype.str, "astype": np.dtype(astype).str, "scale": 10, "offset": 3}


def filtered(name, parameters, **options):
    """An array-to-array codec of numcodecs, before zstd and alone."""
    return tuple(
        Chain(
            f"{name}{suffix}",
            filters=lambda dtype, ndim: (codec(f"numcodecs.{name.split('.')[0]}", **parameters(dtype)),),
            v2_filters=lambda dtype: (compressor(name.split(".")[0], **parameters(dtype)),),
            compressors=compressors,
            compressor=v2,
            **({"v3": (ZARR_PYTHON,), "v2": (ZARR_PYTHON,), "little_only": (3,)} | options),
        )
        for suffix, compressors, v2 in (("", (), None), ("-zstd", (ZSTD,), compressor("zstd", level=1)))
    )


def transpose(order):
    """A transposition: `order` makes the permutation for a number of dimensions."""
    return lambda dtype, ndim: (codec("transpose", order=order(ndim)),)


def reversed_axes(ndim):
    return list(range(ndim))[::-1]


def rotated_axes(ndim):
    return [*range(1, ndim), 0]


FILTER_CHAINS = (
    Chain(
        "shuffle",
        typed_compressors=lambda dtype: (shuffle(dtype),),
        v2_filters=v2_shuffle,
        v3=NOT_TENSORSTORE,
        v2=NOT_TENSORSTORE,
        dtypes=WIDE_DTYPES,
    ),
    Chain(
        "shuffle-zstd",
        typed_compressors=lambda dtype: (shuffle(dtype), ZSTD),
        v2_filters=v2_shuffle,
        compressor=compressor("zstd", level=1),
        v3=NOT_TENSORSTORE,
        v2=(ZARR_PYTHON,),
        dtypes=WIDE_DTYPES,
    ),
    Chain(
        "shuffle-gzip-crc32c",
        typed_compressors=lambda dtype: (shuffle(dtype), codec("gzip", level=1), CRC32C),
        v3=NOT_TENSORSTORE,
        dtypes=WIDE_DTYPES,
    ),
    *filtered("delta", delta, dtypes=INTEGERS),
    *filtered("delta.floats", delta, dtypes=FLOATS, values="smooth", lossy=True),
    *filtered(
        "fixedscaleoffset",
        lambda dtype: fixedscaleoffset(dtype, "int16"),
        dtypes=("int16", "int32", "int64", "float32", "float64"),
        values="smooth",
        lossy=True,
    ),
    *filtered(
        "fixedscaleoffset.bytes",
        lambda dtype: fixedscaleoffset(dtype, "uint8"),
        dtypes=("float32", "float64", "uint16"),
        values="few",
        lossy=True,
    ),
    *filtered(
        "bitround",
        lambda dtype: {"keepbits": 5},
        dtypes=FLOATS,
        values="smooth",
        lossy=True,
        little_only=(2, 3),
    ),
    Chain("transpose.reversed", filters=transpose(reversed_axes), v3=ALL),
    Chain("transpose.rotated", filters=transpose(rotated_axes), v3=ALL, ndims=(3, 4)),
    Chain("transpose-zstd", filters=transpose(reversed_axes), compressors=(ZSTD,), v3=ALL),
    Chain(
        "transpose-transpose-blosc.zstd",
        filters=lambda dtype, ndim: (
            codec("transpose", order=rotated_axes(ndim)),
            codec("transpose", order=reversed_axes(ndim)),
        ),
        typed_compressors=lambda dtype: (
            codec("blosc", cname="zstd", shuffle="shuffle", clevel=1, blocksize=0, typesize=dtype.itemsize),
        ),
        v3=ALL,
        ndims=(3, 4),
    ),
    Chain(
        "transpose-delta-lz4",
        filters=lambda dtype, ndim: (
            codec("transpose", order=reversed_axes(ndim)),
            codec("numcodecs.delta", **delta(dtype)),
        ),
        compressors=(codec("numcodecs.lz4", acceleration=1),),
        v3=(ZARR_PYTHON,),
        little_only=(3,),
        dtypes=INTEGERS,
    ),
)

# --- sharded chunks -------------------------------------------------------------------------------

PLAIN_CHAINS = (
    *ZSTD_CHAINS,
    *BLOSC_CHAINS,
    *DEFLATE_CHAINS,
    *OTHER_CHAINS,
    *CHECKSUM_CHAINS,
    *FILTER_CHAINS,
)
# Six of them with the index at either end, the others with one and the other in turn.
INNER = (
    *("raw", "zstd.3", "zstd.3.checksum", "blosc.lz4.noshuffle", "blosc.zstd.bitshuffle"),
    *("blosc.blosclz.shuffle", "blosc.snappy.shuffle", "blosc.lz4hc.shuffle.l1", "gzip.5", "zlib.1"),
    *("lz4.1", "bz2.1", "raw-crc32c", "zstd-crc32c", "fletcher32-zstd", "shuffle-zstd", "delta-zstd"),
    *("fixedscaleoffset-zstd", "transpose-zstd", "transpose.rotated", "pcodec"),
)


def sharded(name, chain, sharding, writers=ALL, **options):
    writers = tuple(writer for writer in chain.v3 if writer in writers)
    options = {"blocks": False, "shows": lambda chunk: True} | options
    return replace(chain, name=f"sharded.{name}", sharding=sharding, v3=writers, v2=(), **options)


def _sharded_chains():
    plain = {chain.name: chain for chain in PLAIN_CHAINS}
    for number, name in enumerate(INNER):
        places = ("end", "start") if number < 6 else (("end", "start")[number % 2],)
        for place in places:
            yield sharded(f"{place}.{name}", plain[name], Sharding(place))
    for name in ("raw", "zstd.3"):
        yield sharded(f"no-crc.{name}", plain[name], Sharding(checksum=False))
        yield sharded(f"big-index.{name}", plain[name], Sharding("start", index_endian="big"))
        yield sharded(f"nested.{name}", plain[name], Sharding(nested=True))
    outer = Sharding(outer=(codec("zstd", level=1, checksum=False),))
    yield sharded("end.raw-then-zstd", plain["raw"], outer, NOT_TENSORSTORE)
    outer = Sharding("start", outer=(CRC32C,))
    yield sharded("start.blosc.lz4.shuffle-then-crc32c", plain["blosc.lz4.shuffle"], outer, NOT_TENSORSTORE)


CHAINS = {chain.name: chain for chain in (*PLAIN_CHAINS, *_sharded_chains())}
"""Every chain that is read."""


def _refused(name, dtype, **options):
    """A chain of one codec; `filter` or `checksum` are its parameters."""
    if "filter" in options:
        parameters = options["filter"]
        codecs = {"filters": lambda dtype, ndim: (codec(f"numcodecs.{name}", **parameters),)}
    else:
        parameters = options["checksum"]
        codecs = {"compressors": (codec(f"numcodecs.{name}", **parameters),)}
    return Chain(
        name,
        v2_filters=lambda dtype: (compressor(name, **parameters),),
        v3=(ZARR_PYTHON,),
        v2=(ZARR_PYTHON,),
        dtypes=(dtype,),
        **codecs,
    )


REFUSED = {
    chain.name: chain
    for chain in (
        Chain(
            "lzma",
            compressors=(codec("numcodecs.lzma", preset=1),),
            compressor=compressor("lzma", preset=1),
            v3=(ZARR_PYTHON,),
            v2=(ZARR_PYTHON,),
            dtypes=("int32",),
        ),
        _refused("packbits", "bool", filter={}),
        _refused("crc32", "int32", checksum={}),
        _refused("crc32c", "int32", checksum={}),
        _refused("jenkins_lookup3", "int32", checksum={}),
        _refused("astype", "int32", filter={"encode_dtype": "<i2", "decode_dtype": "<i4"}),
        _refused("quantize", "float32", filter={"digits": 2, "dtype": "<f4"}),
    )
}
"""Chains that are refused by name when the pipeline is built."""
