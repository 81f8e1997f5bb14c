"""How much of the reader's copies and decoding runs while the GPU also trains.

A few dozen steps of the training of beside_training.py, with the reader beside it, under torch.profiler.
CUPTI sees all streams of the process, the reader's as well. The training's batch stays on the GPU, so that
every copy from the host is the reader's: `copy`. A stream on which one of the reader's own kernels ran (those
of src/kernels) is one of its lanes: kernels there are `decode`, nvCOMP's included. All other kernels are
`training`, except those whose names say nvCOMP. From the intervals in which at least one event of a kind was
running come

- the time of each kind, as a share of the time from the first step's start to the last one's end;
- `hidden`: the part of copying and decoding during which a training kernel was running too;
- `hidden_in_training`: the same where pauses of at most 30 us between training kernels count as training;
- the end of each step: the copy of its loss to the host, on the stream of most training kernels.

The result holds the intervals of a few steps, from which report.py draws a timeline.

    python benches/overlap.py --stores zstd --decode auto,gpu
    python benches/overlap.py --trace trace.json       # the same from a trace that torch.profiler exported
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from beside_training import BATCH, QUICK_BATCH, Training, add_arguments, loader
from zarr_dali._profile.intervals import Interval, intersection, length, union, within

DECODERS = ("auto", "gpu")
SHOWN_STEPS = 4
# Gaps that a timeline cannot show; merging over them keeps the results small. A training that waits does so
# for longer.
SHOWN_GAP_US = 30.0


def own_kernels() -> set[str]:
    """Names of the reader's own kernels, from their sources."""
    kernel = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(')
    return {
        name
        for source in (common.ROOT / "src" / "kernels").glob("*.cu")
        for name in kernel.findall(source.read_text())
    }


@dataclass
class Activity:
    """What ran on the GPU when, in microseconds: disjoint intervals, and the ends of training steps."""

    copy: list[Interval]
    decode: list[Interval]
    training: list[Interval]
    step_ends: list[float]


def activity(events: Iterable[dict[str, Any]], own: set[str]) -> Activity:
    """Sorts the events of a Chrome trace, as torch.profiler exports it, by who caused them.

    Args:
        events: those of the list `traceEvents`.
        own: names of the reader's kernels.
    """
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy") and e.get("ph") == "X"]

    def stream(event: dict[str, Any]) -> Any:
        return event.get("args", {}).get("stream", event.get("tid"))

    # Names of kernels that are not mangled may come with or without their parameters.
    lanes = {stream(e) for e in work if e["cat"] == "kernel" and e["name"].partition("(")[0] in own}
    found = Activity([], [], [], [])
    to_host: list[tuple[Any, float]] = []
    kernels: Counter[Any] = Counter()
    for event in work:
        span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        if event["cat"] == "gpu_memcpy":
            if "HtoD" in event["name"]:
                found.copy.append(span)
            elif "DtoH" in event["name"]:
                to_host.append((stream(event), span[1]))
        elif stream(event) in lanes or "nvcomp" in event["name"].lower():
            found.decode.append(span)
        else:
            kernels[stream(event)] += 1
            found.training.append(span)
    main_stream = max(kernels, key=kernels.__getitem__, default=None)
    found.step_ends = sorted(end for on, end in to_host if on == main_stream)
    found.copy, found.decode = union(found.copy), union(found.decode)
    found.training = union(found.training)
    return found


def shares(found: Activity) -> dict[str, Any]:
    """Times and overlaps between the first training kernel and the last step's end; ValueError without one.

    Returns:
        `copy_share`, `decode_share` and `training_share` of the time; `hidden` and `hidden_in_training` for
        copying and decoding together, `copy_hidden` and `decode_hidden` for each, None where there was
        nothing; `ms_a_step`.
    """
    if not found.training or not found.step_ends:
        raise ValueError("the trace shows no training step: CUPTI may not be available here")
    start, end = found.training[0][0], found.step_ends[-1]
    copy, decode = within(found.copy, start, end), within(found.decode, start, end)
    training = within(found.training, start, end)

    def hidden(intervals: Sequence[Interval], behind: Sequence[Interval] = training) -> float | None:
        return length(intersection(intervals, behind)) / length(intervals) if intervals else None

    return {
        "hidden": hidden(union([*copy, *decode])),
        "hidden_in_training": hidden(union([*copy, *decode]), union(training, SHOWN_GAP_US)),
        "copy_hidden": hidden(copy),
        "decode_hidden": hidden(decode),
        "copy_share": length(copy) / (end - start),
        "decode_share": length(decode) / (end - start),
        "training_share": length(training) / (end - start),
        "ms_a_step": (end - start) / 1e3 / len(found.step_ends),
    }


def timeline(found: Activity) -> dict[str, Any]:
    """The intervals of a few steps in the middle, in milliseconds from the first of them."""
    middle = len(found.step_ends) // 2
    ends = found.step_ends[max(0, middle - SHOWN_STEPS // 2 - 1) :][: SHOWN_STEPS + 1]
    start, end = ends[0], ends[-1]

    def shown(intervals: Sequence[Interval]) -> list[list[float]]:
        merged = union(within(intervals, start, end), SHOWN_GAP_US)
        return [[round((a - start) / 1e3, 3), round((b - start) / 1e3, 3)] for a, b in merged]

    return {
        "copy": shown(found.copy),
        "decode": shown(found.decode),
        "training": shown(found.training),
        "step_ends": [round((step - start) / 1e3, 3) for step in ends],
    }


def analysed(trace: Path) -> dict[str, Any]:
    """The figures of an exported trace, with its timeline."""
    found = activity(json.loads(trace.read_text())["traceEvents"], own_kernels())
    return {**shares(found), "timeline": timeline(found)}


def profiled(training: Training, store: str, decode: str, args: Any) -> dict[str, Any]:
    """Trains with the reader beside it under the profiler; the trace's figures with the reader's own."""
    from torch.profiler import ProfilerActivity, profile

    task = {"stores": {"store": store}, "device": "gpu", "batch_size": args.batch_size}
    pipe, batches = loader(task, {"store": "store", "decode": decode, "budget_gb": None, "arguments": {}})
    next(batches)
    common.at_rest(pipe)
    training.run(args.timed_steps // 2, batches)
    before = common.counters(pipe)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        row = training.run(args.timed_steps, batches)
    spent = common.grown(before, common.counters(pipe))
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return {**row, "gpu_share": common.share_gpu(spent), **analysed(trace)}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Profile a training with the reader beside it.", 3.0, quick_seconds=0.5)
    add_arguments(line)
    line.add_argument(
        "--decode",
        type=common.list_of(str, ("auto", "gpu", "cpu")),
        default=list(DECODERS),
        metavar="NAMES",
        help="who decodes (default: auto,gpu)",
    )
    line.add_argument("--trace", type=Path, help="analyse this exported trace and print its figures, no more")
    args = common.parse(line, argv)
    if args.trace:
        print(json.dumps(analysed(args.trace), indent=1))
        return 0
    if args.device != "gpu":
        line.error("this needs a GPU; --trace analyses a trace anywhere")
    args.batch_size = args.batch_size or (QUICK_BATCH if args.quick else BATCH)
    # A step of batch 16 takes 125 ms on an H200.
    args.timed_steps = max(4, round(args.seconds * 8))
    points = common.chosen(
        line,
        args,
        [
            {"point": f"{store}/{decode}", "store": store, "decode": decode}
            for store in args.stores
            for decode in args.decode
        ],
    )
    stores = common.ensure_stores(args, sorted({point["store"] for point in points}))
    results = common.Results(
        "overlap",
        "shares of the time in which the reader copied and decoded, and of these in which a training kernel "
        "ran too; from CUPTI, which slows the training down a little",
        args,
        batch_size=args.batch_size,
        timed_steps=args.timed_steps,
    )
    training = Training("gpu", args.batch_size, args.grid)
    training.run(max(2, args.timed_steps // 2))
    return results.measure(
        points, lambda point: profiled(training, str(stores[point["store"]]), point["decode"], args)
    )


if __name__ == "__main__":
    sys.exit(main())
