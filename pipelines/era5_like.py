"""Writes a Zarr store of synthetic fields that compress and load like ERA5.

Six variables on a latitude-longitude grid. Each is

- smooth in space: a random field whose Fourier amplitudes fall as a power of the wavenumber, with slopes
  from 1.3 to 2.2;
- correlated in time: every Fourier coefficient is an AR(1) process, so a model can learn the next step;
- quantised as GRIB packs it: each field holds 16-bit integers times a power of two on top of a reference
  value, unpacked to float32. This decides how well the store compresses, which white noise would not show.

The values depend on the seed and the grid, never on the layout or on the number of threads; with fewer steps
they are the first ones of a longer store. Needs numpy and zarr-python only: version 3 writes Zarr v3, version
2 (which is what Python 3.10 has) writes Zarr v2 and no sharded store.

    python pipelines/era5_like.py data/demo.zarr --steps 64 --grid 640 1280 --layout zstd
    python pipelines/era5_like.py data/bench --layout raw zstd sharded      # one generation, three stores
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

ZARR_FORMAT = 3 if int(zarr.__version__.split(".")[0]) >= 3 else 2
"""The format that is written: the newest that the installed zarr-python can write."""

# Changes whenever the same arguments would give other values or another layout.
FORMAT = 1

LAYOUTS = (
    "raw",
    "zstd",
    "sharded",
    "blosc-lz4",
    "blosc-zstd",
    "raw-crc32c",
    "zstd-checksum",
    "gzip",
    "lz4",
    "blosc-blosclz",
    "blosc-zlib",
    "blosc-zstd-bits",
)
"""How a store is chunked and compressed; `chunking` says what each name means."""

ARRANGEMENTS = ("separate", "stacked")
"""`separate`: a group with one [T, H, W] array per variable; `stacked`: one [T, C, H, W] array."""


@dataclass(frozen=True)
class Variable:
    """One variable: mean and standard deviation in `units`, spectral slope, autocorrelation at lag one."""

    name: str
    units: str
    mean: float
    std: float
    slope: float
    persistence: float


VARIABLES = (
    Variable("t2m", "K", 280.0, 15.0, 1.30, 0.90),
    Variable("d2m", "K", 275.0, 13.0, 1.48, 0.90),
    Variable("t850", "K", 275.0, 12.0, 1.66, 0.93),
    Variable("u10", "m s-1", 0.0, 6.0, 1.84, 0.93),
    Variable("msl", "Pa", 101325.0, 1000.0, 2.02, 0.95),
    Variable("z500", "m2 s-2", 54000.0, 2500.0, 2.20, 0.97),
)


def amplitudes(grid: tuple[int, int], slope: float) -> np.ndarray:
    """Fourier amplitudes [H, W // 2 + 1] of a field with unit variance whose amplitude falls as k ** -slope.

    k counts cycles across the domain, so on a grid twice as wide as high features come out wider in
    longitude, as they are at high latitudes.
    """
    height, width = grid
    ky = np.fft.fftfreq(height)[:, None] * height
    kx = np.fft.rfftfreq(width)[None, :] * width
    k = np.hypot(ky, kx)
    k[0, 0] = 1.0
    spectrum = k**-slope
    spectrum[0, 0] = 0.0
    # irfft2 takes the real part of the first (and, for even widths, last) column and counts the others twice.
    weight = np.full(spectrum.shape[1], 4.0)
    weight[0] = 1.0
    if width % 2 == 0:
        weight[-1] = 1.0
    variance = (spectrum**2 * weight).sum() / (height * width) ** 2
    return (spectrum / np.sqrt(variance)).astype(np.float32)


def pack(values: np.ndarray) -> np.ndarray:
    """Rounds a field as GRIB's simple packing with 16 bits: reference + integer * 2 ** scale, in float32."""
    values = values.astype(np.float64)
    reference = np.float64(np.float32(values.min()))
    spread = values.max() - reference
    scale = np.exp2(np.ceil(np.log2(spread / 65535.0))) if spread > 0 else 1.0
    integers = np.clip(np.rint((values - reference) / scale), 0, 65535)
    return (reference + integers * scale).astype(np.float32)


class _Evolution:
    """One variable's Fourier coefficients, advanced step by step."""

    def __init__(self, variable: Variable, grid: tuple[int, int], seed: Sequence[int]) -> None:
        self.variable = variable
        self.grid = grid
        self.amplitude = amplitudes(grid, variable.slope)
        self.rng = np.random.default_rng(seed)
        self.state = self._noise()

    def _noise(self) -> np.ndarray:
        shape = self.amplitude.shape
        pair = self.rng.standard_normal((*shape, 2), dtype=np.float32)
        return pair.view(np.complex64)[..., 0]

    def fill(self, out: np.ndarray) -> None:
        """Writes the next steps to `out` [steps, H, W]."""
        keep = np.float32(self.variable.persistence)
        renew = np.float32(np.sqrt(1.0 - self.variable.persistence**2))
        for step in out:
            field = np.fft.irfft2(self.state * self.amplitude, s=self.grid)
            step[...] = pack(self.variable.mean + self.variable.std * field)
            self.state = keep * self.state + renew * self._noise()


def generate(
    steps: int, grid: tuple[int, int], *, seed: int = 0, block: int = 8, threads: int | None = None
) -> Iterator[np.ndarray]:
    """Yields the fields in blocks of up to `block` steps, each float32 [block, variables, H, W].

    The memory of a block is reused for the next one.
    """
    evolutions = [_Evolution(v, grid, (seed, i)) for i, v in enumerate(VARIABLES)]
    buffer = np.empty((min(block, steps), len(VARIABLES), *grid), np.float32)
    with ThreadPoolExecutor(threads or min(len(VARIABLES), os.cpu_count() or 1)) as pool:
        for start in range(0, steps, block):
            out = buffer[: min(block, steps - start)]
            list(pool.map(_Evolution.fill, evolutions, [out[:, i] for i in range(len(evolutions))]))
            yield out


@dataclass(frozen=True)
class Chunking:
    """How an array is cut and compressed: extents of a chunk and of its inner chunks, if any; the codec."""

    chunk: tuple[int, ...]
    inner: tuple[int, ...] | None = None
    codec: str = ""
    level: int = 0


def chunking(layout: str, shape: tuple[int, ...]) -> Chunking:
    """Chunks and codec of an array [T, C, H, W] or [T, H, W] in the given layout.

    | layout | chunk | codec |
    |---|---|---|
    | raw | (1, C, H, W) | none |
    | zstd | (1, 1, H, W) | zstd level 0, zarr-python's default |
    | sharded | sharded chunk (1, C, H, W), inner chunk (1, 1, H / 8, W) | zstd level 0 |
    | blosc-lz4 | (1, C, H, W) | blosc lz4, byte shuffle, level 5 |
    | blosc-zstd | (1, C, H, W) | blosc zstd, byte shuffle, level 3 |
    | blosc-zstd-bits | (1, C, H, W) | the same with bit shuffle |
    | blosc-blosclz, blosc-zlib | (1, C, H, W) | these in blosc, byte shuffle, level 5 |
    | zstd-checksum | (1, 1, H, W) | zstd level 0 with the checksum of its content |
    | gzip, lz4 | (1, 1, H, W) | gzip level 5, numcodecs' LZ4 |
    | raw-crc32c | (1, C, H, W) | crc32c |

    Raises ValueError for an unknown layout.
    """
    step = (1, *shape[1:])
    plane = (*(1 for _ in shape[:-2]), *shape[-2:])
    if layout == "raw":
        return Chunking(step)
    if layout == "raw-crc32c":
        return Chunking(step, codec="crc32c")
    if layout in ("zstd", "zstd-checksum", "lz4"):
        return Chunking(plane, codec=layout)
    if layout == "gzip":
        return Chunking(plane, codec="gzip", level=5)
    if layout == "sharded":
        # Inner chunks have to divide the sharded chunk: an eighth of the rows, or the next divisor below.
        rows = next(n for n in range(max(1, shape[-2] // 8), 0, -1) if shape[-2] % n == 0)
        return Chunking(step, inner=(*plane[:-2], rows, shape[-1]), codec="zstd")
    if layout in ("blosc-zstd", "blosc-zstd-bits"):
        return Chunking(step, codec=layout, level=3)
    if layout in LAYOUTS and layout.startswith("blosc-"):
        return Chunking(step, codec=layout, level=5)
    raise ValueError(f"layout {layout!r} is not known; the layouts are {', '.join(LAYOUTS)}")


def _create_array(
    path: Path, shape: tuple[int, ...], layout: str, dimensions: Sequence[str], attributes: dict[str, Any]
) -> zarr.Array:
    cut = chunking(layout, shape)
    blosc = cut.codec.removeprefix("blosc-").removesuffix("-bits")
    compressor: Any = None
    if ZARR_FORMAT == 3:
        from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

        if cut.codec in ("zstd", "zstd-checksum"):
            compressor = ZstdCodec(level=cut.level, checksum=cut.codec == "zstd-checksum")
        elif cut.codec == "gzip":
            compressor = GzipCodec(level=cut.level)
        elif cut.codec == "crc32c":
            compressor = Crc32cCodec()
        elif cut.codec == "lz4":
            from zarr.codecs.numcodecs import LZ4

            compressor = LZ4()
        elif cut.codec:
            shuffle = "bitshuffle" if cut.codec.endswith("-bits") else "shuffle"
            compressor = BloscCodec(typesize=4, cname=blosc, clevel=cut.level, shuffle=shuffle)
        return zarr.create_array(
            path,
            shape=shape,
            dtype="float32",
            chunks=cut.inner or cut.chunk,
            shards=cut.chunk if cut.inner else None,
            compressors=compressor,
            fill_value=0.0,
            zarr_format=3,
            dimension_names=dimensions,
            attributes=attributes,
        )
    from numcodecs import LZ4, Blosc, GZip, Zstd

    if cut.inner:
        raise ValueError(
            f"layout {layout!r} needs zarr-python 3, and so Python 3.11 or newer; there is {zarr.__version__}"
        )
    if cut.codec in ("zstd", "zstd-checksum"):
        compressor = Zstd(level=cut.level, checksum=cut.codec == "zstd-checksum")
    elif cut.codec == "gzip":
        compressor = GZip(level=cut.level)
    elif cut.codec == "lz4":
        compressor = LZ4()
    elif cut.codec.startswith("blosc-"):
        shuffle = Blosc.BITSHUFFLE if cut.codec.endswith("-bits") else Blosc.SHUFFLE
        compressor = Blosc(cname=blosc, clevel=cut.level, shuffle=shuffle)
    elif cut.codec:
        raise ValueError(f"layout {layout!r} needs zarr-python 3; there is {zarr.__version__}")
    array = zarr.open_array(
        str(path),
        mode="w",
        shape=shape,
        dtype="float32",
        chunks=cut.chunk,
        compressor=compressor,
        fill_value=0.0,
    )
    array.attrs.update({**attributes, "_ARRAY_DIMENSIONS": list(dimensions)})
    return array


class _Store:
    """A store being written beside its final place, so that an interrupted run leaves no half of a store."""

    def __init__(self, path: Path, made_by: dict[str, Any]) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        shutil.rmtree(self.part, ignore_errors=True)
        self.part.parent.mkdir(parents=True, exist_ok=True)
        layout, steps, grid = made_by["layout"], made_by["steps"], made_by["grid"]
        attributes = {"made_by": made_by}
        if made_by["arrangement"] == "stacked":
            attributes["variables"] = [v.name for v in VARIABLES]
            dimensions = ("time", "variable", "latitude", "longitude")
            shape = (steps, len(VARIABLES), *grid)
            self.arrays = [_create_array(self.part, shape, layout, dimensions, attributes)]
        else:
            zarr.open_group(str(self.part), mode="w").attrs.update(attributes)
            dimensions = ("time", "latitude", "longitude")
            self.arrays = [
                _create_array(self.part / v.name, (steps, *grid), layout, dimensions, {"units": v.units})
                for v in VARIABLES
            ]

    def write(self, start: int, block: np.ndarray) -> None:
        """Stores the steps from `start` on; `block` is [steps, variables, H, W]."""
        span = slice(start, start + len(block))
        if len(self.arrays) == 1:
            self.arrays[0][span] = block
        else:
            for i, array in enumerate(self.arrays):
                array[span] = block[:, i]

    def finish(self) -> None:
        """Moves the store to its place."""
        self.part.rename(self.path)


def ensure_stores(
    stores: Mapping[str, Path],
    *,
    steps: int,
    grid: tuple[int, int],
    arrangement: str = "separate",
    seed: int = 0,
    overwrite: bool = False,
) -> list[Path]:
    """Writes the stores that are not there yet, all from one generation; `stores` has a path for each layout.

    Returns the paths that were written. A store that is there with the same arguments is left alone, unless
    another version of this generator wrote it.
    Raises ValueError for an unknown layout or arrangement, a grid that is too small, or when something else
    is in the way and `overwrite` is false.
    """
    if arrangement not in ARRANGEMENTS:
        raise ValueError(f"arrangement {arrangement!r} is not known; there are {', '.join(ARRANGEMENTS)}")
    if steps < 1 or min(grid) < 2:
        raise ValueError(
            f"{steps} steps on a {grid[0]} x {grid[1]} grid: at least 1 step and 2 x 2 points are needed"
        )
    missing: list[_Store] = []
    for layout, path in stores.items():
        version = {"generator": "era5_like", "format": FORMAT, "zarr_format": ZARR_FORMAT}
        arguments = {
            "layout": layout,
            "arrangement": arrangement,
            "steps": steps,
            "grid": list(grid),
            "seed": seed,
        }
        if path.exists():
            found = _attributes(path).get("made_by", {})
            if found == {**version, **arguments}:
                continue
            # What another version of this generator wrote from the same arguments is written anew.
            if not overwrite and {name: found.get(name) for name in arguments} != arguments:
                raise ValueError(
                    f"{path} exists and was not written with these arguments; remove it, choose another "
                    "path, or overwrite it"
                )
        missing.append(_Store(path, {**version, **arguments}))
    if missing:
        start = 0
        for block in generate(steps, grid, seed=seed):
            for store in missing:
                store.write(start, block)
            start += len(block)
        for store in missing:
            shutil.rmtree(store.path, ignore_errors=True)
            store.finish()
    return [store.path for store in missing]


def _attributes(path: Path) -> dict[str, Any]:
    """Attributes of the node at `path`, none if there is no Zarr node."""
    try:
        return dict(zarr.open(str(path), mode="r").attrs)
    except (FileNotFoundError, OSError, ValueError):
        return {}


def stored_bytes(path: Path) -> int:
    """Bytes of all files of a store."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Write an ERA5-like Zarr store: 6 variables, smooth in space, correlated in time, "
        "quantised to 16 bits as GRIB packs."
    )
    parser.add_argument(
        "dst",
        type=Path,
        help="the store to write; with several layouts the folder that gets LAYOUT.zarr for each",
    )
    parser.add_argument("--steps", type=int, default=64, help="time steps (default: %(default)s)")
    parser.add_argument(
        "--grid",
        type=int,
        nargs=2,
        default=(640, 1280),
        metavar=("H", "W"),
        help="grid points (default: 640 1280)",
    )
    parser.add_argument(
        "--layout", nargs="+", choices=LAYOUTS, default=["zstd"], help="chunks and codecs (default: zstd)"
    )
    parser.add_argument(
        "--variables",
        choices=ARRANGEMENTS,
        default="stacked",
        help="one [T, C, H, W] array, or a group with one [T, H, W] array each (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="same seed, same values (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at DST")
    args = parser.parse_args(argv)
    layouts = list(dict.fromkeys(args.layout))
    several = len(layouts) > 1
    stores = {name: args.dst / f"{name}.zarr" if several else args.dst for name in layouts}
    began = time.perf_counter()
    try:
        written = ensure_stores(
            stores,
            steps=args.steps,
            grid=tuple(args.grid),
            arrangement=args.variables,
            seed=args.seed,
            overwrite=args.overwrite,
        )
    except ValueError as error:
        print(f"era5_like.py: {error}", file=sys.stderr)
        return 1
    values = args.steps * len(VARIABLES) * args.grid[0] * args.grid[1] * 4
    for path in stores.values():
        size = stored_bytes(path)
        state = "written" if path in written else "already there"
        print(
            f"{path}: {state}, {values / 1e6:.1f} MB of values in {size / 1e6:.1f} MB, "
            f"ratio {values / size:.2f}"
        )
    if written:
        print(f"{time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
