"""Trains the U-Net of pipelines/train_unet.py with one loader after the other, on the same stores.

Of each point: samples/s and their share of a training on synthetic data, the share of the time in which the
training waited for data, CPU time a sample, cores that were busy, and host memory, worker processes included.
The cases are

- `warm`: every store from a warm page cache, with our loader and those that people use today;
- `cold`: the first epoch after the files were dropped from the page cache. Stores of a few seconds (--steps)
  tell more than the small default ones;
- and three where a fast reader gains little or nothing, so that nobody has to find out: `cached`, all values
  in memory, by a loader that keeps them and by ours with `cache_bytes`; `large-model`, which computes for so
  long that any loader will do; `tiny-chunks` of 51 kB, which cost more to find than to decode.

How it is measured:

- One child process for each number of cores and each loader: it restricts itself to the cores before it
  imports anything, and goes through the stores. A loader that is missing or fails costs its own points only.
- Speeds are those of the steady state, behind a warm-up that uses up what was read ahead in the beginning;
  of `cold` the first epoch counts, in a process that has trained before.
- Synthetic data is trained on before and after the loaders; shares are of the mean, with the same cores and
  the same model.

    python benches/training.py --cores 16,4
    python benches/training.py --points '*/warm/zstd/*' '*/synthetic*'
    python benches/training.py --quick --device cpu
    python benches/training.py --render benches/results/training-....json    # table and chart once more
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import common

CORES = (16, 4)
LOADERS = ("ours", "torch", "external-source", "kvikio", "memory")
IN_PROCESS = ("ours", "kvikio", "memory", "synthetic")
"""Loaders whose reads /proc/self/io counts."""
CASES = ("warm", "cold", "cached", "large-model", "tiny-chunks")
BATCH, QUICK_BATCH = 16, 4
WARMUP = 8
"""Steps, behind those that a loader may have read ahead while the first ones took long."""
OURS_AHEAD = 16
"""Batches that our reader reads ahead where a batch has many chunks, if memory allows."""
ENCODER, LARGE, QUICK_LARGE = "resnet18", "resnet101", "resnet34"
TINY, TINY_BYTES = "zstd-51200", 51_200
"""Tiny chunks: the same store as that of scaling.py."""
STORE = "zstd"
"""Where a case needs one store only."""
SYNTHETIC = ("synthetic", "synthetic, again")
COLOURS = {
    "ours": "#4c72b0",
    "torch": "#dd8452",
    "external-source": "#55a868",
    "kvikio": "#c44e52",
    "memory": "#8172b3",
}


# --- in a child -----------------------------------------------------------------------------------


def child() -> None:
    """Goes through the points of one number of cores and one loader."""
    task = common.child_task()
    common.hold_to(task["cores"])
    import program
    import train_unet
    from fields import inspect

    seen = functools.cache(inspect)
    ranks = program.Ranks(0, 1, program.chosen_device(task["device"]))
    for point in task["points"]:
        try:
            source = seen(task["stores"][point["store"]])
            row = trained(task, point, train_unet, source, ranks)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            row = {"problem": common.gist(error)}
        common.hand_over(row)


def read_ahead(loader: str, workers: int) -> int:
    """Batches that a loader with so many worker processes has in store at most."""
    return {"ours": OURS_AHEAD, "torch": 2 * workers, "external-source": max(2, workers)}.get(loader, 0)


def trained(task: dict[str, Any], point: dict[str, Any], train_unet: Any, source: Any, ranks: Any) -> Any:
    """Trains for one point: its row."""
    import loaders
    from zarr_dali._bench.cache import Watch

    loader = point["loader"].partition(",")[0]
    files = common.chunk_files(Path(source.store))

    def run(loader: str, *arguments: Any) -> Any:
        line = ["--store", source.store, "--loader", loader, "--batch-size", task["batch_size"], "--quiet"]
        line += ["--encoder", point["encoder"], *arguments]
        args = train_unet.parser().parse_args([str(part) for part in line])
        args.amp = ranks.device.type == "cuda"
        return train_unet.train(args, source, ranks)

    extra: dict[str, Any] = {}
    if point["case"] == "cold":
        # Kernels are chosen and modules are loaded before the clock starts.
        run("synthetic", "--steps", 3, "--warmup", 0)
        watch = Watch(files, sum(file.stat().st_size for file in files))
        # Whole batches: those of another size would make cuDNN choose its kernels anew.
        steps = max(1, (source.steps - 1) // task["batch_size"])
        summary = run(loader, "--steps", steps, "--warmup", 0)
        if problem := watch.problem():
            raise OSError(problem)
        if loader in IN_PROCESS:
            extra["from_disk_share"] = watch.fetched_share()
    else:
        # More than an epoch, so that its last batch, which is smaller, has been seen.
        warmup = max(task["warmup"], (source.steps - 1) // task["batch_size"] + 2)
        warmup += 0 if task.get("quick") else read_ahead(loader, loaders.default_workers())
        cache = source.steps * source.step_bytes * 5 // 4
        arguments = ["--cache-bytes", cache] if (point["case"], loader) == ("cached", "ours") else []
        summary = run(loader, "--seconds", task["seconds"], "--warmup", warmup, *arguments)
    names = (
        "steps", "samples", "seconds", "samples_per_s", "wait_share", "blocked_share",
        "cpu_seconds_per_sample", "busy_cores", "host_bytes", "device_peak_bytes", "gpu_share",
        "first_loss", "last_loss",
    )  # fmt: skip
    return {name: getattr(summary, name) for name in names} | extra


# --- points and results ---------------------------------------------------------------------------


def tiny_chunk(grid: Sequence[int]) -> tuple[int, ...]:
    """Extents of a chunk of so few bytes: whole rows of one variable."""
    return (1, 1, TINY_BYTES // (4 * grid[1]), grid[1])


def points_of(args: Any) -> list[dict[str, Any]]:
    """All points; those of one number of cores together, and of them those of one loader."""
    large = QUICK_LARGE if args.quick else LARGE
    found = []

    def add(cores: int, case: str, store: str, loader: str, encoder: str = ENCODER) -> None:
        point = f"{cores}/{case}/{store}/{loader}"
        found.append(
            {
                "point": point,
                "cores": cores,
                "case": case,
                "store": store,
                "loader": loader,
                "encoder": encoder,
            }
        )

    people = [loader for loader in args.loaders if loader in ("ours", "torch")]
    single = STORE if STORE in args.stores else args.stores[0]
    for cores in common.cores_here(args.cores) or [len(os.sched_getaffinity(0))]:
        large_model = "large-model" in args.cases
        add(cores, "warm", single, SYNTHETIC[0])
        if large_model:
            add(cores, "large-model", single, SYNTHETIC[0], large)
        for loader in args.loaders:
            for store in args.stores if "warm" in args.cases and loader != "memory" else ():
                add(cores, "warm", store, loader)
            if "cached" in args.cases and loader in ("memory", "ours"):
                add(cores, "cached", single, loader)
            if loader not in people:
                continue
            if "tiny-chunks" in args.cases:
                add(cores, "tiny-chunks", TINY, loader)
            if large_model:
                add(cores, "large-model", single, loader, large)
            for store in args.stores if "cold" in args.cases else ():
                add(cores, "cold", store, loader)
        add(cores, "warm", single, SYNTHETIC[1])
    return found


def fill_shares(rows: Iterable[dict[str, Any]]) -> None:
    """Puts into each row its share of the speed on synthetic data, as far as that is known."""
    good = [row for row in rows if "problem" not in row]
    for row in good:
        same = [
            other["samples_per_s"]
            for other in good
            if other["loader"] in SYNTHETIC
            and (other["cores"], other["encoder"]) == (row["cores"], row["encoder"])
        ]
        row["share_of_synthetic"] = row["samples_per_s"] / statistics.mean(same) if same else None


def percent(share: float | None, digits: int = 1) -> str:
    """A share in words; nothing where there is none."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def markdown(result: dict[str, Any]) -> str:
    """The tables: speeds of the warm case by store, then all figures of all points."""
    work, machine = result["work"], result["machine"]
    where = ", ".join(machine["gpus"]) if work["device"] == "gpu" else machine["cpu"]
    good = [row for row in result["rows"] if "problem" not in row]
    lines = [
        f"U-Net ({ENCODER}, scSE), batch {work['batch_size']}, shuffled windows of two steps of 6 x "
        f"{work['grid'][0]} x {work['grid'][1]} float32, {work['steps']} steps; {where}, {machine['cores']} "
        f"cores; {result['date']}. `{' '.join(result['command'])}`",
        "",
    ]
    if work["quick"]:
        lines += ["A quick run: it shows that everything works, the figures mean nothing.", ""]
    warm = [row for row in good if row["case"] == "warm" and row["loader"] not in SYNTHETIC]
    stores = list(dict.fromkeys(row["store"] for row in warm))
    cells = {(row["cores"], row["loader"], row["store"]): row for row in warm}
    if warm:
        lines += [
            "Samples/s and their share of a training on synthetic data, from a warm page cache:",
            "",
            "| cores | loader | " + " | ".join(stores) + " |",
            "|---" * (len(stores) + 2) + "|",
        ]
    for cores, loader in dict.fromkeys((row["cores"], row["loader"]) for row in warm):
        found = [cells.get((cores, loader, store)) for store in stores]
        shown = [
            f"{row['samples_per_s']:.1f} ({percent(row['share_of_synthetic'])})" if row else ""
            for row in found
        ]
        lines.append(f"| {cores} | {loader} | " + " | ".join(shown) + " |")
    head = (
        "cores", "case", "store", "loader", "samples/s", "of synthetic", "waiting", "CPU ms a sample",
        "busy cores", "host memory, GB", "chunks decoded on the GPU",
    )  # fmt: skip
    lines += ["", "All points:", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in good:
        lines.append(
            f"| {row['cores']} | {row['case']} | {row['store']} | {row['loader']} "
            f"| {row['samples_per_s']:.1f} "
            f"| {percent(row['share_of_synthetic'])} | {percent(row['wait_share'], 2)} "
            f"| {row['cpu_seconds_per_sample'] * 1e3:.1f} | {row['busy_cores']:.1f} "
            f"| {row['host_bytes'] / 1e9:.2f} | {percent(row['gpu_share'], 0)} |"
        )
    problems = [row for row in result["rows"] if "problem" in row]
    if problems:
        lines += ["", *(f"- {row['point']}: {row['problem']}" for row in problems)]
    return "\n".join(lines) + "\n"


def chart(plt: Any, rows: Iterable[dict[str, Any]]) -> Any:
    """Bars for the warm case, if there are any: share of synthetic and CPU time a sample."""
    rows = [row for row in rows if "problem" not in row and row["case"] == "warm"]
    rows = [row for row in rows if row["loader"] in COLOURS and row["share_of_synthetic"] is not None]
    if not rows:
        return None
    # Rows may come from several runs.
    cores = sorted({row["cores"] for row in rows}, reverse=True)
    stores = [store for store in common.STORES if any(row["store"] == store for row in rows)]
    loaders = [loader for loader in LOADERS if any(row["loader"] == loader for row in rows)]
    panels = (
        ("samples/s, % of synthetic", lambda row: 100 * row["share_of_synthetic"]),
        ("CPU, ms a sample", lambda row: 1e3 * row["cpu_seconds_per_sample"]),
    )
    figure, axes = plt.subplots(
        len(panels), len(cores), figsize=(1 + 5.5 * len(cores), 6), layout="constrained", squeeze=False
    )
    width = 0.8 / len(loaders)
    for column, count in enumerate(cores):
        for (label, figure_of), plot in zip(panels, axes[:, column]):
            for number, loader in enumerate(loaders):
                bars = {
                    stores.index(row["store"]) + (number - (len(loaders) - 1) / 2) * width: figure_of(row)
                    for row in rows
                    if (row["cores"], row["loader"]) == (count, loader)
                }
                plot.bar(list(bars), list(bars.values()), width, color=COLOURS[loader], label=loader)
            plot.set_xticks(range(len(stores)), stores)
            plot.set_ylabel(label)
            plot.spines[["top", "right"]].set_visible(False)
        axes[0, column].axhline(100, color="#8c8c8c", linewidth=0.8)
        axes[0, column].set_title(f"{count} cores")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(loaders), frameon=False)
    return figure


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the chart of a result, if it has anything to show."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if (figure := chart(plt, result["rows"])) is not None:
        figure.savefig(path, dpi=150)
        plt.close(figure)


