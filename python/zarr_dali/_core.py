"""Stores as the core opens them: objects by key, through the client that the reader has."""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from zarr_dali import _plugin

StorageOptions = Mapping[str, Any] | str | None
"""A dictionary, or JSON text of one."""

_FOUND, _ABSENT, _ARGUMENT, _FAILED, _FORBIDDEN = range(5)
"""What a call comes to (src/python.rs)."""


class Forbidden(RuntimeError):
    """The store denies access to an object, which some do for one that is absent."""


class Secret(str):
    """A text that is not shown where what holds it is."""

    def __repr__(self) -> str:
        return "'...'"


class Head(NamedTuple):
    """An object without its bytes."""

    bytes: int
    """Its length."""
    version: str
    """What tells it from what was there before or is there later."""


class Found(NamedTuple):
    """A part of an object."""

    content: bytes
    head: Head


class _Answer(ctypes.Structure):
    _fields_ = (
        ("outcome", ctypes.c_int32),
        ("text", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("store", ctypes.c_void_p),
    )


@lru_cache
def _library() -> ctypes.CDLL:
    library = _plugin.core()
    for name, arguments in (
        ("expand", [ctypes.c_char_p]),
        ("open_store", [ctypes.c_char_p, ctypes.c_void_p]),
        ("ask_store", [ctypes.c_void_p, ctypes.c_char_p]),
        ("read_bare", [ctypes.c_void_p, ctypes.c_char_p]),
    ):
        function = getattr(library, f"zarr_dali_{name}")
        function.argtypes, function.restype = arguments, ctypes.POINTER(_Answer)
    for name, argument in (("close_store", ctypes.c_void_p), ("free_answer", ctypes.POINTER(_Answer))):
        function = getattr(library, f"zarr_dali_{name}")
        function.argtypes, function.restype = [argument], None
    return library


_bytes_of = ctypes.pythonapi.PyBytes_FromStringAndSize
_bytes_of.argtypes, _bytes_of.restype = [ctypes.c_void_p, ctypes.c_ssize_t], ctypes.py_object


def _call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, bytes, int | None] | None:
    """What a function of the core gives: JSON, bytes and a store; None where there is no such object.

    Raises:
        ValueError: An argument cannot be used.
        Forbidden: The store denies access.
        RuntimeError: Something else went wrong.
    """
    pointer = function(*arguments)
    try:
        answer = pointer.contents
        text = ctypes.string_at(answer.text).decode()
        if answer.outcome == _ABSENT:
            return None
        if answer.outcome != _FOUND:
            raise {_ARGUMENT: ValueError, _FORBIDDEN: Forbidden}.get(answer.outcome, RuntimeError)(text)
        content = _bytes_of(answer.bytes, answer.length) if answer.length else b""
        return json.loads(text), content, answer.store
    finally:
        _library().zarr_dali_free_answer(pointer)


def as_json(options: StorageOptions) -> str:
    """`storage_options` as the operator takes them; durations, as in `retry_config`, in milliseconds.

    Raises:
        TypeError: They are no dictionary, or hold what JSON has not.
        ValueError: They hold a number that is not finite, or themselves.
    """
    if options is None:
        return ""
    if not isinstance(options, (str, Mapping)):
        raise TypeError(
            f"storage_options: has to be a dictionary of options, or JSON, not {type(options).__name__}"
        )
    if isinstance(options, str):
        return Secret(options)
    try:
        if unfinite := next(_unfinite(options), None):
            raise ValueError(
                f'argument `storage_options`: has "{unfinite[0]}" {unfinite[1]}, which is no finite number; '
                'give one, for a timeout of seconds such as 30, or a text with units, such as "30 s"'
            )
        return Secret(json.dumps(dict(options), default=_plain, check_circular=False))
    except RecursionError:
        raise ValueError(
            "argument `storage_options`: holds itself; give a dictionary of options, with dictionaries of "
            "options in it at most"
        ) from None


def _unfinite(options: Mapping[Any, Any]) -> Iterator[tuple[Any, float]]:
    """Names and values of numbers that are infinite or none.

    Raises:
        TypeError: An option has a name that is no text.
    """
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(
                f"argument `storage_options`: has an option named {name!r}; names of options are texts"
            )
        if isinstance(value, Mapping):
            yield from _unfinite(value)
        elif isinstance(value, float) and not math.isfinite(value):
            yield name, value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    raise TypeError(f"storage_options hold a {type(value).__name__}, which is no value of JSON")


