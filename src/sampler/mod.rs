//! Which samples a batch holds: windows over the array, reader shards, padding and shuffling that keeps
//! chunks together. Pure.
#![forbid(unsafe_code)]

mod axis;
mod choice;
mod domain_groups;
mod domains;
mod epoch_lists;
mod grid;
mod groups;
mod listed;
mod order;
mod random;
mod rest;
mod strands;
mod visit;
mod walk;
mod whole;
mod windows;

pub use axis::{Axis, Run};
pub use choice::{Choice, Weights};
pub use domains::{Domain, Domains};
pub use grid::Grid;
pub use groups::{Buffer, Groups};
pub use order::{Drawn, Order, OrderArguments, Position, Shuffle};
pub use rest::Played;
pub use windows::{AxisOffsets, WindowArguments, Windows};

/// Version of the order of samples. It is raised whenever the same arguments would give another order, so that checkpoints of
/// the old order are refused.
pub const VERSION: u64 = 2;
