"""Looks at folders before zarr-python and xarray read them: these open whatever stands in the place of a
file, and wait for ever where it is a named pipe. What the core itself reads is looked at there (src/store),
as are all other stores, which Python reads through the core.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST_METADATA_BYTES = 64 << 20
"""As in the core (src/dataset/open.rs)."""
METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")

_KINDS = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISDIR, "a folder"),
)


def check_file(root: Path, key: str, follow_links: bool, array: str = "") -> None:
    """Checks that a key of a store names a regular file, or nothing.

    With `array`, the array of that name in `root` is a store of its own, as in `store`.

    Raises:
        ValueError: Something else stands there: a pipe, a link that leads nowhere, or, without
            `follow_links`, one that leads out of the store.
    """
    path = root / key
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        _check_links(root, path)
        if not follow_links:
            _check_inside(_confines(root, key, array), path)
        return
    if not follow_links:
        _check_inside(_confines(root, key, array), path)
    if not stat.S_ISREG(found.st_mode):
        what = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
        raise ValueError(f"{path} is {what}, not a regular file; write the file again")
    if path.name in METADATA and found.st_size > MOST_METADATA_BYTES:
        raise ValueError(
            f"{path} has {found.st_size} bytes, and no more than {MOST_METADATA_BYTES} are read of metadata; "
            "the file is damaged, write it again"
        )


def check_store(root: Path, follow_links: bool, *, chunks: bool, array: str = "") -> None:
    """Checks every file of a store as `check_file` does, or, without `chunks`, the metadata of its nodes."""
    seen: set[tuple[int, int, Path]] = set()
    folders = [Path()]
    while folders:
        folder = folders.pop()
        path = root / folder
        confines = _confines(root, folder, array)
        if not follow_links:
            _check_inside(confines, path)
        found = path.stat()
        # A link to a folder above would be followed without end.
        if (found.st_dev, found.st_ino, confines) in seen:
            continue
        seen.add((found.st_dev, found.st_ino, confines))
        with os.scandir(path) as listing:
            entries = list(listing)
        names = {entry.name for entry in entries}
        for name in names.intersection(METADATA):
            check_file(root, str(folder / name), follow_links, array)
        if not chunks and is_array(path):
            continue
        for entry in entries:
            if entry.name in METADATA or entry.is_file(follow_symlinks=False):
                continue
            if entry.is_dir():
                folders.append(folder / entry.name)
            elif chunks:
                check_file(root, str(folder / entry.name), follow_links, array)


def is_array(folder: Path) -> bool:
    """Whether a folder is a Zarr array, as its metadata say.

    Raises:
        ValueError: Something other than a file stands in the place of its metadata.
    """
    for name in (".zarray", "zarr.json"):
        check_file(folder, name, True)
    if (folder / ".zarray").is_file():
        return True
    try:
        metadata = json.loads((folder / "zarr.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("node_type") == "array"


def store(root: Path, follow_links: bool, array: str = "") -> Any:
    """What zarr-python opens in the place of a path, so that each file is looked at before it is read.

    With `array`, the array of that name in `root` is a store of its own: it may be a link itself, and without
    `follow_links` no link in it may lead out of it, not even to elsewhere in `root`.
    """
    import zarr

    if int(zarr.__version__.split(".")[0]) < 3:
        check_store(root, follow_links, chunks=True, array=array)
        return str(root)
    from zarr.storage import LocalStore

    class Checked(LocalStore):
        async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
            check_file(self.root, key, follow_links, array)
            return await super().get(key, *arguments, **named)

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> Any:
            key_ranges = list(key_ranges)
            for key, _ in key_ranges:
                check_file(self.root, key, follow_links, array)
            return await super().get_partial_values(prototype, key_ranges)

        def get_sync(self, key: str, *arguments: Any, **named: Any) -> Any:
            check_file(self.root, key, follow_links, array)
            return super().get_sync(key, *arguments, **named)

    return Checked(root, read_only=True)


def _check_links(root: Path, path: Path) -> None:
    """Raises ValueError where nothing is at a path because a link on the way leads nowhere."""
    while path != root and path != path.parent:
        if path.is_symlink() and not path.exists():
            raise ValueError(
                f"{path} is a symbolic link to {os.readlink(path)}, where nothing is; mount or restore what "
                "it leads to"
            )
        path = path.parent


def _confines(root: Path, key: str | Path, array: str) -> Path:
    """The folder that links at a key must not lead out of."""
    return root / array if array and Path(key).parts[:1] == (array,) else root


def _check_inside(root: Path, path: Path) -> None:
    """Raises ValueError where a path leads out of a store."""
    confines = root.resolve()
    if path.resolve().is_relative_to(confines):
        return
    link = root
    for part in path.relative_to(root).parts:
        link /= part
        if link.is_symlink() and not link.resolve().is_relative_to(confines):
            break
    raise ValueError(
        f"{link} is a symbolic link to {os.readlink(link)}, which is not in the store's folder; copy what it "
        "leads to, or give follow_links=True for a store that you trust"
    )
