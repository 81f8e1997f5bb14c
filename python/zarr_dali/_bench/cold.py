"""The first epoch of a fresh reader when the store's files are not in memory."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zarr_dali._bench import cache
from zarr_dali._bench.loaders import ZarrDali
from zarr_dali._bench.work import Work

EARLY_SHARE = 0.5
"""Where more than this share was read before the first batch came, opening the reader is timed as well."""


@dataclass
class Cold:
    """What the epochs took."""

    gb_per_s: list[float] = field(default_factory=list)
    """Of each epoch, in 10^9 delivered bytes. From the first batch on, see `with_opening`."""
    first_batch_s: list[float] = field(default_factory=list)
    """From the first request to the first batch, which opens the reader."""
    fetched_share: list[float] = field(default_factory=list)
    """Bytes fetched from storage for each of the files', as far as the system tells."""
    with_opening: bool = False
    """Whether the epochs were so short that the rates cover opening the reader too."""
    problem: str = ""
    """Why there are no figures."""

    @property
    def median(self) -> float | None:
        """GB/s, or None where there is a problem."""
        return statistics.median(self.gb_per_s) if self.gb_per_s and not self.problem else None

    def as_json(self) -> dict[str, Any]:
        """What is kept in the results."""
        if self.median is None:
            return {"problem": self.problem}
        return {
            "median_gb_per_s": self.median,
            "gb_per_s": self.gb_per_s,
            "first_batch_s": self.first_batch_s,
            "fetched_share": self.fetched_share,
            "with_opening": self.with_opening,
        }


def epoch(work: Work, loader: ZarrDali, files: list[Path], found: Cold) -> None:
    """Evicts the files, reads an epoch with a fresh reader and adds what it took to `found`.

    The reader works ahead while it opens, so what it had read when the first batch came does not count, and
    neither does the time until then.

    Args:
        loader: A lazy one, which opens the store with its first batch.
        files: All chunk files that are read.
    """
    files_bytes = sum(file.stat().st_size for file in files)
    loader.open(work)
    try:
        watch = cache.Watch(files, files_bytes)
        began = time.perf_counter()
        loader.batch()
        first = time.perf_counter()
        early = min(loader.stats()["bytes_read"], files_bytes)
        for _ in range(work.batches - 1):
            loader.batch()
        end = time.perf_counter()
    finally:
        loader.close()
        gc.collect()
    if problem := watch.problem():
        found.problem = problem
        return
    found.with_opening = found.with_opening or work.batches == 1 or early > EARLY_SHARE * files_bytes
    counted, since = (files_bytes, began) if found.with_opening else (files_bytes - early, first)
    found.gb_per_s.append(work.pass_bytes * counted / files_bytes / (end - since) / 1e9)
    found.first_batch_s.append(first - began)
    share = watch.fetched_share()
    if share is not None:
        found.fetched_share.append(share)
