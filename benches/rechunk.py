"""`zarr-dali rechunk` on a store whose chunks hold ten steps each, and what reading and training gain by it.

The source has `--steps` steps in chunks of ten, zstd. It is copied as `--for-window 2 --batch 16` proposes,
by a process of its own that is killed (SIGKILL) twice, when at least a fifth and half of the regions are
noted as finished, and goes on with `--resume` (a small copy may end before that). Every value
of the copy is then compared with the source's.

The peak of memory is the largest resident set (VmHWM) of any of these processes, less that of one which only
plans the copy (`--dry-run`); `--memory` is the bound of it.

Then both stores are read as the training reads them, shuffled windows of two steps in batches of 16, and on a
GPU `pipelines/train_unet.py` trains on both. What of the source is decoded again and again shows in
`decodes_per_epoch`.

    python benches/rechunk.py --folder /mnt/nvme/bench
    python benches/rechunk.py --quick --device cpu
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import common

STEPS, CHUNK_STEPS = 104, 10
WINDOW, BATCH, QUICK_BATCH = 2, 16, 4
KILLS = (0.2, 0.5)


def command(source: Path, copy: Path, batch: int, *arguments: object) -> list[str]:
    """The command line of a copy."""
    words = [sys.executable, "-m", "zarr_dali", "rechunk", source, copy, "--for-window", WINDOW]
    return [str(word) for word in (*words, "--batch", batch, *arguments)]


class Copying:
    """A copy that runs, and the peak of its memory."""

    def __init__(self, words: Sequence[str]) -> None:
        self.peak = 0
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def _look(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            try:
                lines = status.read_text().splitlines()
            except OSError:
                return
            # In kB; a process that has ended and was not waited for has no such line.
            kilobytes = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
            self.peak = max(self.peak, 1024 * next(kilobytes, 0))
            time.sleep(0.005)

    def end(self, *, kill: bool = False) -> bool:
        """Waits for its end; whether it was complete before it was killed. OSError if it failed."""
        if kill:
            self.process.kill()
        text = self.process.communicate()[1]
        self._watch.join()
        status = self.process.returncode
        if status != 0 and not (kill and status == -signal.SIGKILL):
            raise OSError(f"the copy ended with {status}: {text.strip()}")
        return status == 0


def finished(partial: Path) -> int:
    """Regions of a copy that are noted as finished."""
    from zarr_dali._rechunk import journal

    try:
        noted, _ = journal.parse((partial / journal.NAME).read_bytes())
    except FileNotFoundError:
        return 0
    return sum(isinstance(value, list) for value in noted)


def copied(source: Path, copy: Path, args: Any) -> dict[str, Any]:
    """Copies, is killed twice, compares: the row of it."""
    from zarr_dali import rechunk
    from zarr_dali._rechunk.copying import partial_of

    memory = ("--memory", args.memory)
    for path in (copy, partial_of(copy)):
        shutil.rmtree(path, ignore_errors=True)
    planning = Copying(command(source, copy, args.batch_size, *memory, "--dry-run"))
    planning.end()
    plan = rechunk(str(source), str(copy), for_window=[WINDOW], batch=args.batch_size, memory=args.memory,
                   dry_run=True).plan  # fmt: skip
    regions = sum(array.regions for array in plan.arrays)
    peaks, seconds, noted = [], 0.0, []
    for share in (*KILLS, 2):
        words = command(source, copy, args.batch_size, *memory, *(["--resume"] if noted else []))
        began = time.perf_counter()
        copying = Copying(words)
        enough = max(share * regions, max(noted, default=0) + 1)
        while copying.process.poll() is None and finished(partial_of(copy)) < enough:
            time.sleep(0.001)
        complete = copying.end(kill=copying.process.poll() is None)
        seconds += time.perf_counter() - began
        peaks.append(copying.peak)
        if complete:
            break
        noted.append(finished(partial_of(copy)))
    peak = max(peaks) - planning.peak
    return {
        "decoded_bytes": common.decoded_bytes(args),
        "regions": regions,
        "regions_finished_at_kills": noted,
        "seconds": seconds,
        "gb_per_s": common.decoded_bytes(args) / seconds / 1e9,
        "equal": equal(source, copy),
        "memory": args.memory,
        "peak": peak,
        "baseline": planning.peak,
        "share_of_memory": peak / args.memory,
    }


def equal(source: Path, copy: Path) -> bool:
    """Whether both hold the same bits."""
    import zarr

    ours, theirs = (zarr.open_array(str(path), mode="r") for path in (copy, source))
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    spans = (slice(start, start + CHUNK_STEPS) for start in range(0, ours.shape[0], CHUNK_STEPS))
    return all(np.array_equal(ours[span].view(np.uint32), theirs[span].view(np.uint32)) for span in spans)


def read(store: Path, args: Any) -> dict[str, Any]:
    """Reads and, where that is quick enough, trains: the row of it."""
    import zarr

    import program
    import train_unet
    from fields import inspect

    array = zarr.open_array(str(store), mode="r")
    row: dict[str, Any] = {
        "chunk": list(array.chunks),
        "shard": list(array.shards) if array.shards else None,
        "stored_bytes": common.stored_bytes(store),
    }
    arguments = {"window": [WINDOW], "random_shuffle": True}
    pipe = common.reader(store, args.device, args.batch_size, **arguments)
    row |= common.rates(pipe, args.batch_size, common.decoded_bytes(args), args.seconds)
    del pipe
    if args.device == "gpu" or args.quick:
        line = ["--store", store, "--batch-size", args.batch_size, "--seconds", args.seconds, "--quiet"]
        training = train_unet.parser().parse_args([str(part) for part in line])
        ranks = program.Ranks(0, 1, program.chosen_device(args.device))
        training.amp = args.device == "gpu"
        summary = train_unet.train(training, inspect(str(store)), ranks)
        row |= {"samples_per_s": summary.samples_per_s, "wait_share": summary.wait_share}
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser(
        "Copy a store into other chunks, killed and resumed, and read both.", 3.0, steps=STEPS
    )
    line.add_argument("--memory", type=int, default=1_000_000_000, help="bytes (default: %(default)s)")
    args = common.parse(line, argv)
    args.batch_size = QUICK_BATCH if args.quick else BATCH
    cut = common.Cut("ten-steps", (CHUNK_STEPS, 6, *args.grid))
    points = common.chosen(line, args, [{"point": name} for name in ("copy", "before", "after")])
    source = common.ensure_cuts(args, [cut])[cut.name]
    copy = source.with_name("rechunked.zarr")
    results = common.Results(
        "rechunk",
        "a copy into chunks that fit the samples, killed twice, and the rates of reading and training before "
        "and after it",
        args,
        batch_size=args.batch_size,
        window=WINDOW,
        seconds=args.seconds,
    )

    def measured(point: dict[str, Any]) -> dict[str, Any]:
        if point["point"] == "copy":
            return copied(source, copy, args)
        return read({"before": source, "after": copy}[point["point"]], args)

    return results.measure(points, measured)


if __name__ == "__main__":
    sys.exit(main())
