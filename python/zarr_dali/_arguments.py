"""Arguments that commands over whole stores share."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

MAX_WORKERS = 8
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def bytes_of(memory: int | str) -> int:
    """Bytes of a number or of a text such as "2GB".

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?|[kmgt]i)b?\s*", str(memory).lower())
    if not match:
        raise ValueError(f"memory: {memory!r} is no number of bytes; give for example 2GB or 500MiB")
    return int(float(match[1]) * (_UNITS | _BINARY)[match[2]])


def workers_of(workers: int | None) -> int:
    """How many threads work; by default one for each core, up to `MAX_WORKERS`.

    Raises:
        ValueError: There would be none.
    """
    if workers is None:
        return min(MAX_WORKERS, cores())
    if workers < 1:
        raise ValueError(f"workers: {workers}; it takes 1 at least")
    return workers


@dataclass(frozen=True)
class Threads:
    """What works at once."""

    workers: int
    """Regions that a process works on at once."""
    cores: int
    """That a process may use."""
    processes: int = 1

    @classmethod
    def here(cls, workers: int | None) -> Threads:
        """In this process.

        Raises:
            ValueError: There would be none.
        """
        return cls(workers_of(workers), cores())

    def decoding(self, workers: int) -> int:
        """Chunks that each of `workers` workers decodes at once, which share the cores."""
        return max(1, self.cores // workers)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def import_zarr(command: str) -> None:
    """Raises ImportError where zarr-python 3 is missing."""
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ImportError(f'{command} needs zarr-python 3: pip install "zarr>=3" zarrs') from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise ImportError(
            f"{command} needs zarr-python 3, not {zarr.__version__}, and that Python 3.11 or newer"
        )
