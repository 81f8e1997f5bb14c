"""What a reader has done so far."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

from zarr_dali._plugin import core_path

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


def stats(pipeline: Pipeline, reader_name: str | None = None) -> dict[str, Any]:
    """Counts what the Zarr reader of a built pipeline has done so far.

    Args:
        pipeline: a pipeline that was built.
        reader_name: the reader's `name`; not needed if the pipeline has only one reader.

    Returns:
        A dict.

        - `samples`: of an epoch, all reader shards together.
        - `batches`: taken by DALI, which is ahead of those that the user has by the pipeline's own queue.
          `samples_delivered`: in these batches.
        - `chunks_read`, `chunks_missing` (not in the store), `chunks_decoded`.
        - `chunks_prefetched`: the chunks read that were not in the page cache, and that the system was asked
          to fetch before their turn.
        - `chunks_decoded_gpu`, `chunks_decoded_cpu`: the chunks that the GPU and the CPU decoded.
        - `chunks_decoded_sm_partition`: the chunks that the GPU decoded on an SM partition, a sixth of its
          multiprocessors, while DALI did not wait.
        - `policy`: who decodes at the moment and why, at which rate batches are taken, and the rates in GB/s
          of the GPU, of both and of the CPU as far as they were tried or estimated; one sentence for people.
          None before the first batch.
        - `chunks_reused`: how often a batch found a chunk in memory, or on its way there for another batch.
        - `cache_hits`: how often that was a chunk of an earlier epoch.
        - `bytes_read` (encoded), `bytes_read_gds` (read by cuFile), `bytes_decoded`, `bytes_decoded_gpu`,
          `bytes_decoded_cpu`.
        - `requests`: to stores at URLs, for chunks, parts of large chunks and shard indexes.
          `requests_retried`: how often one failed for a reason that may pass (503, 429, a connection that
          broke) and was sent again. `requests_hedged`: how often one was late and another was sent beside
          it (a hedged request). `requests_in_flight`: now, and the most so far: `requests_in_flight_peak`.
        - `connections_opened`: to stores at URLs, each counted with the first answer that came over it.
        - `bytes_fetched`: bytes on the wire: of the bodies of answers, without headers and TLS.
          `bytes_fetched_useful`: those of them that are encoded chunks that batches have taken; the rest is
          shard indexes, gaps between inner chunks that were requested together, answers that broke off, and
          chunks that were requested ahead and wait for their batch or were dropped. Of a late answer whose
          hedged request was faster, no body is read.
          `bytes_received_pinned`: those that were received in pinned memory and copied to the GPU from there.
        - `bytes_fetched_per_sample`: `bytes_fetched` by `samples_delivered`, with what was requested ahead
          for later batches; None before the first.
        - `ms_time_to_first_byte_p50`, `ms_time_to_first_byte_p99`: milliseconds from a request to the first
          byte of its answer, of half and of 99 % of all requests, to 3 %. Connecting, repeats after 503 or a
          broken connection and second requests are within. None before the first answer.
        - `disk_cache_hits`, `disk_cache_misses`: chunks and shard indexes that were found in `cache_dir` or
          waited to be written to it, and those that had to be requested. `disk_cache_discarded`: entries that
          could not be used, as after damage of the disk, and were removed. `disk_cache_dropped`: what was
          requested and not written, because the disk was too slow or there was no room.
          `disk_cache_bytes_read`, `disk_cache_bytes_written`: encoded bytes from and to it.
        - `ms_waiting_fetch`, `ms_waiting_cpu`, `ms_waiting_gpu`, `ms_waiting_gather`: milliseconds that DALI
          waited for a batch, by what its last chunk was waiting for: to be read, to be decoded by the CPU or
          the GPU, to be copied and gathered.
        - `ms_waiting_consumer`: milliseconds in which all submitted batches were complete, and the reader
          waited for DALI.
        - `device_memory_bytes`, `host_memory_bytes` (on the GPU backend pinned memory), and the most of each
          so far: `device_memory_peak_bytes`, `host_memory_peak_bytes`.
        - `chunk_cache_bytes`: memory for decoded chunks that later batches use; `chunk_cache_peak_bytes`: the
          most of it that was in use.
        - `shuffle`: how samples are mixed; None where no chunk belongs to several samples.
        - `channels`: with `stack_channels` the array of each channel, and its indices in the store along the
          dimensions that became channels, by name; else None.
        - `position`: behind the last of `batches`; a reader with the argument `position` continues there.

        Former names, which the next release will not have: `chunks_decoded_green` for
        `chunks_decoded_sm_partition`, `resident_bytes` for `chunk_cache_bytes`, `resident_peak_bytes` for
        `chunk_cache_peak_bytes`.

    Raises:
        ValueError: there is no such reader, or not only one, or it is no Zarr reader.
    """
    readers = list(pipeline.reader_meta())
    if reader_name is None and len(readers) != 1:
        raise ValueError(f"reader_name is needed to tell which of the readers {sorted(readers)} is meant")
    if reader_name is not None and reader_name not in readers:
        raise ValueError(f"reader_name={reader_name!r} is none of the pipeline's readers {sorted(readers)}")
    library = ctypes.CDLL(str(core_path()))
    library.zarr_dali_stats.restype = ctypes.c_void_p
    library.zarr_dali_free_text.argtypes = [ctypes.c_void_p]
    # The library answers for the reader whose metadata this thread asked for last: forget earlier ones.
    library.zarr_dali_free_text(library.zarr_dali_stats())
    pipeline.reader_meta(reader_name or readers[0])
    status = library.zarr_dali_stats()
    if status is None:
        raise ValueError(f"{reader_name or readers[0]!r} is no Zarr reader")
    try:
        return json.loads(ctypes.string_at(status))
    finally:
        library.zarr_dali_free_text(status)
