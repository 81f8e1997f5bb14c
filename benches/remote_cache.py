"""For `remote.py`: an epoch from the cache on the local disk beside one of a local folder, both cold."""

from __future__ import annotations

import gc
import math
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
from zarr_dali._bench import cache


class Reader:
    """fn.readers.zarr at rest with a full queue; `epoch` then reads an epoch from the disk.

    Args:
        task: what is the same for all points.
        store: path or URL.
        batch_size: samples of a batch.
        arguments: go to the operator.
    """

    def __init__(self, task: Mapping[str, Any], store: str, batch_size: int, **arguments: Any) -> None:
        self.pipe = common.reader(store, task["device"], batch_size, **arguments)
        self.batches = math.ceil(self.pipe.reader_meta("reader")["epoch_size"] / batch_size)
        self.taken = 0

    def take(self, count: int) -> None:
        """Takes the next `count` batches."""
        for _ in range(count):
            (output,) = self.pipe.run()
        self.taken += count
        self.batch_bytes = len(output) * math.prod(output[0].shape()) * 4

    def epoch(self, files: list[Path], stored: int) -> tuple[float, float | None]:
        """Puts the files out of the page cache, takes what the queue holds and an epoch.

        Returns:
            GB/s, the epoch's bytes over the time of all that, and the share of bytes that came from the disk.
        """
        read_ahead = math.ceil(common.at_rest(self.pipe)["bytes_read"] / stored * self.batches)
        ready = max(0, read_ahead - self.taken)
        watch = cache.Watch(files, sum(file.stat().st_size for file in files))
        began = time.perf_counter()
        self.take(ready + self.batches)
        elapsed = time.perf_counter() - began
        return self.batches * self.batch_bytes / elapsed / 1e9, watch.fetched_share()


def from_disk(task: Mapping[str, Any], url: str, path: Path, batch_size: int) -> dict[str, Any]:
    """Fills a cache from a URL and times epochs from it and from the local folder, in turns.

    Returns:
        `share_of_local`; both rates; `requests` of the epochs from the cache.
    """
    folder = Path(task["scratch"]) / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    files, stored = common.chunk_files(path), common.stored_bytes(path)
    reader = Reader(task, url, batch_size, cache_dir=str(folder), cache_dir_bytes=8 * stored + (1 << 30))
    end = time.perf_counter() + 30
    # What comes faster than the disk takes it is kept in a later epoch.
    while common.counters(reader.pipe)["disk_cache_bytes_written"] < stored and time.perf_counter() < end:
        reader.take(reader.batches)
    before = common.at_rest(reader.pipe)
    kept = [file for file in folder.rglob("*") if file.is_file() and file.name != "usage"]
    local = Reader(task, str(path), batch_size)
    local.take(local.batches)
    rates: dict[str, list[float]] = {"cached": [], "local": []}
    shares = []
    for _ in range(1 if task["quick"] else 2):
        for name, one, its in (("local", local, files), ("cached", reader, kept)):
            rate, share = one.epoch(its, stored)
            rates[name].append(rate)
            shares.append(share)
    spent = common.grown(before, common.counters(reader.pipe))
    del reader, local
    gc.collect()
    shutil.rmtree(folder, ignore_errors=True)
    median = {name: statistics.median(rounds) for name, rounds in rates.items()}
    return {
        "share_of_local": median["cached"] / median["local"],
        "cached_gb_per_s": median["cached"],
        "local_gb_per_s": median["local"],
        "requests": spent["requests"],
        "hits": spent["disk_cache_hits"],
        "least_from_disk": min((share for share in shares if share is not None), default=None),
        "rounds": rates,
    }
