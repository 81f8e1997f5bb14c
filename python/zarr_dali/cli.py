"""The command `zarr-dali`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zarr_dali import _pipes
from zarr_dali._options import names
from zarr_dali._profile_cli import profile
from zarr_dali._rechunk_cli import rechunk
from zarr_dali._statistics_cli import statistics

if TYPE_CHECKING:
    from zarr_dali._info import Info

CANNOT_READ, ADVICE = 3, 4
"""Exit status of `info --strict`."""


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


class _Commands(click.Group):
    """Commands that end quietly where nobody reads their output any more."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        with _pipes.watched():
            return super().main(*arguments, **options)


@click.group(cls=_Commands)
@click.version_option(package_name="zarr-dali")
def main() -> None:
    """A Zarr reader for NVIDIA DALI."""


@main.command(context_settings={"show_default": True})
@click.argument("store", nargs=-1, required=True)
@names("--arrays", help="Names of arrays, read together; else each array by itself.")
@click.option(
    "--join",
    type=click.Choice(["concat", "separate"]),
    help="Several stores as one array, or each by itself.  [default: concat; separate for OME-Zarr plates]",
)
@click.option("--level", type=int, help="Resolution level of an OME-Zarr image, 0 for the highest.")
@names("--labels", help="Names of labels of an OME-Zarr image, at the same level.")
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
@click.option(
    "--follow-links/--no-follow-links",
    default=True,
    help="Whether symbolic links may lead out of a STORE's folder.",
)
@click.option("--storage-options", metavar="JSON", help="Credentials and endpoints of stores at URLs.")
@click.option(
    "--strict", is_flag=True, help="Exit with 3 where an array cannot be read so, 4 where chunks hurt."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(store: tuple[str, ...], shuffle: bool, strict: bool, as_json: bool, **arguments: Any) -> None:
    """Says what the arrays of a STORE are and how they would be read: on the GPU, on the CPU or not at all.

    Several stores are joined along the first dimension, unless `--join separate` is given. Only metadata and
    file sizes are read.

    With --strict the exit status is 3 where an array, besides coordinates, is refused or has no reader with
    these arguments, 4 where there is advice to write other chunks or codecs, else 0.
    """
    from zarr_dali import _plugin
    from zarr_dali._info import info as asked  # by the core, without DALI

    try:
        found = asked(store, random_shuffle=shuffle, **arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json or not sys.stdout.isatty():
        click.echo(found.to_json() if as_json else str(found))
    else:
        from rich.console import Console

        Console().print(found)
    if problem := _plugin.problem():
        click.echo(f"Nothing can be read before this is mended: {problem}", err=True)
    if strict:
        raise SystemExit(_status(found))


def _status(found: Info) -> int:
    if found.unreadable or found.problem:
        return CANNOT_READ
    return ADVICE if any(one.is_to_rewrite for one in found.advice) else 0


@main.command(context_settings={"show_default": True})
@click.argument("store")
@names(
    "--arrays",
    help="Names of arrays, read together.  [default: all as long as the largest, with as many dimensions]",
)
@click.option("--window", type=_List(int), help="Extents of a sample along the leading dimensions.")
@click.option("--batch-size", type=int, default=8, help="Samples of a batch.")
@click.option("--shuffle", is_flag=True, help="Another row: zarr-dali in random order.")
@click.option("--device", type=click.Choice(["auto", "gpu", "cpu"]), default="auto", help="Where to read to.")
@click.option(
    "--decode",
    type=click.Choice(["auto", "gpu", "cpu"]),
    multiple=True,
    default=["auto"],
    help="Where zarr-dali decodes; given again, another row.",
)
@click.option("--seconds", type=float, default=2.0, help="Seconds a loader and round, in whole passes.")
@click.option("--rounds", type=int, default=3, help="Rounds in which the loaders take turns.")
@click.option("--peer", multiple=True, help="Only these other loaders, by name.  [default: all there are]")
@click.option("--no-peers", is_flag=True, help="No other loaders.")
@click.option(
    "--npy", is_flag=True, help="DALI's readers.numpy too, on a temporary copy of the samples, raw."
)
@click.option("--cold/--no-cold", default=True, help="Also with the store's files put out of the page cache.")
@click.option(
    "--limit-bytes",
    type=int,
    default=4_000_000_000,
    help="Only the first steps of each array, up to this many decoded bytes.",
)
@click.option("--storage-options", metavar="JSON", help="Credentials and endpoints of a STORE at a URL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all results as JSON to a file.",
)
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="File for a chart.")
def bench(peer: tuple[str, ...], no_peers: bool, as_json: bool, **options: Any) -> None:
    """Measures how fast a STORE is read, and says what limits.

    zarr-dali, with a warm and a cold page cache, beside the other loaders that are installed and beside what
    the machine allows: the copy to the GPU, page cache and disk. Of a STORE at a URL or in a zip file, what
    bare requests get from it in place of page cache and disk. The first batch of each loader is compared with
    what zarr-python reads.
    """
    import zarr_dali

    zarr_dali.library_path()  # loads DALI and the plugin, or says why not
    from zarr_dali._bench import command, loaders, report  # heavy, and `--help` need not wait for it

    options["arrays"] = options["arrays"] or ()
    options["peers"] = () if no_peers else peer or loaders.KEYS
    options["npy"] = options["npy"] or any(name.startswith("readers.numpy") for name in peer)
    try:
        result = command.run(command.Options(**options))
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        from rich.console import Console

        # Where no terminal says how wide it is, lines are not cut.
        Console(width=None if sys.stdout.isatty() else 200).print(report.render(result))
    if any(row.failed for row in result.rows.values()):
        raise SystemExit(1)


@main.command(context_settings={"show_default": True})
@click.argument("path")
@click.option("--start", default="2010-01-01", help="Time of the first step.")
@click.option("--steps", type=click.IntRange(1), default=240, help="Steps, each six hours.")
@click.option("--chunk-steps", type=click.IntRange(1), default=1, help="Steps of a chunk.")
@click.option("--plate", is_flag=True, help="An OME-Zarr plate of made-up nuclei in place of weather.")
def example(path: str, plate: bool, **options: Any) -> None:
    """Writes a small store of made-up weather to PATH, to try things with: t2m, msl, t on levels, land_mask.

    One that is there already is left as it is.
    """
    from zarr_dali._example import example_store
    from zarr_dali._example_plate import example_plate

    try:
        click.echo(example_plate(path) if plate else example_store(path, **options))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Says what this machine is, what does not work on it, what costs speed, and what to do.

    To be pasted into a bug report: it names no host and no credentials. Works without a GPU and where DALI
    is missing or does not fit; libraries are loaded in processes of their own. Exit status 1: `import
    zarr_dali` does not work.
    """
    import json

    from zarr_dali._doctor import findings, machine, text

    facts = machine.examine()
    found = findings.of(facts)
    click.echo(
        json.dumps(facts | {"findings": [one._asdict() for one in found]}, indent=2)
        if as_json
        else text.page(facts, found)
    )
    if "problem" in facts["plugin"]:
        raise SystemExit(1)


main.add_command(profile)
main.add_command(rechunk)
main.add_command(statistics)
