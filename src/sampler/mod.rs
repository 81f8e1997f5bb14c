//! Which samples a batch holds: windows over the array, reader shards, padding and shuffling that keeps
//! chunks together. Pure.
#![forbid(unsafe_code)]

mod groups;
mod order;
mod rest;
mod windows;

pub use groups::{Buffer, Grid, Groups};
pub use order::{Drawn, Order, OrderArguments, Played, Position, Shuffle};
pub use windows::{Axis, Run, WindowArguments, Windows};

/// Version of the order of samples. It is raised whenever the same arguments would give another order, so that checkpoints of
/// the old order are refused.
pub const VERSION: u64 = 1;
