//! Memory for bodies that is used again. The system clears memory that it gives anew, which costs more time than to receive the bytes.

use crate::memory::{self, Refused};

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers that are free, and how many bytes are in use.
#[derive(Debug)]
pub struct Buffers {
    /// Free buffers are kept as long as they and those in use have no more bytes together.
    most_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By capacity.
    free: BTreeMap<usize, Vec<Vec<u8>>>,
    free_bytes: u64,
    used_bytes: u64,
}

/// Bytes in memory that is free again when this is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// `None` for memory that is not kept.
    of: Option<Arc<Buffers>>,
}

impl Buffers {
    /// Smaller ones are not worth keeping: the allocator uses them again.
    const LEAST_BYTES: u64 = 64 << 10;

    /// Keeps buffers as long as all of them have at most so many bytes.
    pub fn new(most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { most_bytes, state: Mutex::default() })
    }

    /// Keeps none.
    pub fn none() -> Arc<Self> {
        Self::new(0)
    }

    /// An empty buffer with room for so many bytes.
    ///
    /// # Errors
    /// Sizes for which there is no memory.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Buffer, Refused> {
        if bytes < Self::LEAST_BYTES {
            let mut small = vec![];
            memory::reserve(&mut small, bytes)?;
            return Ok(Buffer { bytes: small, of: None });
        }
        let capacity = class_of(bytes).ok_or(Refused { bytes })?;
        let mut state = self.lock();
        // What is in flight is counted by the bytes that were asked for: a much larger buffer would hide memory.
        let mut found = state.pop(capacity, capacity.saturating_add(capacity / 4));
        if found.is_none() {
            // Those of other sizes make room.
            while state.used_bytes + state.free_bytes + capacity as u64 > self.most_bytes {
                let Some(other) = state.pop(0, usize::MAX) else { break };
                drop(other);
            }
        }
        drop(state);
        let mut bytes = found.take().unwrap_or_default();
        memory::reserve(&mut bytes, capacity as u64)?;
        self.lock().used_bytes += bytes.capacity() as u64;
        Ok(Buffer { bytes, of: Some(self.clone()) })
    }

    fn put(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let (capacity, mut state) = (bytes.capacity(), self.lock());
        state.used_bytes = state.used_bytes.saturating_sub(capacity as u64);
        if state.used_bytes + state.free_bytes + capacity as u64 <= self.most_bytes {
            state.free_bytes += capacity as u64;
            state.free.entry(capacity).or_default().push(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a free buffer of at least and at most these capacities, the smallest one.
    fn pop(&mut self, least: usize, most: usize) -> Option<Vec<u8>> {
        let (&capacity, buffers) = self.free.range_mut(least..=most).next()?;
        let found = buffers.pop();
        if buffers.is_empty() {
            self.free.remove(&capacity);
        }
        self.free_bytes -= capacity as u64;
        found
    }
}

/// Capacities come in steps of an eighth of a power of two, so that buffers fit for others of about their size.
fn class_of(bytes: u64) -> Option<usize> {
    let step = 1 << bytes.max(8).ilog2().saturating_sub(3);
    usize::try_from(bytes.checked_next_multiple_of(step)?).ok()
}

impl Buffer {
    /// To append to; what it has room for is not checked.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            of.put(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_used_again_for_what_fits_and_makes_room_for_what_does_not() {
        let buffers = Buffers::new(10 * MIB);
        let address = |buffer: &Buffer| buffer.bytes.as_ptr();
        let free_and_used = || {
            let state = buffers.lock();
            (state.free_bytes, state.used_bytes)
        };
        let mut first = buffers.take(3 * MIB).unwrap();
        first.bytes_mut().extend_from_slice(b"abc");
        assert_eq!((&first[..], first.bytes.capacity() as u64 >= 3 * MIB), (&b"abc"[..], true));
        let place = address(&first);
        drop(first);
        // A little less fits, much less does not.
        let second = buffers.take(3 * MIB - 1000).unwrap();
        assert!(address(&second) == place && second.is_empty());
        drop(second);
        let small = buffers.take(MIB).unwrap();
        assert_ne!(address(&small), place);
        assert_eq!(free_and_used(), (3 * MIB, MIB));
        let large = buffers.take(8 * MIB).unwrap();
        assert_eq!(free_and_used(), (0, 9 * MIB));
        // More than all of it is had, and not kept.
        let larger = buffers.take(12 * MIB).unwrap();
        drop((larger, large));
        assert_eq!(free_and_used(), (8 * MIB, MIB));
        drop((small, buffers.take(10).unwrap()));
        assert_eq!(free_and_used(), (9 * MIB, 0));
        assert!(buffers.take(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn free_and_used_bytes_are_those_of_the_buffers(
            steps in prop::collection::vec((0usize..8, 1u64..400), 1..100), most in 0u64..2000,
        ) {
            let buffers = Buffers::new(most << 10);
            let mut held = vec![];
            for (which, kib) in steps {
                if which < held.len() {
                    drop(held.swap_remove(which));
                } else {
                    let buffer = buffers.take(kib << 10).unwrap();
                    prop_assert!(buffer.bytes.capacity() as u64 >= kib << 10);
                    held.push(buffer);
                }
                let state = buffers.lock();
                let of = |buffers: &[Vec<u8>]| buffers.iter().map(|it| it.capacity() as u64).sum::<u64>();
                prop_assert_eq!(state.free_bytes, state.free.values().map(|it| of(it)).sum::<u64>());
                let kept = held.iter().filter(|it| it.of.is_some());
                let used: u64 = kept.map(|it| it.bytes.capacity() as u64).sum();
                prop_assert_eq!(state.used_bytes, used);
                prop_assert!(state.free_bytes == 0 || state.free_bytes + used <= most << 10);
            }
        }
    }
}
