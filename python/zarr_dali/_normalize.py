"""Means and standard deviations as people have them, in the form that the operator's `normalize` takes."""

from __future__ import annotations

import functools
import json
import math
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zarr_dali import _keys, _labels
from zarr_dali._coordinates import Coordinates, some

Normalize = str | os.PathLike | Mapping[str, Any] | Sequence[Any]


def as_json(normalize: Normalize) -> str:
    """`normalize` as the operator takes it: the text itself, what a file holds, or an object as JSON.

    Raises:
        ValueError: There is no such file, or the object holds what JSON does not have.
    """
    if isinstance(normalize, str) and normalize.lstrip()[:1] in ("{", "["):
        return normalize
    if isinstance(normalize, (str, os.PathLike)):
        try:
            with open(normalize, encoding="utf-8") as file:
                text = file.read()
            json.loads(text)
            return text
        except (OSError, ValueError) as error:
            raise ValueError(
                f"normalize: no statistics can be read from {os.fspath(normalize)!r} ({error}); give a file "
                "of JSON as `zarr-dali statistics -o FILE` writes it, or a dictionary"
            ) from error
    try:
        return json.dumps(normalize, default=plain)
    except TypeError as error:
        raise ValueError(f"normalize: {error}") from error


def reader_arguments(arguments: Mapping[str, Any], arrays: Sequence[str]) -> dict[str, Any]:
    """The reader's arguments, with `normalize` as text, of which lists in `mean` and `std` become a part.

    Raises:
        ValueError: As `as_json`, or a list has another number of entries than there are arrays.
    """
    chosen = dict(arguments)
    if chosen.get("normalize") is not None:
        chosen["normalize"] = as_json(chosen["normalize"])
    given = {name: chosen.get(name) for name in ("mean", "std")}
    for name, value in given.items():
        if _is_list(value) and len(value) not in (1, max(1, len(arrays))):
            raise ValueError(
                f"{name}: it has {len(value)} entries for {max(1, len(arrays))} array(s); give one for each, "
                f"which may be a list with a number for each index of a dimension, as in {name}=[[220, 250]]"
            )
    if any(isinstance(value, (list, tuple)) and any(map(_is_list, value)) for value in given.values()):
        if chosen.get("normalize"):
            raise ValueError("normalize: it says what mean and std say, too; give one of them")
        chosen = {name: value for name, value in chosen.items() if name not in given}
        chosen["normalize"] = json.dumps(_of_lists(given, max(1, len(arrays))), default=plain)
    return chosen


