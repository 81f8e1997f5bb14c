//! Prefetching of cold files: which chunks the system should read into the page cache before a thread needs them.
//!
//! A thread that reads a cold file waits for storage, and storage idles while the thread decodes. With as many threads as cores
//! neither is ever fully used. So once a chunk was found cold, the chunks behind it are prefetched, in the order in which they are
//! needed and a bounded number of bytes ahead. Prefetching ends when many chunks in a row were found in the page cache.
//!
//! The location of an inner chunk is in the index of its sharded chunk. The index is cold too, and reading it would wait behind
//! all prefetched chunks. So indexes are prefetched further ahead than chunks.
#![forbid(unsafe_code)]

use super::chunk::Chunk;
use crate::fetch::Encoded;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The chunks to prefetch, and the prefetched chunks that no thread has taken yet.
#[derive(Default)]
pub struct Prefetcher {
    /// Prefetching ends when this many more chunks in a row were found in the page cache. 0: prefetching is off.
    cold: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Chunks to be read that are not prefetched, in the order in which they are needed.
    coming: VecDeque<Weak<Chunk>>,
    /// How many of the first chunks in `coming` [`Prefetcher::next_indexes`] has returned.
    indexes_given: usize,
    /// Prefetched chunks with their encoded bytes.
    prefetched: VecDeque<(Weak<Chunk>, u64)>,
    /// Number of chunks that threads are prefetching now.
    prefetching: usize,
    /// Encoded bytes of `prefetched` and `prefetching`.
    bytes: u64,
    /// Encoded bytes of the largest chunk in the group that was prefetched last.
    typical: u64,
}

impl Prefetcher {
    /// The most bytes and chunks ahead. Storage reads that many bytes within some hundredths of a second.
    const MOST: (u64, usize) = (64 << 20, 256);
    /// The most bytes and chunks of a group: chunks that one thread prefetches together, so that neighbouring ranges can be joined.
    /// Larger groups would keep the thread from its own chunk for too long.
    const GROUP: (u64, usize) = (8 << 20, 32);
    /// Indexes are prefetched for this many chunks behind the prefetched ones. A quarter of it was slower (benches/NOTES.md).
    const INDEXES_AHEAD: usize = 1024;
    /// Prefetching ends when this many chunks in a row were found in the page cache.
    const CACHED_IN_A_ROW: u32 = 64;

    /// Whether prefetching is on.
    pub fn is_active(&self) -> bool {
        self.cold.load(Ordering::Relaxed) > 0
    }

    /// Notes whether a chunk that was not prefetched was found in the page cache.
    pub fn observe(&self, cached: bool) {
        if !cached {
            self.cold.store(Self::CACHED_IN_A_ROW, Ordering::Relaxed);
            return;
        }
        let less = |cold: u32| cold.checked_sub(1);
        let _ = self.cold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that `chunks` will be read, after all chunks that were pushed before.
    pub fn push<'a>(&self, chunks: impl Iterator<Item = &'a Arc<Chunk>>) {
        let mut state = self.lock();
        // While prefetching is off, nothing else removes chunks.
        state.forget_begun();
        state.coming.extend(chunks.map(Arc::downgrade));
    }

    /// The next chunks whose shard indexes should be prefetched. Each chunk is returned once.
    pub fn next_indexes(&self) -> Vec<Arc<Chunk>> {
        if !self.is_active() {
            return vec![];
        }
        let mut state = self.lock();
        state.forget_begun();
        let from = state.indexes_given;
        let until = (from + Self::GROUP.1).min(Self::INDEXES_AHEAD).min(state.coming.len()).max(from);
        state.indexes_given = until;
        state.coming.range(from..until).filter_map(waiting).collect()
    }

