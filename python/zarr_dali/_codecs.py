"""Codec chains in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_SHUFFLES = {
    0: "none", 1: "byte", 2: "bit", -1: "auto", "noshuffle": "none", "shuffle": "byte", "bitshuffle": "bit",
}  # fmt: skip


def chain_in_words(codecs: Sequence[dict[str, Any]]) -> str:
    """A chain as people say it, such as `transpose([1,0]), zstd(0)`; little-endian bytes are not said."""
    words = [_in_words(short_name(codec), codec["configuration"]) for codec in codecs]
    return ", ".join(filter(None, words)) or "uncompressed"


def short_name(codec: dict[str, Any]) -> str:
    """The name without numcodecs' prefix, which only Zarr v3 has."""
    return codec["name"].removeprefix("numcodecs.")


def inner_codecs(codecs: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The codecs of a chain's read chunks: those inside its shards."""
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        return [_named(codec) for codec in codecs[0]["configuration"].get("codecs", [])]
    return codecs


def _named(codec: Any) -> dict[str, Any]:
    """Codecs inside others are as the metadata have them, where a name alone will do."""
    if isinstance(codec, str):
        return {"name": codec, "configuration": {}}
    return {"name": codec.get("name", "?"), "configuration": codec.get("configuration") or {}}


def _in_words(name: str, parameters: dict[str, Any]) -> str:
    if name == "bytes":
        return "bytes(big)" if parameters.get("endian") == "big" else ""
    if name == "sharding_indexed":
        inner = [_named(codec) for codec in parameters.get("codecs", [])]
        return f"sharded({chain_in_words(inner)})"
    if name == "blosc" and "cname" in parameters:
        shuffle = parameters.get("shuffle")
        shuffle = _SHUFFLES.get(shuffle, shuffle)
        return f"blosc({parameters['cname']}, shuffle={shuffle}, level {parameters.get('clevel')})"
    rest = dict(parameters)
    words = [_compact(rest.pop(key)) for key in ("level", "order") if key in rest]
    if "checksum" in rest:
        words += ["checksum"] * bool(rest.pop("checksum"))
    words += [f"{key}={_compact(value)}" for key, value in rest.items()]
    return f"{name}({', '.join(words)})" if words else name


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
