"""Means and standard deviations as people have them, in the form that the operator's `normalize` takes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zarr_dali import _keys, _labels

if TYPE_CHECKING:
    import pandas as pd

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
                "of JSON, or a dictionary"
            ) from error
    try:
        return json.dumps(normalize, default=plain)
    except TypeError as error:
        raise ValueError(f"normalize: {error}") from error


def reader_arguments(arguments: Mapping[str, Any], arrays: Sequence[str]) -> dict[str, Any]:
    """The reader's arguments, with `normalize` as text, of which lists in `mean` and `std` become a part.

    Raises:
        ValueError: As `as_json` and `_of_lists`.
    """
    chosen = dict(arguments)
    if chosen.get("normalize") is not None:
        chosen["normalize"] = as_json(chosen["normalize"])
    given = {name: chosen.get(name) for name in ("mean", "std")}
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


def check_labels(normalize: str | None, indexes: Callable[[], Mapping[str, pd.Index]]) -> None:
    """Checks that labels which statistics have are those of the store, in its order.

    Args:
        normalize: As the operator takes it.
        indexes: Reads the coordinates of the store, which only labels need.

    Raises:
        ValueError: They are others.
    """
    try:
        entries = json.loads(normalize or "null")
    except ValueError:  # the reader says it
        return
    entries = list(entries.values()) if isinstance(entries, dict) else entries or []
    entries = [one for one in entries if isinstance(one, dict) and isinstance(one.get("labels"), list)]
    if not entries:
        return
    try:
        known = indexes()
    except (ImportError, ValueError):  # no xarray, or no coordinates that can be read
        return
    for entry in entries:
        dimension, labels = entry.get("dim"), entry["labels"]
        index = known.get(dimension)
        # Of another number the reader says how many there have to be.
        if index is None or len(index) != len(labels):
            continue
        there = _labels.as_list(index)
        if wrong := [at for at, pair in enumerate(zip(labels, there)) if not _is_same(*pair)]:
            at = wrong[0]
            raise ValueError(
                f"normalize: its labels along {dimension} are not those of the store: {labels[at]!r} at "
                f"index {at}, where the store has {there[at]!r}; take statistics of this store, or leave "
                '"labels" out'
            )


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
        if len(column) not in (1, count):
            raise ValueError(f"{name}: it has {len(column)} entries for {count} array(s); give one for each")
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
