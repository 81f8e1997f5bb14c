"""The values of arguments, looked at by name before DALI converts them: what it cannot convert it says of no
argument, and of what it can it makes something, such as 2 of 2.5."""

from __future__ import annotations

import difflib
import json
import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dali import _plugin
from zarr_dali._arguments import bytes_of

IN_BYTES = ("host_memory_budget", "device_memory_budget", "cache_bytes", "cache_dir_bytes")
MOST_OF_64_BITS = 2**63 - 1
MOST_OF_32_BITS = 2**31 - 1


def whole(name: str, value: Any, least: int = -MOST_OF_64_BITS - 1, most: int = MOST_OF_64_BITS) -> int:
    """A whole number, of whichever type.

    Raises:
        TypeError: It is none.
        ValueError: It is too small or too large.
    """
    is_whole = isinstance(value, numbers.Integral) or (
        isinstance(value, numbers.Real) and math.isfinite(value) and value == int(value)
    )
    if not is_whole or isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, but has to be a whole number")
    if value < least:
        raise ValueError(f"{name} is {value}, but has to be {least} or more")
    if value > most:
        raise ValueError(f"{name} is {value}, but has to be {most} or less")
    return int(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """One of several texts.

    Raises:
        ValueError: It is none of them.
    """
    if isinstance(value, str) and value in known:
        return value
    given = f'"{value}"' if isinstance(value, str) else repr(value)
    *others, last = (f'"{one}"' for one in known)
    near = difflib.get_close_matches(value, known, 1) if isinstance(value, str) else []
    meant = f'; did you mean "{near[0]}"?' if near else ""
    raise ValueError(f"{name} is {given}, but has to be {', '.join(others)} or {last}{meant}")


def truth(name: str, value: Any) -> bool:
    """True or False, of whichever type; None is False.

    Raises:
        TypeError: It is neither. A text is not, whose truth is not what it says.
    """
    is_number = isinstance(value, (numbers.Number, np.bool_))
    if value is None or (is_number and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is {value!r}, but has to be True or False")


def of_reader(arguments: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """The reader's arguments, with values of the types that it has; those in `without` are left alone.

    Raises:
        TypeError: A value is of another type.
        ValueError: A number does not fit into 64 bits.
    """
    from nvidia.dali import backend

    schema = backend.GetSchema(_plugin.SCHEMA)
    return {
        name: value
        if value is None or name in without or not schema.HasArgument(name)
        else _of_type(name, schema.GetArgumentType(name).name.strip("_"), value)
        for name, value in arguments.items()
    }


def _of_type(name: str, kind: str, value: Any) -> Any:
    """`kind`: DALI's name of the type."""
    if kind in ("INT32_VEC", "INT64_VEC"):
        return [whole(name, one) for one in _listed(name, value, "whole numbers")]
    if kind in ("INT32", "INT64"):
        return whole(name, _in_bytes(name, value) if isinstance(value, str) else value)
    if kind == "FLOAT_VEC":
        return [_number(name, one) for one in _listed(name, value, "numbers")]
    if kind == "FLOAT":
        return _number(name, value)
    if kind == "BOOL":
        return truth(name, value)
    if kind == "STRING" and name in ("per_store", "dimension_offsets") and isinstance(value, (Mapping, list)):
        return json.dumps(value)
    if kind == "STRING" and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, but has to be a text")
    return value


def _in_bytes(name: str, value: str) -> int | str:
    """A number of bytes that is given as in "4GB"."""
    if name not in IN_BYTES:
        return value
    try:
        return bytes_of(value)
    except ValueError as error:
        raise ValueError(f'{name} is {value!r}, but has to be a number of bytes, such as "4GB"') from error


def _listed(name: str, value: Any, of: str) -> list[Any]:
    """DALI takes a value alone as a list of one."""
    if isinstance(value, numbers.Real):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is {value!r}, but has to be a list of {of}")
    return list(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, but has to be a number")
    return float(value)
