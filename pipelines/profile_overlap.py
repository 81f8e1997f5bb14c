"""Shows how much of the reader's copies and decoding is hidden behind a training.

    python pipelines/profile_overlap.py --store era5.zarr --batch-size 16 --out profile
    python pipelines/profile_overlap.py --trace trace.json        # from a trace that torch.profiler exported

Runs train_unet.py's training under torch.profiler for a few steps and writes

- trace.json.gz, a Chrome trace for https://ui.perfetto.dev or chrome://tracing: the threads of the host and,
  on a GPU, every stream of the process, the reader's as well (CUPTI sees them all);
- timeline.png, a few of the steps: what the host did, and the kernels and copies on each stream, by who
  caused them;
- summary.json, the figures of the table that it prints.

On a GPU `hidden` is the part of the time of copying and decoding during which a kernel of the training was
running too, and `hidden_in_training` counts the pauses of at most 30 us between two such kernels as training,
in which nothing waits for the reader; benches/overlap.py says how they are told apart. On the CPU there are
no streams; what the training waited for data remains. The profiler itself slows a training down a little.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

# The analysis is that of the benchmarks.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "benches"))

import overlap
import program
import train_unet
from fields import inspect
from program import positive

HOST = ("next batch", "training step")
"""What train_unet.py names its steps' parts."""
WARMUP_STEPS = 3
"""Steps in which the profiler runs already, and what it records is thrown away."""
COLOURS = {
    "training": "#4c72b0",
    "decode": "#dd8452",
    "copy": "#55a868",
    "training step": "#8c8c8c",
    "next batch": "#c44e52",
}

Intervals = list[tuple[float, float]]
Rows = dict[str, dict[str, Intervals]]


def rows_of(events: Iterable[dict[str, Any]], own: set[str]) -> Rows:
    """The intervals of a trace by row and kind, in microseconds; a row for the host and for each stream.

    Args:
        events: the list `traceEvents` of a Chrome trace.
        own: names of the reader's kernels.

    Returns:
        The host's row first, then the training's stream, then the reader's by their numbers.
    """
    rows: dict[Any, dict[str, Intervals]] = defaultdict(lambda: defaultdict(list))
    by_stream: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") != "X":
            continue
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            by_stream[event.get("args", {}).get("stream", event.get("tid"))].append(event)
        elif event.get("cat") == "user_annotation" and event.get("name") in HOST:
            rows["host"][event["name"]].append(_span(event))
    trained: list[Any] = []
    for stream in sorted(by_stream, key=str):
        # The same rules as for the figures, for the events of one stream.
        found = overlap.activity(by_stream[stream], own)
        if found.training:
            trained.append(stream)
        for kind in ("training", "decode", "copy"):
            if intervals := getattr(found, kind):
                rows[stream][kind] = intervals
    order = ["host", *trained, *(stream for stream in rows if stream not in ("host", *trained))]
    return {
        _name(row, row in trained): {kind: overlap.union(intervals) for kind, intervals in rows[row].items()}
        for row in order
        if row in rows
    }


def _name(row: Any, trained: bool) -> str:
    return "host" if row == "host" else f"{'training' if trained else 'reader'}, stream {row}"


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def host_figures(rows: Rows) -> dict[str, float]:
    """Between the first and the last step: steps, milliseconds of each, the host's share in next()."""
    host = rows.get("host", {})
    if not host.get("training step"):
        raise ValueError("the trace shows no training step of train_unet.py")
    steps = host["training step"]
    start, end = min(spans[0][0] for spans in host.values()), steps[-1][1]
    waiting = overlap.length(overlap.within(host.get("next batch", []), start, end))
    return {
        "steps": len(steps),
        "ms_a_step": (end - start) / 1e3 / len(steps),
        "blocked_share": waiting / (end - start),
    }


