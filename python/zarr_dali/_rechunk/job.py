"""The arrays of a copy on both sides, region by region: by threads of this process, or by a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from zarr_dali import _moments
from zarr_dali._rechunk import fence, journal, metadata, publishing, reading
from zarr_dali._rechunk.array_copy import ArrayCopy, Sides
from zarr_dali._rechunk.cluster_copy import CopyWork
from zarr_dali._rechunk.failing import FinalError, explained, explaining
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk.parts import Part
from zarr_dali._rechunk.plan import Plan, arrays_of, groups_of
from zarr_dali._rechunk.reading import ZARR_PYTHON

if TYPE_CHECKING:
    from zarr_dali._dask.cluster import Cluster
    from zarr_dali._dask.spreading import Spread

Tick = Callable[[str, int, int], None]
"""Told how far the work is: what is being done, bytes that are done, bytes in all."""


class Job:
    """A plan's arrays on both sides.

    Args:
        plan: What is copied.
        sides: From where and to where.
        tick: Is told of progress, in the thread that called.
        part: The part of all regions that is done here; by default all of them.
    """

    def __init__(self, plan: Plan, sides: Sides, tick: Tick, part: Part | None = None) -> None:
        self.plan, self.sides, self.folder, self._tick = plan, sides, sides.folder, tick
        self.arrays: list[ArrayCopy] = []
        self.source = sides.source
        self._spread: Spread | None = None
        with reading.pipeline(ZARR_PYTHON):
            root = self.source.open()
            self._sources = arrays_of(root)
            self.documents = metadata.documents(plan, groups_of(root), self._sources)
        keys = [(array.name, number) for array in plan.arrays for number in range(array.regions)]
        self.regions = [key for at, key in enumerate(keys) if part is None or part.has(at)]
        """Array and number of those that are done here."""

    def open(self) -> None:
        """Opens the arrays, when the copy has its metadata."""
        self.arrays = [self.sides.open(array, self._sources[array.name]) for array in self.plan.arrays]

    @contextmanager
    def on(self, cluster: Cluster | None) -> Iterator[None]:
        """Inside, regions are copied and compared by a cluster; behind it, no worker writes any more."""
        if cluster is None:
            yield
            return
        from zarr_dali._dask.spreading import Spread

        partial = self.folder.parent
        work = CopyWork.of(self.plan, self.sides, self._sources)
        fence.put(partial, work.run)
        try:
            self._spread = Spread(
                cluster, work, lambda error: explained(error, "dask", partial), self._tell_of_no_worker
            )
            yield
        finally:
            self._spread = None
            fence.remove(partial)

    def _tell_of_no_worker(self) -> None:
        self._tick("waiting for dask's workers", 0, self._total)

    @property
    def _total(self) -> int:
        return int(self._bytes(self.regions))

    def _each(self, what: str, regions: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, Any]]:
        """Array, number and result of regions, in the order in which they are finished."""
        if self._spread is not None:
            yield from self._spread.each(what, regions)
            return
        numbers: dict[str, list[int]] = {array.plan.name: [] for array in self.arrays}
        for name, number in regions:
            numbers[name].append(number)
        for array in self.arrays:
            name, cut = array.plan.name, array.plan.cut
            if not numbers[name]:
                continue
            work = getattr(array, what)
            with reading.at_once(cut.decoding):
                for number, result in reading.each(
                    work, numbers[name], cut.workers, array.where, self.folder.parent
                ):
                    yield name, number, result

    def copy(self, log: Journal) -> tuple[int, int]:
        """Copies what is not noted, or has changed since; bytes that were done before, and of these again."""
        now = self.look(log.done)
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
        self._tick("copying", int(finished), self._total)
        try:
            todo = [key for key in self.regions if key not in log.done]
            for name, number, region in self._each("copy", todo):
                log.add(name, number, journal.Region(*region))
                finished += self._bytes([(name, number)])
                self._tick("copying", int(finished), self._total)
        except BaseException:
            # Also after Ctrl-C or an error: what is finished need not be copied again.
            with suppress(RuntimeError):
                log.flush()
            raise
        log.flush()
        return int(resumed), int(again)

    def verify(self) -> dict[tuple[str, int], str]:
        """Reads both sides again; checksums of the values of regions."""
        found, finished = {}, 0.0
        self._tick("verifying", 0, self._total)
        for name, number, digest in self._each("compare", self.regions):
            found[name, number] = digest
            finished += self._bytes([(name, number)])
            self._tick("verifying", int(finished), self._total)
        return found

    def checksums(self, found: Mapping[tuple[str, int], str]) -> dict[str, str] | None:
        """Of the values of each array, from those of all regions; None where some are missing."""
        try:
            return {
                array.name: journal.fingerprint(
                    [found[array.name, number] for number in range(array.regions)]
                )
                for array in self.plan.arrays
            }
        except KeyError:
            return None

    def look(self, regions: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], journal.Region]:
        """Regions as their files are now, on both sides; by default all."""
        if regions is None:
            regions = [(array.name, n) for array in self.plan.arrays for n in range(array.regions)]
        spread, self._spread = self._spread, None  # looking is no work
        try:
            return {(name, number): region for name, number, region in self._each("look", list(regions))}
        finally:
            self._spread = spread

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
        if not self.sides.count:
            return None
        return {
            array.plan.name: array.rule.result(
                _moments.Moments(*log.done[array.plan.name, number].note)
                for number in range(array.plan.regions)
            )
            for array in self.arrays
            if array.rule
        }
