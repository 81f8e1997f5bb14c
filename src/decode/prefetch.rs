//! Chunks that will be read soon, so that the system fetches them from storage while the threads are busy with others.
//!
//! A thread that reads what is not in the page cache waits for storage, and storage waits while the thread decodes. With as
//! many threads as cores neither is ever fully used. So when a chunk was found cold, those behind it are announced to the
//! system, in the order in which they are needed and a bounded way ahead, until chunk after chunk is found in the page cache.
//! Where an inner chunk is says the index of its shard, which is cold too, and is waited for behind all that was announced.
//! So indexes are announced further ahead.
#![forbid(unsafe_code)]

use super::chunk::Chunk;
use crate::fetch::Blob;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is to be announced, and what was.
#[derive(Default)]
pub struct Prefetcher {
    /// So many chunks in a row have to be found in the page cache until nothing is announced any more.
    cold: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Chunks that no thread has begun with, in the order in which they are needed.
    coming: VecDeque<Weak<Chunk>>,
    /// The first so many of these were handed out by [`Prefetcher::next_indexes`].
    indexes_given: usize,
    /// Those that were announced, with their bytes.
    prefetched: VecDeque<(Weak<Chunk>, u64)>,
    /// So many are being announced.
    prefetching: usize,
    /// Bytes of both.
    bytes: u64,
    /// Of the largest chunk of those that were announced last.
    typical: u64,
}

impl Prefetcher {
    /// Announced at once, which storage reads within some hundredths of a second; and the same in chunks.
    const MOST: (u64, usize) = (64 << 20, 256);
    /// What is announced together, so that neighbours can be joined, is so many bytes and chunks at most. More would keep a
    /// thread from its own chunk.
    const GROUP: (u64, usize) = (8 << 20, 32);
    /// Indexes of the shards of so many chunks behind what is announced. A quarter of it was slower (benches/NOTES.md).
    const INDEXES_AHEAD: usize = 1024;
    /// A store that is not cold any more is taken for one that is until so many chunks were found in the page cache.
    const PATIENCE: u32 = 64;

    /// Whether chunks are to be announced.
    pub fn is_active(&self) -> bool {
        self.cold.load(Ordering::Relaxed) > 0
    }

    /// Whether a chunk was found in the page cache that nobody had announced.
    pub fn observe(&self, cached: bool) {
        if !cached {
            self.cold.store(Self::PATIENCE, Ordering::Relaxed);
            return;
        }
        let less = |cold: u32| cold.checked_sub(1);
        let _ = self.cold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// These chunks will be read, behind all others.
    pub fn push<'a>(&self, chunks: impl Iterator<Item = &'a Arc<Chunk>>) {
        let mut state = self.lock();
        // Here too, because otherwise nothing is taken out while the store is in the page cache.
        state.forget_begun();
        state.coming.extend(chunks.map(Arc::downgrade));
    }

    /// Chunks whose shards' indexes are to be announced now, each handed out once.
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

    /// Hands the next chunks to `prefetch`, if there are any and it is not too early. It says how many bytes it announced, if
    /// it did. They are neighbours in time: no other thread gets those between them.
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
    /// The chunks to announce next, and the bytes that are reserved for them.
    fn next_group(&mut self) -> (Vec<Arc<Chunk>>, u64) {
        self.forget_begun();
        let (most_bytes, most_chunks) = Prefetcher::MOST;
        // The first one says how large they are.
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

    /// Removes the chunks that threads have begun with, as far as they are the first.
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

/// The same bytes in as few ranges as they can be read in.
pub fn joined(mut places: Vec<(Arc<dyn Blob>, Range<u64>)>) -> Vec<(Arc<dyn Blob>, Range<u64>)> {
    // Where a file is in memory says nothing, but keeps its ranges together.
    places.sort_by_key(|(blob, range)| (Arc::as_ptr(blob).addr(), range.start));
    places.dedup_by(|(blob, next), (last_blob, last)| {
        let neighbours = Arc::ptr_eq(blob, last_blob) && next.start <= last.end;
        if neighbours {
            last.end = last.end.max(next.end);
        }
        neighbours
    });
    places
}

/// A chunk with which no thread has begun.
fn waiting(chunk: &Weak<Chunk>) -> Option<Arc<Chunk>> {
    chunk.upgrade().filter(|chunk| !chunk.has_begun())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::plan::{Boxes, ChunkKey, Dims};

    fn chunks(count: u128) -> Vec<Arc<Chunk>> {
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let key = |number| ChunkKey { array: 0, part: 0, number };
        (0..count)
            .map(|number| Chunk::new(key(number), Dims::new(), None, batch.unit(0, Boxes::new())))
            .collect()
    }

    /// Numbers of the next chunks, each announced with so many bytes.
    fn next(prefetcher: &Prefetcher, bytes: u64) -> Vec<u128> {
        let mut numbers = vec![];
        prefetcher.prefetch(|chunk| {
            numbers.push(chunk.key.number);
            Some(bytes)
        });
        numbers
    }

    #[test]
    fn chunks_are_announced_in_order_a_bounded_way_ahead() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(7));
        prefetcher.push(chunks.iter());
        assert!(next(&prefetcher, 1).is_empty(), "nothing was cold");
        prefetcher.observe(false);
        chunks[0].begin();
        let half = Prefetcher::MOST.0 / 2;
        assert_eq!((next(&prefetcher, half), next(&prefetcher, half)), (vec![1], vec![2]));
        assert!(next(&prefetcher, half).is_empty());
        // Somebody else is faster than the announcement.
        chunks[3].begin();
        chunks[1].begin();
        assert_eq!(next(&prefetcher, half), [4]);
        assert!(next(&prefetcher, half).is_empty());
        chunks[2].begin();
        chunks[4].begin();
        // In the page cache: it takes no room.
        prefetcher.prefetch(|_| None);
        assert_eq!(prefetcher.lock().bytes, 0);
        assert_eq!((next(&prefetcher, half), next(&prefetcher, half)), (vec![6], vec![]));
    }

