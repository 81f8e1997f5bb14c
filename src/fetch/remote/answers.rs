//! What the answers of a store are: chunks, inner chunks, and indexes that tell where these are.

use super::{Recipient, Remote, ShardKey};
use crate::error::{Error, Obstacle, Result};
use crate::fetch::coalesce::own_bytes;
use crate::fetch::disk_cache::DiskCache;
use crate::fetch::fetched::FetchedBytes;
use crate::fetch::indexes::{KnownIndex, known_index};
use crate::fetch::locate::Located;
use crate::fetch::request::Received;
use crate::fetch::resolve::Address;
use crate::store::Extent;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

impl<C: Send + 'static> Remote<C> {
    /// An answer for an object of which nothing was known before: one that is forbidden may be missing. Of an object that was there
    /// when its first byte came, no [`Obstacle::Forbidden`] comes here.
    pub(super) fn first_answer(&self, answer: io::Result<Option<Received>>) -> io::Result<Option<Received>> {
        match answer {
            Err(error) if self.forbidden_is_missing && Obstacle::is_forbidden(&error) => Ok(None),
            answer => answer,
        }
    }

    pub(super) fn chunk_answered(
        &self,
        chunk: Recipient<C>,
        part: (usize, usize),
        address: Address,
        answer: io::Result<Option<Received>>,
    ) {
        let found = match answer {
            Err(source) => Err(Error::Io { at: address.at, source }),
            Ok(None) => {
                if let Some(cache) = &self.disk_cache {
                    cache.note_absent(part, address.key(), &Extent::Whole);
                }
                Ok((Located::Missing, address.at))
            }
            Ok(Some(received)) => {
                let range = received.range.clone();
                if let Some(cache) = &self.disk_cache {
                    let whole = [(Extent::Whole, range.clone())];
                    cache.keep(part, address.key(), None, &received, whole.into_iter());
                }
                self.lengths.note(part, range.end);
                let own_bytes = range.end - range.start;
                let blob = Arc::new(FetchedBytes { answer: Arc::new(received), own_bytes });
                Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
            }
        };
        self.hand_over(chunk, found);
    }

    pub(super) fn inner_answered(
        &self,
        part: (usize, usize),
        chunks: Vec<(Recipient<C>, Address, Range<u64>)>,
        answer: io::Result<Option<Received>>,
    ) {
        // The object was there when its index was read.
        let answer = answer.and_then(|received| Ok(Arc::new(received.ok_or(Obstacle::Changed)?)));
        if let (Err(error), Some((_, address, _))) = (&answer, chunks.first())
            && let (Some(Obstacle::Changed), Some(in_shard)) = (Obstacle::of(error), &address.in_shard)
        {
            // Whoever needs the sharded chunk later asks for its new index.
            self.lock().known.pop(&(part, in_shard.shard.clone()));
        }
        if let (Some(cache), Ok(received), Some((_, address, _))) =
            (&self.disk_cache, &answer, chunks.first())
        {
            let extents = chunks.iter().map(|(_, _, range)| (Extent::Range(range.clone()), range.clone()));
            cache.keep(part, address.key(), Some(&received.head.version), received, extents);
        }
        let own_bytes: Vec<u64> = own_bytes(chunks.iter().map(|(_, _, range)| range)).collect();
        for ((chunk, address, range), own_bytes) in chunks.into_iter().zip(own_bytes) {
            let found = match &answer {
                Ok(received) => {
                    let blob = Arc::new(FetchedBytes { answer: received.clone(), own_bytes });
                    Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
                }
                Err(error) => Err(Error::Io { at: address.with_range(range), source: again(error) }),
            };
            self.hand_over(chunk, found);
        }
    }

    pub(super) fn index_answered(
        &self,
        key: &ShardKey,
        address: &Address,
        answer: io::Result<Option<Received>>,
    ) {
        let part = key.0;
        let array = self.dataset.part(part.0, part.1);
        let known = match (answer, &array.sharding) {
            (Err(source), _) => Err(Error::Io { at: address.at.clone(), source }),
            (Ok(Some(received)), Some(sharding)) => {
                let (head, range) = (received.head.clone(), received.range.clone());
                let at = address.clone().with_range(range.clone());
                if let Some(cache) = &self.disk_cache {
                    let index = [(sharding.index_extent(), range)];
                    cache.keep(part, address.key(), None, &received, index.into_iter());
                }
                let failed = |source| Error::Io { at: at.clone(), source };
                let bytes = received.into_bytes().map_err(failed);
                bytes.and_then(|bytes| known_index(sharding, bytes, head, &at)).map(Some)
            }
            _ => {
                if let (Some(cache), Some(sharding)) = (&self.disk_cache, &array.sharding) {
                    cache.note_absent(part, address.key(), &sharding.index_extent());
                }
                Ok(None)
            }
        };
        // The disk is not asked on this thread, which polls requests.
        self.index_known(key, known, None);
    }

    /// Asks for the inner chunks that wait for an index and that a cache does not have; the index is `None` if the sharded chunk is absent.
    pub(super) fn index_known(
        &self,
        key: &ShardKey,
        known: Result<Option<Arc<KnownIndex>>>,
        cache: Option<&DiskCache>,
    ) {
        let mut indexes = self.lock();
        if let Ok(known) = &known {
            indexes.known.put(key.clone(), known.clone());
        }
        let waiting = indexes.waiting.remove(key).unwrap_or_default();
        drop(indexes);
        match known {
            Ok(known) => {
                let mut by_batch = BTreeMap::<u64, Vec<_>>::new();
                for (batch, chunk, address) in waiting {
                    by_batch.entry(batch).or_default().push((chunk, address));
                }
                for (batch, chunks) in by_batch {
                    self.fetch_inner(batch, key.0, known.as_deref(), chunks, cache);
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for (_, chunk, _) in waiting {
                    self.hand_over(chunk, Err(Error::Sticky(error.clone())));
                }
            }
        }
    }
}

/// An error once more, for another chunk.
fn again(error: &io::Error) -> io::Error {
    match Obstacle::of(error) {
        Some(obstacle) => obstacle.clone().into(),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
