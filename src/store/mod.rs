//! Where the files of a store come from. There is one way to open any of them, metadata and chunks alike.

mod local;

pub use local::{Folder, Obstacle, Stamp};
