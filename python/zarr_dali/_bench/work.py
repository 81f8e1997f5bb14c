"""What is read: the samples of a store that every loader delivers in the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import zarr_dali
from zarr_dali._core import Objects, StorageOptions, as_json, without_secrets
from zarr_dali._description import ArrayReport

Selection = tuple[slice, ...]
"""Of a sample: a range for each dimension of the window."""


@dataclass(frozen=True)
class Work:
    """Samples of some arrays of one store, and the batches in which they are read, over and over.

    A sample is what `fn.readers.zarr` makes of `window`: along the first dimension neighbouring samples start
    one step apart, along the others windows do not overlap. Batch `k` holds the samples `k * batch_size` and
    following, beginning anew behind the last one.
    """

    store: Path | str
    """A folder, or the URL or path of another store."""
    names: tuple[str, ...]
    """Paths of the arrays in the store; empty if the store is an array."""
    reports: tuple[ArrayReport, ...]
    """Of the same arrays, one at least."""
    batch_size: int
    window: tuple[int, ...] | None
    """Extents of a sample along the leading dimensions; None: one step, without its dimension."""
    steps: int
    """Indices along the first dimension that samples lie in."""
    storage_options: str = field(default="", repr=False)
    """As the operator takes them."""

    @classmethod
    def of(
        cls,
        store: Path | str,
        arrays: Sequence[str] = (),
        *,
        storage_options: StorageOptions = None,
        batch_size: int,
        window: Sequence[int] | None = None,
        limit_bytes: int | None = None,
    ) -> Work:
        """Looks at a store.

        Args:
            store: A Zarr array, or a group.
            storage_options: As for the reader.
            arrays: Arrays of the group; by default those that are as long as the largest along the first
                dimension and have as many dimensions, which leaves out coordinates.
            batch_size: Samples of a batch, made smaller where there are not as many.
            window: Extents of a sample.
            limit_bytes: Of the arrays only the first steps are read, up to this many decoded bytes.

        Raises:
            ValueError: The store, the arrays or the window do not fit, in words for the user.
        """
        options = as_json(storage_options)
        found = zarr_dali.info(
            store,
            list(arrays) or None,
            device="cpu",
            window=window,
            batch_size=batch_size,
            storage_options=options,
        )
        reports = found.arrays if arrays else _main_arrays(found.arrays)
        for report in reports:
            if problem := (report.reason if report.decode_path == "refused" else report.problem):
                raise ValueError(f'array "{report.name}" cannot be read: {problem}')
        if not reports:
            shown = without_secrets(str(store))
            raise ValueError(f"{shown} has no array that can be read; `zarr-dali info {shown}` says why")
        first = reports[0]
        for report in reports:
            if report.shape[:1] != first.shape[:1]:
                raise ValueError(
                    f'array "{report.name}" has {report.shape[:1]} steps along its first dimension and '
                    f'"{first.name}" {first.shape[:1]}; name arrays with --arrays that have the same'
                )
        if found.problem:
            raise ValueError(found.problem)
        extent = (window or (1,))[0]
        step_bytes = sum(report.decoded_bytes for report in reports) / first.shape[0]
        steps = first.shape[0]
        if limit_bytes is not None:
            steps = min(steps, max(int(limit_bytes // step_bytes), extent + batch_size - 1))
        whole = cls(
            store=Path(store) if Objects(store, options).is_folder else str(store),
            names=tuple(report.name for report in reports if report.name),
            reports=tuple(reports),
            batch_size=batch_size,
            window=None if window is None else tuple(window),
            steps=steps,
            storage_options=options,
        )
        return whole if batch_size <= whole.samples else whole.with_batch_size(whole.samples)

    def with_batch_size(self, batch_size: int) -> Work:
        """The same samples in other batches."""
        return replace(self, batch_size=batch_size)

    @property
    def is_folder(self) -> bool:
        """Whether the store is a folder of this machine, with a file for each chunk."""
        return isinstance(self.store, Path)

    @property
    def shown(self) -> str:
        """The store without secrets."""
        return without_secrets(str(self.store))

    @cached_property
    def objects(self) -> Objects:
        """The store as the core reads it."""
        return Objects(self.store, self.storage_options)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        return (1, *(self.window or (1,))[1:])

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Windows along each dimension."""
        window = self.window or (1,)
        sizes = (self.steps, *self.reports[0].shape[1 : len(window)])
        return tuple((size - w) // s + 1 for size, w, s in zip(sizes, window, self._strides))

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return math.prod(self._counts)

    @property
    def batches(self) -> int:
        """Batches of a pass, in which each sample comes at least once."""
        return -(-self.samples // self.batch_size)

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of a sample of all arrays, in the types that they are stored in."""
        window = self.window or (1,)
        total = 0
        for report in self.reports:
            element = report.decoded_bytes // math.prod(report.shape)
            total += math.prod((*window, *report.shape[len(window) :])) * element
        return total

    @property
    def pass_bytes(self) -> int:
        """Bytes that a pass delivers."""
        return self.batches * self.batch_size * self.sample_bytes

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all arrays in the steps that are read."""
        return sum(report.decoded_bytes * self.steps // report.shape[0] for report in self.reports)

    def batch(self, number: int) -> list[int]:
        """The samples of a batch."""
        start = number * self.batch_size
        return [(start + i) % self.samples for i in range(self.batch_size)]

    def selection(self, sample: int) -> Selection:
        """Where a sample lies, as ranges of the dimensions of the window."""
        places = np.unravel_index(sample, self._counts)
        starts = [int(place) * stride for place, stride in zip(places, self._strides)]
        return tuple(slice(start, start + w) for start, w in zip(starts, self.window or (1,)))

    def sample_at(self, starts: Sequence[int]) -> int:
        """The sample that begins at these indices of the dimensions of the window."""
        places = [start // stride for start, stride in zip(starts, self._strides)]
        return int(np.ravel_multi_index(places, self._counts))

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes of the chunks that the steps lie in, estimated by `info` where there are no files."""
        if self.is_folder:
            return sum(file.stat().st_size for _, file in self.chunk_files())
        return sum(report.stored_bytes * self.steps // report.shape[0] for report in self.reports)

    def array_paths(self) -> list[Path]:
        """The folder of each array of a store that is one."""
        return [Path(self.store) / name for name in self.names] or [Path(self.store)]

    def open_array(self, number: int) -> Any:
        """An array as zarr-python opens it: by its path, or where it has none through the core."""
        import zarr

        if self.is_folder:
            return zarr.open_array(str(self.array_paths()[number]), mode="r")
        from zarr_dali._store import Store

        return zarr.open_array(Store.over(self.objects), path="".join(self.names[number:][:1]), mode="r")

    def chunk_files(self) -> Iterator[tuple[int, Path]]:
        """The files of the chunks that the steps lie in, where there are any, with the array's number."""
        for number, key in self.chunk_keys() if self.is_folder else ():
            file = Path(self.store) / key
            if file.is_file():
                yield number, file

    def chunk_keys(self) -> Iterator[tuple[int, str]]:
        """The keys of the chunks that the steps lie in, with the array's number; some may be missing."""
        for number, report in enumerate(self.reports):
            folder = "".join(f"{name}/" for name in self.names[number:][:1])
            keys = ChunkKeys.of(lambda file, folder=folder: self.content(folder + file))
            grid = [-(-size // chunk) for size, chunk in zip(report.shape, report.chunk)]
            grid[0] = -(-self.steps // report.chunk[0])
            for place in np.ndindex(*grid):
                yield number, folder + keys.key(place)

    def content(self, key: str) -> bytes | None:
        """What is at a key; None if it is absent."""
        if not self.is_folder:
            found = self.objects.get(key)
            return None if found is None else found.content
        file = Path(self.store) / key
        return file.read_bytes() if file.is_file() else None

    def spans(self, samples: Sequence[int]) -> list[tuple[list[int], Selection]]:
        """Samples as ranges to read at once: the samples of each range, and where it lies.

        Samples that follow one another share a range if the window has no dimension but the first.
        """
        if len(self._counts) > 1:
            return [([sample], self.selection(sample)) for sample in samples]
        runs = [
            [sample for _, sample in run]
            for _, run in groupby(enumerate(samples), lambda pair: pair[1] - pair[0])
        ]
        extent = (self.window or (1,))[0]
        return [(run, (slice(run[0], run[-1] + extent),)) for run in runs]


@dataclass(frozen=True)
class ChunkKeys:
    """How the keys of an array's chunks are made of their coordinates."""

    prefix: str
    separator: str

    @classmethod
    def of(cls, read: Callable[[str], bytes | None]) -> ChunkKeys:
        """Of an array with the metadata files that `read` gives."""
        import json

        if (text := read("zarr.json")) is None:
            metadata = json.loads(read(".zarray") or b"{}")
            return cls("", metadata.get("dimension_separator", "."))
        encoding = json.loads(text)["chunk_key_encoding"]
        name, options = encoding["name"], encoding.get("configuration") or {}
        if name == "v2":
            return cls("", options.get("separator", "."))
        separator = options.get("separator", "/")
        return cls(f"c{separator}", separator)

    def key(self, place: Sequence[int]) -> str:
        """The key of the chunk with these coordinates, not those of scalars."""
        return self.prefix + self.separator.join(map(str, place))


def _main_arrays(reports: Sequence[ArrayReport]) -> list[ArrayReport]:
    """The arrays that are read when none are named: as the largest one, by first dimension and rank."""
    readable = [
        report
        for report in reports
        if report.decode_path != "refused" and report.decoded_bytes and report.shape
    ]
    if len(reports) == 1:
        return list(reports)
    if not readable:
        return []
    largest = max(readable, key=lambda report: report.decoded_bytes)
    return [
        report
        for report in readable
        if len(report.shape) == len(largest.shape) and report.shape[0] == largest.shape[0]
    ]
