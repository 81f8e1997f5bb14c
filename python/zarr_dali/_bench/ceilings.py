"""What the machine allows: the copy to the GPU, the page cache, the disk; of a store that is no folder, what
bare requests get from it.

Rates are in 10^9 bytes per second of what moves, which is encoded bytes; `verdict` turns them into delivered
values. Each is the best of what was tried, because a ceiling is meant.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Any

import numpy as np

from zarr_dali._bench import cache
from zarr_dali._bench.timing import gist
from zarr_dali._bench.work import Work

COPY_BYTES = 64_000_000
COPIES_IN_FLIGHT = 4
SECONDS = 0.5
"""How long the copy and the page cache are measured."""
MOST_FILES = 20_000
READ_BYTES = 4 << 20
"""Of one read call at most."""
REQUESTS = (16, 64, 256)
"""To a store at once, tried in turn. The last is as many as a reader makes."""
STORE_KEYS = 4096
"""Chunks that are requested of a store, over and over."""
THREAD_BYTES = 32 << 20
"""Memory that a thread reads into, in turn, so that it does not stay in the caches of the CPU."""


@dataclass(frozen=True)
class StoreCeiling:
    """What bare requests to a store gave."""

    requests: int
    """At once, of those that were tried the number that gave the most."""
    rates: dict[int, float]
    """GB/s by the number of requests at once."""
    ms_to_first_byte: float
    """The median, with the fewest requests at once: of a store and a network that have time."""
    busy: float
    """The share of their time that the threads that receive had work."""
    threads: int
    """How many of them there were."""
    over_tls: bool


@dataclass(frozen=True)
class Ceiling:
    """One rate, or why there is none."""

    key: str
    name: str
    gb_per_s: float | None
    note: str = ""
    """What qualifies the rate, or why it was not measured."""
    store: StoreCeiling | None = None
    """What else was seen of a store."""

    def as_json(self) -> dict[str, Any]:
        """What is kept in the results."""
        return asdict(self)


def attempt(key: str, name: str, measure: Callable[[], tuple[float, str]]) -> Ceiling:
    """Runs a measurement that gives a rate and a note; whatever it raises becomes the note."""
    try:
        rate, note = measure()
    except ImportError as error:
        return Ceiling(key, name, None, f"not measured: {error.name or error} is not installed")
    except Exception as error:
        return Ceiling(key, name, None, f"not measured: {gist(error)}")
    return Ceiling(key, name, rate, note)


def attempt_store(work: Work) -> Ceiling:
    """As `attempt`, of the store."""
    try:
        return store(work)
    except Exception as error:
        return Ceiling("store", "the store, bare requests", None, f"not measured: {gist(error)}")


class Files:
    """The chunk files of a `Work`, as many as fit the limits, cut into equal parts for threads."""

    def __init__(self, work: Work, most_bytes: int = 1 << 34) -> None:
        """Lists them.

        Raises:
            ValueError: There are none.
        """
        self.paths: list[Path] = []
        self.bytes = 0
        for _, path in work.chunk_files():
            self.paths.append(path)
            self.bytes += path.stat().st_size
            if len(self.paths) >= MOST_FILES or self.bytes >= most_bytes:
                break
        if not self.bytes:
            raise ValueError("the store has no chunk files in the steps that are read")


def threads() -> int:
    """As many as the process may use cores, and at least 4, since a disk wants several requests."""
    return max(4, len(os.sched_getaffinity(0)))


def copy_to_gpu() -> tuple[float, str]:
    """Pinned host memory to the GPU, several copies in flight."""
    import torch

    host = [torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(COPIES_IN_FLIGHT)]
    device = [torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in host]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy_all() -> None:
        for i, (source, target) in enumerate(zip(host, device)):
            with torch.cuda.stream(streams[i % len(streams)]):
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return _best_rate(
        copy_all, COPY_BYTES * len(host)
    ), f"{len(host)} copies of {COPY_BYTES // 10**6} MB in flight"


def page_cache(files: Files, pinned: bool) -> tuple[float, str]:
    """The store's files from memory into memory that is pinned, or else touched before, with many threads."""
    buffers = [_buffer(THREAD_BYTES, pinned) for _ in range(threads())]
    rate = _best_rate(lambda: _read_all(files, buffers, 0), files.bytes)
    kind = "pinned" if pinned else "user"
    return rate, f"{len(buffers)} Python threads, into {kind} memory: at least that much"


