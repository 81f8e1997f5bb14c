"""The zstd decoder of `src/kernels/zstd_*.cuh`, compiled for the host with ASan and UBSan, against libzstd.

The host build runs the lanes of a warp one after the other in two orders, in buffers of the exact size: an
access outside of them, or a step that depends on the order, ends the program with an error.
"""

import struct
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

import libzstd
from contents import contents
from kernel_programs import compiled

FULL = [(3000, 8), (60_000, 3), (300_000, 1)]
"""Most bytes of a chunk, and levels of each, of the full tier."""

LEVELS = [-5, 1, 2, 3, 5, 7, 9, 12, 15, 19]
TRUNCATED, TOO_LONG, BAD_OFFSET, TOO_SHORT, BAD_HEADER, BAD_CODE, TRAILING = 1, 2, 3, 4, 5, 6, 8
"""`StreamError` of `src/kernels/streams.cuh`."""

STRICTER = {TRUNCATED, TRAILING, BAD_HEADER, BAD_CODE, TOO_LONG}
"""What a chunk is refused for although libzstd takes it, as `src/codec/zstd/blocks.rs` lists it."""

SKIPPABLE = b"\x53\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"

pytestmark = pytest.mark.skipif(libzstd.library() is None, reason="libzstd is not installed")


@dataclass(frozen=True)
class Case:
    """A chunk as the program takes it. `skew`: alignment of its buffers; `slots`, `warps`: how it is cut."""

    encoded: bytes
    data: bytes
    skew: int = 0
    slots: int = 8
    warps: int = 1


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled("zstd_decode_test", tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def decode(program, tmp_path):
    """`decode(cases)`: for each its StreamError, the block that has it, and the decoded bytes or None."""

    def run(cases):
        with open(tmp_path / "cases", "wb") as file:
            for case in cases:
                header = (case.skew, len(case.encoded), len(case.data), case.slots, case.warps)
                file.write(struct.pack("<5I", *header) + case.encoded)
        command = [program, tmp_path / "cases", tmp_path / "results"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-4000:] or f"the program returned {done.returncode}"
        results, at, decoded = (tmp_path / "results").read_bytes(), 0, []
        for case in cases:
            (status,) = struct.unpack_from("<I", results, at)
            at += 4
            decoded.append((status & 255, status >> 8, None if status else results[at : at + len(case.data)]))
            at += 0 if status else len(case.data)
        assert at == len(results)
        return decoded

    return run


def settings_of(rng, level):
    """An encoder's settings around a level."""
    settings = {libzstd.LEVEL: int(level), libzstd.CHECKSUM: int(rng.integers(2))}
    settings[libzstd.CONTENT_SIZE] = int(rng.integers(2))
    for parameter, low, high in [
        (libzstd.WINDOW_LOG, 10, 20),
        (libzstd.LITERAL_MODE, 0, 3),
        (libzstd.STRATEGY, 1, 10),
        (libzstd.MIN_MATCH, 3, 8),
        (libzstd.TARGET_BLOCK_SIZE, 1340, 4000),
    ]:
        if rng.random() < 0.25:
            settings[parameter] = int(rng.integers(low, high))
    return settings


def cases_of(rng, most, levels):
    """A case for each content and some levels; several frames and skippable ones behind them."""
    cases = []
    sizes = [0, 1, 2, 5, 33, 300, 1000, most // 3, most]
    for data in contents(rng, sizes, most):
        for level in rng.choice(LEVELS, levels, replace=False):
            flush = int(rng.choice([0, 0, 100, 1000, 5000])) if len(data) > 10 else 0
            encoded = libzstd.encode(data, settings_of(rng, level), flush)
            shape = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 2, 3, 8]))
            cases.append(Case(encoded, data, int(rng.integers(16)), *shape))
    for a, b, c in rng.integers(0, len(cases), (20, 3)):
        a, b, c = cases[a], cases[b], cases[c]
        encoded = a.encoded + SKIPPABLE + b.encoded + c.encoded + SKIPPABLE
        cases.append(Case(encoded, a.data + b.data + c.data, a.skew, 8, 4))
    return cases


