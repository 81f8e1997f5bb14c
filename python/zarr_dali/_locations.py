"""What stands for a store in Python (a path, an object of zarr-python or xarray), as the reader takes it."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from zarr_dali import _core, _credentials

Source = Any
"""A path or URL; a store, group or array of zarr-python; a Dataset or DataArray that xarray opened."""
Paths = Source | Sequence[Source]
_OF_OBSTORE = ("S3Store", "GCSStore", "AzureStore", "HTTPStore", "LocalStore")
READABLE = "a path or URL, an object of zarr-python 3, or an xarray Dataset that was opened from Zarr"


@dataclass(frozen=True)
class Location:
    """Where a store, or several, can be read."""

    path: str | list[str]
    storage_options: _core.StorageOptions = None
    arrays: list[str] = field(default_factory=list)
    """Below `path`, where a Dataset says which."""
    names: list[str] = field(default_factory=list)
    """What a Dataset calls them."""
    mask_and_scale: bool = False
    """Whether xarray decodes values by their attributes."""

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a reader, with those that belong to what stands for the store."""
        own = {"storage_options": self.storage_options, "mask_and_scale": self.mask_and_scale or None}
        return {name: value for name, value in own.items() if value is not None} | dict(given)

    def named(
        self, arrays: list[str], names: Sequence[str] | None, stack: bool
    ) -> tuple[list[str], Sequence[str] | None]:
        """The arrays that are meant, and what they are called."""
        if not self.arrays:
            return arrays, names
        by_name = dict(zip(self.names, self.arrays))
        wanted = arrays or self.names
        found = [by_name.get(name, name) for name in wanted]
        return found, wanted if names is None and not stack and found != wanted else names


def located(
    source: Source | Sequence[Source],
    storage_options: _core.StorageOptions = None,
    arrays: Sequence[str] = (),
) -> Location:
    """Where what stands for a store, or a list of stores, can be read.

    Args:
        source: What stands for it.
        storage_options: In place of those that an object has.
        arrays: Which variables of a Dataset are meant; all without them.

    Raises:
        TypeError: It stands for no store.
        ValueError: It cannot be read from where it is, or its credentials cannot be taken over.
    """
    if isinstance(source, Iterator):
        source = list(source)
    if isinstance(source, (list, tuple)):
        return _joined([_located(one, storage_options, arrays) for one in source], storage_options)
    return _located(source, storage_options, arrays)


def _joined(parts: Sequence[Location], storage_options: _core.StorageOptions) -> Location:
    if not parts:
        return Location([], storage_options)
    first = parts[0]
    for part in parts:
        if part.arrays != first.arrays:
            raise ValueError(f"path: the first Dataset has the arrays {first.arrays}, another {part.arrays}")
        if part.mask_and_scale != first.mask_and_scale:
            raise ValueError(
                "path: some Datasets were opened with mask_and_scale and some without; open all alike, or "
                "give their paths and mask_and_scale"
            )
    if storage_options is None:
        storage_options = {}
        for part in parts:
            storage_options |= _under_own_url(part)
        storage_options = storage_options or None
    return replace(first, path=[part.paths[0] for part in parts], storage_options=storage_options)


def _under_own_url(part: Location) -> dict[str, Any]:
    """The options of a store so that they hold for no other."""
    given = part.storage_options or {}
    options = dict(json.loads(given) if isinstance(given, str) else given)
    by_url = {name: value for name, value in options.items() if "://" in name}
    url = part.paths[0].partition("|")[0]
    own = {name: value for name, value in options.items() if name not in by_url}
    return by_url | ({url: own} if own and "://" in url else {})


def _located(source: Source, storage_options: _core.StorageOptions, arrays: Sequence[str]) -> Location:
    if isinstance(source, (str, os.PathLike)):
        return Location(as_text(source), storage_options)
    kinds = _kinds(source)
    if {"xarray.Dataset", "xarray.DataArray"} & kinds:
        from zarr_dali import _opened_by_xarray

        found = _opened_by_xarray.arrays_of(source, arrays)
        node = _of_store(found.store, found.group, storage_options)
        return replace(node, arrays=found.arrays, names=found.names, mask_and_scale=found.is_decoded)
    if {"zarr.Group", "zarr.Array", "zarr.AsyncGroup", "zarr.AsyncArray", "zarr.StorePath"} & kinds:
        store_path = source if "zarr.StorePath" in kinds else getattr(source, "store_path", None)
        if store_path is None:
            raise TypeError(f"path: a {_name(source)} of zarr-python 2 is not taken; give its path or URL")
        return _of_store(store_path.store, store_path.path, storage_options)
    if "icechunk.Session" in kinds:
        source = source.store
    return _of_store(source, "", storage_options)


