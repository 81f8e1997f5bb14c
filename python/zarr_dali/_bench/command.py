"""`zarr-dali bench`: measures a store in one go."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from zarr_dali._bench import ceilings, cold, loaders, machine, report, timing
from zarr_dali._bench.loaders import Loader, NpyCopies, ZarrDali
from zarr_dali._bench.report import Result
from zarr_dali._bench.timing import Expected, Row, gist
from zarr_dali._bench.work import Work

CHECKED_BATCHES = 1
"""Batches of each loader that are compared with zarr-python before it is timed."""


@dataclass(frozen=True)
class Options:
    """What is asked for, as `zarr-dali bench --help` says."""

    store: Path | str
    arrays: Sequence[str] = ()
    window: Sequence[int] | None = None
    batch_size: int = 8
    shuffle: bool = False
    device: str = "auto"
    decode: Sequence[str] = ("auto",)
    seconds: float = 2.0
    rounds: int = 3
    peers: Sequence[str] = loaders.KEYS
    npy: bool = False
    cold: bool = True
    limit_bytes: int | None = None
    output: Path | None = None
    png: Path | None = None
    storage_options: str | None = field(default=None, repr=False)


def run(options: Options) -> Result:
    """Measures, shows progress on stderr, and keeps the JSON file after every step.

    Raises:
        ValueError: The options or the store do not fit, in words for the user.
    """
    _check(options)
    device = _device(options.device)
    work = Work.of(
        options.store, options.arrays, batch_size=options.batch_size, window=options.window,
        limit_bytes=options.limit_bytes, storage_options=options.storage_options,
    )  # fmt: skip
    files = [file for _, file in work.chunk_files()]
    made, rows = _loaders(options, device)
    result = Result(
        work=work,
        device=device,
        stored_bytes=work.stored_bytes,
        about={
            "date": datetime.date.today().isoformat(),
            "machine": machine.machine(),
            "versions": machine.versions(),
            "rounds": options.rounds,
            "seconds_per_round": options.seconds,
        },
        rows=rows,
        peers=frozenset(name for name in rows if name not in made or made[name].peer),
    )
    if options.cold and not work.is_folder:
        result.notes.append("Cold was not measured: only files of a folder can be put out of the page cache.")
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def said(text: str) -> None:
            console.print(text, style="yellow", markup=False, highlight=False)

        def follow(what: str, total: int, names: Iterable[str]) -> None:
            """Shows how far something is that yields the name of each step before it begins."""
            task = progress.add_task(what, total=total)
            for done, name in enumerate(names):
                progress.update(task, description=f"{what}: {name}", completed=done)
                _keep(result, options)
            progress.remove_task(task)
            _keep(result, options)

        if expected := _expected(work, result):
            checked = timing.verify_all(made, rows, work, expected, CHECKED_BATCHES, said)
            follow("checking values", len(made), checked)
        timed = timing.time_all(made, rows, work, options.rounds, options.seconds, said)
        follow("timing", options.rounds * len(made), (name for _, name in timed))
        follow("ceilings", 4, _add_ceilings(result, options))
        if options.cold and work.is_folder:
            follow("cold", options.rounds, _add_cold(result, options, files))
    if options.png:
        report.chart(result).savefig(options.png, dpi=150)
    return result


def _check(options: Options) -> None:
    """What would otherwise come to light only after minutes."""
    unknown = sorted(set(options.peers) - set(loaders.KEYS))
    if unknown:
        raise ValueError(f"--peer: {', '.join(unknown)} is not known; there are {', '.join(loaders.KEYS)}")
    for option in ("batch_size", "rounds", "seconds", "limit_bytes"):
        value = getattr(options, option)
        if value is not None and value <= 0:
            raise ValueError(f"--{option.replace('_', '-')} {value}: has to be more than 0")
    for option in ("output", "png"):
        file = getattr(options, option)
        if file and not file.resolve().parent.is_dir():
            raise ValueError(f"--{option}: there is no folder {file.resolve().parent}; make it first")
    if options.png:
        try:
            import matplotlib  # noqa: F401  only whether it is there
        except ImportError as error:
            raise ValueError('--png needs matplotlib: pip install "zarr-dali[bench]"') from error


def _device(asked: str) -> str:
    from nvidia.dali import backend

    has_gpu = backend.GetCUDADeviceCount() > 0
    if asked == "gpu" and not has_gpu:
        raise ValueError(
            "--device gpu: the driver shows no GPU; `nvidia-smi` says more, or take --device cpu"
        )
    return asked if asked != "auto" else ("gpu" if has_gpu else "cpu")


def _loaders(options: Options, device: str) -> tuple[dict[str, Loader], dict[str, Row]]:
    """The loaders that can be made, and a row for each that was asked for."""
    ours: list[Loader] = [ZarrDali(device, decode=decode) for decode in options.decode]
    if options.shuffle:
        ours.append(ZarrDali(device, shuffle=True, decode=options.decode[0]))
    made = {loader.name: loader for loader in ours}
    rows = {name: Row() for name in made}
    copies = NpyCopies() if options.npy else None
    for name, loader, problem in loaders.peers(device, options.peers, copies):
        rows[name] = Row(problem=problem)
        if loader is not None:
            made[name] = loader
    return made, rows


def _expected(work: Work, result: Result) -> Expected | None:
    """What to compare with, if zarr-python is there and reads the store."""
    try:
        expected = Expected(work)
        expected.sample(0)
    except ImportError:
        result.notes.append(
            'Values were not compared: zarr-python is missing; pip install "zarr-dali[bench]"'
        )
    except Exception as error:
        result.notes.append(f"Values were not compared: zarr-python cannot read the store ({gist(error)})")
    else:
        return expected
    return None


def _add_ceilings(result: Result, options: Options) -> Iterator[str]:
    for name, measure in ceilings.measurements(result.work, result.device, options.cold, options.rounds):
        yield name
        result.ceilings.append(measure())


def _add_cold(result: Result, options: Options, files: list[Path]) -> Iterator[str]:
    result.cold = cold.Cold()
    if not files:
        result.cold.problem = "no chunk has a file"
    loader = ZarrDali(result.device, decode=options.decode[0], lazy=True)
    for number in range(options.rounds):
        if result.cold.problem:
            return
        yield f"epoch {number + 1}"
        try:
            cold.epoch(result.work, loader, files, result.cold)
        except Exception as error:
            result.cold.problem = f"failed: {gist(error)}"


def _keep(result: Result, options: Options) -> None:
    if options.output:
        result.keep(options.output)
