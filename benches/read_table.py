"""How fast a store's values reach the device: fn.readers.zarr beside the loaders that people use today.

Stores of the same ERA5-like values (pipelines/era5_like.py) in several layouts are read by each loader in
batches of consecutive steps. A pass reads every step once and ends with the float32 values on the device.
Reported are decoded bytes delivered per second of wall time, in 10^9 bytes, from a warm page cache.

- All loaders run side by side in one process, in rounds that interleave them, because the speed of a machine
  drifts; compare figures of one run only, and quote ratios.
- In each round a loader is opened anew, warmed up for at least one pass, and then timed over whole passes for
  a few seconds. What a reader prepared before the clock started is used up by then: the rate is the steady
  state.
- The outputs of fn.readers.zarr are consumed where DALI puts them, without another copy. The peers return
  host arrays, which are copied to the GPU with .cuda(), as their users do.
- Before anything is timed, one pass of every loader is compared bit by bit with what zarr-python reads.

    python benches/read_table.py                    # raw, zstd and sharded; a GPU if there is one
    python benches/read_table.py --quick --device cpu
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "pipelines"))

import era5_like  # noqa: E402  a neighbour, not a package

# 1.26 GB of values, 19.7 MB a step; the quick ones only show that everything runs.
STEPS, GRID = 64, (640, 1280)
QUICK_STEPS, QUICK_GRID = 16, (80, 160)

PACKAGES = (
    "zarr-dali",
    "nvidia-dali-cuda130",
    "nvidia-libnvcomp-cu13",
    "torch",
    "numpy",
    "zarr",
    "numcodecs",
    "zarrs",
    "tensorstore",
)


class Loader(Protocol):
    """A way to read batches of steps over and over, from the first to the last."""

    name: str
    peer: bool

    def open(self, store: Path) -> None:
        """Opens the store and gets ready to deliver the first batch."""

    def batch(self) -> Any:
        """The next batch, complete on the device when this returns."""

    def to_host(self, batch: Any) -> tuple[list[int], np.ndarray]:
        """A batch's step numbers and its values [batch, C, H, W]."""

    def close(self) -> None:
        """Gives back all memory and threads."""


class ZarrDali:
    """fn.readers.zarr in a DALI pipeline of nothing else."""

    peer = False

    def __init__(self, device: str, batch_size: int, *, shuffle: bool = False, decode: str = "auto") -> None:
        self.name = (
            "zarr-dali" + (", shuffled" if shuffle else "") + ("" if decode == "auto" else f", {decode}")
        )
        self.device = device
        self.batch_size = batch_size
        self.options = {"random_shuffle": shuffle, "seed": 1, "decode": decode}
        self.pipe: Any = None
        importlib.import_module("zarr_dali")

    def open(self, store: Path) -> None:
        import nvidia.dali.fn as fn
        from nvidia.dali import pipeline_def

        @pipeline_def(
            batch_size=self.batch_size, num_threads=1, device_id=0 if self.device == "gpu" else None
        )
        def pipeline() -> Any:
            return fn.readers.zarr(path=str(store), device=self.device, name="reader", **self.options)

        self.pipe = pipeline()
        self.pipe.build()

    def batch(self) -> Any:
        # Without a stream, run() returns when the outputs are complete.
        (output,) = self.pipe.run()
        return output

    def to_host(self, batch: Any) -> tuple[list[int], np.ndarray]:
        on_host = batch.as_cpu() if self.device == "gpu" else batch
        # source_info ends with the index ranges, the step first: ".../raw.zarr[12, 0:6, 0:640, 0:1280]".
        steps = [int(sample.source_info().rsplit("[", 1)[1].split(",")[0]) for sample in on_host]
        return steps, on_host.as_array()

    def close(self) -> None:
        self.pipe = None


class HostPeer:
    """A library that reads a range of steps to a host array; on a GPU .cuda() copies it over."""

    peer = True

    def __init__(self, device: str, batch_size: int) -> None:
        self.batch_size = batch_size
        self.read: Callable[[int, int], np.ndarray] | None = None
        self.to_device: Callable[[np.ndarray], Any] = lambda values: values
        if device == "gpu":
            import torch

            self.name += " .cuda()"
            self.to_device = lambda values: torch.from_numpy(values).cuda()

    name = ""

    def reader(self, store: Path) -> tuple[Callable[[int, int], np.ndarray], int]:
        """How to read steps start..stop, and how many steps there are."""
        raise NotImplementedError

    def open(self, store: Path) -> None:
        self.read, self.steps = self.reader(store)
        self.next = 0

    def batch(self) -> Any:
        start = self.next
        self.next = (start + self.batch_size) % self.steps
        self.last = range(start, start + self.batch_size)
        return self.to_device(self.read(start, start + self.batch_size))

    def to_host(self, batch: Any) -> tuple[list[int], np.ndarray]:
        return list(self.last), batch if isinstance(batch, np.ndarray) else batch.cpu().numpy()

    def close(self) -> None:
        self.read = None


