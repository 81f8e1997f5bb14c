"""Plans and results as text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zarr_dali._advice import number, size
from zarr_dali._codecs import chain_in_words
from zarr_dali._rechunk.array_plan import ArrayPlan
from zarr_dali._rechunk.regions import SAME, Extents

WIDTH = 160
"""Columns of the text where no terminal says how many there are."""


def as_text(source: str, destination: str, arrays: Sequence[ArrayPlan], memory: int) -> str:
    """The plan of a copy without colours."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    console.print(_render(source, destination, arrays, memory))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _render(source: str, destination: str, arrays: Sequence[ArrayPlan], memory: int) -> RenderableType:
    title = Text(f"{source} -> {destination}", style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("array", "shape", "type", "chunk now", "chunk", "sharded chunk", "codecs")
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in ("decoded", "files", "regions", "workers", "memory"):
        table.add_column(column, justify="right")
    for array in arrays:
        cells = (
            array.name or "array",
            _extents(array.shape),
            str(array.dtype),
            _before(array),
            _extents(array.chunk),
            _extents(array.shard) if array.shard else "",
            _words(array),
            size(array.bytes),
            f"{array.files:,}",
            f"{array.regions:,}",
            str(array.cut.workers),
            size(array.cut.memory * array.cut.workers),
        )
        table.add_row(*(Text(cell) for cell in cells))
    lines = _grouped([(_reads(array, memory), array.name) for array in arrays if not array.coordinate])
    reasons = _grouped([(reason, array.name) for array in arrays for reason in array.reasons])
    return Group(table, *lines, *([Text("Why", style="bold"), *reasons] if reasons else []))


def as_dict(array: ArrayPlan) -> dict[str, Any]:
    """How an array is copied, as JSON has it."""
    return {
        "name": array.name,
        "dimensions": list(array.dimensions),
        "shape": list(array.shape),
        "start": list(array.start),
        "data_type": str(array.dtype),
        "source_chunk": list(array.source_chunk),
        "source_sharded_chunk": array.source_shard and list(array.source_shard),
        "chunk": list(array.chunk),
        "sharded_chunk": array.shard and list(array.shard),
        "chain": _words(array),
        "coordinate": array.coordinate,
        "decoded_bytes": array.bytes,
        "files": array.files,
        "region": list(array.cut.region),
        "regions": array.regions,
        "workers": array.cut.workers,
        "memory": array.cut.memory * array.cut.workers,
        "reads": array.cut.reads,
        "reasons": list(array.reasons),
    }


def statistics(found: dict[str, dict[str, Any]]) -> RenderableType:
    """Statistics for a console of rich."""
    table = Table(title=Text("Statistics", style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("array")
    columns = ("mean", "std", "min", "max", "count", "nan", "infinite", "masked")
    for column in columns:
        table.add_column(column, justify="right")
    for name, values in found.items():
        cells = [values[column] for column in columns]
        table.add_row(Text(name or "array"), *map(_number, cells))
    return table


def _number(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else f"{value:,}"


def _reads(array: ArrayPlan, memory: int) -> str:
    text = f"each source chunk is read {array.cut.reads:.1f} times"
    if array.cut.reads > SAME and array.cut.memory_for_least > memory:
        needed = size(array.cut.memory_for_least)
        text += f", because {size(memory)} of memory hold no more; as few as possible with {needed}"
    elif array.cut.reads > SAME:
        text += f" with these shapes, {number(array.cut.reads)} at least"
    return text


def _grouped(entries: list[tuple[str, str]]) -> list[RenderableType]:
    """One paragraph for each text, with the names that it is about."""
    names: dict[str, list[str]] = {}
    for text, name in entries:
        names.setdefault(text, []).append(name or "array")
    return [
        Padding(Text.assemble((", ".join(about), "bold"), ": ", text), (0, 0, 0, 2))
        for text, about in names.items()
    ]


def _words(array: ArrayPlan) -> str:
    chain = (*array.codecs.filters, array.codecs.serializer, *array.codecs.compressors)
    named = [codec.to_dict() for codec in chain if codec != "auto"]
    return chain_in_words(
        [{"name": one["name"], "configuration": one.get("configuration") or {}} for one in named]
    )


def _before(array: ArrayPlan) -> str:
    text = _extents(array.source_chunk)
    return f"{text} in {_extents(array.source_shard)}" if array.source_shard else text


def _extents(shape: Extents) -> str:
    return "x".join(map(str, shape)) or "scalar"
