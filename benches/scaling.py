"""How the reader's speed scales: with batches and windows, with chunk sizes, with CPU cores.

The reader alone in a pipeline of nothing else, from a warm page cache, in the steady state: whole epochs are
timed after at least one that is not. Three groups of points:

- `windows/STORE/B/W/ORDER`: the five stores, batches of 1 and 8, windows of 2 and 4 steps that start at every
  step, in order and shuffled. Such windows overlap, so that more is delivered than is decoded: both rates
  are given. `decodes_per_epoch` says how often a byte of the store was decoded in an epoch; a little under 1
  means that some chunks stayed from one epoch to the next.
- `chunks/CODEC/SIZE`: the same values in chunks of 51 kB to 20 MB, uncompressed, zstd, and zstd in inner
  chunks of sharded chunks; single steps in batches of 8, in order.
- `cores/N/STORE`: the five stores with the process held to N cores before DALI is imported; single steps in
  batches of 8, in order.

    python benches/scaling.py --folder /dev/shm/bench
    python benches/scaling.py --points 'chunks/*'
    python benches/scaling.py --quick --device cpu
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import common

BATCHES = (1, 8)
WINDOWS = (2, 4)
CODECS = ("raw", "zstd", "sharded")
CORES = (2, 4, 8, 16)
BATCH = 8


def cuts_of(grid: Sequence[int]) -> list[tuple[common.Cut, str, int]]:
    """Cuts of the same values with their codec and the decoded bytes of a read chunk.

    On the full grid the read chunks are of 51 kB, 410 kB, 3.3 MB and 19.7 MB.
    """
    height, width = grid
    step = (1, 6, height, width)
    rows = [max(1, height // 64), height // 8, height]
    read_chunks = [(1, 1, n, width) for n in rows] + [step]
    cuts = []
    for codec, chunk in itertools.product(CODECS, read_chunks):
        size = 4 * chunk[1] * chunk[2] * chunk[3]
        name = f"{codec}-{size}"
        if codec == "sharded":
            # A sharded chunk holds what is written at once: a step, or four of the largest inner chunks.
            cut = common.Cut(name, (4, *step[1:]) if chunk == step else step, inner=chunk)
        else:
            cut = common.Cut(name, chunk, compressed=codec == "zstd")
        cuts.append((cut, codec, size))
    return cuts


def points_of(grid: Sequence[int]) -> list[dict[str, Any]]:
    """All points, those that share a child process together."""
    points: list[dict[str, Any]] = [
        {
            "point": f"windows/{store}/{batch}/{window}/{'shuffled' if shuffled else 'in order'}",
            "section": "windows",
            "store": store,
            "batch_size": batch,
            "window": window,
            "shuffled": shuffled,
        }
        for store, batch, window, shuffled in itertools.product(
            common.STORES, BATCHES, WINDOWS, (False, True)
        )
    ]
    points += [
        {
            "point": f"chunks/{codec}/{size}",
            "section": "chunks",
            "store": cut.name,
            "batch_size": BATCH,
            "codec": codec,
            "chunk_bytes": size,
        }
        for cut, codec, size in cuts_of(grid)
    ]
    points += [
        {
            "point": f"cores/{cores}/{store}",
            "section": "cores",
            "store": store,
            "batch_size": BATCH,
            "cores": cores,
        }
        for cores in common.cores_here(CORES) or [len(os.sched_getaffinity(0))]
        for store in common.STORES
    ]
    return points


def measured(point: dict[str, Any], task: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Builds a reader and times it; the figures of `common.rates`, or the problem."""
    arguments: dict[str, Any] = {}
    if point["section"] == "windows":
        arguments = {"window": [point["window"]], "stride": [1], "random_shuffle": point["shuffled"]}
    try:
        store = task["stores"][point["store"]]
        pipe = common.reader(store, task["device"], point["batch_size"], **arguments)
        return common.rates(pipe, point["batch_size"], task["store_bytes"], seconds)
    except (RuntimeError, ValueError) as error:
        return {"problem": common.gist(error)}


def child() -> None:
    """Goes through the points of one process."""
    task = common.child_task()
    common.hold_to(task["cores"])
    left = len(task["points"]) + task["later"]
    for number, point in enumerate(task["points"]):
        seconds = common.fair_seconds(task["seconds"], task["deadline"], left - number)
        if time.time() > task["deadline"]:
            row = {"problem": "left out: the time limit was reached"}
        else:
            row = measured(point, task, seconds)
        gc.collect()
        common.hand_over(row)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time the reader alone, by batch, window, chunk size and cores.", 1.0)
    line.add_argument(
        "--limit",
        type=float,
        default=190.0,
        help="seconds for everything: where they would not do, points are timed for less (default: 190)",
    )
    args = common.parse(line, argv)
    if args.child:
        child()
        return 0
    progress = common.Progress(0, args.limit)
    points = common.chosen(line, args, points_of(args.grid))
    progress.points = len(points)
    named = {point["store"] for point in points}
    stores = common.ensure_stores(args, [name for name in common.STORES if name in named])
    stores |= common.ensure_cuts(args, [cut for cut, _, _ in cuts_of(args.grid) if cut.name in named])
    task = {
        "device": args.device,
        "stores": {name: str(path) for name, path in stores.items()},
        "store_bytes": common.decoded_bytes(args),
        "seconds": args.seconds,
        "deadline": progress.deadline,
    }
    results = common.Results(
        "scaling", "GB/s of the reader alone, steady state", args, seconds=args.seconds, limit_s=args.limit
    )
    later = len(points)
    for cores, group in itertools.groupby(points, key=lambda point: point.get("cores")):
        group = list(group)
        later -= len(group)
        rows = common.in_child(__file__, {**task, "cores": cores, "later": later}, group, limit_s=60)
        for point, row in rows:
            results.add({**point, **row})
            progress.show(point, row)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
