//! The chunk cache: which decoded chunks are kept for later batches.
//!
//! The order of samples is known, so the planner looks ahead and notes which batches need which chunks. A chunk is cached until
//! its last noted use. If the cache is full, the chunk whose next use is furthest away is evicted (Belady's rule), which makes
//! the fewest chunks be decoded twice. The decisions depend on the order of samples alone, not on how fast threads run.
//!
//! Each epoch decodes a chunk anew: a use in another epoch does not count. Epochs play no part for arrays that are the same for every
//! sample, nor if the user asked for a cache across epochs.

use super::chunk::Chunk;
use super::device_pool::DevicePool;
use crate::plan::ChunkKey;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A chunk in an epoch.
type Key = (ChunkKey, u64);

/// The cached chunks, and the noted uses of chunks in batches ahead.
pub struct ChunkCache {
    capacity: u64,
    /// How far ahead uses are noted, in bytes of chunks and in samples.
    sight: (u64, u64),
    /// How many chunks have noted uses at most.
    most_uses: u64,
    chunks: HashMap<Key, Entry>,
    /// The cached chunks by their next use.
    by_next: BTreeSet<(u64, Key)>,
    /// Bytes of the cached chunks.
    kept: u64,
    /// The batches ahead that need a chunk, in order.
    uses: HashMap<Key, VecDeque<u64>>,
    /// Bytes of all chunks in `uses`.
    in_sight: u64,
    /// The first batch whose uses are not noted yet.
    ahead: u64,
}

struct Entry {
    chunk: Arc<Chunk>,
    /// The epoch of the chunk's last use.
    epoch: Option<u64>,
    bytes: u64,
    /// The next batch that uses the chunk.
    next: u64,
}

impl ChunkCache {
    /// Uses are noted until their chunks have this many times the capacity.
    const SIGHT: u64 = 4;
    /// Uses are noted at least this many batches ahead.
    const LEAST_AHEAD: u64 = 2;
    /// Uses are noted at most this many samples ahead, which matters if chunks are tiny.
    const MOST_SAMPLES: u64 = 1 << 16;
    /// The same if chunks are cached across epochs. In longer epochs the last samples are not noted at the start.
    const MOST_CACHED_SAMPLES: u64 = 1 << 18;

    /// Memory of one chunk's noted uses, in bytes.
    const NOTE_BYTES: u64 = 200;

    /// A cache of `capacity` bytes for batches from number `first` on. `caches`: chunks are cached across epochs. Noted uses take
    /// about `note_bytes` bytes of memory at most, plus the noted uses of the next batches.
    pub fn new(capacity: u64, first: u64, caches: bool, note_bytes: u64) -> Self {
        let sight = match caches {
            false => (capacity.saturating_mul(Self::SIGHT), Self::MOST_SAMPLES),
            true => (u64::MAX, Self::MOST_CACHED_SAMPLES),
        };
        Self {
            capacity,
            sight,
            most_uses: note_bytes / Self::NOTE_BYTES,
            chunks: HashMap::new(),
            by_next: BTreeSet::new(),
            kept: 0,
            uses: HashMap::new(),
            in_sight: 0,
            ahead: first,
        }
    }

    /// Whether any chunk can be cached.
    pub fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// The next batch whose uses should be noted before batch `now` is planned, if any.
    pub fn wants(&self, now: u64, batch_size: u64) -> Option<u64> {
        let ahead = self.ahead.saturating_sub(now);
        let wanted = ahead <= Self::LEAST_AHEAD
            || (self.in_sight < self.sight.0
                && ahead.saturating_mul(batch_size) < self.sight.1
                && (self.uses.len() as u64) < self.most_uses);
        (self.is_enabled() && wanted).then_some(self.ahead)
    }

    /// Notes that the batch that [`ChunkCache::wants`] returned uses a chunk of `bytes` bytes.
    pub fn note(&mut self, key: ChunkKey, epoch: u64, bytes: u64) {
        let uses = self.uses.entry((key, epoch)).or_insert_with(|| {
            self.in_sight += DevicePool::padded(bytes);
            VecDeque::new()
        });
        if uses.back() != Some(&self.ahead) {
            uses.push_back(self.ahead);
        }
    }

    /// All uses of that batch are noted.
    pub fn noted(&mut self) {
        self.ahead += 1;
    }

    /// The chunk, if it is cached.
    pub fn find(&self, key: ChunkKey, epoch: u64) -> Option<Arc<Chunk>> {
        self.chunks.get(&(key, epoch)).map(|entry| entry.chunk.clone())
    }

    /// Notes that a cached chunk is used in `epoch`. Returns whether its last use was in another epoch.
    pub fn touch(&mut self, key: ChunkKey, tag: u64, epoch: u64) -> bool {
        let Some(entry) = self.chunks.get_mut(&(key, tag)) else { return false };
        entry.epoch.replace(epoch).is_some_and(|last| last != epoch)
    }

