//! Chunks of stores that are not files of this machine: their bytes are fetched before they are decoded.
//!
//! A sharded chunk's index is asked for first, once for all read chunks that wait for it, and kept. What it says is asked for with the version
//! that the index had, so that an object that is replaced in between is an error and not a mixture.

use super::Blob;
use super::locate::{Located, ShardKey};
use super::resolve::{Address, decode_index, resolve};
use super::scheduler::{Deliver, Limits, Received, Request, Scheduler};
use crate::codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result};
use crate::plan::shard_index::ShardIndex;
use crate::store::{Extent, Version};

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lru::LruCache;

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
    indexes: Mutex<Indexes<C>>,
    arrive: Arc<dyn Arrive<C>>,
}

/// What comes back with an answer.
enum Ticket<C> {
    Chunk(C, Address),
    Index(ShardKey, Address),
}

struct Indexes<C> {
    /// What the indexes say that were used last; `None` for a sharded chunk that is absent.
    known: LruCache<ShardKey, Option<Arc<KnownIndex>>>,
    /// The read chunks that wait for an index.
    waiting: HashMap<ShardKey, Vec<(C, Address)>>,
}

struct KnownIndex {
    index: ShardIndex,
    version: Version,
}

impl<C: Send + 'static> Remote<C> {
    /// Starts the network threads. Keeps `kept_indexes` indexes.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn new(
        dataset: Arc<Dataset>,
        limits: Limits,
        kept_indexes: NonZeroUsize,
        most_bytes: u64,
        arrive: Arc<dyn Arrive<C>>,
    ) -> io::Result<Arc<Self>> {
        let indexes = Indexes { known: LruCache::new(kept_indexes), waiting: HashMap::new() };
        let remote = Arc::new(Self {
            scheduler: OnceLock::new(),
            dataset,
            most_bytes,
            indexes: Mutex::new(indexes),
            arrive,
        });
        let answers = Arc::new(Answers(Arc::downgrade(&remote)));
        let _ = remote.scheduler.set(Scheduler::new(limits, answers)?);
        Ok(remote)
    }

    /// Asks for a read chunk: array and part of the dataset, and the coordinates in the part's grid of read chunks.
    pub fn fetch(&self, chunk: C, place: (usize, usize), cell: &[u64]) {
        let array = self.dataset.part(place.0, place.1);
        let address = resolve(array, cell);
        let Some(in_shard) = &address.in_shard else {
            let bytes = self.expected_bytes(array)..self.most_encoded_bytes(array);
            return self.request(array, Extent::Whole, None, bytes, Ticket::Chunk(chunk, address));
        };
        let key = (place, in_shard.shard.clone());
        let mut indexes = self.lock();
        if let Some(known) = indexes.known.get(&key).cloned() {
            drop(indexes);
            return self.fetch_inner(chunk, array, address, known.as_deref());
        }
        if let Some(waiting) = indexes.waiting.get_mut(&key) {
            return waiting.push((chunk, address));
        }
        let of_index = Address { at: address.of_object(), in_shard: None };
        indexes.waiting.insert(key.clone(), vec![(chunk, address)]);
        drop(indexes);
        if let Some(sharding) = &array.sharding {
            let (extent, bytes) = (sharding.index_extent(), sharding.index_bytes);
            self.request(array, extent, None, bytes..bytes, Ticket::Index(key, of_index));
        }
    }

    /// Asks for an inner chunk of which the index is known; `None` if the whole sharded chunk is absent.
    fn fetch_inner(&self, chunk: C, array: &ArrayInfo, address: Address, known: Option<&KnownIndex>) {
        let number = address.in_shard.as_ref().map_or(0, |in_shard| in_shard.number);
        let Some((known, range)) = known.and_then(|known| Some((known, known.index.range(number)?))) else {
            return self.arrive.arrived(chunk, Ok((Located::Missing, address.at)));
        };
        let most = self.most_encoded_bytes(array);
        let bytes = range.end - range.start;
        if bytes > most {
            let problem = format!(
                "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                array.read_chunk_bytes()
            );
            return self
                .arrive
                .arrived(chunk, Err(Error::Damaged { at: address.with_range(range), problem }));
        }
        let version = Some(known.version.clone());
        self.request(array, Extent::Range(range), version, bytes..bytes, Ticket::Chunk(chunk, address));
    }

    fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.most_bytes, codec::lenient_bound)
    }

    /// Memory that is reserved for a chunk whose length is not known before it arrives.
    fn expected_bytes(&self, array: &ArrayInfo) -> u64 {
        let usual = array.codec.encoded_bound.unwrap_or_else(|| array.read_chunk_bytes());
        usual.min(self.most_encoded_bytes(array))
    }

    /// Makes a request whose answer is expected to have as many bytes as `bytes` starts with, and at most as many as it ends with.
    fn request(
        &self,
        array: &ArrayInfo,
        extent: Extent,
        version: Option<Version>,
        bytes: Range<u64>,
        ticket: Ticket<C>,
    ) {
        let (Ticket::Chunk(_, address) | Ticket::Index(_, address)) = &ticket;
        let request = Request {
            store: array.objects.clone(),
            key: address.key().to_string(),
            extent,
            version,
            expected_bytes: bytes.start,
            most_bytes: bytes.end,
        };
        if let Some(scheduler) = self.scheduler.get() {
            scheduler.request(request, ticket);
        }
    }

    fn chunk_answered(&self, chunk: C, address: Address, answer: io::Result<Option<Received>>) {
        let found = match answer {
            Err(source) => Err(Error::Io { at: address.at, source }),
            Ok(None) if address.in_shard.is_none() => Ok((Located::Missing, address.at)),
            Ok(None) => {
                let source = io::Error::other(crate::error::Obstacle::Changed);
                Err(Error::Io { at: address.at, source })
            }
            Ok(Some(received)) => {
                let range = received.range.clone();
                let blob = Arc::new(FetchedBytes(received));
                Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
            }
        };
        self.arrive.arrived(chunk, found);
    }

    fn index_answered(&self, key: ShardKey, address: &Address, answer: io::Result<Option<Received>>) {
        let (array, part) = key.0;
        let array = self.dataset.part(array, part);
        let known = match (answer, &array.sharding) {
            (Err(source), _) => Err(Error::Io { at: address.at.clone(), source }),
            (Ok(Some(Received { bytes, range, head, .. })), Some(sharding)) => {
                let at = Context { byte_range: Some(range), ..address.at.clone() };
                // What is in an index is the store's, and those who wait for it would wait for ever.
                let decoded =
                    catch_unwind(AssertUnwindSafe(|| decode_index(sharding, bytes, head.object_bytes, &at)));
                decoded
                    .unwrap_or_else(|payload| Err(Error::panic("decoding a shard index", &*payload)))
                    .map(|index| Some(Arc::new(KnownIndex { index, version: head.version })))
            }
            _ => Ok(None),
        };
        let mut indexes = self.lock();
        if let Ok(known) = &known {
            indexes.known.put(key.clone(), known.clone());
        }
        let waiting = indexes.waiting.remove(&key).unwrap_or_default();
        drop(indexes);
        match known {
            Ok(known) => {
                for (chunk, address) in waiting {
                    self.fetch_inner(chunk, array, address, known.as_deref());
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for (chunk, _) in waiting {
                    self.arrive.arrived(chunk, Err(Error::Sticky(error.clone())));
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Indexes<C>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands the answers of the scheduler to its [`Remote`], which owns the scheduler: a strong pointer would keep both alive for ever.
struct Answers<C>(std::sync::Weak<Remote<C>>);

impl<C: Send + 'static> Deliver<Ticket<C>> for Answers<C> {
    fn delivered(&self, ticket: Ticket<C>, answer: io::Result<Option<Received>>) {
        let Some(remote) = self.0.upgrade() else { return };
        match ticket {
            Ticket::Chunk(chunk, address) => remote.chunk_answered(chunk, address, answer),
            Ticket::Index(key, address) => remote.index_answered(key, &address, answer),
        }
    }
}

/// The bytes of a read chunk that was fetched, in place of the object that they are a part of.
struct FetchedBytes(Received);

impl Blob for FetchedBytes {
    fn len(&self) -> u64 {
        self.0.head.object_bytes
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.head.version.hash(&mut hasher);
        hasher.finish()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let fetched: &Range<u64> = &self.0.range;
        let part = offset
            .checked_sub(fetched.start)
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| self.0.bytes.get(start..start.checked_add(into.len())?));
        into.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }
}
