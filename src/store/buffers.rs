//! Memory for bodies that is used again. The system clears memory that it gives anew, which costs more time than to receive the bytes.
//! Where a GPU copies bodies out of their memory, it is pinned memory as long as there is some ([`BodyMemory`]).

use crate::memory::{self, Refused};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Memory of another kind that is preferred for bodies, such as pinned memory.
pub trait BodyMemory: Debug + Send + Sync {
    /// So many bytes, if there is room for them; it must not wait.
    fn take(&self, bytes: usize) -> Option<Box<dyn BodyPiece>>;
}

/// A piece of [`BodyMemory`], which is free again when it is dropped.
pub trait BodyPiece: Debug + Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// The bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Buffers that are free, and how many bytes are in use.
#[derive(Debug)]
pub struct Buffers {
    preferred: Option<Arc<dyn BodyMemory>>,
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
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    /// Memory of the allocator, which is kept there, if anywhere.
    Allocated { bytes: Vec<u8>, of: Option<Arc<Buffers>> },
    /// A piece of the preferred memory, of which the first `used` bytes are filled.
    Preferred { piece: Box<dyn BodyPiece>, used: usize },
}

impl Buffers {
    /// Smaller ones are not worth keeping, nor are they in preferred memory: the allocator uses them again.
    pub const LEAST_BYTES: u64 = 64 << 10;

    /// Keeps buffers as long as all of them have at most so many bytes.
    pub fn new(most_bytes: u64) -> Arc<Self> {
        Self::beside(None, most_bytes)
    }

    /// Takes buffers of `preferred` memory as long as there is room in it. Buffers of the allocator's memory are kept when they are free, as long as
    /// those that are free or in use have at most `most_bytes` bytes.
    pub fn beside(preferred: Option<Arc<dyn BodyMemory>>, most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { preferred, most_bytes, state: Mutex::default() })
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
            return Ok(Buffer(Memory::Allocated { bytes: small, of: None }));
        }
        let preferred = self.preferred.as_ref().zip(usize::try_from(bytes).ok());
        if let Some(piece) = preferred.and_then(|(preferred, bytes)| preferred.take(bytes)) {
            return Ok(Buffer(Memory::Preferred { piece, used: 0 }));
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
        Ok(Buffer(Memory::Allocated { bytes, of: Some(self.clone()) }))
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
    /// Appends bytes, for which there has to be room.
    pub fn append(&mut self, more: &[u8]) {
        match &mut self.0 {
            Memory::Allocated { bytes, .. } => bytes.extend_from_slice(more),
            Memory::Preferred { piece, used } => {
                piece.bytes_mut()[*used..*used + more.len()].copy_from_slice(more);
                *used += more.len();
            }
        }
    }

    /// Appends at most `room` bytes of what has come, and returns how many; 0 at the end. There has to be room for them.
    pub fn poll_read(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
        room: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Memory::Allocated { bytes, .. } => pin!(source.read_buf(&mut bytes.limit(room))).poll(cx),
            Memory::Preferred { piece, used } => {
                let mut into = &mut piece.bytes_mut()[*used..*used + room];
                let read = pin!(source.read_buf(&mut into)).poll(cx);
                if let Poll::Ready(Ok(read)) = read {
                    *used += read;
                }
                read
            }
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Memory::Allocated { bytes, .. } => bytes,
            Memory::Preferred { piece, used } => &piece.bytes()[..*used],
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Allocated { bytes, of: Some(of) } = &mut self.0 {
            of.put(std::mem::take(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    const MIB: u64 = 1 << 20;

    /// Bytes of a buffer of the allocator's memory, and whether it is kept.
    fn capacity(buffer: &Buffer) -> (u64, bool) {
        match &buffer.0 {
            Memory::Allocated { bytes, of } => (bytes.capacity() as u64, of.is_some()),
            Memory::Preferred { .. } => (0, false),
        }
    }

    /// Preferred memory of as many bytes as are left.
    #[derive(Debug, Default)]
    struct Left(Arc<AtomicUsize>);

    #[derive(Debug)]
    struct Piece(Vec<u8>, Arc<AtomicUsize>);

    impl BodyMemory for Left {
        fn take(&self, bytes: usize) -> Option<Box<dyn BodyPiece>> {
            let less = |left: usize| left.checked_sub(bytes);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
            Some(Box::new(Piece(vec![7; bytes], self.0.clone())))
        }
    }

    impl BodyPiece for Piece {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            self.1.fetch_add(self.0.len(), Ordering::Relaxed);
        }
    }

    #[test]
    fn preferred_memory_is_taken_as_long_as_there_is_some_and_holds_the_same_bytes() {
        let left = Left(Arc::new(AtomicUsize::new(3 << 20)));
        let buffers = Buffers::beside(Some(Arc::new(Left(left.0.clone()))), 10 * MIB);
        let bytes_left = || left.0.load(Ordering::Relaxed) as u64;
        let all: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut held = vec![];
        for (preferred_left, is_preferred) in [(MIB, true), (MIB, false), (MIB, false)] {
            let mut buffer = buffers.take(2 * MIB).unwrap();
            let (mut source, mut cx) = (&all[1000..], Context::from_waker(Waker::noop()));
            buffer.append(&all[..1000]);
            for room in [1, 10_000, 100_000, 1 << 20] {
                let least = room.min(source.len());
                let Poll::Ready(Ok(read)) = buffer.poll_read(&mut source, room, &mut cx) else { panic!() };
                assert_eq!(read, least);
            }
            assert!(buffer[..] == all, "preferred: {is_preferred}");
            assert_eq!(matches!(buffer.0, Memory::Preferred { .. }), is_preferred);
            assert_eq!(bytes_left(), preferred_left);
            held.push(buffer);
        }
        // Small ones are the allocator's.
        assert_eq!(capacity(&buffers.take(10).unwrap()), (10, false));
        drop(held);
        assert_eq!(bytes_left(), 3 * MIB);
    }

    #[test]
    fn memory_is_used_again_for_what_fits_and_makes_room_for_what_does_not() {
        let buffers = Buffers::new(10 * MIB);
        let address = |buffer: &Buffer| buffer.as_ptr();
        let free_and_used = || {
            let state = buffers.lock();
            (state.free_bytes, state.used_bytes)
        };
        let mut first = buffers.take(3 * MIB).unwrap();
        first.append(b"abc");
        assert_eq!((&first[..], capacity(&first).0 >= 3 * MIB), (&b"abc"[..], true));
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
                    prop_assert!(capacity(&buffer).0 >= kib << 10);
                    held.push(buffer);
                }
                let state = buffers.lock();
                let of = |buffers: &[Vec<u8>]| buffers.iter().map(|it| it.capacity() as u64).sum::<u64>();
                prop_assert_eq!(state.free_bytes, state.free.values().map(|it| of(it)).sum::<u64>());
                let kept = held.iter().map(capacity).filter(|(_, is_kept)| *is_kept);
                let used: u64 = kept.map(|(bytes, _)| bytes).sum();
                prop_assert_eq!(state.used_bytes, used);
                prop_assert!(state.free_bytes == 0 || state.free_bytes + used <= most << 10);
            }
        }
    }
}
