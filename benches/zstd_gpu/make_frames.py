"""Writes the frames that `zstd_gpu` decodes: ERA5-like fields in four sizes, other contents, damaged ones.

    python make_frames.py FILE [--quick]

Needs numpy and libzstd.so.1. The file: for each set its name (32 bytes), whether it is timed and how many
frames it has (two uint32); for each frame its encoded size, decoded size and if libzstd refuses it (three
uint32), the encoded bytes and, if it does not, the decoded ones.
"""

import argparse
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pipelines"), str(ROOT / "tests/python")]
if "zarr" not in sys.modules:  # era5_like writes stores with it; here are none
    sys.modules["zarr"] = types.ModuleType("zarr")
    sys.modules["zarr"].__version__ = "3"

import era5_like  # noqa: E402  neighbours, not packages
import libzstd  # noqa: E402
from contents import contents  # noqa: E402

GRID = (640, 1280)
"""3.28 MB a field, as in the store of the benchmarks."""


def fields(quick: bool) -> list[bytes]:
    """The six fields of one step."""
    grid = (160, 320) if quick else GRID
    for block in era5_like.generate(steps=2, grid=grid):
        return [np.ascontiguousarray(field, dtype="<f4").tobytes() for field in block[-1]]
    raise AssertionError("there are steps")


def pieces(data: bytes, count: int) -> list[bytes]:
    """`count` parts of equal size."""
    size = len(data) // count
    return [data[i * size : (i + 1) * size] for i in range(count)]


def timed(quick: bool) -> Iterator[tuple[str, int, list[bytes]]]:
    """Sets that are timed: name, level, contents."""
    six = fields(quick)
    step = b"".join(six)
    yield "3.28 MB", 3, six
    yield "410 kB", 3, pieces(step, 48)
    yield "51 kB", 3, pieces(step, 384)
    yield "19.7 MB", 3, [step]
    yield "3.28 MB level 1", 1, six
    yield "3.28 MB level 9", 9, six
    yield "3.28 MB level 19", 19, six[:3]
    rng = np.random.default_rng(1)
    values = len(six[0]) // 4
    yield (
        "3.28 MB full mantissa",
        3,
        [np.cumsum(rng.standard_normal(values)).astype("<f4").tobytes() for _ in range(2)],
    )
    walk = [np.cumsum(rng.integers(-3, 4, 2 * values)).astype("<i2").tobytes() for _ in range(2)]
    yield "3.28 MB int16", 3, walk
    yield "3.28 MB random", 3, [rng.bytes(len(six[0])) for _ in range(2)]
    yield "3.28 MB constant", 3, [bytes(len(six[0]))]
    yield "19.7 MB random", 3, [rng.bytes(len(step))]
    yield "19.7 MB constant", 3, [bytes(len(step))]


def valid(rng: np.random.Generator) -> list[tuple[bytes, bytes]]:
    """Encoded and decoded, with settings of all kinds; the last ones of several frames and skippable ones."""
    made = []
    for data in contents(rng, [0, 1, 2, 5, 33, 300, 1000, 7000, 30_000, 150_000], 9000):
        for level in (1, 3, 7, 19):
            settings = {
                libzstd.LEVEL: level,
                libzstd.CHECKSUM: int(rng.integers(2)),
                libzstd.CONTENT_SIZE: int(rng.integers(2)),
            }
            if rng.random() < 0.3:
                settings[libzstd.WINDOW_LOG] = int(rng.integers(10, 20))
            if rng.random() < 0.3:
                settings[libzstd.LITERAL_MODE] = int(rng.integers(3))
            flush = int(rng.choice([0, 0, 100, 1000])) if len(data) < 10_000 else 0
            made.append((libzstd.encode(data, settings, flush), data))
    for _ in range(40):
        (a, b), (c, d) = (made[i] for i in rng.integers(0, len(made), 2))
        skippable = b"\x53\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"
        made.append((a + skippable + c, b + d))
    return made


def damaged(
    rng: np.random.Generator, frames: list[tuple[bytes, bytes]], count: int
) -> Iterator[tuple[bytes, int]]:
    """Encoded, and the size that it had to decode to."""
    frames = [(encoded, data) for encoded, data in frames if len(encoded) > 12]
    for _ in range(count):
        encoded, data = frames[rng.integers(len(frames))]
        changed = bytearray(encoded)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(0, min(len(changed), int(rng.choice([20, 100, 1 << 30])))))
            changed[at] ^= 1 << int(rng.integers(8))
        yield bytes(changed), len(data)


def main() -> None:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("file", type=Path)
    line.add_argument("--quick", action="store_true", help="small fields")
    args = line.parse_args()
    rng = np.random.default_rng(0)
    with args.file.open("wb") as file:

        def put(name: str, is_timed: bool, frames: list[tuple[bytes, int, bytes | None]]) -> None:
            file.write(struct.pack("<32s2I", name.encode(), is_timed, len(frames)))
            for encoded, size, data in frames:
                file.write(struct.pack("<3I", len(encoded), size, data is None) + encoded + (data or b""))
            ratio = sum(size for _, size, _ in frames) / sum(len(encoded) for encoded, _, _ in frames)
            print(f"{name}: {len(frames)} frames, ratio {ratio:.2f}", flush=True)

        frames = valid(rng)
        put("valid", False, [(encoded, len(data), data) for encoded, data in frames])
        changed = damaged(rng, frames, 200 if args.quick else 4000)
        put("damaged", False, [(encoded, size, libzstd.decode(encoded, size)) for encoded, size in changed])
        for name, level, contents in timed(args.quick):
            encoded = [libzstd.encode(data, {libzstd.LEVEL: level}) for data in contents]
            put(name, True, [(e, len(data), data) for e, data in zip(encoded, contents, strict=True)])


if __name__ == "__main__":
    main()
