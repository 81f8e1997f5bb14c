"""The command `zarr-dali statistics`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zarr_dali._options import at_once, bar, names, ranges, still_to_end, stoppable

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 60
"""Lines of the table that is printed; what has more is in the file."""


@click.command(context_settings={"show_default": True})
@click.argument("store", nargs=-1, required=True)
@names("--arrays", help="Names of arrays.  [default: all that hold numbers and are no coordinates]")
@click.option("--by", metavar="DIMENSION", help="Statistics of each index of a dimension, such as level.")
@ranges
@click.option(
    "--mask-and-scale/--raw",
    default=True,
    help="Values by the CF attributes, as in xarray, or as they are stored.",
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write JSON to a file.")
@at_once
@click.option(
    "--follow-links/--no-follow-links",
    default=True,
    help="Whether symbolic links may lead out of a STORE's folder.",
)
@click.option("--storage-options", metavar="JSON", help="Credentials and endpoints of stores at URLs.")
@click.option("--resume", is_flag=True, help="Go on where an earlier run with --output was stopped.")
@click.option("--overwrite", is_flag=True, help="Replace FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def statistics(store: tuple[str, ...], output: str | None, as_json: bool, **arguments: Any) -> None:
    """Mean and standard deviation of arrays of a STORE, for `normalize` of the reader.

    Several stores are joined along the first dimension. They are only read, each chunk once. NaN and what
    the CF attributes mask is left out.

    \b
    zarr-dali statistics era5.zarr --arrays t,z --by level --range time=1979:2015 -o stats.json
    """
    from zarr_dali import _statistics

    def stopped() -> str:
        if output is None:
            return "Stopped. Nothing is kept without --output."
        return (
            f"Stopped. What is finished is in {Path(output)}.partial; the same command with --resume goes on."
        )

    with stoppable(stopped), bar() as tick:
        found = _statistics.statistics(store, output=output, progress=tick, **arguments)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    if found.waiting:
        text = (
            f"part {arguments['part']} is finished; {still_to_end(found.waiting)}, and the last one writes "
        )
        click.echo(text + str(output), err=as_json)
    if as_json or found.waiting:
        return
    from rich.console import Console

    # Where no terminal says how wide it is, lines are not cut.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if sum(_rows(values) for values in found.values()) <= MOST_ROWS:
        console.print(_table(found))
    if output:
        console.print(f"{output}: {len(found)} arrays", markup=False, soft_wrap=True)
    for text in _remarks(found):
        console.print(text, markup=False, soft_wrap=True)


def _rows(values: dict[str, Any]) -> int:
    return len(values["mean"]) if "dim" in values else 1


def _table(found: dict[str, dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    by = next((values["dim"] for values in found.values() if "dim" in values), None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("array", overflow="fold", min_width=min(12, max(map(len, found), default=0)))
    if by is not None:
        table.add_column(by, justify="right", overflow="fold", min_width=min(8, _longest_label(found)))
    # What there is none of needs no column.
    some = [column for column in ("missing", "infinite") if any(_has(its[column]) for its in found.values())]
    columns = ("mean", "std", "min", "max", "count", *some)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in found.items():
        along = "dim" in values
        for row in range(_rows(values)):
            cells = [values[column][row] if along else values[column] for column in columns]
            place = (
                [] if by is None else [str(values.get("labels", range(_rows(values)))[row]) if along else ""]
            )
            table.add_row(Text(name), *map(Text, place), *map(_number, cells))
    return table


def _has(counts: int | list[int]) -> bool:
    return any(counts) if isinstance(counts, list) else counts > 0


def _longest_label(found: dict[str, dict[str, Any]]) -> int:
    labels = [its.get("labels", range(_rows(its))) for its in found.values() if "dim" in its]
    return max((len(str(label)) for its in labels for label in its), default=0)


def _number(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else f"{value:,}"


def _remarks(found: dict[str, dict[str, Any]]) -> list[str]:
    """What cannot be normalized with."""
    remarks = []
    for name, values in found.items():
        along = "dim" in values
        pairs = list(zip(values["mean"], values["std"])) if along else [(values["mean"], values["std"])]
        labels = values.get("labels") or range(len(pairs))
        for text, these in (
            ("no value counts", [i for i, (mean, _) in enumerate(pairs) if mean is None]),
            ("all values are the same, std is 0", [i for i, (_, std) in enumerate(pairs) if std == 0]),
        ):
            if these:
                where = f", {values['dim']}={', '.join(str(labels[i]) for i in these)}" if along else ""
                remarks.append(f"{name}{where}: {text}; nothing can be normalized with that")
    return remarks
