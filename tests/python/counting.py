"""How many chunks a reader has to decode for what it has handed over, and how many it did."""

import time
from math import prod

import zarr_dali

SETTLED_SECONDS, PATIENCE_SECONDS = 0.15, 10
"""A reader whose counters stood still for so long has read as far ahead as it may, unless a chunk is on its
way; the machine may be busy with something else, but not for ever."""


def settled_stats(pipe):
    """The counters of the reader "reader" once it has stopped reading ahead."""
    stats, since = counters(pipe), time.monotonic()
    end = since + PATIENCE_SECONDS
    while time.monotonic() < (
        end if stats["chunks_read"] > stats["chunks_decoded"] else since + SETTLED_SECONDS
    ):
        time.sleep(0.01)
        now = counters(pipe)
        if now != stats:
            stats, since = now, time.monotonic()
    return stats


def counters(pipe):
    """The reader's statistics without times, which run on while nothing happens."""
    stats = zarr_dali.stats(pipe, "reader")
    return {name: value for name, value in stats.items() if not name.startswith("ms_")}


class Chunks:
    """The read chunks of one array, or of arrays that are joined along the first dimension."""

    def __init__(self, shape, parts):
        """`parts` are (extent along the first dimension, chunk extents) of each array."""
        self.shape = shape
        self.parts = parts

    def __len__(self):
        return sum(
            -(-extent // chunks[0]) * prod(-(-n // c) for n, c in zip(self.shape[1:], chunks[1:]))
            for extent, chunks in self.parts
        )

    def of(self, index):
        """The chunks that hold any element of this index, given as indices along each dimension."""
        found, start = set(), 0
        for number, (extent, chunks) in enumerate(self.parts):
            rows = {(i - start) // chunks[0] for i in index[0] if start <= i < start + extent}
            boxes = [(row,) for row in rows]
            for indices, chunk in zip(index[1:], chunks[1:]):
                columns = {i // chunk for i in indices}
                boxes = [(*box, column) for box in boxes for column in columns]
            found |= {(number, *box) for box in boxes}
            start += extent
        return found
