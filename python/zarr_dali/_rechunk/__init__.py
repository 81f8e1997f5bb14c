"""Copies a Zarr store into other chunks: `zarr_dali.rechunk` and the command `zarr-dali rechunk`.

zarr-python reads and writes the chunks, with the codec pipeline of the package zarrs where it is there.
What is here decides what to write (`plan`, `proposal`, `codecs`), in which regions, so that the source is
read as little as memory allows (`regions`), sees to it that a stop loses nothing (`copying`, `journal`), that
one run at a time writes (`lock`), in parts (`parts`) or by workers of a cluster (`cluster_copy`, `fence`)
where that is asked for, and that only a whole copy gets the name (`publishing`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from zarr_dali import _core, _labels, _local, _locations
from zarr_dali._arguments import Threads, bytes_of, import_zarr
from zarr_dali._dask import cluster as clusters

if TYPE_CHECKING:
    from zarr_dali._rechunk.job import Tick
    from zarr_dali._rechunk.plan import Plan
    from zarr_dali._rechunk.source import Source


@dataclass(frozen=True)
class Rechunked:
    """What `rechunk` did, or with `dry_run` would do."""

    plan: Plan
    statistics: dict[str, dict[str, Any]] | None = None
    """Of each variable `mean`, `std`, `min`, `max`, and how many values counted (`count`) or not (`nan`,
    `infinite`, `masked`); None where they were not asked for."""
    checksums: dict[str, str] | None = None
    """Of the values of each array, the same in source and copy; None without `verify`."""
    resumed_bytes: int = 0
    """Decoded bytes that an earlier run had copied already."""
    again_bytes: int = 0
    """Decoded bytes that an earlier run had copied and this one copied again, because files of the source, or
    of the copy, have changed since."""
    complete: bool = False
    """Whether `resume` found the copy complete, with nothing left to do."""
    waiting: tuple[int, ...] = ()
    """With `part` the parts that have not ended, so that the copy has no name yet."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and texts."""
        from zarr_dali._rechunk import report

        plan = {"source": self.plan.source, "destination": self.plan.destination, "memory": self.plan.memory}
        arrays = [report.as_dict(array) for array in self.plan.arrays]
        done = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "plan"}
        return plan | {"arrays": arrays} | done


