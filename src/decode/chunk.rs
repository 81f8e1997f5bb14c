//! A read chunk in flight, shared by all batches that need it.

use super::device_pool::Allocation;
use crate::assemble::{Conversion, whole_chunk};
use crate::batch::{Batch, PendingUnit, PendingUnits};
use crate::error::{Context, Error};
use crate::fetch::Encoded;
use crate::plan::{ChunkKey, Dims};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::smallvec;

/// A read chunk. It is read and decoded once for all units that are added to it.
pub struct Chunk {
    /// Array, part and number of the chunk.
    pub key: ChunkKey,
    /// Coordinates in the part's grid of read chunks.
    pub read_chunk: Dims,
    allocation: Option<Allocation>,
    /// Whether a thread has taken the chunk.
    begun: AtomicBool,
    /// Where the encoded bytes are, if the prefetcher has found them.
    location: Mutex<Option<Box<Location>>>,
    /// The entry of the disk cache that the chunk is being read from.
    cache_entry: Mutex<Option<Encoded>>,
    state: Mutex<State>,
}

/// The encoded bytes of a chunk, and the chunk as the place of an error.
type Location = (Option<Encoded>, Context);

enum State {
    /// Not decoded yet. Holds the units that wait for the chunk.
    Waiting(PendingUnits),
    /// Decoded. The elements live as long as the chunk.
    Ready(Cached),
    Failed(Arc<Error>),
}

/// A decoded chunk in the chunk cache.
#[derive(Clone)]
pub enum Cached {
    /// The store does not have the chunk: its elements are the fill value.
    Missing,
    /// Decoded in host memory, in native byte order.
    Host(Arc<Vec<u8>>),
    /// Decoded in the chunk's allocation on the GPU.
    Device {
        /// Whether the elements are in the other byte order.
        swaps_bytes: bool,
    },
}

