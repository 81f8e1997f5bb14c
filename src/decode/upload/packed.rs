//! Packs small chunks into one buffer.

use crate::decode::device_pool::Allocation;
use crate::gpu::{PinnedBuffer, PinnedPool};

use std::ops::Range;
use std::sync::Arc;

/// Pinned memory for small chunks that are copied to the GPU together. A GPU makes no more than about 75,000 copies a second if
/// they come from many streams.
pub struct PackedBuffer {
    /// The bytes of the chunks.
    pub buffer: PinnedBuffer,
    /// The device memory that they are copied to. It is as large as the buffer.
    pub allocation: Arc<Allocation>,
    /// Which bytes are used.
    pub packing: Packing,
}

impl PackedBuffer {
    /// An empty buffer.
    pub fn new(buffer: PinnedBuffer, allocation: Allocation) -> Self {
        let packing = Packing::new(buffer.bytes().len());
        Self { buffer, allocation: Arc::new(allocation), packing }
    }
}

/// Which bytes of a packed buffer are used.
#[derive(Debug)]
pub struct Packing {
    used: usize,
    capacity: usize,
}

/// A range of a packed buffer for one chunk. It is free again unless [`Packing::keep`] is called.
#[derive(Debug)]
pub struct Slot(Range<usize>);

impl Slot {
    /// The bytes of the slot in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.0.clone()
    }
}

impl Packing {
    /// An empty buffer of `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { used: 0, capacity }
    }

    /// Whether a chunk of `bytes` bytes fits.
    pub fn fits(&self, bytes: usize) -> bool {
        self.used + bytes <= self.capacity
    }

    /// The slot of the next chunk.
    pub fn next(&self, bytes: usize) -> Slot {
        Slot(self.used..self.used + bytes)
    }

    /// Marks a slot as used. The next slot starts at an aligned byte.
    pub fn keep(&mut self, slot: &Slot) {
        self.used = slot.0.end.next_multiple_of(PinnedPool::ALIGNMENT as usize);
    }

    /// Whether no slot is used.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Number of bytes from the start of the buffer that have to be copied.
    pub fn used_bytes(&self) -> usize {
        self.used.min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_that_are_not_kept_are_given_out_again() {
        let mut packing = Packing::new(1000);
        assert_eq!(packing.next(300).range(), 0..300);
        assert!(packing.is_empty());
        let slot = packing.next(300);
        packing.keep(&slot);
        assert_eq!((packing.is_empty(), packing.used_bytes()), (false, 512));
        assert_eq!(packing.next(1).range(), 512..513);
        assert!(packing.fits(488) && !packing.fits(489));
    }

    #[test]
    fn a_last_slot_that_ends_unaligned_is_copied_up_to_the_end_of_the_buffer() {
        let mut packing = Packing::new(300);
        let slot = packing.next(300);
        packing.keep(&slot);
        assert_eq!(packing.used_bytes(), 300);
        assert!(!packing.fits(1));
    }

    proptest! {
        #[test]
        fn slots_are_aligned_and_disjoint_and_lie_in_the_bytes_that_are_copied(
            capacity in 1usize..5000,
            chunks in prop::collection::vec((1usize..700, any::<bool>()), 0..40),
        ) {
            let mut packing = Packing::new(capacity);
            let mut kept: Vec<Range<usize>> = vec![];
            for (bytes, keeps) in chunks {
                if !packing.fits(bytes) {
                    continue;
                }
                let slot = packing.next(bytes);
                prop_assert_eq!(slot.range().len(), bytes);
                prop_assert_eq!(slot.range().start % PinnedPool::ALIGNMENT as usize, 0);
                if keeps {
                    packing.keep(&slot);
                    kept.push(slot.range());
                }
            }
            prop_assert!(kept.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(kept.iter().all(|range| range.end <= packing.used_bytes()));
            prop_assert!(packing.used_bytes() <= capacity);
            prop_assert_eq!(packing.is_empty(), kept.is_empty());
        }
    }
}
