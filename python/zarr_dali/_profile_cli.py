"""The command `zarr-dali profile`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command(context_settings={"show_default": True})
@click.argument("report", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--from",
    "start",
    type=float,
    metavar="S",
    help="First second to look at.  [default: behind the first batch]",
)
@click.option("--to", "end", type=float, metavar="S", help="Last one.  [default: all]")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="File for a timeline.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(report: Path, start: float | None, end: float | None, png: Path | None, as_json: bool) -> None:
    """Says what waits for what in a REPORT of Nsight Systems, and how much of the reader's work is hidden.

    REPORT is the SQLite file that `nsys export --type sqlite` makes of a recording with `nsys profile
    --trace=cuda,nvtx`. Neither DALI nor a GPU is needed to read it.
    """
    from rich.console import Console

    from zarr_dali._profile import findings, recording, text

    try:
        recorded = recording.read(report)
        found = findings.of(recorded, start, end)
        if png is not None:
            from zarr_dali._profile import picture

            given = start is not None or end is not None
            for process, its in zip(recorded.processes, found):
                many = len(found) > 1
                path = png.with_stem(f"{png.stem}-{process.pid}") if many else png
                picture.draw(process, its, path, its.window if given else None)
    except (ValueError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        processes = [its.as_dict() for its in found]
        click.echo(json.dumps({"report": recorded.file, "processes": processes}, indent=2))
        return
    # Where no terminal says how wide it is, lines are not cut.
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(text.render(recorded, found))
