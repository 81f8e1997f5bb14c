"""Reads the regions of a plan, adds up what is in them, and keeps a journal of it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from zarr_dali._moments import Moments, summary
from zarr_dali._rechunk import journal, reading
from zarr_dali._rechunk.failing import explaining
from zarr_dali._rechunk.journal import Journal, Region
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk.reading import SourceArray
from zarr_dali._statistics.plan import Part, Plan

Tick = Callable[[str, int, int], None]
Found = dict[str, dict[str, Any]]

KIND = "statistics"


def partial_of(output: Path) -> Path:
    """The folder of the journal, which is there until the output is complete."""
    return output.with_name(output.name + ".partial")


def compute(plan: Plan, tick: Tick) -> Found:
    """Reads everything.

    Raises:
        RuntimeError: Something failed.
    """
    return _entries(plan, _Job(plan, None, None).run(tick))


def compute_into(plan: Plan, tick: Tick, output: Path, *, resume: bool, overwrite: bool) -> Found:
    """Reads what an earlier run has not, and writes all to a file.

    Raises:
        ValueError: Another run is writing it, it exists, or what an earlier run left does not fit the plan.
        RuntimeError: Something failed; the text says how to go on.
    """
    lock = Lock(partial_of(output), output, journal.holder)
    try:
        with explaining(f"{output} could not be written", lock.folder):
            log = Journal(lock)
            plan = _begun(plan, log, lock, output, resume, overwrite)
            found = _entries(plan, _Job(plan, log, lock.folder).run(tick))
            journal.write_whole(output, (json.dumps(found, indent=2) + "\n").encode())
            log.clear()
    finally:
        lock.release(None)
    return found


def _begun(plan: Plan, log: Journal, lock: Lock, output: Path, resume: bool, overwrite: bool) -> Plan:
    """Begins or goes on; the plan with the regions of the run that is resumed."""
    if log.header is not None and log.header.get("kind") != KIND:
        raise ValueError(f"{lock.folder} is of another command; choose another name for {output}")
    if log.header is not None and not (resume or overwrite):
        raise ValueError(
            f"{lock.folder} is left of an earlier run: resume=True goes on, overwrite=True begins anew"
        )
    going_on = log.header is not None and resume
    if os.path.lexists(output) and not (overwrite or going_on):
        raise ValueError(f"{output} exists; choose another name, or overwrite=True to replace it")
    if going_on:
        problem = None
        if log.header.get("version") != journal.VERSION:
            problem = "was begun by another release"
        elif log.header["fingerprint"] != plan.fingerprint:
            problem = "was begun with other arguments, or the store's metadata have changed since"
        if problem:
            raise ValueError(f"{lock.folder} {problem}: it cannot be resumed; overwrite=True begins anew")
        log.begin(None)
        return plan.with_regions(log.header["regions"])
    log.clear()
    regions = {part.key: part.cut.region for part in plan.each}
    log.begin({"kind": KIND, "fingerprint": plan.fingerprint, "regions": regions})
    return plan


class _Job:
    """A plan's arrays, and what was found in their regions.

    Args:
        plan: What is read.
        log: Where regions are noted, if they are.
        folder: The journal's.
    """

    def __init__(self, plan: Plan, log: Journal | None, folder: Path | None) -> None:
        self.plan, self.log, self.folder = plan, log, folder
        self.sources = [source.anew() for source in plan.sources]
        self.found: dict[tuple[str, int], Moments] = {}
        with warnings.catch_warnings():
            # Of arrays that the zarrs package leaves to zarr-python.
            warnings.simplefilter("ignore")
            self.arrays = {
                part.key: SourceArray(self.sources[part.store], part.name, part.array, part.cut.decoding)
                for part in plan.each
            }

    def run(self, tick: Tick) -> dict[tuple[str, int], Moments]:
        """What was found in each region."""
        if self.log is not None:
            self._take_up(self.log)
        total, finished = self.plan.bytes, 0.0
        for part in self.plan.each:
            finished += (
                part.bytes
                * sum((part.key, n) in self.found for n in range(part.regions))
                / max(1, part.regions)
            )
        tick("reading", int(finished), total)
        try:
            for part in self.plan.each:
                todo = [number for number in range(part.regions) if (part.key, number) not in self.found]
                for _ in self._read(part, todo):
                    finished += part.bytes / part.regions
                    tick("reading", int(finished), total)
        except BaseException:
            # Also after Ctrl-C or an error: what is finished need not be read again.
            if self.log is not None:
                with suppress(RuntimeError):
                    self.log.flush()
            raise
        if self.log is not None:
            self.log.flush()
        return self.found

    def _take_up(self, log: Journal) -> None:
        """Keeps what an earlier run has noted, besides regions whose chunks have changed since."""
        changed = []
        for part in self.plan.each:
            noted = [number for number in range(part.regions) if (part.key, number) in log.done]
            array = self.arrays[part.key]
            for number, now in self._each(
                part, noted, lambda n, array=array, part=part: array.now(part.region(n))
            ):
                region = log.done[part.key, number]
                if region.stamps == now:
                    self.found[part.key, number] = Moments(*region.note)
                else:
                    changed.append((part.key, number))
        log.forget(changed)

    def _read(self, part: Part, numbers: list[int]) -> Any:
        """Reads regions; gives the number of each when it is done."""
        array = self.arrays[part.key]

        def work(number: int) -> tuple[Moments, str]:
            values, stamps = array.read(part.region(number))
            moments = part.rule.moments(values, part.axis)
            del values
            reading.trim()
            return moments, stamps

        for number, (moments, stamps) in self._each(part, numbers, work):
            self.found[part.key, number] = moments
            if self.log is not None:
                self.log.add(part.key, number, Region(moments.as_list(), stamps, []))
            yield number

    def _each(self, part: Part, numbers: list[int], work: Callable[[int], Any]) -> Any:
        def where(number: int) -> str:
            words = reading.in_words(part.name, part.dimensions, part.region(number))
            return f"{self.plan.sources[part.store]}: {words}"

        with reading.at_once(part.cut.decoding):
            yield from reading.each(work, numbers, part.cut.workers, where, self.folder)


def _entries(plan: Plan, found: dict[tuple[str, int], Moments]) -> Found:
    """The result, array by array."""
    return {name or plan.shown: _entry(plan, name, parts, found) for name, parts in plan.parts.items()}


def _entry(
    plan: Plan, name: str, parts: tuple[Part, ...], found: dict[tuple[str, int], Moments]
) -> dict[str, Any]:
    # In the order of the regions and not in that in which they came, so that all runs give the same digits.
    wholes = [_whole(part, found) for part in parts]
    along = plan.by in parts[0].dimensions if parts else False
    side_by_side = along and plan.by == plan.joined
    total = Moments.concatenated(wholes) if side_by_side else sum(wholes[1:], wholes[0])
    values = summary(total)
    entry: dict[str, Any] = {"dim": plan.by} if along else {}
    for key in ("mean", "std", "min", "max", "count"):
        entry[key] = values[key]
    if along:
        entry["missing"] = [nan + masked for nan, masked in zip(values["nan"], values["masked"])]
    else:
        entry["missing"] = values["nan"] + values["masked"]
    entry["infinite"] = values["infinite"]
    if name in plan.labels:
        entry["labels"] = plan.labels[name]
    return entry


def _whole(part: Part, found: dict[tuple[str, int], Moments]) -> Moments:
    """Of all values of a part, scale and offset applied."""
    if part.axis is None:
        total = sum((found[part.key, number] for number in range(part.regions)), Moments())
        return part.rule.scaled(total)
    bands: dict[int, Moments] = {}
    for number in range(part.regions):
        start = part.region(number)[part.axis].start
        bands[start] = bands.get(start, Moments()) + found[part.key, number]
    length = part.place[part.axis].stop - part.place[part.axis].start
    if not bands:
        return part.rule.scaled(Moments.none(length))
    return part.rule.scaled(Moments.concatenated([bands[start] for start in sorted(bands)]))
