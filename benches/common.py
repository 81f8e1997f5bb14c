"""What the benchmark scripts share: stores, readers, clocks, child processes and results.

Importing this module is cheap and touches no GPU, so that a child process can restrict itself to some cores
first: DALI, PyTorch and zarr-python are imported by the functions that need them.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import gc
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
sys.path.insert(0, str(ROOT / "pipelines"))

STORES = ("raw", "zstd", "sharded", "blosc-lz4", "blosc-zstd")
"""The five layouts of the same values that every table has; `era5_like.chunking` says what they are."""

# 1.26 GB of values, 19.7 MB a step; the quick ones only show that everything runs.
STEPS, GRID = 64, (640, 1280)
QUICK_STEPS, QUICK_GRID = 16, (80, 160)

# Options whose values are places on one machine, which results do not tell.
PLACES = ("--folder", "--out", "--programs", "--zarrs-direct", "--data-dir")

ROW = "@row "
"""Starts a line in which a child process hands over a result."""


def revision() -> str | None:
    """The commit that is checked out, where git knows it."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def without_places(command: Sequence[str]) -> list[str]:
    """A command as results show it: with `...` for places on this machine."""
    shown, hide = [], False
    for argument in command:
        name, equals, _ = argument.partition("=")
        if hide:
            shown.append("...")
            hide = False
        elif name in PLACES:
            shown.append(f"{name}=..." if equals else name)
            hide = not equals
        else:
            shown.append(argument)
    return shown


