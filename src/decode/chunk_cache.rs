//! Which decoded chunks stay for later batches.
//!
//! The order of samples is known, so the planner looks ahead and keeps what is needed again: a chunk stays until its
//! last use in sight. Where they do not all fit, those stay that are needed first (Belady's rule), which costs the fewest
//! chunks that are decoded twice. What is decided depends on the order alone, not on how fast anything runs.
//!
//! A use in a later epoch is none: a chunk is decoded once in every epoch. Arrays that are the same for every sample are
//! in no epoch, and where the user asked for a cache nothing is.

use super::chunk::Chunk;
use super::device_pool::DevicePool;
use crate::plan::ChunkKey;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A chunk in an epoch.
type Key = (ChunkKey, u64);

/// The chunks that stay, and what is known of the future.
pub struct ChunkCache {
    capacity: u64,
    /// How far the order is looked at, in bytes of chunks and in samples,
    sight: (u64, u64),
    /// and in uses that are noted.
    most_uses: u64,
    chunks: HashMap<Key, Entry>,
    /// The same by their next use.
    by_next: BTreeSet<(u64, Key)>,
    kept: u64,
    /// The batches ahead that need a chunk.
    uses: HashMap<Key, VecDeque<u64>>,
    /// Bytes of all chunks in `uses`.
    in_sight: u64,
    /// The first batch that was not looked at yet.
    ahead: u64,
}

struct Entry {
    chunk: Arc<Chunk>,
    /// The epoch of its last use.
    epoch: Option<u64>,
    bytes: u64,
    next: u64,
}

impl ChunkCache {
    /// The order is looked at until so many times the capacity is in sight.
    const SIGHT: u64 = 4;
    /// Batches beyond the next that are looked at at least.
    const LEAST_AHEAD: u64 = 2;
    /// Samples that are looked at at most, where chunks are tiny.
    const MOST_SAMPLES: u64 = 1 << 16;
    /// The same where chunks are kept from epoch to epoch: of longer ones the end is not seen from the start.
    const MOST_CACHED_SAMPLES: u64 = 1 << 18;

    /// Memory of a chunk whose uses are noted.
    const NOTE_BYTES: u64 = 200;

    /// Room for `capacity` bytes; the first batch is number `first`. `caches`: from epoch to epoch. Notes take `note_bytes`
    /// bytes, and what the next batches need besides.
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

    /// Whether anything can stay at all.
    pub fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// The next batch to be looked at, if it should be before batch `now` is planned.
    pub fn wants(&self, now: u64, batch_size: u64) -> Option<u64> {
        let ahead = self.ahead.saturating_sub(now);
        let wanted = ahead <= Self::LEAST_AHEAD
            || (self.in_sight < self.sight.0
                && ahead.saturating_mul(batch_size) < self.sight.1
                && (self.uses.len() as u64) < self.most_uses);
        (self.is_enabled() && wanted).then_some(self.ahead)
    }

    /// Notes that the batch that [`ChunkCache::wants`] named needs a chunk of so many bytes.
    pub fn note(&mut self, key: ChunkKey, epoch: u64, bytes: u64) {
        let uses = self.uses.entry((key, epoch)).or_insert_with(|| {
            self.in_sight += DevicePool::padded(bytes);
            VecDeque::new()
        });
        if uses.back() != Some(&self.ahead) {
            uses.push_back(self.ahead);
        }
    }

    /// That batch is noted.
    pub fn noted(&mut self) {
        self.ahead += 1;
    }

    /// The chunk, if it is here.
    pub fn find(&self, key: ChunkKey, epoch: u64) -> Option<Arc<Chunk>> {
        self.chunks.get(&(key, epoch)).map(|entry| entry.chunk.clone())
    }

    /// The chunk, if it is here, is used in `epoch`. Whether it was used in another before.
    pub fn touch(&mut self, key: ChunkKey, tag: u64, epoch: u64) -> bool {
        let Some(entry) = self.chunks.get_mut(&(key, tag)) else { return false };
        entry.epoch.replace(epoch).is_some_and(|last| last != epoch)
    }

    /// Batch `now` uses the chunk; that use is behind us then. A chunk that is not needed again goes.
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

    /// The epoch among these for which the chunk should stay, if it should: it is needed again, and before others that
    /// have to go for it, which they do.
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

    /// Keeps a chunk for which [`ChunkCache::claim`] agreed.
    pub fn keep(&mut self, chunk: Arc<Chunk>, epoch: u64, now: u64, bytes: u64) {
        let key = (chunk.key, epoch);
        let bytes = DevicePool::padded(bytes);
        let next = self.uses.get(&key).and_then(|uses| uses.iter().find(|&&batch| batch > now));
        let next = next.copied().unwrap_or(now);
        self.kept += bytes;
        self.by_next.insert((next, key));
        self.chunks.insert(key, Entry { chunk, epoch: None, bytes, next });
    }

    /// Bytes of the chunks that stay.
    pub fn kept_bytes(&self) -> u64 {
        self.kept
    }

    /// Removes a chunk that is not in `by_next` any more.
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

    /// Plans batches that each need one chunk; the chunks that had to be decoded, by batch.
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
    fn chunks_stay_until_their_last_use_and_those_needed_first_where_memory_is_short() {
        let in_epoch = |numbers: &[u128]| numbers.iter().map(|&number| (number, 0)).collect::<Vec<_>>();
        let batches = in_epoch(&[1, 2, 3, 1, 2, 2, 1]);
        assert_eq!(decoded(2, &batches), [0, 1, 2]);
        // 2 is needed later than 1, so it does not stay in its place; nor does 1 once 2 is needed sooner.
        assert_eq!(decoded(1, &batches), [0, 1, 2, 4, 6]);
        assert_eq!(decoded(0, &batches), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn nothing_stays_for_another_epoch() {
        assert_eq!(decoded(4, &[(1, 0), (1, 0), (1, 1), (1, 1)]), [0, 2]);
    }
}
