//! Read chunks that are fetched before the batch that needs them is planned.
//!
//! The bytes of such a chunk hold memory from its request until a batch claims the chunk and decodes it, or until they are given back:
//! because the batch they were fetched for did not need them, or because a request of an earlier batch needs the memory.

use super::locate::Located;
use crate::error::{Context, Result};
use crate::plan::Dims;

use std::collections::{BTreeMap, HashMap};

/// Array and part of the dataset, and coordinates in the part's grid of read chunks.
pub(super) type Cell = ((usize, usize), Dims);

/// Where the bytes of a read chunk are, and the read chunk as the place of an error; or why it cannot be read.
pub(super) type Found = Result<(Located, Context)>;

/// The read chunks that were asked for ahead, until their bytes are handed over. `C` is a read chunk of a batch.
pub(super) struct Ahead<C> {
    chunks: HashMap<Cell, Entry<C>>,
    /// The cells by the batch that they were asked for, and some of which `chunks` has no entry any more.
    by_batch: BTreeMap<u64, Vec<Cell>>,
    /// Memory that is held or will be held for those that no batch has claimed.
    bytes: u64,
    /// Read chunks that batches have asked for themselves and that have not arrived, and how many batches have.
    requested: HashMap<Cell, usize>,
}

struct Entry<C> {
    /// Number of the batch that it was asked for.
    batch: u64,
    /// Memory that it holds or will hold, in all probability.
    bytes: u64,
    state: State<C>,
}

enum State<C> {
    /// Its bytes have not arrived, and no batch has claimed it.
    Coming,
    /// A batch has claimed it before its bytes arrived.
    Claimed(C),
    /// Its bytes have arrived, and no batch has claimed it.
    Arrived(Box<Found>),
}

/// What is there for a read chunk that a batch claims.
pub(super) enum Claim<C> {
    /// It has to be asked for.
    None(C),
    /// It will be handed over when its bytes arrive.
    Coming,
    /// Its bytes.
    Arrived(C, Box<Found>),
}

impl<C> Default for Ahead<C> {
    fn default() -> Self {
        Self { chunks: HashMap::new(), by_batch: BTreeMap::new(), bytes: 0, requested: HashMap::new() }
    }
}

impl<C> Ahead<C> {
    /// Notes that a batch asks for a read chunk itself. Nobody asks for it ahead until [`Ahead::answered`]: then the disk cache
    /// may have it.
    pub fn requested(&mut self, cell: Cell) {
        *self.requested.entry(cell).or_default() += 1;
    }

    /// Notes the answer for a read chunk that a batch has asked for itself.
    pub fn answered(&mut self, cell: &Cell) {
        if let Some(batches) = self.requested.get_mut(cell) {
            *batches -= 1;
            if *batches == 0 {
                self.requested.remove(cell);
            }
        }
    }

    /// Notes that a read chunk is asked for, which a batch will need, and that its answer will hold `bytes` of memory. Returns whether it
    /// was not asked for before.
    pub fn ask(&mut self, batch: u64, cell: Cell, bytes: u64) -> bool {
        if self.chunks.contains_key(&cell) || self.requested.contains_key(&cell) {
            return false;
        }
        self.bytes += bytes;
        self.by_batch.entry(batch).or_default().push(cell.clone());
        self.chunks.insert(cell, Entry { batch, bytes, state: State::Coming });
        true
    }

    /// Memory that is held or will be held for those that no batch has claimed, and how many read chunks there are.
    pub fn size(&self) -> (u64, usize) {
        (self.bytes, self.chunks.len())
    }

    /// A batch needs a read chunk now. The answer that a later batch waits for is left to that batch: a request has the urgency of its batch, and those of
    /// earlier batches must not wait for it.
    pub fn claim(&mut self, batch: u64, cell: &Cell, chunk: C) -> Claim<C> {
        let Some(entry) = self.chunks.get_mut(cell) else { return Claim::None(chunk) };
        match entry.state {
            State::Claimed(_) => return Claim::None(chunk),
            State::Coming if batch < entry.batch => return Claim::None(chunk),
            _ => {}
        }
        self.bytes -= std::mem::take(&mut entry.bytes);
        if matches!(entry.state, State::Coming) {
            entry.state = State::Claimed(chunk);
            return Claim::Coming;
        }
        match self.chunks.remove(cell).map(|entry| entry.state) {
            Some(State::Arrived(found)) => Claim::Arrived(chunk, found),
            _ => Claim::None(chunk),
        }
    }