def gist(error: BaseException | str) -> str:
    """The line of an error that says what happened; DALI puts it behind `encountered:`."""
    text = str(error)
    lines = [line for line in (text.partition("encountered:\n")[2] or text).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


class Results:
    """The results of one run, written to a JSON file after every row, so that a run cut short loses nothing.

    A row is a flat dictionary whose `point` names it within its kind; one that could not be measured has a
    `problem` instead of figures.

    Attributes:
        path: the file.
    """

    def __init__(self, kind: str, what: str, args: argparse.Namespace, **work: Any) -> None:
        """
        Args:
            kind: the benchmark's name, as in the file's.
            what: one sentence that says what the figures are.
            args: the parsed arguments of `parser`.
            work: what was asked for, in numbers.
        """
        now = datetime.datetime.now(datetime.timezone.utc)
        self.folder = str(args.folder)
        self.content: dict[str, Any] = {
            "kind": kind,
            "what": what,
            "command": ["python", f"benches/{kind}.py", *without_places(args.command)],
            "date": now.date().isoformat(),
            "written": now.isoformat(timespec="seconds"),
            "revision": args.revision or revision(),
            "machine": args.machine,
            "versions": args.versions,
            "work": {
                "device": args.device,
                "steps": args.steps,
                "grid": list(args.grid),
                "page_cache": "warm",
                "quick": args.quick,
                **work,
            },
            "rows": [],
        }
        where = args.machine["gpus"][0].lower().replace(" ", "-") if args.device == "gpu" else "cpu"
        quick = "_quick" if args.quick else ""
        args.out.mkdir(parents=True, exist_ok=True)
        self.path = args.out / f"{kind}{quick}-{now:%Y-%m-%d}-{where}-{now:%H%M%S}.json"
        self.write()

    def add(self, row: Mapping[str, Any]) -> None:
        """Keeps a row."""
        row = dict(row)
        if "problem" in row:
            row["problem"] = row["problem"].replace(self.folder, "...")
        self.content["rows"].append(row)
        self.write()

    def measure(
        self, points: Sequence[dict[str, Any]], measured: Callable[[dict[str, Any]], Mapping[str, Any]]
    ) -> int:
        """Measures points one after the other and keeps their rows; returns the exit status.

        Args:
            points: what to measure.
            measured: returns the row of a point; what it raises is that point's problem.
        """
        progress = Progress(len(points))
        for point in points:
            try:
                row = measured(point)
            except Exception as error:
                row = {"problem": gist(error)}
            # Readers of the last point are gone before the next one begins.
            gc.collect()
            self.add({**point, **row})
            progress.show(point, row)
        return self.finish()

    def write(self) -> None:
        """Writes everything so far; the file is never half written."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n")
        part.replace(self.path)

    def finish(self) -> int:
        """Says where the results are; the exit status is 1 when nothing could be measured."""
        rows = self.content["rows"]
        failed = [row["point"] for row in rows if "problem" in row]
        print(f"kept in {self.path}: {len(rows)} rows, {len(failed)} with a problem")
        return 1 if len(failed) == len(rows) else 0


def parser(
    description: str, seconds: float, *, quick_seconds: float = 0.2, steps: int = STEPS
) -> argparse.ArgumentParser:
    """A command line with what all scripts take; `parse` reads it.

    Args:
        description: what the script does.
        seconds: default of the timed seconds a point.
        quick_seconds: the same with `--quick`.
        steps: default of the stores' time steps.
    """
    result = argparse.ArgumentParser(description=description)
    add = result.add_argument
    add("--quick", action="store_true", help="small stores and short times, to see that everything runs")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when there is one")
    add(
        "--folder",
        type=Path,
        default=Path("data/bench"),
        help="where the stores are kept; they are written once (default: %(default)s)",
    )
    add("--out", type=Path, default=RESULTS, help="for the results (default: benches/results)")
    add("--seconds", type=float, help=f"timed seconds a point (default: {seconds}, quick: {quick_seconds})")
    add("--steps", type=int, help=f"time steps of the stores (default: {steps}, quick: {QUICK_STEPS})")
    add(
        "--points",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="only the points whose names match one of these, such as 'chunks/*' or '*/zstd/*'",
    )
    add("--revision", help="the commit, for the results (default: what git says)")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    result.set_defaults(default_seconds=(seconds, quick_seconds), default_steps=(steps, QUICK_STEPS))
    return result


def add_stores(line: argparse.ArgumentParser) -> None:
    """Adds `--stores`: some of `STORES`."""
    line.add_argument(
        "--stores",
        type=list_of(str, STORES),
        default=list(STORES),
        metavar="NAMES",
        help=f"with commas between them (default: {','.join(STORES)})",
    )


def parse(line: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments, fills in what depends on others and on the machine."""
    args = line.parse_args(argv)
    if args.child:
        return args  # what it needs comes from its parent
    args.command = list(sys.argv[1:] if argv is None else argv)
    # Loads DALI, which children do when they have chosen their cores.
    from zarr_dali._bench.machine import machine, versions

    args.machine, args.versions = machine(), versions()
    if args.device == "auto":
        args.device = "gpu" if args.machine["gpus"] else "cpu"
    if args.device == "gpu" and not args.machine["gpus"]:
        line.error("--device gpu: nvidia-smi shows no GPU; use --device cpu")
    args.seconds = args.seconds or args.default_seconds[args.quick]
    args.steps = args.steps or args.default_steps[args.quick]
    args.grid = QUICK_GRID if args.quick else GRID
    return args


def list_of(kind: Callable[[str], Any], choices: Sequence[Any] | None = None) -> Callable[[str], list[Any]]:
    """An argparse type: values with commas between them, such as `16,4`."""

    def convert(text: str) -> list[Any]:
        try:
            values = [kind(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
        if unknown := [value for value in values if choices is not None and value not in choices]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]} is none of {', '.join(str(choice) for choice in choices)}"
            )
        return values

    return convert


