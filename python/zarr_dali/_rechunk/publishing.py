"""Gives a complete copy its name, in place of an older store where that is asked for.

The copy and the old store exchange their names in one step. Where the file system cannot do that, the old one
is put aside first, in the working folder; a run that is killed before the new one is in its place leaves none
under the destination, and the next run puts the old one back. Only then the old one is deleted.

The copy keeps a record in the folder of its first array, where readers of Zarr list nothing: what it is a
copy of, and of which run. So a later run knows what it finds.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zarr_dali._rechunk import journal
from zarr_dali._rechunk.journal import Journal
from zarr_dali._rechunk.lock import SYSTEM, Lock

RECORD = ".zarr-dali-copy"
REPLACED, OBSOLETE = "replaced", "obsolete"
"""In the working folder: an old store that was put aside, and one that is to be deleted."""
_METADATA = ("zarr.json", ".zgroup", ".zarray")
_OF_NODES = re.compile(r"zarr\.json|\.z(group|array|attrs|metadata)|\.nc(zarr|z(group|array|var|attrs?))")
_OF_ARRAYS = re.compile(rf"c|(c\.)?\d+(\.\d+)*|{re.escape(RECORD)}|{re.escape(journal.NAME)}")
_TEMPORARY = re.compile(r".*\.[0-9a-f]{32}\.partial")
"""Files of writers that were killed, zarr-python's and ours."""
_OF_CHUNKS = re.compile(r"\d+")
"""In a folder of chunks; further folders are named likewise."""
_NAMED = 3
"""How many files of others an error names."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def check_replaceable(destination: Path) -> None:
    """Raises ValueError where something is no Zarr store, or holds something that is none."""
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if not _is_node(destination):
        raise ValueError(f"{destination} is no Zarr store and is not replaced; choose another name")
    if foreign := list(itertools.islice(_foreign_in(destination), _NAMED)):
        raise ValueError(
            f"{' and '.join(map(str, foreign))} is no part of a Zarr store, and {destination} is not "
            "replaced with files of others inside; move them away, or choose another name"
        )


def recover(lock: Lock, log: Journal, destination: Path) -> None:
    """Ends what a run left that was killed while it gave its copy the name.

    Raises:
        ValueError: Somebody has put something else there in the meantime, or the working folder is none of
            ours.
    """
    if foreign := lock.foreign():
        raise ValueError(
            f"{', '.join(str(lock.folder / name) for name in foreign[:_NAMED])} is in the way and none of "
            "ours; move it away"
        )
    if log.header is not None:
        lock.remove(OBSOLETE)
    known = log.header is not None and log.header.get("version") == journal.VERSION
    if known and _is_of(destination, log.header):
        tidy(lock, log)
    elif os.path.lexists(lock.folder / REPLACED):
        _put_back(lock.folder / REPLACED, destination)  # whatever the journal says: it may be torn
    elif known and log.publishing:
        store = lock.folder / log.header["store"]
        if os.path.lexists(store) and not _is_of(store, log.header):
            _put_back(store, destination)  # after an exchange of names
    if log.header is None and (not log.empty or lock.entries()):
        raise ValueError(
            f"{lock.folder} is in the way, with a journal that cannot be read; look what it holds and move "
            "it away"
        )


def _put_back(old: Path, destination: Path) -> None:
    """Gives a store that was to be replaced its name again."""
    if os.path.lexists(destination):
        raise ValueError(
            f"{old} is the store that a run was replacing, and {destination} is another one now; move one of "
            "them away"
        )
    os.rename(old, destination)
    journal.sync(destination.parent)


def publish(lock: Lock, log: Journal, record: dict[str, Any], destination: Path, overwrite: bool) -> None:
    """Gives the copy in the working folder its name.

    Args:
        lock: The working folder.
        log: Its journal.
        record: What the copy is, to be found by later runs.
        destination: The name.
        overwrite: Whether a store that has it is replaced.

    Raises:
        ValueError: Something else has the name.
        OSError: The file system refused.
    """
    store, aside = lock.folder / log.header["store"], lock.folder / REPLACED
    text = journal.line(record | {"id": log.header["store"], "version": journal.VERSION})
    journal.write_whole(store / log.header["record"] / RECORD, text)
    log.publish()
    if not os.path.lexists(destination):
        os.rename(store, destination)
    else:
        check_replaceable(destination)
        if not overwrite and any(destination.iterdir()):
            raise ValueError(
                f"{destination} came into being while it was copied; move it away and go on with "
                "resume=True, or with overwrite=True beside to replace it"
            )
        if not exchange(store, destination):
            try:
                os.rename(destination, aside)
                os.rename(store, destination)
            except BaseException:
                # Also after Ctrl-C, which may come between the two or behind the second.
                if os.path.lexists(store) and os.path.lexists(aside):
                    os.rename(aside, destination)
                raise
    journal.sync(destination.parent)
    journal.sync(lock.folder)


def tidy(lock: Lock, log: Journal) -> None:
    """Deletes what is left in the working folder after the copy has its name."""
    for name in (log.header["store"], REPLACED):
        if os.path.lexists(lock.folder / name):
            discard(lock, name)
    for name in lock.entries():
        if name.startswith(journal.NAME):
            lock.remove(name)
    log.clear()


def discard(lock: Lock, name: str) -> None:
    """Deletes an entry of the working folder. Half of a store never passes for one that is to be put back."""
    os.rename(lock.folder / name, lock.folder / OBSOLETE)
    lock.remove(OBSOLETE)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step; False where the system cannot.

    Raises:
        OSError: It failed for another reason.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def record_in(folder: Path) -> dict[str, Any] | None:
    """The record in the folder of an array; None where there is none that can be read."""
    try:
        found, _ = journal.parse((folder / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found[0] if found and found[0]["version"] == journal.VERSION else None


def sweep(store: Path) -> None:
    """Removes halves of files that writers left which were killed. Nobody else may be writing."""
    for folder, _, names in os.walk(store):
        for name in names:
            if _TEMPORARY.fullmatch(name):
                Path(folder, name).unlink()


def damage(store: Path, documents: dict[str, bytes], files: int) -> str | None:
    """What of a copy is not as it was written, besides its chunks' sizes; None where all is.

    Args:
        store: The copy.
        documents: Its metadata by path.
        files: How many chunk files were written.
    """
    for path, content in documents.items():
        try:
            same = (store / path).read_bytes() == content
        except FileNotFoundError:
            return f"{store / path} is missing"
        if not same:
            return f"{store / path} is not what was written"
    found = sum(
        name != RECORD and not SYSTEM.fullmatch(name) for _, _, names in os.walk(store) for name in names
    )
    expected = len(documents) + files
    return None if found == expected else f"{store} holds {found} files where {expected} were written"


def _is_of(store: Path, header: dict[str, Any]) -> bool:
    """Whether a store is the copy of the run with such a journal."""
    record = record_in(store / header["record"])
    return record is not None and record["id"] == header["store"]


def _is_node(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _METADATA)


def _foreign_in(folder: Path) -> Iterator[Path]:
    """What in a group or array is no part of it."""
    array = (folder / ".zarray").exists() or _is_array(folder / "zarr.json")
    for path in folder.iterdir():
        if path.is_dir():
            if path.is_symlink():
                continue  # only the link would be deleted
        elif any(names.fullmatch(path.name) for names in (_OF_NODES, _TEMPORARY, SYSTEM)):
            continue
        if array:
            if not _OF_ARRAYS.fullmatch(path.name):
                yield path
            elif path.is_dir():
                yield from _foreign_in_chunks(path)
        elif not path.is_dir():
            if path.name != journal.NAME:
                yield path
        # A folder without metadata may be a group that only its members tell of.
        else:
            yield from _foreign_in(path)


def _foreign_in_chunks(folder: Path) -> Iterator[Path]:
    """What below a folder of chunks is none."""
    with os.scandir(folder) as listing:
        for entry in listing:
            if _OF_CHUNKS.fullmatch(entry.name):
                if entry.is_dir(follow_symlinks=False):
                    yield from _foreign_in_chunks(Path(entry.path))
            elif entry.is_dir() or not (_TEMPORARY.fullmatch(entry.name) or SYSTEM.fullmatch(entry.name)):
                yield Path(entry.path)


def _is_array(path: Path) -> bool:
    try:
        return json.loads(path.read_bytes()).get("node_type") == "array"
    except (FileNotFoundError, ValueError, AttributeError):
        return False