def render(path: Path) -> None:
    """Writes table and chart beside a result; without matplotlib the table only."""
    result = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(result))
    try:
        draw(result, path.with_suffix(".png"))
    except ModuleNotFoundError as error:
        print(f"no chart: {error.name} is not installed")


def parser() -> Any:
    """The command line."""
    line = common.parser("Train a U-Net with each loader on each store.", 8.0, quick_seconds=0.5)
    add = line.add_argument
    for name, choices in (("stores", common.STORES), ("loaders", LOADERS), ("cases", CASES)):
        add(
            f"--{name}",
            type=common.list_of(str, choices),
            metavar="NAMES",
            default=list(choices),
            help=f"with commas between them (default: {','.join(choices)})",
        )
    add(
        "--cores",
        type=common.list_of(int),
        default=list(CORES),
        metavar="N,...",
        help="the whole process is held to so many cores (default: 16,4, as far as there are so many)",
    )
    add("--batch-size", type=int, help=f"samples in a batch (default: {BATCH})")
    add("--limit", type=float, default=180.0, help="seconds for a point, with its start (default: 180)")
    add("--render", type=Path, metavar="FILE", help="only write table and chart of this result again")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = parser()
    args = common.parse(line, argv)
    if args.child:
        child()
        return 0
    if args.render:
        render(args.render)
        return 0
    args.batch_size = args.batch_size or (QUICK_BATCH if args.quick else BATCH)
    if args.device == "cpu":
        args.loaders = [loader for loader in args.loaders if loader != "kvikio"]
    points = common.chosen(line, args, points_of(args))
    wanted = {point["store"] for point in points}
    stores = common.ensure_stores(args, [name for name in common.STORES if name in wanted])
    if TINY in wanted:
        stores |= common.ensure_cuts(args, [common.Cut(TINY, tiny_chunk(args.grid))])
    task = {
        "device": args.device,
        "batch_size": args.batch_size,
        "seconds": args.seconds,
        "warmup": 2 if args.quick else WARMUP,
        "quick": args.quick,
        "stores": {name: str(path) for name, path in stores.items()},
    }
    results = common.Results(
        "training",
        "samples/s of a U-Net with each loader, and their share of those on synthetic data",
        args,
        page_cache="as the case says",
        batch_size=args.batch_size,
        seconds=args.seconds,
    )
    progress = common.Progress(len(points))
    for (cores, _), group in itertools.groupby(points, key=lambda point: (point["cores"], point["loader"])):
        measured = common.in_child(__file__, {**task, "cores": cores}, list(group), limit_s=args.limit)
        for point, row in measured:
            results.add({**point, **row})
            fill_shares(results.content["rows"])
            results.write()
            progress.show(point, results.content["rows"][-1])
    render(results.path)
    print(markdown(results.content))
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
