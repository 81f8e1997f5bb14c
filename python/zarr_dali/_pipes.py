"""Standard output and error of a command whose reader is gone, as in `zarr-dali info STORE | head -1`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CLOSED = 128 + signal.SIGPIPE
"""Exit status where nobody reads the output any more: what a shell says of a program that SIGPIPE ended."""


@contextmanager
def watched() -> Iterator[None]:
    """Ends the process quietly, with exit status `CLOSED`, where standard output is a pipe that was closed.

    What goes to a standard error that was closed is dropped, and the command goes on. SIGPIPE itself stays
    ignored: the sockets of this process would raise it too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Watched(_opened(sys.stdout), ends=True), _Watched(_opened(sys.stderr))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _opened(stream: Any) -> Any:
    """The stream, or one to nowhere if the process was started without it (`>&-`)."""
    return open(os.devnull, "w", encoding="utf-8") if stream is None else stream


class _Watched:
    """A text stream that does not raise BrokenPipeError, which commands would take for an error of a file."""

    def __init__(self, stream: Any, *, ends: bool = False) -> None:
        self._stream, self._ends = stream, ends

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            return self._close() or len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._close()

    def _close(self) -> None:
        # What is left in the buffer would fail again when Python exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._ends:
            raise SystemExit(CLOSED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
