"""The command `zarr-dali rechunk`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from zarr_dali._options import Named, at_once, bar, names, ranges, still_to_end, stoppable


def _extent(text: str) -> int:
    return -1 if text == "all" else int(text)


def _numbers(context: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers", context, param) from None


@click.command(context_settings={"show_default": True})
@click.argument("src")
@click.argument("dst")
@click.option(
    "--chunks",
    type=Named(_extent),
    metavar="time=1,lat=all",
    help="Extents of chunks.  [default: as they are]",
)
@click.option(
    "--shards",
    type=Named(_extent, "none"),
    metavar="time=16,lat=all",
    help="Extents of sharded chunks, or none; what is not named as in --chunks.  [default: as they are]",
)
@click.option("--codec", help="blosc-lz4, blosc-zstd, zstd (all with :level), none or keep.  [default: keep]")
@names("--variables", "--arrays", "variables", help="Arrays to copy, with their coordinates.")
@ranges
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
@at_once
@click.option(
    "--follow-links/--no-follow-links",
    default=True,
    help="Whether symbolic links may lead out of SRC's folder.",
)
@click.option("--storage-options", metavar="JSON", help="Credentials and endpoints of a SRC at a URL.")
@click.option("--resume", is_flag=True, help="Go on where an earlier run was stopped.")
@click.option("--overwrite", is_flag=True, help="Replace DST when the copy is complete.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rechunk(src: str, dst: str, stats: str | None, dry_run: bool, as_json: bool, **arguments: Any) -> None:
    """Copies the Zarr store SRC to DST in other chunks, shards or codecs, values bit for bit.

    DST is Zarr v3 and appears when it is complete; until then DST.partial grows. SRC is only read.

    \b
    zarr-dali rechunk era5.zarr fast.zarr --for-window 2 --batch 16 --dry-run
    zarr-dali rechunk era5.zarr fast.zarr --chunks time=1 --shards time=16 --codec blosc-lz4
    """
    from rich.console import Console

    from zarr_dali import _advice
    from zarr_dali._rechunk import copying, rechunk

    # Text that goes elsewhere than to a terminal has no need to be narrow.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
    with stoppable(
        lambda: (
            f"Stopped. What is finished is in {copying.partial_of(Path(dst))}; the same command with "
            "--resume goes on."
        )
    ):
        if dry_run:
            planned = rechunk(src, dst, dry_run=True, **arguments)
            if as_json:
                click.echo(json.dumps(planned.to_dict(), indent=2))
            else:
                console.print(str(planned.plan), markup=False)
            return
        with bar() as tick:
            done = rechunk(src, dst, stats=stats or False, progress=tick, **arguments)
    if as_json:
        click.echo(json.dumps(done.to_dict(), indent=2))
        return
    from zarr_dali._rechunk import report

    if done.waiting:
        console.print(
            f"part {arguments['part']} of {dst} is finished; {still_to_end(done.waiting)}", markup=False
        )
    elif done.complete:
        console.print(f"{dst} is complete already, nothing was left to copy", markup=False)
    else:
        console.print(f"{dst}: {_advice.size(done.plan.bytes)} in {done.seconds:.1f} s", markup=False)
    if done.again_bytes:
        again = _advice.size(done.again_bytes)
        console.print(f"{again} of what was finished were copied again, because files had changed since")
    if done.checksums:
        console.print(f"verified: all values are those of the source (arrays: {len(done.checksums)})")
    if done.statistics:
        console.print(report.statistics(done.statistics))
