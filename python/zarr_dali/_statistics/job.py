"""Reads the regions of a plan and adds up what is in them, by threads of this process or by a cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr

from zarr_dali._moments import Moments
from zarr_dali._rechunk import journal, parts, reading
from zarr_dali._rechunk.failing import FinalError, explained
from zarr_dali._rechunk.journal import Journal, Region
from zarr_dali._rechunk.reading import SourceArray
from zarr_dali._rechunk.source import Source
from zarr_dali._statistics.plan import Part, Plan

if TYPE_CHECKING:
    from zarr_dali._dask.cluster import Cluster

Tick = Callable[[str, int, int], None]


@dataclass
class Reading:
    """Arrays that are read region by region; can be pickled, and is `_dask.worker.Work`."""

    sources: tuple[Source, ...]
    parts: dict[str, Part]
    memory: int
    folder: Path | None
    """The journal's, if there is one."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of the metadata of arrays that are left out of `parts`."""
    arrays: dict[str, SourceArray] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, folder: Path | None) -> Reading:
        """What a plan says."""
        sources = tuple(source.anew() for source in plan.sources)
        return cls(sources, {part.key: part for part in plan.each}, plan.memory, folder)

    def without_arrays(self) -> Reading:
        """To be pickled: others open the arrays by their names."""
        return Reading(
            self.sources,
            {key: replace(part, array=None) for key, part in self.parts.items()},
            self.memory,
            self.folder,
            {key: journal.fingerprint(part.array.metadata.to_dict()) for key, part in self.parts.items()},
        )

    def open(self) -> None:
        for key, part in self.parts.items():
            if part.array is None:
                self.parts[key] = replace(part, array=self._found(key, part))
        with warnings.catch_warnings():
            # Of arrays that the zarrs package leaves to zarr-python.
            warnings.simplefilter("ignore")
            self.arrays = {
                key: SourceArray(self.sources[part.store], part.name, part.array, part.cut.decoding)
                for key, part in self.parts.items()
            }

    def _found(self, key: str, part: Part) -> zarr.Array:
        source = self.sources[part.store]
        with suppress(FileNotFoundError, KeyError, ValueError):
            root = source.open()
            array = root[part.name] if part.name else root
            if journal.fingerprint(array.metadata.to_dict()) == self.fingerprints[key]:
                return array
        raise FinalError(
            f"{source.place(part.name)} is not there, or another array (process {os.getpid()} on "
            f"{os.uname().nodename}): all workers need the stores under the same paths"
        )

    def cost(self, name: str) -> tuple[int, int]:
        cut = self.parts[name].cut
        return cut.memory, cut.decoding

    def decoding(self, chunks: int) -> AbstractContextManager[None]:
        return reading.at_once(chunks)

    def do(self, what: str, name: str, number: int) -> Any:
        part, array = self.parts[name], self.arrays[name]
        if what == "look":
            return array.now(part.region(number))
        values, stamps = array.read(part.region(number))
        moments = part.rule.moments(values, part.axis)
        del values
        reading.trim()
        return moments.as_list(), stamps

    def where(self, name: str, number: int) -> str:
        """A region in words."""
        part = self.parts[name]
        words = reading.in_words(part.name, part.dimensions, part.region(number))
        return f"{self.sources[part.store]}: {words}"

    def explained(self, error: BaseException, name: str, number: int) -> RuntimeError:
        return explained(error, self.where(name, number), self.folder)


class Job:
    """A plan's arrays, and what was found in their regions.

    Args:
        plan: What is read.
        tick: Is told of progress, in the thread that called.
        folder: The journal's, if there is one.
        part: The part of all regions that is read; by default all of them.
    """

    def __init__(
        self, plan: Plan, tick: Tick, folder: Path | None = None, part: parts.Part | None = None
    ) -> None:
        self.plan, self._tick, self._folder = plan, tick, folder
        self.found: dict[tuple[str, int], Moments] = {}
        self._reading = Reading.of(plan, folder)
        self._reading.open()
        keys = [(one.key, number) for one in plan.each for number in range(one.regions)]
        self.regions = [key for at, key in enumerate(keys) if part is None or part.has(at)]
        """Array and number of those that are read."""

    def read(self, log: Journal | None = None, cluster: Cluster | None = None) -> None:
        """Reads what is not noted, or has changed since.

        Args:
            log: Where regions are noted, if they are.
            cluster: Where they are read; by default by threads of this process.
        """
        if log is not None:
            self._take_up(log)
        total = int(self._bytes(self.regions))
        finished = self._bytes(self.found)
        self._tick("reading", int(finished), total)
        todo = [key for key in self.regions if key not in self.found]
        try:
            for name, number, (moments, stamps) in self._each(todo, cluster, total):
                self.found[name, number] = Moments(*moments)
                if log is not None:
                    log.add(name, number, Region(moments, stamps, []))
                finished += self._bytes([(name, number)])
                self._tick("reading", int(finished), total)
        except BaseException:
            # Also after Ctrl-C or an error: what is finished need not be read again.
            if log is not None:
                with suppress(RuntimeError):
                    log.flush()
            raise
        if log is not None:
            log.flush()

    def _each(
        self, regions: list[tuple[str, int]], cluster: Cluster | None, total: int
    ) -> Iterator[tuple[str, int, Any]]:
        """Array, number and what was found, in the order in which regions are finished."""
        if cluster is None:
            yield from self._by_threads("read", regions)
            return
        from zarr_dali._dask.spreading import Spread

        spread = Spread(
            cluster,
            self._reading.without_arrays(),
            lambda error: explained(error, "dask", self._folder),
            lambda: self._tick("waiting for dask's workers", 0, total),
        )
        yield from spread.each("read", regions)

    def _take_up(self, log: Journal) -> None:
        """Keeps what an earlier run has noted, besides regions whose chunks have changed since."""
        noted = [key for key in self.regions if key in log.done]
        changed = []
        for name, number, now in self._by_threads("look", noted):
            region = log.done[name, number]
            if region.stamps == now:
                self.found[name, number] = Moments(*region.note)
            else:
                changed.append((name, number))
        log.forget(changed)

    def _by_threads(self, what: str, regions: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, Any]]:
        numbers: dict[str, list[int]] = {}
        for name, number in regions:
            numbers.setdefault(name, []).append(number)
        for name, some in numbers.items():
            cut = self._reading.parts[name].cut
            with reading.at_once(cut.decoding):
                for number, result in reading.each(
                    lambda number, name=name: self._reading.do(what, name, number),
                    some,
                    cut.workers,
                    lambda number, name=name: self._reading.where(name, number),
                    self._folder,
                ):
                    yield name, number, result

    def _bytes(self, keys: Iterable[tuple[str, int]]) -> float:
        """Decoded bytes of regions, taken for equally large."""
        sizes = {part.key: part.bytes / max(1, part.regions) for part in self.plan.each}
        return sum(sizes[name] for name, _ in keys)