class ZarrPython(HostPeer):
    """zarr-python with its own codec pipeline and default settings."""

    name = "zarr-python"

    def reader(self, store: Path) -> tuple[Callable[[int, int], np.ndarray], int]:
        array = zarr.open_array(str(store), mode="r")
        return lambda start, stop: array[start:stop], array.shape[0]


class ZarrPythonZarrs(HostPeer):
    """zarr-python with the codec pipeline of the zarrs package."""

    name = "zarr-python + zarrs"

    def __init__(self, device: str, batch_size: int) -> None:
        super().__init__(device, batch_size)
        importlib.import_module("zarrs")

    def reader(self, store: Path) -> tuple[Callable[[int, int], np.ndarray], int]:
        # An array keeps the pipeline it was opened with. Strict: an error instead of the default pipeline.
        settings = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
        with zarr.config.set(settings):
            array = zarr.open_array(str(store), mode="r")
        return lambda start, stop: array[start:stop], array.shape[0]


class TensorStore(HostPeer):
    """tensorstore's zarr3 driver with default settings."""

    name = "tensorstore"

    def __init__(self, device: str, batch_size: int) -> None:
        super().__init__(device, batch_size)
        self.module = importlib.import_module("tensorstore")

    def reader(self, store: Path) -> tuple[Callable[[int, int], np.ndarray], int]:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store.resolve())}}
        array = self.module.open(spec, read=True).result()
        return lambda start, stop: array[start:stop].read().result(), array.shape[0]


@dataclass
class Row:
    """One loader's figures for one store."""

    gb_per_s: list[float] = field(default_factory=list)
    cpu_cores: list[float] = field(default_factory=list)
    problem: str = ""

    def cell(self) -> str:
        """Median and range, or why there are none."""
        if self.problem or not self.gb_per_s:
            return self.problem
        low, high = min(self.gb_per_s), max(self.gb_per_s)
        return f"{statistics.median(self.gb_per_s):.2f} ({low:.2f} to {high:.2f})"

    def as_json(self) -> dict[str, Any]:
        """What is kept in the results."""
        if self.problem or not self.gb_per_s:
            return {"problem": self.problem}
        return {
            "median_gb_per_s": statistics.median(self.gb_per_s),
            "min_gb_per_s": min(self.gb_per_s),
            "max_gb_per_s": max(self.gb_per_s),
            "gb_per_s": self.gb_per_s,
            "cpu_cores_busy": self.cpu_cores,
        }


def passes(loader: Loader, batches: int, seconds: float) -> tuple[int, float, float]:
    """Runs whole passes, at least one, for `seconds`: how many, their wall time and CPU time."""
    count = 0
    cpu, began = time.process_time(), time.perf_counter()
    while True:
        for _ in range(batches):
            loader.batch()
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return count, elapsed, time.process_time() - cpu


def verify(loader: Loader, store: Path, expected: np.ndarray, batches: int) -> None:
    """Reads one pass and compares it with `expected` [T, C, H, W]; ValueError where they differ."""
    loader.open(store)
    try:
        seen: list[int] = []
        for _ in range(batches):
            steps, values = loader.to_host(loader.batch())
            for step, value in zip(steps, values, strict=True):
                if not np.array_equal(value.view(np.uint32), expected[step].view(np.uint32)):
                    raise ValueError(
                        f"{loader.name} read other values than zarr-python at step {step} of {store}"
                    )
            seen += steps
        if sorted(seen) != list(range(len(expected))):
            raise ValueError(f"{loader.name} did not read each step of {store} once: {seen}")
    finally:
        loader.close()
        gc.collect()