def draw(rows: Rows, path: Path, steps: int) -> None:
    """Draws a few steps in the middle of the trace."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    marks = rows["host"]["training step"]
    shown = marks[max(0, (len(marks) - steps) // 2) :][:steps]
    start, end = shown[0][0], shown[-1][1]
    figure, axes = plt.subplots(figsize=(12, 1.4 + 0.42 * len(rows)), layout="constrained")
    for number, kinds in enumerate(rows.values()):
        for kind, intervals in kinds.items():
            bars = [((a - start) / 1e3, (b - a) / 1e3) for a, b in overlap.within(intervals, start, end)]
            axes.broken_barh(bars, (number - 0.4, 0.8), color=COLOURS[kind], linewidth=0)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0, (end - start) / 1e3)
    axes.set_xlabel("milliseconds")
    seen = {kind for kinds in rows.values() for kind in kinds}
    figure.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in seen],
        loc="outside upper center",
        ncols=len(COLOURS),
        frameon=False,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of an exported trace, packed or not."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def profiled(args: argparse.Namespace, trace: Path) -> dict[str, Any]:
    """Trains under the profiler and exports the trace of the last steps; the run's own figures."""
    ranks = program.join_ranks(args.device)
    if ranks.size > 1:
        raise ValueError("one process is profiled at a time: start this program without torchrun")
    source = inspect(args.store or program.demo_store(args.data_dir, quick=args.quick), args.arrays)
    training = train_unet.parser().parse_args(training_arguments(args))
    training.amp = ranks.device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if ranks.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=args.warmup, warmup=WARMUP_STEPS, active=args.steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        acc_events=True,
    ) as profiler:
        summary = train_unet.train(training, source, ranks, after_step=profiler.step)
    return {
        "store": source.store,
        "device": ranks.device.type,
        "samples_per_s": summary.samples_per_s,
        "wait_share": summary.wait_share,
        "gpu_share": summary.gpu_share,
    }


def training_arguments(args: argparse.Namespace) -> list[str]:
    """The command line of train_unet.py for this run; its timing begins where the recording does."""
    unrecorded = args.warmup + WARMUP_STEPS
    # One more: the profiler writes the trace at the end of the first step that it does not record.
    arguments = {
        "--batch-size": args.batch_size,
        "--seed": args.seed,
        "--device": args.device,
        "--warmup": unrecorded,
        "--steps": unrecorded + args.steps + 1,
        "--decode": args.decode,
    }
    line = [part for name, value in arguments.items() if value is not None for part in (name, str(value))]
    line += ["--quiet"] if args.quiet else []
    return [*line, "--no-kernel-search"] if args.quick else line


def percent(share: float | None) -> str:
    """A share in words."""
    return "nothing to hide" if share is None else f"{share:.1%}"


def run(args: argparse.Namespace) -> None:
    """Profiles, analyses, draws and prints."""
    # What is missing is said before minutes have gone into a training.
    import matplotlib  # noqa: F401

    args.out.mkdir(parents=True, exist_ok=True)
    trace = args.trace or args.out / "trace.json.gz"
    figures: dict[str, Any] = {} if args.trace else profiled(args, trace)
    events = read_trace(trace)
    own = overlap.own_kernels()
    rows = rows_of(events, own)
    figures |= host_figures(rows)
    facts = {
        "steps": f"{figures['steps']} of {figures['ms_a_step']:.1f} ms",
        "host in next()": percent(figures["blocked_share"]),
    }
    if any("training" in kinds for kinds in rows.values()):
        figures |= overlap.shares(overlap.activity(events, own))
        facts |= {
            "hidden behind training": percent(figures["hidden"]),
            "with pauses of up to 30 us": percent(figures["hidden_in_training"]),
            "of the copies": percent(figures["copy_hidden"]),
            "of the decoding": percent(figures["decode_hidden"]),
            "copying, of the time": percent(figures["copy_share"]),
            "decoding, of the time": percent(figures["decode_share"]),
            "training, of the time": percent(figures["training_share"]),
        }
    if "wait_share" in figures:
        facts["waiting for data"] = f"{figures['wait_share']:.2%} of the time"
        facts["speed"] = f"{figures['samples_per_s']:.1f} samples/s"
    picture = args.out / "timeline.png"
    draw(rows, picture, args.shown_steps)
    (args.out / "summary.json").write_text(json.dumps(figures, indent=2) + "\n")
    program.print_summary("profile_overlap.py", facts)
    print(f"{trace}: for https://ui.perfetto.dev\n{picture}: {args.shown_steps} of the steps")
    program.write_json(args.json, figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = program.parser("Profile a training and show how much of copies and decoding it hides.")
    program.add_quick(line)
    add = line.add_argument
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add("--decode", choices=("auto", "gpu", "cpu"), help="where chunks are decoded (default: the reader's)")
    add("--steps", type=positive, help="steps that are recorded (default: 30, quick: 4)")
    add("--warmup", type=positive, help="steps before the profiler starts (default: 20, quick: 1)")
    add("--shown-steps", type=positive, default=4, help="steps in the picture (default: %(default)s)")
    add("--out", type=Path, default=Path("profile"), help="for trace, picture and figures (default: profile)")
    add("--trace", type=Path, help="analyse this exported trace instead, .json or .json.gz")
    args = line.parse_args(argv)
    args.steps = args.steps or (4 if args.quick else 30)
    args.warmup = args.warmup or (1 if args.quick else 20)
    return program.run("profile_overlap.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
