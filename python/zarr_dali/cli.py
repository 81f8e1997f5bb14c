"""The command `zarr-dali`."""

from __future__ import annotations

import sys
from typing import Any

import click


class _List(click.ParamType):
    """Values with commas between them."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = f"{kind.__name__},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        if isinstance(value, list):
            return value
        try:
            return [self.kind(part) for part in value.split(",")]
        except ValueError:
            self.fail(
                f"{value!r} is no list of numbers; give them with commas, such as 4,256,256", param, ctx
            )


@click.group()
@click.version_option(package_name="zarr-dali")
def main() -> None:
    """A Zarr reader for NVIDIA DALI."""


@main.command(context_settings={"show_default": True})
@click.argument("store", nargs=-1, required=True)
@click.option("--arrays", type=_List(str), help="Names of arrays, read together; else each array by itself.")
@click.option("--window", type=_List(int), help="Extents of a sample along the leading dimensions.")
@click.option("--stride", type=_List(int), help="Steps between neighbouring samples.")
@click.option("--batch-size", type=int, default=1, help="Samples of a batch.")
@click.option("--shuffle", is_flag=True, help="Samples come in random order.")
@click.option("--stack", is_flag=True, help="One output in which the arrays are stacked.")
@click.option("--mask-and-scale", is_flag=True, help="Decode by the CF attributes.")
@click.option("--dtype", help="Type of the outputs, such as float16.")
@click.option("--decode", default="auto", help="auto, gpu or cpu.")
@click.option(
    "--device-memory-budget", type=int, help="Bytes of GPU memory.  [default: a part of what is free]"
)
@click.option("--device", type=click.Choice(["gpu", "cpu"]), default="gpu", help="Backend of the reader.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(store: tuple[str, ...], shuffle: bool, as_json: bool, **arguments: Any) -> None:
    """Says what the arrays of a STORE are and how they would be read: on the GPU, on the CPU or not at all.

    Several stores are joined along the first dimension. Only metadata and file sizes are read.
    """
    import zarr_dali  # loads DALI, which `--help` need not wait for

    try:
        found = zarr_dali.info(store, random_shuffle=shuffle, **arguments)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json or not sys.stdout.isatty():
        click.echo(found.to_json() if as_json else str(found))
        return
    from rich.console import Console

    from zarr_dali._report import render

    Console().print(render(found))
