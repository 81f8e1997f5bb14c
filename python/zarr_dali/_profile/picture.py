"""A timeline of a report: a row for each thread of the reader, and for each stream of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zarr_dali._profile.findings import CPU, FETCH, GPU, PLAN, STAGES, Findings, readers_work
from zarr_dali._profile.intervals import Interval, outside, union, within
from zarr_dali._profile.recording import WAIT, Process, Range, Span

STEP, POPPED = "training step", "wait for DALI"
TRAINED, COPIED, DECODED = "the model's kernels", "copies", "the reader's kernels"
COLOURS = {
    STEP: "#c9d3e6",
    POPPED: "#c44e52",
    WAIT: "#e39a9c",
    PLAN: "#8c8c8c",
    FETCH: "#55a868",
    CPU: "#dd8452",
    GPU: "#b07aa1",
    TRAINED: "#4c72b0",
    COPIED: "#76b7b2",
    DECODED: "#edc948",
}
SHOWN_BATCHES = 6
MOST_BARS = 4000
"""Of a row; more would not be told apart."""

Rows = dict[str, dict[str, list[Interval]]]


def rows_of(process: Process) -> Rows:
    """Intervals by row and kind, in nanoseconds: the training, DALI, the reader's threads, streams."""
    rows: Rows = {}

    def add(row: str, kind: str, spans: Sequence[Range | Span]) -> None:
        if spans:
            rows.setdefault(row, {})[kind] = union((one.start, one.end) for one in spans)

    if process.pops:
        waits = union((one.start, one.end) for one in process.pops)
        rows["the training"] = {STEP: outside(waits, waits[0][0], waits[-1][1]), POPPED: waits}
    add("DALI's threads", WAIT, [one for one in process.ranges if one.name == WAIT])
    kinds: dict[int, set[str]] = {}
    for one in process.ranges:
        if one.name != WAIT:
            kinds.setdefault(one.thread, set()).add(one.name)
    found = sorted((min(map(STAGES.index, its)), thread) for thread, its in kinds.items())
    named = [(_name_of(process, thread, kinds[thread]), thread) for _, thread in found]
    for name, thread in named:
        number = [one for one in named if one[0] == name].index((name, thread)) + 1
        row = f"{name} {number}" if sum(one[0] == name for one in named) > 1 else name
        for kind in (PLAN, FETCH, CPU, GPU):
            add(row, kind, [one for one in process.ranges if one.thread == thread and one.name == kind])
    copies, decoding, model = readers_work(process)
    for kind, spans in ((TRAINED, model), (COPIED, copies), (DECODED, decoding)):
        for stream in sorted({one.stream for one in spans}):
            add(f"GPU {stream[0]}, stream {stream[2]}", kind, [one for one in spans if one.stream == stream])
    return rows


def _name_of(process: Process, thread: int, kinds: set[str]) -> str:
    """The name of a thread of the reader. nsys asks for names now and then, and misses those that ended."""
    names = ((PLAN, "zarr planner"), (GPU, "zarr GPU worker"), (CPU, "zarr decoder"), (FETCH, "zarr I/O"))
    return process.threads.get(thread) or next(name for kind, name in names if kind in kinds)


def span_of(process: Process, found: Findings, batches: int = SHOWN_BATCHES) -> tuple[int, int]:
    """Some batches in the middle of what was looked at."""
    ends = [one.end for one in (process.pops or process.ranges)]
    marks = [end for end in ends if found.window[0] <= end <= found.window[1]]
    if len(marks) <= batches + 1:
        return found.window
    middle = (len(marks) - batches) // 2
    return marks[middle], marks[middle + batches]


def _shown(rows: Rows, start: int, end: int) -> Rows:
    """What is between two times, without rows that have nothing there."""
    cut = {
        row: {kind: inside for kind, its in kinds.items() if (inside := within(its, start, end))}
        for row, kinds in rows.items()
    }
    return {row: kinds for row, kinds in cut.items() if kinds}


def draw(process: Process, found: Findings, path: Path, span: tuple[int, int] | None = None) -> None:
    """Draws a timeline.

    Args:
        process: What was recorded of it.
        found: What was found of it.
        path: A file whose ending matplotlib knows.
        span: In nanoseconds of the recording; by default some batches in the middle.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    start, end = span or span_of(process, found)
    rows = _shown(rows_of(process), start, end)
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.38 * len(rows)), layout="constrained")
    for number, kinds in enumerate(rows.values()):
        for kind, inside in kinds.items():
            # What is narrower than a pixel is drawn a little wider, or else nothing of it would be seen.
            bars = [((a - start) / 1e6, max(b - a, (end - start) / 3000) / 1e6) for a, b in inside]
            axes.broken_barh(bars[:MOST_BARS], (number - 0.4, 0.8), color=COLOURS[kind], linewidth=0)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, (end - start) / 1e6)
    axes.set_xlabel(f"milliseconds from {start / 1e9:.3f} s of the recording")
    seen = {kind for kinds in rows.values() for kind in kinds}
    figure.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in seen],
        loc="outside upper center",
        ncols=6,
        frameon=False,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
