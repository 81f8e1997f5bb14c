//! From encoded bytes to elements in outputs: jobs are queued, worker threads read chunks and decode or upload them, GPU workers
//! decode the uploaded chunks in groups.
//!
//! ```text
//!   planner ----> jobs ----> worker: chunk_source -> cpu ----------------> outputs (CPU backend)
//!      |           |                             \-> upload -> gpu_worker -> outputs (GPU backend)
//!      |         policy                                          ^  group: sizes, work list
//!      '------------ units of cached chunks -------------------'
//! ```
//!
//! Whether the CPU or the GPU decodes a chunk is decided in this order: by the backend, `decode=` and what the GPU can decode of the array's codec
//! chain (`codec::decode_path`, `reader::setup::decode_path`), which makes an array's [`part::Placement`]; by `policy`, where both can, at each moment
//! for the next chunk ([`jobs`]; without threads that decode the GPU takes all); and at last by the bytes of the chunk itself, of which a few
//! have to go back to the CPU ([`upload`]: longer than their codecs make them, or a frame that the kernels do not decode).
//!
//! [`chunk`], [`job`], [`gpu_task`] and [`part`] are the values that pass between these. Worker threads and GPU workers tell the policy what they
//! have done, and ask it, through the trait [`pace::Pace`]. A thread that waits for memory of a pool first submits the copies that it has
//! collected ([`flush`]): it may be waiting for their memory.

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
pub mod pace;
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