def chosen(
    line: argparse.ArgumentParser, args: argparse.Namespace, points: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The points whose names match one of `--points`; ends the program if none does."""
    found = [p for p in points if any(fnmatch.fnmatch(p["point"], pattern) for pattern in args.points)]
    if not found:
        line.error(f"no point matches {' '.join(args.points)}; one is named {points[0]['point']}")
    return found


def store_folder(args: argparse.Namespace) -> Path:
    """Where the stores of this size are; the path's last part tells the size."""
    return args.folder / "x".join(map(str, (args.steps, *args.grid)))


def ensure_stores(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Path]:
    """Writes those of the stores that are not there yet.

    Each is one array [steps, 6, H, W] of float32, the same values in every layout.

    Returns:
        Paths by name.
    """
    import era5_like

    stores = {name: store_folder(args) / f"{name}.zarr" for name in names}
    began = time.perf_counter()
    if era5_like.ensure_stores(stores, steps=args.steps, grid=args.grid, arrangement="stacked"):
        settle(began)
    return stores


def settle(began: float) -> None:
    """Waits until what was written is on the disk, which would otherwise disturb what is timed."""
    os.sync()
    print(f"wrote stores in {time.perf_counter() - began:.1f} s", flush=True)


@dataclass(frozen=True)
class Cut:
    """Chunks and codec of a store: extents of a chunk [T, C, H, W] and of its inner chunks, if any."""

    name: str
    chunk: tuple[int, ...]
    inner: tuple[int, ...] | None = None
    compressed: bool = True


def ensure_cuts(args: argparse.Namespace, cuts: Sequence[Cut]) -> dict[str, Path]:
    """Writes the values of `raw` in other chunks, zstd at zarr-python's default level or uncompressed.

    Returns:
        Paths by the cuts' names.
    """
    import zarr

    folder = store_folder(args) / "cuts"
    paths = {cut.name: folder / f"{cut.name}.zarr" for cut in cuts}
    missing = [cut for cut in cuts if not paths[cut.name].exists()]
    if not missing:
        return paths
    source = zarr.open_array(str(ensure_stores(args, ["raw"])["raw"]), mode="r")
    began = time.perf_counter()
    # zarrs writes with all cores, tens of thousands of small chunks within seconds.
    try:
        import zarrs  # noqa: F401

        pipeline: Any = zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    except ImportError:
        pipeline = nullcontext()
    with pipeline, ThreadPoolExecutor(4) as pool:
        parts = {cut.name: paths[cut.name].with_suffix(".part") for cut in missing}
        arrays = [
            zarr.create_array(
                str(parts[cut.name]),
                shape=source.shape,
                dtype=source.dtype,
                chunks=cut.inner or cut.chunk,
                shards=cut.chunk if cut.inner else None,
                compressors=zarr.codecs.ZstdCodec(level=0) if cut.compressed else None,
                fill_value=0.0,
                overwrite=True,
            )
            for cut in missing
        ]
        block = math.lcm(8, *(cut.chunk[0] for cut in missing))
        for start in range(0, args.steps, block):
            span = slice(start, min(start + block, args.steps))
            values = source[span]
            list(pool.map(lambda array, span=span, values=values: array.__setitem__(span, values), arrays))
    for name, part in parts.items():
        part.rename(paths[name])
    settle(began)
    return paths


def stored_bytes(path: Path) -> int:
    """Bytes of all chunks of a store."""
    return sum(file.stat().st_size for file in chunk_files(path))


def chunk_files(path: Path) -> list[Path]:
    """The files of a store's chunks, in order."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json")


def decoded_bytes(args: argparse.Namespace) -> int:
    """Bytes of a store's values."""
    return args.steps * 6 * args.grid[0] * args.grid[1] * 4


def reader(store: Path, device: str, batch_size: int, **arguments: Any) -> Any:
    """A built pipeline of one fn.readers.zarr named `reader`; `arguments` go to the operator."""
    import nvidia.dali.fn as fn
    from nvidia.dali import pipeline_def

    import zarr_dali  # noqa: F401  registers the operator

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=0 if device == "gpu" else None)
    def pipeline() -> Any:
        return fn.readers.zarr(path=str(store), device=device, name="reader", seed=1, **arguments)

    pipe = pipeline()
    pipe.build()
    return pipe


