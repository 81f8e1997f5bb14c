"""One array on both sides: its regions are copied, looked at and compared."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

from zarr_dali import _moments
from zarr_dali._rechunk import journal, reading, stamps
from zarr_dali._rechunk.array_plan import ArrayPlan
from zarr_dali._rechunk.failing import FinalError
from zarr_dali._rechunk.plan import attributes_of
from zarr_dali._rechunk.reading import ZARR_PYTHON, ZARRS, SourceArray
from zarr_dali._rechunk.regions import each_box, slices
from zarr_dali._rechunk.source import Source


@dataclass(frozen=True)
class Sides:
    """Where arrays are copied from and to; can be pickled."""

    source: Source
    folder: Path
    """The copy, which has its metadata."""
    count: bool
    """Whether there are statistics."""
    mask: bool
    """Whether these leave out what CF attributes mask, and are of scaled values."""
    torn: bool
    """Whether an earlier run may have left halves of files."""
    together: bool = False
    """Whether other machines may write to the copy, too."""

    def open(self, plan: ArrayPlan, wanted: zarr.Array) -> ArrayCopy:
        """An array on both sides.

        Args:
            plan: How it is copied.
            wanted: It, as zarr-python reads it from the source.
        """
        rule, folder = None, self.folder / plan.name
        if self.count and not plan.coordinate and _moments.counts(plan.dtype):
            rule = _moments.Rule.of(attributes_of(wanted), plan.dtype, self.mask)
        with reading.pipeline(ZARR_PYTHON):
            proof = zarr.open_array(str(folder), mode="r", zarr_format=3)
        decoding = plan.cut.decoding
        source = SourceArray(self.source, plan.name, wanted, decoding)
        with reading.pipeline(ZARRS if source.by_zarrs else ZARR_PYTHON), reading.at_once(decoding):
            target = zarr.open_array(str(folder), mode="r+", zarr_format=3)
        return ArrayCopy(plan, source, target, proof, folder, rule, self)


class ArrayCopy:
    """One array on both sides."""

    def __init__(
        self,
        plan: ArrayPlan,
        source: SourceArray,
        target: zarr.Array,
        proof: zarr.Array,
        folder: Path,
        rule: _moments.Rule | None,
        sides: Sides,
    ) -> None:
        self.plan = plan
        self.source, self.target = source, target
        self.full = target.with_config({"write_empty_chunks": True})
        self.proof = proof
        """Target once more, read by zarr-python alone, so that no decoder vouches for itself."""
        self.folder = folder
        self.rule = rule
        self.sides = sides
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
                sizes.append(_bytes_of(self.folder / key, self.sides.together))
        return [len(sizes), sum(sizes)]

    def _write(self, values: np.ndarray, place: tuple[slice, ...]) -> None:
        if self.sides.torn:
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


def _bytes_of(path: Path, together: bool) -> int:
    """Bytes of a file."""
    if not together:
        return os.stat(path).st_size
    # NFS asks the server when a file is opened; before that it tells what this machine has seen last.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _checksum(values: np.ndarray) -> str:
    """Of values in C order; of strings, of what they say."""
    if values.dtype.kind in "OT":
        text = json.dumps([values.shape, [str(one) for one in values.reshape(-1)]])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    digest = hashlib.blake2b(str(values.shape).encode(), digest_size=16)
    if values.size:
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    return digest.hexdigest()
