//! From read chunks to elements in outputs: workers on the CPU, lanes on the GPU, a queue between them.

pub mod known;
pub mod lane;
pub mod nvcomp;
mod queue;
pub mod worker;

pub use queue::Queue;
