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
//! Four things decide whether the CPU or the GPU decodes a chunk: what the GPU can decode of the array's codec chain (`codec`), whether
//! `decode=` leaves a choice ([`part::Placement`]), the policy, which says at each moment who takes the next one, and at last the bytes of
//! the chunk itself, of which a few have to go back to the CPU ([`upload`]).
//!
//! [`chunk`], [`job`], [`gpu_task`] and [`part`] are the values that pass between these. The policy says which chunks the
//! GPU takes; workers and GPU workers see it as [`pace`]. Pools call [`flush`] before they wait.

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
