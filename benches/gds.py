"""The reader with io="gds" beside bare loops of cuFileRead over the same files.

A bare loop knows every file beforehand, keeps all of them registered, and does nothing with what it has read:
so many threads, each with a registered piece of GPU memory of its own, take the next piece of a file from one
list and read it there. Several numbers of threads and sizes of pieces are tried, the best median counts. Its
bytes times the compression ratio are what the reader could deliver at most.

The reader's rate with io="posix" stands beside both, because that is what io="auto" takes where there is no
direct path to the GPU (`direct` in the results says whether there is one). The page cache is warm.

    python benches/gds.py --folder /mnt/nvme/bench
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common

BATCH = 8
THREADS = (4, 8, 16)
PIECES_MB = (1, 4, 16)


class Bare:
    """cuFileRead called by threads that do nothing else; a context manager.

    Args:
        files: what is read.
        threads: so many threads.
        piece: bytes of one call, and of a thread's GPU memory.
        cufile: the module `cuda.bindings.cufile`.
        allocate: returns GPU memory of so many bytes and its address; called on each thread.
    """

    def __init__(
        self,
        files: Sequence[Path],
        threads: int,
        piece: int,
        cufile: Any,
        allocate: Callable[[int], tuple[Any, int]],
    ) -> None:
        self.cufile, self.allocate, self.piece, self.threads = cufile, allocate, piece, threads
        self.opened: list[tuple[int, int]] = []
        self.pieces: list[tuple[int, int, int]] = []
        self.memory: list[tuple[Any, int]] = []
        self.local = threading.local()
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(threads)
        try:
            for file in files:
                self.open(file)
        except BaseException:
            self.close()
            raise

    def open(self, file: Path) -> None:
        """Registers a file and cuts it into pieces."""
        descriptor = os.open(file, os.O_RDONLY)
        try:
            description = self.cufile.Descr()
            description.type = self.cufile.FileHandleType.OPAQUE_FD
            description.handle.fd = descriptor
            # cuda-bindings 13.3 does not clear this memory, and cuFile follows the pointer.
            description.fs_ops = 0
            handle = self.cufile.handle_register(description.ptr)
        except BaseException:
            os.close(descriptor)
            raise
        self.opened.append((descriptor, handle))
        size = os.fstat(descriptor).st_size
        self.pieces += [
            (handle, start, min(self.piece, size - start)) for start in range(0, size, self.piece)
        ]

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives everything back."""
        self.pool.shutdown()
        for _, address in self.memory:
            self.cufile.buf_deregister(address)
        self.memory.clear()
        for descriptor, handle in self.opened:
            self.cufile.handle_deregister(handle)
            os.close(descriptor)
        self.opened.clear()

    def read(self, piece: tuple[int, int, int]) -> int:
        """Reads one piece on a thread of the pool; returns its bytes, or raises OSError."""
        if not hasattr(self.local, "address"):
            memory, self.local.address = self.allocate(self.piece)
            self.cufile.buf_register(self.local.address, self.piece, 0)
            with self.lock:
                self.memory.append((memory, self.local.address))
        handle, start, size = piece
        done = 0
        while done < size:
            count = self.cufile.read(handle, self.local.address, size - done, start + done, done)
            if count <= 0:
                raise OSError(f"cuFileRead returned {count} at byte {start + done}")
            done += count
        return done

    def rate(self, seconds: float) -> float:
        """Bytes a second over whole passes, behind one that is not timed."""

        def once() -> int:
            return sum(self.pool.map(self.read, self.pieces))

        once()
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds or not count:
            count += once()
        return count / elapsed


