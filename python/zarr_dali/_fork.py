"""Pipelines in forked processes.

A forked child has the objects of its parent but none of the threads that DALI's executor and the reader work
with, so a pipeline that was built before the fork would wait for ever: in `run`, and when it is destroyed or
the interpreter ends. In the child such pipelines therefore get a stand-in that raises at once. Pipelines that
the child builds itself are not touched. Readers of dynamic mode have no executor; the core itself notices
that its process is another one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn

from zarr_dali import _plugin

FORKED = (
    "this pipeline has a Zarr reader and was built before the process was forked, and a forked child has no "
    'threads to run it: build the pipeline in the child itself (with device="cpu"; CUDA does not outlive a '
    'fork), or start processes with the method "spawn"'
)


def install() -> None:
    """Has every child that is forked from now on look through its pipelines."""
    os.register_at_fork(after_in_child=_retire_pipelines)


def _retire_pipelines() -> None:
    from nvidia.dali.pipeline import Pipeline

    retired = False
    for reference in list(Pipeline._pipes):
        pipeline = reference()
        if pipeline is None or pipeline._pipe is None or isinstance(pipeline._pipe, _Retired):
            continue
        if _has_zarr_reader(pipeline):
            # Its destructor would wait for threads: a reference that nobody gives back keeps it from running.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))
            pipeline._pipe = _Retired()
            retired = True
    base = sys.modules.get("nvidia.dali.plugin.base_iterator")
    if retired and base is not None:
        _guard_iterators(base._DaliBaseIterator)


def _has_zarr_reader(pipeline: Any) -> bool:
    from nvidia.dali import ops

    if pipeline._ops is None:  # it was deserialized
        return _plugin.SCHEMA.encode() in pipeline._pipe.SerializeToProtobuf()
    return any(isinstance(op._op, (ops.readers.Zarr, ops.ZarrReader)) for op in pipeline._ops)


class _Retired:
    """In the place of the executor of a pipeline that was built before the fork."""

    def Shutdown(self) -> None:
        """What a pipeline calls when it goes away."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(FORKED)


def _guard_iterators(base: type) -> None:
    """An iterator holds a batch already, which for a GPU is memory that the child cannot touch."""
    for cls in _with_subclasses(base):
        if "__next__" in vars(cls):
            cls.__next__ = _guarded(cls.__next__)


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)


def _guarded(advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(advance)
    def checked(iterator: Any) -> Any:
        if any(isinstance(pipeline._pipe, _Retired) for pipeline in iterator._pipes):
            raise RuntimeError(FORKED)
        return advance(iterator)

    return checked
