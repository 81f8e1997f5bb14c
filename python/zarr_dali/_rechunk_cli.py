"""The command `zarr-dali rechunk`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


class _Named(click.ParamType):
    """Values by dimension name, such as `time=1,lat=640`."""

    name = "dim=value,..."

    def __init__(self, value_of: Callable[[str], Any], word: str | None = None) -> None:
        self.value_of = value_of
        self.word = word
        """A text that stands for itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or (self.word and value == self.word):
            return value
        found = {}
        for part in value.split(","):
            name, equals, text = part.partition("=")
            try:
                if not (equals and name) or name in found:
                    raise ValueError
                found[name] = self.value_of(text)
            except ValueError:
                self.fail(f"{part!r} is not understood; give it as in {param.metavar}", param, ctx)
        return found


def _extent(text: str) -> int:
    return -1 if text == "all" else int(text)


def _range(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not colon:
        raise ValueError
    return slice(int(start) if start else None, int(stop) if stop else None)


def _numbers(context: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers", context, param) from None


def _list(context: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else value.split(",")


@click.command(context_settings={"show_default": True})
@click.argument("src")
@click.argument("dst")
@click.option(
    "--chunks",
    type=_Named(_extent),
    metavar="time=1,lat=all",
    help="Extents of chunks.  [default: as they are]",
)
@click.option(
    "--shards",
    type=_Named(_extent, "none"),
    metavar="time=16,lat=all",
    help="Extents of sharded chunks, or none; what is not named as in --chunks.  [default: as they are]",
)
@click.option("--codec", help="blosc-lz4, blosc-zstd, zstd (all with :level), none or keep.  [default: keep]")
@click.option("--variables", metavar="A,B", callback=_list, help="Arrays to copy, with their coordinates.")
@click.option("--range", type=_Named(_range), metavar="time=0:100,lat=:320", help="What to copy, by indices.")
@click.option(
    "--for-window",
    metavar="N[,N...]",
    callback=_numbers,
    help="Propose chunks, shards and codec for samples of these extents along the leading dimensions.",
)
@click.option("--batch", type=click.IntRange(1), default=1, help="Samples of a batch, for the proposal.")
@click.option("--shuffle/--in-order", default=True, help="Order of the samples, for the proposal.")
@click.option("--stats", metavar="FILE", type=click.Path(dir_okay=False), help="Write mean and std as JSON.")
@click.option("--mask", is_flag=True, help="Statistics of what the reader gives with mask_and_scale.")
@click.option("--verify", is_flag=True, help="Read both stores again and compare checksums of the values.")
@click.option("--memory", default="2GB", help="Memory for the work, beside Python's own.")
@click.option("--workers", type=click.IntRange(1), help="Regions at once.  [default: cores, up to 8]")
@click.option(
    "--follow-links/--no-follow-links",
    default=True,
    help="Whether symbolic links may lead out of SRC's folder.",
)
@click.option("--storage-options", metavar="JSON", help="Credentials and endpoints of a SRC at a URL.")
@click.option("--resume", is_flag=True, help="Go on where an earlier run was stopped.")
@click.option("--overwrite", is_flag=True, help="Replace DST when the copy is complete.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and why.")
def rechunk(src: str, dst: str, stats: str | None, dry_run: bool, **arguments: Any) -> None:
    """Copies the Zarr store SRC to DST in other chunks, shards or codecs, values bit for bit.

    DST is Zarr v3 and appears when it is complete; until then DST.partial grows. SRC is only read.

    \b
    zarr-dali rechunk era5.zarr fast.zarr --for-window 2 --batch 16 --dry-run
    zarr-dali rechunk era5.zarr fast.zarr --chunks time=1 --shards time=16 --codec blosc-lz4
    """
    from rich.console import Console

    import zarr_dali  # loads DALI, which `--help` need not wait for
    from zarr_dali._rechunk import copying, rechunk

    # Text that goes elsewhere than to a terminal has no need to be narrow.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
    # A batch system that ends a job lets it be resumed, too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if dry_run:
            console.print(str(rechunk(src, dst, dry_run=True, **arguments).plan), markup=False)
            return
        with _bar() as tick:
            done = rechunk(src, dst, stats=stats or False, progress=tick, **arguments)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise click.ClickException(_in_options(str(error))) from error
    except KeyboardInterrupt:
        partial = copying.partial_of(Path(dst))
        text = f"Stopped. What is finished is in {partial}; the same command with --resume goes on."
        click.echo(text, err=True)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    from zarr_dali._rechunk import report

    if done.complete:
        console.print(f"{dst} is complete already, nothing was left to copy", markup=False)
    else:
        console.print(
            f"{dst}: {zarr_dali._advice.size(done.plan.bytes)} in {done.seconds:.1f} s", markup=False
        )
    if done.again_bytes:
        again = zarr_dali._advice.size(done.again_bytes)
        console.print(f"{again} of what was finished were copied again, because files had changed since")
    if done.checksums:
        console.print(f"verified: all values are those of the source (arrays: {len(done.checksums)})")
    if done.statistics:
        console.print(report.statistics(done.statistics))


def _in_options(text: str) -> str:
    """An error in the words of the command line."""
    for name in ("resume", "overwrite"):
        text = text.replace(f"{name}=True", f"--{name}")
    return text


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar with the rate and the time left, where there is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def tick(what: str, done: int, total: int) -> None:
            if what not in tasks:
                # What an earlier run has done is no part of the rate.
                tasks[what] = progress.add_task(what, total=total, completed=done)
            progress.update(tasks[what], completed=done)

        yield tick
