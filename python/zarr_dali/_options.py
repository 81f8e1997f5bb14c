"""What the commands share: types of options, a progress bar, errors in words of the command line."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from zarr_dali import _labels


class Named(click.ParamType):
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


def _positions(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not colon:
        raise ValueError
    return slice(int(start) if start else None, int(stop) if stop else None)


def added_up(context: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
    """All that a repeated option was given: names with commas between them, or values by dimension."""
    if not values:
        return None
    if not isinstance(values[0], dict):
        names = [name.strip() for value in values for name in value.split(",")]
        if not all(names):
            raise click.BadParameter("a name is empty; give names with commas between them", context, param)
        return list(dict.fromkeys(names))
    found: dict[str, Any] = {}
    for value in values:
        if twice := sorted(set(found) & set(value)):
            raise click.BadParameter(f"{twice[0]} is given twice", context, param)
        found |= value
    return found


def names(*flags: str, metavar: str = "A,B", help: str) -> Callable[..., Any]:
    """An option for names of arrays, which may be repeated."""
    return click.option(*flags, multiple=True, callback=added_up, metavar=metavar, help=help)


def ranges(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options `--range` and `--index-range`."""
    for option in (
        click.option(
            "--index-range",
            type=Named(_positions),
            multiple=True,
            callback=added_up,
            metavar="time=0:100,lat=:320",
            help="What to take, by positions, without the end.",
        ),
        click.option(
            "--range",
            type=Named(_labels.parse),
            multiple=True,
            callback=added_up,
            metavar="time=2010:2015-06,lat=60:-60",
            help="What to take, by labels of coordinates, with both ends; a year is all of it.",
        ),
    ):
        function = option(function)
    return function


def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options `--memory`, `--workers`, `--dask` and `--part`."""
    for option in (
        click.option(
            "--part",
            metavar="I/N",
            help="Do one of N parts, side by side with the others, as jobs of an array do.",
        ),
        click.option(
            "--dask",
            metavar="ADDRESS",
            help="Do regions in dask.distributed: tcp://HOST:8786, a scheduler's FILE.json, or local:4.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Regions at once, in each worker of dask.  [default: cores, up to 8; threads of a worker]",
        ),
        click.option(
            "--memory",
            default="2GB",
            help="Memory for the work, in each worker of dask, beside Python's own.",
        ),
    ):
        function = option(function)
    return function


def still_to_end(parts: Sequence[int]) -> str:
    """Says which parts have not ended."""
    if len(parts) == 1:
        return f"part {parts[0]} is still to end"
    return f"parts {', '.join(map(str, parts))} are still to end"


def in_options(text: str) -> str:
    """An error in the words of the command line."""
    for name in ("resume", "overwrite"):
        text = text.replace(f"{name}=True", f"--{name}")
    text = re.sub(r"(?<!\w)range(?=[:,] )", "--range", text)
    text = text.replace("give `output`", "give --output")
    return text.replace("index_range", "--index-range")


@contextmanager
def stoppable(message: Callable[[], str]) -> Iterator[None]:
    """Errors end a command with their text; Ctrl-C, and the end of a batch job, with a message of its own."""
    # A batch system that ends a job lets it be resumed, too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise click.ClickException(in_options(str(error))) from error
    except KeyboardInterrupt:
        click.echo(message(), err=True)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
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
