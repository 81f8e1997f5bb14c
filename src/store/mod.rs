//! Where the bytes of a store are. There is one contract for all of them: an object is named by a key and read in whole or in part.
//!
//! *Missing* is only what a store says is absent. No other error is ever taken for it, because a missing chunk reads as the fill value.

mod access;
mod aws_profile;
mod bare;
mod buffers;
mod client;
mod cloud;
mod connections;
mod contract;
mod failed;
mod folder;
mod http1;
mod icechunk;
mod landing;
mod local;
mod memory;
mod pool;
mod references;
mod retries;
mod session;
mod socket;
mod stamp;
mod targets;
mod traffic;
mod uri;
mod zip;

pub use access::{Access, StorageOptions, without_secrets};
pub use bare::{Bare, How, read_bare};
pub use buffers::Buffers;
pub use cloud::CloudStore;
pub use connections::Connections;
pub use contract::{Body, Extent, Head, Listing, Store, Version, read_part, read_whole};
pub use folder::Folder;
pub use icechunk::{IcechunkStore, pinned};
pub use memory::MemoryStore;
pub use references::{KeptDocuments, ReferenceStore};
pub use session::{Session, Sessions};
pub use stamp::Stamp;
pub use targets::{Origin, Targets};
pub use traffic::Traffic;
pub use uri::{is_url, open};
pub use zip::ZipStore;