def disk(files: Files, rounds: int) -> tuple[float, str]:
    """The store's files when they are not in memory: buffered or with O_DIRECT, whichever is faster.

    Raises:
        RuntimeError: They stay in memory.
    """
    buffers = [_buffer(THREAD_BYTES, False) for _ in range(threads())]
    rates: dict[str, float] = {}
    for _ in range(rounds):
        for name, flags in (("buffered", 0), ("O_DIRECT", os.O_DIRECT)):
            watch = cache.Watch(files.paths, files.bytes)
            began = time.perf_counter()
            try:
                _read_all(files, buffers, flags)
            except OSError:
                if not flags:
                    raise
                continue  # a file system without O_DIRECT
            rate = files.bytes / (time.perf_counter() - began) / 1e9
            if problem := watch.problem():
                raise RuntimeError(problem)
            rates[name] = max(rates.get(name, 0.0), rate)
    best = max(rates, key=rates.__getitem__)
    others = ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items() if name != best)
    return rates[best], best + (f" ({others})" if others else "")


def store(work: Work) -> Ceiling:
    """Chunks of a store, whole, with bare requests of the core whose bytes are dropped as they come.

    Raises:
        ValueError: There are none.
        RuntimeError: What the store says.
    """
    keys = [key for _, key in itertools.islice(work.chunk_keys(), STORE_KEYS)]
    if not keys:
        raise ValueError("the store has no chunks in the steps that are read")
    found = {requests: work.objects.read_bare(keys, requests, SECONDS) for requests in REQUESTS}
    if not any(one["gb_per_s"] for one in found.values()):
        raise ValueError("the store has no chunks in the steps that are read")
    rates = {requests: one["gb_per_s"] for requests, one in found.items()}
    requests = max(rates, key=rates.__getitem__)
    best = found[requests]
    seen = StoreCeiling(
        requests=requests,
        rates=rates,
        ms_to_first_byte=found[REQUESTS[0]]["ms_to_first_byte"],
        busy=best["busy"],
        threads=best["threads"],
        over_tls=not work.shown.startswith("http://"),
    )
    note = (
        f"{requests} requests at once for whole chunks on {seen.threads} threads, busy {seen.busy:.0%}; "
        f"{seen.ms_to_first_byte:.3g} ms to the first byte"
    )
    return Ceiling("store", "the store, bare requests", best["gb_per_s"], note, seen)


def measurements(
    work: Work, device: str, cold: bool, rounds: int
) -> Iterator[tuple[str, Callable[[], Ceiling]]]:
    """Name and measurement of each ceiling of a device; the one that empties the page cache comes last."""
    on_gpu = device == "gpu"
    if on_gpu:
        yield "the copy", lambda: attempt("copy", "copy to the GPU, pinned", copy_to_gpu)
    if not work.is_folder:
        yield "the store", lambda: attempt_store(work)
        return
    yield "page cache", lambda: attempt("page_cache", "page cache", lambda: page_cache(Files(work), on_gpu))
    if cold:
        yield "disk", lambda: attempt("disk", "disk", lambda: disk(Files(work), rounds))


def _best_rate(run: Callable[[], Any], count_bytes: int) -> float:
    """GB/s of the fastest of several runs, after one to warm up."""
    run()
    best = 0.0
    end = time.perf_counter() + SECONDS
    while True:
        began = time.perf_counter()
        run()
        now = time.perf_counter()
        best = max(best, count_bytes / (now - began) / 1e9)
        if now >= end:
            return best


def _buffer(count: int, pinned: bool) -> memoryview:
    """Memory at the start of a page, as O_DIRECT wants it; all of it touched."""
    if pinned:
        import torch

        return memoryview(torch.zeros(count, dtype=torch.uint8, pin_memory=True).numpy())
    values = np.frombuffer(mmap(-1, count), np.uint8)
    values[:] = 0
    return memoryview(values)


def _read_all(files: Files, buffers: Sequence[memoryview], flags: int) -> None:
    """Every thread reads the files that are its turn, whole, into its buffer."""

    def part(thread: int) -> None:
        buffer, place = buffers[thread], 0
        for path in files.paths[thread :: len(buffers)]:
            descriptor = os.open(path, os.O_RDONLY | flags)
            try:
                at, size = 0, os.fstat(descriptor).st_size
                while at < size:
                    # O_DIRECT reads whole blocks, which may end behind the file.
                    room = min(READ_BYTES, _whole_pages(size - at))
                    place = place if place + room <= len(buffer) else 0
                    count = os.preadv(descriptor, [buffer[place : place + room]], at)
                    if count == 0:
                        raise EOFError(f"{path} became shorter while it was read")
                    at, place = at + count, place + room
            finally:
                os.close(descriptor)

    with ThreadPoolExecutor(len(buffers)) as pool:
        list(pool.map(part, range(len(buffers))))


def _whole_pages(count: int) -> int:
    return -(-count // PAGESIZE) * PAGESIZE
