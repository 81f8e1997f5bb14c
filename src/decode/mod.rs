//! From encoded bytes to elements in outputs: jobs are queued, worker threads read chunks and decode or upload them, GPU workers
//! decode the uploaded chunks in groups.
//!
//! ```text
//!   planner ----> jobs ----> worker: chunk_source -> cpu ------------------> outputs (CPU backend)
//!      |           |                       |          v
//!      |         policy                    '-------> upload -> gpu_worker -> outputs (GPU backend)
//!      '---- units of cached chunks (GPU backend) -----------------^  group: sizes, work list
//! ```
//!
//! Whether the CPU or the GPU decodes a chunk is decided in this order: by the backend, `decode=` and what the GPU can decode of the array's codec
//! chain (`reader::setup::decode_path`, which asks `codec::decode_path`), of which follows the part's [`part::Placement`]; by `policy`, where both can,
//! at each moment for the next chunk ([`jobs`]; with `decode="gpu"` no thread decodes, and the GPU takes all); and at last by the chunk's bytes
//! ([`upload`]): the thread that reads a chunk decodes it where the kernels do not, such as one that is longer than its codecs make it.
//!
//! [`chunk`], [`job`], [`gpu_task`] and [`part`] are the values that pass between these; chunks of stores at URLs reach [`jobs`] by `fetch::Remote`.
//! Threads and GPU workers tell the policy through [`jobs`] what they have done, and ask it there what to do next. A thread that waits for memory
//! of a pool first submits the copies that it has collected ([`flush`]): it may be waiting for their memory.

pub mod chunk;
pub mod chunk_cache;
pub mod chunk_source;
pub mod cpu;
pub mod device_pool;
pub mod flush;
pub mod gpu_task;
pub mod gpu_worker;
pub mod group;
pub mod job;
pub mod jobs;
pub mod nvcomp;
pub mod part;
pub mod planner;
mod policy;
pub mod prefetch;
mod queue;
pub mod upload;
pub mod verified;
pub mod watchdog;
pub mod worker;

pub use queue::Queue;