    /// The answer for a read chunk. Returns it if a batch has claimed the chunk; keeps it if one may; drops it else.
    pub fn arrived(&mut self, cell: &Cell, found: Found) -> Option<(C, Found)> {
        let entry = self.chunks.get_mut(cell)?;
        match &mut entry.state {
            State::Claimed(_) => match self.chunks.remove(cell)?.state {
                State::Claimed(chunk) => Some((chunk, found)),
                _ => None,
            },
            state @ State::Coming => {
                if !holds_memory(&found) {
                    self.bytes -= std::mem::take(&mut entry.bytes);
                }
                *state = State::Arrived(Box::new(found));
                None
            }
            // It was asked for twice, because it was given back in between.
            State::Arrived(_) => None,
        }
    }

    /// Gives back what no batch up to this one has claimed of what was asked for them. Returns it, to be dropped.
    pub fn planned(&mut self, batch: u64) -> Vec<Found> {
        let later = self.by_batch.split_off(&(batch + 1));
        let past = std::mem::replace(&mut self.by_batch, later);
        let cells = past.into_values().flatten();
        cells
            .filter_map(|cell| self.remove_unclaimed(&cell, |entry| entry.batch <= batch))
            .map(|found| *found)
            .collect()
    }

    /// Gives back the bytes that were asked for the latest batch behind this one. Returns them, to be dropped.
    pub fn give_back(&mut self, batch: u64) -> Option<Box<Found>> {
        let holds = |entry: &Entry<C>| entry.bytes > 0 && matches!(entry.state, State::Arrived(_));
        let mut cells = self.by_batch.range(batch + 1..).rev().flat_map(|(_, cells)| cells);
        let last = cells.find(|cell| self.chunks.get(*cell).is_some_and(holds))?.clone();
        self.remove_unclaimed(&last, holds)
    }

    /// Removes a read chunk that no batch has claimed, if `condition` says so. Returns its bytes if they have arrived.
    fn remove_unclaimed(&mut self, cell: &Cell, condition: impl Fn(&Entry<C>) -> bool) -> Option<Box<Found>> {
        let entry = self.chunks.get(cell)?;
        if matches!(entry.state, State::Claimed(_)) || !condition(entry) {
            return None;
        }
        let entry = self.chunks.remove(cell)?;
        self.bytes -= entry.bytes;
        match entry.state {
            State::Arrived(found) => Some(found),
            _ => None,
        }
    }
}

