"""fn.readers.zarr on a URL and what it needs, for `remote.py`."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common

BATCH = 8


class Reading:
    """fn.readers.zarr on a URL, and what it needs.

    Args:
        task: what the parent asked for.
        url: the store.
        arguments: go to the operator.
    """

    def __init__(self, task: Mapping[str, Any], url: str, **arguments: Any) -> None:
        if url.startswith("https"):
            arguments["storage_options"] = json.dumps({"ca_bundle": task["authority"]})
        self.quick: bool = task["quick"]
        self.rss = rss_bytes()
        self.pipe = common.reader(url, task["device"], BATCH, **arguments)
        self.batch_bytes = 0

    def run(self, seconds: float) -> int:
        """Takes batches for so long; returns how many."""
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            (output,) = self.pipe.run()
            count += 1
            self.batch_bytes = len(output) * math.prod(output[0].shape()) * 4
        return count

    def warm_up(self, seconds: float = 3.0) -> None:
        """Reads for some seconds, in which pinned memory for answers grows; shorter in a quick run."""
        self.run(0.5 if self.quick else seconds)

    def rate(self, seconds: float, *, warm_up: float | None = None) -> dict[str, Any]:
        """The steady state, timed for some seconds behind a warm-up.

        Returns:
            `wire_gb_per_s`, bytes that came in answers; `delivered_gb_per_s`; `cpu_s_per_gb` and
            `net_cpu_s_per_gb`, CPU seconds for a GB that came, of the process and of the network's threads;
            what the reader counted. GB are 10^9 bytes.
        """
        if warm_up is None:
            self.warm_up()
        else:
            self.run(warm_up)
        before, cpu, threads = common.counters(self.pipe), time.process_time(), common.thread_seconds()
        with highest_rss() as highest:
            began = time.perf_counter()
            count = self.run(seconds)
            elapsed = time.perf_counter() - began
        cpu, all_counted = time.process_time() - cpu, common.counters(self.pipe)
        spent, by_thread = common.grown(before, all_counted), common.thread_seconds()
        came = max(spent["bytes_fetched"], 1) / 1e9
        net = sum(
            by_thread[name] - threads.get(name, 0.0) for name in by_thread if name.startswith("zarr net")
        )
        asked = spent["requests"] + spent["requests_hedged"] + spent["requests_retried"]
        return {
            "wire_gb_per_s": came / elapsed,
            "delivered_gb_per_s": count * self.batch_bytes / elapsed / 1e9,
            "cpu_s_per_gb": cpu / came,
            "net_cpu_s_per_gb": net / came,
            "cores_by_thread": {
                name: round((now - threads.get(name, 0.0)) / elapsed, 2)
                for name, now in by_thread.items()
                if now - threads.get(name, 0.0) >= 0.05 * elapsed
            },
            "requests_per_s": asked / elapsed,
            "requests": spent["requests"],
            "requests_hedged": spent["requests_hedged"],
            "requests_retried": spent["requests_retried"],
            "bytes_fetched": spent["bytes_fetched"],
            "bytes_fetched_useful": spent["bytes_fetched_useful"],
            "requests_in_flight_peak": all_counted["requests_in_flight_peak"],
            "connections_opened": all_counted["connections_opened"],
            "ms_to_first_byte_p50": all_counted.get("ms_time_to_first_byte_p50"),
            "waited_ms": {name: value for name, value in spent.items() if name.startswith("ms_waiting_")},
            "rss_bytes": highest[0] - self.rss,
            "seconds": elapsed,
        }


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def highest_rss() -> Iterator[list[int]]:
    """Watches resident memory; the yielded list has the highest afterwards."""
    highest, done = [rss_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            highest[0] = max(highest[0], rss_bytes())

    thread = threading.Thread(target=watch, name="watch rss", daemon=True)
    thread.start()
    try:
        yield highest
    finally:
        done.set()
        thread.join()


def joined_ranges(store: Path, most_bytes: int) -> tuple[float, float]:
    """What the joining rule makes of all inner chunks of a sharded chunk, whose index is at its end.

    Returns:
        Requests, and bytes of the inner chunks: means of the store's sharded chunks.
    """
    import numpy as np

    gap, most = 64 << 10, min(16 << 20, most_bytes)
    requests, useful, files = 0, 0, common.chunk_files(store)
    metadata = json.loads((store / "zarr.json").read_text())
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    inner = metadata["codecs"][0]["configuration"]["chunk_shape"]
    count = math.prod([extent // part for extent, part in zip(chunk, inner)])
    for file in files:
        with file.open("rb") as opened:
            opened.seek(-16 * count - 4, os.SEEK_END)
            index = np.frombuffer(opened.read(16 * count), "<u8").reshape(-1, 2)
        start = end = None
        for offset, length in sorted((int(o), int(n)) for o, n in index if o != 2**64 - 1):
            useful += length
            if start is None or offset - end > gap or offset + length - start > most:
                requests, start = requests + 1, offset
            end = offset + length
    return requests / len(files), useful / len(files)
