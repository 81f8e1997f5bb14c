"""Checks what loaders read, and times them in rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from zarr_dali._bench.loaders import Loader, ZarrPython
from zarr_dali._bench.work import Work

WORDS = 110
"""Characters of a problem that a table shows; JSON has all of it."""


class WrongValues(ValueError):
    """A loader read something else than zarr-python."""


@dataclass
class Row:
    """One loader's figures for one store."""

    gb_per_s: list[float] = field(default_factory=list)
    """Of each round, in 10^9 decoded bytes."""
    cpu_cores: list[float] = field(default_factory=list)
    """Cores kept busy; empty where other processes work."""
    stats: dict[str, float] = field(default_factory=dict)
    """What our reader counted while it was timed, all rounds together."""
    seconds: float = 0.0
    """Time of all rounds."""
    delivered_bytes: int = 0
    """Of all rounds."""
    problem: str = ""
    """Why there are no figures."""

    @property
    def failed(self) -> bool:
        """Whether something is wrong, other than a peer that is not there or cannot read the store."""
        return self.problem.startswith("failed")

    @property
    def median(self) -> float | None:
        """GB/s, or None where there is a problem."""
        return statistics.median(self.gb_per_s) if self.gb_per_s and not self.problem else None

    @property
    def gist(self) -> str:
        """The problem, short enough for a table."""
        return self.problem if len(self.problem) <= WORDS else self.problem[: WORDS - 3] + "..."

    def cell(self) -> str:
        """Median and range, or why there are none."""
        if self.median is None:
            return self.gist
        return f"{self.median:.2f} ({min(self.gb_per_s):.2f} to {max(self.gb_per_s):.2f})"

    def as_json(self) -> dict[str, Any]:
        """What is kept in the results."""
        if self.median is None:
            return {"problem": self.problem}
        kept: dict[str, Any] = {
            "median_gb_per_s": self.median,
            "min_gb_per_s": min(self.gb_per_s),
            "max_gb_per_s": max(self.gb_per_s),
            "gb_per_s": self.gb_per_s,
        }
        if self.cpu_cores:
            kept["cpu_cores_busy"] = self.cpu_cores
        if self.stats:
            kept["stats"] = self.stats
        return kept


class Expected:
    """What zarr-python reads, by sample; kept, because every loader is compared with it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.known: dict[int, list[np.ndarray]] = {}
        self.source = ZarrPython("cpu")
        self.source.open(work)

    def sample(self, number: int) -> list[np.ndarray]:
        """The values of a sample, of each array."""
        if number not in self.known:
            (values,) = zip(*self.source.read([self.work.selection(number)]))
            self.known[number] = [value[0] if self.work.window is None else value for value in values]
        return self.known[number]


def passes(loader: Loader, batches: int, seconds: float) -> tuple[int, float, float]:
    """Runs whole passes, at least one, for `seconds`: how many, their wall time and CPU time."""
    count = 0
    cpu, began = time.process_time(), time.perf_counter()
    while True:
        for _ in range(batches):
            loader.batch()
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return count, elapsed, time.process_time() - cpu


def verify(loader: Loader, work: Work, expected: Expected, batches: int) -> None:
    """Reads the first batches and compares them bit by bit.

    Raises:
        WrongValues: Something differs, or samples of a whole pass are missing.
        Exception: What the loader raises.
    """
    loader.open(work)
    try:
        seen: list[int] = []
        for _ in range(batches):
            samples, arrays = loader.to_host(loader.batch())
            for number, values in enumerate(arrays):
                _check_batch(loader.name, work, expected, number, samples, values)
            seen += samples
        if batches == work.batches and set(seen) != set(range(work.samples)):
            raise WrongValues(f"{loader.name} did not read each sample of {work.shown} once: {seen}")
    finally:
        loader.close()
        gc.collect()


def _check_batch(
    name: str, work: Work, expected: Expected, number: int, samples: list[int], values: np.ndarray
) -> None:
    if len(values) != len(samples):
        raise WrongValues(f"{name} gave {len(values)} samples instead of {len(samples)}")
    for sample, value in zip(samples, values):
        wanted = expected.sample(sample)[number]
        if not np.array_equal(_bytes(_as_read(wanted, value.dtype)), _bytes(value)):
            raise WrongValues(
                f"{name} read other values than zarr-python in sample {sample} of "
                f"{'/'.join((work.shown, *work.names[number:][:1]))}"
            )


def _as_read(wanted: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values in the type in which a loader gives them: complex numbers as pairs, times as integers."""
    wanted = np.ascontiguousarray(wanted, wanted.dtype.newbyteorder(dtype.byteorder))
    if wanted.dtype == dtype:
        return wanted
    if wanted.dtype.kind in "cmM":
        return wanted.view(dtype)
    return wanted.astype(dtype)


