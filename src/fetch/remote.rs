//! Chunks of stores that are not files of this machine: their bytes are fetched before they are decoded.
//!
//! A sharded chunk's index is asked for first, once for all read chunks that wait for it, and kept. What it says is asked for with the version
//! that the index had, so that an object that is replaced in between is an error and not a mixture. Inner chunks that lie near each other are
//! asked for with one request.

use super::Blob;
use super::coalesce::{Joined, join};
use super::locate::{Located, ShardKey};
use super::request::{Received, Request};
use super::resolve::{Address, decode_index, resolve};
use super::scheduler::{Deliver, Limits, Scheduler};
use super::slots::Slots;
use crate::codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Obstacle, Result};
use crate::plan::Dims;
use crate::plan::shard_index::ShardIndex;
use crate::stats::Counters;
use crate::store::{Extent, Version};

use std::collections::{BTreeMap, HashMap};
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
    /// Whether an object is missing that the store forbids to read.
    forbidden_is_missing: bool,
    /// The most bytes that inner chunks are asked for together.
    most_joined_bytes: u64,
    indexes: Mutex<Indexes<C>>,
    arrive: Arc<dyn Arrive<C>>,
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
    Chunk(C, Address),
    /// Inner chunks of one sharded chunk, each with its range.
    Inner(Vec<(C, Address, Range<u64>)>),
    Index(ShardKey, Address),
}

impl<C> Ticket<C> {
    /// Key of the object.
    fn key(&self) -> &str {
        match self {
            Self::Chunk(_, address) | Self::Index(_, address) => address.key(),
            Self::Inner(chunks) => chunks.first().map_or("", |(_, address, _)| address.key()),
        }
    }
}

/// Memory that is reserved for an answer, and the most bytes that it can have.
struct Size {
    expected_bytes: u64,
    most_bytes: u64,
}

impl Size {
    fn known(bytes: u64) -> Self {
        Self { expected_bytes: bytes, most_bytes: bytes }
    }
}

struct Indexes<C> {
    /// What the indexes say that were used last; `None` for a sharded chunk that is absent.
    known: LruCache<ShardKey, Option<Arc<KnownIndex>>>,
    /// The read chunks that wait for an index, with the number of the batch that wants them.
    waiting: HashMap<ShardKey, Vec<(u64, C, Address)>>,
}

struct KnownIndex {
    index: ShardIndex,
    version: Version,
}