def rechunk(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | str | None = None,
    codec: str | None = None,
    variables: str | Iterable[str] | None = None,
    range: Mapping[str, Any] | None = None,
    index_range: Mapping[str, slice | Sequence[int | None]] | None = None,
    for_window: int | Sequence[int] | None = None,
    batch: int = 1,
    shuffle: bool = True,
    stats: bool | str | os.PathLike[str] = False,
    mask: bool = False,
    verify: bool = False,
    memory: int | str = "2GB",
    workers: int | None = None,
    dask: Any = None,
    part: tuple[int, int] | str | None = None,
    follow_links: bool = True,
    storage_options: Mapping[str, Any] | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Tick | None = None,
) -> Rechunked:
    """Copies a Zarr v2 or v3 store into a Zarr v3 store with other chunks, values bit for bit.

    The copy grows in `DST.partial` and gets its name when it is complete, so that nobody reads half of one. A
    run that was stopped, killed or failed is continued with `resume=True` and the same arguments. One run at
    a time has `DST.partial`, which it locks. The source is only read; if it changes meanwhile, the copy gets
    no name.

    Several machines share the work with `dask`, or with `part` without anything that runs beside them. All of
    them need source and destination under the same paths, and the destination on a file system with locks.

    Attributes, dimension names and fill values are kept, and consolidated metadata if the source has them.
    Metadata of OME-Zarr become those of version 0.5, which is that of Zarr v3, for what is copied.
    Coordinates come along, in one chunk each. The fill value of a Zarr v2 array also becomes the attribute
    `_FillValue`, which is what it means to xarray and to the reader. Chunks that hold nothing but the fill
    value are not written.

    Args:
        src: A Zarr group or array: a folder, a zip file or a URL, as the reader takes them.
        dst: The folder where the copy goes.
        chunks: Extents of chunks by dimension name (`dim_0` and so on where dimensions have no names); -1 is
            all of a dimension. What is not named stays as it is.
        shards: Extents of sharded chunks, multiples of those of chunks; what is not named is as in the chunk.
            "none" writes each chunk as a file, None keeps what the source has.
        codec: "blosc-lz4", "blosc-zstd", "zstd", each also as "zstd:5" with a level, "none", or "keep", the
            default, which keeps the whole chain with filters and byte order.
        variables: Paths of the arrays to copy, with their coordinates; by default all.
        range: By dimension name the part to copy, by the labels of its coordinate: a label, a slice of labels
            or (start, stop), both ends included. `("2010", "2015")` is all of six years.
        index_range: By dimension name the part to copy, by positions: a slice or (start, stop), without the
            end.
        for_window: Extents of a sample of `fn.readers.zarr` along the leading dimensions, for which chunks,
            shards and codec are proposed. What is given beside goes before the proposal.
        batch: Samples of a batch, for the proposal.
        shuffle: Whether samples will be read in random order, for the proposal.
        stats: Whether to find mean and std of the variables in float64, or the JSON file to write them to.
            NaN and infinite values are left out and counted. `mean` and `std` of the file are lists in the
            order of `arrays`, as the reader takes them.
        mask: Statistics of what the reader gives with `mask_and_scale`: without the values that the CF
            attributes `_FillValue` and `missing_value` name, scaled by `scale_factor` and `add_offset`.
        verify: Read source and copy again and compare checksums of their values.
        memory: Bytes for the work, or text such as "2GB"; comes on top of what Python and its libraries take.
            With `dask` for each of its workers.
        workers: Regions that are copied at once; by default one for each core, up to 8. With `dask` in each
            of its workers, by default one for each of their threads.
        dask: Where regions are copied, as tasks of dask.distributed: the address of a scheduler
            ("tcp://HOST:8786") or its file ("FILE.json"), "local:4" for four processes of this machine, a
            client or a cluster. The journal is kept here; workers may come, go and be killed.
        part: One of several parts, "3/8" or (3, 8), each of which another process copies, at the same time or
            not, with the same arguments besides. The last one to end gives the copy its name. A part goes on
            with what it did before it was stopped, and a run without `part`, with `resume`, with what all of
            them did.
        follow_links: False refuses a source with symbolic links that lead out of its folder, for stores from
            strangers.
        storage_options: As for the reader: credentials and endpoints of stores at URLs.
        resume: Keep what an earlier run finished, besides what it copied from files of the source that have
            changed since. Of a copy that is complete already nothing is left to do.
        overwrite: Replace the store at `dst` when the copy is complete, in one step where the file system has
            one. Without `resume` begin anew.
        dry_run: Only plan; `print(rechunk(..., dry_run=True).plan)` shows it.
        progress: Called with ("copying" or "verifying", bytes done, bytes in all), decoded.

    Raises:
        ValueError: Arguments or the source's metadata do not fit, `dst` is taken, or another run is writing
            it.
        RuntimeError: Something failed while copying, such as a full disk, a damaged chunk, a source that
            somebody changed, or a scheduler that does not answer.
        ImportError: zarr-python 3 is missing, or dask.distributed with `dask`.
    """
    import_zarr("rechunk")
    from zarr_dali._rechunk import copying, parts, plan, proposal

    source, destination = _paths(src, dst, storage_options, follow_links)
    if source.is_folder:
        _local.check_store(source.path, follow_links, chunks=not dry_run)
    use = None
    if for_window is not None:
        window = (for_window,) if isinstance(for_window, int) else tuple(for_window)
        if not window or min(window) < 1 or batch < 1:
            raise ValueError("for_window and batch must be 1 or more")
        use = proposal.Use(window, batch, shuffle)
    if isinstance(shards, str):
        if shards != "none":
            raise ValueError(f'shards: {shards!r} is neither "none" nor extents by dimension')
        shards = {}
    count = stats is not False
    if count and stats is not True:
        _check_statistics(Path(stats).resolve(), source, destination)
    if mask and not count:
        raise ValueError("mask is about statistics, which `stats` asks for")
    own = parts.Part.of(part)
    if own is not None and dask is not None:
        raise ValueError("part, dask: each shares the work out in its own way; give one of them")
    start = monotonic()

    def keep(done: copying.Done) -> None:
        if count and stats is not True:
            _write_statistics(Path(stats), done.statistics)

    with nullcontext() if dask is None else clusters.connected(dask) as cluster:
        asked = plan.Request(
            chunks=dict(chunks or {}),
            shards=shards,
            codec=codec,
            variables=_names(variables),
            ranges=_labels.Ranges.of(range, index_range),
            use=use,
            memory=bytes_of(memory),
            threads=Threads.here(workers) if cluster is None else cluster.at_once(workers),
        )
        if cluster is not None:
            cluster.check_memory(asked.memory)
        made = plan.make(asked, source, destination)
        if dry_run:
            return Rechunked(made)
        task = copying.Task(
            mask=mask,
            count=count,
            verify=verify,
            resume=resume,
            overwrite=overwrite,
            tick=progress or (lambda what, done, total: None),
            keep=keep,
            cluster=cluster,
            part=own,
        )
        done = copying.copy(made, task, source)
    return Rechunked(
        plan=made,
        statistics=done.statistics,
        checksums=done.checksums,
        resumed_bytes=done.resumed_bytes,
        again_bytes=done.again_bytes,
        complete=done.complete,
        waiting=done.waiting,
        seconds=monotonic() - start,
    )


