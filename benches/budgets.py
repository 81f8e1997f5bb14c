"""Speed and peak of device memory at several `device_memory_budget`s, seen from outside.

Each point is a child process of its own. Before the reader under test is built, the child reads a tiny store
of the same codec with a small budget and gives that reader back: CUDA's context, DALI and the decoders'
kernels are in memory from then on. This process, which uses no GPU, then notes how much memory is used (the
baseline), lets the child go on, and asks NVML every few milliseconds until the child is done.

What is reported as the peak is the most that was used at any of these moments, less the baseline: used by the
child's process where NVML tells that (`measured` is "process"), and on the whole GPU where it does not, as in
most containers ("GPU"), which is right only if nobody else uses it. DALI may keep the tiny reader's memory
for later, which then is in the baseline and not in the peak: at most `baseline_budget` bytes, its budget. A
peak between two looks is missed; `look_ms` is how far they are apart.

On the CPU backend it is `host_memory_budget`, and the resident memory of the child.

    python benches/budgets.py --stores zstd,raw --budgets 256,1000,4000,16000
    python benches/budgets.py --quick --device cpu
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

BUDGETS_MB = (256, 1000, 4000, 16000)
QUICK_BUDGETS_MB = (2, 40)
BATCHES = (1, 8)
TINY_BUDGET = 64_000_000
LOOK_S = 0.002
READY = "@ready"


def used_by(pid: int, device: str) -> tuple[Callable[[], int], str]:
    """How to ask for the bytes of memory in use, and whose they are: "process" or "GPU".

    Raises:
        ImportError: a package is missing.
        OSError: NVML does not work here.
    """
    if device == "cpu":
        import psutil

        process = psutil.Process(pid)
        return lambda: process.memory_info().rss, "process"

    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    try:
        pynvml.nvmlInit()
        if visible.startswith("GPU-"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(visible)
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible or 0))
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error

    def by_process() -> int:
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == pid and process.usedGpuMemory is not None:
                return process.usedGpuMemory
        raise LookupError("NVML does not show the process's memory")

    try:
        by_process()
        return by_process, "process"
    except (LookupError, pynvml.NVMLError):
        return lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used, "GPU"


class Watch:
    """Asks for the memory in use over and over, on a thread, until the `with` block ends.

    Args:
        used: returns the bytes in use.

    Attributes:
        peak: the most that was seen.
        looks: how often it was asked.
        look_ms: median time between two looks in milliseconds.
    """

    def __init__(self, used: Callable[[], int]) -> None:
        self.used = used
        self.peak = used()
        self.looks = 1
        self.look_ms = 0.0
        self._gaps: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look_ms = 1e3 * statistics.median(self._gaps) if self._gaps else 0.0

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(LOOK_S):
            try:
                self.peak = max(self.peak, self.used())
            except Exception as error:  # the process may have ended; NVML and psutil have errors of their own
                print(f"memory watch ended: {error}", file=sys.stderr)
                return
            self.looks += 1
            now = time.perf_counter()
            self._gaps.append(now - last)
            last = now


def child() -> None:
    """Measures one point: gets everything loaded, says so, waits for the word to go on, and reads."""
    task = common.child_task()
    point, device = task["points"][0], task["device"]
    name = "device_memory_budget" if device == "gpu" else "host_memory_budget"
    try:
        pipe = common.reader(task["tiny"], device, 1, **{name: TINY_BUDGET})
        for _ in range(4):
            pipe.run()
        del pipe
        gc.collect()
    except (RuntimeError, ValueError) as error:
        # Without it the context would count as memory of the reader.
        print(READY, flush=True)
        common.hand_over({"problem": f"the tiny reader before it: {common.gist(error)}"})
        return
    print(READY, flush=True)
    sys.stdin.readline()
    try:
        pipe = common.reader(task["store"], device, point["batch_size"], **{name: point["budget"]})
        row = common.rates(pipe, point["batch_size"], task["store_bytes"], task["seconds"])
        row["own_peak"] = common.counters(pipe).get(f"{name.split('_')[0]}_memory_peak_bytes")
    except (RuntimeError, ValueError) as error:
        row = {"problem": common.gist(error)}
    common.hand_over(row)


def measured(task: dict[str, Any], point: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Runs the child of one point and watches its memory; its row with peak and baseline, or the problem."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(limit_s, process.kill)
    timer.start()

    def heard(start: str) -> str:
        for line in process.stdout:
            if line.startswith(start):
                return line.removeprefix(start)
            print(line, end="", flush=True)
        raise LookupError(f"the process ended with {process.wait()}")

    try:
        process.stdin.write(json.dumps({**task, "points": [point]}) + "\n")
        process.stdin.flush()
        heard(READY)
        time.sleep(0.1)
        used, whose = used_by(process.pid, task["device"])
        baseline = used()
        with Watch(used) as watch:
            process.stdin.write("go on\n")
            process.stdin.flush()
            row = json.loads(heard(common.ROW))
        if "problem" in row:
            return row
        return {
            **row,
            "measured": whose,
            "peak": watch.peak - baseline,
            "share_of_budget": (watch.peak - baseline) / point["budget"],
            "baseline": baseline,
            "looks": watch.looks,
            "look_ms": watch.look_ms,
        }
    except (LookupError, OSError) as error:
        return {"problem": common.gist(error)}
    except ImportError as error:
        return {"problem": f"{error}; pip install nvidia-ml-py psutil"}
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def tiny_store(args: Any, name: str) -> Path:
    """A store of 16 small steps in the same layout."""
    import era5_like

    path = args.folder / "tiny" / f"{name}.zarr"
    era5_like.ensure_stores(
        {name: path}, steps=common.QUICK_STEPS, grid=common.QUICK_GRID, arrangement="stacked"
    )
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time the reader at several memory budgets and watch its memory.", 1.5)
    line.add_argument(
        "--stores",
        type=common.list_of(str, common.STORES),
        default=["zstd", "raw"],
        metavar="NAMES",
        help="with commas between them (default: zstd,raw)",
    )
    line.add_argument(
        "--budgets",
        type=common.list_of(int),
        metavar="MB,...",
        help="in 10^6 bytes (default: 256,1000,4000,16000; quick: 2,40)",
    )
    line.add_argument(
        "--batch-sizes",
        type=common.list_of(int),
        default=list(BATCHES),
        metavar="N,...",
        help="steps in a batch (default: 1,8)",
    )
    args = common.parse(line, argv)
    if args.child:
        child()
        return 0
    budgets = args.budgets or (QUICK_BUDGETS_MB if args.quick else BUDGETS_MB)
    points = [
        {
            "point": f"{store}/{budget}MB/{batch}",
            "store": store,
            "budget": budget * 1_000_000,
            "batch_size": batch,
        }
        for store in args.stores
        for batch in args.batch_sizes
        for budget in budgets
    ]
    points = common.chosen(line, args, points)
    stores = common.ensure_stores(args, sorted({point["store"] for point in points}))
    results = common.Results(
        "budgets",
        "GB/s and the growth of memory in use, watched by another process, at several memory budgets",
        args,
        seconds=args.seconds,
        baseline_budget=TINY_BUDGET,
    )

    def one(point: dict[str, Any]) -> dict[str, Any]:
        task = {
            "device": args.device,
            "tiny": str(tiny_store(args, point["store"])),
            "store": str(stores[point["store"]]),
            "store_bytes": common.decoded_bytes(args),
            "seconds": args.seconds,
        }
        return measured(task, point, 90)

    return results.measure(points, one)


if __name__ == "__main__":
    sys.exit(main())
