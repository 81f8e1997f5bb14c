"""What a reader has done so far."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

from zarr_dali._plugin import library_path

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


def stats(pipeline: Pipeline, reader_name: str | None = None) -> dict[str, Any]:
    """Counts what the Zarr reader of a built pipeline has done so far.

    Args:
        pipeline: a pipeline that was built.
        reader_name: the reader's `name`; not needed if the pipeline has only one reader.

    Returns:
        `samples` of an epoch, all reader shards together; `batches` that DALI has taken, ahead of those that
        the user has by the pipeline's own queue; `chunks_read`; `chunks_prefetched`, those of them that were
        not in the page cache and that the system was asked to fetch before their turn; `chunks_missing`,
        `chunks_decoded`, `chunks_decoded_gpu`, `chunks_decoded_green`, those of them that the GPU decoded on
        few of its multiprocessors while DALI did not wait, `chunks_decoded_cpu` and `chunks_reused` (a batch
        found a chunk that was there already); `cache_hits`, those of them that were there from an earlier
        epoch; `bytes_read` (encoded), `bytes_read_gds` (those that cuFile read), `bytes_decoded`,
        `bytes_decoded_gpu` and `bytes_decoded_cpu`; the milliseconds that DALI waited for batches, by what
        the last chunk of each was waiting for: `ms_waiting_fetch`, `ms_waiting_cpu` and `ms_waiting_gpu` (to
        be decoded there) and `ms_waiting_gather` (copies and gathering), and `ms_waiting_consumer`, in which
        everything was ready and the reader waited for DALI; `device_memory_bytes`, `host_memory_bytes` (in
        the GPU backend pinned memory) and the most of each so far, `device_memory_peak_bytes` and
        `host_memory_peak_bytes`; `resident_bytes` for chunks that stay in memory, and `resident_peak_bytes`
        of them that were ever used; `shuffle`, how samples are mixed, or None where no chunk belongs to
        several; `position` behind the last of `batches`, from which a reader with the argument `position`
        goes on.

    Raises:
        ValueError: there is no such reader, or not only one, or it is no Zarr reader.
    """
    readers = list(pipeline.reader_meta())
    if reader_name is None and len(readers) != 1:
        raise ValueError(f"reader_name is needed to tell which of the readers {sorted(readers)} is meant")
    if reader_name is not None and reader_name not in readers:
        raise ValueError(f"reader_name={reader_name!r} is none of the pipeline's readers {sorted(readers)}")
    library = ctypes.CDLL(str(library_path()))
    library.zarr_dali_stats.restype = ctypes.c_void_p
    library.zarr_dali_free_text.argtypes = [ctypes.c_void_p]
    # Whose metadata are asked for, of that the library tells.
    library.zarr_dali_free_text(library.zarr_dali_stats())
    pipeline.reader_meta(reader_name or readers[0])
    told = library.zarr_dali_stats()
    if told is None:
        raise ValueError(f"{reader_name or readers[0]!r} is no Zarr reader")
    try:
        return json.loads(ctypes.string_at(told))
    finally:
        library.zarr_dali_free_text(told)
