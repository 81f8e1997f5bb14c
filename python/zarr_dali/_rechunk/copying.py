"""Does what a plan says: threads copy regions, the journal notes them, a rename makes the store visible."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarr_dali._rechunk import journal, statistics
from zarr_dali._rechunk.plan import (
    ZARR_PYTHON,
    ZARRS,
    ArrayPlan,
    Plan,
    arrays_of,
    attributes_of,
    dimensions_of,
    groups_of,
    open_source,
    with_regions,
)
from zarr_dali._rechunk.regions import each_box, slices

PARTIAL = ".partial"
"""Ending of the folder that is written until the copy is complete."""
_HINTS = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EACCES: "a file may not be read or written; change its permissions",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
}

_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)

Tick = Callable[[str, int, int], None]
"""Told how far the work is: what is being done, bytes that are done, bytes in all."""


@dataclass(frozen=True)
class Done:
    """What was found on the way."""

    statistics: dict[str, dict[str, Any]] | None
    checksums: dict[str, str] | None
    resumed_bytes: int


def partial_of(destination: Path) -> Path:
    """Where a copy lies until it is complete."""
    return destination.with_name(destination.name + PARTIAL)


def copy(
    plan: Plan,
    *,
    mask: bool,
    count: bool,
    verify: bool,
    resume: bool,
    overwrite: bool,
    tick: Tick,
    keep: Callable[[Done], None],
) -> Done:
    """Writes the copy.

    Args:
        plan: What to write.
        mask: Whether statistics leave out what CF attributes mask, and are of scaled values.
        count: Whether there are statistics.
        verify: Whether source and copy are read again and compared.
        resume: Whether what an earlier run finished is kept.
        overwrite: Whether a store at the destination is replaced when the copy is complete.
        tick: Is told of progress, in the thread that called.
        keep: Is given what was found, before the copy gets its name.

    Raises:
        ValueError: What an earlier run left does not fit the plan.
        RuntimeError: Something failed while copying; the text says how to go on.
    """
    destination = Path(plan.destination)
    folder = partial_of(destination)
    if not resume and folder.exists():
        _remove(folder)
    destination.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    regions = {array.name: array.cut.region for array in plan.arrays}
    noted = {"mask": mask} if count else None
    header = {"fingerprint": plan.fingerprint, "regions": regions, "statistics": noted}
    try:
        log = journal.Journal(folder, header)
    except BlockingIOError as error:
        raise ValueError(f"{folder}: another process is writing it") from error
    try:
        _check_header(log.header, header, folder)
        plan = with_regions(plan, log.header["regions"])
        # Warnings are of codecs and types that the specification of Zarr v3 does not name, and of arrays that
        # the zarrs package leaves to zarr-python.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = _copy(plan, folder, log, resume, mask=mask, count=count, verify=verify, tick=tick)
            if plan.consolidated:
                zarr.consolidate_metadata(str(folder))
        keep(done)
        _publish(folder, destination, overwrite)
    finally:
        log.close()
    return done


def finish(plan: Plan) -> bool:
    """Whether a run was stopped after its copy had got its name, of which nothing is left to do.

    Raises:
        ValueError: It was a run with other arguments.
    """
    destination = Path(plan.destination)
    header = journal.header_of(destination)
    if header is None or partial_of(destination).exists():
        return False
    if header.get("fingerprint") != plan.fingerprint:
        raise ValueError(f"{destination} is a copy with other arguments; overwrite=True replaces it")
    (destination / journal.NAME).unlink()
    return True


def looks_like_store(folder: Path) -> bool:
    """Whether a folder is a Zarr store, or empty, and not something else that a slip would delete."""
    names = ("zarr.json", ".zgroup", ".zarray", ".zmetadata", journal.NAME)
    return folder.is_dir() and (any((folder / name).exists() for name in names) or not any(folder.iterdir()))


def _remove(folder: Path) -> None:
    if not looks_like_store(folder):
        raise ValueError(f"{folder} is no Zarr store and is left alone; remove it or choose another name")
    shutil.rmtree(folder)


def _publish(folder: Path, destination: Path, overwrite: bool) -> None:
    if overwrite and destination.exists():
        _remove(destination)
    os.rename(folder, destination)
    (destination / journal.NAME).unlink()


def _check_header(stored: dict[str, Any], header: dict[str, Any], folder: Path) -> None:
    problem = None
    if stored.get("version", journal.VERSION) != journal.VERSION:
        problem = "was begun by another release"
    elif stored["fingerprint"] != header["fingerprint"]:
        problem = "was begun with other arguments, or the source's metadata have changed since"
    elif header["statistics"] and stored["statistics"] != header["statistics"]:
        problem = "was begun without these statistics"
    if problem:
        raise ValueError(f"{folder} {problem}: it cannot be resumed; overwrite=True begins anew")


class _DiffersError(RuntimeError):
    """Source and copy are not the same."""


class _Array:
    """One array on both sides."""

    def __init__(
        self,
        plan: ArrayPlan,
        source: zarr.Array,
        target: zarr.Array,
        proof: tuple[zarr.Array, zarr.Array],
        folder: Path,
        rule: statistics.Rule | None,
        torn: bool,
    ) -> None:
        self.plan = plan
        self.source, self.target = source, target
        self.full = target.with_config({"write_empty_chunks": True})
        self.proof = proof
        """Source and target once more, read by zarr-python alone, so that no decoder vouches for itself."""
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

    def copy(self, number: int) -> list[float] | None:
        """Copies a region; returns what is to be noted about it."""
        region = self.region(number)
        values = _native(np.asarray(self.source[self.in_source(region)]))
        _trim()
        note = self.rule.moments(values).as_list() if self.rule else None
        for box in each_box(values.shape, self.plan.grid.write_box(self.plan.cut.region)):
            place = tuple(
                slice(part.start + whole.start, part.stop + whole.start) for part, whole in zip(box, region)
            )
            self._write(np.ascontiguousarray(values[box]).reshape(values[box].shape), place)
        del values
        _trim()
        return note

    def _write(self, values: np.ndarray, place: tuple[slice, ...]) -> None:
        if self.torn:
            # Files at the array's end are read before they are written, which half a file would not survive.
            for key in self._files(place):
                (self.folder / key).unlink(missing_ok=True)
        numeric = values.dtype.kind in "biufc"
        empty, alike = _compare(values, np.asarray(self.fill, values.dtype)) if numeric else (False, False)
        if not empty:
            (self.full if alike else self.target)[place] = values

    def _files(self, place: tuple[slice, ...]) -> Iterator[str]:
        ranges = [
            range(part.start // unit, -(-part.stop // unit)) for part, unit in zip(place, self.plan.unit)
        ]
        for index in np.ndindex(*map(len, ranges)):
            coordinates = tuple(steps[i] for steps, i in zip(ranges, index))
            yield self.target.metadata.encode_chunk_key(coordinates)

    def compare(self, number: int) -> str:
        """Reads a region again from both sides; returns its checksum.

        Raises:
            _DiffersError: They are not the same.
        """
        region = self.region(number)
        source, target = self.proof
        wanted = _checksum(_native(np.asarray(source[self.in_source(region)])))
        _trim()
        found = _checksum(_native(np.asarray(target[region])))
        _trim()
        if wanted != found:
            raise _DiffersError(
                f"the copy differs from the source (checksums of values {found} and {wanted}): look for a "
                "codec that loses digits or for failing memory or storage, and copy again with overwrite=True"
            )
        return wanted


def _copy(
    plan: Plan,
    folder: Path,
    log: journal.Journal,
    resume: bool,
    *,
    mask: bool,
    count: bool,
    verify: bool,
    tick: Tick,
) -> Done:
    arrays = _open(plan, folder, mask, count, torn=resume)
    total = plan.bytes
    sizes = {array.plan.name: array.plan.bytes / max(1, array.plan.regions) for array in arrays}
    resumed = sum(sizes[name] for name, _ in log.done)
    finished = resumed
    tick("copying", int(finished), total)
    try:
        for array in arrays:
            name = array.plan.name
            todo = [number for number in range(array.plan.regions) if (name, number) not in log.done]
            with _decoding(array.plan):
                for number, note in _each(array, "copy", todo, folder):
                    log.add(name, number, note)
                    finished += sizes[name]
                    tick("copying", int(finished), total)
    finally:
        # Also after Ctrl-C or an error: what is finished need not be copied again.
        _flush(log)
    checksums = _verify(arrays, folder, total, tick) if verify else None
    found = None
    if count:
        found = {
            array.plan.name: array.rule.result(
                statistics.Moments(*log.done[array.plan.name, number]) for number in range(array.plan.regions)
            )
            for array in arrays
            if array.rule
        }
    return Done(found, checksums, int(resumed))


def _flush(log: journal.Journal) -> None:
    try:
        log.flush()
    except OSError as error:
        raise _explained(error, "the journal", Path(log._file.name).parent) from error


def _verify(arrays: list[_Array], folder: Path, total: int, tick: Tick) -> dict[str, str]:
    checksums, finished = {}, 0.0
    tick("verifying", 0, total)
    for array in arrays:
        parts = {}
        with _decoding(array.plan):
            for number, digest in _each(array, "compare", range(array.plan.regions), folder):
                parts[number] = digest
                finished += array.plan.bytes / array.plan.regions
                tick("verifying", int(finished), total)
        checksums[array.plan.name] = journal.fingerprint([parts[number] for number in sorted(parts)])
    return checksums


def _each(array: _Array, what: str, numbers: Iterable[int], folder: Path) -> Iterator[tuple[int, Any]]:
    """Regions and what came of them, in the order in which they are finished, done by the array's workers."""
    waiting: dict[Future, int] = {}
    numbers = iter(numbers)
    pool = ThreadPoolExecutor(array.plan.cut.workers, thread_name_prefix="zarr rechunk")
    try:
        while True:
            while len(waiting) < 2 * array.plan.cut.workers and (number := next(numbers, None)) is not None:
                waiting[pool.submit(getattr(array, what), number)] = number
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number = waiting.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    raise _explained(error, _where(array, number), folder) from error
                yield number, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _where(array: _Array, number: int) -> str:
    named = zip(array.plan.dimensions, array.region(number), array.plan.start)
    parts = ", ".join(f"{name}={part.start + start}:{part.stop + start}" for name, part, start in named)
    return (
        f'array "{array.plan.name}", {parts} of the source' if array.plan.name else f"{parts} of the source"
    )


