//! Chunks that will be read soon, so that the system fetches them from storage while the threads are busy with others.
//!
//! A thread that reads what is not in the page cache waits for storage, and storage waits while the thread decodes. With as
//! many threads as cores neither is ever fully used. So when a chunk was found cold, those behind it are announced to the
//! system, in the order in which they are needed and a bounded way ahead, until chunk after chunk is found in the page cache.
#![forbid(unsafe_code)]

use super::chunk::Chunk;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is to be announced, and what was.
#[derive(Default)]
pub struct Ahead {
    /// So many chunks in a row have to be found in the page cache until nothing is announced any more.
    cold: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Chunks that no thread has begun with, in the order in which they are needed.
    coming: VecDeque<Weak<Chunk>>,
    /// Those that were announced, with their bytes.
    announced: VecDeque<(Weak<Chunk>, u64)>,
    bytes: u64,
}

impl Ahead {
    /// Announced at once, which storage reads within some hundredths of a second; and the same in chunks, each of which may
    /// hold a file open.
    const MOST: (u64, usize) = (64 << 20, 128);
    /// A store that is not cold any more is taken for one that is until so many chunks were found in the page cache.
    const PATIENCE: u32 = 64;

    /// Whether chunks are to be announced.
    pub fn is_active(&self) -> bool {
        self.cold.load(Ordering::Relaxed) > 0
    }

    /// Whether a chunk was found in the page cache that nobody had announced.
    pub fn found(&self, cached: bool) {
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

    /// The next chunk to announce, if there is one and it is not too early. Its caller tells [`Ahead::announced`].
    pub fn next(&self) -> Option<Arc<Chunk>> {
        if !self.is_active() {
            return None;
        }
        let mut state = self.lock();
        state.forget_begun();
        if state.bytes >= Self::MOST.0 || state.announced.len() >= Self::MOST.1 {
            return None;
        }
        std::iter::from_fn(|| state.coming.pop_front()).find_map(|chunk| waiting(&chunk))
    }

    /// A chunk of so many bytes was announced.
    pub fn announced(&self, chunk: &Arc<Chunk>, bytes: u64) {
        let mut state = self.lock();
        state.bytes += bytes;
        state.announced.push_back((Arc::downgrade(chunk), bytes));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes the chunks that threads have begun with, as far as they are the first.
    fn forget_begun(&mut self) {
        while self.coming.front().is_some_and(|chunk| waiting(chunk).is_none()) {
            self.coming.pop_front();
        }
        while let Some((chunk, bytes)) = self.announced.front()
            && waiting(chunk).is_none()
        {
            self.bytes -= bytes;
            self.announced.pop_front();
        }
    }
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

    #[test]
    fn chunks_are_announced_in_order_a_bounded_way_ahead() {
        let (ahead, chunks) = (Ahead::default(), chunks(6));
        ahead.push(chunks.iter());
        assert!(ahead.next().is_none(), "nothing was cold");
        ahead.found(false);
        chunks[0].begin();
        let next = || ahead.next().map(|chunk| chunk.key.number);
        assert_eq!((next(), next()), (Some(1), Some(2)));
        ahead.announced(&chunks[1], Ahead::MOST.0 / 2);
        ahead.announced(&chunks[2], Ahead::MOST.0 / 2);
        assert_eq!(next(), None);
        // Somebody else is faster than the announcement.
        chunks[3].begin();
        chunks[1].begin();
        assert_eq!(next(), Some(4));
        ahead.announced(&chunks[4], Ahead::MOST.0);
        assert_eq!(next(), None);
        chunks[2].begin();
        chunks[4].begin();
        assert_eq!((next(), next()), (Some(5), None));
        assert_eq!(ahead.lock().bytes, 0);
    }

    #[test]
    fn it_ends_when_chunk_after_chunk_is_in_the_page_cache() {
        let ahead = Ahead::default();
        ahead.found(true);
        assert!(!ahead.is_active());
        ahead.found(false);
        (1..Ahead::PATIENCE).for_each(|_| ahead.found(true));
        assert!(ahead.is_active());
        ahead.found(false);
        (1..Ahead::PATIENCE).for_each(|_| ahead.found(true));
        assert!(ahead.is_active());
        ahead.found(true);
        assert!(!ahead.is_active());
    }

    #[test]
    fn what_is_not_needed_any_more_is_not_kept() {
        let ahead = Ahead::default();
        for _ in 0..10 {
            let chunks = chunks(100);
            ahead.push(chunks.iter());
            chunks.iter().for_each(|chunk| chunk.begin());
            assert!(ahead.lock().coming.len() <= 100);
        }
    }
}
