"""Damage to encoded chunks: of bytes anywhere, and of the fields that a format has, with values that are next
to right or far off.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from stores import crc32c


@dataclass(frozen=True)
class Field:
    """Bytes of a chunk that mean something to a decoder."""

    name: str
    start: int
    size: int
    endian: str = "little"

    def get(self, data):
        return int.from_bytes(data[self.start : self.start + self.size], self.endian)

    def set(self, data, value):
        value &= (1 << 8 * self.size) - 1
        data[self.start : self.start + self.size] = value.to_bytes(self.size, self.endian)


# --- where formats have their fields --------------------------------------------------------------
#
# Each function takes all bytes and the range that its format has; they trust the bytes, which are undamaged.


def raw(data, start, end):
    return []


def blosc(data, start, end):
    """The header, and the start and the streams of each block (c-blosc's README_CHUNK_FORMAT)."""
    places = {"version": (0, 1), "codec version": (1, 1), "flags": (2, 1), "typesize": (3, 1)}
    places |= {"nbytes": (4, 4), "blocksize": (8, 4), "cbytes": (12, 4)}
    fields = [Field(f"blosc {name}", start + at, size) for name, (at, size) in places.items()]
    flags, typesize = data[start + 2], data[start + 3]
    nbytes, blocksize = (int.from_bytes(data[start + at : start + at + 4], "little") for at in (4, 8))
    if flags & 2:
        return fields
    inner = (raw, lz4_block, snappy, zlib, zstd)[flags >> 5]
    for block in range(-(-nbytes // blocksize)):
        begin = Field("blosc block start", start + 16 + 4 * block, 4)
        fields.append(begin)
        size = min(blocksize, nbytes - block * blocksize)
        splits = typesize if not flags & 0x10 and typesize <= 16 and size == blocksize else 1
        at = start + begin.get(data)
        for _ in range(splits):
            length = Field("blosc stream length", at, 4)
            fields.append(length)
            stop = at + 4 + length.get(data)
            if length.get(data) < size // splits:
                fields += inner(data, at + 4, stop)
            at = stop
    return fields


def zstd(data, start, end):
    """Frame header, block headers, the head of each block's literals, checksum (RFC 8878)."""
    descriptor = data[start + 4]
    single_segment = descriptor >> 5 & 1
    fields = [Field("zstd magic", start, 4), Field("zstd descriptor", start + 4, 1)]
    at = start + 5
    if not single_segment:
        fields.append(Field("zstd window", at, 1))
        at += 1
    if size := (single_segment, 2, 4, 8)[descriptor >> 6]:
        fields.append(Field("zstd content size", at, size))
        at += size
    last = 0
    while not last:
        header = Field("zstd block header", at, 3)
        last, kind, size = header.get(data) & 1, header.get(data) >> 1 & 3, header.get(data) >> 3
        fields.append(header)
        if kind == 2:
            fields += _zstd_block(data, at + 3)
        at += 3 + (1 if kind == 1 else size)
    if descriptor & 4:
        fields.append(Field("zstd checksum", at, 4))
    return fields


def _zstd_block(data, at):
    """The headers of its literals and of its sequences, and the Huffman and FSE tables behind them."""
    kind, form = data[at] & 3, data[at] >> 2 & 3
    if kind < 2:
        header = (1, 2, 1, 3)[form]
        regenerated = int.from_bytes(data[at : at + header], "little") >> (4 if form & 1 else 3)
        tables, size = [], 1 if kind == 1 else regenerated
    else:
        header, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        size = int.from_bytes(data[at : at + header], "little") >> 4 + bits & (1 << bits) - 1
        tables = [Field("zstd Huffman table", at + header, 2)] if kind == 2 else []
    sequences = at + header + size
    count = 1 + (data[sequences] > 127) + (data[sequences] == 255)
    modes = [Field("zstd table modes", sequences + count, 1), Field("zstd tables", sequences + count + 1, 2)]
    return [
        Field("zstd literals", at, header),
        *tables,
        Field("zstd sequences", sequences, count),
        *(modes if data[sequences] else []),
    ]


def deflate(data, start, end):
    return [Field("deflate block", start, 3), Field("deflate tables", start + 3, 4)]


def gzip(data, start, end):
    """A member without optional fields (RFC 1952)."""
    places = {"id": (0, 2), "method": (2, 1), "flags": (3, 1), "extra flags": (8, 1)}
    return [
        *(Field(f"gzip {name}", start + at, size) for name, (at, size) in places.items()),
        *deflate(data, start + 10, end - 8),
        Field("gzip crc", end - 8, 4),
        Field("gzip size", end - 4, 4),
    ]


def zlib(data, start, end):
    """A stream (RFC 1950)."""
    return [
        Field("zlib method", start, 1),
        Field("zlib flags", start + 1, 1),
        *deflate(data, start + 2, end - 4),
        Field("zlib adler", end - 4, 4, "big"),
    ]


def lz4(data, start, end):
    """numcodecs' size and the block."""
    return [Field("lz4 size", start, 4), *lz4_block(data, start + 4, end)]


def lz4_block(data, start, end):
    """Token, long lengths and offset of each sequence."""
    fields, at = [], start

    def length(nibble, name):
        nonlocal at
        total = nibble
        while nibble == 15:
            fields.append(Field(f"lz4 {name} length", at, 1))
            total += data[at]
            at += 1
            if data[at - 1] < 255:
                break
        return total

    while at < end:
        token = data[at]
        fields.append(Field("lz4 token", at, 1))
        at += 1
        literals = length(token >> 4, "literal")
        at += literals
        if at >= end:
            break
        fields.append(Field("lz4 offset", at, 2))
        at += 2
        length(token & 15, "match")
    return fields


def snappy(data, start, end):
    """The size, and the tag and offset of each element."""
    at = start
    while data[at] & 128:
        at += 1
    fields = [Field("snappy size", start, at + 1 - start)]
    at += 1
    while at < end:
        tag = data[at]
        fields.append(Field("snappy tag", at, 1))
        if tag & 3:
            size = (0, 1, 2, 4)[tag & 3]
            fields.append(Field("snappy offset", at + 1, size))
            at += 1 + size
        else:
            size = max(0, (tag >> 2) - 59)
            length = tag >> 2 if not size else int.from_bytes(data[at + 1 : at + 1 + size], "little")
            at += 2 + size + length
    return fields


def followed_by(inner, name):
    """A checksum behind what `inner` describes."""
    return lambda data, start, end: [*inner(data, start, end - 4), Field(name, end - 4, 4)]


def preceded_by(inner, name):
    """A checksum before it."""
    return lambda data, start, end: [Field(name, start, 4), *inner(data, start + 4, end)]


@dataclass(frozen=True)
class Index:
    """The index of a sharded chunk."""

    entries: int
    at_start: bool = False
    checksum: bool = True

    def span(self, data):
        """Where it lies, without its checksum."""
        size = 16 * self.entries
        start = 0 if self.at_start else len(data) - size - 4 * self.checksum
        return start, start + size

    def repair(self, data):
        """Makes its checksum right."""
        start, end = self.span(data)
        if self.checksum and start >= 0:
            data[end : end + 4] = crc32c(data[start:end]).to_bytes(4, "little")

    def fields(self, inner):
        def find(data, start, end):
            first, _ = self.span(data)
            fields = []
            for at in range(first, first + 16 * self.entries, 16):
                offset, size = Field("index offset", at, 8), Field("index size", at + 8, 8)
                fields += [offset, size]
                fields += inner(data, offset.get(data), offset.get(data) + size.get(data))
            if self.checksum:
                fields.append(Field("index checksum", first + 16 * self.entries, 4))
            return fields

        return find


def repair_crc32c(data):
    """Makes a checksum at the end right."""
    if len(data) >= 4:
        data[-4:] = crc32c(data[:-4]).to_bytes(4, "little")


# --- what is done to them -------------------------------------------------------------------------


def _flip(random, data, other):
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random, data, other):
    for _ in range(random.choice((1, 1, 2, 4))):
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _truncate(random, data, other):
    keep = random.choice((0, 1, len(data) - 1, len(data) - 4, len(data) // 2, random.randrange(len(data))))
    del data[max(keep, 0) :]


def _extend(random, data, other):
    more = random.choice((1, 4, 16, 1000))
    data += random.choice((bytes(more), random.randbytes(more), bytes(data[:more]), bytes(other)))


def _range(random, data, most=200):
    start = random.randrange(len(data))
    return start, min(len(data), start + random.randint(1, most))


def _zero(random, data, other):
    start, end = _range(random, data)
    data[start:end] = bytes(end - start)


def _duplicate(random, data, other):
    start, end = _range(random, data)
    data[start:start] = data[start:end]


def _cut(random, data, other):
    start, end = _range(random, data)
    del data[start:end]


def _move(random, data, other):
    """Bytes over other bytes of the same chunk; the length stays."""
    start, end = _range(random, data)
    to = random.randrange(len(data) - (end - start) + 1)
    data[to : to + end - start] = data[start:end]


def _splice(random, data, other):
    """Bytes of another chunk, from the same place."""
    start, end = _range(random, data)
    data[start:end] = other[start:end]


def _swap(random, data, other):
    """Another chunk, whole."""
    data[:] = other


ANYWHERE = {
    "flip": _flip,
    "set": _set,
    "truncate": _truncate,
    "extend": _extend,
    "zero": _zero,
    "duplicate": _duplicate,
    "cut": _cut,
    "move": _move,
    "splice": _splice,
    "swap": _swap,
}


def _field(random, data, fields):
    """Gives a field, picked by its name first, another value; returns the name."""
    name = random.choice(sorted({field.name for field in fields}))
    alike = [field for field in fields if field.name == name]
    field = random.choice(alike)
    value, bits = field.get(data), 8 * field.size
    near = random.choice((-4, -2, -1, 1, 2, 4, 16))
    field.set(
        data,
        random.choice(
            (
                *(0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1),
                *(value + near, value + near, value + near, 2 * value, value // 2, value + len(data)),
                *(value ^ 1 << random.randrange(bits), value ^ 1 << random.randrange(bits)),
                *(random.choice(alike).get(data), random.getrandbits(bits), random.randrange(len(data) + 1)),
            )
        ),
    )
    return name


def mutate(random: Random, chunk: bytes, other: bytes, find: Callable, repair: Callable | None):
    """A damaged copy of a chunk, and the kind of the damage.

    `other` is another chunk of the same array, `find` tells the fields, and `repair` makes right again the
    checksum that would notice everything.
    """
    fields = find(chunk, 0, len(chunk))
    while True:
        data = bytearray(chunk)
        if fields and random.random() < 0.5:
            kind = _field(random, data, fields)
        else:
            kind = random.choice(sorted(ANYWHERE))
            ANYWHERE[kind](random, data, other)
        if repair and data and random.random() < 0.6:
            repair(data)
        if data != chunk:
            return bytes(data), kind
