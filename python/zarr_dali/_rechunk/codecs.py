"""Codecs of the destination, as zarr-python's `create_array` takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.registry import get_codec_class

CODECS = "blosc-lz4[:level], blosc-zstd[:level], zstd[:level], none and keep"
_LEVELS = {"blosc-lz4": (5, 0, 9), "blosc-zstd": (3, 0, 9), "zstd": (0, -131072, 22)}
"""Level if none is given, least and most."""
_ON_BYTES = ("shuffle", "fletcher32", "adler32", "crc32", "crc32c", "jenkins_lookup3")
"""What Zarr v2 has among its filters and Zarr v3 among the compressors."""


@dataclass(frozen=True)
class Chain:
    """A codec chain: `filters` on arrays, a `serializer` to bytes and `compressors` on them."""

    filters: tuple[Any, ...]
    serializer: Any
    compressors: tuple[Any, ...]

    def arguments(self) -> dict[str, Any]:
        """For `zarr.create_array`."""
        return {
            "filters": self.filters or None,
            "serializer": self.serializer,
            "compressors": self.compressors or None,
        }


def check(codec: str) -> None:
    """Raises ValueError where no codec is meant."""
    if codec not in ("none", "keep"):
        _level(codec)


def chain_of(codec: str, source: zarr.Array) -> Chain:
    """The chain for a copy of an array.

    Args:
        codec: "keep", "none", or a name of `CODECS`, with ":level" or without.
        source: What is copied.

    Raises:
        ValueError: The codec is none of these, or the source's chain has no form in Zarr v3.
    """
    if codec == "keep":
        return _kept_v2(source) if source.metadata.zarr_format == 2 else _kept_v3(source)
    kind = np.dtype(source.dtype)
    serializer = "auto" if kind.kind in "OTSUV" or kind.itemsize == 1 else BytesCodec(endian="little")
    if codec == "none":
        return Chain((), serializer, ())
    name, level = _level(codec)
    if name == "zstd":
        return Chain((), serializer, (ZstdCodec(level=level),))
    # Strings have no size that a shuffle could work with.
    shuffled = kind.kind not in "OT" and kind.itemsize > 1
    blosc = BloscCodec(
        cname=name.removeprefix("blosc-"),
        clevel=level,
        shuffle="shuffle" if shuffled else "noshuffle",
        typesize=kind.itemsize if shuffled and kind.itemsize < 256 else 1,
    )
    return Chain((), serializer, (blosc,))


def _level(codec: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z0-9-]+?)(?::(-?\d+))?", codec)
    if not match or match[1] not in _LEVELS:
        raise ValueError(f"codec {codec!r} is none of {CODECS}")
    usual, least, most = _LEVELS[match[1]]
    level = usual if match[2] is None else int(match[2])
    if not least <= level <= most:
        raise ValueError(f"codec {codec!r}: levels of {match[1]} are {least} to {most}")
    return match[1], level


def _kept_v3(source: zarr.Array) -> Chain:
    return Chain(tuple(source.filters), source.serializer, tuple(source.compressors))


def _kept_v2(source: zarr.Array) -> Chain:
    """The chain of a Zarr v2 array in the words of Zarr v3."""
    kind = np.dtype(source.dtype)
    filters: list[Any] = []
    compressors: list[Any] = []
    if source.order == "F" and source.ndim > 1:
        filters.append(TransposeCodec(order=tuple(reversed(range(source.ndim)))))
    strings = kind.kind in "OT"
    for codec in source.filters:
        name = codec.get_config()["id"]
        if strings and name.startswith("vlen-"):
            continue  # the serializer of that type in Zarr v3
        (compressors if name in _ON_BYTES else filters).append(_as_v3(codec, kind))
    compressors += [_as_v3(codec, kind) for codec in source.compressors]
    serializer: Any = "auto"
    if kind.itemsize > 1 and kind.kind not in "OTSUV":
        big = kind.byteorder == ">"
        serializer = BytesCodec(endian="big" if big else "little")
    return Chain(tuple(filters), serializer, tuple(compressors))


def _as_v3(codec: Any, kind: np.dtype) -> Any:
    """One numcodecs codec; what Zarr v3 has no codec of its own for gets numcodecs' prefix."""
    config = dict(codec.get_config())
    name = config.pop("id")
    if name == "zstd":
        return ZstdCodec(level=config["level"], checksum=bool(config.get("checksum")))
    if name == "gzip":
        return GzipCodec(level=config["level"])
    if name == "blosc":
        # -1 leaves the choice to numcodecs: bits of single bytes, bytes of all else.
        automatic = "bitshuffle" if kind.itemsize == 1 else "shuffle"
        shuffle = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: automatic}[config["shuffle"]]
        typesize = kind.itemsize if kind.kind not in "OT" and kind.itemsize < 256 else 1
        return BloscCodec(
            cname=config["cname"],
            clevel=config["clevel"],
            shuffle=shuffle,
            typesize=typesize,
            blocksize=config["blocksize"],
        )
    try:
        return get_codec_class(f"numcodecs.{name}")(**config)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'the codec "{name}" has no form in Zarr v3; choose another than "keep": {CODECS}'
        ) from error