def by_array(arguments: Mapping[str, Any], arrays: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """The reader's arguments, with `normalize` as a list where it names arrays by their keys in a batch.

    Args:
        arguments: Those of the reader, with `normalize` as text.
        arrays: Those that are read.
        keys: Those of the outputs, without that of the indices. Of stacked arrays, which are one output, the
            names are those of the arrays.

    Raises:
        ValueError: A name is the key of one array and the name of another, an array is named twice, or a name
            is neither, while an array has none.
    """
    chosen = dict(arguments)
    try:
        entries = json.loads(chosen.get("normalize") or "null")
    except ValueError:  # the reader says it
        return chosen
    arrays = arrays or [""]  # `path` itself is the array
    if not isinstance(entries, dict) or len(arrays) != len(keys):
        return chosen
    found = _keys.places("normalize", entries, arrays, keys)
    if all(name.strip("/") == arrays[at].strip("/") for at, name in found.items()):
        return chosen
    unknown = [name for name in entries if name not in found.values()]
    absent = [at for at in range(len(arrays)) if at not in found]
    if unknown and absent:
        raise ValueError(
            f'normalize: it names "{unknown[0]}", which is no array and no key of a batch, and not '
            f'"{keys[absent[0]]}", which is one; correct the name, or give "{keys[absent[0]]}": None to '
            "leave that array as it is"
        )
    chosen["normalize"] = json.dumps([entries.get(found.get(at)) for at in range(len(arrays))])
    return chosen


def by_label(
    arguments: Mapping[str, Any],
    arrays: Sequence[str],
    stores: Callable[[], Sequence[tuple[str, Coordinates]]],
) -> dict[str, Any]:
    """The reader's arguments, with `normalize` by the store's indices where statistics have labels.

    An index takes the numbers of its label, wherever that stands among the labels. Indices that are not read
    need none. Statistics without labels stay as they are, as do all where coordinates cannot be read.

    Args:
        arguments: Those of the reader, with `normalize` as text.
        arrays: Those that are read.
        stores: Reads the coordinates of the stores, which only labels need.

    Raises:
        ValueError: A label that is read is not among those of the statistics.
    """
    chosen = dict(arguments)
    try:
        entries = json.loads(chosen.get("normalize") or "null")
        names = _names_read(entries, arrays, chosen["path"])
        labelled = {at: name for at, name in names.items() if _has_labels(entries[at])}
        if not labelled:
            return chosen
        opened = stores()
        known = opened if chosen.get("join") == "separate" else [("", Coordinates.joined(opened))]
        places = list(_read_of([part for _, part in known], chosen))
    except (ImportError, TypeError, ValueError):  # no xarray or coordinates, or what the reader refuses
        return chosen
    for at, name in labelled.items():
        entries[at] = _by_index(name, entries[at], places)
    return chosen | {"normalize": json.dumps(entries)}


def _names_read(entries: Any, arrays: Sequence[str], path: Any) -> dict[Any, str]:
    """Of the entries of arrays that are read: the names of these, by name or number of the entry."""
    if isinstance(entries, list):
        return {at: arrays[at] if at < len(arrays) else "" for at in range(len(entries))}
    if not isinstance(entries, dict):
        return {}
    read = {name.strip("/") for name in arrays}
    if not arrays:  # `path` itself is the array
        first = path if isinstance(path, (str, os.PathLike)) else next(iter(path), "")
        read = {posixpath.basename(os.fspath(first).rstrip("/"))} & set(entries) or set(entries)
    return {name: name for name in entries if name.strip("/") in read}


def _has_labels(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("labels"), list) and "dim" in entry


def _read_of(
    stores: Sequence[Coordinates], arguments: Mapping[str, Any]
) -> Iterator[tuple[Coordinates, Callable[[str], Sequence[int]]]]:
    """Of each store that is not left out, its coordinates and what tells the indices of a dimension that are
    read."""
    pieces = json.loads(arguments.get("select") or "{}")
    own = json.loads(arguments.get("per_store") or "null") or [{}] * len(stores)
    for known, region in zip(stores, own):
        if region is not None:
            yield known, functools.partial(_indices_read, known, pieces, {**arguments, **region})


def _indices_read(
    known: Coordinates, pieces: Mapping[str, Any], region: Mapping[str, Any], dimension: str
) -> Sequence[int]:
    indices: Sequence[int] = range(known.sizes[dimension])
    if dimension in pieces:
        parts = [range(*one) if isinstance(one, list) else [one] for one in pieces[dimension]]
        indices = [index for part in parts for index in part]
    if dimension not in known.dimensions:
        return indices
    at = known.dimensions.index(dimension)
    start, end = ((region.get(name) or [])[at : at + 1] for name in ("roi_start", "roi_end"))
    return indices[slice(*(start or [None]), *(end or [None]))]


def _by_index(
    name: str,
    entry: Mapping[str, Any],
    stores: Sequence[tuple[Coordinates, Callable[[str], Sequence[int]]]],
) -> Mapping[str, Any]:
    """The statistics of an array, with a number for each of the store's indices.

    Raises:
        ValueError: A label that is read is not there, or several stores have others at one index.
    """
    dimension, labels = entry["dim"], entry["labels"]
    where = f'normalize: the statistics of "{name}"' if name else "normalize: the statistics"
    lists = {key: entry[key] for key in ("mean", "std") if isinstance(entry.get(key), list)}
    for key, numbers in lists.items():
        if len(numbers) != len(labels):
            raise ValueError(f'{where} have {len(labels)} "labels" and {len(numbers)} numbers in "{key}"')
    found: dict[int, int] = {}
    size = 0
    for known, read in stores:
        index = known.indexes.get(dimension)
        if index is None or dimension == known.dimensions[0]:  # the reader says what is wrong, if it is
            return entry
        there, size = _labels.as_list(index), max(size, len(index))
        absent = []
        for at in read(dimension):
            place = _place_of(there[at], labels, at)
            if place is None:
                absent.append(there[at])
            elif found.setdefault(at, place) != place:
                raise ValueError(
                    f"{where} have labels along {dimension}, and the stores have others at index {at}: "
                    f"{labels[found[at]]} and {labels[place]}; give each store a reader of its own"
                )
        if absent:
            raise ValueError(
                f"{where} have none for {dimension}={some(absent)}, only for {some(labels)}; select among "
                'these, take statistics of all that is read, or leave "labels" out, so that numbers are by '
                "index"
            )
    # Of indices that are not read the reader wants a number, too.
    whole = {
        key: [numbers[found[at]] if at in found else nothing for at in range(size)]
        for key, nothing in (("mean", 0.0), ("std", 1.0))
        if (numbers := lists.get(key)) is not None
    }
    return {key: value for key, value in entry.items() if not isinstance(value, list)} | whole


def _place_of(label: Any, labels: Sequence[Any], index: int) -> int | None:
    """Where a label is among those of statistics: at the same index, exactly the same, or nearly."""
    if index < len(labels) and label == labels[index]:
        return index
    if label in labels:
        return labels.index(label)
    return next((at for at, one in enumerate(labels) if _is_same(label, one)), None)


def _is_same(label: Any, other: Any) -> bool:
    """Whether labels are the same, up to what float32 makes of them."""
    if isinstance(label, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(label, other, rel_tol=1e-6, abs_tol=1e-9) or (label != label and other != other)
    return label == other


def _of_lists(given: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """An entry for each of `count` arrays, of a number or a list of one entry for all or each."""
    columns = []
    for name, nothing in (("mean", 0.0), ("std", 1.0)):
        value = nothing if given[name] is None else given[name]
        column = list(value) if _is_list(value) else [value]
        columns.append(column * count if len(column) == 1 else column)
    return [{"mean": mean, "std": std} for mean, std in zip(*columns)]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def plain(value: Any) -> Any:
    """For JSON: mappings as dictionaries; ranges, arrays and numbers of other packages as lists and numbers.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range):
        return list(value)
    if not hasattr(value, "tolist"):
        value = getattr(value, "values", value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}, which JSON does not have")