def counters(pipe: Any) -> dict[str, Any]:
    """The reader's counters that are numbers."""
    import zarr_dali

    return {name: value for name, value in zarr_dali.stats(pipe).items() if isinstance(value, (int, float))}


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What counters grew by; those that only one side has are left out."""
    return {name: after[name] - before[name] for name in after if name in before}


def at_rest(pipe: Any, *, still_s: float = 0.15, limit_s: float = 20.0) -> dict[str, Any]:
    """Waits until the reader has filled its queue and reads no more; returns its counters.

    The reader must have handed over a batch already; it is taken to be at rest when no byte was read or
    decoded for `still_s` seconds, and after `limit_s` in any case.
    """
    began = changed = time.perf_counter()
    last = counters(pipe)
    while (now := time.perf_counter()) - changed < still_s and now - began < limit_s:
        time.sleep(0.01)
        new = counters(pipe)
        if any(new[name] != last[name] for name in ("bytes_read", "bytes_decoded")):
            changed = time.perf_counter()
        last = new
    return last


def share_gpu(spent: Mapping[str, Any]) -> float | None:
    """The GPU's share of the decoded chunks; None where none was decoded."""
    chunks = spent.get("chunks_decoded", 0)
    return spent.get("chunks_decoded_gpu", 0) / chunks if chunks else None


def thread_times() -> Iterator[tuple[str, float]]:
    """Name and CPU seconds so far of each thread of this process that runs, the reader's among them."""
    tick = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            # It ended meanwhile.
            continue
        user, system = rest.split()[11:13]
        yield name, (int(user) + int(system)) / tick


def thread_seconds() -> dict[str, float]:
    """The CPU seconds of `thread_times` by name."""
    seconds: dict[str, float] = {}
    for name, spent in thread_times():
        seconds[name] = seconds.get(name, 0.0) + spent
    return seconds


def rates(pipe: Any, batch_size: int, store_bytes: int, seconds: float) -> dict[str, Any]:
    """Times whole epochs in the steady state, after a warm-up of at least one epoch.

    Args:
        pipe: a pipeline of one reader, just built.
        batch_size: its samples in a batch.
        store_bytes: decoded bytes that an epoch touches, each counted once.
        seconds: at least so long. The warm-up takes an epoch and a part of these seconds: until the batches
            that were read ahead at the start are gone, and the reader has found out who decodes fastest.

    Returns:
        `delivered_gb_per_s`, the outputs' bytes; `decoded_gb_per_s`, what came out of the decoders;
        `decodes_per_epoch`, how often a byte of the store was decoded in an epoch; `gpu_share` of the decoded
        chunks; `cpu_cores` that were busy, and which of them by the names of threads (`cores_by_thread`);
        `waited_ms`, what DALI waited for, and the reader for DALI; `seconds` that were timed. GB are 10^9
        bytes.
    """
    samples = pipe.reader_meta("reader")["epoch_size"]
    batches = math.ceil(samples / batch_size)
    sample_bytes = 0

    def epochs(least: float) -> tuple[int, float]:
        nonlocal sample_bytes
        count, began = 0, time.perf_counter()
        while True:
            for _ in range(batches):
                # Without a stream, run() returns when the outputs are complete.
                (output,) = pipe.run()
            count += 1
            if (elapsed := time.perf_counter() - began) >= least:
                sample_bytes = math.prod(output[0].shape()) * 4
                return count, elapsed

    epochs(max(seconds / 3, min(seconds, 0.6)))
    before, cpu, threads = counters(pipe), time.process_time(), thread_seconds()
    count, elapsed = epochs(seconds)
    cpu, spent = time.process_time() - cpu, grown(before, counters(pipe))
    busy = {name: (now - threads.get(name, 0.0)) / elapsed for name, now in thread_seconds().items()}
    delivered = count * batches * batch_size
    epochs_read = delivered / samples
    return {
        "delivered_gb_per_s": delivered * sample_bytes / elapsed / 1e9,
        "decoded_gb_per_s": spent["bytes_decoded"] / elapsed / 1e9,
        "decodes_per_epoch": spent["bytes_decoded"] / (epochs_read * store_bytes),
        "gpu_share": share_gpu(spent),
        "cpu_cores": cpu / elapsed,
        "cores_by_thread": {name: round(cores, 2) for name, cores in busy.items() if cores >= 0.05},
        "waited_ms": {name: value for name, value in spent.items() if name.startswith("ms_waiting_")},
        "seconds": elapsed,
    }


