"""Regions of a copy as tasks of a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zarr

from zarr_dali._rechunk import fence, journal, reading
from zarr_dali._rechunk.array_copy import ArrayCopy, Sides
from zarr_dali._rechunk.array_plan import ArrayPlan
from zarr_dali._rechunk.failing import FinalError, explained
from zarr_dali._rechunk.plan import Plan, arrays_of
from zarr_dali._rechunk.reading import ZARR_PYTHON


def kernel() -> str:
    """A name of the running system: processes that share it share its cache of files."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class CopyWork:
    """What workers need to know of a copy; `_dask.worker.Work`."""

    plans: tuple[ArrayPlan, ...]
    sides: Sides
    memory: int
    fingerprints: Mapping[str, str]
    """Of the metadata of the source's arrays."""
    kernel: str
    """Of the process that keeps the journal, and brings what is written to the disk before it notes it."""
    run: str = field(default_factory=lambda: os.urandom(8).hex())
    """A name of this run, which another one that resumes it does not have."""
    arrays: dict[str, ArrayCopy] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, sides: Sides, arrays: Mapping[str, zarr.Array]) -> CopyWork:
        """Of arrays of the source that are copied as a plan says."""
        names = [array.name for array in plan.arrays]
        fingerprints = {name: journal.fingerprint(arrays[name].metadata.to_dict()) for name in names}
        return cls(plan.arrays, sides, plan.memory, fingerprints, kernel())

    def open(self) -> None:
        with fence.writing(self.sides.folder.parent, self.run):
            with reading.pipeline(ZARR_PYTHON):
                found = arrays_of(self.sides.source.open())
            for plan in self.plans:
                wanted = found.get(plan.name)
                if wanted is None or self.fingerprints[plan.name] != journal.fingerprint(
                    wanted.metadata.to_dict()
                ):
                    raise FinalError(
                        f"{self.sides.source.place(plan.name)} is another array there (process {os.getpid()} "
                        f"on {os.uname().nodename}): all workers need the source under the same path"
                    )
                self.arrays[plan.name] = self.sides.open(plan, wanted)

    def cost(self, name: str) -> tuple[int, int]:
        cut = self.arrays[name].plan.cut
        return cut.memory, cut.decoding

    def decoding(self, chunks: int) -> AbstractContextManager[None]:
        return reading.at_once(chunks)

    def do(self, what: str, name: str, number: int) -> Any:
        array = self.arrays[name]
        if what == "compare":
            return array.compare(number)
        with fence.writing(self.sides.folder.parent, self.run):
            found = array.copy(number)
            if self.kernel != kernel():
                self._sync()
        return list(found)

    def _sync(self) -> None:
        descriptor = os.open(self.sides.folder, os.O_RDONLY)
        try:
            journal.sync_file_system(descriptor)
        finally:
            os.close(descriptor)

    def explained(self, error: BaseException, name: str, number: int) -> RuntimeError:
        return explained(error, self.arrays[name].where(number), self.sides.folder.parent)
