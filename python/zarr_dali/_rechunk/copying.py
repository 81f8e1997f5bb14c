"""Does what a plan says: threads copy regions, the journal notes them, and the copy gets its name."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarr_dali import _moments
from zarr_dali._rechunk import journal, metadata, publishing, reading, stamps
from zarr_dali._rechunk.array_plan import ArrayPlan
from zarr_dali._rechunk.failing import FinalError, explaining
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk.plan import (
    Plan,
    arrays_of,
    attributes_of,
    groups_of,
    with_regions,
)
from zarr_dali._rechunk.reading import ZARR_PYTHON, ZARRS, SourceArray
from zarr_dali._rechunk.regions import each_box, slices
from zarr_dali._rechunk.source import Source

PARTIAL = ".partial"
"""Ending of the working folder, which is there until the copy has its name."""

Tick = Callable[[str, int, int], None]
"""Told how far the work is: what is being done, bytes that are done, bytes in all."""


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
    """

    mask: bool
    count: bool
    verify: bool
    resume: bool
    overwrite: bool
    tick: Tick
    keep: Callable[[Done], None]


@dataclass(frozen=True)
class Done:
    """What was found on the way."""

    statistics: dict[str, dict[str, Any]] | None
    checksums: dict[str, str] | None
    resumed_bytes: int
    again_bytes: int = 0
    complete: bool = False
    """Whether nothing was left to do."""


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
    lock = Lock(partial_of(destination), destination, journal.holder)
    store = None
    try:
        # Warnings are of codecs and types that the specification of Zarr v3 does not name, and of arrays that
        # the zarrs package leaves to zarr-python.
        what = f"{plan.source} could not be copied to {destination}"
        with explaining(what, lock.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log = Journal(lock)
            publishing.recover(lock, log, destination)
            done = _begin(plan, task, source, lock, log)
            if done is None:
                store = lock.folder / log.header["store"]
                done = _run(plan, task, source, lock, log, store)
    finally:
        lock.release(store and store.name)
    return done


def _begin(plan: Plan, task: Task, source: Source, lock: Lock, log: Journal) -> Done | None:
    """Sees to what is in the way and begins or goes on; what was found where the copy is complete already.

    Raises:
        ValueError: Something is in the way that may not be replaced, or cannot be resumed.
    """
    destination, left = Path(plan.destination), log.header is not None
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
    header = {
        "fingerprint": plan.fingerprint,
        "regions": {array.name: array.cut.region for array in plan.arrays},
        "statistics": {"mask": task.mask} if task.count else None,
        "record": plan.arrays[0].name,
    }
    if left and task.resume:
        _check_header(log.header, header, lock.folder)
        log.begin(None)
        return None
    if left:
        for name in lock.entries():
            publishing.discard(lock, name)
        log.clear()
    log.begin(header | {"store": f"store-{os.urandom(6).hex()}"})
    return None


def _complete(plan: Plan, task: Task, source: Source, destination: Path) -> Done | str:
    """What was found by the run that wrote the destination; or why it is not the copy that is asked for."""
    record = publishing.record_in(destination / plan.arrays[0].name)
    if record is None:
        return "has no record of being this copy"
    if record["fingerprint"] != plan.fingerprint:
        return "is a copy with other arguments, or the source's metadata have changed since"
    if task.count and record["statistics"] != {"mask": task.mask}:
        return "was written without these statistics"
    job = _Job(with_regions(plan, record["regions"]), task, source, destination)
    if (problem := publishing.damage(destination, job.documents, record["files"])) is not None:
        return f"has been changed since it was written ({problem})"
    job.open()
    now = job.summary(job.look())
    for name, (stamped, files) in record["arrays"].items():
        if stamped != now[name][0]:
            return f'size or times of files of the source have changed since, in its array "{name}"'
        if files != now[name][1]:
            return f'has been changed since it was written, in its array "{name}"'
    checksums = job.verify() if task.verify else None
    done = Done(record["found"] if task.count else None, checksums, plan.bytes, complete=True)
    task.keep(done)
    return done


def _run(plan: Plan, task: Task, source: Source, lock: Lock, log: Journal, store: Path) -> Done:
    job = _Job(with_regions(plan, log.header["regions"]), task, source, store)
    with explaining(f"{store}: the metadata", lock.folder):
        metadata.write(job.documents, store)
    job.open()
    resumed, again = job.copy(log)
    checksums = job.verify() if task.verify else None
    publishing.sweep(store)
    job.check(lock, log)
    done = Done(job.statistics(log), checksums, resumed, again)
    record = {
        **{name: log.header[name] for name in ("fingerprint", "regions", "statistics")},
        "arrays": job.summary(log.done),
        "files": sum(region.files[0] for region in log.done.values()),
        "found": done.statistics,
    }
    with explaining(f"{plan.destination}: the copy could not be given its name", lock.folder):
        publishing.publish(lock, log, record, Path(plan.destination), task.overwrite)
    with explaining(f"{plan.destination} is complete, but what it replaced could not be deleted", None):
        publishing.tidy(lock, log)
    with explaining(
        f"{plan.destination} is complete, its statistics are not (resume=True writes them)", None
    ):
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


class _Array:
    """One array on both sides."""

    def __init__(
        self,
        plan: ArrayPlan,
        source: SourceArray,
        target: zarr.Array,
        proof: zarr.Array,
        folder: Path,
        rule: _moments.Rule | None,
        torn: bool,
    ) -> None:
        self.plan = plan
        self.source, self.target = source, target
        self.full = target.with_config({"write_empty_chunks": True})
        self.proof = proof
        """Target once more, read by zarr-python alone, so that no decoder vouches for itself."""
        self.folder = folder
        self.rule = rule
        self.torn = torn
        """Whether an earlier run may have left halves of files."""
        self.fill = target.fill_value

    def region(self, number: int) -> tuple[slice, ...]:
        """The region's part of the copy."""
        shape, extents = self.plan.shape, self.plan.cut.region
        place = np.unravel_index(number, [-(-a // b) for a, b in zip(shape, extents)]) if shape else ()
        return slices(shape, extents, [int(one) for one in place])

    def in_source(self, region: tuple[slice, ...]) -> tuple[slice, ...]:
        """Where a part of the copy lies in the source."""
        return tuple(
            slice(part.start + start, part.stop + start) for part, start in zip(region, self.plan.start)
        )

    def copy(self, number: int) -> journal.Region:
        """Copies a region; returns what is to be noted about it."""
        region = self.region(number)
        values, stamped = self.source.read(self.in_source(region))
        reading.trim()
        note = self.rule.moments(values).as_list() if self.rule else None
        for box in each_box(values.shape, self.plan.grid.write_box(self.plan.cut.region)):
            place = tuple(
                slice(part.start + whole.start, part.stop + whole.start) for part, whole in zip(box, region)
            )
            self._write(np.ascontiguousarray(values[box]).reshape(values[box].shape), place)
        del values
        reading.trim()
        return journal.Region(note, stamped, self._written(region))

    def look(self, number: int) -> journal.Region:
        """What would be noted about a region, as the files are now."""
        region = self.region(number)
        return journal.Region(None, self.source.now(self.in_source(region)), self._written(region))

    def where(self, number: int) -> str:
        """A region in words."""
        place = self.in_source(self.region(number))
        return f"{reading.in_words(self.plan.name, self.plan.dimensions, place)} of the source"

    def first_change(self, number: int, before: str, after: str) -> str:
        """The first key of the source that a region is copied from whose stamp is another one."""
        return stamps.first_change(self.source.keys(self.in_source(self.region(number))), before, after)

    def _written(self, region: tuple[slice, ...]) -> list[int]:
        """How many files a region has in the copy, and their bytes."""
        sizes = []
        for key in self._files(region):
            with suppress(FileNotFoundError):
                sizes.append(os.stat(self.folder / key).st_size)
        return [len(sizes), sum(sizes)]

    def _write(self, values: np.ndarray, place: tuple[slice, ...]) -> None:
        if self.torn:
            # Files at the array's end are read before they are written, which half a file would not survive.
            for key in self._files(place):
                (self.folder / key).unlink(missing_ok=True)
        numeric = values.dtype.kind in "biufc"
        empty, alike = (
            reading.compare(values, np.asarray(self.fill, values.dtype)) if numeric else (False, False)
        )
        if not empty:
            (self.full if alike else self.target)[place] = values

    def _files(self, place: tuple[slice, ...]) -> Iterator[str]:
        for coordinates in reading.coordinates_of(place, self.plan.unit):
            yield self.target.metadata.encode_chunk_key(coordinates)

    def compare(self, number: int) -> str:
        """Reads a region again from both sides; returns its checksum.

        Raises:
            FinalError: They are not the same.
        """
        region = self.region(number)
        wanted = _checksum(reading.native(np.asarray(self.source.proof[self.in_source(region)])))
        reading.trim()
        found = _checksum(reading.native(np.asarray(self.proof[region])))
        reading.trim()
        if wanted != found:
            raise FinalError(
                f"the copy differs from the source (checksums of values {found} and {wanted}): look for a "
                "codec that loses digits or for failing memory or storage, and copy again with "
                f"overwrite=True; it stays in {self.folder} until then"
            )
        return wanted


class _Job:
    """A plan's arrays on both sides.

    Args:
        plan: What is copied.
        task: What is asked for besides.
        source: What it is copied from.
        folder: The copy.
    """

    def __init__(self, plan: Plan, task: Task, source: Source, folder: Path) -> None:
        self.plan, self.task, self.folder = plan, task, folder
        self.arrays: list[_Array] = []
        self.source = source.anew()
        with reading.pipeline(ZARR_PYTHON):
            root = self.source.open()
            self._sources = arrays_of(root)
            self.documents = metadata.documents(plan, groups_of(root), self._sources)

    def open(self) -> None:
        """Opens the arrays, when the copy has its metadata."""
        self.arrays = [self._open(array, self._sources[array.name]) for array in self.plan.arrays]

    def _open(self, plan: ArrayPlan, wanted: zarr.Array) -> _Array:
        task, target_folder = self.task, self.folder / plan.name
        rule = None
        if task.count and not plan.coordinate and _moments.counts(plan.dtype):
            rule = _moments.Rule.of(attributes_of(wanted), plan.dtype, task.mask)
        with reading.pipeline(ZARR_PYTHON):
            proof = zarr.open_array(str(target_folder), mode="r", zarr_format=3)
        decoding = plan.cut.decoding
        source = SourceArray(self.source, plan.name, wanted, decoding)
        with reading.pipeline(ZARRS if source.by_zarrs else ZARR_PYTHON), reading.at_once(decoding):
            target = zarr.open_array(str(target_folder), mode="r+", zarr_format=3)
        return _Array(plan, source, target, proof, target_folder, rule, task.resume)

    def copy(self, log: Journal) -> tuple[int, int]:
        """Copies what is not noted, or has changed since; bytes that were done before, and of these again."""
        tick, total = self.task.tick, self.plan.bytes
        now = self.look() if log.done else {}
        counted = {array.plan.name for array in self.arrays if array.rule}
        changed = [
            key
            for key, region in log.done.items()
            # A run between may have been without statistics.
            if region[1:] != now[key][1:] or (key[0] in counted and region.note is None)
        ]
        again = self._bytes(changed)
        log.forget(changed)
        resumed = self._bytes(log.done)
        finished = resumed
        tick("copying", int(finished), total)
        try:
            for array in self.arrays:
                name = array.plan.name
                todo = [number for number in range(array.plan.regions) if (name, number) not in log.done]
                for number, region in _each(array, "copy", todo, self.folder.parent):
                    log.add(name, number, region)
                    finished += self._bytes([(name, number)])
                    tick("copying", int(finished), total)
        except BaseException:
            # Also after Ctrl-C or an error: what is finished need not be copied again.
            with suppress(RuntimeError):
                log.flush()
            raise
        log.flush()
        return int(resumed), int(again)

    def verify(self) -> dict[str, str]:
        """Reads both sides again; checksums of the values of each array."""
        checksums, finished, total = {}, 0.0, self.plan.bytes
        self.task.tick("verifying", 0, total)
        for array in self.arrays:
            parts = {}
            for number, digest in _each(array, "compare", range(array.plan.regions), self.folder.parent):
                parts[number] = digest
                finished += self._bytes([(array.plan.name, number)])
                self.task.tick("verifying", int(finished), total)
            checksums[array.plan.name] = journal.fingerprint([parts[number] for number in sorted(parts)])
        return checksums

    def look(self) -> dict[tuple[str, int], journal.Region]:
        """All regions as their files are now, on both sides."""
        return {
            (array.plan.name, number): region
            for array in self.arrays
            for number, region in _each(array, "look", range(array.plan.regions), self.folder.parent)
        }

    def check(self, lock: Lock, log: Journal) -> None:
        """Sees whether the copy is what was written, and the source what was read.

        Raises:
            RuntimeError: The source has changed, so that the copy mixes old values with new ones.
            FinalError: Somebody has changed the copy.
        """
        with explaining("the source's metadata", lock.folder):
            self._check_source()
        now = self.look()
        lock.check()
        for array in self.arrays:
            for number in range(array.plan.regions):
                key = array.plan.name, number
                before, after = log.done[key].stamps, now[key].stamps
                if before != after:
                    chunk = array.first_change(number, before, after)
                    changed = self.source.place(chunk)
                    raise RuntimeError(
                        f"{changed} has changed while the source was copied; the copy gets no name and stays "
                        f"in {lock.folder}: when nobody writes to the source any more, resume=True copies "
                        "again what has changed"
                    )
                if log.done[key].files != now[key].files:
                    raise FinalError(
                        f"{array.where(number)}: somebody else has changed files of the copy, in "
                        f"{array.folder}; resume=True copies them again"
                    )
        files = sum(region.files[0] for region in now.values())
        if (problem := publishing.damage(self.folder, self.documents, files)) is not None:
            raise FinalError(f"{problem}: somebody else has changed the copy; overwrite=True begins anew")

    def _check_source(self) -> None:
        """Raises RuntimeError where metadata of arrays are not those that were opened."""
        for array in self.arrays:
            place = self.source.place(array.plan.name)
            try:
                found = self.source.array(array.plan.name).metadata
            except (FileNotFoundError, ValueError) as error:
                raise FinalError(
                    f"{place} went away while it was copied ({error}); bring it back and go on "
                    "with resume=True"
                ) from error
            texts = [journal.fingerprint(one.to_dict()) for one in (found, array.source.array.metadata)]
            if texts[0] != texts[1]:
                raise FinalError(
                    f"{place}: the metadata have changed while the source was copied; begin "
                    "anew with overwrite=True"
                )

    def summary(self, regions: dict[tuple[str, int], journal.Region]) -> dict[str, list[Any]]:
        """Of each array a checksum of its source's stamps and of its files in the copy."""
        found = {}
        for array in self.arrays:
            parts = [regions[array.plan.name, number] for number in range(array.plan.regions)]
            found[array.plan.name] = [
                journal.fingerprint([part.stamps for part in parts]),
                journal.fingerprint([part.files for part in parts]),
            ]
        return found

    def _bytes(self, keys: Iterable[tuple[str, int]]) -> float:
        """Decoded bytes of regions, taken for equally large."""
        sizes = {array.name: array.bytes / max(1, array.regions) for array in self.plan.arrays}
        return sum(sizes[name] for name, _ in keys)

    def statistics(self, log: Journal) -> dict[str, dict[str, Any]] | None:
        """Of each variable; None where they were not asked for."""
        if not self.task.count:
            return None
        return {
            array.plan.name: array.rule.result(
                _moments.Moments(*log.done[array.plan.name, number].note)
                for number in range(array.plan.regions)
            )
            for array in self.arrays
            if array.rule
        }


def _each(array: _Array, what: str, numbers: Iterable[int], folder: Path) -> Iterator[tuple[int, Any]]:
    """Regions and what came of them, in the order in which they are finished, done by the array's workers."""
    with reading.at_once(array.plan.cut.decoding):
        yield from reading.each(getattr(array, what), numbers, array.plan.cut.workers, array.where, folder)


def _checksum(values: np.ndarray) -> str:
    """Of values in C order; of strings, of what they say."""
    if values.dtype.kind in "OT":
        text = json.dumps([values.shape, [str(one) for one in values.reshape(-1)]])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    digest = hashlib.blake2b(str(values.shape).encode(), digest_size=16)
    if values.size:
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    return digest.hexdigest()
