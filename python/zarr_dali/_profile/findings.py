"""What waited for what, and what was hidden, in a report of Nsight Systems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from zarr_dali._profile.intervals import Interval, intersection, length, outside, union, within
from zarr_dali._profile.recording import WAIT, Process, Range, Recording, Span

FETCH, CPU, GPU, PLAN = "fetch", "decode on the CPU", "decode on the GPU", "plan"
STAGES = (PLAN, FETCH, CPU, GPU)
"""Ranges of the reader's own threads, in the order of a chunk's way."""
OWN_KERNELS = frozenset(
    {
        "check",
        "copy_headers",
        "decode_blosclz",
        "decode_lz4",
        "decode_snappy",
        "decode_stored",
        "gather",
        "inflate",
        "undo_delta",
        "unshuffle",
        "zstd_chain",
        "zstd_check_blocks",
        "zstd_check_frames",
        "zstd_entropy",
        "zstd_execute_tiles",
        "zstd_resolve",
    }
)
"""Names of the reader's kernels; a stream that has run one of them is the reader's."""
PAUSE_NS = 30_000
"""Between two kernels of a training, in which nothing waits for the reader."""
LITTLE = 0.02
"""A share of the time that nobody needs to care for."""
_MS = 1e6


@dataclass
class Stage:
    """Ranges of one name."""

    ranges: int
    ms: float
    """Of all threads together."""
    threads: int
    """That had such ranges."""
    busy: float
    """The share of these threads' time that it took."""
    bytes: int
    """That the ranges say: encoded ones of `fetch`, decoded ones of `decode on the CPU`."""
    gb_per_s: float | None
    """Bytes by the time of the ranges: what one thread did."""


@dataclass
class Waits:
    """Ranges in which something waited for a batch."""

    ranges: int
    ms: float
    share: float
    """Of the time that was looked at."""
    longest_ms: float


@dataclass
class Gpu:
    """What ran on the GPU; shares are of the time that was looked at."""

    training_share: float
    """With at least one kernel of the training."""
    copy_share: float
    decode_share: float
    """With kernels of the reader: decoding and gathering."""
    copy_bytes: int
    hidden: float | None
    """Of copies and decoding together, the part beside the training's kernels; None where there was none."""
    hidden_with_pauses: float | None
    """The same, with pauses of up to 30 us between the training's kernels counted as training."""
    copy_hidden: float | None
    decode_hidden: float | None
    idle_waiting_share: float | None
    """Without a kernel of the training, while it waited for a batch; None where DALI's ranges are missing."""


@dataclass
class Findings:
    """What is to be said of a process."""

    pid: int
    seconds: float
    """That were looked at: from the end of the first wait to the end of what was recorded."""
    training: Waits | None
    """The training waits for DALI; None where DALI's ranges are missing."""
    reader: Waits
    """DALI waits for the reader."""
    waited_for: dict[str, float]
    """Milliseconds of `reader`, by the range that ended last before each wait did."""
    stages: dict[str, Stage]
    gpu: Gpu | None
    """None without kernels of a model, behind which something could be hidden."""
    kernels: int
    """That were recorded of this process, the reader's and the model's."""
    limit: str
    """The conclusion, a sentence."""
    first_wait_ms: float = 0.0
    """Of the first batch, which is left out."""
    window: tuple[int, int] = field(default=(0, 0), repr=False)
    """In nanoseconds of the recording."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        found = asdict(self)
        found["window_s"] = [round(one / 1e9, 6) for one in found.pop("window")]
        return found


def of(recording: Recording, start_s: float | None = None, end_s: float | None = None) -> list[Findings]:
    """The findings of each process with a reader.

    Args:
        start_s: Looks at what is behind this second of the recording; by default behind the first batch.
        end_s: And before this one; by default all.

    Raises:
        ValueError: Nothing was recorded in that time.
    """
    return [_of_process(process, recording, start_s, end_s) for process in recording.processes]


def _of_process(
    process: Process, recording: Recording, start_s: float | None, end_s: float | None
) -> Findings:
    waits = [one for one in process.ranges if one.name == WAIT]
    start, end = _window(process, waits, start_s, end_s)
    reader = _waits(waits, start, end)
    training = _waits(process.pops, start, end) if process.pops else None
    waited_for = _waited_for(process.ranges, waits, start, end)
    *_, model = readers_work(process)
    gpu = _on_gpu(process, start, end) if model else None
    return Findings(
        pid=process.pid,
        seconds=(end - start) / 1e9,
        training=training,
        reader=reader,
        waited_for=waited_for,
        stages=_stages(process.ranges, start, end),
        gpu=gpu,
        kernels=len(process.kernels),
        limit=_limit(training, reader, waited_for, gpu),
        first_wait_ms=(waits[0].end - waits[0].start) / _MS if waits else 0.0,
        window=(start, end),
    )


def _window(
    process: Process, waits: Sequence[Range], start_s: float | None, end_s: float | None
) -> tuple[int, int]:
    everything = [*process.ranges, *process.pops, *process.kernels, *process.copies]
    last = max(one.end for one in everything)
    # The first batch always waits, and the training begins behind it.
    first = waits[0].end if waits else min(one.start for one in everything)
    if process.pops and process.pops[0].start <= first:
        first = max(first, process.pops[0].end)
    start = first if start_s is None else round(start_s * 1e9)
    end = last if end_s is None else min(last, round(end_s * 1e9))
    if not any(one.start < end and one.end > start for one in everything) or start >= end:
        raise ValueError(
            f"nothing of process {process.pid} was recorded between {start / 1e9:.3f} and {end / 1e9:.3f} s, "
            f"but from {min(one.start for one in everything) / 1e9:.3f} to {last / 1e9:.3f} s"
        )
    return start, end


def _spans(found: Iterable[Range | Span], start: int, end: int) -> list[Interval]:
    """Disjoint intervals in which at least one of them was going on, between two times."""
    return within(union((one.start, one.end) for one in found), start, end)


def _between(found: Iterable[Range], start: int, end: int) -> list[Range]:
    """Those that were going on between two times."""
    return [one for one in found if one.start < end and one.end > start]


def _waits(found: Sequence[Range], start: int, end: int) -> Waits:
    inside = [min(one.end, end) - max(one.start, start) for one in _between(found, start, end)]
    return Waits(
        ranges=len(inside),
        ms=sum(inside) / _MS,
        share=length(_spans(found, start, end)) / (end - start),
        longest_ms=max(inside, default=0) / _MS,
    )


def _waited_for(ranges: Sequence[Range], waits: Sequence[Range], start: int, end: int) -> dict[str, float]:
    """Milliseconds of waits, by the reader's range that ended last within each."""
    ends = sorted((one.end, one.name) for one in ranges if one.name in STAGES)
    found: dict[str, float] = defaultdict(float)
    at, last = 0, (-1, "")
    for wait in sorted(waits, key=lambda one: one.end):
        while at < len(ends) and ends[at][0] <= wait.end:
            last = ends[at]
            at += 1
        part = min(wait.end, end) - max(wait.start, start)
        if part > 0:
            found[last[1] if last[0] > wait.start else "nothing that has a range"] += part / _MS
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _stages(ranges: Sequence[Range], start: int, end: int) -> dict[str, Stage]:
    found = {}
    for name in STAGES:
        its = _between((one for one in ranges if one.name == name), start, end)
        if not its:
            continue
        took = sum(min(one.end, end) - max(one.start, start) for one in its)
        threads = len({one.thread for one in its})
        size = sum(one.payload or 0 for one in its) if name in (FETCH, CPU) else 0
        whole = sum(one.end - one.start for one in its)
        found[name] = Stage(
            ranges=len(its),
            ms=took / _MS,
            threads=threads,
            busy=took / (threads * (end - start)),
            bytes=size,
            gb_per_s=size / whole if size and whole else None,
        )
    return found


