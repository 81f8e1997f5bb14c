//! Pinned memory that the answers of stores are received in, so that the GPU's copies are made from there.

use crate::gpu::{Gpu, PinnedBuffer, PinnedPool};
use crate::store::{BodyMemory, BodyPiece};

use std::sync::Arc;

/// Memory for answers out of a pool of pinned memory.
#[derive(Debug)]
pub struct PinnedBodies(Arc<PinnedPool>);

#[derive(Debug)]
struct Piece(PinnedBuffer);

impl PinnedBodies {
    /// The most bytes of a block. Several answers of some 10 MB fill one up.
    const BLOCK_BYTES: u64 = 128 << 20;
    /// Fewer bytes are not worth a pool.
    const LEAST_BYTES: u64 = 32 << 20;

    /// At most `budget_bytes`. `None` if that is not worth it. There is none at first: threads that copy allocate blocks when answers have come in
    /// other memory ([`super::Uploader::pinned`]), because network threads must not wait for it.
    pub fn new(gpu: &Arc<Gpu>, budget_bytes: u64) -> Option<Self> {
        (budget_bytes >= Self::LEAST_BYTES)
            .then(|| Self(PinnedPool::of_blocks(gpu, budget_bytes, Self::BLOCK_BYTES)))
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<PinnedPool> {
        &self.0
    }
}

impl BodyMemory for PinnedBodies {
    fn take(&self, bytes: usize) -> Option<Box<dyn BodyPiece>> {
        Some(Box::new(Piece(self.0.take_allocated(bytes)?)))
    }
}

impl BodyPiece for Piece {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}
