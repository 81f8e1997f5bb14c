"""Names of dimensions, and which arrays are coordinates of others, from the metadata of a store."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from zarr_dali._core import Objects

_AT_ONCE = 16
"""Requests at once."""
_REFERRING = ("coordinates", "bounds", "grid_mapping")
"""CF attributes that name arrays which belong to this one."""


@dataclass(frozen=True)
class Node:
    """What metadata say of an array or group."""

    dimensions: tuple[str, ...] = ()
    """Empty where not all have names."""
    attributes: Mapping[str, Any] = field(default_factory=dict)


def nodes_of(objects: Objects, names: Iterable[str]) -> dict[str, Node]:
    """The arrays of these paths and the root group, as "" if it is not an array itself.

    What cannot be read is as if nothing were said: whoever reads the array says why.
    """
    paths = dict.fromkeys(["", *names])
    known = _consolidated(objects)
    missing = [path for path in paths if path not in known]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return known | dict(zip(missing, pool.map(lambda path: _read(objects, path), missing)))


def coordinates_of(nodes: Mapping[str, Node], names: Iterable[str]) -> set[str]:
    """Arrays that belong to others: named like their only dimension, or by another's CF attributes.

    None where that would be all.
    """
    names = set(names)
    found = {name for name in names if nodes[name].dimensions == (posixpath.basename(name),)}
    for name, node in nodes.items():
        folder = posixpath.dirname(name)
        for attribute in _REFERRING:
            text = node.attributes.get(attribute)
            if isinstance(text, str):
                found.update(posixpath.join(folder, word) for word in re.findall(r"[^\s:]+", text))
    found &= names
    return found if found != names else set()


def _read(objects: Objects, path: str) -> Node:
    folder = f"{path}/" if path else ""
    node = _json(objects, f"{folder}zarr.json")
    return _node(node, None) if node is not None else _node(None, _json(objects, f"{folder}.zattrs"))


def _consolidated(objects: Objects) -> dict[str, Node]:
    """All nodes of a store with consolidated metadata."""
    root = _json(objects, "zarr.json")
    if root is not None:
        inside = (root.get("consolidated_metadata") or {}).get("metadata") or {}
        return {"": _node(root, None)} | {path: _node(one, None) for path, one in inside.items()}
    files = (_json(objects, ".zmetadata") or {}).get("metadata") or {}
    return {
        posixpath.dirname(key): _node(None, content)
        for key, content in files.items()
        if posixpath.basename(key) == ".zattrs"
    }


def _node(metadata: Any, attributes: Any) -> Node:
    """From `zarr.json`, or from `.zattrs` of Zarr v2."""
    if isinstance(metadata, dict):
        attributes, names = metadata.get("attributes"), metadata.get("dimension_names")
    else:
        names = attributes.get("_ARRAY_DIMENSIONS") if isinstance(attributes, dict) else None
    whole = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Node(tuple(names) if whole else (), attributes if isinstance(attributes, dict) else {})


def _json(objects: Objects, key: str) -> dict[str, Any] | None:
    try:
        found = objects.get(key)
        parsed = None if found is None else json.loads(found.content)
    except (RuntimeError, ValueError):
        return None
    return parsed if isinstance(parsed, dict) else None
