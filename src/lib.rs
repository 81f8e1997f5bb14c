//! The core of zarr-dali: from Zarr stores to training batches.
//!
//! A sample enters as a number and leaves as a tensor. In between is one decode path:
//!
//! ```text
//!   cpp_shim/           the DALI operator: arguments, output memory, checks
//!      | bridge         the boundary to C++; `python` is that to Python
//!   reader              runs the decode path on its own threads, keeps the batches in order
//!      |
//!   1 sampler           epoch, shuffle, reader shard, padding      -> which windows, in which order
//!   2 plan              windows -> read chunks, each once, and the boxes that are copied out of them
//!   3 fetch             read chunks -> byte ranges -> encoded bytes
//!   4 codec, decode     encoded bytes -> decoded chunks: kernels on the GPU, decoders of ours and zarrs on the CPU
//!   5 assemble          decoded chunks -> samples: one gather, byte order, CF decoding and casts included
//!   6 batch             complete when its last chunk is
//! ```
//!
//! The way of one chunk, by file: `reader/mod` submits a batch, whose samples are those of `sampler/order` -> `decode/planner`, which asks `plan/mod` for chunks
//! -> (not in a local folder: `fetch/remote` -> `fetch/scheduler` -> `fetch/transfer` -> `store/cloud`) -> `decode/jobs`, `decode/policy` -> `decode/worker`.
//! Then, on the GPU backend: `decode/upload/chunk_upload` -> `decode/gpu_worker` -> `decode/group/plan` -> the codec's kernels -> `kernels/gather.cu`; on the CPU
//! backend: `decode/cpu` -> `assemble/host`. Both find a chunk's bytes by `decode/chunk_source` (`fetch/locate`, `fetch/posix`). At last `batch`.
//!
//! Where to look first:
//!
//! - who decodes a chunk, the CPU or the GPU: [`decode`], then `decode/policy/mod.rs`
//! - timeouts, and requests that are repeated: [`store`]
//! - what a new codec needs: [`codec`]
//! - which chunks are missing and read as the fill value: `ChunkSource::find` in [`decode::chunk_source`]
//! - threads, where they begin and end: [`reader`]
//!
//! [`store`] is files and objects, [`dataset`] arrays and groups, [`gpu`] owns what belongs to CUDA, [`options`] holds what users can set and
//! [`error`] everything that can go wrong. [`foreground`] finds the samples that a mask keeps,
//! [`presence`] those that touch no missing chunk, [`info`] says beforehand what a reader would do with a store, and [`python`] lends stores to Python.
//!
//! Words: a *chunk* is one cell of the array's chunk grid and one store key. A *sharded chunk* holds *inner chunks*. A
//! *read chunk* is what is decoded at once: the inner chunk if there is one, else the chunk. A *reader shard* is DALI's
//! part of the samples.

pub mod assemble;
pub mod batch;
pub mod bridge;
pub mod codec;
pub mod dataset;
pub mod decode;
pub mod error;
pub mod fetch;
pub mod foreground;
pub mod gpu;
pub mod info;
pub mod json;
pub mod lists;
pub mod machine;
pub mod memory;
pub mod options;
pub mod plan;
pub mod presence;
pub mod python;
pub mod reader;
pub mod sampler;
pub mod stats;
pub mod store;
pub mod trace;
