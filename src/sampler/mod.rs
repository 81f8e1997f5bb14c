//! Which samples a batch holds: windows over the array, reader shards, padding and shuffling. Pure.
#![forbid(unsafe_code)]

mod order;
mod windows;

pub use order::{Order, OrderArguments};
pub use windows::Windows;