def as_text(path: str | os.PathLike[str]) -> str:
    """A path or URL as the reader takes it: `~` is the home folder, and `file://` begins a path."""
    text = os.fspath(path)
    if text.startswith("~"):
        return os.path.expanduser(text)
    if not text.lower().startswith("file://"):
        return text
    place = text[len("file://") :]
    if place.startswith("localhost/"):
        place = place[len("localhost") :]
    if not place.startswith("/"):
        raise ValueError(f"path: {text} names a host; give file:///... for a file of this machine")
    return place if os.path.exists(place) else unquote(place)


def _of_store(store: Any, inside: str, storage_options: _core.StorageOptions) -> Location:
    """The place of a group or an array in a store of zarr-python."""
    kinds = _kinds(store)
    while "zarr.WrapperStore" in kinds:
        store = store._store
        kinds = _kinds(store)
    taken: Any = None
    if "zarr_dali.Store" in kinds:
        place, taken = store.objects.path, store.objects.storage_options
    elif "zarr.LocalStore" in kinds:
        place = str(store.root)
    elif "zarr.ZipStore" in kinds:
        place = f"{store.path}|zip:" if inside else str(store.path)
    elif "zarr.FsspecStore" in kinds:
        place, taken = _of_fsspec(store.fs, store.path, storage_options)
    elif "fsspec.FSMap" in kinds:
        place, taken = _of_fsspec(store.fs, store.root, storage_options)
    elif "zarr.ObjectStore" in kinds:
        place, taken = _of_obstore(store.store, storage_options)
    elif kinds & {f"obstore.{name}" for name in _OF_OBSTORE}:
        place, taken = _of_obstore(store, storage_options)
    elif "icechunk.IcechunkStore" in kinds:
        from zarr_dali import _icechunk_session

        place, taken = _icechunk_session.place_of(store.session, storage_options)
    else:
        raise TypeError(f"path: {_problem(store, kinds)}; give {READABLE}")
    if storage_options is not None:
        taken = storage_options
    return Location(_below(place, inside), taken or None)


def _problem(store: Any, kinds: set[str]) -> str:
    if "zarr.MemoryStore" in kinds:
        return "a store in memory cannot be read by threads outside Python, write it to a folder first"
    if "virtualizarr.ManifestStore" in kinds:
        return "a ManifestStore is in memory only, write it as references (to_kerchunk) or to Icechunk first"
    if "icechunk.Repository" in kinds:
        return 'a Repository of Icechunk has many snapshots, give a session of one: readonly_session("main")'
    if "xarray.DataTree" in kinds:
        return "a DataTree has many groups, give the path of one, or what xarray.open_zarr returns of it"
    return f"{_name(store)} stands for no store that can be read"


def _below(place: str, inside: str) -> str:
    inside = inside.strip("/")
    return f"{place}{'' if place.endswith((':', '/')) else '/'}{inside}" if inside else place


def _of_fsspec(fs: Any, path: str, given: _core.StorageOptions) -> tuple[str, Mapping[str, Any]]:
    """The place of a path in a file system of fsspec, and its credentials."""
    kinds = _kinds(fs)
    if "fsspec.AsyncFileSystemWrapper" in kinds:
        return _of_fsspec(fs.sync_fs, path, given)
    if "fsspec.DirFileSystem" in kinds:
        return _of_fsspec(fs.fs, posixpath.join(fs.path, path.lstrip("/")), given)
    if "fsspec.CachingFileSystem" in kinds:
        return _of_fsspec(fs.fs, path, given)
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    if protocol in ("file", "local"):
        return as_text(path), {}
    scheme = _credentials.scheme_of(protocol)
    if scheme is None:
        raise TypeError(f"path: a file system of type {type(fs).__name__} is not read; give {READABLE}")
    path = path if "://" in path else f"{scheme}://{path.lstrip('/')}"
    return path, {} if given is not None else _credentials.of_fsspec(fs, scheme)


def _of_obstore(store: Any, given: _core.StorageOptions) -> tuple[str, Mapping[str, Any]]:
    """The place of a store of obstore, and its credentials."""
    name = next((name for name in _OF_OBSTORE if f"obstore.{name}" in _kinds(store)), type(store).__name__)
    if name == "LocalStore":
        if store.prefix is None:
            raise ValueError("path: a LocalStore without a prefix is no store; give one, or a path")
        return str(store.prefix), {}
    if name == "HTTPStore":
        return store.url, {} if given is not None else _credentials.of_obstore(store, "https")
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(name)
    if scheme is None:
        raise TypeError(f"path: a {name} of obstore cannot be read; give {READABLE}")
    config = dict(store.config)
    bucket = config.get("container_name" if scheme == "az" else "bucket")
    place = _below(f"{scheme}://{bucket}", str(store.prefix or ""))
    return place, {} if given is not None else _credentials.of_obstore(store, scheme)


def _kinds(value: Any) -> set[str]:
    """The classes of a value, as `package.Class`; asking needs none of the packages."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__}


def _name(value: Any) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
