"""Does what a plan says: regions are copied, the journal notes them, and the copy gets its name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr_dali._rechunk import fence, journal, metadata, publishing
from zarr_dali._rechunk.array_copy import Sides
from zarr_dali._rechunk.failing import explaining
from zarr_dali._rechunk.job import Job, Tick
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk.parts import Joint, Part, take_over
from zarr_dali._rechunk.plan import Plan, with_regions
from zarr_dali._rechunk.source import Source

if TYPE_CHECKING:
    from zarr_dali._dask.cluster import Cluster

PARTIAL = ".partial"
"""Ending of the working folder, which is there until the copy has its name."""

_RUN = "store"
"""What a journal's header calls the store that is being written, which each run names anew."""


@dataclass(frozen=True)
class Task:
    """What is asked for besides what the plan says.

    Args:
        mask: Whether statistics leave out what CF attributes mask, and are of scaled values.
        count: Whether there are statistics.
        verify: Whether source and copy are read again and compared.
        resume: Whether what an earlier run finished is kept.
        overwrite: Whether a store at the destination is replaced when the copy is complete.
        tick: Is told of progress, in the thread that called.
        keep: Is given what was found, when the copy has its name.
        cluster: Where regions are copied; by default by threads of this process.
        part: The part of all regions that is copied; by default all of them.
    """

    mask: bool
    count: bool
    verify: bool
    resume: bool
    overwrite: bool
    tick: Tick
    keep: Callable[[Done], None]
    cluster: Cluster | None = None
    part: Part | None = None


@dataclass(frozen=True)
class Done:
    """What was found on the way."""

    statistics: dict[str, dict[str, Any]] | None
    checksums: dict[str, str] | None
    resumed_bytes: int
    again_bytes: int = 0
    complete: bool = False
    """Whether nothing was left to do."""
    waiting: tuple[int, ...] = ()
    """Parts that have not ended; then the copy has no name yet."""


def partial_of(destination: Path) -> Path:
    """The working folder, where a copy lies until it is complete."""
    return destination.with_name(destination.name + PARTIAL)


def copy(plan: Plan, task: Task, source: Source) -> Done:
    """Writes the copy of a source.

    Raises:
        ValueError: Another run is writing it, something is in the way, or what an earlier run left does not
            fit the plan.
        RuntimeError: Something failed while copying; the text says how to go on.
    """
    destination = Path(plan.destination)
    partial = partial_of(destination)
    # Warnings are of codecs and types that the specification of Zarr v3 does not name, and of arrays that
    # the zarrs package leaves to zarr-python.
    what = f"{plan.source} could not be copied to {destination}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if task.part is not None:
            with explaining(what, partial):
                return _copy_part(plan, task, source, partial)
        lock, store = Lock(partial, destination, journal.holder), None
        try:
            with explaining(what, lock.folder):
                log = Journal(lock)
                done = _begin(plan, task, source, lock, log)
                if done is None:
                    store = lock.folder / log.header[_RUN]
                    done = _run(plan, task, source, lock, log, store)
        finally:
            lock.release(store and store.name)
        return done


def _copy_part(plan: Plan, task: Task, source: Source, partial: Path) -> Done:
    """Copies one part; the last one to end gives the copy its name."""
    destination = Path(plan.destination)
    task = replace(task, resume=True)  # other parts may have begun
    header, store = _header(plan, task), None
    joint = Joint(
        partial,
        destination,
        task.part,
        begin=lambda lock, log: _begin(plan, task, source, lock, log),
        check=lambda found: _check_header(found, header, partial),
        run=_RUN,
    )
    try:
        if joint.complete is not None:
            return joint.complete
        store = partial / joint.header[_RUN]
        job = _job(plan, task, source, joint.header, store)
        joint.keep(job.regions)
        resumed, again = job.copy(joint.own)
        digests = job.verify() if task.verify else {}
        log = joint.last({"digests": [[*key, digest] for key, digest in digests.items()]})
        if log is None:
            done = _complete(plan, task, source, destination)
            if not isinstance(done, Done):
                raise RuntimeError(f"{destination} {done}: another process has replaced it")
            return replace(done, resumed_bytes=resumed)
        if isinstance(log, tuple):
            return Done(None, None, resumed, again, waiting=log)
        ended = [found for one in joint.ended for found in one["digests"]]
        digests = {(name, number): digest for name, number, digest in ended}
        return _end(job, task, joint.lock, log, Done(None, job.checksums(digests), resumed, again))
    finally:
        joint.close(store and store.name)