def without_secrets(url: str) -> str:
    """A path, or a URL without a user's name and password and without its query, in which signatures are."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = re.split(r"[?#]", rest)[0]
    # In `abfss://container@account...` the part before the `@` is no secret.
    is_azure = scheme.lower() in ("abfs", "abfss", "wasbs")
    return f"{scheme}://{rest if is_azure else re.sub(r'^[^/]*@', '', rest)}"


def expand(paths: Sequence[str], options: StorageOptions = None) -> list[str]:
    """The stores that a reader's `path` means, with patterns in place of what they match.

    Raises:
        ValueError: Nothing fits a pattern, or what it is to be looked up in cannot be listed.
    """
    asked = {"path": list(paths), "storage_options": as_json(options)}
    found, _, _ = _call(_library().zarr_dali_expand, json.dumps(asked).encode())
    return found["path"]


class _Opened:
    """A store that the core has open for this process."""

    def __init__(self, arguments: bytes, beside: _Opened | None) -> None:
        self.process, self.pointer = os.getpid(), None
        self.library = _library()
        shared = beside.pointer if beside is not None and beside.process == self.process else None
        about, _, self.pointer = _call(self.library.zarr_dali_open_store, arguments, shared)
        self.is_folder, self.lists = about["folder"], about["lists"]

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A forked child shares the sockets of its parent and leaves them alone.
        if self.pointer and self.process == getpid():
            self.library.zarr_dali_close_store(self.pointer)


class Objects:
    """A store of objects by key, read-only.

    Threads may ask at the same time. A forked child, and whoever it is pickled to, opens it again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: StorageOptions = None,
        *,
        follow_links: bool = True,
        soon: bool = False,
        beside: Objects | None = None,
    ) -> None:
        """Opens it, which asks for nothing yet.

        Args:
            path: As for the reader, but one store and no pattern.
            storage_options: As for the reader.
            follow_links: As for the reader.
            soon: Whether requests that fail are repeated for seconds only, and not for minutes.
            beside: A store whose connections are shared.

        Raises:
            ValueError: There is no such store, or an option cannot be used.
        """
        self.path = os.fspath(path)
        asked = {
            "path": self.path,
            "storage_options": as_json(storage_options),
            "follow_links": follow_links,
            "soon": soon,
        }
        self._arguments = json.dumps(asked).encode()
        self._opened: _Opened | None = _Opened(self._arguments, beside and beside._here())

    @property
    def shown(self) -> str:
        """Its path or URL, without secrets."""
        return without_secrets(self.path)

    @property
    def storage_options(self) -> str:
        """Those that it was opened with, as JSON."""
        return Secret(json.loads(self._arguments)["storage_options"])

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine, with a file for each key."""
        return self._here().is_folder

    @property
    def lists(self) -> bool:
        """Whether it can be listed."""
        return self._here().lists

    def get(
        self, key: str, *, span: tuple[int, int] | None = None, suffix: int | None = None
    ) -> Found | None:
        """An object, or a part of it: a range of its bytes, or its last ones. None if it is absent."""
        part = {"range": list(span)} if span else {} if suffix is None else {"suffix": suffix}
        found = self._ask({"get": key} | part)
        return None if found is None else Found(found[1], Head(**found[0]))

    def head(self, key: str) -> Head | None:
        """Length and version of an object; None if it is absent."""
        found = self._ask({"head": key})
        return None if found is None else Head(**found[0])

    def folders(self, key: str) -> list[str]:
        """Names of the folders below a key."""
        return self._ask({"list": key})[0]["names"]

    def read_bare(self, keys: Sequence[str], requests: int, seconds: float) -> dict[str, float]:
        """Requests whole objects, over and over, with connections of its own, and drops their bytes.

        Args:
            keys: Of the objects.
            requests: How many are made at once.
            seconds: The time that counts; half as long goes by before.

        Returns:
            `gb_per_s`, `requests_per_s`, `ms_to_first_byte`, the number of `threads`, and `busy`, the share
            of the time that they had work.
        """
        asked = {"keys": list(keys), "requests": requests, "seconds": seconds}
        return self._ask(asked, "zarr_dali_read_bare")[0]

    def at(self, path: str) -> Objects:
        """The store at another path or URL, with the same options and connections."""
        asked = json.loads(self._arguments)
        options = {"follow_links": asked["follow_links"], "soon": asked["soon"]}
        return Objects(path, asked["storage_options"], **options, beside=self)

    def _ask(self, request: dict[str, Any], function: str = "zarr_dali_ask_store") -> Any:
        opened = self._here()  # not closed as long as this refers to it
        return _call(getattr(opened.library, function), opened.pointer, json.dumps(request).encode())

    def _here(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.process != os.getpid():
            opened = self._opened = _Opened(self._arguments, None)
        return opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objects) and self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash(self._arguments)

    def __repr__(self) -> str:
        return f"Objects({self.shown!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_arguments": self._arguments, "_opened": None}