def gist(error: Exception) -> str:
    """The line of an error that says what happened; DALI puts it behind `encountered:`."""
    lines = [line for line in str(error).partition("encountered:\n")[2].splitlines() if line.strip()]
    lines = lines or [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def timed(loader: Loader, store: Path, batches: int, pass_bytes: int, seconds: float) -> tuple[float, float]:
    """Opens the loader, warms it up for a quarter of the time and times it: GB/s and CPU cores kept busy."""
    loader.open(store)
    try:
        passes(loader, batches, seconds / 4)
        count, wall, cpu = passes(loader, batches, seconds)
    finally:
        loader.close()
        gc.collect()
    return count * pass_bytes / wall / 1e9, cpu / wall


def measure(loaders: dict[str, Loader], rows: dict[str, Row], store: Path, args: argparse.Namespace) -> None:
    """Verifies and times all loaders on one store, filling `rows`.

    A loader that fails is left out from there on, so that it does not end the run of the others.
    """
    batches = args.steps // args.batch_size

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            rows[name].problem = f"failed: {gist(error)}"
            print(f"{store.name}: {name}: {error}", file=sys.stderr)
            return None

    expected = zarr.open_array(str(store), mode="r")[:]
    pass_bytes = expected.nbytes
    for name, loader in loaders.items():
        attempt(name, partial(verify, loader, store, expected, batches))
    del expected
    for number in range(args.rounds):
        names = [name for name in loaders if not rows[name].problem]
        # Who runs after whom changes from round to round.
        shift = number % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            work = partial(timed, loaders[name], store, batches, pass_bytes, args.seconds)
            if figures := attempt(name, work):
                rows[name].gb_per_s.append(figures[0])
                rows[name].cpu_cores.append(figures[1])
        shown = ", ".join(f"{name} {rows[name].gb_per_s[-1]:.2f}" for name in names if rows[name].gb_per_s)
        print(f"{store.name}, round {number + 1} of {args.rounds}: {shown}", flush=True)


def loaders_of(args: argparse.Namespace, device: str) -> Iterator[tuple[str, Loader | None, str]]:
    """Name, loader and, where there is none, the reason."""
    ours: list[dict[str, Any]] = [{"decode": decode} for decode in args.decode]
    if args.shuffle:
        ours.append({"shuffle": True})
    makers: list[tuple[str, Callable[[], Loader]]] = [
        ("zarr-dali", lambda options=options: ZarrDali(device, args.batch_size, **options))
        for options in ours
    ]
    makers += [
        (peer.name, lambda peer=peer: peer(device, args.batch_size))
        for peer in (ZarrPython, ZarrPythonZarrs, TensorStore)
        if args.peers
    ]
    for name, make in makers:
        try:
            loader = make()
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
            yield name, None, "not installed"
        else:
            yield loader.name, loader, ""


def machine() -> dict[str, Any]:
    """What the figures depend on, without anything that names the machine."""
    result: dict[str, Any] = {"cpu": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            result["cpu"] = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    result["ram_gb"] = round(pages / 1e9, 1)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        result["gpus"] = [line.split(", ")[0] for line in found.stdout.strip().splitlines()]
        result["driver"] = found.stdout.strip().splitlines()[0].split(", ")[1]
    except (OSError, subprocess.SubprocessError, IndexError):
        result["gpus"] = []
    return result


def versions() -> dict[str, str]:
    """Versions of the packages that take part, as far as they are installed."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def revision() -> str | None:
    """The commit that is checked out, where git knows it."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def markdown(table: dict[str, dict[str, Row]], result: dict[str, Any]) -> str:
    """The table, one row a loader and one column a store, under a line that says what it is."""
    stores = result["stores"]
    columns = list(stores)
    where = ", ".join(result["machine"]["gpus"]) or result["machine"]["cpu"]
    work = result["work"]
    lines = [
        f"GB/s of decoded bytes on the {work['device']}, median (min to max) of {work['rounds']} rounds; "
        f"{work['steps']} steps of 6 x {work['grid'][0]} x {work['grid'][1]} float32 in batches of "
        f"{work['batch_size']}; {where}, {result['machine']['cores']} cores; {result['date']}.",
        "",
        "| | " + " | ".join(f"{name} (ratio {stores[name]['ratio']:.2f})" for name in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for loader in table[columns[0]]:
        lines.append(f"| {loader} | " + " | ".join(table[name][loader].cell() for name in columns) + " |")
    cells = []
    for name in columns:
        times, peer = stores[name]["times_best_peer"], stores[name]["best_peer"]
        cells.append(f"{times:.2f} x {peer}" if times else "")
    lines.append("| **zarr-dali / best peer** | " + " | ".join(cells) + " |")
    if work["quick"]:
        lines += ["", "A quick run: it shows that everything works, the figures mean nothing."]
    return "\n".join(lines) + "\n"


def best_peer(rows: dict[str, Row], loaders: dict[str, Loader]) -> tuple[str | None, float | None]:
    """The fastest peer by median, and how many times faster the first of our own rows is."""
    medians = {n: statistics.median(r.gb_per_s) for n, r in rows.items() if r.gb_per_s and not r.problem}
    peers = {name: median for name, median in medians.items() if loaders[name].peer}
    ours = [median for name, median in medians.items() if not loaders[name].peer]
    if not peers:
        return None, None
    best = max(peers, key=peers.__getitem__)
    return best, ours[0] / peers[best] if ours else None


def run(args: argparse.Namespace) -> int:
    """Writes the stores if need be, measures, prints the table and keeps the results."""
    device = args.device
    if device == "auto":
        from nvidia.dali import backend

        device = "gpu" if backend.GetCUDADeviceCount() > 0 else "cpu"
    folder = args.data_dir / "x".join(map(str, (args.steps, *args.grid)))
    stores = {name: folder / f"{name}.zarr" for name in args.stores}
    era5_like.ensure_stores(stores, steps=args.steps, grid=tuple(args.grid), arrangement="stacked")

    listed = list(loaders_of(args, device))
    loaders = {name: loader for name, loader, _ in listed if loader is not None}
    table = {store: {name: Row(problem=problem) for name, _, problem in listed} for store in stores}
    result: dict[str, Any] = {
        "what": "decoded bytes delivered to the device per second, by loader and store",
        "command": ["python", "benches/read_table.py", *args.command],
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
        "machine": machine(),
        "versions": versions(),
        "work": {
            "device": device,
            "steps": args.steps,
            "grid": list(args.grid),
            "batch_size": args.batch_size,
            "rounds": args.rounds,
            "seconds_per_round": args.seconds,
            "page_cache": "warm",
            "quick": args.quick,
        },
        "stores": {},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    where = (result["machine"]["gpus"] or ["gpu"])[0].lower().replace(" ", "-") if device == "gpu" else "cpu"
    kept = args.out / f"read_table{'_quick' if args.quick else ''}-{result['date']}-{where}"
    for name, path in stores.items():
        measure(loaders, table[name], path, args)
        peer, times = best_peer(table[name], loaders)
        values = args.steps * len(era5_like.VARIABLES) * args.grid[0] * args.grid[1] * 4
        size = era5_like.stored_bytes(path)
        result["stores"][name] = {
            "decoded_bytes": values,
            "stored_bytes": size,
            "ratio": values / size,
            "loaders": {loader: row.as_json() for loader, row in table[name].items()},
            "best_peer": peer,
            "times_best_peer": times,
        }
        # After every store, so that a run that is cut short leaves what it measured.
        text = markdown(table, result)
        Path(f"{kept}.json").write_text(json.dumps(result, indent=2) + "\n")
        Path(f"{kept}.md").write_text(text)
    print("\n" + text)
    print(f"kept in {kept}.json and .md")
    failed = [
        row.problem for rows in table.values() for row in rows.values() if row.problem.startswith("failed")
    ]
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status, 1 when a loader failed or read wrong values."""
    parser = argparse.ArgumentParser(
        description="Read ERA5-like Zarr stores with fn.readers.zarr and with other loaders, side by side; "
        "print a table of GB/s and keep it as JSON."
    )
    add = parser.add_argument
    add(
        "--stores",
        nargs="+",
        choices=era5_like.LAYOUTS,
        default=["raw", "zstd", "sharded"],
        help="layouts of the stores (default: raw zstd sharded)",
    )
    add(
        "--data-dir",
        type=Path,
        default=Path("data/bench"),
        help="where the stores are kept (default: %(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=ROOT / "benches" / "results",
        help="for the results (default: benches/results)",
    )
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when one can be used")
    add("--batch-size", type=int, default=8, help="steps in a batch (default: %(default)s)")
    add("--shuffle", action="store_true", help="another row: fn.readers.zarr in random order")
    add(
        "--decode",
        nargs="+",
        choices=("auto", "gpu", "cpu"),
        default=["auto"],
        help="a row of fn.readers.zarr for each of these (default: auto)",
    )
    add(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the other loaders; --no-peers leaves them out",
    )
    add("--rounds", type=int, help="interleaved rounds (default: 5, quick: 2)")
    add(
        "--seconds",
        type=float,
        help="timed seconds a loader, store and round, rounded up to whole passes (default: 2)",
    )
    add("--steps", type=int, help=f"time steps of the stores (default: {STEPS})")
    add(
        "--grid",
        type=int,
        nargs=2,
        metavar=("H", "W"),
        help=f"grid of the stores (default: {GRID[0]} {GRID[1]})",
    )
    add("--quick", action="store_true", help="small stores and short rounds, to see that everything runs")
    args = parser.parse_args(argv)
    args.command = list(sys.argv[1:] if argv is None else argv)
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.seconds = args.seconds or (0.2 if args.quick else 2.0)
    args.steps = args.steps or (QUICK_STEPS if args.quick else STEPS)
    args.grid = args.grid or (QUICK_GRID if args.quick else GRID)
    if args.batch_size < 1 or args.steps % args.batch_size:
        parser.error(
            f"--batch-size {args.batch_size} does not divide the {args.steps} steps; a pass reads each once"
        )
    try:
        return run(args)
    except ValueError as error:
        print(f"read_table.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
