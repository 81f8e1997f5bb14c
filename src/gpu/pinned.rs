//! A bounded pool of pinned memory for encoded chunks on their way to the GPU.

use super::{Gpu, PinnedMemory};
use crate::error::Result;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;

/// Hands out pieces of large pinned blocks. Allocating one takes milliseconds, so blocks are kept;
/// they are added one at a time until the budget is reached. A caller that finds no room waits until a piece is given back.
#[derive(Debug)]
pub struct PinnedPool {
    gpu: Arc<Gpu>,
    block_bytes: u64,
    max_blocks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    blocks: Vec<Block>,
    closed: bool,
    /// Bytes that found no room since the last block.
    elsewhere_bytes: u64,
    /// A thread allocates a block in [`PinnedPool::grow`].
    is_growing: bool,
    /// The driver gave no block to [`PinnedPool::grow`]. It is not asked again.
    is_refused: bool,
}

#[derive(Debug)]
struct Block {
    memory: PinnedMemory,
    pieces: RangeAllocator<u64>,
}

/// A piece of pinned memory, given back when dropped.
#[derive(Debug)]
pub struct PinnedBuffer {
    pool: Arc<PinnedPool>,
    block: usize,
    piece: Range<u64>,
    address: *mut u8,
    len: usize,
}

// SAFETY: the piece belongs to this value alone.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedPool {
    /// Pieces start at multiples of this, so that vector instructions and copies are aligned.
    pub const ALIGNMENT: u64 = 256;
    /// The most bytes of a block,
    const BLOCK_BYTES: u64 = 32 << 20;
    /// or so many of the largest pieces.
    const LARGEST_PIECES: u64 = 4;

    /// A pool of at most `budget_bytes`, with room for at least one piece of `largest_bytes`.
    pub fn new(gpu: &Arc<Gpu>, budget_bytes: u64, largest_bytes: u64) -> Arc<Self> {
        let least = Self::padded(largest_bytes);
        let most = Self::BLOCK_BYTES.max(least.saturating_mul(Self::LARGEST_PIECES));
        Self::of_blocks(gpu, budget_bytes.max(least), most)
    }

    /// A pool of at most `budget_bytes` in blocks of at most `most_bytes`.
    pub fn of_blocks(gpu: &Arc<Gpu>, budget_bytes: u64, most_bytes: u64) -> Arc<Self> {
        let (blocks, block_bytes) = equal_blocks(budget_bytes, most_bytes);
        Arc::new(Self {
            gpu: gpu.clone(),
            block_bytes,
            max_blocks: blocks as usize,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// What a piece of that size takes of the budget.
    pub fn padded(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(Self::ALIGNMENT)
    }

    /// Takes a piece, waiting until there is room. `None` once the pool is closed.
    ///
    /// # Errors
    /// What the driver says when a further block cannot be had.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<Option<PinnedBuffer>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Ok(None);
            }
            if let Some(buffer) = self.find(&mut state, len)? {
                return Ok(Some(buffer));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a piece, if there is room.
    ///
    /// # Errors
    /// As [`PinnedPool::take`].
    pub fn try_take(self: &Arc<Self>, len: usize) -> Result<Option<PinnedBuffer>> {
        self.find(&mut self.lock(), len)
    }

    /// Takes a piece, if there is room in the blocks that are allocated.
    pub fn take_allocated(self: &Arc<Self>, len: usize) -> Option<PinnedBuffer> {
        self.find_allocated(&mut self.lock(), len)
    }

    /// Allocates another block if it is time for one, now that `bytes` are in other memory, for which there was no room. Meanwhile others take pieces.
    pub fn grow(&self, bytes: u64) {
        let mut state = self.lock();
        if !state.begins_to_grow(bytes, self.block_bytes, self.max_blocks) {
            return;
        }
        drop(state);
        let block = self.new_block();
        let mut state = self.lock();
        state.is_growing = false;
        match block {
            Ok(block) => state.blocks.push(block),
            Err(_) => state.is_refused = true,
        }
    }

    fn find(self: &Arc<Self>, state: &mut State, len: usize) -> Result<Option<PinnedBuffer>> {
        loop {
            let found = self.find_allocated(state, len);
            if found.is_some() || state.blocks.len() == self.max_blocks {
                return Ok(found);
            }
            state.blocks.push(self.new_block()?);
        }
    }

    fn find_allocated(self: &Arc<Self>, state: &mut State, len: usize) -> Option<PinnedBuffer> {
        let wanted = Self::padded(len as u64);
        state.blocks.iter_mut().enumerate().find_map(|(block, Block { memory, pieces })| {
            let piece = pieces.allocate_range(wanted).ok()?;
            // SAFETY: the piece lies within the block.
            let address = unsafe { memory.address().add(piece.start as usize) };
            Some(PinnedBuffer { pool: self.clone(), block, piece, address, len })
        })
    }

    fn new_block(&self) -> Result<Block> {
        let memory = PinnedMemory::new(&self.gpu, self.block_bytes as usize)?;
        Ok(Block { memory, pieces: RangeAllocator::new(0..self.block_bytes) })
    }

    /// Whether all of these bytes are in the pool's memory.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let bytes = bytes.as_ptr_range();
        self.lock().blocks.iter().any(|Block { memory, .. }| {
            let start = memory.address().cast_const();
            start <= bytes.start && bytes.end <= start.wrapping_add(memory.bytes())
        })
    }

    /// The most bytes of all blocks.
    pub fn budget_bytes(&self) -> u64 {
        self.max_blocks as u64 * self.block_bytes
    }

    /// Bytes of all allocated blocks.
    pub fn allocated_bytes(&self) -> u64 {
        self.lock().blocks.len() as u64 * self.block_bytes
    }

    /// Ends all waiting, now and later.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether another block of `block_bytes` is to be allocated: once as many bytes as it has were elsewhere since the last one, so that both memories
    /// together hardly become larger. Not if there are `max_blocks`, another thread does so, or the driver has refused one.
    fn begins_to_grow(&mut self, bytes: u64, block_bytes: u64, max_blocks: usize) -> bool {
        self.elsewhere_bytes += bytes;
        let may = self.blocks.len() < max_blocks && !self.is_growing && !self.is_refused && !self.closed;
        let grows = may && self.elsewhere_bytes >= block_bytes;
        if grows {
            (self.elsewhere_bytes, self.is_growing) = (0, true);
        }
        grows
    }
}

/// A budget in equal blocks of at most `most_bytes`: how many, and the bytes of each. Of many blocks each has the most, since what they leave is little
/// then, and pieces fill such a block.
fn equal_blocks(budget_bytes: u64, most_bytes: u64) -> (u64, u64) {
    const MANY: u64 = 8;
    let whole = budget_bytes / most_bytes;
    if whole >= MANY {
        return (whole, most_bytes);
    }
    let blocks = budget_bytes.div_ceil(most_bytes).max(1);
    (blocks, budget_bytes / blocks)
}

impl PinnedBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the piece belongs to this value; the system gives zeros, and the driver any bytes.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.pool.lock().blocks[self.block].pieces.free_range(self.piece.clone());
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_budget_is_used_by_blocks_that_hold_the_largest_piece() {
        assert_eq!(equal_blocks((4 << 30) - 1, 32 << 20), (127, 32 << 20));
        assert_eq!(equal_blocks(200 << 20, 128 << 20), (2, 100 << 20));
        assert_eq!(equal_blocks(1 << 20, 32 << 20), (1, 1 << 20));
    }

    #[test]
    fn a_pool_grows_by_as_much_as_was_elsewhere() {
        let mut state = State::default();
        let mut grows = |bytes| state.begins_to_grow(bytes, 100, 1);
        assert_eq!([60, 60, 500].map(&mut grows), [false, true, false]);
        state.is_growing = false;
        assert!(state.begins_to_grow(0, 100, 1), "500 were elsewhere meanwhile");
        state.is_growing = false;
        assert_eq!([99, 1].map(|bytes| state.begins_to_grow(bytes, 100, 1)), [false, true]);
        let refused = State { is_refused: true, ..State::default() };
        let closed = State { closed: true, ..State::default() };
        let full = (State::default(), 0);
        for (mut state, blocks) in [(refused, 1), (closed, 1), full] {
            assert!(!state.begins_to_grow(1000, 100, blocks));
        }
    }

    proptest! {
        #[test]
        fn blocks_are_neither_too_large_nor_small(budget in 1u64..1 << 40, most in 256u64..1 << 30) {
            let (blocks, bytes) = equal_blocks(budget, most);
            prop_assert!(bytes <= most && blocks * bytes <= budget && budget - blocks * bytes <= budget / 8);
            prop_assert!(bytes >= budget.min(most / 2));
        }
    }
}