def on_gpu(count: int) -> tuple[Any, int]:
    """GPU memory for the thread that calls, whose context it makes the current one."""
    import torch

    torch.cuda.set_device(0)
    memory = torch.empty(count, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return memory, memory.data_ptr()


def bare_rates(files: Sequence[Path], args: Any) -> dict[str, float]:
    """GB/s of stored bytes by the way of reading them."""
    import cuda.bindings
    from cuda.bindings import cufile

    if tuple(map(int, cuda.bindings.__version__.split(".")[:2])) < (13, 1):
        raise ImportError("cuda-bindings before 13.1 do not say how much cuFileRead has read")
    on_gpu(1)
    rates = {}
    for threads in args.threads:
        for megabytes in args.pieces:
            with Bare(files, threads, megabytes << 20, cufile, on_gpu) as bare:
                rates[f"{threads} threads, {megabytes} MiB"] = bare.rate(args.seconds) / 1e9
    return rates


def delivered(store: Path, args: Any, io: str) -> dict[str, Any]:
    """The reader's `common.rates`, and how much of what it read came through cuFile."""
    pipe = common.reader(store, "gpu", BATCH, io=io)
    before = common.counters(pipe)
    row = common.rates(pipe, BATCH, common.decoded_bytes(args), args.seconds)
    spent = common.grown(before, common.counters(pipe))
    del pipe
    gc.collect()
    return {**row, "through_cufile": spent["bytes_read_gds"] / spent["bytes_read"]}


def measured(store: Path, args: Any) -> dict[str, Any]:
    """One store's rates in interleaved rounds."""
    files = common.chunk_files(store)
    ratio = common.decoded_bytes(args) / common.stored_bytes(store)
    gds: list[dict[str, Any]] = []
    posix: list[dict[str, Any]] = []
    bare: list[dict[str, float]] = []
    for _ in range(args.rounds):
        bare.append(bare_rates(files, args))
        gds.append(delivered(store, args, "gds"))
        posix.append(delivered(store, args, "posix"))
    medians = {way: statistics.median(rates[way] for rates in bare) for way in bare[0]}
    best = max(medians, key=medians.__getitem__)
    ours = statistics.median(row["delivered_gb_per_s"] for row in gds)
    return {
        "ratio": ratio,
        "delivered_gb_per_s": ours,
        "bare_gb_per_s": medians[best],
        "bare_way": best,
        "share_of_bare": ours / (medians[best] * ratio),
        "posix_gb_per_s": statistics.median(row["delivered_gb_per_s"] for row in posix),
        "through_cufile": min(row["through_cufile"] for row in gds),
        "direct": Path("/proc/driver/nvidia-fs").exists(),
        "bare": medians,
        "rounds": [row["delivered_gb_per_s"] for row in gds],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser('Time io="gds" beside bare loops of cuFileRead.', 1.0)
    line.add_argument(
        "--stores",
        type=common.list_of(str, common.STORES),
        default=["raw"],
        metavar="NAMES",
        help="with commas between them (default: raw)",
    )
    line.add_argument(
        "--threads", type=common.list_of(int), default=list(THREADS), metavar="N,...",
        help=f"threads of a bare loop (default: {','.join(map(str, THREADS))})",
    )  # fmt: skip
    line.add_argument(
        "--pieces", type=common.list_of(int), default=list(PIECES_MB), metavar="N,...",
        help=f"MiB of one cuFileRead (default: {','.join(map(str, PIECES_MB))})",
    )  # fmt: skip
    line.add_argument("--rounds", type=int, default=2, help="interleaved rounds (default: %(default)s)")
    args = common.parse(line, argv)
    if args.device != "gpu":
        line.error("cuFile reads to a GPU, and there is none")
    points = common.chosen(line, args, [{"point": store, "store": store} for store in args.stores])
    stores = common.ensure_stores(args, args.stores)
    results = common.Results(
        "gds",
        'GB/s delivered with io="gds", and of bare loops of cuFileRead over the same files in the same run',
        args,
        rounds=args.rounds,
        batch_size=BATCH,
        seconds=args.seconds,
    )
    return results.measure(points, lambda point: measured(stores[point["store"]], args))


if __name__ == "__main__":
    sys.exit(main())
