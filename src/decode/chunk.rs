//! A read chunk on its way, shared by all batches that need it while it is there.

use super::device_pool::Allocation;
use crate::batch::{PendingUnit, PendingUnits};
use crate::error::{Context, Error};
use crate::fetch::Located;
use crate::plan::{ChunkKey, Dims};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::{SmallVec, smallvec};

/// A read chunk: fetched and decoded once for all units that are added to it.
pub struct Chunk {
    /// Which one.
    pub key: ChunkKey,
    /// Coordinates in the grid of read chunks of its part.
    pub read_chunk: Dims,
    allocation: Option<Allocation>,
    /// Whether a thread has it.
    begun: AtomicBool,
    /// Where its bytes are, if somebody looked before.
    place: Mutex<Option<Box<Place>>>,
    state: Mutex<State>,
}

/// Where a chunk's bytes are, and its place for errors.
type Place = (Located, Context);

enum State {
    /// Not decoded yet; who waits for it.
    Waiting(PendingUnits),
    /// Decoded, for as long as this value lives.
    Ready(Cached),
    Failed(Arc<Error>),
}

/// A decoded chunk that stays.
#[derive(Clone)]
pub enum Cached {
    /// The store does not have it: the fill value is meant.
    Missing,
    /// In host memory, in native byte order.
    Host(Arc<Vec<u8>>),
    /// In its room on the GPU.
    Device {
        /// Whether its elements are in the other byte order.
        swaps_bytes: bool,
    },
}

impl Chunk {
    /// A chunk that `unit` waits for. With a room it stays until this value is dropped.
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
            place: Mutex::default(),
            state: Mutex::new(State::Waiting(smallvec![unit])),
        })
    }

    /// A thread has it from now on.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Whether a thread has it.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Keeps where its bytes are for the thread that will have it.
    pub fn keep_place(&self, place: Place) {
        let mut kept = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has it already has looked itself.
        *kept = (!self.has_begun()).then(|| Box::new(place));
    }

    /// Where its bytes are, if somebody looked before.
    pub fn take_place(&self) -> Option<Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take().map(|place| *place)
    }

    /// Array and part.
    pub fn place(&self) -> (usize, usize) {
        (self.key.array, self.key.part)
    }

    /// Where it stays.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// Adds a unit. Gives it back if the chunk is there and the unit can be assembled now.
    pub fn add(&self, unit: PendingUnit) -> Option<PendingUnit> {
        match &mut *self.lock() {
            State::Waiting(units) => units.push(unit),
            State::Ready(_) => return Some(unit),
            State::Failed(error) => unit.batch.fail(Error::Sticky(error.clone())),
        }
        None
    }

    /// Takes the unit that waits for it the longest, and those behind it as long as all together have at most so many
    /// boxes.
    pub fn take(&self, most_boxes: usize) -> PendingUnits {
        let State::Waiting(units) = &mut *self.lock() else { return PendingUnits::new() };
        let count = first(units, most_boxes);
        units.drain(..count).collect()
    }

    /// What `look` says of those that [`Chunk::take`] would take, in that order. More may have come behind them when they are
    /// taken.
    pub fn look_at<T>(
        &self,
        most_boxes: usize,
        mut look: impl FnMut(&PendingUnit) -> Option<T>,
    ) -> SmallVec<[Option<T>; 1]> {
        match &*self.lock() {
            State::Waiting(units) => units[..first(units, most_boxes)].iter().map(&mut look).collect(),
            _ => SmallVec::new(),
        }
    }

    /// What `look` says of the unit that waits for it, if there is only one.
    pub fn only_unit<T>(&self, look: impl FnOnce(&PendingUnit) -> Option<T>) -> Option<T> {
        match &*self.lock() {
            State::Waiting(units) if units.len() == 1 => look(&units[0]),
            _ => None,
        }
    }

    /// The store does not have it. The first batch that needs it is told, which is handed over before the others. Whether it is the
    /// batch's first of this array.
    pub fn note_absent(&self) -> bool {
        match &*self.lock() {
            State::Waiting(units) => units.first().is_some_and(|first| first.batch.note_absent(self.place())),
            _ => false,
        }
    }

    /// Whether nobody needs it any more, because every batch that does has failed. One that stays may be needed by others
    /// yet, which would wait for it for ever if it was dropped.
    pub fn is_abandoned(&self) -> bool {
        self.allocation.is_none()
            && matches!(&*self.lock(), State::Waiting(units) if units.iter().all(|unit| unit.batch.failed()))
    }

    /// It is decoded. Returns who waited.
    pub fn ready(&self, cached: Cached) -> PendingUnits {
        match std::mem::replace(&mut *self.lock(), State::Ready(cached)) {
            State::Waiting(units) => units,
            _ => PendingUnits::new(),
        }
    }

    /// What is held of it, once it is ready.
    pub fn cached(&self) -> Option<Cached> {
        match &*self.lock() {
            State::Ready(cached) => Some(cached.clone()),
            _ => None,
        }
    }

    /// It cannot be read: so every batch fails that needs it, now or later.
    pub fn fail(&self, error: Error) {
        let error = match error {
            Error::Sticky(error) => error,
            error => Arc::new(error),
        };
        if let State::Waiting(units) = std::mem::replace(&mut *self.lock(), State::Failed(error.clone())) {
            units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many units have at most so many boxes together, and one at least if there is one.
fn first(units: &[PendingUnit], most_boxes: usize) -> usize {
    let mut boxes = 0;
    let fitting = units.iter().take_while(|unit| {
        boxes += unit.boxes.len();
        boxes <= most_boxes
    });
    fitting.count().max(1).min(units.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::plan::{Boxes, CopyBox};

    #[test]
    fn those_that_were_looked_at_are_the_first_that_are_taken() {
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let unit = |output: usize, boxes: usize| {
            let (extents, strides) = (Dims::from_slice(&[1]), Dims::from_slice(&[1]));
            let one = CopyBox { from: 0, to: 0, extents, from_strides: strides.clone(), to_strides: strides };
            batch.unit(output, std::iter::repeat_n(one, boxes).collect::<Boxes>())
        };
        let key = ChunkKey { array: 0, part: 0, number: 0 };
        let chunk = Chunk::new(key, Dims::new(), None, unit(0, 2));
        (1..4).for_each(|output| assert!(chunk.add(unit(output, 2)).is_none()));
        let seen = chunk.look_at(5, |unit| (unit.output == 1).then_some(unit.output));
        assert_eq!(seen.as_slice(), [None, Some(1)]);
        assert!(chunk.add(unit(4, 1)).is_none());
        let outputs = |units: PendingUnits| units.iter().map(|unit| unit.output).collect::<Vec<_>>();
        assert_eq!(outputs(chunk.take(5)), [0, 1]);
        // One at least, however many boxes it has.
        assert_eq!(chunk.look_at(1, |unit| Some(unit.output)).as_slice(), [Some(2)]);
        assert_eq!(outputs(chunk.take(1)), [2]);
        assert_eq!(outputs(chunk.take(usize::MAX)), [3, 4]);
        assert!(chunk.look_at(1, |unit| Some(unit.output)).is_empty());
    }
}
