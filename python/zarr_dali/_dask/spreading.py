"""Makes tasks of regions, and gives what came of them."""

from __future__ import annotations

import os
import pickle
import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zarr_dali._dask.cluster import Cluster

if TYPE_CHECKING:
    from distributed import Future

    from zarr_dali._dask.worker import Work

TASKS_AHEAD = 1000
"""Tasks that the scheduler has at once, so that it knows whether more workers would help."""
_LOOK_S = 5.0


class Spread:
    """A work whose regions are tasks of a cluster.

    Args:
        cluster: Where they run.
        work: What is done.
        explained: Says with a text what went wrong, and how to go on.
        idle: Called now and then while there is no worker.
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Work,
        explained: Callable[[RuntimeError], RuntimeError],
        idle: Callable[[], None],
    ) -> None:
        self._client, self._explained, self._idle = cluster.client, explained, idle
        self._name = os.urandom(6).hex()
        # As a task of its own, which the scheduler runs again where a worker is lost that has the result.
        self._work = self._client.submit(bytes, pickle.dumps(work), key=f"zarr-dali-plan-{self._name}")
        self._made = 0

    def each(self, what: str, regions: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, Any]]:
        """Array, number and result of regions, in the order in which they are finished.

        Args:
            what: What is done with them.
            regions: Array and number of each.

        Raises:
            RuntimeError: Something failed.
        """
        finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
        waiting: dict[str, tuple[Future, tuple[str, int]]] = {}
        regions = iter(regions)
        try:
            while True:
                while len(waiting) < TASKS_AHEAD and (region := next(regions, None)) is not None:
                    future = self._submit(what, *region)
                    waiting[future.key] = future, region
                    future.add_done_callback(finished.put)
                if not waiting:
                    return
                for future in self._next(finished):
                    value = self._result(future)
                    _, region = waiting.pop(future.key)
                    future.release()
                    yield *region, value
        finally:
            if waiting:
                with suppress(Exception):
                    self._client.cancel([future for future, _ in waiting.values()], force=True)

    def _submit(self, what: str, name: str, number: int) -> Future:
        self._made += 1
        key = f"zarr-dali-{what}-{self._name}-{self._made}"
        return self._client.submit(_task, self._work, what, name, number, key=key, pure=False)

    def _next(self, finished: queue.SimpleQueue[Future]) -> list[Future]:
        """What is finished, once something is."""
        while True:
            try:
                found = [finished.get(timeout=_LOOK_S)]
                break
            except queue.Empty:
                self._look()
        with suppress(queue.Empty):
            while True:
                found.append(finished.get_nowait())
        return found

    def _look(self) -> None:
        """Sees whether there are workers."""
        try:
            workers = self._client.nthreads()
        except Exception as error:
            text = f"the scheduler does not answer any more ({error})"
            raise self._explained(RuntimeError(text)) from error
        if not workers:
            self._idle()

    def _result(self, future: Future) -> Any:
        try:
            done, value = future.result()
        except Exception as error:
            raise self._explained(RuntimeError(_lost(error, future.status))) from error
        if not done:
            raise RuntimeError(value)  # explained by the worker
        return value


def _lost(error: Exception, status: str) -> str:
    """What happened to a task that gave nothing."""
    kind = type(error).__name__
    if kind == "KilledWorker":
        return (
            "workers ended one after the other while they did the same region: look at their logs, and "
            "whether they have the memory that the work takes"
        )
    if isinstance(error, ModuleNotFoundError):
        return f"{error} on a worker: install the same packages on scheduler and workers as here"
    if status in ("lost", "cancelled") or kind in ("CancelledError", "FutureCancelledError"):
        return f"the scheduler has lost the work ({error}): look whether it still runs"
    return f"{kind}: {error}"


def _made() -> Callable[..., tuple[bool, Any]]:
    # A function inside another one travels as what it does, and not as its name: the scheduler, which reads
    # tasks, needs no zarr-dali.
    def region(pickled: bytes, what: str, name: str, number: int) -> tuple[bool, Any]:
        import importlib

        return importlib.import_module("zarr_dali._dask.worker").run(pickled, what, name, number)

    return region


_task = _made()
