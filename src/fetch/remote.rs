//! Chunks of stores that are not files of this machine: their bytes are fetched before they are decoded.
//!
//! A sharded chunk's index is asked for first, once for all read chunks that wait for it, and kept. What it says is asked for with the version
//! that the index had, so that an object that is replaced in between is an error and not a mixture. Inner chunks that lie near each other are
//! asked for with one request. What is in the cache on the local disk is not asked for; threads that decode read it there.
//!
//! Batches that are not planned yet can have their chunks asked for ahead. What arrives for them waits for its batch. With a disk cache
//! nothing is asked for that is in flight for an earlier batch: a later batch gets the same answer.

mod ahead;
mod answers;
#[cfg(test)]
mod tests;

use super::ahead::{Ahead, Cell};
use super::coalesce::{Joined, join};
use super::disk_cache::DiskCache;
use super::indexes::{Indexes, KnownIndex, cached_index};
use super::lengths::{Known, Lengths};
use super::locate::{Located, ShardKey};
use super::request::{Received, Request};
use super::resolve::{Address, resolve};
use super::scheduler::{Deliver, Limits, Scheduler};
use super::slots::Slots;
use crate::codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result};
use crate::plan::Dims;
use crate::stats::Counters;
use crate::store::{Buffers, Extent, Version};

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Gets the chunks whose bytes have arrived, on a network thread: it must not wait.
pub trait Arrive<C>: Send + Sync {
    /// The bytes of `chunk`, or that it is missing, and its place for errors; or why it cannot be read.
    fn arrived(&self, chunk: C, found: Result<(Located, Context)>);
}

/// Fetches read chunks.
pub struct Remote<C> {
    scheduler: OnceLock<Scheduler<Ticket<C>>>,
    dataset: Arc<Dataset>,
    /// The longest read chunk that is fetched where its codecs do not say.
    most_bytes: u64,
    /// Whether an object is missing that the store forbids to read.
    forbidden_is_missing: bool,
    /// The most bytes that inner chunks are asked for together.
    most_joined_bytes: u64,
    indexes: Mutex<Indexes<Recipient<C>>>,
    ahead: Mutex<Ahead<C>>,
    /// The most memory for chunks that no batch has claimed.
    most_ahead_bytes: u64,
    /// The latest batch that was planned.
    planned: AtomicU64,
    lengths: Lengths,
    disk_cache: Option<DiskCache>,
    arrive: Arc<dyn Arrive<C>>,
    counters: Arc<Counters>,
}

/// How chunks are fetched.
pub struct Settings {
    /// Of the requests.
    pub limits: Limits,
    /// Memory for the answers.
    pub buffers: Arc<Buffers>,
    /// Indexes of sharded chunks that are kept.
    pub kept_indexes: NonZeroUsize,
    /// The longest read chunk that is fetched where its codecs do not say.
    pub most_bytes: u64,
    /// Whether an object is missing that the store forbids to read.
    pub forbidden_is_missing: bool,
}

/// A read chunk that a batch wants.
pub struct Wanted<C> {
    /// What is handed over with its bytes.
    pub chunk: C,
    /// Array and part of the dataset.
    pub part: (usize, usize),
    /// Coordinates in the part's grid of read chunks.
    pub cell: Dims,
}

/// What gets the bytes of a read chunk.
enum Recipient<C> {
    /// The read chunk of a batch.
    Chunk(C),
    /// All batches that claim the read chunk of this cell until its bytes arrive, or one later.
    Cell(Cell),
}

/// What comes back with an answer.
enum Ticket<C> {
    /// A read chunk that is an object.
    Chunk(Recipient<C>, (usize, usize), Address),
    /// Inner chunks of one sharded chunk, each with its range.
    Inner((usize, usize), Vec<(Recipient<C>, Address, Range<u64>)>),
    Index(ShardKey, Address),
}

