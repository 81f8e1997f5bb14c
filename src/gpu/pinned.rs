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
    /// The size of a block where the budget allows several.
    const BLOCK_BYTES: u64 = 32 << 20;

    /// A pool of at most `budget_bytes`, with room for at least one piece of `largest_bytes`.
    pub fn new(gpu: &Arc<Gpu>, budget_bytes: u64, largest_bytes: u64) -> Arc<Self> {
        let least = Self::padded(largest_bytes);
        Self::of_blocks(gpu, budget_bytes, Self::BLOCK_BYTES.min(budget_bytes).max(least))
    }

    /// A pool of at most `budget_bytes` in blocks of `block_bytes`, at least one.
    pub fn of_blocks(gpu: &Arc<Gpu>, budget_bytes: u64, block_bytes: u64) -> Arc<Self> {
        let max_blocks = (budget_bytes / block_bytes).max(1) as usize;
        Arc::new(Self {
            gpu: gpu.clone(),
            block_bytes,
            max_blocks,
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

    /// Allocates another block, unless the budget is reached, another thread does so, or the driver has refused one. Meanwhile others take
    /// pieces.
    pub fn grow(&self) {
        let mut state = self.lock();
        let is_full = state.blocks.len() == self.max_blocks;
        if is_full || state.is_growing || state.is_refused || state.closed {
            return;
        }
        state.is_growing = true;
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

impl PinnedBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the piece belongs to this value; pinned memory was zero at first, or was written before.
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
