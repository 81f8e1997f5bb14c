"""The tables of a report of Nsight Systems that was exported to SQLite.

Times are nanoseconds from the beginning of the recording. Columns are those of nsys 2022.4 and newer.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

DOMAIN = "zarr_dali"
WAIT = "wait for a batch"
"""The range of DALI's thread that waits until the reader has a batch."""
POP = "[DALI][Executor] PopOutputs"
"""The range in which the training takes a batch from DALI, and waits where there is none."""
_RANGES, _DOMAIN_CREATED = (59, 60), 75  # NvtxPushPopRange, NvtxStartEndRange, NvtxDomainCreate
_HOST_TO_DEVICE = 1
_EXPORT = "nsys export --type sqlite --output {} {}"
_SQLITE = b"SQLite format 3\0"


class Range(NamedTuple):
    """A range of NVTX that ended."""

    start: int
    end: int
    name: str
    thread: int
    payload: int | None


class Span(NamedTuple):
    """A kernel or a copy on a GPU."""

    start: int
    end: int
    name: str
    stream: tuple[int, int, int]
    """Device, context and stream."""
    bytes: int


@dataclass
class Process:
    """What a report has of one process."""

    pid: int
    ranges: list[Range] = field(default_factory=list)
    """Of the reader's domain."""
    pops: list[Range] = field(default_factory=list)
    """In which the training took batches from DALI."""
    threads: dict[int, str] = field(default_factory=dict)
    kernels: list[Span] = field(default_factory=list)
    copies: list[Span] = field(default_factory=list)
    """From the host to a GPU."""


@dataclass
class Recording:
    """A report."""

    file: str
    processes: list[Process]
    """Those with a reader."""
    has_cuda: bool
    """Whether kernels were recorded in any process."""


def read(path: Path) -> Recording:
    """Reads an exported report.

    Raises:
        ValueError: It is none, or has nothing of a reader; the text says what to do.
    """
    _check(path)
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return _read(path, database)
    except sqlite3.Error as error:
        raise ValueError(f"{path}: its tables cannot be read ({error}); export the report again") from error


def _check(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with path.open("rb") as file:
        begin = file.read(len(_SQLITE))
    if begin == _SQLITE:
        return
    if path.suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
        raise ValueError(
            f"{path} is not exported yet: {_EXPORT.format(path.with_suffix('.sqlite'), path)}"
            + (", behind an import by QdstrmImporter" if path.suffix == ".qdstrm" else "")
        )
    raise ValueError(
        f"{path} is no SQLite file; give a report that was exported with "
        f"{_EXPORT.format('REPORT.sqlite', 'REPORT.nsys-rep')}"
    )


def _read(path: Path, database: sqlite3.Connection) -> Recording:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "NVTX_EVENTS" not in tables:
        raise ValueError(
            f"{path} has no ranges of NVTX: it is of another program, was recorded without "
            "nsys profile --trace=nvtx, or by a release of Nsight Systems that is older than the driver"
        )
    processes: dict[int, Process] = {}
    texts = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    others = _read_ranges(database, texts, processes)
    if not processes:
        raise ValueError(
            f'{path} has no range of the domain "{DOMAIN}", but of {_named(others)}: let the training take '
            "batches from a Zarr reader while it is recorded, and do not leave the domain out "
            "(--nvtx-domain-include)"
        )
    if "ThreadNames" in tables:
        for thread, text in database.execute("SELECT globalTid, nameId FROM ThreadNames"):
            if process := processes.get(_pid(thread)):
                process.threads[thread] = texts.get(text, "")
    has_cuda = "CUPTI_ACTIVITY_KIND_KERNEL" in tables
    if has_cuda:
        _read_kernels(database, texts, processes)
    if "CUPTI_ACTIVITY_KIND_MEMCPY" in tables:
        _read_copies(database, processes)
    return Recording(path.name, sorted(processes.values(), key=lambda one: one.pid), has_cuda)


def _named(domains: set[str]) -> str:
    return " and ".join(sorted(f'"{one}"' for one in domains)) or "none"


def _read_ranges(
    database: sqlite3.Connection, texts: dict[int, str], processes: dict[int, Process]
) -> set[str]:
    """Ranges of processes with a reader; the names of other domains."""
    names: dict[tuple[int, int], str] = {}
    domains = "SELECT globalTid, domainId, text, textId FROM NVTX_EVENTS WHERE eventType = ?"
    for thread, domain, text, text_id in database.execute(domains, [_DOMAIN_CREATED]):
        names[_pid(thread), domain] = text if text is not None else texts.get(text_id, "")
    pops: dict[int, list[Range]] = defaultdict(list)
    ranges = (
        "SELECT start, end, globalTid, domainId, text, textId, uint64Value, int64Value FROM NVTX_EVENTS "
        "WHERE eventType IN (?, ?) AND end IS NOT NULL ORDER BY start"
    )
    for start, end, thread, domain, text, text_id, unsigned, signed in database.execute(ranges, _RANGES):
        pid, name = _pid(thread), text if text is not None else texts.get(text_id, "")
        found = Range(start, end, name, thread, unsigned if unsigned is not None else signed)
        if names.get((pid, domain)) == DOMAIN:
            processes.setdefault(pid, Process(pid)).ranges.append(found)
        elif name == POP:
            pops[pid].append(found)
    for pid, process in processes.items():
        process.pops = pops[pid]
    return set(names.values()) - {DOMAIN}


def _read_kernels(database: sqlite3.Connection, texts: dict[int, str], processes: dict[int, Process]) -> None:
    rows = database.execute(
        "SELECT start, end, shortName, deviceId, contextId, streamId, globalPid FROM "
        "CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start"
    )
    for start, end, name, device, context, stream, pid in rows:
        if process := processes.get(_pid(pid)):
            process.kernels.append(Span(start, end, texts.get(name, ""), (device, context, stream), 0))


def _read_copies(database: sqlite3.Connection, processes: dict[int, Process]) -> None:
    rows = database.execute(
        "SELECT start, end, bytes, deviceId, contextId, streamId, globalPid FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "WHERE copyKind = ? ORDER BY start",
        [_HOST_TO_DEVICE],
    )
    for start, end, size, device, context, stream, pid in rows:
        if process := processes.get(_pid(pid)):
            process.copies.append(Span(start, end, "copy", (device, context, stream), size))


def _pid(identifier: int) -> int:
    """The process in a serialized identifier of a thread or a process."""
    return identifier >> 24 & 0xFFFFFF
