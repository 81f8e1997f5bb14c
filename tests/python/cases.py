"""What `../hostile.py` reads: a store that a function writes, how it is read, and what has to come of it.

The stores themselves are in `exotic.py` (valid ones) and in `hostile_*.py`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

import reference

MIB = 1 << 20
CASES = {}
"""All cases by name, in the order of their kinds."""


@dataclass
class Read:
    """A store on disk, and what is read of it."""

    path: str | list
    samples: list | None = None
    """What has to come out, one array each; None where nobody knows."""
    alternatives: list = field(default_factory=list)
    """Further lists of samples: each sample may be that of any list."""
    arguments: dict = field(default_factory=dict)
    """Of the reader."""
    batch_size: int = 4
    batches: int | None = None
    """How many are read; one epoch by default."""
    any_nan: bool = False
    """The bits of a NaN are not compared: a narrow NaN says nothing of those of a wider one."""


@dataclass(frozen=True)
class Case:
    """One store. `make` writes it into a folder and says how to read it."""

    name: str
    kind: str
    """Cases are counted by kind."""
    make: Callable
    expect: Literal["values", "error", "either"]
    """Either: values or a clear error, where both are fine."""
    says: str = ""
    """Pattern of what the error has to say."""
    names: str = r"store\.zarr|argument `\w+`|dim_0=\d+:\d+.* of the source"
    """Pattern of what the error has to name: the store, a region of it, or the argument that is wrong."""
    interfaces: tuple = ("operator", "info")
    """How it is read; see `hostile.INTERFACES`."""
    budget_bytes: int = 64 * MIB
    """The reader's `host_memory_budget`."""
    patience: float = 1
    """Times the usual number of seconds."""
    unprivileged: bool = False
    """It is read by a user who is not root."""
    midway: Callable | None = None
    """Called with the `Read` behind the first batch."""
    repeat_s: float = 0
    """For so long it is read again and again by pipelines, whose clear errors are fine."""
    accepts: Callable | None = None
    """Called with a sample instead of comparing it; says what is wrong with it, or None."""


WITH_RECHUNK = ("operator", "info", "rechunk")
MORE = ("operator", "info", "loader", "rechunk")
TIB = 1 << 40
CHUNK = r"chunk \[|dim_0=\d+:\d+.* of the source"
"""What an error about a chunk says; `rechunk` names the region that it could not copy."""


def add(name, kind, make, expect, **options):
    """Takes a case into the list."""
    assert name not in CASES, name
    CASES[name] = Case(name, kind, make, expect, **options)


def case(kind, expect, **options):
    """Takes the decorated function into the list, under its own name."""

    def decorate(make):
        add(make.__name__.strip("_").replace("_", "-"), kind, make, expect, **options)
        return make

    return decorate


# --- what makes stores ----------------------------------------------------------------------------


def samples_of(values, window=None, stride=None):
    """All samples of an array, in order."""
    return [np.asarray(values[index]) for index in reference.windows(values.shape, window, stride)]


def read(path, values=None, **options):
    """A `Read` whose samples are the windows of `values`."""
    arguments = options.get("arguments", {})
    samples = None
    if values is not None:
        samples = samples_of(values, arguments.get("window"), arguments.get("stride"))
    return Read(str(path), samples, **options)


def zstd_v3(level=1):
    return [{"name": "bytes", "configuration": {"endian": "little"}}, codec_zstd(level)]


def codec_zstd(level=1, checksum=False):
    return {"name": "zstd", "configuration": {"level": level, "checksum": checksum}}


def metadata(shape, chunks, codecs=None, data_type="float32", fill_value=0, **more):
    """The metadata of a v3 array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": zstd_v3() if codecs is None else codecs,
        **more,
    }


def metadata_v2(shape, chunks, dtype="<f4", **more):
    """The metadata of a v2 array."""
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": dtype,
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
        **more,
    }


def put(path, meta, chunks=None):
    """Writes an array by hand: its metadata, or the text of it, and the bytes of chunks by key."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    v2 = isinstance(meta, dict) and meta.get("zarr_format") == 2
    text = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    (path / (".zarray" if v2 else "zarr.json")).write_bytes(text)
    for key, data in (chunks or {}).items():
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def raw_v3():
    return [{"name": "bytes", "configuration": {"endian": "little"}}]


def sparse(file, size_bytes):
    """Makes a file that long without writing anything."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab") as it:
        it.truncate(size_bytes)


BYTES, ZSTD = raw_v3()[0], codec_zstd()
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
VALUES = np.arange(60, dtype="float32").reshape(10, 6)
"""Values of the plain store."""


def plain(folder, **options):
    """A healthy array of [10, 6] in chunks of [2, 6], which a case then changes; returns its path."""
    from stores import write_array

    options = {"chunks": (2, 6), "codec": "zstd"} | options
    return write_array(folder / "store.zarr", "", options.pop("values", VALUES), **options)
