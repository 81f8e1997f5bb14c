//! Chunks of stores that are not files of this machine: their bytes are fetched before they are decoded.
//!
//! A sharded chunk's index is asked for first, once for all read chunks that wait for it, and kept. What it says is asked for with the version
//! that the index had, so that an object that is replaced in between is an error and not a mixture. Inner chunks that lie near each other are
//! asked for with one request. What is in the cache on the local disk is not asked for; threads that decode read it there.

use super::coalesce::{Joined, bytes_of_union, join};
use super::disk_cache::DiskCache;
use super::fetched::FetchedBytes;
use super::indexes::{Indexes, KnownIndex, cached_index, known_index};
use super::locate::{Located, ShardKey};
use super::request::{Received, Request};
use super::resolve::{Address, resolve};
use super::scheduler::{Deliver, Limits, Scheduler};
use super::slots::Slots;
use crate::codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Obstacle, Result};
use crate::plan::Dims;
use crate::stats::Counters;
use crate::store::{Extent, Version};

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    indexes: Mutex<Indexes<C>>,
    /// Of the chunks that came, of arrays and parts whose chunks are objects.
    lengths: Mutex<HashMap<(usize, usize), Lengths>>,
    disk_cache: Option<DiskCache>,
    arrive: Arc<dyn Arrive<C>>,
    counters: Arc<Counters>,
}

/// How chunks are fetched.
pub struct Settings {
    /// Of the requests.
    pub limits: Limits,
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

/// What comes back with an answer.
enum Ticket<C> {
    /// A read chunk that is an object.
    Chunk(C, (usize, usize), Address),
    /// Inner chunks of one sharded chunk, each with its range.
    Inner((usize, usize), Vec<(C, Address, Range<u64>)>),
    Index(ShardKey, Address),
}

impl<C> Ticket<C> {
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

/// How many chunks came, and bytes of the shortest and the longest one.
#[derive(Clone, Copy)]
struct Lengths {
    count: u64,
    shortest: u64,
    longest: u64,
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
        let Settings { limits, kept_indexes, most_bytes, forbidden_is_missing } = settings;
        let indexes = Indexes::new(kept_indexes);
        let remote = Arc::new(Self {
            scheduler: OnceLock::new(),
            dataset,
            most_bytes,
            forbidden_is_missing,
            // Joined bytes are kept until the last chunk of them is decoded.
            most_joined_bytes: limits.split_above_bytes.min(limits.bytes / 16),
            indexes: Mutex::new(indexes),
            lengths: Mutex::default(),
            disk_cache,
            arrive,
            counters: counters.clone(),
        });
        let answers = Arc::new(Answers(Arc::downgrade(&remote)));
        let _ = remote.scheduler.set(Scheduler::new(limits, answers, counters)?);
        Ok(remote)
    }

    /// How many requests are in flight.
    pub fn slots(&self) -> Option<Arc<Slots>> {
        self.scheduler.get().map(|scheduler| scheduler.slots().clone())
    }

    /// Asks for read chunks that a batch wants, in this order apart from those that are asked for together.
    pub fn fetch(&self, batch: u64, wanted: impl IntoIterator<Item = Wanted<C>>) {
        self.fetch_or_find(batch, wanted, self.disk_cache.as_ref());
    }

    /// Asks the store for a read chunk whose entry in the disk cache cannot be used, before all others.
    pub fn fetch_again(&self, wanted: Wanted<C>) {
        self.fetch_or_find(0, [wanted], None);
    }