    /// Calls `prefetch` with each chunk of the next group, unless enough is prefetched already. `prefetch` returns the bytes that it
    /// prefetched, or `None` if the chunk is in the page cache. No other thread gets a chunk of the same group.
    pub fn prefetch(&self, mut prefetch: impl FnMut(&Arc<Chunk>) -> Option<u64>) {
        if !self.is_active() {
            return;
        }
        let (chunks, reserved) = self.lock().next_group();
        if chunks.is_empty() {
            return;
        }
        let still = chunks.iter().filter(|chunk| !chunk.has_begun());
        let prefetched: Vec<_> =
            still.filter_map(|chunk| Some((Arc::downgrade(chunk), prefetch(chunk)?))).collect();
        let mut state = self.lock();
        state.prefetching -= chunks.len();
        state.bytes -= reserved;
        state.bytes += prefetched.iter().map(|(_, bytes)| bytes).sum::<u64>();
        state.typical = prefetched.iter().map(|&(_, bytes)| bytes).max().unwrap_or(state.typical);
        state.prefetched.extend(prefetched);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next group of chunks, and the bytes that are reserved for it.
    fn next_group(&mut self) -> (Vec<Arc<Chunk>>, u64) {
        self.forget_begun();
        let (most_bytes, most_chunks) = Prefetcher::MOST;
        // A first group of one chunk tells how large chunks are.
        let count = Prefetcher::GROUP.0.checked_div(self.typical).unwrap_or(1);
        let count = count.clamp(1, Prefetcher::GROUP.1 as u64) as usize;
        let before_last = (count - 1) as u64 * self.typical;
        let prefetched = self.prefetched.len() + self.prefetching;
        if self.bytes + before_last >= most_bytes || prefetched + count > most_chunks {
            return (vec![], 0);
        }
        let left = std::iter::from_fn(|| self.pop());
        let chunks: Vec<_> = left.filter_map(|chunk| waiting(&chunk)).take(count).collect();
        let reserved = chunks.len() as u64 * self.typical;
        self.bytes += reserved;
        self.prefetching += chunks.len();
        (chunks, reserved)
    }

    fn pop(&mut self) -> Option<Weak<Chunk>> {
        self.indexes_given = self.indexes_given.saturating_sub(1);
        self.coming.pop_front()
    }

    /// Removes chunks that threads have begun with from the front of both queues.
    fn forget_begun(&mut self) {
        while self.coming.front().is_some_and(|chunk| waiting(chunk).is_none()) {
            self.pop();
        }
        while let Some((chunk, bytes)) = self.prefetched.front()
            && waiting(chunk).is_none()
        {
            self.bytes -= bytes;
            self.prefetched.pop_front();
        }
    }
}

/// Joins touching ranges of the same file.
pub fn joined(mut ranges: Vec<Encoded>) -> Vec<Encoded> {
    // The address of a file in memory has no meaning, but sorts the ranges of a file together.
    ranges.sort_by_key(|encoded| (Arc::as_ptr(encoded.blob()).addr(), encoded.range().start));
    ranges.dedup_by(|next, last| last.join(next));
    ranges
}

/// The chunk, unless a thread has begun with it or it is not needed any more.
fn waiting(chunk: &Weak<Chunk>) -> Option<Arc<Chunk>> {
    chunk.upgrade().filter(|chunk| !chunk.has_begun())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::fetch::{Blob, Located};
    use crate::plan::{Boxes, ChunkKey, Dims};

    fn chunks(count: u128) -> Vec<Arc<Chunk>> {
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let key = |number| ChunkKey { array: 0, part: 0, number };
        (0..count)
            .map(|number| Chunk::new(key(number), Dims::new(), None, batch.unit(0, Boxes::new())))
            .collect()
    }

    /// Prefetches the next group, `bytes` bytes for each chunk. Returns the numbers of its chunks.
    fn next(prefetcher: &Prefetcher, bytes: u64) -> Vec<u128> {
        let mut numbers = vec![];
        prefetcher.prefetch(|chunk| {
            numbers.push(chunk.key.number);
            Some(bytes)
        });
        numbers
    }

    #[test]
    fn chunks_are_prefetched_in_order_a_bounded_way_ahead() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(7));
        prefetcher.push(chunks.iter());
        assert!(next(&prefetcher, 1).is_empty(), "nothing was cold");
        prefetcher.observe(false);
        chunks[0].begin();
        let half = Prefetcher::MOST.0 / 2;
        assert_eq!((next(&prefetcher, half), next(&prefetcher, half)), (vec![1], vec![2]));
        assert!(next(&prefetcher, half).is_empty());
        // Another thread takes chunk 3 before it is prefetched.
        chunks[3].begin();
        chunks[1].begin();
        assert_eq!(next(&prefetcher, half), [4]);
        assert!(next(&prefetcher, half).is_empty());
        chunks[2].begin();
        chunks[4].begin();
        // A chunk in the page cache does not count.
        prefetcher.prefetch(|_| None);
        assert_eq!(prefetcher.lock().bytes, 0);
        assert_eq!((next(&prefetcher, half), next(&prefetcher, half)), (vec![6], vec![]));
    }

    #[test]
    fn small_chunks_are_prefetched_in_groups() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(1000));
        prefetcher.push(chunks.iter());
        prefetcher.observe(false);
        let bytes = Prefetcher::GROUP.0 / 16;
        assert_eq!(next(&prefetcher, bytes), [0]);
        assert_eq!(next(&prefetcher, bytes), (1..17).collect::<Vec<_>>());
        let prefetched: usize =
            std::iter::repeat_with(|| next(&prefetcher, bytes).len()).take_while(|&n| n > 0).sum();
        // A group that would exceed the limit is not prefetched.
        let most = (Prefetcher::MOST.0 / bytes) as usize;
        assert!((most - 16..=most).contains(&(17 + prefetched)), "{prefetched}");
        chunks[..20].iter().for_each(|chunk| chunk.begin());
        assert_eq!(next(&prefetcher, bytes).len(), 16);
    }

    #[test]
    fn chunks_that_several_threads_are_prefetching_count() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(1000));
        prefetcher.push(chunks.iter());
        prefetcher.observe(false);
        assert_eq!(next(&prefetcher, 1), [0]);
        // Each call begins before the call before it has ended.
        fn all(prefetcher: &Prefetcher) -> usize {
            let (mut count, mut others) = (0, None);
            prefetcher.prefetch(|_| {
                count += 1;
                others.get_or_insert_with(|| all(prefetcher));
                Some(1)
            });
            count + others.unwrap_or(0)
        }
        let (most, group) = (Prefetcher::MOST.1, Prefetcher::GROUP.1);
        assert!((most - group..most).contains(&all(&prefetcher)));
        assert_eq!(prefetcher.lock().prefetching, 0);
    }

    #[test]
    fn each_index_is_prefetched_once_a_bounded_way_behind_the_prefetched_chunks() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(4000));
        prefetcher.push(chunks.iter());
        let indexes_given = || {
            let groups =
                std::iter::repeat_with(|| prefetcher.next_indexes()).take_while(|group| !group.is_empty());
            groups.flatten().map(|chunk| chunk.key.number).collect::<Vec<_>>()
        };
        assert!(indexes_given().is_empty(), "nothing was cold");
        prefetcher.observe(false);
        let most = Prefetcher::INDEXES_AHEAD as u128;
        assert_eq!(indexes_given(), (0..most).collect::<Vec<_>>());
        next(&prefetcher, 1);
        assert_eq!(indexes_given(), [most]);
        // Indexes of chunks that were taken already are not prefetched.
        chunks[..2000].iter().for_each(|chunk| chunk.begin());
        assert_eq!(indexes_given(), (2000..2000 + most).collect::<Vec<_>>());
        chunks.iter().for_each(|chunk| chunk.begin());
        assert!(indexes_given().is_empty());
    }

    #[test]
    fn neighbouring_ranges_are_joined() {
        struct Nothing;
        impl Blob for Nothing {
            fn len(&self) -> u64 {
                0
            }
            fn version(&self) -> u64 {
                0
            }
            fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
                Ok(())
            }
            fn check_unchanged(&self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let blobs: [Arc<dyn Blob>; 2] = [Arc::new(Nothing), Arc::new(Nothing)];
        let of = |blob: usize, range| {
            Encoded::located(Located::At { blob: blobs[blob].clone(), range }).expect("it is there")
        };
        let encoded = vec![of(0, 8..12), of(1, 4..8), of(0, 0..4), of(0, 4..8), of(1, 0..3), of(0, 13..14)];
        let mut ranges: Vec<_> = joined(encoded)
            .into_iter()
            .map(|joined| (usize::from(!Arc::ptr_eq(joined.blob(), &blobs[0])), joined.range().clone()))
            .collect();
        ranges.sort_by_key(|(blob, range)| (*blob, range.start));
        assert_eq!(ranges, [(0, 0..12), (0, 13..14), (1, 0..3), (1, 4..8)]);
        assert!(joined(vec![]).is_empty());
    }

    #[test]
    fn prefetching_ends_when_chunk_after_chunk_is_in_the_page_cache() {
        let prefetcher = Prefetcher::default();
        prefetcher.observe(true);
        assert!(!prefetcher.is_active());
        prefetcher.observe(false);
        (1..Prefetcher::CACHED_IN_A_ROW).for_each(|_| prefetcher.observe(true));
        assert!(prefetcher.is_active());
        prefetcher.observe(false);
        (1..Prefetcher::CACHED_IN_A_ROW).for_each(|_| prefetcher.observe(true));
        assert!(prefetcher.is_active());
        prefetcher.observe(true);
        assert!(!prefetcher.is_active());
    }

    #[test]
    fn chunks_that_threads_have_taken_are_forgotten() {
        let prefetcher = Prefetcher::default();
        for _ in 0..10 {
            let chunks = chunks(100);
            prefetcher.push(chunks.iter());
            chunks.iter().for_each(|chunk| chunk.begin());
            assert!(prefetcher.lock().coming.len() <= 100);
        }
    }
}
