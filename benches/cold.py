"""The reader's rate from a cold page cache beside what the disk gives.

In each round the same files are read three ways, each time after they were dropped from the page cache:

- buffered and with O_DIRECT, by threads that do nothing else: what the disk gives. The best median of all
  numbers of threads counts;
- by fn.readers.zarr, in the steady state: the reader has been running and has filled its queue with batches
  from a warm cache. Then the files are dropped, and the clock runs from the next batch that is taken until
  every batch of that queue and one whole epoch behind it have been delivered. Each file is read from the disk
  once in that time, because it is in the cache from then on. While the disk's own rate is measured, the
  reader rests.

`/proc/self/io` tells how many bytes really came from the disk; where they are less than nine tenths of the
store, the cache could not be emptied (tmpfs, or a host that caches below this machine's kernel is not seen at
all), and the row says so. The ratio to reach is 1: delivered bytes over the disk's rate times the compression
ratio.

    python benches/cold.py --folder /mnt/nvme/bench
    python benches/cold.py --quick --device cpu
"""

from __future__ import annotations

import math
import mmap
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
from zarr_dali._bench import cache

BATCH = 8
THREADS = (4, 16)
BLOCK = 4 << 20
REALLY_COLD = 0.9


def read_all(files: Sequence[Path], threads: int, *, direct: bool) -> int:
    """Reads all files once with `threads` threads; returns the bytes. OSError where O_DIRECT is refused."""
    local = threading.local()

    def read(file: Path) -> int:
        if not hasattr(local, "block"):
            # Memory of mmap begins at a page, as O_DIRECT wants it.
            local.block = mmap.mmap(-1, BLOCK)
        handle = os.open(file, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        try:
            done = 0
            while count := os.preadv(handle, [local.block], done):
                done += count
                if count < BLOCK:
                    break
            return done
        finally:
            os.close(handle)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, files))


def timed_cold(files: Sequence[Path], work: Callable[[], int]) -> tuple[float, float | None]:
    """Drops the files from the cache and times `work`, which returns bytes.

    Returns:
        Bytes per second of `work`, and bytes from the disk as a share of the files' (None: unknown).
    """
    watch = cache.Watch(files, sum(file.stat().st_size for file in files))
    began = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - began), watch.fetched_share()


class Reading:
    """fn.readers.zarr at rest, with a full queue; `epoch` then reads an epoch from a cold cache.

    Args:
        store: the store.
        args: the parsed arguments.
    """

    def __init__(self, store: Path, args: Any) -> None:
        self.files = common.chunk_files(store)
        self.pipe = common.reader(store, args.device, BATCH)
        self.batches = math.ceil(args.steps / BATCH)
        self.step_bytes = common.decoded_bytes(args) // args.steps
        self.stored = common.stored_bytes(store)
        self.taken = 0
        self.take(self.batches)

    def take(self, count: int) -> None:
        """Takes so many batches."""
        for _ in range(count):
            self.pipe.run()
        self.taken += count

    def epoch(self) -> tuple[float, float | None]:
        """Bytes delivered per second for an epoch from the disk, and how cold that was (`timed_cold`)."""
        # Rounded up: a batch too many is ready within moments, one too few would stop the clock early.
        read_ahead = math.ceil(common.at_rest(self.pipe)["bytes_read"] / self.stored * self.batches)
        ready = max(0, read_ahead - self.taken)
        epoch = self.batches * BATCH * self.step_bytes

        def work() -> int:
            self.take(ready + self.batches)
            return epoch

        return timed_cold(self.files, work)


def measured(store: Path, args: Any) -> dict[str, Any]:
    """One store's rates in interleaved rounds."""
    files = common.chunk_files(store)
    stored, decoded = common.stored_bytes(store), common.decoded_bytes(args)
    ratio = decoded / stored
    ways: dict[str, Callable[[], tuple[float, float | None]]] = {}
    for threads in args.threads:
        for direct in (False, True):
            name = f"{'O_DIRECT' if direct else 'buffered'}, {threads} threads"

            def way(threads: int = threads, direct: bool = direct) -> tuple[float, float | None]:
                return timed_cold(files, lambda: read_all(files, threads, direct=direct))

            ways[name] = way
    reading = Reading(store, args)
    disk: dict[str, list[float]] = {name: [] for name in ways}
    ours: list[float] = []
    cold: list[float | None] = []
    for _ in range(args.rounds):
        for name, way in list(ways.items()):
            common.at_rest(reading.pipe)
            try:
                rate, share = way()
            except OSError as error:
                print(f"{store.name}: {name}: {error}", file=sys.stderr)
                del ways[name]
                continue
            disk[name].append(rate / 1e9)
            if not name.startswith("O_DIRECT"):
                cold.append(share)
        rate, share = reading.epoch()
        ours.append(rate / 1e9)
        cold.append(share)
    medians = {name: statistics.median(rates) for name, rates in disk.items() if rates}
    best = max(medians, key=medians.__getitem__)
    row = {
        "ratio": ratio,
        "disk_gb_per_s": medians[best],
        "disk_way": best,
        "delivered_gb_per_s": statistics.median(ours),
        "share_of_disk": statistics.median(ours) / (medians[best] * ratio),
        "least_from_disk": min((share for share in cold if share is not None), default=None),
        "rounds": ours,
        "disk_rounds": disk,
    }
    if row["least_from_disk"] is not None and row["least_from_disk"] < REALLY_COLD:
        row["problem"] = (
            f"the page cache could not be emptied: only {row['least_from_disk']:.0%} of the bytes came from "
            "the disk"
        )
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time the reader from a cold page cache beside the disk.", 0.0)
    common.add_stores(line)
    line.add_argument(
        "--threads",
        type=common.list_of(int),
        default=list(THREADS),
        metavar="N,...",
        help="numbers of threads that read files for the disk's rate (default: 4,16)",
    )
    line.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    args = common.parse(line, argv)
    points = common.chosen(line, args, [{"point": store, "store": store} for store in args.stores])
    stores = common.ensure_stores(args, args.stores)
    results = common.Results(
        "cold",
        "GB/s delivered from a cold page cache, and the disk's own rate for the same files in the same run",
        args,
        page_cache="cold",
        rounds=args.rounds,
        batch_size=BATCH,
    )
    return results.measure(points, lambda point: measured(stores[point["store"]], args))


if __name__ == "__main__":
    sys.exit(main())
