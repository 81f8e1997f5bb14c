//! Read chunks that are fetched before the batch that needs them is planned.
//!
//! The bytes of such a chunk hold memory from its request until a batch claims the chunk and decodes it, or until they are given back:
//! because the batch they were fetched for did not need them, or because a request of an earlier batch needs the memory.
//!
//! Where a disk cache keeps what is fetched, batches share answers: a chunk that is in flight for a batch is not asked for again, neither
//! ahead nor by a later batch that is planned.

use super::locate::Located;
use crate::error::{Context, Result};
use crate::plan::Dims;

use std::collections::{BTreeMap, HashMap};

/// Array and part of the dataset, and coordinates in the part's grid of read chunks.
pub(super) type Cell = ((usize, usize), Dims);

/// Where the bytes of a read chunk are, and the read chunk as the place of an error; or why it cannot be read.
pub(super) type Found = Result<(Located, Context)>;

/// The read chunks that were asked for ahead, or for batches that share answers, until their bytes are handed over. `C` is a read chunk of a
/// batch.
pub(super) struct Ahead<C> {
    chunks: HashMap<Cell, Entry<C>>,
    /// The cells by the batch that they were asked for, and some of which `chunks` has no entry any more.
    by_batch: BTreeMap<u64, Vec<Cell>>,
    /// Memory that is held or will be held for those that no batch has claimed.
    bytes: u64,
    /// How many of `chunks` a batch has claimed.
    claimed: usize,
    /// Whether batches share answers.
    shares_answers: bool,
}

struct Entry<C> {
    /// Number of the batch that it was asked for.
    batch: u64,
    /// Memory that it holds or will hold, in all probability, while no batch has claimed it.
    bytes: u64,
    state: State<C>,
}

impl<C> Entry<C> {
    /// Identifies the answer that holds its bytes, if one does.
    fn answer_id(&self) -> Option<usize> {
        match &self.state {
            State::Arrived(found) => match &**found {
                Ok((Located::At { blob, .. }, _)) => blob.answer_id(),
                _ => None,
            },
            _ => None,
        }
    }
}

enum State<C> {
    /// Its bytes have not arrived, and no batch has claimed it.
    Coming,
    /// Batches have claimed it before its bytes arrived: their read chunks, the first in front.
    Claimed(Vec<C>),
    /// Its bytes have arrived, and no batch has claimed it.
    Arrived(Box<Found>),
}

/// What is there for a read chunk that a batch claims.
pub(super) enum Claim<C> {
    /// The batch has to ask for it itself, and nobody else gets the answer.
    None(C),
    /// It has to be asked for by its cell. It waits there for the answer, as later batches may.
    Ask,
    /// It will be handed over when its bytes arrive.
    Coming,
    /// Its bytes.
    Arrived(C, Box<Found>),
}

impl<C> Ahead<C> {
    /// `shares_answers`: batches share answers.
    pub fn new(shares_answers: bool) -> Self {
        Self { chunks: HashMap::new(), by_batch: BTreeMap::new(), bytes: 0, claimed: 0, shares_answers }
    }

    /// Notes that a read chunk is asked for, which a batch will need, and that its answer will hold `bytes` of memory. Returns whether it
    /// was not asked for before.
    pub fn ask(&mut self, batch: u64, cell: Cell, bytes: u64) -> bool {
        if self.chunks.contains_key(&cell) {
            return false;
        }
        self.bytes += bytes;
        self.by_batch.entry(batch).or_default().push(cell.clone());
        self.chunks.insert(cell, Entry { batch, bytes, state: State::Coming });
        true
    }

    /// Memory that is held or will be held for those that no batch has claimed, and how many read chunks these are.
    pub fn size(&self) -> (u64, usize) {
        (self.bytes, self.chunks.len() - self.claimed)
    }

    /// A batch needs a read chunk now. The answer that a later batch waits for is left to that batch: a request has the urgency of its batch, and those of
    /// earlier batches must not wait for it.
    pub fn claim(&mut self, batch: u64, cell: &Cell, chunk: C) -> Claim<C> {
        let Some(entry) = self.chunks.get_mut(cell) else {
            if !self.shares_answers {
                return Claim::None(chunk);
            }
            let state = State::Claimed(vec![chunk]);
            self.chunks.insert(cell.clone(), Entry { batch, bytes: 0, state });
            self.claimed += 1;
            return Claim::Ask;
        };
        match &mut entry.state {
            State::Coming | State::Claimed(_) if batch < entry.batch => return Claim::None(chunk),
            State::Claimed(_) if !self.shares_answers => return Claim::None(chunk),
            State::Claimed(claims) => {
                claims.push(chunk);
                return Claim::Coming;
            }
            State::Coming | State::Arrived(_) => {}
        }
        self.bytes -= std::mem::take(&mut entry.bytes);
        if matches!(entry.state, State::Coming) {
            entry.state = State::Claimed(vec![chunk]);
            self.claimed += 1;
            return Claim::Coming;
        }
        match self.chunks.remove(cell).map(|entry| entry.state) {
            Some(State::Arrived(found)) => Claim::Arrived(chunk, found),
            _ => Claim::None(chunk),
        }
    }

