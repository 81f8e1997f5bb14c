"""`zarr_dali.rechunk` and `zarr_dali.statistics` by one and by four workers of dask.distributed.

The source has `--steps` steps of six levels in chunks of ten steps of one level, zstd; the copy has each step
in a chunk of its own, zstd again, and statistics are those of each level. All workers are on this machine,
each a process with a quarter of the cores as its threads, so that one of them has as much to work with as
each of four. A small part is copied before anything is timed, which imports what workers need. Of `threads`
there are no workers: the process itself does it, with eight threads at most, as without `dask`.

`equal` says whether every value of the copy is that of the source, and whether statistics are those of this
process to 12 digits (regions depend on the number of workers, and with them the order of the sum). The peak
of memory is the largest growth of the resident set of a worker (VmHWM) behind the part that was not timed;
`--memory` is the bound of it.

The time is that of the call, with planning, the look at all files at the end and the bringing to the disk
(syncfs): on a slow disk that is what is measured, so say with `--folder` where there is a fast one.

    python benches/rechunk_cluster.py --folder /mnt/nvme/bench
    python benches/rechunk_cluster.py --quick
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import common
from rechunk import equal

STEPS, CHUNK_STEPS = 416, 10
COMMANDS = ("rechunk", "statistics")
WORKERS = ("threads", "1", "4")


@contextmanager
def cluster(workers: int, threads: int) -> Iterator[Any]:
    """A client of a cluster of `workers` processes on this machine."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=threads, dashboard_address=":0", memory_limit=0
        ) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):
        yield client


def peak() -> int:
    """Largest resident set of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def peaks(client: Any) -> dict[str, int]:
    """Of each worker."""
    return dict(client.run(peak)) if client is not None else {"": peak()}


def alike(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether statistics are the same to 12 digits."""
    return found.keys() == wanted.keys() and all(
        np.allclose(found[name][key], wanted[name][key], rtol=1e-12, atol=0)
        for name in wanted
        for key in ("mean", "std", "min", "max", "count", "missing", "infinite")
    )


def work_of(command: str, source: Path, copy: Path, args: Any) -> Callable[..., Any]:
    """A function that does all of it; takes the client and further arguments."""
    import zarr_dali

    def rechunk(client: Any, **arguments: Any) -> Any:
        shutil.rmtree(copy, ignore_errors=True)
        return zarr_dali.rechunk(
            source, copy, chunks={"dim_0": 1}, codec="zstd:1", dask=client, memory=args.memory, **arguments
        )

    def statistics(client: Any, **arguments: Any) -> Any:
        return zarr_dali.statistics(source, by="dim_1", dask=client, memory=args.memory, **arguments)

    return {"rechunk": rechunk, "statistics": statistics}[command]


def measured(point: dict[str, Any], source: Path, args: Any) -> dict[str, Any]:
    """The row of a point."""
    copy = source.with_name("by-a-cluster.zarr")
    work = work_of(point["command"], source, copy, args)
    if point["workers"] == "threads":
        return timed(work, None, point, source, copy, args)
    with cluster(int(point["workers"]), args.threads) as client:
        return timed(work, client, point, source, copy, args)


def timed(
    work: Callable[..., Any], client: Any, point: dict[str, Any], source: Path, copy: Path, args: Any
) -> dict[str, Any]:
    """Does a part that is not timed, then all of it."""
    part = CHUNK_STEPS * args.threads * (1 if client is None else len(client.nthreads()))
    work(client, index_range={"dim_0": (0, min(args.steps, part))})
    before = peaks(client)
    began = time.perf_counter()
    found = work(client)
    seconds = time.perf_counter() - began
    after = peaks(client)
    used = max(after[name] - before[name] for name in before)
    row = {
        "processes": 1 if client is None else len(before),
        "threads": args.threads if client is not None else None,
        "decoded_bytes": common.decoded_bytes(args),
        "seconds": seconds,
        "gb_per_s": common.decoded_bytes(args) / seconds / 1e9,
        "memory": args.memory,
        "peak": used,
        "share_of_memory": used / args.memory,
    }
    if point["command"] == "rechunk":
        (array,) = found.plan.arrays
        row |= {"regions": array.regions, "regions_at_once": array.cut.workers, "equal": equal(source, copy)}
        shutil.rmtree(copy)
    else:
        row["equal"] = client is None or alike(found, work(None))
    return row


def add_gains(rows: Sequence[dict[str, Any]]) -> None:
    """Says of four workers how many times one worker they are."""
    known = {row["point"]: row for row in rows if "gb_per_s" in row}
    for command in COMMANDS:
        one, four = known.get(f"{command}/1"), known.get(f"{command}/4")
        if one and four:
            four["times_one_worker"] = four["gb_per_s"] / one["gb_per_s"]
            print(f"{command}: four workers are {four['times_one_worker']:.2f} times one")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Copy a store, and compute statistics, with one and four workers.", 0, steps=STEPS)
    line.add_argument(
        "--memory", type=int, default=1_000_000_000, help="bytes for each worker (default: %(default)s)"
    )
    line.add_argument("--threads", type=int, help="of each worker (default: a quarter of the cores)")
    args = common.parse(line, argv)
    args.threads = args.threads or max(1, args.machine["cores"] // 4)
    cut = common.Cut("ten-steps-of-a-level", (CHUNK_STEPS, 1, *args.grid))
    points = common.chosen(
        line,
        args,
        [
            {"point": f"{command}/{workers}", "command": command, "workers": workers}
            for command in COMMANDS
            for workers in WORKERS
        ],
    )
    source = common.ensure_cuts(args, [cut])[cut.name]
    results = common.Results(
        "rechunk_cluster",
        "decoded GB/s of a copy into other chunks and of statistics, by one and by four workers of dask",
        args,
        threads=args.threads,
        memory=args.memory,
    )
    status = results.measure(points, lambda point: measured(point, source, args))
    add_gains(results.content["rows"])
    results.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
