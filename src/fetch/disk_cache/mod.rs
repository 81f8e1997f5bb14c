//! A cache of encoded chunks on a local disk, for stores that are not folders of this machine. Ranks and runs share it.
//!
//! ```text
//! DIR/zarr-dali-1/usage                          bytes of all entries, and of those that are being written
//! DIR/zarr-dali-1/ARRAY/XX/REST                  an entry: a header, then a chunk, an inner chunk or a shard index
//! ```
//!
//! ARRAY is a hash of the store, the array and the version of its metadata; XX and REST are a hash of the object's key and of what was asked
//! for. What is trusted: an entry has the bytes that the store has, as long as the metadata of its array have the same version. Within a
//! sharded chunk the index says which version of the object its inner chunks have to be of, in the cache as in the store.
//!
//! Safe at any moment at which a process is killed: bytes are added to `usage` before an entry is written and taken off after it was
//! unlinked, an entry has a name only when it is complete, and whoever reads one compares header and checksum. `usage` can be too large then,
//! never too small; who is alone in the folder when it starts counts anew. No lock of the folder is waited for.
//!
//! A thread writes entries in the background. What waits for it is found as well: readers of the process get it out of memory, which counts
//! for the queue until nobody has it any more. Other processes find an entry when it is written.

mod cache;
mod cached;
mod entry;
mod folder;
mod pending;
mod scan;
mod writer;

pub use cache::DiskCache;

#[cfg(test)]
mod tests;
