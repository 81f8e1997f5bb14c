"""The decoders of `src/kernels/lz.cuh` and `unshuffle.cuh`, compiled for the host with AddressSanitizer.

The host build runs the lanes of a warp one after the other in two orders, in buffers of the exact size: an
access outside of them, or a step that depends on the order, ends the program with an error. References are
numcodecs (LZ4 and Blosc) and, for Snappy, a plain decoder written from the format's description.
"""

import struct
import subprocess
from dataclasses import dataclass

import numcodecs
import numcodecs.blosc
import numcodecs.lz4
import numpy as np
import pytest

from contents import contents
from kernel_programs import compiled

STORED, LZ4, BLOSCLZ, SNAPPY = range(4)
FORMATS = {"lz4": LZ4, "blosclz": BLOSCLZ, "snappy": SNAPPY}

BAD_OFFSET = 3
"""`kStreamBadOffset` of `src/kernels/streams.cuh`."""

BYTE_SHUFFLE, BIT_SHUFFLE = 1, 2


@dataclass
class Case:
    """A stream as `lz_test` takes it; `skew` says how its buffers are aligned."""

    format: int
    skew: int
    encoded: bytes
    size: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where programs are compiled."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def decode(folder, tmp_path):
    """`decode(cases)`: for each case its StreamError and the decoded bytes, None after an error."""

    def run(cases):
        with open(tmp_path / "cases", "wb") as file:
            for case in cases:
                file.write(struct.pack("<4I", case.format, case.skew, len(case.encoded), case.size))
                file.write(case.encoded)
        results = run_program(compiled("lz_test", folder), tmp_path)
        at, decoded = 0, []
        for case in cases:
            (error,) = struct.unpack_from("<I", results, at)
            at += 4
            decoded.append((error, None if error else results[at : at + case.size]))
            at += 0 if error else case.size
        assert at == len(results)
        return decoded

    return run


@pytest.fixture
def unshuffle(folder, tmp_path):
    """`unshuffle(cases)`: cases (kind, skew, element size, block size, bytes) to their bytes in order."""

    def run(cases):
        with open(tmp_path / "cases", "wb") as file:
            for kind, skew, size, block, data in cases:
                file.write(struct.pack("<5I", kind, skew, size, block, len(data)) + data)
        results = run_program(compiled("unshuffle_test", folder), tmp_path)
        ends = np.cumsum([len(case[-1]) for case in cases])
        return [results[end - len(case[-1]) : end] for case, end in zip(cases, ends)]

    return run


def run_program(program, folder):
    """Runs a test program on `folder/cases`; a sanitizer's report is the failure's text."""
    command = [program, folder / "cases", folder / "results"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:] or f"{program.name} returned {done.returncode}"
    return (folder / "results").read_bytes()


# What is decoded


def contents_of(rng, most):
    """Byte strings of up to `most` bytes; some repeat a part at the distances where formats have limits."""
    yield from contents(rng, [1, 2, 5, 12, 13, 17, 31, 64, 65, 300, 1000, most], most)
    for distance in [3583, 3584, 3585, 3600, 4095, 4097, 8191, 8192, 8193, 8200, 30000, 65535]:
        if distance + 200 < most:
            repeated = rng.bytes(int(rng.integers(40, 1500)))
            between = rng.integers(0, 4, distance - len(repeated), np.uint8).tobytes()
            yield repeated + between + repeated + rng.bytes(9)


# Encoders and references


def encode_lz4(data):
    return bytes(numcodecs.lz4.compress(data)[4:])


def encode_blosclz(data):
    """The one stream of a Blosc buffer, or None if Blosc stored the data as it is."""
    buffer = numcodecs.blosc.compress(data, b"blosclz", 9, numcodecs.blosc.NOSHUFFLE, max(128, len(data)), 1)
    blocks = list(blosc_streams(buffer))
    if len(blocks) != 1 or blocks[0].format == STORED:
        return None
    return blocks[0].encoded


