//! The indexes of sharded chunks that were fetched or found in the disk cache.

use super::disk_cache::DiskCache;
use super::locate::ShardKey;
use super::resolve::{Address, decode_index};
use crate::dataset::Sharding;
use crate::error::{Context, Error, Result};
use crate::plan::shard_index::ShardIndex;
use crate::store::{Head, Version};

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lru::LruCache;

/// The indexes of sharded chunks.
pub(super) struct Indexes<C> {
    /// What the indexes say that were used last; `None` for a sharded chunk that is absent.
    pub known: LruCache<ShardKey, Option<Arc<KnownIndex>>>,
    /// The read chunks that wait for an index, with the number of the batch that wants them.
    pub waiting: HashMap<ShardKey, Vec<(u64, C, Address)>>,
}

/// The most indexes that are kept.
const MOST_KEPT: u64 = 1 << 16;
/// An estimate of what an index takes in memory beside its entries: the key of the sharded chunk, the version of its object, allocations.
const OVERHEAD_BYTES: u64 = 512;

/// How many indexes of at most `index_bytes` bytes are kept in `bytes` bytes.
pub fn kept_indexes(index_bytes: u64, bytes: u64) -> NonZeroUsize {
    let most = (bytes / index_bytes.saturating_add(OVERHEAD_BYTES)).clamp(1, MOST_KEPT) as usize;
    NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN)
}

impl<C> Indexes<C> {
    /// None; keeps `kept` of them.
    pub fn new(kept: NonZeroUsize) -> Self {
        Self { known: LruCache::new(kept), waiting: HashMap::new() }
    }
}

/// The index of a sharded chunk, and the version of the object that it is in.
pub(super) struct KnownIndex {
    pub index: ShardIndex,
    pub version: Version,
}

/// Decodes the index of the sharded chunk at `at`, of an object with this head.
pub(super) fn known_index(
    sharding: &Sharding,
    bytes: Vec<u8>,
    head: Head,
    at: &Context,
) -> Result<Arc<KnownIndex>> {
    let decode = || decode_index(sharding, bytes, head.object_bytes, at);
    // The bytes of an index are the store's: a panic over them must not leave the read chunks waiting for their index.
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    let index = decoded.unwrap_or_else(|payload| Err(Error::panic("decoding a shard index", &*payload)))?;
    Ok(Arc::new(KnownIndex { index, version: head.version }))
}

/// What the disk cache knows of the index of a sharded chunk: the index, or that the sharded chunk is absent.
pub(super) fn cached_index(
    cache: &DiskCache,
    sharding: &Sharding,
    part: (usize, usize),
    address: &Address,
) -> Option<Option<Arc<KnownIndex>>> {
    let extent = sharding.index_extent();
    let Some((bytes, head)) = cache.read(part, address.key(), &extent)? else { return Some(None) };
    // An index that was damaged in the store may have been repaired.
    let known = known_index(sharding, bytes, head, &address.at);
    if known.is_err() {
        cache.discard(part, address.key(), &extent);
    }
    known.ok().map(Some)
}