@pytest.mark.parametrize(
    "most, levels", [(3000, 2), (60_000, 1), *(pytest.param(*case, marks=pytest.mark.full) for case in FULL)]
)
def test_valid_chunks_decode_to_their_content(decode, most, levels):
    cases = cases_of(np.random.default_rng(most), most, levels)
    for number, (case, (error, block, decoded)) in enumerate(zip(cases, decode(cases), strict=True)):
        assert decoded == case.data, f"case {number}: error {error} in block {block}"


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.full)])
def test_damaged_chunks_get_an_error_or_what_libzstd_makes_of_them(decode, count):
    """Chunks of at most 64 kB."""
    rng = np.random.default_rng(1)
    whole = [case for case in cases_of(rng, 20_000, 3) if len(case.encoded) > 12 and len(case.data) <= 64_000]
    cases = []
    for number in rng.integers(0, len(whole), count):
        case = whole[number]
        cases.append(Case(mutated(rng, case.encoded), case.data, case.skew, case.slots))
    refused = 0
    for number, (case, (error, block, decoded)) in enumerate(zip(cases, decode(cases), strict=True)):
        expected = libzstd.decode(case.encoded, len(case.data))
        if decoded is None:
            refused += 1
            assert expected is None or error in STRICTER, f"case {number}: error {error} in block {block}"
        else:
            assert decoded == expected, f"case {number}"
    assert count // 2 < refused < count


def mutated(rng, encoded):
    """A few bits, bytes or sizes changed, most of them near the beginning, where the headers are."""
    changed = bytearray(encoded)
    for _ in range(int(rng.integers(1, 4))):
        kind, near = rng.random(), int(rng.choice([20, 60, 300, 1 << 30]))
        at = int(rng.integers(0, min(len(changed), near)))
        if kind < 0.5:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind < 0.8:
            changed[at] = int(rng.integers(256))
        elif kind < 0.9 and len(changed) > 8:
            del changed[at : at + int(rng.integers(1, 5))]
        else:
            changed[at:at] = rng.bytes(int(rng.integers(1, 4)))
    return bytes(changed)


def test_the_block_of_an_error_is_named(decode):
    data = np.random.default_rng(2).integers(0, 4, 5000, np.uint8).tobytes()
    encoded = libzstd.encode(data, {libzstd.LEVEL: 3}, 1000)
    starts, at = [], 4 + 1 + 1  # the header of a frame without its size has a window
    while True:
        header = int.from_bytes(encoded[at : at + 3], "little")
        starts.append(at)
        if header & 1:
            break
        at += 3 + (header >> 3 if header >> 1 & 3 != 1 else 1)
    assert len(starts) >= 5
    reserved = [encoded[:at] + bytes([encoded[at] | 6]) + encoded[at + 1 :] for at in starts]
    decoded = decode([Case(chunk, data) for chunk in reserved])
    assert [(error, block) for error, block, _ in decoded] == [(BAD_HEADER, i) for i in range(len(starts))]


@pytest.mark.parametrize("more, error", [(1, TOO_SHORT), (-1, TOO_LONG)])
def test_another_size_is_an_error(decode, more, error):
    data = np.random.default_rng(3).integers(0, 4, 5000, np.uint8).tobytes()
    encoded = libzstd.encode(data, {libzstd.LEVEL: 3, libzstd.CONTENT_SIZE: 0})
    assert decode([Case(encoded, bytes(len(data) + more))])[0][0] == error


def test_a_match_stays_in_its_frame(decode):
    rng = np.random.default_rng(4)
    first, second = rng.bytes(500), rng.bytes(500)
    whole = libzstd.encode(first + second + first, {libzstd.LEVEL: 19, libzstd.CONTENT_SIZE: 0}, 1000)
    header, at = whole[:6], 6
    size = int.from_bytes(whole[at : at + 3], "little") >> 3
    # The second block, whose match reaches into the first one, as a frame of its own.
    behind = header + whole[at + 3 + size :]
    before = libzstd.encode(first + second, {libzstd.LEVEL: 1})
    cases = [Case(whole, first + second + first), Case(before + behind, first + second + first)]
    (good, _, decoded), (error, block, _) = decode(cases)
    assert (good, decoded) == (0, cases[0].data)
    assert (error, block) == (BAD_OFFSET, 1)
    assert libzstd.decode(cases[1].encoded, len(cases[1].data)) is None