impl<C: Send + 'static> Remote<C> {
    /// Between inner chunks that are asked for together: a request costs about as much as these bytes.
    const MOST_GAP_BYTES: u64 = 64 << 10;

    /// Starts the network threads. Keeps `kept_indexes` indexes. An object that the store forbids to read is missing if
    /// `forbidden_is_missing`.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn new(
        dataset: Arc<Dataset>,
        limits: Limits,
        kept_indexes: NonZeroUsize,
        most_bytes: u64,
        forbidden_is_missing: bool,
        arrive: Arc<dyn Arrive<C>>,
        counters: Arc<Counters>,
    ) -> io::Result<Arc<Self>> {
        let indexes = Indexes { known: LruCache::new(kept_indexes), waiting: HashMap::new() };
        let remote = Arc::new(Self {
            scheduler: OnceLock::new(),
            dataset,
            most_bytes,
            forbidden_is_missing,
            // Joined bytes are kept until the last chunk of them is decoded.
            most_joined_bytes: limits.split_above_bytes.min(limits.bytes / 16),
            indexes: Mutex::new(indexes),
            arrive,
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
        for ((array, part), ask) in asks {
            let array = self.dataset.part(array, part);
            match ask {
                Ask::Chunk(chunk, address) => {
                    let most_bytes = self.most_encoded_bytes(array);
                    let size = Size { expected_bytes: self.expected_bytes(array), most_bytes };
                    self.request(batch, array, Extent::Whole, None, size, Ticket::Chunk(chunk, address));
                }
                Ask::Index(key, address) => {
                    if let Some(sharding) = &array.sharding {
                        let (extent, size) = (sharding.index_extent(), Size::known(sharding.index_bytes));
                        self.request(batch, array, extent, None, size, Ticket::Index(key, address));
                    }
                }
                Ask::Inner(known, chunks) => self.fetch_inner(batch, array, known.as_deref(), chunks),
            }
        }
    }

    /// Asks for inner chunks of one sharded chunk, of which the index is known; `None` if the whole sharded chunk is absent.
    fn fetch_inner(
        &self,
        batch: u64,
        array: &ArrayInfo,
        known: Option<&KnownIndex>,
        chunks: Vec<(C, Address)>,
    ) {
        let most = self.most_encoded_bytes(array);
        let mut found = vec![];
        for (chunk, address) in chunks {
            let number = address.in_shard.as_ref().map_or(0, |in_shard| in_shard.number);
            let Some(range) = known.and_then(|known| known.index.range(number)) else {
                self.arrive.arrived(chunk, Ok((Located::Missing, address.at)));
                continue;
            };
            let bytes = range.end - range.start;
            if bytes <= most {
                found.push((chunk, address, range));
                continue;
            }
            let problem = format!(
                "it has {bytes} encoded bytes, but the codecs of the array make at most {most} of a chunk of {}",
                array.read_chunk_bytes()
            );
            self.arrive.arrived(chunk, Err(Error::Damaged { at: address.with_range(range), problem }));
        }
        let ranges: Vec<_> = found.iter().map(|(_, _, range)| range.clone()).collect();
        let mut found: Vec<_> = found.into_iter().map(Some).collect();
        for Joined { numbers, range } in join(&ranges, Self::MOST_GAP_BYTES, self.most_joined_bytes) {
            let chunks = numbers.into_iter().filter_map(|number| found[number].take()).collect();
            let version = known.map(|known| known.version.clone());
            let size = Size::known(range.end - range.start);
            self.request(batch, array, Extent::Range(range), version, size, Ticket::Inner(chunks));
        }
    }

    fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.most_bytes, codec::lenient_bound)
    }

    /// Memory that is reserved for a chunk whose length is not known before it arrives.
    fn expected_bytes(&self, array: &ArrayInfo) -> u64 {
        let usual = array.codec.encoded_bound.unwrap_or_else(|| array.read_chunk_bytes());
        usual.min(self.most_encoded_bytes(array))
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
        let Size { expected_bytes, most_bytes } = size;
        let (store, key) = (array.objects.clone(), ticket.key().to_string());
        let request = Request { store, key, extent, version, expected_bytes, most_bytes, batch };
        if let Some(scheduler) = self.scheduler.get() {
            scheduler.request(request, ticket);
        }
    }

    /// An answer for an object of which nothing was read before: one that is forbidden may be missing.
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

    fn chunk_answered(&self, chunk: C, address: Address, answer: io::Result<Option<Received>>) {
        let found = match answer {
            Err(source) => Err(Error::Io { at: address.at, source }),
            Ok(None) => Ok((Located::Missing, address.at)),
            Ok(Some(received)) => {
                let range = received.range.clone();
                let blob = Arc::new(FetchedBytes(Arc::new(received)));
                Ok((Located::At { blob, range: range.clone() }, address.with_range(range)))
            }
        };
        self.arrive.arrived(chunk, found);
    }

    fn inner_answered(&self, chunks: Vec<(C, Address, Range<u64>)>, answer: io::Result<Option<Received>>) {
        // The object was there when its index was read.
        let answer = answer.and_then(|received| Ok(Arc::new(received.ok_or(Obstacle::Changed)?)));
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

    fn index_answered(&self, key: ShardKey, address: &Address, answer: io::Result<Option<Received>>) {
        let (array, part) = key.0;
        let array = self.dataset.part(array, part);
        let known = match (answer, &array.sharding) {
            (Err(source), _) => Err(Error::Io { at: address.at.clone(), source }),
            (Ok(Some(received)), Some(sharding)) => {
                let (at, head) = (
                    Context { byte_range: Some(received.range.clone()), ..address.at.clone() },
                    received.head.clone(),
                );
                let decode = |received: Received| {
                    let bytes =
                        received.into_bytes().map_err(|source| Error::Io { at: at.clone(), source })?;
                    decode_index(sharding, bytes, head.object_bytes, &at)
                };
                // What is in an index is the store's, and those who wait for it would wait for ever.
                let decoded = catch_unwind(AssertUnwindSafe(|| decode(received)));
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
                let mut by_batch = BTreeMap::<u64, Vec<_>>::new();
                for (batch, chunk, address) in waiting {
                    by_batch.entry(batch).or_default().push((chunk, address));
                }
                for (batch, chunks) in by_batch {
                    self.fetch_inner(batch, array, known.as_deref(), chunks);
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
            Ticket::Chunk(chunk, address) => {
                remote.chunk_answered(chunk, address, remote.first_answer(answer));
            }
            Ticket::Inner(chunks) => remote.inner_answered(chunks, answer),
            Ticket::Index(key, address) => {
                remote.index_answered(key, &address, remote.first_answer(answer));
            }
        }
    }
}

/// Bytes that were fetched, in place of the object that they are a part of. Chunks that were asked for together share them.
struct FetchedBytes(Arc<Received>);

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
        self.0.read_at(offset, into)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::store::{Access, MemoryStore};

    use std::any::Any;
    use std::borrow::Cow;
    use std::sync::mpsc;
    use std::time::Duration;

    use zarrs::array::CodecChain;
    use zarrs::array::codec::BytesCodec;
    use zarrs::array::codec::api::{
        ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions,
        CodecOptions, CodecTraits, PartialDecoderCapability, PartialEncoderCapability,
        RecommendedConcurrency,
    };
    use zarrs::metadata::Configuration;
    use zarrs::plugin::{ExtensionName, ZarrVersion};

    /// A codec that panics.
    #[derive(Debug)]
    struct Panics;

    impl ExtensionName for Panics {
        fn name(&self, _: ZarrVersion) -> Option<Cow<'static, str>> {
            None
        }
    }

    impl CodecTraits for Panics {
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Configuration> {
            None
        }
        fn partial_decoder_capability(&self) -> PartialDecoderCapability {
            PartialDecoderCapability { partial_read: false, partial_decode: false }
        }
        fn partial_encoder_capability(&self) -> PartialEncoderCapability {
            PartialEncoderCapability { partial_encode: false }
        }
    }

    impl BytesToBytesCodecTraits for Panics {
        fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
            self
        }
        fn recommended_concurrency(
            &self,
            _: &BytesRepresentation,
        ) -> Result<RecommendedConcurrency, CodecError> {
            Ok(RecommendedConcurrency::new_maximum(1))
        }
        fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
            *decoded
        }
        fn encode<'a>(
            &self,
            decoded: ArrayBytesRaw<'a>,
            _: &CodecOptions,
        ) -> Result<ArrayBytesRaw<'a>, CodecError> {
            Ok(decoded)
        }
        fn decode<'a>(
            &self,
            _: ArrayBytesRaw<'a>,
            _: &BytesRepresentation,
            _: &CodecOptions,
        ) -> Result<ArrayBytesRaw<'a>, CodecError> {
            panic!("on purpose")
        }
    }

    struct Arrived(mpsc::Sender<(u64, Option<String>)>);

    impl Arrive<u64> for Arrived {
        fn arrived(&self, chunk: u64, found: Result<(Located, Context)>) {
            let _ = self.0.send((chunk, found.err().map(|error| error.to_string())));
        }
    }

    #[test]
    fn an_index_whose_decoding_panics_is_an_error_for_all_that_wait_for_it() {
        let store = MemoryStore::default();
        let metadata = r#"{"zarr_format": 3, "node_type": "array", "shape": [4, 8], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 8]}}, "fill_value": 0,
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1, 4], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]}"#;
        store.put("zarr.json", metadata);
        store.put("c/0/0", vec![0; 200]);
        MemoryStore::publish("index-panics", Arc::new(store));
        let mut dataset =
            Dataset::open(&["memory://index-panics".into()], &[], &Access::to_folders(true)).unwrap();
        let sharding = dataset.arrays[0].parts[0].sharding.as_mut().unwrap();
        sharding.index_codecs =
            CodecChain::new(vec![], Arc::new(BytesCodec::little()), vec![Arc::new(Panics)]);
        let limits = Limits { threads: 1, requests: 4, bytes: 1 << 20, split_above_bytes: 1 << 20 };
        let (sender, arrived) = mpsc::channel();
        let kept = NonZeroUsize::MIN;
        let remote = Remote::new(
            Arc::new(dataset),
            limits,
            kept,
            1 << 20,
            false,
            Arc::new(Arrived(sender)),
            Arc::default(),
        )
        .unwrap();
        let wanted = |i: u64| Wanted { chunk: i, part: (0, 0), cell: Dims::from_slice(&[i / 2, i % 2]) };
        remote.fetch(0, (0..4).map(wanted));
        for _ in 0..4 {
            let (_, error) = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(error.as_ref().is_some_and(|error| error.contains("on purpose")), "{error:?}");
        }
        // One that is asked for later is not forgotten either, and another shard is read.
        remote.fetch(1, [wanted(1), wanted(4)]);
        let mut found: Vec<_> =
            (0..2).map(|_| arrived.recv_timeout(Duration::from_secs(30)).unwrap()).collect();
        found.sort();
        assert!(found[0].1.as_ref().unwrap().contains("on purpose"));
        assert_eq!(found[1], (4, None));
    }
}
