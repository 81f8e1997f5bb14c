"""One pass over every chain that the GPU decodes, compared with NumPy: short enough for a memory checker.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu_chains.py
    compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu_chains.py 'blosc zstd *' raw

The second one takes only the chains whose names match a pattern, so that several processes can share them:
racecheck is slow.
Chunks have odd shapes and reach over the array's edges, some are missing, and batches repeat samples, so that
every path of the gather kernel runs. Prints one line per chain.
"""

from __future__ import annotations

import fnmatch
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import zarr
from nvidia.dali import Pipeline, fn
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Delta, FixedScaleOffset, Fletcher32, Shuffle, Zlib

import zarr_dali  # noqa: F401  loads the plugin

SHAPE, CHUNKS, WINDOW, BATCH = (9, 3, 37, 53), (2, 2, 16, 17), [2, 3, 20], 3
ZSTD, BIG = ZstdCodec(level=1), BytesCodec(endian="big")
CHAINS = {
    "raw": {"compressors": None},
    "raw big-endian": {"compressors": None, "serializer": BIG},
    "zstd": {"compressors": ZSTD},
    "zstd big-endian": {"compressors": ZSTD, "serializer": BIG},
    "zstd with checksum": {"compressors": ZstdCodec(level=1, checksum=True)},
    "raw sharded": {"compressors": None, "shards": (4, 4, 32, 34)},
    "zstd sharded": {"compressors": ZSTD, "shards": (4, 4, 32, 34)},
    "gzip": {"compressors": GzipCodec(level=1)},
    "zlib": {"compressors": Zlib(level=9)},
    "lz4": {"compressors": LZ4()},
    "crc32c over zstd": {"compressors": [ZSTD, Crc32cCodec()]},
    "zstd over fletcher32": {"compressors": [Fletcher32(), ZSTD]},
    "transpose": {"compressors": ZSTD, "filters": TransposeCodec(order=(3, 1, 0, 2))},
}
CHAINS |= {
    f"blosc {name} {shuffle}": {"compressors": BloscCodec(cname=name, shuffle=shuffle, typesize=4)}
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
}
CHAINS |= {
    "blosc sharded": {"compressors": BloscCodec(typesize=4), "shards": (4, 4, 32, 34)},
    "blosc of many blocks": {"compressors": BloscCodec(typesize=3, blocksize=300, shuffle="bitshuffle")},
}
# With a codec for each data type; zarr-python cannot write the filters for elements of one byte.
TYPED = {
    "shuffle, zstd": lambda dtype: {"compressors": [Shuffle(elementsize=np.dtype(dtype).itemsize), ZSTD]},
    "delta": lambda dtype: filtered(dtype, lambda: Delta(dtype=dtype)),
    "fixedscaleoffset": lambda dtype: filtered(
        dtype, lambda: FixedScaleOffset(offset=10, scale=4, dtype=dtype, astype="int16")
    ),
}


def filtered(dtype: str, codec: Callable) -> dict:
    """zstd behind a filter, where there can be one."""
    return {"compressors": ZSTD, "filters": codec() if dtype != "uint8" else None}


def main(patterns: Sequence[str]) -> None:
    """Goes through the chains whose names match one of the patterns; all of them if there is none."""
    wanted = {
        name: options
        for name, options in (CHAINS | TYPED).items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not wanted:
        sys.exit(f"no chain matches {patterns}; there are {', '.join(CHAINS | TYPED)}")
    values = np.random.default_rng(7).integers(0, 200, SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        for chain, options in wanted.items():
            for dtype in ("uint8", "int16", "float32", "float64"):
                store = Path(folder) / f"{chain} {dtype}.zarr"
                codecs = options(dtype) if callable(options) else options
                array = zarr.create_array(
                    store=store, shape=SHAPE, chunks=CHUNKS, dtype=dtype, fill_value=7, **codecs
                )
                array[:6] = values[:6]  # the last chunks stay missing
                compare(store, array[:])
            print(f"{chain}: one pass of each data type equals zarr-python", flush=True)


def compare(store: Path, expected: np.ndarray) -> None:
    """One epoch of windows, the last batch running into the next epoch."""
    pipe = Pipeline(batch_size=BATCH, num_threads=1, device_id=0)
    with pipe:
        pipe.set_outputs(fn.readers.zarr(path=store, window=WINDOW, device="gpu", pad_last_batch=True))
    starts = [(t, 0, y) for t in range(SHAPE[0] - 1) for y in range(0, SHAPE[2] - 19, 20)]
    for first in range(0, len(starts), BATCH):
        (batch,) = pipe.run()
        samples = batch.as_cpu()
        for place in range(BATCH):
            t, _, y = starts[min(first + place, len(starts) - 1)]
            np.testing.assert_array_equal(np.asarray(samples[place]), expected[t : t + 2, :, y : y + 20])


if __name__ == "__main__":
    main(sys.argv[1:])