def encode_snappy(data):
    """Greedy, with each kind of tag used where it fits."""
    out = bytearray(varint(len(data)))
    seen, start, at = {}, 0, 0

    def literals(end):
        if length := end - start:
            if length <= 60:
                out.append(length - 1 << 2)
            else:
                number = (length - 1).to_bytes(4, "little").rstrip(b"\0") or b"\0"
                out.append(59 + len(number) << 2)
                out.extend(number)
            out.extend(data[start:end])

    while at + 4 <= len(data):
        found = seen.get(data[at : at + 4])
        seen[data[at : at + 4]] = at
        if found is None:
            at += 1
            continue
        literals(at)
        length = 4
        while length < 64 and at + length < len(data) and data[found + length] == data[at + length]:
            length += 1
        offset = at - found
        if length < 12 and offset < 2048:
            out.extend([1 | length - 4 << 2 | offset >> 8 << 5, offset & 255])
        elif offset < 65536:
            out.extend(struct.pack("<BH", 2 | length - 1 << 2, offset))
        else:
            out.extend(struct.pack("<BI", 3 | length - 1 << 2, offset))
        at += length
        start = at
    literals(len(data))
    return bytes(out)


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


ENCODERS = {"lz4": encode_lz4, "blosclz": encode_blosclz, "snappy": encode_snappy}


def reference_lz4(encoded, size):
    try:
        decoded = numcodecs.lz4.decompress(struct.pack("<i", size) + encoded)
    except (RuntimeError, ValueError):
        return None
    return bytes(decoded)


def reference_blosclz(encoded, size):
    """Decodes the stream as the only block of a Blosc buffer."""
    head = struct.pack("<4B3Ii", 2, 1, 0x10, 1, size, size, 24 + len(encoded), 20)
    try:
        return bytes(numcodecs.blosc.decompress(head + struct.pack("<i", len(encoded)) + encoded))
    except (RuntimeError, ValueError):
        return None


