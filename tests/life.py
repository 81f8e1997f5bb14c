"""Builds, uses and destroys readers again and again, and shows that nothing grows.

    python tests/life.py --device cpu --builds 1000 --epochs 20 --readers 5
    python tests/life.py --device gpu --builds 1000 --epochs 20 --readers 5

Three parts: pipelines built and destroyed, unread, after a batch or in the middle of an epoch; the epochs
of one reader; the epochs of several at once. Before a part, after its warm-up (its first tenth) and then
at every tenth it prints resident memory, threads, open files and, on a GPU, the device memory in use.
Everything has to be flat behind the warm-up: no thread and no file more at the end, and resident and
device memory at the end, which is the median of the last three figures, no higher than the most that the
first three had by more than a slack. The exit status is 1 where something grew.

So that a leak of a kilobyte in each build shows, the allocator has one heap for all threads and gives
back what is free before each look. With a heap for each thread (without MALLOC_ARENA_MAX=1) resident
memory goes up and down by megabytes, as one thread frees what another took.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "python"))

import numpy as np

import reading
from stores import write_array, write_group

MIB = 1 << 20
SLACK_BYTES = {"resident_bytes": MIB, "device_bytes": 32 * MIB}
"""Memory may differ by so much: stacks of the moment, and DALI's pool of GPU memory grows in blocks."""
GPU_SLACK_BYTES = 3 * MIB
"""On a GPU resident memory may: 600 pipelines of DALI's `fn.random.uniform` take 0.9 MiB (H200)."""
PATIENCE_S = 5
"""So long threads and files may take to go after their pipeline went."""
STEPS = 200
BATCH_SIZE = 8
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Held:
    """What the process holds at one moment."""

    resident_bytes: int
    threads: int
    files: int
    device_bytes: int | None = None

    @classmethod
    def now(cls, backend: reading.Backend) -> Held:
        gc.collect()
        LIBC.malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir("/proc/self/task")),
            len(os.listdir("/proc/self/fd")) - 1,  # the listing has a file of its own
            device_bytes() if backend is reading.GPU else None,
        )

    def __str__(self) -> str:
        device = "" if self.device_bytes is None else f"{self.device_bytes / MIB:12.1f}"
        return f"{self.resident_bytes / MIB:12.1f}{self.threads:9}{self.files:7}{device}"