def _begin(plan: Plan, task: Task, source: Source, lock: Lock, log: Journal) -> Done | None:
    """Sees to what is in the way and begins or goes on; what was found where the copy is complete already.

    Raises:
        ValueError: Something is in the way that may not be replaced, or cannot be resumed.
    """
    destination = Path(plan.destination)
    fence.remove(lock.folder)
    publishing.recover(lock, log, destination)
    left = log.header is not None
    if left and not (task.resume or task.overwrite):
        raise ValueError(
            f"{lock.folder} is left of an earlier run: resume=True goes on, overwrite=True begins anew"
        )
    taken = os.path.lexists(destination) and not (destination.is_dir() and not any(destination.iterdir()))
    if taken and not left and task.resume:
        done = _complete(plan, task, source, destination)
        if isinstance(done, Done):
            return done
        problem = f" and {done}"
    else:
        problem = ""
    if taken and not task.overwrite:
        raise ValueError(
            f"{destination} exists{problem}; choose another name, or overwrite=True to replace it"
        )
    if taken:
        publishing.check_replaceable(destination)
    header = _header(plan, task)
    if left and task.resume:
        _check_header(log.header, header, lock.folder)
        log.begin(None)
        if task.part is None:
            take_over(lock, log, _RUN)
        return None
    if left:
        for name in lock.entries():
            publishing.discard(lock, name)
        log.clear()
    log.begin(header | {_RUN: f"store-{os.urandom(6).hex()}"})
    return None


def _header(plan: Plan, task: Task) -> dict[str, Any]:
    """What is asked for."""
    return {
        "fingerprint": plan.fingerprint,
        "regions": {array.name: array.cut.region for array in plan.arrays},
        "statistics": {"mask": task.mask} if task.count else None,
        "record": plan.arrays[0].name,
    }


def _complete(plan: Plan, task: Task, source: Source, destination: Path) -> Done | str:
    """What was found by the run that wrote the destination; or why it is not the copy that is asked for."""
    record = publishing.record_in(destination / plan.arrays[0].name)
    if record is None:
        return "has no record of being this copy"
    if record["fingerprint"] != plan.fingerprint:
        return "is a copy with other arguments, or the source's metadata have changed since"
    if task.count and record["statistics"] != {"mask": task.mask}:
        return "was written without these statistics"
    sides = Sides(source.anew(), destination, task.count, task.mask, torn=False)
    job = Job(with_regions(plan, record["regions"]), sides, task.tick)
    if (problem := publishing.damage(destination, job.documents, record["files"])) is not None:
        return f"has been changed since it was written ({problem})"
    job.open()
    now = job.summary(job.look())
    for name, (stamped, files) in record["arrays"].items():
        if stamped != now[name][0]:
            return f'size or times of files of the source have changed since, in its array "{name}"'
        if files != now[name][1]:
            return f'has been changed since it was written, in its array "{name}"'
    checksums = job.checksums(job.verify()) if task.verify else None
    done = Done(record["found"] if task.count else None, checksums, plan.bytes, complete=True)
    task.keep(done)
    return done


def _job(plan: Plan, task: Task, source: Source, header: Mapping[str, Any], store: Path) -> Job:
    """What is to be done, with the regions of the run that began it."""
    together = task.cluster is not None or task.part is not None
    # A worker that is lost leaves halves of files, too.
    torn = task.resume or task.cluster is not None
    sides = Sides(source.anew(), store, task.count, task.mask, torn, together)
    job = Job(with_regions(plan, header["regions"]), sides, task.tick, task.part)
    with explaining(f"{store}: the metadata", store.parent):
        metadata.write(job.documents, store)
    job.open()
    return job


def _run(plan: Plan, task: Task, source: Source, lock: Lock, log: Journal, store: Path) -> Done:
    job = _job(plan, task, source, log.header, store)
    with job.on(task.cluster):
        resumed, again = job.copy(log)
        checksums = job.checksums(job.verify()) if task.verify else None
    return _end(job, task, lock, log, Done(None, checksums, resumed, again))


def _end(job: Job, task: Task, lock: Lock, log: Journal, done: Done) -> Done:
    """Gives the copy its name; what was found with the statistics."""
    destination = Path(job.plan.destination)
    publishing.sweep(job.folder)
    job.check(lock, log)
    done = replace(done, statistics=job.statistics(log))
    record = {
        **{name: log.header[name] for name in ("fingerprint", "regions", "statistics")},
        "arrays": job.summary(log.done),
        "files": sum(region.files[0] for region in log.done.values()),
        "found": done.statistics,
    }
    with explaining(f"{destination}: the copy could not be given its name", lock.folder):
        publishing.publish(lock, log, record, destination, task.overwrite)
    with explaining(f"{destination} is complete, but what it replaced could not be deleted", None):
        publishing.tidy(lock, log)
    with explaining(f"{destination} is complete, its statistics are not (resume=True writes them)", None):
        task.keep(done)
    return done


def _check_header(stored: dict[str, Any], header: dict[str, Any], folder: Path) -> None:
    problem = None
    if stored.get("version") != journal.VERSION:
        problem = "was begun by another release"
    elif stored["fingerprint"] != header["fingerprint"]:
        problem = "was begun with other arguments, or the source's metadata have changed since"
    elif header["statistics"] and stored["statistics"] != header["statistics"]:
        problem = "was begun without these statistics"
    if problem:
        raise ValueError(f"{folder} {problem}: it cannot be resumed; overwrite=True begins anew")
