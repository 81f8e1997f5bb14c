"""The CPU backend beside zarrs, the library that it decodes with, called with as many threads.

No GPU takes part. A pass reads every step once in batches of 8; GB/s count decoded bytes in host memory, from
a warm page cache.

| row | what happens |
|---|---|
| `zarr-dali` | `fn.readers.zarr` with `device="cpu"` and so many `num_io_threads` |
| `zarrs` | zarr-python with the codec pipeline of the zarrs package, a new array for each batch |
| `zarrs, one array` | the same into one array, whose pages are there already |
| `zarrs, Rust` | a program without Python, see `--zarrs-direct` |

All values are first compared bit by bit with what zarr-python reads with its own codecs. Then the rows take
turns in rounds; each round opens the store anew, reads at least one pass to warm up, and times whole passes.
The figures are medians.

    python benches/cpu_backend.py
    python benches/cpu_backend.py --zarrs-direct ./zarrs_direct --threads 2,16
    python benches/cpu_backend.py --quick

`--zarrs-direct PROGRAM` is called as `PROGRAM STORE ARRAY THREADS SECONDS`, ARRAY being `/`, and prints
`{"gb_per_s": ...}` as its last line.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

BATCH = 8
OURS, NEW_ARRAY, ONE_ARRAY, RUST = "zarr-dali", "zarrs", "zarrs, one array", "zarrs, Rust"


def zarrs_batches(store: Path, threads: int, *, one_array: bool) -> tuple[Callable[[int], Any], int]:
    """How zarrs reads the batch that begins at a step, and the number of steps.

    Raises:
        ImportError: the package is missing.
    """
    import zarr
    from zarr.core.buffer import default_buffer_prototype

    importlib.import_module("zarrs")
    # An array keeps the pipeline it was opened with. Strict: an error instead of the default pipeline.
    settings = {
        "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
        "codec_pipeline.strict": True,
        "threading.max_workers": threads,
    }
    with zarr.config.set(settings):
        array = zarr.open_array(str(store), mode="r")
    if not one_array:
        return lambda start: array[start : start + BATCH], array.shape[0]
    out = default_buffer_prototype().nd_buffer.create(
        shape=(BATCH, *array.shape[1:]), dtype=array.dtype, order="C"
    )

    def read(start: int) -> Any:
        array.get_basic_selection(slice(start, start + BATCH), out=out)
        return out.as_numpy_array()

    return read, array.shape[0]


def verify(name: str, store: Path, threads: int, expected: Any) -> None:
    """Compares one pass of a row bit by bit with `expected` [T, C, H, W]; ValueError where they differ."""
    import numpy as np

    if name == OURS:
        pipe = common.reader(store, "cpu", BATCH, num_io_threads=threads)

        def read(start: int) -> Any:
            return pipe.run()[0].as_array()
    else:
        read, _ = zarrs_batches(store, threads, one_array=name == ONE_ARRAY)
    for start in range(0, len(expected), BATCH):
        if not np.array_equal(read(start).view("uint32"), expected[start : start + BATCH].view("uint32")):
            raise ValueError(f"{name} read other values than zarr-python in steps {start} to {start + BATCH}")


def timed(name: str, store: Path, threads: int, args: Any) -> dict[str, float]:
    """Opens, warms up and times one row: `gb_per_s`, and `cpu_cores` that were busy where that is known."""
    size = common.decoded_bytes(args)
    if name == OURS:
        pipe = common.reader(store, "cpu", BATCH, num_io_threads=threads)
        row = common.rates(pipe, BATCH, size, args.seconds)
        return {"gb_per_s": row["delivered_gb_per_s"], "cpu_cores": row["cpu_cores"]}
    if name == RUST:
        command = [str(args.zarrs_direct), str(store), "/", str(threads), str(args.seconds)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60 + 10 * args.seconds
        )
        return {"gb_per_s": float(json.loads(done.stdout.strip().splitlines()[-1])["gb_per_s"])}
    read, steps = zarrs_batches(store, threads, one_array=name == ONE_ARRAY)

    def passes(least: float) -> tuple[int, float]:
        count, began = 0, time.perf_counter()
        while True:
            for start in range(0, steps, BATCH):
                read(start)
            count += 1
            if (elapsed := time.perf_counter() - began) >= least:
                return count, elapsed

    passes(args.seconds / 3)
    cpu = time.process_time()
    count, elapsed = passes(args.seconds)
    return {
        "gb_per_s": count * size / elapsed / 1e9,
        "cpu_cores": (time.process_time() - cpu) / elapsed,
    }


def measured(store: Path, threads: int, args: Any) -> dict[str, Any]:
    """All rows of one store and number of threads."""
    import zarr

    names = [OURS, NEW_ARRAY, ONE_ARRAY] + ([RUST] if args.zarrs_direct else [])
    problems: dict[str, str] = {}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}

    def attempt(name: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except (ImportError, LookupError, OSError, RuntimeError, ValueError, TypeError) as error:
            problems[name] = common.gist(error)
        except subprocess.SubprocessError as error:
            problems[name] = common.gist(getattr(error, "stderr", None) or error)
        gc.collect()

    expected = zarr.open_array(str(store), mode="r")[:]
    for name in names:
        if name != RUST:
            attempt(name, functools.partial(verify, name, store, threads, expected))
    del expected
    for number in range(args.rounds):
        # Who runs after whom changes from round to round.
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if name not in problems:
                attempt(name, lambda name=name: rounds[name].append(timed(name, store, threads, args)))
    row: dict[str, Any] = {
        name: statistics.median(one["gb_per_s"] for one in rounds[name]) for name in names if rounds[name]
    }
    peers = [row[name] for name in names if name != OURS and name in row]
    if OURS in row and peers:
        row["of_best_zarrs"] = row[OURS] / max(peers)
    if OURS not in row:
        row["problem"] = problems.get(OURS, "no figures")
    return {**row, "problems": problems, "rounds": rounds}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time the CPU backend beside zarrs.", 1.0)
    common.add_stores(line)
    line.add_argument(
        "--threads",
        type=common.list_of(int),
        default=[len(os.sched_getaffinity(0))],
        metavar="N,...",
        help="numbers of threads (default: as many as cores)",
    )
    line.add_argument("--rounds", type=int, help="interleaved rounds (default: 3, quick: 2)")
    line.add_argument("--zarrs-direct", type=Path, metavar="PROGRAM", help="another peer, see above")
    args = common.parse(line, argv)
    args.device = "cpu"
    args.rounds = args.rounds or (2 if args.quick else 3)
    points = common.chosen(
        line,
        args,
        [
            {"point": f"{store}/{threads}", "store": store, "threads": threads}
            for store in args.stores
            for threads in args.threads
        ],
    )
    stores = common.ensure_stores(args, args.stores)
    results = common.Results(
        "cpu_backend",
        "GB/s of decoded bytes in host memory, the CPU backend beside zarrs with as many threads",
        args,
        rounds=args.rounds,
        seconds=args.seconds,
        batch_size=BATCH,
    )
    return results.measure(points, lambda point: measured(stores[point["store"]], point["threads"], args))


if __name__ == "__main__":
    sys.exit(main())