def _bytes(values: np.ndarray) -> np.ndarray:
    """NaNs compare by payload, zeros by sign."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def gist(error: Exception) -> str:
    """The line of an error that says what happened; DALI puts it behind `encountered:`."""
    lines = [line for line in str(error).partition("encountered:\n")[2].splitlines() if line.strip()]
    lines = lines or [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def timed(loader: Loader, row: Row, work: Work, seconds: float) -> None:
    """Opens the loader, warms it up for a quarter of the time or as long as it needs, times it and adds the
    figures to `row`.
    """
    loader.open(work)
    try:
        passes(loader, work.batches, max(seconds / 4, min(seconds, loader.warm_up_s)))
        before = loader.stats() if hasattr(loader, "stats") else {}
        count, wall, cpu = passes(loader, work.batches, seconds)
        after = loader.stats() if hasattr(loader, "stats") else {}
    finally:
        loader.close()
        gc.collect()
    row.gb_per_s.append(count * work.pass_bytes / wall / 1e9)
    if loader.in_process:
        row.cpu_cores.append(cpu / wall)
    row.seconds += wall
    row.delivered_bytes += count * work.pass_bytes
    add_stats(row.stats, before, after)


LEVELS = ("_bytes", "_in_flight", "_peak", "_p50", "_p99", "_per_sample")
"""How counters end that do not only grow."""


def add_stats(total: dict[str, float], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Adds what was counted between two readings of stats; of levels and peaks the largest stays."""
    for name, value in after.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name.endswith(LEVELS) or name == "samples":
            total[name] = max(total.get(name, 0), value)
        else:
            total[name] = total.get(name, 0) + value - before.get(name, 0)


def verify_all(
    loaders: dict[str, Loader],
    rows: dict[str, Row],
    work: Work,
    expected: Expected,
    batches: int,
    said: Callable[[str], None],
) -> Iterator[str]:
    """Compares all loaders with zarr-python; yields the name of each before it is looked at.

    A peer that cannot read the store is refused, which is not an error; it is left out from there on, as is a
    loader that fails.
    """
    for name, loader in loaders.items():
        yield name
        _attempt(name, loader, rows[name], partial(verify, loader, work, expected, batches), True, said)


def time_all(
    loaders: dict[str, Loader],
    rows: dict[str, Row],
    work: Work,
    rounds: int,
    seconds: float,
    said: Callable[[str], None],
) -> Iterator[tuple[int, str]]:
    """Times all loaders that can read the store, in rounds; yields round and name before each."""
    for number in range(rounds):
        names = [name for name in loaders if not rows[name].problem]
        # Who runs after whom changes from round to round.
        shift = number % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            yield number, name
            run = partial(timed, loaders[name], rows[name], work, seconds)
            _attempt(name, loaders[name], rows[name], run, False, said)


def _attempt(
    name: str,
    loader: Loader,
    row: Row,
    run: Callable[[], None],
    may_refuse: bool,
    said: Callable[[str], None],
) -> None:
    """Runs something; what it raises is the row's problem and does not end the run of the others."""
    try:
        run()
    except Exception as error:
        refused = may_refuse and loader.peer and not isinstance(error, WrongValues)
        row.problem = f"{'refused' if refused else 'failed'}: {gist(error)}"
        said(f"{name}: {error}")