impl<C> Ticket<C> {
    /// Cells that get a part of the answer.
    fn cells(&self) -> Vec<Cell> {
        let of = |recipient: &Recipient<C>| match recipient {
            Recipient::Cell(cell) => Some(cell.clone()),
            Recipient::Chunk(_) => None,
        };
        match self {
            Self::Chunk(recipient, ..) => of(recipient).into_iter().collect(),
            Self::Inner(_, chunks) => chunks.iter().filter_map(|(recipient, ..)| of(recipient)).collect(),
            Self::Index(..) => vec![],
        }
    }

    /// Key of the object.
    fn key(&self) -> &str {
        match self {
            Self::Chunk(_, _, address) | Self::Index(_, address) => address.key(),
            Self::Inner(_, chunks) => chunks.first().map_or("", |(_, address, _)| address.key()),
        }
    }
}

/// Memory that is reserved for an answer, the length that it has in all probability, and the most bytes that it can have.
struct Size {
    expected_bytes: u64,
    likely_bytes: Option<u64>,
    most_bytes: u64,
}

impl Size {
    fn known(bytes: u64) -> Self {
        Self { expected_bytes: bytes, likely_bytes: None, most_bytes: bytes }
    }
}

impl<C: Send + 'static> Remote<C> {
    /// The largest gap between inner chunks that are asked for together.
    const MOST_GAP_BYTES: u64 = 64 << 10;

    /// Starts the network threads. What the disk cache has is not fetched.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn new(
        dataset: Arc<Dataset>,
        settings: Settings,
        disk_cache: Option<DiskCache>,
        arrive: Arc<dyn Arrive<C>>,
        counters: Arc<Counters>,
    ) -> io::Result<Arc<Self>> {
        let Settings { limits, buffers, kept_indexes, most_bytes, forbidden_is_missing } = settings;
        let indexes = Indexes::new(kept_indexes);
        let remote = Arc::new(Self {
            scheduler: OnceLock::new(),
            dataset,
            most_bytes,
            forbidden_is_missing,
            // Joined bytes are kept until the last chunk of them is decoded.
            most_joined_bytes: limits.split_above_bytes.min(limits.bytes / 16),
            indexes: Mutex::new(indexes),
            ahead: Mutex::new(Ahead::new(disk_cache.is_some())),
            most_ahead_bytes: limits.bytes / Self::AHEAD_SHARE,
            planned: AtomicU64::new(0),
            lengths: Lengths::default(),
            disk_cache,
            arrive,
            counters: counters.clone(),
        });
        let answers = Arc::new(Answers(Arc::downgrade(&remote)));
        let _ = remote.scheduler.set(Scheduler::new(limits, &buffers, answers, counters)?);
        Ok(remote)
    }

    /// How many requests are in flight.
    pub fn slots(&self) -> Option<Arc<Slots>> {
        self.scheduler.get().map(|scheduler| scheduler.slots().clone())
    }

    /// Asks for read chunks that a batch wants, in this order apart from those that are asked for together.
    pub fn fetch(&self, batch: u64, wanted: impl IntoIterator<Item = Wanted<C>>) {
        let unknown = self.claim(batch, wanted);
        self.fetch_or_find(batch, unknown, self.disk_cache.as_ref());
    }

    /// Whether a cache on the local disk keeps what is fetched.
    pub fn has_disk_cache(&self) -> bool {
        self.disk_cache.is_some()
    }

    /// Asks the store for a read chunk whose entry in the disk cache cannot be used, before all others.
    pub fn fetch_again(&self, wanted: Wanted<C>) {
        let Wanted { chunk, part, cell } = wanted;
        self.fetch_or_find(0, [Wanted { chunk: Recipient::Chunk(chunk), part, cell }], None);
    }

    /// Asks for read chunks that a cache does not have.
    fn fetch_or_find(
        &self,
        batch: u64,
        wanted: impl IntoIterator<Item = Wanted<Recipient<C>>>,
        cache: Option<&DiskCache>,
    ) {
        enum Ask<C> {
            Chunk(Recipient<C>, Address),
            Index(ShardKey, Address),
            Inner(Option<Arc<KnownIndex>>, Vec<(Recipient<C>, Address)>),
        }
        let mut asks: Vec<((usize, usize), Ask<C>)> = vec![];
        // Where the inner chunks of a sharded chunk are in `asks`.
        let mut places = HashMap::new();
        let mut indexes = self.lock();
        for Wanted { chunk, part, cell } in wanted {
            let address = resolve(self.dataset.part(part.0, part.1), &cell);
            let Some(in_shard) = &address.in_shard else {
                asks.push((part, Ask::Chunk(chunk, address)));
                continue;
            };
            let key = (part, in_shard.shard.clone());
            if let Some((_, Ask::Inner(_, chunks))) =
                places.get(&key).and_then(|&place| asks.get_mut::<usize>(place))
            {
                chunks.push((chunk, address));
            } else if let Some(known) = indexes.known.get(&key).cloned() {
                places.insert(key, asks.len());
                asks.push((part, Ask::Inner(known, vec![(chunk, address)])));
            } else {
                let waiting = indexes.waiting.entry(key.clone()).or_default();
                // The request for an index that only later batches wait for has their urgency, so that it could wait for this batch.
                if waiting.iter().all(|(waiting, ..)| batch < *waiting) {
                    let of_index = Address { at: address.of_object(), in_shard: None };
                    asks.push((part, Ask::Index(key, of_index)));
                }
                waiting.push((batch, chunk, address));
            }
        }
        drop(indexes);
        for (part, ask) in asks {
            let array = self.dataset.part(part.0, part.1);
            match ask {
                Ask::Chunk(chunk, address) => {
                    let found = cache.and_then(|cache| cache.find(part, address.key(), &Extent::Whole, None));
                    if let Some(found) = found {
                        self.found(chunk, address, found);
                        continue;
                    }
                    let size = self.expected_size(part, array);
                    let ticket = Ticket::Chunk(chunk, part, address);
                    self.request(batch, array, Extent::Whole, None, size, ticket);
                }
                Ask::Index(key, address) => {
                    if let Some(sharding) = &array.sharding {
                        if let Some(known) =
                            cache.and_then(|cache| cached_index(cache, sharding, part, &address))
                        {
                            self.index_known(&key, Ok(known), cache);
                            continue;
                        }
                        let (extent, size) = (sharding.index_extent(), Size::known(sharding.index_bytes));
                        self.request(batch, array, extent, None, size, Ticket::Index(key, address));
                    }
                }
                Ask::Inner(known, chunks) => self.fetch_inner(batch, part, known.as_deref(), chunks, cache),
            }
        }
    }

    /// Asks for inner chunks of one sharded chunk, of which the index is known; `None` if the whole sharded chunk is absent.
    fn fetch_inner(
        &self,
        batch: u64,
        part: (usize, usize),
        known: Option<&KnownIndex>,
        chunks: Vec<(Recipient<C>, Address)>,
        cache: Option<&DiskCache>,
    ) {
        let array = self.dataset.part(part.0, part.1);
        let most = self.most_encoded_bytes(array);
        let mut found = vec![];
        for (chunk, address) in chunks {
            let number = address.in_shard.as_ref().map_or(0, |in_shard| in_shard.number);
            let Some(range) = known.and_then(|known| known.index.range(number)) else {
                self.hand_over(chunk, Ok((Located::Missing, address.at)));
                continue;
            };
            let bytes = range.end - range.start;
            if bytes > most {
                let problem = format!(
                    "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                    array.read_chunk_bytes()
                );
                self.hand_over(chunk, Err(Error::Damaged { at: address.with_range(range), problem }));
                continue;
            }
            self.lengths.note(part, bytes);
            let (extent, version) = (Extent::Range(range.clone()), known.map(|known| &known.version));
            match cache.and_then(|cache| cache.find(part, address.key(), &extent, version)) {
                Some(cached) => self.found(chunk, address, cached),
                None => found.push((chunk, address, range)),
            }
        }
        let ranges: Vec<_> = found.iter().map(|(_, _, range)| range.clone()).collect();
        let mut found: Vec<_> = found.into_iter().map(Some).collect();
        for Joined { numbers, range } in join(&ranges, Self::MOST_GAP_BYTES, self.most_joined_bytes) {
            let chunks = numbers.into_iter().filter_map(|number| found[number].take()).collect();
            let version = known.map(|known| known.version.clone());
            let size = Size::known(range.end - range.start);
            self.request(batch, array, Extent::Range(range), version, size, Ticket::Inner(part, chunks));
        }
    }

    /// Hands a chunk over that need not be asked for.
    fn found(&self, chunk: Recipient<C>, address: Address, found: Located) {
        let at = match &found {
            Located::Missing => address.at,
            Located::At { range, .. } => address.with_range(range.clone()),
        };
        self.hand_over(chunk, Ok((found, at)));
    }

    fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.most_bytes, codec::lenient_bound)
    }

    /// The size of a chunk that is not known before it arrives. As much memory is reserved as the longest one had, and a sixteenth more if they
    /// are not all alike: a new longest one is rare, and the more is reserved, the fewer requests are in flight where memory is short.
    fn expected_size(&self, part: (usize, usize), array: &ArrayInfo) -> Size {
        let most_bytes = self.most_encoded_bytes(array);
        let (expected, likely_bytes) = match self.lengths.of(part) {
            None => (array.codec.encoded_bound.unwrap_or_else(|| array.read_chunk_bytes()), None),
            // One chunk says nothing of the others, and parts of a chunk of another length are asked for in vain.
            Some(Known { count: 2.., shortest, longest, .. }) if shortest == longest => {
                (longest, Some(longest))
            }
            Some(Known { longest, .. }) => (longest + longest / 16, None),
        };
        Size { expected_bytes: expected.min(most_bytes), likely_bytes, most_bytes }
    }

    fn request(
        &self,
        batch: u64,
        array: &ArrayInfo,
        extent: Extent,
        version: Option<Version>,
        size: Size,
        ticket: Ticket<C>,
    ) {
        let Size { expected_bytes, likely_bytes, most_bytes } = size;
        let request = Request {
            store: array.objects.clone(),
            key: ticket.key().to_string(),
            extent,
            version,
            expected_bytes,
            likely_bytes,
            most_bytes,
            was_present: false,
            batch,
        };
        if let Some(scheduler) = self.scheduler.get() {
            scheduler.request(request, ticket);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Indexes<Recipient<C>>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands the answers of the scheduler to its [`Remote`], which owns the scheduler: a strong pointer would keep both alive for ever.
struct Answers<C>(Weak<Remote<C>>);

impl<C: Send + 'static> Deliver<Ticket<C>> for Answers<C> {
    fn is_planned(&self, batch: u64) -> bool {
        self.0.upgrade().is_none_or(|remote| remote.is_planned(batch))
    }

    fn give_back(&self, batch: u64) -> bool {
        self.0.upgrade().is_some_and(|remote| remote.give_back(batch))
    }

    fn delivered(&self, ticket: Ticket<C>, answer: io::Result<Option<Received>>) {
        let Some(remote) = self.0.upgrade() else { return };
        // Chunks that wait under their cell are not dropped with a ticket.
        let cells = ticket.cells();
        let deliver = || match ticket {
            Ticket::Chunk(chunk, part, address) => {
                remote.chunk_answered(chunk, part, address, remote.first_answer(answer));
            }
            Ticket::Inner(part, chunks) => remote.inner_answered(part, chunks, answer),
            Ticket::Index(key, address) => {
                remote.index_answered(&key, &address, remote.first_answer(answer));
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(deliver)) {
            for cell in cells {
                remote.hand_over(Recipient::Cell(cell), Err(Error::panic("a network thread", &*payload)));
            }
        }
    }
}
