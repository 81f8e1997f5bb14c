"""The DEFLATE decoder, the checksums and the prefix sums of src/kernels, compiled for the host.

tests/kernels/*.cc run them with one lane and with as many as a warp, under AddressSanitizer and on buffers
of exact size. What they should make of their input is decided here: by zlib, numcodecs, numpy, xxhash.
"""

import random
import struct
import subprocess
import zlib

import numpy as np
import pytest

from kernel_programs import compiled
from tiers import quick

OK, TRUNCATED, TOO_LONG, BAD_OFFSET, TOO_SHORT, BAD_HEADER, BAD_CODE, CHECKSUM, TRAILING = range(9)
ANY_ERROR = 255
STRATEGIES = [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compiles a program of tests/kernels; running it on records gives the numbers that it prints."""
    folder = tmp_path_factory.mktemp("kernels")

    def compile_and_run(name, records):
        done = subprocess.run(
            [compiled(name, folder)], input=b"".join(records), capture_output=True, timeout=500
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        return [int(number) for number in done.stdout.split()]

    return compile_and_run


def deflate(data, level=6, strategy=zlib.Z_DEFAULT_STRATEGY, wbits=-15, memory=8):
    encoder = zlib.compressobj(level, zlib.DEFLATED, wbits, memory, strategy)
    return encoder.compress(data) + encoder.flush()


def stream(encoded, decoded_bytes, status, checksum=0, *, lanes=1, offset=0):
    return struct.pack("<6I", len(encoded), decoded_bytes, status, checksum, lanes, offset) + encoded


def judged(encoded, decoded_bytes=None, *, other_size=0, **options):
    """A record with zlib's verdict.

    The size is that of what zlib decodes unless it is given, plus `other_size`.
    """
    decoder = zlib.decompressobj(-15)
    try:
        decoded = decoder.decompress(encoded)
        valid = decoder.eof
    except zlib.error:
        decoded, valid = b"", False
    if decoded_bytes is None or valid:
        decoded_bytes = max(0, len(decoded) + other_size)
    accepted = valid and not decoder.unused_data and len(decoded) == decoded_bytes
    return stream(encoded, decoded_bytes, OK if accepted else ANY_ERROR, zlib.crc32(decoded), **options)


def fields(size, rng):
    """Bytes of a smooth float32 field, quantised to 16 bits."""
    count = size // 4 + 1
    smooth = np.cumsum(rng.standard_normal(count)) + 10 * np.sin(np.arange(count) / 50)
    return (280 + np.rint(smooth * 64) / 2048).astype(np.float32).tobytes()[:size]


def samples(size, rng):
    text = b" ".join(b"%d chunk of zarr %d" % (i, i * i) for i in range(size // 12 + 1))
    yield fields(size, rng)
    yield text[:size]
    yield rng.bytes(size)
    yield bytes(size)
    yield (rng.bytes(7) * (size // 7 + 1))[:size]
    yield (np.arange(size // 2 + 1, dtype="<i2") * 3).tobytes()[:size]
    yield np.minimum(rng.geometric(0.02, size), 255).astype(np.uint8).tobytes()


class Bits:
    """Writes a DEFLATE stream bit by bit."""

    def __init__(self):
        self.value = self.count = 0

    def add(self, value, bits):
        self.value |= value << self.count
        self.count += bits
        return self

    def code(self, code):
        """Adds a Huffman code: a pair of value and length, its highest bit first."""
        value, bits = code
        return self.add(int(format(value, f"0{bits}b")[::-1], 2), bits)

    def bytes(self):
        return self.value.to_bytes((self.count + 7) // 8, "little")


def codes_of(lengths):
    """The canonical codes of symbols with these lengths."""
    codes, value = {}, 0
    for bits in range(1, 16):
        for symbol, length in enumerate(lengths):
            if length == bits:
                codes[symbol] = (value, bits)
                value += 1
        value <<= 1
    return codes


# A complete code for the code lengths: 4 bits for the lengths that are used most, else 5.
LENGTH_LENGTHS = [4] * 13 + [5] * 6
ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]


def header(literals, distances, *, repeats=(), length_lengths=LENGTH_LENGTHS, last=1):
    """A dynamic block up to its symbols. `repeats` are raw (symbol, extra, bits) after the lengths."""
    bits = Bits().add(last, 1).add(2, 2)
    bits.add(len(literals) - 257 & 31, 5).add(len(distances) - 1 & 31, 5).add(15, 4)
    for symbol in ORDER:
        bits.add(length_lengths[symbol], 3)
    codes = codes_of(length_lengths)
    for length in [*literals, *distances]:
        if length is not None:
            bits.code(codes[length])
    for symbol, extra, width in repeats:
        bits.code(codes[symbol]).add(extra, width)
    return bits


def literal_lengths(used, count=257):
    return [used.get(symbol, 0) for symbol in range(count)]


def random_lengths(symbols, longest, rng):
    """A complete code with a length for each symbol: leaves of a tree that is split at random."""
    leaves = [1, 1]
    while len(leaves) < len(symbols):
        i = rng.choice([i for i, bits in enumerate(leaves) if bits < longest])
        leaves[i] += 1
        leaves.append(leaves[i])
    rng.shuffle(leaves)
    return dict(zip(symbols, leaves))


def length_of(symbol):
    """Base and extra bits of a length symbol."""
    i = symbol - 257
    if i < 8:
        return 3 + i, 0
    return (258, 0) if i == 28 else (3 + ((4 + i % 4) << (i // 4 - 1)), i // 4 - 1)


def distance_of(symbol):
    if symbol < 2:
        return 1 + symbol, 0
    return 1 + ((2 + symbol % 2) << (symbol // 2 - 1)), symbol // 2 - 1


def random_block(rng, tokens):
    """A dynamic block whose codes are random, with the longest ones used as often as others."""
    literals = sorted({256, *rng.sample(range(286), rng.randint(2, 120))})
    of_literals = random_lengths(literals, 15, rng)
    distances = sorted(rng.sample(range(30), rng.randint(2, 30)))
    of_distances = random_lengths(distances, 15, rng)
    bits = header(literal_lengths(of_literals, 286), literal_lengths(of_distances, 30))
    literal_codes = codes_of(literal_lengths(of_literals, 286))
    distance_codes = codes_of(literal_lengths(of_distances, 30))
    done = 0
    for _ in range(tokens):
        symbol = rng.choice(literals)
        near = [d for d in distances if distance_of(d)[0] <= done]
        if symbol == 256 or (symbol > 256 and not near):
            continue
        bits.code(literal_codes[symbol])
        if symbol < 256:
            done += 1
            continue
        base, extra = length_of(symbol)
        length = rng.randrange(1 << extra)
        done += base + length
        bits.add(length, extra)
        distance = rng.choice(near)
        base, extra = distance_of(distance)
        bits.code(distance_codes[distance])
        bits.add(min(rng.randrange(1 << extra), max(0, done - 258 - base)), extra)
    return bits.code(literal_codes[256]).bytes()


@pytest.mark.full
def test_streams_of_zlib(program):
    rng = np.random.default_rng(1)
    records = []
    for size in [0, 1, 2, 3, 31, 32, 33, 511, 512, 513, 4096, 65535, 65536, 100_001]:
        for data in samples(size, rng):
            for level in range(10) if size < 10_000 else (0, 1, 6, 9):
                options = {"offset": len(records) % 16}
                records.append(judged(deflate(data, level), **options))
            for strategy in STRATEGIES:
                records.append(judged(deflate(data, 6, strategy), offset=len(records) % 16))
            for wbits, memory in [(-9, 1), (-10, 2), (-12, 9)]:
                records.append(judged(deflate(data, 9, wbits=wbits, memory=memory)))
    for data in samples(1 << 20, rng):
        records.extend(judged(deflate(data, 6, strategy)) for strategy in STRATEGIES)
    count, accepted = program("inflate_test", records)
    assert count == accepted == len(records)


@pytest.mark.full
def test_flushed_streams(program):
    """Empty stored blocks, and blocks that begin at any bit."""
    rng = np.random.default_rng(2)
    records = []
    for flush in [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK]:
        for level in [0, 1, 6]:
            encoder = zlib.compressobj(level, zlib.DEFLATED, -15)
            encoded = b""
            for size in [0, 1, 5, 100, 3000, 70_000, 2]:
                encoded += encoder.compress(fields(size, rng)) + encoder.flush(flush)
            encoded += encoder.flush()
            for offset in range(5):
                records.append(judged(encoded, offset=offset))
    count, accepted = program("inflate_test", records)
    assert count == accepted == len(records)


@pytest.mark.full
def test_a_warp_decodes_what_one_lane_decodes(program):
    """32 lanes by turns, each as far as the next shuffle or sync."""
    rng = np.random.default_rng(3)
    numbers = random.Random(3)
    records = []
    for size in [0, 1, 100, 511, 512, 513, 700, 2000]:
        for data in samples(size, rng):
            for level, strategy in [(0, 0), (6, 0), (9, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY)]:
                encoded = deflate(data, level, strategy)
                records.append(judged(encoded, lanes=32, offset=len(records) % 16))
                broken = mutated(encoded, [encoded], numbers)
                records.append(judged(broken, size, lanes=32))
    for _ in range(100):
        encoded = random_block(numbers, 100)
        records.append(judged(encoded, lanes=32))
        records.append(judged(mutated(encoded, [encoded], numbers), 1000, lanes=32))
    for _ in range(2):  # a window of 128 bytes is refilled many times
        records.append(judged(deflate(fields(20_000, rng)), lanes=32, offset=3))
    count, _ = program("inflate_test", records)
    assert count == len(records)


@pytest.mark.parametrize("seed", range(12))
def test_random_codes(program, seed):
    rng = random.Random(seed)
    records = [judged(random_block(rng, rng.choice([1, 10, 300])), offset=i % 16) for i in range(250)]
    count, accepted = program("inflate_test", records)
    assert count == accepted == len(records)


def fixed(*symbols):
    """A fixed block of (value, bits) as they are, or Huffman codes of (value, bits, "code")."""
    bits = Bits().add(1, 1).add(1, 2)
    for symbol in symbols:
        bits.code(symbol[:2]) if len(symbol) == 3 else bits.add(*symbol)
    return bits.bytes()


def hand_made():
    """Name, stream, decoded size, status; zlib has to agree on whether it is valid."""
    a, end = (0x30 + ord("a"), 8, "code"), (0, 7, "code")
    length_3 = (1, 7, "code")
    one_end = literal_lengths({256: 1})
    two = literal_lengths({97: 1, 256: 1})
    with_match = literal_lengths({97: 2, 256: 2, 257: 2, 258: 2}, 259)
    zeros = [None] * 10

    yield "no input", b"", 0, TRUNCATED
    yield "block type 3", b"\x07", 0, BAD_HEADER
    yield "stored block", b"\x01\x03\x00\xfc\xffabc", 3, OK
    yield "stored block, length and complement differ", b"\x01\x03\x00\xfd\xffabc", 3, BAD_HEADER
    yield "stored block, cut", b"\x01\x03\x00\xfc\xffab", 3, TRUNCATED
    yield "stored block, cut in its length", b"\x01\x03\x00\xfc", 3, TRUNCATED
    yield "stored block, more than wanted", b"\x01\x03\x00\xfc\xffabc", 2, TOO_LONG
    yield "stored block, less than wanted", b"\x01\x03\x00\xfc\xffabc", 4, TOO_SHORT
    yield "stored block, with a byte after it", b"\x01\x03\x00\xfc\xffabc!", 3, TRAILING
    yield "stored block, not the last", b"\x00\x03\x00\xfc\xffabc", 3, TRUNCATED
    yield "nothing", fixed(end), 0, OK
    yield "nothing, where a byte is wanted", fixed(end), 1, TOO_SHORT
    yield "a byte, where none is wanted", fixed(a, end), 0, TOO_LONG
    yield "no end", fixed(a, a, a), 3, TRUNCATED
    yield "run", fixed(a, length_3, (0, 5, "code"), end), 4, OK
    yield "run, more than wanted", fixed(a, length_3, (0, 5, "code"), end), 3, TOO_LONG
    yield "distance before the start", fixed(a, length_3, (1, 5, "code"), end), 4, BAD_OFFSET
    yield "distance from nothing", fixed(length_3, (0, 5, "code"), end), 3, BAD_OFFSET
    for symbol in (30, 31):
        yield f"fixed distance {symbol}", fixed(a, length_3, (symbol, 5, "code"), (0, 14), end), 4, BAD_CODE
    for symbol in (286, 287):
        yield f"fixed length {symbol}", fixed(a, (0xC6 + symbol - 286, 8, "code"), (0, 5), end), 4, BAD_CODE
    blocks = Bits()
    for kind in (1, 1, 2, 1, 0, 1):
        if kind == 0:
            blocks.add(0, 3).add(0, -blocks.count % 8).add(0xFFFF0000, 32)
        elif kind == 1:
            blocks.add(0, 1).add(1, 2).code(a[:2]).code(end[:2])
        else:
            dynamic = header(two, [0], last=0).code((0, 1)).code((1, 1))
            blocks.add(dynamic.value, dynamic.count)
    yield "blocks of all types", blocks.add(1, 1).add(1, 2).code(end[:2]).bytes(), 5, OK
    longest = (0xC5, 8, "code")
    yield "length 258", fixed(a, longest, (0, 5, "code"), end), 259, OK

    yield "one code", header(one_end, [0]).add(0, 1).bytes(), 0, OK
    yield "one code, and the other bit", header(one_end, [0]).add(1, 1).bytes(), 0, BAD_CODE
    yield "one code of two bits", header(literal_lengths({256: 2}), [0]).add(0, 2).bytes(), 0, BAD_HEADER
    yield "incomplete", header(literal_lengths({97: 1, 256: 2}), [0]).add(2, 2).bytes(), 0, BAD_HEADER
    yield "over-subscribed", header(literal_lengths({97: 1, 98: 1, 256: 1}), [0]).bytes(), 0, BAD_HEADER
    yield "no end of block", header(literal_lengths({97: 1, 98: 1}), [0]).bytes(), 0, BAD_HEADER
    yield "no distances", header(two, [0]).add(0b10, 2).bytes(), 1, OK
    # Literals a, end, lengths 3 and 4: codes 00, 01, 10, 11, their highest bit first.
    match = (0b10, 2)
    for name, distances, code, status in [
        ("one distance", [1], (0, 1), OK),
        ("one distance, and the other bit", [1], (1, 1), BAD_CODE),
        ("one distance of two bits", [2], (0, 2), BAD_HEADER),
        ("no distance for a length", [0], (0, 1), BAD_CODE),
        ("three distances", [2, 2, 1], (0, 1), BAD_OFFSET),
        ("incomplete distances", [2, 2], (0, 2), BAD_HEADER),
        ("over-subscribed distances", [1, 1, 1], (0, 1), BAD_HEADER),
    ]:
        bits = header(with_match, distances).code((0, 2)).code(match).code(code).code((1, 2))
        yield name, bits.bytes(), 4, status
    for literals, distances in [(286, 30), (287, 1), (288, 1), (257, 31), (257, 32)]:
        lengths = literal_lengths({97: 1, 256: 1}, literals)
        status = OK if (literals, distances) == (286, 30) else BAD_HEADER
        bits = header(lengths, [0] * distances).code((0, 1)).code((1, 1))
        yield f"{literals} literals, {distances} distances", bits.bytes(), 1, status

    none = [None] * 257
    yield "repeats nothing", header(none, [None], repeats=[(16, 0, 2)]).bytes(), 0, BAD_HEADER
    ones = [(18, 97 - 11, 7), (1, 0, 0), (18, 127, 7), (18, 256 - 98 - 138 - 11, 7), (1, 0, 0)]
    repeats = header(none, [None], repeats=[*ones, (0, 0, 0)]).code((0, 1)).code((1, 1))
    yield "repeats of zeros", repeats.bytes(), 1, OK
    past = header(none, [None], repeats=[*ones, (17, 0, 3)]).code((0, 1)).code((1, 1))
    yield "repeats past the end", past.bytes(), 1, BAD_HEADER
    # Literals 253 to 256 and distances 0 to 3 have two bits each, by repeats across the border.
    across = [(18, 127, 7), (18, 253 - 138 - 11, 7), (2, 0, 0), (16, 1, 2), (16, 0, 2)]
    bits = header(none, [None] * 4, repeats=across).code((0, 2)).code((3, 2))
    yield "repeats into the distances", bits.bytes(), 1, OK
    yield "no code lengths", header(none, [None], length_lengths=[0] * 19).add(0, 300).bytes(), 0, BAD_HEADER
    one = [1, *[0] * 18]
    yield "one code length", header(none, [None], length_lengths=one).add(0, 300).bytes(), 0, BAD_HEADER
    many = [1, 1, 1, *[0] * 16]
    yield "too many code lengths", header(none, [None], length_lengths=many).bytes(), 0, BAD_HEADER
    yield "header cut", header(one_end, zeros[:1]).bytes()[:9], 0, TRUNCATED


@pytest.mark.parametrize("lanes", [1, 32])
def test_hand_made_streams(program, lanes):
    cases = list(hand_made())
    for name, encoded, size, status in cases:
        decoder = zlib.decompressobj(-15)
        try:
            decoded = decoder.decompress(encoded)
            valid = decoder.eof and not decoder.unused_data and len(decoded) == size
        except zlib.error:
            valid = False
        assert valid == (status == OK), name
    records = []
    for _, encoded, size, status in cases:
        checksum = zlib.crc32(zlib.decompressobj(-15).decompress(encoded)) if status == OK else 0
        records.append(stream(encoded, size, status, checksum, lanes=lanes))
    count, accepted = program("inflate_test", records)
    assert (count, accepted) == (len(cases), sum(status == OK for *_, status in cases))


def mutated(encoded, others, rng):
    """One of the ways in which a stream is damaged."""
    data = bytearray(encoded)
    kind = rng.randrange(8)
    near = rng.choice([len(data), min(len(data), 80)])  # headers are where most can go wrong
    if kind <= 2:
        for _ in range(rng.choice([1, 1, 2, 8])):
            i = rng.randrange(near)
            data[i] ^= 1 << rng.randrange(8)
    elif kind == 3:
        data[rng.randrange(near)] = rng.choice([0, 255, rng.randrange(256)])
    elif kind == 4:
        del data[rng.randrange(len(data)) :]
    elif kind == 5:
        other = rng.choice(others)
        data = data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]
    elif kind == 6:
        i = rng.randrange(near)
        data[i:i] = rng.randbytes(rng.choice([1, 4]))
    else:
        i = rng.randrange(near)
        del data[i : i + rng.choice([1, 4])]
    return bytes(data)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_streams(program, seed):
    """Whatever the damage: nothing outside the buffers, and zlib's verdict with zlib's bytes."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    originals = []
    for size in [1, 20, 200, 1000, 3000]:
        for data in samples(size, numbers):
            for level, strategy in [(1, 0), (6, 0), (6, zlib.Z_HUFFMAN_ONLY), (6, zlib.Z_FIXED), (0, 0)]:
                originals.append((deflate(data, level, strategy), size))
    originals += [(random_block(rng, n), 4 * n) for n in [1, 10, 100, 300] for _ in range(20)]
    streams = [encoded for encoded, _ in originals]
    records, invalid = [], 0
    while len(records) < 6000:
        encoded, size = rng.choice(originals)
        damaged = mutated(encoded, streams, rng)
        other = rng.choice([0] * 8 + [-1, 1, 40, -40])
        records.append(judged(damaged, size, other_size=other, offset=len(records) % 16))
        invalid += records[-1][8:12] != bytes(4)
    count, accepted = program("inflate_test", records)
    assert (count, count - accepted) == (len(records), invalid)
    assert accepted > 100 and invalid > 1000, "the damage should be neither always nor never fatal"


SIZES = [*range(41), 63, 64, 65, 127, 255, 256, 257, 263, 511, 1000, 4095, 16_384, 16_391, 40_000, 100_003]


def crc32c(data, table=[]):  # noqa: B006  the table is made once
    if not table:
        for value in range(256):
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            table.append(value)
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def fletcher32(data):
    from numcodecs import Fletcher32

    return struct.unpack("<I", bytes(Fletcher32().encode(data))[-4:])[0]


def xxh64(data):
    """The lowest 32 bits, as zstd stores them after a frame."""
    from numcodecs import Zstd

    return struct.unpack("<I", Zstd(level=1, checksum=True).encode(data)[-4:])[0]


CHECKS = {"crc32": (1, zlib.crc32), "adler32": (2, zlib.adler32), "xxh64": (3, xxh64)}
EMPTY = {"adler32": 1, "xxh64": 0x51D8E999}  # not every codec encodes nothing
CHECKS |= {"crc32c": (4, crc32c), "fletcher32": (5, fletcher32)}


def check(kind, lanes, offset, expected, data):
    return struct.pack("<5I", kind, lanes, offset, expected, len(data)) + data


def test_references():
    assert crc32c(b"123456789") == 0xE3069283
    assert [xxh64(data) for data in (b"a", b"abc")] == [0xA98C6E5B, 0xAD770999]


@pytest.mark.parametrize("name", quick(CHECKS, "adler32", "crc32c"))
def test_checksums(program, name):
    kind, reference = CHECKS[name]
    rng = np.random.default_rng(5)
    records = []
    for size in SIZES:
        for data in [rng.bytes(size), bytes(size), b"\xff" * size]:
            expected = reference(data) if size else EMPTY.get(name, 0)
            for lanes in (1, 64):
                offsets = range(16) if size < 65 else (0, 1, 2, 3, 8)
                records.extend(check(kind, lanes, offset, expected, data) for offset in offsets)
    data = rng.bytes(600_000) if name != "crc32c" else rng.bytes(300_000)
    expected = reference(data)
    records.extend(check(kind, lanes, 3, expected, data) for lanes in (1, 64))
    data = b"\xff" * len(data)  # the largest sums
    expected = reference(data)
    records.extend(check(kind, lanes, 0, expected, data) for lanes in (1, 64))
    assert program("checks_test", records) == [len(records)]


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<u4", "<i8"])
def test_deltas(program, dtype):
    """Prefix sums wrap around as numpy's do."""
    rng = np.random.default_rng(6)
    dtype = np.dtype(dtype)
    records = []
    for count in [*range(20), 255, 256, 257, 1023, 1024, 1025, 5000, 50_001]:
        data = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
        expected = np.cumsum(data, dtype=dtype).tobytes()
        for lanes in (1, 64):
            for offset in (0, dtype.itemsize, 16, 5):
                records.append(check(64 + dtype.itemsize, lanes, offset, 0, data.tobytes()) + expected)
    assert program("checks_test", records) == [len(records)]


def test_delta_of_numcodecs(program):
    from numcodecs import Delta

    data = np.random.default_rng(7).integers(-1000, 1000, 3000).astype("<i4")
    encoded = np.asarray(Delta(dtype="<i4").encode(data)).tobytes()
    assert program("checks_test", [check(68, 64, 0, 0, encoded) + data.tobytes()]) == [1]