impl Chunk {
    /// A chunk that `unit` waits for. A chunk with an `allocation` belongs to the chunk cache: its elements are kept until it is
    /// dropped.
    pub fn new(
        key: ChunkKey,
        read_chunk: Dims,
        allocation: Option<Allocation>,
        unit: PendingUnit,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            read_chunk,
            allocation,
            begun: AtomicBool::new(false),
            location: Mutex::default(),
            cache_entry: Mutex::default(),
            state: Mutex::new(State::Waiting(smallvec![unit])),
        })
    }

    /// Notes that a thread has taken the chunk.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Notes that the thread that had taken the chunk gives it back.
    pub fn put_back(&self) {
        self.begun.store(false, Ordering::Release);
    }

    /// Whether a thread has taken the chunk.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Keeps the location of the encoded bytes for the thread that will take the chunk.
    pub fn keep_location(&self, location: Location) {
        let mut kept = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that has the chunk already has looked for its bytes itself.
        *kept = (!self.has_begun()).then(|| Box::new(location));
    }

    /// Takes the location out that [`Chunk::keep_location`] kept.
    pub fn take_location(&self) -> Option<Location> {
        let mut kept = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take().map(|location| *location)
    }

    /// A copy of the location that [`Chunk::keep_location`] kept.
    pub fn location(&self) -> Option<Location> {
        let kept = self.location.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_deref().cloned()
    }

    /// Notes from which entry of the disk cache the chunk is read; `None`: from none. Returns what was noted before.
    pub fn set_cache_entry(&self, entry: Option<Encoded>) -> Option<Encoded> {
        std::mem::replace(&mut *self.cache_entry.lock().unwrap_or_else(PoisonError::into_inner), entry)
    }

    /// Array and part of the chunk.
    pub fn part(&self) -> (usize, usize) {
        (self.key.array, self.key.part)
    }

    /// The chunk's memory in the chunk cache, if it is cached.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// Adds a unit. Returns the unit if the chunk is decoded already, so that the unit can be assembled now.
    pub fn add(&self, unit: PendingUnit) -> Option<PendingUnit> {
        match &mut *self.lock() {
            State::Waiting(units) => units.push(unit),
            State::Ready(_) => return Some(unit),
            State::Failed(error) => unit.batch.fail(Error::Sticky(error.clone())),
        }
        None
    }

    /// Takes the first waiting units that have at most `most_boxes` boxes in total, and at least one unit.
    pub fn take(&self, most_boxes: usize) -> PendingUnits {
        let State::Waiting(units) = &mut *self.lock() else { return PendingUnits::new() };
        let mut boxes = 0;
        let fitting = units.iter().take_while(|unit| {
            boxes += unit.boxes.len();
            boxes <= most_boxes
        });
        let count = fitting.count().max(1).min(units.len());
        units.drain(..count).collect()
    }

    /// The address in an output to which the chunk can be decoded directly, and the batch of that output. `bytes` is the size of
    /// the decoded chunk.
    ///
    /// Direct output needs a chunk that is not cached, and a single unit that takes the whole chunk without a conversion.
    pub fn direct_output(&self, conversion: &Conversion, bytes: u64) -> Option<(u64, Arc<Batch>)> {
        if self.allocation.is_some() {
            return None;
        }
        match &*self.lock() {
            State::Waiting(units) if units.len() == 1 => {
                let unit = &units[0];
                let output = unit.batch.outputs[unit.output];
                let address = whole_chunk(&unit.boxes, conversion, bytes, output)?;
                Some((address, unit.batch.clone()))
            }
            _ => None,
        }
    }

    /// Tells the first waiting batch that the store does not have the chunk; it is handed over before the others. Returns
    /// whether it is the first missing chunk of this array in that batch.
    pub fn note_absent(&self) -> bool {
        match &*self.lock() {
            State::Waiting(units) => units.first().is_some_and(|first| first.batch.note_absent(self.part())),
            _ => false,
        }
    }

    /// Whether the chunk need not be decoded, because every batch that waits for it has failed. A cached chunk never is: later
    /// batches may wait for it, and would wait forever if it was dropped.
    pub fn is_abandoned(&self) -> bool {
        self.allocation.is_none()
            && matches!(&*self.lock(), State::Waiting(units) if units.iter().all(|unit| unit.batch.failed()))
    }

    /// Marks the chunk as decoded. Returns the units that waited for it.
    pub fn ready(&self, cached: Cached) -> PendingUnits {
        match std::mem::replace(&mut *self.lock(), State::Ready(cached)) {
            State::Waiting(units) => units,
            _ => PendingUnits::new(),
        }
    }

    /// The decoded chunk, once [`Chunk::ready`] was called.
    pub fn cached(&self) -> Option<Cached> {
        match &*self.lock() {
            State::Ready(cached) => Some(cached.clone()),
            _ => None,
        }
    }

    /// Marks a chunk that is not decoded yet as unreadable. Fails every batch that needs it, now or later. A decoded chunk stays as it is: units
    /// of other batches are on their way to its elements.
    pub fn fail(&self, error: Error) {
        let error = match error {
            Error::Sticky(error) => error,
            error => Arc::new(error),
        };
        let mut state = self.lock();
        if let State::Waiting(units) = &mut *state {
            let units = std::mem::take(units);
            *state = State::Failed(error.clone());
            units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Progress;
    use crate::plan::{Boxes, CopyBox};

    fn chunk(unit: PendingUnit) -> Arc<Chunk> {
        Chunk::new(ChunkKey { array: 0, part: 0, number: 0 }, Dims::new(), None, unit)
    }

    fn batch() -> Arc<Batch> {
        Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()))
    }

    fn broken() -> Error {
        Error::Panic { place: "a test".into(), message: "broken".into() }
    }

    #[test]
    fn a_failed_chunk_fails_the_batches_that_need_it_now_or_later() {
        let (now, later) = (batch(), batch());
        let chunk = chunk(now.unit(0, Boxes::new()));
        chunk.fail(broken());
        assert!(now.failed() && chunk.cached().is_none());
        assert!(chunk.add(later.unit(0, Boxes::new())).is_none());
        assert!(later.failed());
    }

    #[test]
    fn a_decoded_chunk_stays_decoded_when_a_group_fails_that_gathers_it() {
        let (first, later) = (batch(), batch());
        let chunk = chunk(first.unit(0, Boxes::new()));
        assert_eq!(chunk.ready(Cached::Missing).len(), 1);
        chunk.fail(broken());
        assert!(matches!(chunk.cached(), Some(Cached::Missing)));
        assert!(chunk.add(later.unit(0, Boxes::new())).is_some());
        assert!(!later.failed());
    }

    #[test]
    fn units_are_taken_in_order_up_to_a_number_of_boxes() {
        let batch = batch();
        let unit = |output: usize, boxes: usize| {
            let (extents, strides) = (Dims::from_slice(&[1]), Dims::from_slice(&[1]));
            let one = CopyBox { from: 0, to: 0, extents, from_strides: strides.clone(), to_strides: strides };
            batch.unit(output, std::iter::repeat_n(one, boxes).collect::<Boxes>())
        };
        let chunk = chunk(unit(0, 2));
        (1..4).for_each(|output| assert!(chunk.add(unit(output, 2)).is_none()));
        assert!(chunk.add(unit(4, 1)).is_none());
        let outputs = |units: PendingUnits| units.iter().map(|unit| unit.output).collect::<Vec<_>>();
        assert_eq!(outputs(chunk.take(5)), [0, 1]);
        // At least one unit, however many boxes it has.
        assert_eq!(outputs(chunk.take(1)), [2]);
        assert_eq!(outputs(chunk.take(usize::MAX)), [3, 4]);
        assert!(chunk.take(1).is_empty());
    }
}
