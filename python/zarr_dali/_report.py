"""The report of `zarr_dali.info` as text."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zarr_dali._advice import number, size
from zarr_dali._description import Advice, ArrayReport, Reading

WIDTH = 160
"""Columns of the text where no terminal says how many there are."""
ARRAY = "array"
"""Stands for the name of a store that is an array itself."""


def as_text(report: RenderableType) -> str:
    """A report without colours."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    console.print(report)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def render(
    path: Sequence[str],
    arguments: dict[str, Any],
    arrays: Sequence[ArrayReport],
    together: Reading | None,
    problem: str | None,
    advice: Sequence[Advice],
) -> RenderableType:
    """The report on the fields of `zarr_dali.Info` for a console of rich."""
    reasons = [(array.reason, _name(array)) for array in arrays]
    readers = [(array.reading, _name(array)) for array in arrays if array.reading]
    problems = [(array.problem, _name(array)) for array in arrays if array.problem]
    if together:
        readers.append((together, "together"))
    if problem:
        problems.append((problem, "together"))
    parts: list[RenderableType] = [_arrays(path, arrays), *_grouped(reasons)]
    if readers:
        choices = [(_choice(reading), name) for reading, name in readers]
        same = len({text for text, _ in choices}) == 1
        parts += ["", _reading(readers)]
        parts += [_paragraph(choices[0][0])] if same else _grouped(choices)
    if problems:
        parts += ["", _title("Not with these arguments"), *_grouped(problems)]
    if advice:
        texts = [(one.text, ", ".join(name or ARRAY for name in one.arrays)) for one in advice]
        parts += ["", _title("Advice"), *_grouped(texts)]
        if len(path) == 1 and any(one.is_to_rewrite for one in advice):
            parts += [_paragraph(f"What would be written, and why: {_rechunk(path[0], arguments)}")]
    return Group(*parts)


def _rechunk(path: str, arguments: dict[str, Any]) -> str:
    """The command that proposes a copy that fits how the store is read."""
    words = ["zarr-dali", "rechunk", path, "COPY.zarr"]
    window = arguments.get("window") or [1]
    words += ["--for-window", ",".join(map(str, window))]
    words += ["--batch", str(arguments.get("batch_size", 1)), "--dry-run"]
    return shlex.join(words)


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _table(title: str, columns: dict[str, bool]) -> Table:
    """An empty table; `columns` says of each whether it holds numbers."""
    table = Table(title=_title(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column, is_number in columns.items():
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _arrays(path: Sequence[str], arrays: Sequence[ArrayReport]) -> Table:
    texts = ("array", "shape", "type", "chunk", "inner chunk")
    columns = dict.fromkeys(texts, False) | {"decoded": True, "codecs": False}
    columns |= dict.fromkeys(("size", "stored", "ratio", "chunks"), True) | {"decode path": False}
    # Of the path, and so the same for all arrays that can be read.
    snapshots = next((array.snapshots for array in arrays if array.snapshots), ())
    named = ", ".join(snapshot for snapshot in snapshots if snapshot)
    table = _table(", ".join(path) + (f" (Icechunk snapshot {named})" if named else ""), columns)
    for array in arrays:
        kind = array.data_type
        if array.output_type not in (None, kind):
            kind += f" -> {array.output_type}"
        about = "~" if array.sampled else ""
        present = "" if array.chunks is None else f"{array.chunks:,}"
        if array.chunks_present != array.chunks:
            present = f"{about}{array.chunks_present:,} of {present}"
        _add_row(
            table,
            _name(array),
            _shape(array),
            kind,
            _extents(array.chunk),
            _extents(array.inner_chunk) if array.inner_chunk else "",
            _size(array.read_chunk_bytes),
            array.chain,
            _size(array.decoded_bytes),
            _size(array.stored_bytes) and about + _size(array.stored_bytes),
            f"{about}{array.ratio:.2f}" if array.ratio else "",
            present,
            Text(
                array.decode_path,
                style={"GPU": "green", "CPU": "yellow", "refused": "red"}[array.decode_path],
            ),
        )
    return table


def _reading(readers: list[tuple[Reading, str]]) -> Table:
    on_gpu = any(reading.gpu_memory for reading, _ in readers)
    memory = ("outputs", "encoded", "decoded", "scratch") if on_gpu else ("outputs",)
    numbers = ("samples", "chunks a sample", "chunks a batch", "decoded / used, a sample", "a batch", *memory)
    title = f"Reading batches of {readers[0][0].batch_size}"
    title += ", with the GPU memory that one needs at most" if on_gpu else ""
    table = _table(title, {"array": False, "sample": False} | dict.fromkeys(numbers, True))
    for reading, name in readers:
        outputs = dict.fromkeys(f"{output.type} {_extents(output.shape)}" for output in reading.outputs)
        factors = (reading.sample_amplification, reading.batch_amplification)
        found = reading.gpu_memory
        _add_row(
            table,
            name,
            ", ".join(outputs),
            f"{reading.samples:,}",
            number(reading.chunks_per_sample),
            f"{reading.chunks_per_batch:,}",
            *("" if factor is None else number(factor) for factor in factors),
            _size(reading.batch_bytes),
            *(map(_size, (found.encoded, found.decoded, found.scratch)) if found else ()),
        )
    return table


def _choice(reading: Reading) -> str:
    """How far a reader would run ahead."""
    chosen = reading.chosen
    if chosen is None:
        return f"How many batches would be in flight is not known: {reading.not_chosen}"
    if chosen.lanes is None:
        return f"{chosen.depth} batches in flight"
    return (
        f"{chosen.depth} batches in flight; {chosen.lanes} lanes of {_size(chosen.arena_bytes)} decode, "
        f"within {_size(chosen.budget_bytes)} of GPU memory"
    )


def _add_row(table: Table, *cells: str | Text) -> None:
    """As they are: rich would take `[h]` for markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _grouped(entries: Iterable[tuple[str, str]]) -> list[RenderableType]:
    """One paragraph for each text, with the names that it is about."""
    names: dict[str, list[str]] = {}
    for text, name in entries:
        names.setdefault(text, []).append(name)
    return [_paragraph((", ".join(about), "bold"), ": ", text) for text, about in names.items()]


def _paragraph(*parts: str | tuple[str, str]) -> RenderableType:
    return Padding(Text.assemble(*parts), (0, 0, 0, 2))


def _name(array: ArrayReport) -> str:
    return array.name or ARRAY


def _shape(array: ArrayReport) -> str:
    """The shape; of stores that are read separately the least and the most along each dimension."""
    if not array.shapes:
        return _extents(array.shape)
    ranges = [(min(extents), max(extents)) for extents in zip(*array.shapes)]
    extents = "x".join(f"{least}-{most}" if least < most else f"{most}" for least, most in ranges)
    return f"{extents} in {len(array.shapes)} stores"


def _extents(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)
