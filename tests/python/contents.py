"""Byte strings for tests of codecs."""

import numpy as np

PERIODS = (*range(1, 42), 63, 64, 65, 127, 129, 511, 513)


def contents(rng, sizes, repeated):
    """Byte strings that lead encoders to every kind of block, table and offset.

    Some of each size, and for each of `PERIODS` one of up to `repeated` bytes that repeats itself.
    """
    words = [rng.bytes(int(n)) for n in rng.integers(3, 20, 200)]
    for size in sizes:
        yield bytes(size)
        yield rng.bytes(size)
        yield rng.integers(0, 4, size, np.uint8).tobytes()
        yield b"".join(words[i] for i in rng.integers(0, 200, size // 3 + 1))[:size]
        smooth = np.cumsum(rng.standard_normal(size // 4 + 1)).astype("<f4").round(1)
        yield smooth.tobytes()[:size]
        yield smooth.view(np.uint8).reshape(-1, 4).T.tobytes()[:size]
        yield np.cumsum(rng.standard_normal(size // 2 + 1) * 5).astype("<i2").tobytes()[:size]
    for period in PERIODS:
        yield (rng.bytes(period) * (repeated // period + 1))[: int(rng.integers(period, repeated))]