/// Whether the bytes of an answer are in memory.
fn holds_memory(found: &Found) -> bool {
    matches!(found, Ok((Located::At { blob, .. }, _)) if !blob.is_in_disk_cache())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::Blob;

    use std::io;
    use std::sync::{Arc, Weak};

    use proptest::prelude::*;

    /// Bytes in memory, of which only the owners count.
    struct InMemory;

    impl Blob for InMemory {
        fn len(&self) -> u64 {
            0
        }
        fn version(&self) -> u64 {
            0
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
        fn check_unchanged(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn cell(number: u64) -> Cell {
        ((0, 0), Dims::from_slice(&[number]))
    }

    /// An answer with bytes, and whether somebody has them still.
    fn answer() -> (Found, Weak<dyn Blob>) {
        let blob: Arc<dyn Blob> = Arc::new(InMemory);
        let owned = Arc::downgrade(&blob);
        (Ok((Located::At { blob, range: 0..1 }, Context::default())), owned)
    }

    #[test]
    fn what_arrives_waits_for_its_batch_and_is_handed_over_once() {
        let mut ahead = Ahead::default();
        assert!(ahead.ask(5, cell(1), 10) && ahead.ask(6, cell(2), 20) && !ahead.ask(6, cell(1), 10));
        assert_eq!(ahead.size(), (30, 2));
        assert!(matches!(ahead.claim(9, &cell(3), "other"), Claim::None("other")));
        // One arrives before its batch claims it, one behind that.
        assert!(ahead.arrived(&cell(1), answer().0).is_none());
        assert_eq!(ahead.size(), (30, 2));
        assert!(matches!(ahead.claim(2, &cell(1), "first"), Claim::Arrived("first", found) if found.is_ok()));
        assert!(matches!(ahead.claim(5, &cell(2), "earlier"), Claim::None("earlier")));
        assert!(matches!(ahead.claim(6, &cell(2), "second"), Claim::Coming));
        assert!(matches!(ahead.claim(7, &cell(2), "third"), Claim::None("third")));
        assert_eq!(ahead.size(), (0, 1));
        assert!(matches!(ahead.arrived(&cell(2), answer().0), Some(("second", Ok(_)))));
        assert_eq!(ahead.size(), (0, 0));
    }

    #[test]
    fn what_batches_have_asked_for_is_not_asked_for_ahead_until_it_has_arrived() {
        let mut ahead = Ahead::<()>::default();
        ahead.requested(cell(1));
        ahead.requested(cell(1));
        assert!(ahead.ask(5, cell(2), 10) && !ahead.ask(5, cell(1), 10));
        ahead.answered(&cell(1));
        assert!(!ahead.ask(5, cell(1), 10));
        ahead.answered(&cell(1));
        assert!(ahead.ask(5, cell(1), 10));
        assert_eq!((ahead.size(), ahead.requested.len()), ((20, 2), 0));
    }

    #[test]
    fn memory_is_given_back_of_the_latest_batch_and_of_chunks_that_their_batch_did_not_need() {
        let mut ahead = Ahead::<()>::default();
        let owned: Vec<_> = (0..4)
            .map(|number| {
                ahead.ask(10 + number, cell(number), 5);
                let (found, owned) = answer();
                assert!(ahead.arrived(&cell(number), found).is_none());
                owned
            })
            .collect();
        ahead.ask(99, cell(9), 5);
        let held = || owned.iter().map(|owned| owned.strong_count()).collect::<Vec<_>>();
        drop(ahead.give_back(11));
        assert_eq!((held(), ahead.size()), (vec![1, 1, 1, 0], (20, 4)));
        drop(ahead.planned(11));
        assert_eq!((held(), ahead.size()), (vec![0, 0, 1, 0], (10, 2)));
        // Nothing that is needed as early, and nothing that holds no memory yet.
        assert!(ahead.give_back(12).is_none());
        assert_eq!((held(), ahead.size()), (vec![0, 0, 1, 0], (10, 2)));
    }

    proptest! {
        /// Every claim is answered once, with an answer that came after the request, and memory is counted of what waits.
        #[test]
        fn random_calls_lose_nothing(calls in prop::collection::vec((0u8..5, 0u64..6, 0u64..8), 0..200)) {
            let mut ahead = Ahead::<usize>::default();
            // Claims that wait, and answers that are on their way, by cell.
            let (mut waiting, mut coming) = (HashMap::<u64, usize>::new(), vec![]);
            let mut owned: Vec<(u64, Weak<dyn Blob>)> = vec![];
            for (number, (call, at, batch)) in calls.into_iter().enumerate() {
                match call {
                    0 if ahead.ask(batch, cell(at), 1 + at) => {
                        prop_assert!(!waiting.contains_key(&at));
                        coming.push(at);
                    }
                    1 => match ahead.claim(batch, &cell(at), number) {
                        Claim::None(chunk) => prop_assert_eq!(chunk, number),
                        Claim::Coming => prop_assert!(coming.contains(&at) && waiting.insert(at, number).is_none()),
                        Claim::Arrived(chunk, found) => prop_assert!(chunk == number && found.is_ok()),
                    },
                    2 if !coming.is_empty() => {
                        let at = coming.remove(number % coming.len());
                        let (found, owner) = answer();
                        owned.push((at, owner));
                        let handed_over = ahead.arrived(&cell(at), found).map(|(chunk, _)| chunk);
                        prop_assert_eq!(handed_over, waiting.remove(&at));
                    }
                    3 => drop(ahead.planned(batch)),
                    4 => drop(ahead.give_back(batch)),
                    _ => {}
                }
                let (bytes, count) = ahead.size();
                prop_assert!(count >= waiting.len());
                owned.retain(|(_, owner)| owner.strong_count() > 0);
                let arrived: u64 = owned.iter().map(|(at, _)| 1 + at).sum();
                prop_assert!(bytes >= arrived && bytes <= arrived + coming.iter().map(|at| 1 + at).sum::<u64>());
            }
            // All answers come, and each claim has got its own.
            for at in coming {
                let handed_over = ahead.arrived(&cell(at), answer().0).map(|(chunk, _)| chunk);
                prop_assert_eq!(handed_over, waiting.remove(&at));
            }
            prop_assert!(waiting.is_empty());
            drop(ahead.planned(u64::MAX - 1));
            prop_assert_eq!(ahead.size(), (0, 0));
        }
    }
}