def _explained(error: Exception, where: str, folder: Path) -> RuntimeError:
    """An error with the place and the way on. The zarrs package has errno in its texts only."""
    if isinstance(error, _DiffersError):
        return RuntimeError(f"{where}: {error}; it stays in {folder} until then")
    number = getattr(error, "errno", None)
    if number is None and (match := re.search(r"os error (\d+)", str(error))):
        number = int(match[1])
    hint = f"; {_HINTS[number]}" if number in _HINTS else ""
    return RuntimeError(f"{where}: {error}{hint}; what is finished stays in {folder}, resume=True goes on")


@contextmanager
def _pipeline(path: str) -> Iterator[None]:
    """Arrays that are opened inside decode and encode with a codec pipeline."""
    with zarr.config.set({"codec_pipeline.path": path, "codec_pipeline.strict": False}):
        yield


@contextmanager
def _decoding(plan: ArrayPlan) -> Iterator[None]:
    """So many chunks of an array are decoded at once by each of its workers as there is memory for."""
    most = plan.cut.decoding
    with zarr.config.set({"async.concurrency": most, "codec_pipeline.chunk_concurrent_maximum": most}):
        yield


def _open(plan: Plan, folder: Path, mask: bool, count: bool, torn: bool) -> list[_Array]:
    """Opens the source and makes the destination's groups and arrays, as far as they are not there."""
    with _pipeline(ZARR_PYTHON):
        root = open_source(Path(plan.source))
        sources = arrays_of(root)
        for name, group in groups_of(root).items():
            inside = {array.name for array in plan.arrays}
            if name == "" or any(one.startswith(f"{name}/") for one in inside):
                made = zarr.open_group(str(folder / name), mode="a", zarr_format=3)
                made.attrs.put(dict(group.attrs.asdict()))
    opened = []
    for array in plan.arrays:
        source, target_folder = sources[array.name], folder / array.name
        with _pipeline(ZARR_PYTHON):
            if not (target_folder / "zarr.json").exists():
                _create(array, source, target_folder)
        rule = None
        if count and not array.coordinate and statistics.counts(array.dtype):
            rule = statistics.Rule.of(attributes_of(source), array.dtype, mask)
        with _pipeline(ZARR_PYTHON):
            target = zarr.open_array(str(target_folder), mode="r", zarr_format=3)
        proof = source, target
        with _pipeline(ZARRS if _zarrs_takes(source, array) else ZARR_PYTHON), _decoding(array):
            source = zarr.open_array(str(Path(plan.source, array.name)), mode="r")
            target = zarr.open_array(str(target_folder), mode="r+", zarr_format=3)
        opened.append(_Array(array, source, target, proof, target_folder, rule, torn))
    return opened