def _paths(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: _core.StorageOptions,
    follow_links: bool,
) -> tuple[Source, Path]:
    """Folders without symbolic links, which could hide that one lies in the other."""
    src, dst = _locations.as_text(src), _locations.as_text(dst)
    if "://" in os.fspath(dst) and not os.path.exists(dst):
        shown = _core.without_secrets(os.fspath(dst))
        raise ValueError(f"dst: {shown} is a URL, and copies are written to folders only; choose a folder")
    from zarr_dali._rechunk import copying
    from zarr_dali._rechunk import source as sources

    found = _core.expand([os.fspath(src)], options)
    if len(found) > 1:
        raise ValueError(f"src: {src} matches {len(found)} stores, such as {found[0]}; copy one at a time")
    source, destination = sources.of(found[0], options, follow_links), Path(dst).resolve()
    if not source.is_folder:
        return source, destination
    folder = source.path
    if folder == destination or (destination.exists() and folder.samefile(destination)):
        raise ValueError(f"{dst} is the source itself, which is never written to; choose another folder")
    working = copying.partial_of(destination)
    if folder.is_relative_to(working):
        raise ValueError(f"{src} lies where {dst} is to be written; choose another folder")
    if folder.is_relative_to(destination) or destination.is_relative_to(folder):
        raise ValueError(f"of {src} and {dst} one lies inside the other; choose another folder")
    return source, destination


def _check_statistics(path: Path, source: Source, destination: Path) -> None:
    """What would fail only after all is copied."""
    from zarr_dali._rechunk import copying

    if not path.parent.is_dir():
        raise ValueError(f"stats: there is no folder {path.parent}")
    if source.is_folder and path.is_relative_to(source.path):
        raise ValueError(f"stats: {path} is inside the source, which is never written to")
    if any(path.is_relative_to(one) for one in (destination, copying.partial_of(destination))):
        raise ValueError(f"stats: {path} is inside the copy, which is replaced as a whole")


def _names(variables: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if variables is None:
        return None
    names = (variables,) if isinstance(variables, str) else tuple(variables)
    if not names:
        raise ValueError("variables: none are named")
    return names


def _write_statistics(path: Path, found: dict[str, dict[str, Any]]) -> None:
    """As the reader takes them, arrays without a value left out."""
    from zarr_dali._rechunk import journal

    known = {name: values for name, values in found.items() if values["count"]}
    content = {
        "arrays": list(known),
        "mean": [values["mean"] for values in known.values()],
        "std": [values["std"] for values in known.values()],
        "statistics": found,
    }
    journal.write_whole(path, (json.dumps(content, indent=2) + "\n").encode())
