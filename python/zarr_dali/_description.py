"""What is known of a store's arrays and of reading them: the plugin's answers as typed values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from zarr_dali._codecs import chain_in_words
from zarr_dali._ome import Axis

NOT_OF_THE_STORE = ("beside-training", "not-consolidated")
"""Codes of advice after which chunks and codecs may well stay as they are."""


@dataclass(frozen=True)
class Output:
    """One output of a reader."""

    type: str
    """Type of the elements."""
    shape: tuple[int, ...]
    """Shape of a sample."""
    layout: str
    """DALI layout of a sample, or empty."""


@dataclass(frozen=True)
class GpuMemory:
    """The most bytes of GPU memory that a batch needs if all its chunks are decoded at once."""

    outputs: int
    encoded: int
    decoded: int
    scratch: int
    """What decoding needs besides, the scratch memory of zstd above all."""

    @property
    def total(self) -> int:
        return self.outputs + self.encoded + self.decoded + self.scratch


@dataclass(frozen=True)
class Chosen:
    """How far a reader would run ahead, and with what. What is None does not belong to the backend."""

    depth: int
    """Batches in flight."""
    budget_bytes: int | None = None
    """GPU memory that it would use at most, or host memory on the CPU backend."""
    chunk_cache_bytes: int | None = None
    """The part of it for decoded chunks that later batches use."""
    resident_bytes: int | None = None
    """The former name of `chunk_cache_bytes`."""
    upload_pool_bytes: int | None = None
    """The part of it that chunks are uploaded to."""
    landing_bytes: int | None = None
    """The former name of `upload_pool_bytes`."""
    pinned_bytes: int | None = None
    """Pinned host memory that it would use at most."""
    io: str | None = None
    """How chunks are read: "gds" (cuFile) or "posix"."""
    io_threads: int | None = None
    """Threads that read."""
    decode_threads: int | None = None
    """Threads that decode on the CPU."""
    gpu_workers: int | None = None
    """Threads that have the GPU decode a group of chunks each."""
    lanes: int | None = None
    """The former name of `gpu_workers`."""
    arena_bytes: int | None = None
    """GPU memory of each GPU worker."""


@dataclass(frozen=True)
class Requested:
    """What an epoch asks of stores that are not folders of this machine, estimated from its first batches."""

    requests: int
    """Those for indexes of sharded chunks included, and inner chunks taken to be asked for together."""
    bytes: int
    """Encoded bytes, by the sizes of some chunks."""


@dataclass(frozen=True)
class Reading:
    """What reading costs with the given arguments."""

    samples: int
    batch_size: int
    outputs: tuple[Output, ...]
    batch_bytes: int
    """Of all outputs."""
    chunks_per_sample: float
    """Read chunks that a sample touches; the mean over up to 64 samples."""
    chunks_per_batch: int
    """Read chunks that the first batch touches, each counted once."""
    sample_amplification: float | None
    """Decoded bytes for each byte of a sample that is read on its own; None for samples without elements."""
    batch_amplification: float | None
    """The same for the first batch, whose samples share chunks."""
    gpu_memory: GpuMemory | None = None
    """On the GPU backend."""
    chosen: Chosen | None = None
    not_chosen: str | None = None
    """Why `chosen` is not known, or why a reader would be refused."""
    remote: Requested | None = None
    """Of an array alone that is in a store at a URL, or in a zip file or the like."""

    @classmethod
    def of(cls, answer: dict[str, Any] | None) -> tuple[Reading | None, str | None]:
        """The reading, or the problem that stands in its way."""
        if answer is None or "problem" in answer:
            return None, answer and answer["problem"]
        parsed = dict(answer)
        parsed["outputs"] = tuple(
            Output(output["type"], tuple(output["shape"]), output["layout"]) for output in answer["outputs"]
        )
        for name, kind in (("gpu_memory", GpuMemory), ("chosen", Chosen), ("remote", Requested)):
            if answer.get(name) is not None:
                parsed[name] = kind(**answer[name])
        return cls(**parsed), None


@dataclass(frozen=True)
class Advice:
    """What about the chunks or codecs of some arrays costs speed or memory, and what to write instead."""

    code: str
    """What it is about: see `zarr_dali._advice`."""
    arrays: tuple[str, ...]
    text: str

    @property
    def is_to_rewrite(self) -> bool:
        """Whether other chunks or codecs would help."""
        return self.code not in NOT_OF_THE_STORE


@dataclass(frozen=True)
class ArrayReport:
    """One array. Sizes are in bytes. What is None is not known of an array that is refused."""

    name: str
    """Path inside the store; empty if the store is the array."""
    zarr_format: int | None
    shape: tuple[int, ...]
    data_type: str
    chunk: tuple[int, ...]
    """One store key. Of joined stores, the first one's."""
    inner_chunk: tuple[int, ...] | None
    """A part of a sharded chunk."""
    codecs: tuple[dict[str, Any], ...]
    """In the order of encoding, each with its `name` and its `configuration`."""
    chain: str
    """The same in words."""
    decode_path: Literal["GPU", "CPU", "refused"]
    """Where its chunks would be decoded."""
    reason: str
    """With what, or why not on the GPU or not at all."""
    output_type: str | None = None
    """Type of the elements that are handed out."""
    stores: int | None = None
    """How many stores are read together."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The array's shape in each of them, with `join="separate"`; `shape` is then that in the first."""
    snapshots: tuple[str | None, ...] = ()
    """The Icechunk snapshot of each of these stores, None for other stores; empty without any."""
    read_chunk_bytes: int | None = None
    """Decoded size of what is decoded at once."""
    decoded_bytes: int | None = None
    stored_bytes: int | None = None
    """Sum of the chunk files."""
    chunks: int | None = None
    chunks_present: int | None = None
    """Those that have a file; the others read as fill value."""
    sampled: bool = False
    """`stored_bytes` and `chunks_present` are estimated from the files of 4096 chunks."""
    dimensions: tuple[str, ...] = ()
    """Their names; empty where not all have one."""
    axes: tuple[Axis, ...] = ()
    """Of a level of an OME-Zarr image: its axes with their units and scales."""
    coordinate: bool = False
    """Whether it belongs to others that are listed, as a coordinate of a dimension or by CF attributes."""
    static: Output | None = None
    """What comes of it beside an array with more dimensions, where it lacks the first of these: all of it, or
    what is under the window, in every sample."""
    consolidated: bool | None = None
    """Whether consolidated metadata said what it is; None where metadata cost no requests."""
    reading: Reading | None = None
    """A reader of this array alone; None for static arrays."""
    problem: str | None = None
    """Why there is no such reader with these arguments."""

    @property
    def values(self) -> int:
        """How many values the array has, in all stores together."""
        return sum(map(math.prod, self.shapes or [self.shape]))

    @property
    def ratio(self) -> float | None:
        """Decoded bytes of the chunks that are present, for each stored byte."""
        if not self.stored_bytes or not self.chunks or self.decoded_bytes is None:
            return None
        return self.decoded_bytes * (self.chunks_present or 0) / self.chunks / self.stored_bytes

    @classmethod
    def of(cls, answer: dict[str, Any]) -> ArrayReport:
        parsed = dict(answer)
        parsed["reading"], parsed["problem"] = Reading.of(answer.get("reading"))
        for name in ("shape", "chunk", "codecs"):
            parsed[name] = tuple(answer[name])
        parsed["snapshots"] = tuple(answer.get("snapshots", ()))
        parsed["shapes"] = tuple(map(tuple, answer.get("shapes", ())))
        parsed["inner_chunk"] = None if answer["inner_chunk"] is None else tuple(answer["inner_chunk"])
        return cls(chain=chain_in_words(answer["codecs"]), **parsed)
