"""The report of `zarr_dali.info` as text."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zarr_dali._advice import number, size
from zarr_dali._description import Advice, ArrayReport, Output, Reading, Requested

WIDTH = 160
"""Columns of the text where no terminal says how many there are."""
WIDE = 140
"""Columns from which on tables are easier to read than lists."""
STYLES = {"GPU": "green", "CPU": "yellow", "refused": "red"}
ARRAY = "array"
"""Stands for the name of a store that is an array itself."""


def as_text(report: RenderableType) -> str:
    """A report without colours."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    console.print(report)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class Report:
    """The report on the fields of `zarr_dali.Info`, as tables where they fit the console, else as lists."""

    path: Sequence[str]
    arguments: dict[str, Any]
    arrays: Sequence[ArrayReport]
    together: Reading | None
    problem: str | None
    advice: Sequence[Advice]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        data = [array for array in self.arrays if not array.coordinate]
        yield from self._about_arrays(data, console, options)
        yield from self._about_reading(data, console, options)
        yield from self._about_advice()

    def _about_arrays(
        self, data: Sequence[ArrayReport], console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield _title(self._named())
        table = _fitting(_array_table(data), lambda: _array_lists(data), console, options)
        yield table
        beside = [array for array in self.arrays if array.coordinate]
        if isinstance(table, Table):
            named = ((array, ", ".join(_dimensions(array))) for array in data if array.dimensions)
            yield from _grouped((f"({names})", _name(array)) for array, names in named)
        yield from _grouped((f"{array.chain}; {array.reason}", _name(array)) for array in data)
        if beside:
            yield from ("", _title("Coordinates"), _paragraph(", ".join(map(_coordinate, beside))))
            yield from _grouped(
                (array.reason, _name(array)) for array in beside if array.decode_path == "refused"
            )

    def _named(self) -> str:
        """The path, with its snapshot."""
        # Of the path, and so the same for all arrays that can be read.
        snapshots = next((array.snapshots for array in self.arrays if array.snapshots), ())
        named = ", ".join(snapshot for snapshot in snapshots if snapshot)
        return ", ".join(self.path) + (f" (Icechunk snapshot {named})" if named else "")

    def _about_reading(
        self, data: Sequence[ArrayReport], console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        readers = [(array.reading, _name(array)) for array in data if array.reading]
        problems = [(array.problem, _name(array)) for array in data if array.problem]
        if self.together:
            readers.append((self.together, "together"))
        if self.problem:
            problems.append((self.problem, "together"))
        if readers:
            static = [(array.static, _name(array)) for array in data if array.static]
            choices = [(_choice(reading), name) for reading, name in readers]
            title = f"Reading batches of {readers[0][0].batch_size}"
            on_gpu = any(reading.gpu_memory for reading, _ in readers)
            title += ", with the GPU memory that one needs at most" if on_gpu else ""
            yield from ("", _title(title))
            table = _reading_table(readers, static, on_gpu)
            yield _fitting(table, lambda: _reading_lists(readers, static), console, options)
            if static:
                what = "without the dimension that samples are taken along, so that each sample has it"
                yield from _grouped((what, name) for _, name in static)
            same = len({text for text, _ in choices}) == 1
            yield from [_paragraph(choices[0][0])] if same else _grouped(choices)
            asked = [(reading.remote, name) for reading, name in readers if reading.remote]
            yield from _grouped((_requested(remote), name) for remote, name in asked)
        if problems:
            yield from ("", _title("Not with these arguments"), *_grouped(problems))

    def _about_advice(self) -> Iterator[RenderableType]:
        if not self.advice:
            return
        texts = [(one.text, ", ".join(name or ARRAY for name in one.arrays)) for one in self.advice]
        yield from ("", _title("Advice"), *_grouped(texts))
        if len(self.path) == 1 and any(one.is_to_rewrite for one in self.advice):
            yield _paragraph(f"What would be written, and why: {_rechunk(self.path[0], self.arguments)}")


def _fitting(
    table: Table, lists: Callable[[], RenderableType], console: Console, options: ConsoleOptions
) -> RenderableType:
    """The table where no cell of it has to be broken, and there is room for a wide one; else the lists."""
    needed = Measurement.get(console, options.update(max_width=10_000), table).maximum
    return table if max(needed, WIDE) <= options.max_width else lists()


def _rechunk(path: str, arguments: dict[str, Any]) -> str:
    """The command that proposes a copy that fits how the store is read."""
    words = ["zarr-dali", "rechunk", path, "COPY.zarr"]
    window = arguments.get("window") or [1]
    words += ["--for-window", ",".join(map(str, window))]
    words += ["--batch", str(arguments.get("batch_size", 1)), "--dry-run"]
    return shlex.join(words)


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _table(columns: dict[str, bool]) -> Table:
    """An empty table; `columns` says of each whether it holds numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, is_number in columns.items():
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    return table


def _array_table(arrays: Sequence[ArrayReport]) -> Table:
    texts = ("array", "shape", "type", "chunk", "inner chunk")
    columns = dict.fromkeys(texts, False) | {"decoded": True}
    columns |= dict.fromkeys(("size", "stored", "ratio", "chunks"), True) | {"decode path": False}
    table = _table(columns)
    for array in arrays:
        _add_row(
            table,
            _name(array),
            _shape(array),
            _type(array),
            _extents(array.chunk),
            _extents(array.inner_chunk) if array.inner_chunk else "",
            _size(array.read_chunk_bytes),
            _size(array.decoded_bytes),
            _stored(array),
            _ratio(array),
            _present(array),
            Text(array.decode_path, style=STYLES[array.decode_path]),
        )
    return table


def _array_lists(arrays: Sequence[ArrayReport]) -> RenderableType:
    parts = []
    for array in arrays:
        many = "chunk" if array.chunks == 1 else "chunks"
        inner = f", inner chunk {_spaced(array.inner_chunk)}" if array.inner_chunk else ""
        decoded = f", {_size(array.read_chunk_bytes)} decoded" if array.read_chunk_bytes is not None else ""
        total = f", {_size(array.decoded_bytes)}" if array.decoded_bytes is not None else ""
        entries: dict[str, str | Text] = {
            "shape": _with_names(array),
            "type": f"{_type(array)}{total}",
            "chunk": f"{_spaced(array.chunk)}{inner}{decoded}",
        }
        if any(sized := [str(axis) for axis in array.axes if str(axis) != axis.name]):
            entries["scale"] = ", ".join(sized)
        if array.chunks is not None:
            ratio = f", ratio {_ratio(array)}" if _ratio(array) else ""
            entries["stored"] = f"{_stored(array)} in {_present(array)} {many}{ratio}"
        entries["decode path"] = Text(array.decode_path, style=STYLES[array.decode_path])
        parts.append(_list(_name(array), entries))
    return Group(*parts, "")


def _list(name: str, entries: dict[str, str | Text]) -> RenderableType:
    """What is said of one array, a line each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in entries.items():
        grid.add_row(Text(key), value if isinstance(value, Text) else Text(value))
    return Group("", Text(name, style="bold"), Padding(grid, (0, 0, 0, 2)))


def _type(array: ArrayReport) -> str:
    kind = array.data_type
    return kind if array.output_type in (None, kind) else f"{kind} -> {array.output_type}"


def _about(array: ArrayReport) -> str:
    return "~" if array.sampled else ""


def _stored(array: ArrayReport) -> str:
    return _size(array.stored_bytes) and _about(array) + _size(array.stored_bytes)


def _ratio(array: ArrayReport) -> str:
    return f"{_about(array)}{array.ratio:.2f}" if array.ratio else ""


def _present(array: ArrayReport) -> str:
    """How many of its chunks are there."""
    if array.chunks is None or array.chunks_present == array.chunks:
        return "" if array.chunks is None else f"{array.chunks:,}"
    return f"{_about(array)}{array.chunks_present:,} of {array.chunks:,}"


def _coordinate(array: ArrayReport) -> str:
    return f"{_name(array)} {_spaced(array.shape)} {array.data_type}"


def _reading_table(
    readers: list[tuple[Reading, str]], static: Sequence[tuple[Output, str]], on_gpu: bool
) -> Table:
    memory = ("outputs", "encoded", "decoded", "scratch") if on_gpu else ("outputs",)
    numbers = ("samples", "chunks\na sample", "chunks\na batch", "decoded\n/ used", "in a\nbatch", *memory)
    table = _table({"array": False, "sample": False} | dict.fromkeys(numbers, True))
    for reading, name in readers:
        outputs = dict.fromkeys(f"{output.type} {_extents(output.shape)}" for output in reading.outputs)
        found = reading.gpu_memory
        _add_row(
            table,
            name,
            ", ".join(outputs),
            f"{reading.samples:,}",
            number(reading.chunks_per_sample),
            f"{reading.chunks_per_batch:,}",
            *("" if factor is None else number(factor) for factor in _factors(reading)),
            _size(reading.batch_bytes),
            *(map(_size, (found.encoded, found.decoded, found.scratch)) if found else ()),
        )
    for output, name in static:
        _add_row(table, name, f"{output.type} {_extents(output.shape)}", "static")
    return table


def _reading_lists(
    readers: list[tuple[Reading, str]], static: Sequence[tuple[Output, str]]
) -> RenderableType:
    parts = []
    for reading, name in readers:
        outputs = dict.fromkeys(f"{output.type} {_spaced(output.shape)}" for output in reading.outputs)
        alone, batch = (None if factor is None else number(factor) for factor in _factors(reading))
        found = reading.gpu_memory
        entries = {
            "sample": ", ".join(outputs),
            "samples": f"{reading.samples:,}",
            "chunks": f"{number(reading.chunks_per_sample)} a sample, {reading.chunks_per_batch:,} a batch",
        }
        if alone is not None and batch is not None:
            entries["decoded"] = f"{alone} bytes for each that a sample uses alone, {batch} in a batch"
        memory = f"outputs {_size(reading.batch_bytes)}"
        if found:
            others = {"encoded": found.encoded, "decoded": found.decoded, "scratch": found.scratch}
            memory += "".join(f", {key} {_size(value)}" for key, value in others.items())
        parts.append(_list(name, entries | {"memory": memory}))
    for output, name in static:
        parts.append(_list(name, {"sample": f"{output.type} {_spaced(output.shape)}", "samples": "static"}))
    return Group(*parts, "")


def _factors(reading: Reading) -> tuple[float | None, float | None]:
    return reading.sample_amplification, reading.batch_amplification


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


def _requested(remote: Requested) -> str:
    """What an epoch asks of a store at a URL."""
    few = "request" if remote.requests == 1 else "requests"
    return f"an epoch takes about {remote.requests:,} {few} for {_size(remote.bytes)}"


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


def _dimensions(array: ArrayReport) -> list[str]:
    """Names of dimensions, with the scales of images."""
    return [str(axis) for axis in array.axes] if array.axes else list(array.dimensions)


def _with_names(array: ArrayReport) -> str:
    """Extents with the names of the dimensions."""
    if not array.dimensions:
        return _spaced(array.shape)
    return ", ".join(f"{name}={extent}" for name, extent in zip(array.dimensions, array.shape))


def _spaced(shape: Iterable[int]) -> str:
    """Extents that lines break between."""
    return " x ".join(map(str, shape)) or "scalar"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)
