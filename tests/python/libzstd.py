"""libzstd by ctypes: its encoder, with settings that lead to other kinds of blocks, and its decoder."""

import ctypes
import ctypes.util
import functools

LEVEL, WINDOW_LOG, MIN_MATCH, STRATEGY = 100, 101, 105, 107
CONTENT_SIZE, CHECKSUM = 200, 201
LITERAL_MODE, MAX_BLOCK_SIZE, TARGET_BLOCK_SIZE = 1002, 1015, 1003
IGNORE_CHECKSUM = 1002
"""Parameters of `ZSTD_CCtx_setParameter` and, the last one, of `ZSTD_DCtx_setParameter`. Those above 500 are
experimental: a library without one ignores it here."""


class Buffer(ctypes.Structure):
    """`ZSTD_inBuffer` and `ZSTD_outBuffer`."""

    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t), ("used", ctypes.c_size_t)]


@functools.cache
def library():
    """The library, or None."""
    name = ctypes.util.find_library("zstd")
    if not name:
        return None
    zstd = ctypes.CDLL(name)
    zstd.ZSTD_createCCtx.restype = zstd.ZSTD_createDCtx.restype = ctypes.c_void_p
    for function in [
        "ZSTD_compressStream",
        "ZSTD_decompressDCtx",
        "ZSTD_compressBound",
        "ZSTD_compressStream2",
    ]:
        getattr(zstd, function).restype = ctypes.c_size_t
    return zstd


@functools.cache
def context():
    return ctypes.c_void_p(library().ZSTD_createCCtx())


def encode(data, settings, flush_every=0):
    """One frame with `settings`, a dict of parameters; each `flush_every` bytes end a block."""
    zstd, encoder = library(), context()
    zstd.ZSTD_CCtx_reset(encoder, 3)
    for parameter, value in settings.items():
        zstd.ZSTD_CCtx_setParameter(encoder, parameter, value)
    room = zstd.ZSTD_compressBound(ctypes.c_size_t(len(data))) + 64
    room += 32 * (len(data) // flush_every + 1 if flush_every else 0)
    encoded, source = ctypes.create_string_buffer(room), ctypes.create_string_buffer(data, len(data))
    output = Buffer(ctypes.addressof(encoded), room, 0)
    inputs = Buffer(ctypes.addressof(source), 0, 0)
    while True:
        inputs.size = min(len(data), inputs.size + (flush_every or len(data)))
        last = inputs.size == len(data)
        operation = 2 if last else 1  # end, flush
        left = zstd.ZSTD_compressStream2(encoder, ctypes.byref(output), ctypes.byref(inputs), operation)
        assert left == 0, "libzstd does not encode"
        if last:
            return encoded.raw[: output.used]


@functools.cache
def decoder():
    decoder = ctypes.c_void_p(library().ZSTD_createDCtx())
    library().ZSTD_DCtx_setParameter(decoder, IGNORE_CHECKSUM, 1)
    return decoder


def decode(encoded, size):
    """What libzstd makes of it if that has `size` bytes, else None. Checksums are not verified."""
    decoded = ctypes.create_string_buffer(size + 1)
    length = library().ZSTD_decompressDCtx(
        decoder(), decoded, ctypes.c_size_t(size), encoded, ctypes.c_size_t(len(encoded))
    )
    return decoded.raw[:size] if length == size else None
