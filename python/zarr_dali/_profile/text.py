"""Findings for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zarr_dali._profile.findings import Findings, Gpu, Waits
from zarr_dali._profile.recording import Recording


def render(recording: Recording, findings: Sequence[Findings]) -> RenderableType:
    """For a console of rich."""
    parts: list[RenderableType] = []
    for found in findings:
        begin, end = (one / 1e9 for one in found.window)
        title = f"{recording.file}, process {found.pid}: {begin:.3f} to {end:.3f} s"
        parts += [Text(title, style="bold"), Text(f"In short: {found.limit}.\n")]
        parts += [_waiting(found), Text(""), _stages(found)]
        if found.gpu is not None:
            parts.append(_on_gpu(found.gpu))
        else:
            parts.append(Text(f"{_no_kernels(recording, found)}, so that nothing is said of what is hidden."))
    return Group(*parts)


def _no_kernels(recording: Recording, found: Findings) -> str:
    if not recording.has_cuda:
        return "No kernels in the report: without a GPU, or --trace=cuda"
    if not found.kernels:
        return "No kernels of this process"
    return (
        f"Of the kernels in the report ({found.kernels}) none is a model's. Where one ran, this release of "
        "Nsight Systems is older than the driver and does not record all kernels"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _waiting(found: Findings) -> Table:
    table = _table("What waits for what", "", "ms", "of the time", "longest, ms", "times")

    def row(name: str, waits: Waits) -> None:
        cells = (f"{waits.ms:,.1f}", f"{waits.share:.1%}", f"{waits.longest_ms:,.1f}", f"{waits.ranges:,}")
        table.add_row(name, *cells)

    if found.training is not None:
        row("the training, for DALI's next batch", found.training)
    row("DALI, for the reader's next batch", found.reader)
    for name, ms in found.waited_for.items():
        table.add_row(f"  until: {name}", f"{ms:,.1f}", f"{ms / 1e3 / found.seconds:.1%}", "", "")
    table.caption = Text(f"The first batch, {found.first_wait_ms:,.1f} ms, is left out.")
    table.caption_justify = "left"
    return table


def _stages(found: Findings) -> Table:
    columns = ("range", "threads", "busy", "ms", "ranges", "MB", "GB/s a thread")
    table = _table("What the reader's threads do", *columns)
    for name, stage in found.stages.items():
        rate = "" if stage.gb_per_s is None else f"{stage.gb_per_s:.2f}"
        size = f"{stage.bytes / 1e6:,.1f}" if stage.bytes else ""
        cells = (f"{stage.threads}", f"{stage.busy:.1%}", f"{stage.ms:,.1f}", f"{stage.ranges:,}", size, rate)
        table.add_row(name, *cells)
    return table


def _on_gpu(gpu: Gpu) -> Table:
    table = _table("On the GPU", "", "of the time", "hidden behind the model's kernels")
    table.add_row("the model's kernels", f"{gpu.training_share:.1%}", "")
    if gpu.idle_waiting_share is not None:
        table.add_row("none of them, while the training waits", f"{gpu.idle_waiting_share:.1%}", "")
    table.add_row("copies to the GPU", f"{gpu.copy_share:.1%}", _share(gpu.copy_hidden))
    table.add_row("decoding and gathering", f"{gpu.decode_share:.1%}", _share(gpu.decode_hidden))
    table.add_row("both together", "", _share(gpu.hidden))
    table.add_row("with pauses of up to 30 us as the model's", "", _share(gpu.hidden_with_pauses))
    return table


def _share(share: float | None) -> str:
    return "nothing to hide" if share is None else f"{share:.1%}"