    /// Asks for read chunks that a cache does not have.
    fn fetch_or_find(
        &self,
        batch: u64,
        wanted: impl IntoIterator<Item = Wanted<C>>,
        cache: Option<&DiskCache>,
    ) {
        enum Ask<C> {
            Chunk(C, Address),
            Index(ShardKey, Address),
            Inner(Option<Arc<KnownIndex>>, Vec<(C, Address)>),
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
            } else if let Some(waiting) = indexes.waiting.get_mut(&key) {
                waiting.push((batch, chunk, address));
            } else {
                let of_index = Address { at: address.of_object(), in_shard: None };
                indexes.waiting.insert(key.clone(), vec![(batch, chunk, address)]);
                asks.push((part, Ask::Index(key, of_index)));
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
        chunks: Vec<(C, Address)>,
        cache: Option<&DiskCache>,
    ) {
        let array = self.dataset.part(part.0, part.1);
        let most = self.most_encoded_bytes(array);
        let mut found = vec![];
        for (chunk, address) in chunks {
            let number = address.in_shard.as_ref().map_or(0, |in_shard| in_shard.number);
            let Some(range) = known.and_then(|known| known.index.range(number)) else {
                self.arrive.arrived(chunk, Ok((Located::Missing, address.at)));
                continue;
            };
            let bytes = range.end - range.start;
            if bytes > most {
                let problem = format!(
                    "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                    array.read_chunk_bytes()
                );
                self.arrive.arrived(chunk, Err(Error::Damaged { at: address.with_range(range), problem }));
                continue;
            }
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
    fn found(&self, chunk: C, address: Address, found: Located) {
        let at = match &found {
            Located::Missing => address.at,
            Located::At { range, .. } => address.with_range(range.clone()),
        };
        self.arrive.arrived(chunk, Ok((found, at)));
    }

    fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.most_bytes, codec::lenient_bound)
    }

    /// The size of a chunk that is not known before it arrives. As much memory is reserved as the longest one had, and a sixteenth more if they
    /// are not all alike: a new longest one is rare, and the more is reserved, the fewer requests are in flight where memory is short.
    fn expected_size(&self, part: (usize, usize), array: &ArrayInfo) -> Size {
        let most_bytes = self.most_encoded_bytes(array);
        let lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner).get(&part).copied();
        let (expected, likely_bytes) = match lengths {
            None => (array.codec.encoded_bound.unwrap_or_else(|| array.read_chunk_bytes()), None),
            // One chunk says nothing of the others, and parts of a chunk of another length are asked for in vain.
            Some(Lengths { count: 2.., shortest, longest }) if shortest == longest => {
                (longest, Some(longest))
            }
            Some(Lengths { longest, .. }) => (longest + longest / 16, None),
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

    /// An answer for an object of which nothing was known before: one that is forbidden may be missing. Of an object that was there
    /// when its first byte came, no [`Obstacle::Forbidden`] comes here.
    fn first_answer(&self, answer: io::Result<Option<Received>>) -> io::Result<Option<Received>> {
        match answer {
            Err(error)
                if self.forbidden_is_missing
                    && matches!(Obstacle::of(&error), Some(Obstacle::Forbidden { .. })) =>
            {
                Ok(None)
            }
            answer => answer,
        }
    }

    fn chunk_answered(
        &self,
        chunk: C,
        part: (usize, usize),
        address: Address,
        answer: io::Result<Option<Received>>,
    ) {
        let found = match answer {
            Err(source) => Err(Error::Io { at: address.at, source }),
            Ok(None) => {
                if let Some(cache) = &self.disk_cache {
                    cache.note_absent(part, address.key(), &Extent::Whole);
                }
                Ok((Located::Missing, address.at))
            }
            Ok(Some(received)) => {
                let range = received.range.clone();
                self.counters.bytes_fetched_useful.add(range.end - range.start);
                if let Some(cache) = &self.disk_cache {
                    let whole = [(Extent::Whole, range.clone())];
                    cache.keep(part, address.key(), None, &received, whole.into_iter());
                }
                let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
                let of_part = lengths.entry(part).or_insert(Lengths {
                    count: 0,
                    shortest: range.end,
                    longest: range.end,
                });
                of_part.count += 1;
                of_part.shortest = range.end.min(of_part.shortest);
                of_part.longest = range.end.max(of_part.longest);
                drop(lengths);
                let blob = Arc::new(FetchedBytes(Arc::new(received)));
                Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
            }
        };
        self.arrive.arrived(chunk, found);
    }

    fn inner_answered(
        &self,
        part: (usize, usize),
        chunks: Vec<(C, Address, Range<u64>)>,
        answer: io::Result<Option<Received>>,
    ) {
        // The object was there when its index was read.
        let answer = answer.and_then(|received| Ok(Arc::new(received.ok_or(Obstacle::Changed)?)));
        if answer.is_ok() {
            let ranges = chunks.iter().map(|(_, _, range)| range);
            self.counters.bytes_fetched_useful.add(bytes_of_union(ranges));
        }
        if let (Some(cache), Ok(received), Some((_, address, _))) =
            (&self.disk_cache, &answer, chunks.first())
        {
            let extents = chunks.iter().map(|(_, _, range)| (Extent::Range(range.clone()), range.clone()));
            cache.keep(part, address.key(), Some(&received.head.version), received, extents);
        }
        for (chunk, address, range) in chunks {
            let found = match &answer {
                Ok(received) => {
                    let blob = Arc::new(FetchedBytes(received.clone()));
                    Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
                }
                Err(error) => Err(Error::Io { at: address.with_range(range), source: again(error) }),
            };
            self.arrive.arrived(chunk, found);
        }
    }

    fn index_answered(&self, key: &ShardKey, address: &Address, answer: io::Result<Option<Received>>) {
        let part = key.0;
        let array = self.dataset.part(part.0, part.1);
        let known = match (answer, &array.sharding) {
            (Err(source), _) => Err(Error::Io { at: address.at.clone(), source }),
            (Ok(Some(received)), Some(sharding)) => {
                let (head, range) = (received.head.clone(), received.range.clone());
                let at = address.clone().with_range(range.clone());
                if let Some(cache) = &self.disk_cache {
                    let index = [(sharding.index_extent(), range)];
                    cache.keep(part, address.key(), None, &received, index.into_iter());
                }
                let failed = |source| Error::Io { at: at.clone(), source };
                let bytes = received.into_bytes().map_err(failed);
                bytes.and_then(|bytes| known_index(sharding, bytes, head, &at)).map(Some)
            }
            _ => {
                if let (Some(cache), Some(sharding)) = (&self.disk_cache, &array.sharding) {
                    cache.note_absent(part, address.key(), &sharding.index_extent());
                }
                Ok(None)
            }
        };
        // The disk is not asked on this thread, which polls requests.
        self.index_known(key, known, None);
    }

    /// Asks for the inner chunks that wait for an index and that a cache does not have; the index is `None` if the sharded chunk is absent.
    fn index_known(&self, key: &ShardKey, known: Result<Option<Arc<KnownIndex>>>, cache: Option<&DiskCache>) {
        let mut indexes = self.lock();
        if let Ok(known) = &known {
            indexes.known.put(key.clone(), known.clone());
        }
        let waiting = indexes.waiting.remove(key).unwrap_or_default();
        drop(indexes);
        match known {
            Ok(known) => {
                let mut by_batch = BTreeMap::<u64, Vec<_>>::new();
                for (batch, chunk, address) in waiting {
                    by_batch.entry(batch).or_default().push((chunk, address));
                }
                for (batch, chunks) in by_batch {
                    self.fetch_inner(batch, key.0, known.as_deref(), chunks, cache);
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for (_, chunk, _) in waiting {
                    self.arrive.arrived(chunk, Err(Error::Sticky(error.clone())));
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Indexes<C>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error once more, for another chunk.
fn again(error: &io::Error) -> io::Error {
    match Obstacle::of(error) {
        Some(obstacle) => obstacle.clone().into(),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Hands the answers of the scheduler to its [`Remote`], which owns the scheduler: a strong pointer would keep both alive for ever.
struct Answers<C>(std::sync::Weak<Remote<C>>);

impl<C: Send + 'static> Deliver<Ticket<C>> for Answers<C> {
    fn delivered(&self, ticket: Ticket<C>, answer: io::Result<Option<Received>>) {
        let Some(remote) = self.0.upgrade() else { return };
        match ticket {
            Ticket::Chunk(chunk, part, address) => {
                remote.chunk_answered(chunk, part, address, remote.first_answer(answer));
            }
            Ticket::Inner(part, chunks) => remote.inner_answered(part, chunks, answer),
            Ticket::Index(key, address) => {
                remote.index_answered(&key, &address, remote.first_answer(answer));
            }
        }
    }
}

#[cfg(test)]
mod tests;
