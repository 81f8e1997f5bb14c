//! From read chunks to elements in outputs: a planner that shares chunks between batches, workers on the CPU, GPU workers on
//! the GPU, queues between them.

pub mod chunk;
pub mod chunk_cache;
pub mod device_pool;
pub mod gpu_worker;
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