def _create(plan: ArrayPlan, source: zarr.Array, folder: Path) -> None:
    kind = plan.dtype
    names = dimensions_of(source)
    named = [None if name == f"dim_{axis}" else name for axis, name in enumerate(names)]
    fill = source.metadata.fill_value
    zarr.create_array(
        str(folder),
        shape=plan.shape,
        dtype=source.metadata.dtype if kind.kind in "OTSUV" else kind.newbyteorder("="),
        chunks=plan.chunk,
        shards=plan.shard,
        zarr_format=3,
        attributes=attributes_of(source),
        dimension_names=named if any(named) else None,
        **({} if fill is None else {"fill_value": fill}),
        **plan.codecs.arguments(),
    )


def _zarrs_takes(source: zarr.Array, plan: ArrayPlan) -> bool:
    """Whether the zarrs package is there and reads such an array; what it does not, zarr-python does.

    It takes only C order; of big-endian complex numbers zarrs 0.2.3 swaps real and imaginary parts.
    """
    try:
        import zarrs  # noqa: F401
    except ImportError:
        return False
    numeric = plan.dtype.kind in "biuf" and plan.dtype.isnative
    return numeric and source.order == "C" and source.metadata.fill_value is not None


def _trim() -> None:
    """Gives freed memory back, of which glibc otherwise keeps buffers of up to 32 MiB for each thread."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def _native(values: np.ndarray) -> np.ndarray:
    if values.dtype.isnative:
        return values
    native = values.dtype.newbyteorder("=")
    if values.dtype.kind in "UV" or not values.flags.writeable:
        return values.astype(native)
    return values.byteswap(inplace=True).view(native)


def _compare(values: np.ndarray, fill: np.ndarray) -> tuple[bool, bool]:
    """Whether all numbers have the bits of the fill value, and whether some are like it with other bits.

    Libraries leave chunks out that are equal to the fill value, and a NaN is like any other to some of them.
    """
    kind = values.dtype.kind
    if kind == "c":
        part = f"f{values.dtype.itemsize // 2}"
        whole = np.ascontiguousarray(values).reshape(-1).view(part)
        both = fill.reshape(1).view(part)
        pairs = [_compare(whole[i::2], both[i]) for i in (0, 1)]
        return all(empty for empty, _ in pairs), any(alike for _, alike in pairs)
    bits = f"u{values.dtype.itemsize}"
    if kind != "f":
        same = bool(values.flat[0] == fill) and bool(np.all(values == fill))
        return same, False
    if values.dtype.itemsize > 8:  # no integer has so many bits
        return False, True
    equal = np.isnan(values) if np.isnan(fill) else values == fill
    alike = int(np.count_nonzero(equal))
    exact = int(np.count_nonzero(values.view(bits) == fill.view(bits))) if alike else 0
    return exact == values.size, alike != exact


def _checksum(values: np.ndarray) -> str:
    """Of values in C order; of strings, of what they say."""
    if values.dtype.kind in "OT":
        text = json.dumps([values.shape, [str(one) for one in values.reshape(-1)]])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    digest = hashlib.blake2b(str(values.shape).encode(), digest_size=16)
    if values.size:
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    return digest.hexdigest()
