"""Computes statistics of a plan, with a journal and a file for the result where that is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr_dali._moments import Moments, summary
from zarr_dali._rechunk import journal
from zarr_dali._rechunk.failing import explaining
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk.parts import Joint, Part, take_over
from zarr_dali._statistics.job import Job, Tick
from zarr_dali._statistics.plan import Part as ArrayPart
from zarr_dali._statistics.plan import Plan

if TYPE_CHECKING:
    from zarr_dali._dask.cluster import Cluster

Found = dict[str, dict[str, Any]]

KIND = "statistics"
_RUN = "run"
"""What a journal's header calls the run."""


def partial_of(output: Path) -> Path:
    """The folder of the journal, which is there until the output is complete."""
    return output.with_name(output.name + ".partial")


def compute(plan: Plan, tick: Tick, cluster: Cluster | None = None) -> Found:
    """Reads everything.

    Raises:
        RuntimeError: Something failed.
    """
    job = Job(plan, tick)
    job.read(cluster=cluster)
    return _entries(plan, job.found)


def compute_into(
    plan: Plan,
    tick: Tick,
    output: Path,
    *,
    resume: bool,
    overwrite: bool,
    cluster: Cluster | None = None,
) -> Found:
    """Reads what an earlier run has not, and writes all to a file.

    Raises:
        ValueError: Another run is writing it, it exists, or what an earlier run left does not fit the plan.
        RuntimeError: Something failed; the text says how to go on.
    """
    lock = Lock(partial_of(output), output, journal.holder)
    try:
        with explaining(f"{output} could not be written", lock.folder):
            log = Journal(lock)
            _begin(plan, lock, log, output, resume, overwrite)
            take_over(lock, log, _RUN)
            job = Job(plan.with_regions(log.header["regions"]), tick, lock.folder)
            job.read(log, cluster)
            found = _written(job, log, lock, output)
    finally:
        lock.release(None)
    return found


def compute_part(
    plan: Plan, tick: Tick, output: Path, part: Part, *, overwrite: bool
) -> Found | tuple[int, ...]:
    """Reads one part of the whole; the last one to end writes the file.

    Returns:
        The parts that have not ended; where there are none, what all have found.

    Raises:
        ValueError: As in `compute_into`, or another process has this part.
        RuntimeError: Something failed; the text says how to go on.
    """
    partial = partial_of(output)
    with explaining(f"{output} could not be written", partial):
        joint = Joint(
            partial,
            output,
            part,
            begin=lambda lock, log: _begin(plan, lock, log, output, True, overwrite),
            check=lambda header: _check_header(header, plan, partial),
            run=_RUN,
        )
        try:
            job = Job(plan.with_regions(joint.header["regions"]), tick, partial, part)
            joint.keep(job.regions)
            job.read(joint.own)
            log = joint.last({})
            if log is None:  # another part was the last one
                return json.loads(output.read_bytes())
            if isinstance(log, tuple):
                return log
            job = Job(job.plan, tick, partial)
            job.read(log)  # looks once more what has changed since
            return _written(job, log, joint.lock, output)
        finally:
            joint.close()


def _written(job: Job, log: Journal, lock: Lock, output: Path) -> Found:
    """Writes the result; nothing of the run is left beside it."""
    found = _entries(job.plan, job.found)
    journal.write_whole(output, (json.dumps(found, indent=2) + "\n").encode())
    for name in lock.entries():
        lock.remove(name)
    log.clear()
    return found


def _begin(plan: Plan, lock: Lock, log: Journal, output: Path, resume: bool, overwrite: bool) -> None:
    """Begins, or goes on with the regions of the run that is resumed."""
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
        _check_header(log.header, plan, lock.folder)
        log.begin(None)
        return
    for name in lock.entries():
        lock.remove(name)
    log.clear()
    regions = {part.key: part.cut.region for part in plan.each}
    log.begin({"kind": KIND, "fingerprint": plan.fingerprint, "regions": regions, _RUN: os.urandom(6).hex()})


def _check_header(header: Mapping[str, Any], plan: Plan, folder: Path) -> None:
    problem = None
    if header.get("version") != journal.VERSION:
        problem = "was begun by another release"
    elif header["fingerprint"] != plan.fingerprint:
        problem = "was begun with other arguments, or the store's metadata have changed since"
    if problem:
        raise ValueError(f"{folder} {problem}: it cannot be resumed; overwrite=True begins anew")


def _entries(plan: Plan, found: dict[tuple[str, int], Moments]) -> Found:
    """The result, array by array."""
    return {name or plan.shown: _entry(plan, name, parts, found) for name, parts in plan.parts.items()}


def _entry(
    plan: Plan, name: str, parts: tuple[ArrayPart, ...], found: dict[tuple[str, int], Moments]
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
    if parts and parts[0].is_unpacked is not None:
        entry["mask_and_scale"] = parts[0].is_unpacked
    if name in plan.labels:
        entry["labels"] = plan.labels[name]
    return entry


def _whole(part: ArrayPart, found: dict[tuple[str, int], Moments]) -> Moments:
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
