"""Where the repository of an Icechunk session is.

A session has no attribute that tells it. It is in the bytes that a session is pickled to, in msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

_SIZES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"} | {
    0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I",
}  # fmt: skip
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_S3_CONFIG = ("region", "endpoint_url", "anonymous")
"""The first of the values of a storage's configuration."""
_KEYS = ("key", "secret", "token")


def place_of(session: Any, given: Any) -> tuple[str, dict[str, Any]]:
    """The snapshot of a session as the reader names it, and credentials; none of them where some are given.

    Raises:
        ValueError: The session has changes that are not committed, or its repository or its credentials
            cannot be found out.
    """
    if session.has_uncommitted_changes:
        raise ValueError(
            "path: the Icechunk session has changes that are not committed, and only snapshots are read; "
            "commit first"
        )
    snapshot = session.snapshot_id
    unknown = (
        "path: where the repository of this Icechunk session is cannot be found out; give its path or URL: "
        f'"PATH|icechunk:@{snapshot}"'
    )
    try:
        storage = next(_storages(_parsed(session._session.as_bytes())))
        place, options = _place_and_options(storage)
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError, struct.error) as error:
        raise ValueError(unknown) from error
    if given is None and options is None:
        raise ValueError(
            f"path: the credentials of the Icechunk repository {place} are made by a function and cannot be "
            'taken over; give storage_options with "key", "secret" and "token"'
        )
    return f"{place}|icechunk:@{snapshot}", {} if given is not None else options


def _storages(value: Any) -> Iterator[Mapping[str, Any]]:
    """The descriptions of storages in what a session holds, its repository's first."""
    if isinstance(value, dict):
        if str(value.get("type", "")).endswith("Storage"):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _storages(one)


def _place_and_options(storage: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """A storage as a path or URL, and as `storage_options`, None where they cannot be known."""
    if storage["type"] == "S3Storage":
        config = dict(zip(_S3_CONFIG, storage["config"]))
        options: dict[str, Any] | None = {
            name: config[name] for name in ("region", "endpoint_url") if config[name]
        }
        kind = _kind_of(storage["credentials"])
        if config["anonymous"] or kind == "anonymous":
            options["anon"] = True
        elif kind == "static":
            options |= {name: value for name, value in zip(_KEYS, storage["credentials"][1:]) if value}
        elif kind != "from_env":
            options = None
        return f"s3://{storage['bucket']}/{storage['prefix'] or ''}".rstrip("/"), options
    backend = storage["backend"]
    if "local_file_system" not in backend["object_store_provider_type"]:
        raise LookupError("a storage of another kind")
    return backend["path"], {}


def _kind_of(credentials: Any) -> str:
    return credentials[0] if isinstance(credentials, list) else str(credentials)


def _parsed(content: bytes) -> Any:
    """The first value in msgpack, without its extensions.

    Source: https://github.com/msgpack/msgpack/blob/master/spec.md.
    """
    value, _ = _value(content, 0)
    return value


def _value(content: bytes, at: int) -> tuple[Any, int]:
    """A value and where the next begins."""
    kind, at = content[at], at + 1
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind < 0x80 or kind >= 0xE0:
        return kind - 0x100 * (kind >= 0xE0), at
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], content, at)
        return number, at + struct.calcsize(_NUMBERS[kind])
    if kind in _SIZES:
        (size,) = struct.unpack_from(_SIZES[kind], content, at)
        at += struct.calcsize(_SIZES[kind])
    elif kind < 0xC0:
        size = kind & (0x1F if kind >= 0xA0 else 0x0F)
    else:
        raise ValueError(f"no value of msgpack begins with the byte {kind}")
    if 0x80 <= kind < 0x90 or kind in (0xDE, 0xDF):
        entries = {}
        for _ in range(size):
            name, at = _value(content, at)
            entries[name], at = _value(content, at)
        return entries, at
    if 0x90 <= kind < 0xA0 or kind in (0xDC, 0xDD):
        values = []
        for _ in range(size):
            value, at = _value(content, at)
            values.append(value)
        return values, at
    piece = content[at : at + size]
    return (piece if kind in (0xC4, 0xC5, 0xC6) else piece.decode()), at + size