def device_bytes() -> int:
    """Memory of GPU 0 that is in use, by whomever."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxPushCurrent_v2(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
        cuda.cuDevicePrimaryCtxRelease_v2(0),
    ):
        if status:
            raise RuntimeError(f"CUDA error {status}")
    return total.value - free.value


@dataclass
class Part:
    """One part of the run: what was held before it, after its warm-up and at every tenth from there."""

    name: str
    held: list[Held] = field(default_factory=list)

    def growth(self) -> list[str]:
        """What grew, in words. Nothing is said of fewer than six figures: they are all warm-up."""
        flat = self.held[1:]
        if len(flat) < 6:
            return []
        grown = []
        for what in ("threads", "files"):
            then, now = (getattr(held, what) for held in (flat[0], flat[-1]))
            if now > then:
                grown.append(f"{self.name}: {what} grew from {then} to {now}")
        for what, slack_bytes in SLACK_BYTES.items():
            figures = [getattr(held, what) for held in flat]
            # Tests that run side by side share the GPU.
            if None in figures or (what == "device_bytes" and "PYTEST_XDIST_WORKER" in os.environ):
                continue
            if what == "resident_bytes" and flat[0].device_bytes is not None:
                slack_bytes = GPU_SLACK_BYTES
            then, now = max(figures[:3]), statistics.median(figures[-3:])
            if now > then + slack_bytes:
                name = what.replace("_bytes", " memory")
                grown.append(
                    f"{self.name}: {name} grew from {then / MIB:.1f} to {now / MIB:.1f} MiB, "
                    f"by more than {slack_bytes // MIB} MiB"
                )
        return grown


def turns(name: str, how_many: int, turn: Callable[[int], None], backend: reading.Backend) -> Part:
    """Does `turn(i)` for every i below `how_many`, and prints what is held in between."""
    part = Part(name)
    device = "" if backend is reading.CPU else f"{'device MiB':>12}"
    print(f"{name:24}{'resident MiB':>12}{'threads':>9}{'files':>7}{device}")

    def note(done: int) -> None:
        held = Held.now(backend)
        if len(part.held) > 1:
            held = settled(held, part.held[1], backend)
        part.held.append(held)
        print(f"{f'after {done}' if done else 'before':24}{held}", flush=True)

    note(0)
    marks = {max(1, how_many * tenth // 10) for tenth in range(1, 11)}
    for i in range(how_many):
        turn(i)
        if i + 1 in marks:
            note(i + 1)
    return part


def settled(held: Held, warm: Held, backend: reading.Backend) -> Held:
    """What is held once threads and files that are about to go are gone."""
    deadline = time.monotonic() + PATIENCE_S
    while (held.threads > warm.threads or held.files > warm.files) and time.monotonic() < deadline:
        time.sleep(0.05)
        held = Held.now(backend)
    return held


def write_store(path: Path) -> None:
    rng = np.random.default_rng(1)
    write_group(path)
    names = ("time", "y", "x")
    for name, codec in (("t2m", "zstd"), ("msl", "gzip")):
        values = rng.integers(0, 50, (STEPS, 32, 32)).astype("float32")
        write_array(path, name, values, chunks=(10, 32, 32), codec=codec, dimension_names=names)
    write_array(path, "mask", rng.random((32, 32)) < 0.5, chunks=(32, 32), dimension_names=names[1:])


def variants(path: Path) -> Iterator[dict[str, object]]:
    """Endless: reader arguments of many kinds."""
    windows = [{}, {"window": [3]}, {"window": [2, 16, 16]}, {"offsets": [-2, 0, 5], "return_index": True}]
    arrays = [["t2m"], ["t2m", "msl", "mask"]]
    for window, names, shuffle, threads in itertools.cycle(
        itertools.product(windows, arrays, (False, True), (1, 4))
    ):
        yield {
            "path": path,
            "arrays": names,
            "random_shuffle": shuffle,
            "num_io_threads": threads,
            "batch_size": BATCH_SIZE,
            "pad_last_batch": True,
            **window,
        }


def run(device: str, builds: int, epochs: int, readers: int, path: Path) -> list[str]:
    """Does the three parts and says what grew."""
    backend = {"cpu": reading.CPU, "gpu": reading.GPU}[device]
    arguments = variants(path)
    batches = -(-STEPS // BATCH_SIZE)

    def build_one(i: int) -> None:
        pipe = reading.build(backend, **next(arguments))
        for _ in range((0, 1, 7)[i % 3]):
            pipe.run()

    parts = [turns(f"{builds} builds", builds, build_one, backend)]
    for count in (1, readers):
        pipes = [reading.build(backend, **next(arguments)) for _ in range(count)]

        def epoch(_: int, pipes: list = pipes) -> None:
            for _ in range(batches):
                for pipe in pipes:
                    pipe.run()

        name = f"{epochs} epochs of {count} reader{'s' * (count > 1)}"
        parts.append(turns(name, epochs, epoch, backend))
        del pipes, epoch
    return [line for part in parts for line in part.growth()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="the backend")
    parser.add_argument("--builds", type=int, default=1000, help="pipelines built and destroyed")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of a reader")
    parser.add_argument("--readers", type=int, default=5, help="readers at once")
    args = parser.parse_args()
    if args.device == "gpu" and (problem := reading.gpu_problem()):
        parser.error(problem)
    if os.environ.get("MALLOC_ARENA_MAX") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_ARENA_MAX": "1"})
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder))
        grown = run(args.device, args.builds, args.epochs, args.readers, Path(folder))
    print("\n".join(grown) or "flat")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