    /// Removes the use of a chunk in batch `now` from the noted ones. Evicts the chunk if it has no further use.
    pub fn used(&mut self, key: ChunkKey, epoch: u64, now: u64, bytes: u64) {
        let next = match self.uses.get_mut(&(key, epoch)) {
            None => None,
            Some(uses) => {
                while uses.front().is_some_and(|&batch| batch <= now) {
                    uses.pop_front();
                }
                uses.front().copied()
            }
        };
        if next.is_none() && self.uses.remove(&(key, epoch)).is_some() {
            self.in_sight -= DevicePool::padded(bytes);
        }
        let Some(entry) = self.chunks.get_mut(&(key, epoch)) else { return };
        self.by_next.remove(&(entry.next, (key, epoch)));
        match next {
            Some(next) => {
                entry.next = next;
                self.by_next.insert((next, (key, epoch)));
            }
            None => self.remove((key, epoch)),
        }
    }

    /// The epoch of `epochs` for which the chunk should be cached, if it should. A chunk should be cached if a later batch uses it, and
    /// uses it before the chunks that are evicted to make space. Evicts these.
    pub fn claim(&mut self, key: ChunkKey, epochs: &[u64], now: u64, bytes: u64) -> Option<u64> {
        let bytes = DevicePool::padded(bytes);
        let next_use = |&epoch: &u64| {
            let uses = self.uses.get(&(key, epoch))?;
            uses.iter().find(|&&batch| batch > now).map(|&next| (next, epoch))
        };
        let (next, epoch) = epochs.iter().filter_map(next_use).min()?;
        if bytes > self.capacity {
            return None;
        }
        while self.kept + bytes > self.capacity {
            let &(furthest, victim) = self.by_next.last()?;
            if furthest <= next {
                return None;
            }
            self.by_next.remove(&(furthest, victim));
            self.remove(victim);
        }
        Some(epoch)
    }

    /// Caches a chunk for which [`ChunkCache::claim`] returned an epoch.
    pub fn keep(&mut self, chunk: Arc<Chunk>, epoch: u64, now: u64, bytes: u64) {
        let key = (chunk.key, epoch);
        let bytes = DevicePool::padded(bytes);
        let next = self.uses.get(&key).and_then(|uses| uses.iter().find(|&&batch| batch > now));
        let next = next.copied().unwrap_or(now);
        self.kept += bytes;
        self.by_next.insert((next, key));
        self.chunks.insert(key, Entry { chunk, epoch: None, bytes, next });
    }

    /// Bytes of the cached chunks.
    pub fn kept_bytes(&self) -> u64 {
        self.kept
    }

    /// Evicts a chunk that was removed from `by_next` before.
    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.chunks.remove(&key) {
            self.kept -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::plan::{Boxes, Dims};

    /// Plans batches that need one chunk each. Returns the batches whose chunk had to be decoded.
    fn decoded(capacity: u64, batches: &[(u128, u64)]) -> Vec<usize> {
        let mut cache = ChunkCache::new(capacity * 256, 0, false, 1 << 20);
        let mut decoded = vec![];
        for (now, &(number, epoch)) in batches.iter().enumerate() {
            while let Some(ahead) = cache.wants(now as u64, 1) {
                if let Some(&(number, epoch)) = batches.get(ahead as usize) {
                    cache.note(ChunkKey { array: 0, part: 0, number }, epoch, 100);
                }
                cache.noted();
            }
            let key = ChunkKey { array: 0, part: 0, number };
            if cache.find(key, epoch).is_none() {
                decoded.push(now);
                if let Some(epoch) = cache.claim(key, &[epoch], now as u64, 100) {
                    let batch = Batch::new(now as u64, vec![], vec![], None, Progress::new(Arc::default()));
                    let chunk = Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new()));
                    cache.keep(chunk, epoch, now as u64, 100);
                }
            }
            cache.used(key, epoch, now as u64, 100);
            assert!(cache.kept_bytes() <= capacity * 256);
        }
        assert_eq!((cache.kept_bytes(), cache.uses.len(), cache.in_sight), (0, 0, 0));
        decoded
    }

    #[test]
    fn chunks_are_cached_until_their_last_use_and_a_full_cache_keeps_the_chunks_with_the_nearest_use() {
        let in_epoch = |numbers: &[u128]| numbers.iter().map(|&number| (number, 0)).collect::<Vec<_>>();
        let batches = in_epoch(&[1, 2, 3, 1, 2, 2, 1]);
        assert_eq!(decoded(2, &batches), [0, 1, 2]);
        // Chunk 2 is needed later than chunk 1, so chunk 1 is cached; chunk 1 is evicted once chunk 2 is needed sooner.
        assert_eq!(decoded(1, &batches), [0, 1, 2, 4, 6]);
        assert_eq!(decoded(0, &batches), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn no_chunk_is_cached_for_another_epoch() {
        assert_eq!(decoded(4, &[(1, 0), (1, 0), (1, 1), (1, 1)]), [0, 2]);
    }
}