def reference_snappy(encoded, size):
    """After google/snappy's format_description.txt, byte by byte where it matters."""
    at = announced = shift = 0
    while True:
        if at == len(encoded) or shift > 28 or (shift == 28 and encoded[at] > 15):
            return None
        announced |= (encoded[at] & 127) << shift
        shift += 7
        at += 1
        if encoded[at - 1] < 128:
            break
    if announced != size:
        return None
    out = bytearray()
    while at < len(encoded):
        tag = encoded[at]
        at += 1
        extra = max(0, (tag >> 2) - 59) if tag & 3 == 0 else (1, 2, 4)[(tag & 3) - 1]
        if at + extra > len(encoded):
            return None
        number = int.from_bytes(encoded[at : at + extra], "little")
        at += extra
        if tag & 3 == 0:
            length = (number if extra else tag >> 2) + 1
            if at + length > len(encoded) or len(out) + length > size:
                return None
            out += encoded[at : at + length]
            at += length
            continue
        length, offset = (tag >> 2) + 1, number
        if tag & 3 == 1:
            length, offset = (tag >> 2 & 7) + 4, number | tag >> 5 << 8
        if offset == 0 or offset > len(out) or len(out) + length > size:
            return None
        pattern = bytes(out[-offset:][:length])
        out += (pattern * (length // len(pattern) + 1))[:length]
    return bytes(out) if len(out) == size else None


REFERENCES = {"lz4": reference_lz4, "blosclz": reference_blosclz, "snappy": reference_snappy}


def lz4_offsets(encoded):
    """The offsets of the matches of an LZ4 block that can be followed to its end."""
    at = 0

    def length(nibble):
        nonlocal at
        total = byte = nibble
        full = 15
        while byte == full:
            byte, full = encoded[at], 255
            total += byte
            at += 1
        return total

    while True:
        token = encoded[at]
        at += 1
        literals = length(token >> 4)
        at += literals
        if at >= len(encoded):
            return
        yield int.from_bytes(encoded[at : at + 2], "little")
        at += 2
        length(token & 15)


def blosc_streams(buffer):
    """The streams of a Blosc buffer (version 2), in order."""
    flags, typesize, size, block_size = struct.unpack_from("<2xBBII", buffer)
    if flags & 2:
        yield Case(STORED, 0, buffer[16 : 16 + size], size)
        return
    format = (BLOSCLZ, LZ4)[flags >> 5]
    for index, start in enumerate(range(0, size, block_size)):
        bytes_here = min(block_size, size - start)
        split = not flags & 0x10 and bytes_here == block_size
        (at,) = struct.unpack_from("<i", buffer, 16 + 4 * index)
        for _ in range(typesize if split else 1):
            (length,) = struct.unpack_from("<i", buffer, at)
            decoded = bytes_here // (typesize if split else 1)
            encoded = buffer[at + 4 : at + 4 + length]
            yield Case(STORED if length == decoded else format, 0, encoded, decoded)
            at += 4 + length


# Decoders


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name, decode, rng):
    streams = [(ENCODERS[name](data), data) for data in contents_of(rng, 100_000)]
    streams = [(encoded, data) for encoded, data in streams if encoded is not None]
    assert len(streams) > 50
    cases = [Case(FORMATS[name], int(rng.integers(256)), encoded, len(data)) for encoded, data in streams]
    for (error, decoded), (encoded, data) in zip(decode(cases), streams):
        assert error == 0 and decoded == data, (error, len(encoded), len(data))


def test_stored(decode, rng):
    sizes = [*range(80), 127, 128, 1000, 4099]
    cases = [Case(STORED, skew, rng.bytes(size), size) for size in sizes for skew in range(0, 256, 7)]
    for case, (error, decoded) in zip(cases, decode(cases)):
        assert error == 0 and decoded == case.encoded
    assert [error for error, _ in decode([Case(STORED, 0, b"abc", 4), Case(STORED, 0, b"abc", 2)])] == [1, 8]


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_exact(name, decode, rng):
    """A stream one byte short, one byte long, or asked for another size is an error."""
    data = next(data for data in contents_of(rng, 3000) if len(data) == 1000 and len(set(data)) == 4)
    encoded = ENCODERS[name](data)
    wrong = [(encoded[:-1], 1000), (encoded + b"\0", 1000), (encoded, 999), (encoded, 1001), (b"", 1000)]
    for skew in [0, 5]:
        for error, _ in decode([Case(FORMATS[name], skew, *case) for case in wrong]):
            assert error != 0


def mutate(rng, streams):
    """A stream with flipped bits, another end, or a part of another stream; and the size it is asked for."""
    encoded, size = streams[rng.integers(len(streams))]
    kind = rng.integers(6)
    damaged = bytearray(encoded)
    if kind <= 2 or len(damaged) < 2:
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
    elif kind == 3:
        del damaged[rng.integers(1, len(damaged)) :]
    elif kind == 4:
        damaged[rng.integers(len(damaged))] = (0, 255)[rng.integers(2)]
    else:
        other = streams[rng.integers(len(streams))][0]
        start, length = rng.integers(len(other)), rng.integers(1, 40)
        at = rng.integers(len(damaged))
        damaged[at : at + rng.integers(0, 40)] = other[start : start + length]
    if rng.integers(20) == 0:
        size = max(1, size + int(rng.integers(-3, 4)))
    return bytes(damaged), size


@pytest.mark.parametrize("count", [4000, pytest.param(40_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_streams(name, decode, rng, count):
    """Every damaged stream is decoded as the reference does or refused as the reference does."""
    streams = [(ENCODERS[name](data), len(data)) for data in contents_of(rng, 2000) if len(data) <= 2000]
    streams += [(ENCODERS[name](data), len(data)) for data in contents_of(rng, 9000) if len(data) > 8000]
    streams = [(encoded, size) for encoded, size in streams if encoded is not None]
    small = [stream for stream in streams if len(stream[0]) <= 1500]
    cases = []
    for index in range(count):
        encoded, size = mutate(rng, streams if index % 20 == 0 else small)
        # Where both sizes are equal Blosc takes the bytes as stored.
        if name != "blosclz" or len(encoded) != size:
            skew = 0 if index % 2 else int(rng.integers(256))
            cases.append(Case(FORMATS[name], skew, encoded, size))
    accepted = 0
    for index, (case, (error, decoded)) in enumerate(zip(cases, decode(cases))):
        expected = REFERENCES[name](case.encoded, case.size)
        if name == "lz4" and expected is not None and error == BAD_OFFSET:
            assert 0 in lz4_offsets(case.encoded), index
            continue
        assert (decoded is None) == (expected is None), (index, error)
        assert decoded == expected, index
        accepted += decoded is not None
    assert count // 50 < accepted < count * 9 // 10


def test_lz4_end_of_block(decode):
    """LZ4's own rules: five literals at the end, and the last match no closer to it than twelve bytes."""

    def block(last, before=20):
        start = bytes([15 << 4, before - 15]) + bytes(range(before)) + b"\x01\x00"
        return start + bytes([last << 4]) + bytes(last), before + 4 + last

    cases = [Case(LZ4, 0, *block(last)) for last in range(13)]
    for case, (error, _) in zip(cases, decode(cases)):
        assert (error == 0) == (reference_lz4(case.encoded, case.size) is not None)
    (error, _), *_ = decode([Case(LZ4, 0, block(12)[0].replace(b"\x01\x00", b"\x00\x00", 1), 36)])
    assert error != 0


# Shuffles


def naive_unshuffle(kind, size, data):
    """One block, from the formulas of `unshuffle.cuh`."""
    data = np.frombuffer(data, np.uint8)
    count = len(data) // size
    if kind == BIT_SHUFFLE and count % 8:
        return data.tobytes()
    whole, rest = data[: count * size], data[count * size :]
    if kind == BYTE_SHUFFLE:
        whole = whole.reshape(size, count).T
    else:
        bits = np.unpackbits(whole.reshape(size, 8, count // 8), axis=2, bitorder="little")
        whole = np.packbits(bits.transpose(2, 0, 1), axis=2, bitorder="little")
    return whole.tobytes() + rest.tobytes()


@pytest.mark.parametrize("kind", [BYTE_SHUFFLE, BIT_SHUFFLE])
def test_unshuffle(kind, unshuffle, rng):
    cases = []
    for size in [*range(1, 18), 24, 32, 100, 255, 1000]:
        for block in [64, 16 * size, 24 * size + 1, 4096, 40_000]:
            for length in [1, size, block, 2 * block, 3 * block + 8 * size, int(rng.integers(1, 3 * block))]:
                cases.append((kind, 0, size, block, rng.bytes(length)))
                cases.append((kind, int(rng.integers(256)), size, block, rng.bytes(length)))
    for case, got in zip(cases, unshuffle(cases)):
        *_, size, block, data = case
        blocks = (data[start : start + block] for start in range(0, len(data), block))
        assert got == b"".join(naive_unshuffle(kind, size, part) for part in blocks), case[:4]


@pytest.mark.parametrize("size", [2, 3, 4, 8, 12])
def test_numcodecs_shuffle(size, unshuffle, rng):
    data = rng.bytes(1234 * size)
    shuffled = numcodecs.Shuffle(elementsize=size).encode(data).tobytes()
    assert unshuffle([(BYTE_SHUFFLE, 0, size, len(shuffled), shuffled)]) == [data]


@pytest.mark.parametrize("codec", ["blosclz", "lz4", "lz4hc"])
@pytest.mark.parametrize("shuffle", [0, BYTE_SHUFFLE, BIT_SHUFFLE])
def test_blosc_buffers(codec, shuffle, decode, unshuffle, rng):
    """Whole Blosc buffers through both steps, as the reader decodes them."""
    contents, buffers = [], []
    for typesize in [1, 2, 3, 4, 8, 12, 16]:
        for elements in [3, 8, 1000, 1003, 50_001]:
            values = np.cumsum(rng.integers(-3, 4, elements)) + 1000
            data = np.zeros((elements, typesize), np.uint8)
            data[:, :8] = values.astype("<u8")[:, None].view(np.uint8)[:, :typesize]
            data = data.tobytes()
            for block in [0, 1000, 32768]:
                buffer = numcodecs.blosc.compress(data, codec.encode(), 5, shuffle, block, typesize)
                contents.append(data)
                buffers.append(bytes(buffer))

    streams = [list(blosc_streams(buffer)) for buffer in buffers]
    decoded = iter(decode([stream for of_buffer in streams for stream in of_buffer]))
    joined = [[next(decoded) for _ in of_buffer] for of_buffer in streams]
    assert all(error == 0 for parts in joined for error, _ in parts)
    shuffled = []
    for buffer, parts in zip(buffers, joined):
        flags, typesize, block_size = struct.unpack_from("<2xBB4xI", buffer)
        kind = 0 if flags & 2 else flags & 5
        # A byte shuffle of single bytes changes nothing.
        kind, typesize = (BIT_SHUFFLE, typesize) if kind == 4 else (BYTE_SHUFFLE, typesize if kind else 1)
        shuffled.append((kind, 0, typesize, block_size, b"".join(part for _, part in parts)))
    assert unshuffle(shuffled) == contents