def readers_work(process: Process) -> tuple[list[Span], list[Span], list[Span]]:
    """Copies, kernels of the reader, and those of the training."""
    lanes = {one.stream for one in process.kernels if one.name.partition("(")[0] in OWN_KERNELS}
    its, trainings = [], []
    for one in process.kernels:
        (its if one.stream in lanes or "nvcomp" in one.name.lower() else trainings).append(one)
    return process.copies, its, trainings


def _on_gpu(process: Process, start: int, end: int) -> Gpu:
    copies, decoding, model = readers_work(process)
    copied, decoded, trained = (_spans(found, start, end) for found in (copies, decoding, model))

    def hidden(work: Sequence[Interval], behind: Sequence[Interval]) -> float | None:
        return length(intersection(work, behind)) / length(work) if work else None

    both, waiting = union([*copied, *decoded]), _spans(process.pops, start, end)
    idle = outside(trained, start, end)
    return Gpu(
        training_share=length(trained) / (end - start),
        copy_share=length(copied) / (end - start),
        decode_share=length(decoded) / (end - start),
        copy_bytes=sum(one.bytes for one in copies if one.start < end and one.end > start),
        hidden=hidden(both, trained),
        hidden_with_pauses=hidden(both, union(trained, PAUSE_NS)),
        copy_hidden=hidden(copied, trained),
        decode_hidden=hidden(decoded, trained),
        idle_waiting_share=length(intersection(idle, waiting)) / (end - start) if process.pops else None,
    )


_REMEDIES = {
    FETCH: "for chunks to be read: faster storage, stronger compression or chunks that fit the samples help",
    CPU: "for the CPU to decode: a faster codec, more decoding threads or decode='auto' help",
    GPU: "for the GPU to copy, decode and gather: a faster codec or more chunks in flight help",
    PLAN: "for the planner: fewer, larger chunks help",
}


def _limit(training: Waits | None, reader: Waits, waited_for: dict[str, float], gpu: Gpu | None) -> str:
    """Who keeps whom waiting."""
    seen = training is not None and training.ranges > 0
    share, who = (training.share, "the training") if seen else (reader.share, "DALI")
    if gpu is not None and gpu.idle_waiting_share is not None:
        # A host that waits costs nothing while the GPU has work.
        share, who = gpu.idle_waiting_share, "the GPU, without work,"
    if share < LITTLE:
        return f"the training is the limit: {who} waits {share:.1%} of the time for a batch"
    if reader.share < share / 2:
        return (
            f"{who} waits {share:.1%} of the time for a batch, DALI only {reader.share:.1%} for the reader: "
            "look at what DALI does behind it"
        )
    stage = max(waited_for, key=waited_for.__getitem__, default="")
    return f"the reader is the limit: {who} waits {share:.1%} of the time, most of it " + _REMEDIES.get(
        stage, "for what has no range: the hand-over, or threads that get no core"
    )