    /// The answer for a read chunk. Returns it with the claims of batches on it if there are any; keeps it if a batch may claim it; drops it
    /// else.
    pub fn arrived(&mut self, cell: &Cell, found: Found) -> Option<(Vec<C>, Found)> {
        let entry = self.chunks.get_mut(cell)?;
        match &mut entry.state {
            State::Claimed(claims) => {
                let claims = std::mem::take(claims);
                self.chunks.remove(cell);
                self.claimed -= 1;
                Some((claims, found))
            }
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

    /// Gives back the bytes of an answer that was asked for the latest batch behind this one: of all read chunks in it, because its memory is free
    /// when none of them needs it, and so that they are asked for together again. Returns them, to be dropped.
    pub fn give_back(&mut self, batch: u64) -> Vec<Found> {
        let holds = |entry: &Entry<C>| entry.bytes > 0 && matches!(entry.state, State::Arrived(_));
        let held = |cell: &&Cell| self.chunks.get(*cell).is_some_and(holds);
        let answer = |cell: &Cell| self.chunks.get(cell).and_then(Entry::answer_id);
        let mut batches = self.by_batch.range(batch + 1..).rev();
        let found = batches.find_map(|(_, cells)| Some((cells, cells.iter().find(held)?)));
        let Some((cells, first)) = found else { return vec![] };
        let same = |cell: &&Cell| *cell == first || (answer(cell).is_some() && answer(cell) == answer(first));
        let given_back: Vec<Cell> = cells.iter().filter(same).cloned().collect();
        given_back.iter().filter_map(|cell| self.remove_unclaimed(cell, holds)).map(|found| *found).collect()
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

    /// Bytes in memory, of which only the owners count, and the answer that they are in.
    struct InMemory(Option<usize>);

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
        fn answer_id(&self) -> Option<usize> {
            self.0
        }
    }

    fn cell(number: u64) -> Cell {
        ((0, 0), Dims::from_slice(&[number]))
    }

    /// An answer with bytes, and whether somebody has them still.
    fn answer() -> (Found, Weak<dyn Blob>) {
        answer_of(None)
    }

    /// The same of an answer that other chunks may share.
    fn answer_of(id: Option<usize>) -> (Found, Weak<dyn Blob>) {
        let blob: Arc<dyn Blob> = Arc::new(InMemory(id));
        let owned = Arc::downgrade(&blob);
        (Ok((Located::At { blob, range: 0..1 }, Context::default())), owned)
    }

    #[test]
    fn what_arrives_waits_for_its_batch_and_is_handed_over_once() {
        let mut ahead = Ahead::new(false);
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
        assert_eq!(ahead.size(), (0, 0));
        let (claims, found) = ahead.arrived(&cell(2), answer().0).expect("the second is handed over");
        assert!(claims == ["second"] && found.is_ok());
        assert_eq!(ahead.size(), (0, 0));
    }

    #[test]
    fn batches_that_share_answers_ask_once() {
        let mut ahead = Ahead::new(true);
        assert!(matches!(ahead.claim(5, &cell(1), "first"), Claim::Ask));
        assert!(!ahead.ask(7, cell(1), 10));
        assert!(matches!(ahead.claim(7, &cell(1), "second"), Claim::Coming));
        // The request has the urgency of the first of these, and an earlier batch must not wait for it.
        assert!(matches!(ahead.claim(4, &cell(1), "earlier"), Claim::None("earlier")));
        // What was asked for ahead is shared as well.
        assert!(ahead.ask(8, cell(2), 10));
        assert!(matches!(ahead.claim(8, &cell(2), "third"), Claim::Coming));
        assert!(matches!(ahead.claim(9, &cell(2), "fourth"), Claim::Coming));
        assert_eq!(ahead.size(), (0, 0));
        let mut claims = |number| ahead.arrived(&cell(number), answer().0).map(|(claims, _)| claims);
        assert_eq!(claims(1), Some(vec!["first", "second"]));
        assert_eq!(claims(2), Some(vec!["third", "fourth"]));
        assert!(ahead.chunks.is_empty() && ahead.claimed == 0 && ahead.ask(9, cell(1), 10));
    }

    #[test]
    fn memory_is_given_back_of_the_latest_batch_and_of_chunks_that_their_batch_did_not_need() {
        let mut ahead = Ahead::<()>::new(false);
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
        assert!(ahead.give_back(12).is_empty());
        assert_eq!((held(), ahead.size()), (vec![0, 0, 1, 0], (10, 2)));
    }

    #[test]
    fn memory_is_given_back_of_all_chunks_of_an_answer() {
        let mut ahead = Ahead::<()>::new(false);
        // Two answers for a batch, with two chunks each, and one for a batch before.
        let answers = [(5, 1), (6, 2), (6, 3), (6, 2), (6, 3)];
        let owned: Vec<_> = (0..)
            .zip(answers)
            .map(|(number, (batch, id))| {
                ahead.ask(batch, cell(number), 5);
                let (found, owned) = answer_of(Some(id));
                assert!(ahead.arrived(&cell(number), found).is_none());
                owned
            })
            .collect();
        let held = || owned.iter().map(|owned| owned.strong_count()).collect::<Vec<_>>();
        assert!(matches!(ahead.claim(6, &cell(4), ()), Claim::Arrived(..)));
        for (left, size) in [([1, 0, 1, 0, 0], (10, 2)), ([1, 0, 0, 0, 0], (5, 1)), ([0; 5], (0, 0))] {
            assert!(!ahead.give_back(4).is_empty());
            assert_eq!((held(), ahead.size()), (left.to_vec(), size));
        }
        assert!(ahead.give_back(4).is_empty());
    }

    proptest! {
        /// Every claim is answered once, with an answer that came after the request, and memory is counted of what waits.
        #[test]
        fn random_calls_lose_nothing(
            shares_answers in any::<bool>(),
            calls in prop::collection::vec((0u8..5, 0u64..6, 0u64..8), 0..200),
        ) {
            let mut ahead = Ahead::<usize>::new(shares_answers);
            // Claims that wait, and answers that are on their way, by cell.
            let (mut waiting, mut coming) = (HashMap::<u64, Vec<usize>>::new(), vec![]);
            let mut owned: Vec<(u64, Weak<dyn Blob>)> = vec![];
            let handed_over = |ahead: &mut Ahead<usize>, at, found| {
                ahead.arrived(&cell(at), found).map(|(claims, _)| claims)
            };
            for (number, (call, at, batch)) in calls.into_iter().enumerate() {
                match call {
                    0 if ahead.ask(batch, cell(at), 1 + at) => {
                        prop_assert!(!waiting.contains_key(&at));
                        coming.push(at);
                    }
                    1 => match ahead.claim(batch, &cell(at), number) {
                        Claim::None(chunk) => prop_assert_eq!(chunk, number),
                        Claim::Ask => {
                            prop_assert!(shares_answers && waiting.insert(at, vec![number]).is_none());
                            coming.push(at);
                        }
                        Claim::Coming => {
                            let claims = waiting.entry(at).or_default();
                            prop_assert!(coming.contains(&at) && (shares_answers || claims.is_empty()));
                            claims.push(number);
                        }
                        Claim::Arrived(chunk, found) => prop_assert!(chunk == number && found.is_ok()),
                    },
                    2 if !coming.is_empty() => {
                        let at = coming.remove(number % coming.len());
                        let (found, owner) = answer();
                        owned.push((at, owner));
                        prop_assert_eq!(handed_over(&mut ahead, at, found), waiting.remove(&at));
                    }
                    3 => drop(ahead.planned(batch)),
                    4 => drop(ahead.give_back(batch)),
                    _ => {}
                }
                prop_assert_eq!(ahead.claimed, waiting.len());
                let (bytes, _) = ahead.size();
                owned.retain(|(_, owner)| owner.strong_count() > 0);
                let arrived: u64 = owned.iter().map(|(at, _)| 1 + at).sum();
                prop_assert!(bytes >= arrived && bytes <= arrived + coming.iter().map(|at| 1 + at).sum::<u64>());
            }
            // All answers come, and each claim has got its own.
            for at in coming {
                prop_assert_eq!(handed_over(&mut ahead, at, answer().0), waiting.remove(&at));
            }
            prop_assert!(waiting.is_empty());
            drop(ahead.planned(u64::MAX - 1));
            prop_assert_eq!(ahead.size(), (0, 0));
        }
    }
}