def hold_to(cores: int | None) -> None:
    """Holds this process and its later threads to so many of the cores it may use.

    To be called before anything that starts threads is imported.
    """
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def cores_here(wanted: Sequence[int]) -> list[int]:
    """Those of the numbers of cores that this machine has."""
    return [cores for cores in wanted if cores <= len(os.sched_getaffinity(0))]


def hand_over(row: Mapping[str, Any]) -> None:
    """In a child process: gives the row of the next point to the parent."""
    print(ROW + json.dumps(row), flush=True)


def child_task() -> dict[str, Any]:
    """In a child process: what the parent asked for."""
    return json.loads(sys.stdin.readline())


def in_child(
    script: str, task: Mapping[str, Any], points: Sequence[dict[str, Any]], *, limit_s: float
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Measures points one after the other in a child process.

    A child that dies, or needs longer than `limit_s` seconds for a point, costs that point only: the rest
    goes to a new one.

    Args:
        script: the file that is run with `--child`; it reads the task with `child_task`, whose `points` are
            those to measure, and calls `hand_over` for each, in order.
        task: what is the same for all points; None is left to the child.
        points: what to measure.
        limit_s: seconds for a point, with the child's start in the first one.

    Yields:
        Each point with its row.
    """
    left = list(points)
    while left:
        child = subprocess.Popen(
            [sys.executable, script, "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        late = threading.Event()

        def stop(child: subprocess.Popen = child, late: threading.Event = late) -> None:
            late.set()
            child.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            child.stdin.write(json.dumps({**task, "points": left}) + "\n")
            child.stdin.close()
            for line in child.stdout:
                if not line.startswith(ROW):
                    print(line, end="", flush=True)
                    continue
                yield left.pop(0), json.loads(line.removeprefix(ROW))
                timer.cancel()
                timer = threading.Timer(limit_s, stop)
                timer.start()
        except BrokenPipeError:
            pass  # the child died at once; what it wrote to stderr says why
        finally:
            timer.cancel()
            child.kill()
            status = child.wait()
        if left:
            why = f"took more than {limit_s:.0f} s" if late.is_set() else f"the process ended with {status}"
            yield left.pop(0), {"problem": why}


class Progress:
    """Prints each row with how many points are left, and deals out the time that is left."""

    def __init__(self, points: int, limit_s: float | None = None) -> None:
        self.points = points
        self.done = 0
        self.began = time.time()
        self.deadline = None if limit_s is None else self.began + limit_s

    def show(self, point: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Prints a point's row on one line."""
        self.done += 1
        left = self.points - self.done
        seconds = (time.time() - self.began) / self.done * left
        figures = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
            if name not in point and value is not None and not isinstance(value, (dict, list))
        )
        print(f"{point['point']}: {figures} [{left} left, about {seconds:.0f} s]", flush=True)


def fair_seconds(seconds: float, deadline: float | None, left: int, *, least: float = 0.2) -> float:
    """Timed seconds of the next of `left` points, so that all are measured before the deadline.

    Args:
        seconds: what is wanted.
        deadline: in `time.time()`; None for none.
        left: points that are still to be measured, this one included.
        least: never less than this.

    Returns:
        The wanted seconds, or less where time is short: about two fifths of a point's time are timed, the
        rest is building and warming up.
    """
    if deadline is None:
        return seconds
    return max(min(seconds, 0.4 * (deadline - time.time()) / max(left, 1)), least)
