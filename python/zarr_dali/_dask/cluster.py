"""Connects to a scheduler of dask.distributed, or starts a cluster on this machine."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from zarr_dali._advice import size
from zarr_dali._arguments import Threads, cores, workers_of

if TYPE_CHECKING:
    from distributed import Client

_LOCAL = re.compile(r"local(?::(\d+))?")
HOW = "tcp://HOST:8786, a scheduler's file FILE.json, or local:4 for four workers on this machine"


@dataclass(frozen=True)
class Cluster:
    """A cluster that does the work."""

    client: Client
    workers: int
    """Processes; 1 where none has come yet."""
    threads: int
    """Of the worker that has most."""

    def at_once(self, workers: int | None) -> Threads:
        """What works at once.

        Args:
            workers: Regions that a worker may work on at once; by default one for each of its threads.
        """
        return Threads(self.threads if workers is None else workers_of(workers), self.threads, self.workers)

    def check_memory(self, memory: int) -> None:
        """Raises ValueError where a worker may not take as much memory as the work does."""
        for address, worker in _workers(self.client).items():
            limit = worker.get("memory_limit") or 0
            if 0 < limit < memory:
                raise ValueError(
                    f"memory: {size(memory)} for the work, and dask's worker {address} may take "
                    f"{size(limit)} in all; give less memory, or the workers more (--memory-limit)"
                )


@contextmanager
def connected(dask: Any) -> Iterator[Cluster]:
    """The cluster that is meant, which is left as it was.

    Args:
        dask: An address or file of a scheduler, "local" or "local:4", a client or a cluster.

    Raises:
        ImportError: dask.distributed is missing.
        ValueError: It is nothing of these.
        RuntimeError: There is no scheduler.
    """
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise ImportError('dask needs dask.distributed: pip install "zarr-dali[dask]"') from error
    if isinstance(dask, distributed.Client):
        if dask.asynchronous:
            raise ValueError("dask: the client is asynchronous; give one that is not")
        yield _cluster(dask)
        return
    if isinstance(dask, str) and (match := _LOCAL.fullmatch(dask)):
        with _local(match[1]) as started, distributed.Client(started, set_as_default=False) as client:
            yield _cluster(client)
        return
    with _client(dask) as client:
        yield _cluster(client)


def _local(workers: str | None) -> Any:
    """Workers on this machine, with the cores divided among them."""
    count = int(workers) if workers else max(1, cores() // 2)
    if count < 1:
        raise ValueError('dask: "local:0" has no workers; give local:4 for four')
    # Threads and processes inherit what is blocked: Ctrl-C is for this process, which then ends the workers.
    # Python starts a process of its own before the first one, and unblocks it behind that.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return _started(count)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(count: int) -> Any:
    import distributed

    return distributed.LocalCluster(
        n_workers=count,
        threads_per_worker=max(1, cores() // count),
        processes=True,
        dashboard_address=":0",
        # The work keeps to its own bound; a limit of dask's would only end workers that nothing restrains.
        memory_limit=0,
    )


def _client(dask: Any) -> Client:
    import distributed

    is_cluster = hasattr(dask, "scheduler_address")
    if not is_cluster and not (isinstance(dask, str) and ("://" in dask or dask.endswith(".json"))):
        raise ValueError(f"dask: {dask!r} is no scheduler; give {HOW}, or a client of dask.distributed")
    arguments = {"scheduler_file": dask} if not is_cluster and dask.endswith(".json") else {"address": dask}
    try:
        return distributed.Client(**arguments, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"dask: there is no scheduler at {dask} ({error}); start one, or give {HOW}"
        ) from error


def _cluster(client: Client) -> Cluster:
    threads = client.nthreads().values()
    return Cluster(client, max(1, len(threads)), max(threads, default=1))


def _workers(client: Client) -> dict[str, Any]:
    try:
        return client.scheduler_info(n_workers=-1)["workers"]
    except TypeError:  # releases before 2025 give all of them
        return client.scheduler_info()["workers"]