    #[test]
    fn small_chunks_are_announced_in_groups() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(1000));
        prefetcher.push(chunks.iter());
        prefetcher.observe(false);
        let bytes = Prefetcher::GROUP.0 / 16;
        assert_eq!(next(&prefetcher, bytes), [0]);
        assert_eq!(next(&prefetcher, bytes), (1..17).collect::<Vec<_>>());
        let prefetched: usize =
            std::iter::repeat_with(|| next(&prefetcher, bytes).len()).take_while(|&n| n > 0).sum();
        // No group that would not fit.
        let most = (Prefetcher::MOST.0 / bytes) as usize;
        assert!((most - 16..=most).contains(&(17 + prefetched)), "{prefetched}");
        chunks[..20].iter().for_each(|chunk| chunk.begin());
        assert_eq!(next(&prefetcher, bytes).len(), 16);
    }

    #[test]
    fn what_several_threads_are_announcing_counts() {
        let (prefetcher, chunks) = (Prefetcher::default(), chunks(1000));
        prefetcher.push(chunks.iter());
        prefetcher.observe(false);
        assert_eq!(next(&prefetcher, 1), [0]);
        // Each begins before the one before it has ended.
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
    fn each_chunk_is_scouted_once_a_bounded_way_behind_what_is_announced() {
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
        // Those that are behind already are nobody's concern any more.
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
        let of = |blob: usize, range| (blobs[blob].clone(), range);
        let places = vec![of(0, 8..12), of(1, 4..8), of(0, 0..4), of(0, 4..8), of(1, 0..3), of(0, 13..14)];
        let mut ranges: Vec<_> = joined(places)
            .into_iter()
            .map(|(blob, range)| (usize::from(!Arc::ptr_eq(&blob, &blobs[0])), range))
            .collect();
        ranges.sort_by_key(|(blob, range)| (*blob, range.start));
        assert_eq!(ranges, [(0, 0..12), (0, 13..14), (1, 0..3), (1, 4..8)]);
        assert!(joined(vec![]).is_empty());
    }

    #[test]
    fn it_ends_when_chunk_after_chunk_is_in_the_page_cache() {
        let prefetcher = Prefetcher::default();
        prefetcher.observe(true);
        assert!(!prefetcher.is_active());
        prefetcher.observe(false);
        (1..Prefetcher::PATIENCE).for_each(|_| prefetcher.observe(true));
        assert!(prefetcher.is_active());
        prefetcher.observe(false);
        (1..Prefetcher::PATIENCE).for_each(|_| prefetcher.observe(true));
        assert!(prefetcher.is_active());
        prefetcher.observe(true);
        assert!(!prefetcher.is_active());
    }

    #[test]
    fn what_is_not_needed_any_more_is_not_kept() {
        let prefetcher = Prefetcher::default();
        for _ in 0..10 {
            let chunks = chunks(100);
            prefetcher.push(chunks.iter());
            chunks.iter().for_each(|chunk| chunk.begin());
            assert!(prefetcher.lock().coming.len() <= 100);
        }
    }
}
