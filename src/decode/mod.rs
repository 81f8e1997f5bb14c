//! From read chunks to elements in outputs: a planner that shares chunks between batches, workers on the CPU, lanes on
//! the GPU, queues between them.

pub mod ahead;
pub mod chunk;
pub mod jobs;
pub mod known;
pub mod lane;
pub mod nvcomp;
pub mod planner;
mod policy;
mod queue;
pub mod residents;
pub mod rooms;
pub mod sender;
pub mod watchdog;
pub mod worker;

pub use queue::Queue;
