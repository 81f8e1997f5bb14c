"""How fast nvCOMP decodes a store's own zstd chunks when they are on the GPU already.

The calls are those of the reader (`src/decode/nvcomp.rs`): scratch memory is asked for with the chunks at
hand, then one call decodes them. Memory and streams are PyTorch's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from zarr_dali._bench.work import Work
from zarr_dali._codecs import inner_codecs, short_name
from zarr_dali._description import ArrayReport

COUNTS = (1, 16, 96, 384, 1536)
"""Chunks of a call. Its time hardly depends on them up to hundreds."""
ALIGNMENT_BYTES = 256
REPETITIONS = 3
DECODED_SHARE = 0.15
"""Of the free GPU memory; encoded chunks and scratch memory (3 times the decoded bytes) need room too."""
MOST_DECODED_BYTES = 4 << 30
MISSING = 2**64 - 1
MAGIC = b"\x28\xb5\x2f\xfd"
LIBRARY_VARIABLE = "ZARR_DALI_NVCOMP_LIBRARY"
SONAME = "libnvcomp.so.5"


class Options(ctypes.Structure):
    """nvcompBatchedZstdDecompressOpts_t: all zeros are the defaults."""

    _fields_ = (("backend", ctypes.c_int), ("reserved", ctypes.c_char * 60))


def zstd_rate(work: Work) -> tuple[float, str]:
    """GB/s of decoded bytes, the best of calls with few and with many chunks, and with how many.

    Raises:
        ImportError: PyTorch is missing.
        ValueError: The chunks of no array are plain zstd frames.
        OSError: nvCOMP is missing.
        RuntimeError: nvCOMP refuses.
    """
    import torch

    arrays = [number for number, report in enumerate(work.reports) if is_zstd(report)]
    if not arrays:
        raise ValueError("only chunks that are zstd and nothing else can be given to nvCOMP alone")
    decoded_bytes = max(work.reports[number].read_chunk_bytes for number in arrays)
    free, _ = torch.cuda.mem_get_info()
    most = max(1, min(max(COUNTS), int(min(free * DECODED_SHARE, MOST_DECODED_BYTES)) // decoded_bytes))
    frames = list(itertools.islice(encoded_chunks(work, arrays), most))
    if not frames:
        raise ValueError("the arrays have no chunks in the steps that are read")
    counts = sorted({min(count, len(frames)) for count in COUNTS})
    with torch.cuda.stream(torch.cuda.Stream()):
        batch = _Batch(_library(), frames, decoded_bytes)
        rates = {count: batch.rate(count) for count in counts}
    best = max(rates, key=rates.__getitem__)
    others = ", ".join(f"{rate:.1f} with {count}" for count, rate in rates.items() if count != best)
    return rates[best], f"{best} chunks in one call" + (f" ({others})" if others else "")


def is_zstd(report: ArrayReport) -> bool:
    """Whether the read chunks are zstd frames, with nothing around them."""
    codecs = [short_name(codec) for codec in inner_codecs(report.codecs)]
    return bool(codecs) and codecs[-1] == "zstd" and set(codecs[:-1]) <= {"bytes", "transpose"}


def encoded_chunks(work: Work, arrays: list[int]) -> Iterator[tuple[bytes, int]]:
    """The encoded read chunks of some arrays, with their decoded sizes."""
    for number, key in work.chunk_keys():
        if number not in arrays or (content := work.content(key)) is None:
            continue
        report = work.reports[number]
        parts = [content] if report.inner_chunk is None else inner_chunks(content, report)
        for part in parts:
            if not part.startswith(MAGIC):
                raise ValueError(f"{work.shown}/{key} holds something else than zstd frames")
            yield part, report.read_chunk_bytes


def inner_chunks(chunk: bytes, report: ArrayReport) -> Iterator[bytes]:
    """The encoded inner chunks of a sharded chunk that are there."""
    configuration = report.codecs[0]["configuration"]
    count = int(np.prod([-(-c // i) for c, i in zip(report.chunk, report.inner_chunk)]))
    names = [codec["name"] if isinstance(codec, dict) else codec for codec in configuration["index_codecs"]]
    index_bytes = 16 * count + 4 * ("crc32c" in names)
    content = memoryview(chunk)
    at_start = configuration.get("index_location", "end") == "start"
    index = content[:index_bytes] if at_start else content[len(content) - index_bytes :]
    for offset, size in np.frombuffer(index[: 16 * count], "<u8").reshape(count, 2).tolist():
        if size != MISSING:
            yield bytes(content[offset : offset + size])


class _Batch:
    """Chunks on the GPU, with the arrays of addresses and sizes that a call takes."""

    def __init__(self, library: ctypes.CDLL, frames: list[tuple[bytes, int]], decoded_bytes: int) -> None:
        import torch

        self.torch, self.library, self.decoded_bytes = torch, library, decoded_bytes
        starts = np.cumsum([0, *(_aligned(len(frame)) for frame, _ in frames)])
        packed = np.zeros(int(starts[-1]), np.uint8)
        for start, (frame, _) in zip(starts, frames):
            packed[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
        room = _aligned(decoded_bytes)
        self.encoded = torch.from_numpy(packed).cuda()
        self.decoded = torch.empty(room * len(frames), dtype=torch.uint8, device="cuda")
        self.sizes = [size for _, size in frames]
        self.encoded_at = self._on_gpu([self.encoded.data_ptr() + int(start) for start in starts[:-1]])
        self.encoded_sizes = self._on_gpu([len(frame) for frame, _ in frames])
        self.decoded_at = self._on_gpu([self.decoded.data_ptr() + room * i for i in range(len(frames))])
        self.decoded_sizes = self._on_gpu(self.sizes)
        self.written = torch.zeros_like(self.decoded_sizes)
        self.statuses = torch.full((len(frames),), -1, dtype=torch.int32, device="cuda")

    def rate(self, count: int) -> float:
        """GB/s out of calls with the first chunks; the best of a few."""
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        needed = ctypes.c_size_t()
        _call(
            self.library.nvcompBatchedZstdDecompressGetTempSizeSync,
            *map(_pointer, (self.encoded_at, self.encoded_sizes)),
            ctypes.c_size_t(count),
            ctypes.c_size_t(self.decoded_bytes),
            ctypes.byref(needed),
            ctypes.c_size_t(self.decoded_bytes * count),
            Options(),
            None,
            stream,
        )
        scratch = self.torch.empty(max(1, needed.value), dtype=self.torch.uint8, device="cuda")
        best = float("inf")
        for _ in range(1 + REPETITIONS):
            self.torch.cuda.current_stream().synchronize()
            began = time.perf_counter()
            _call(
                self.library.nvcompBatchedZstdDecompressAsync,
                *map(_pointer, (self.encoded_at, self.encoded_sizes, self.decoded_sizes, self.written)),
                ctypes.c_size_t(count),
                _pointer(scratch),
                needed,
                _pointer(self.decoded_at),
                Options(),
                _pointer(self.statuses),
                stream,
            )
            self.torch.cuda.current_stream().synchronize()
            best = min(best, time.perf_counter() - began)
        failed = self.statuses[:count].cpu().numpy()
        if failed.any() or (self.written[:count].cpu().numpy() != self.sizes[:count]).any():
            raise RuntimeError(
                f"nvCOMP could not decode the chunks (statuses {sorted(set(failed.tolist()))})"
            )
        return sum(self.sizes[:count]) / best / 1e9

    def _on_gpu(self, values: list[int]) -> Any:
        return self.torch.tensor(values, dtype=self.torch.int64, device="cuda")


def _library() -> ctypes.CDLL:
    """The library that the plugin loads as well: never a second copy of nvCOMP in the process."""
    if named := os.environ.get(LIBRARY_VARIABLE):
        return ctypes.CDLL(named)
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        (folder,) = find_spec("nvidia.libnvcomp").submodule_search_locations
        return ctypes.CDLL(str(Path(folder, "lib64", SONAME)))


def _call(function: Any, *arguments: Any) -> None:
    function.restype = ctypes.c_int
    if status := function(*arguments):
        raise RuntimeError(f"{function.__name__}: nvCOMP status {status}")


def _pointer(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
