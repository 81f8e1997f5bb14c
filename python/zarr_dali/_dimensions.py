"""Names of dimensions, and which arrays are coordinates of others, from the metadata of a store.

The one place that says what the dimensions of an array are called: by Zarr v3 (`dimension_names`), by
xarray's convention for Zarr v2 (`_ARRAY_DIMENSIONS`), or by the OME-Zarr image that the array belongs to. The
core has the same rules (src/dataset/layout.rs, src/dataset/ome.rs).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_dali import _ome
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
    own: bool = True
    """Whether the names are the array's own, and not those of the image that it belongs to."""


def nodes_of(objects: Objects, names: Iterable[str]) -> dict[str, Node]:
    """The nodes of these paths, and the groups that they are in up to the root, which is "".

    What cannot be read is as if nothing were said: whoever reads the array says why.
    """
    names = list(names)
    paths = dict.fromkeys(["", *names, *(group for name in names for group in _groups(name))])
    known = _consolidated(objects)
    missing = [path for path in paths if path not in known]
    nodes = known | dict(zip(missing, _each(objects, missing)))
    for name in names:
        if not nodes[name].dimensions and (image := image_around(nodes, name)):
            group, path = image
            axes = _ome.names_of(nodes[group].attributes, path) or ()
            nodes[name] = replace(nodes[name], dimensions=axes, own=False)
    return nodes


def image_around(nodes: Mapping[str, Node], name: str) -> tuple[str, str] | None:
    """The group of the OME-Zarr image that an array is a level of, and the path of the array below it."""
    for group in _groups(name):
        path = name[len(group) :].strip("/")
        if group in nodes and _ome.has_array(nodes[group].attributes, path):
            return group, path
    return None


def names_of(
    declared: Sequence[str | None] | None, dimensions: int, axes: Sequence[str] | None
) -> tuple[str | None, ...]:
    """Names of an array's dimensions, None for those without: its own, else the axes of its image."""
    for names in (declared, axes):
        if isinstance(names, (list, tuple)) and len(names) == dimensions and any(names):
            return tuple(names)
    return (None,) * dimensions


def shape_of(objects: Objects, name: str) -> tuple[int, ...] | None:
    """The extents of an array; None if there is none, or its metadata do not say."""
    for file in ("zarr.json", ".zarray"):
        found = _json(objects, f"{name}/{file}" if name else file)
        shape = (found or {}).get("shape")
        if isinstance(shape, list) and all(isinstance(extent, int) for extent in shape):
            return tuple(shape)
    return None


def _groups(name: str) -> list[str]:
    """The groups that a node is in, from the inmost to the root."""
    found = []
    while name:
        name = posixpath.dirname(name)
        found.append(name)
    return found


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


def _each(objects: Objects, paths: Sequence[str]) -> list[Node]:
    """Nodes in the order of their paths, requested at the same time where that takes requests."""
    if objects.is_folder:
        return [_read(objects, path) for path in paths]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda path: _read(objects, path), paths))


def _read(objects: Objects, path: str) -> Node:
    folder = f"{path}/" if path else ""
    node = _json(objects, f"{folder}zarr.json")
    return _node(node, None) if node is not None else _node(None, _json(objects, f"{folder}.zattrs"))


def _consolidated(objects: Objects) -> dict[str, Node]:
    """All nodes of a store with consolidated metadata."""
    root = _json(objects, "zarr.json")
    if root is not None:
        inside = _dict(_dict(root.get("consolidated_metadata")).get("metadata"))
        return {"": _node(root, None)} | {path: _node(one, None) for path, one in inside.items()}
    files = _dict((_json(objects, ".zmetadata") or {}).get("metadata"))
    return {
        posixpath.dirname(key): _node(None, content)
        for key, content in files.items()
        if posixpath.basename(key) == ".zattrs"
    }


def _dict(value: Any) -> dict[str, Any]:
    """The value, or nothing where it is no dictionary, which the reader ignores as well."""
    return value if isinstance(value, dict) else {}


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
