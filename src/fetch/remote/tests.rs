//! An index that panics, the order of requests, and chunks that are fetched ahead.

use super::*;
use crate::dataset::Dataset;
use crate::fetch::kept_indexes;
use crate::store::{Access, Body, Buffers, Head, Listing, MemoryStore, Store};

use std::any::Any;
use std::borrow::Cow;
use std::sync::mpsc;
use std::time::Duration;

use futures::future::BoxFuture;
use zarrs::array::CodecChain;
use zarrs::array::codec::BytesCodec;
use zarrs::array::codec::api::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions,
    CodecOptions, CodecTraits, PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency,
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
    fn recommended_concurrency(&self, _: &BytesRepresentation) -> Result<RecommendedConcurrency, CodecError> {
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

/// A store in memory that notes what it is asked for.
#[derive(Debug, Default)]
struct Noted {
    objects: MemoryStore,
    asked: Mutex<Vec<(String, Extent)>>,
}

impl Store for Noted {
    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        self.asked.lock().unwrap().push((key.into(), extent.clone()));
        self.objects.get(key, extent, expected)
    }
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        self.objects.head(key)
    }
    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        self.objects.list(key)
    }
}

/// Metadata of an array of `rows` x 8 float32 elements in shards of 2 x 8, with inner chunks of 1 x 4.
fn metadata(rows: usize) -> String {
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [{rows}, 8], "data_type": "float32",
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [2, 8]}}}}, "fill_value": 0,
            "chunk_key_encoding": {{"name": "default"}}, "codecs": [{{"name": "sharding_indexed", "configuration": {{
                "chunk_shape": [1, 4], "codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}],
                "index_codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}]}}}}]}}"#
    )
}

/// Inner chunk `i`, of which each shard has four.
fn wanted(i: u64) -> Wanted<u64> {
    Wanted { chunk: i, part: (0, 0), cell: Dims::from_slice(&[i / 2, i % 2]) }
}

/// A sharded chunk with inner chunks of 16 bytes: two that touch, one far away, and one that is missing; its index at the end.
fn object() -> Vec<u8> {
    let places = [[0, 16], [100_016, 16], [16, 16], [u64::MAX; 2]];
    let index = places.as_flattened().iter().flat_map(|entry| entry.to_le_bytes());
    std::iter::repeat_n(7, 100_032).chain(index).collect()
}

/// An array of four sharded chunks, each an [`object`]. What fetches them, what the store is asked for, and what arrives.
#[allow(clippy::type_complexity)]
fn sharded(
    name: &str,
    requests: usize,
    bytes: u64,
) -> (Arc<Remote<u64>>, Arc<Noted>, mpsc::Receiver<(u64, Option<String>)>) {
    let store = Arc::new(Noted::default());
    store.objects.put("zarr.json", metadata(8));
    (0..4).for_each(|shard| store.objects.put(&format!("c/{shard}/0"), object()));
    MemoryStore::publish(name, store.clone());
    let dataset = Dataset::open(&[format!("memory://{name}")], &[], &Access::to_folders(true)).unwrap();
    store.asked.lock().unwrap().clear();
    let limits = Limits { threads: 1, requests, bytes, split_above_bytes: 1 << 20 };
    let (sender, arrived) = mpsc::channel();
    let arrive = Arc::new(Arrived(sender));
    let settings = settings(limits, 4);
    let remote = Remote::new(Arc::new(dataset), settings, None, arrive, Arc::default()).unwrap();
    (remote, store, arrived)
}

/// Settings of [`Remote`] with these limits for requests, under which the indexes of `kept_indexes` sharded chunks are kept.
fn settings(limits: Limits, kept_indexes: usize) -> Settings {
    Settings {
        buffers: Buffers::new(limits.bytes),
        limits,
        kept_indexes: NonZeroUsize::new(kept_indexes).unwrap(),
        most_bytes: 1 << 20,
        forbidden_is_missing: false,
    }
}

fn cell(i: u64) -> ((usize, usize), Dims) {
    let Wanted { part, cell, .. } = wanted(i);
    (part, cell)
}

/// The next chunks that arrive, in the order of their numbers.
fn next(arrived: &mpsc::Receiver<(u64, Option<String>)>, count: usize) -> Vec<u64> {
    let next = || arrived.recv_timeout(Duration::from_secs(30)).unwrap();
    let all: Vec<_> = (0..count).map(|_| next()).collect();
    assert!(all.iter().all(|(_, error)| error.is_none()), "{all:?}");
    let mut chunks: Vec<u64> = all.into_iter().map(|(chunk, _)| chunk).collect();
    chunks.sort_unstable();
    chunks
}

/// Waits until a store was asked that often.
fn wait_for(store: &Noted, requests: usize) {
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while store.asked.lock().unwrap().len() < requests {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn chunks_that_are_fetched_ahead_wait_for_their_batch_and_are_asked_for_once() {
    let (remote, store, arrived) = sharded("ahead", 8, 16 << 20);
    // An index, and two parts of the object.
    assert!(remote.fetch_ahead(3, (0..4).map(cell)));
    wait_for(&store, 3);
    assert!(arrived.recv_timeout(Duration::from_millis(50)).is_err());
    // An earlier batch takes one of them, and one that nobody asked for.
    remote.fetch(2, [wanted(2), wanted(4)]);
    assert_eq!(next(&arrived, 2), [2, 4]);
    remote.fetch(3, (0..4).map(wanted));
    assert_eq!(next(&arrived, 4), [0, 1, 2, 3]);
    // The index and the chunk of the second sharded chunk, and the one that batch 2 took.
    assert_eq!(store.asked.lock().unwrap().len(), 3 + 2 + 1);
    assert_eq!(remote.lock_ahead().size(), (0, 0));
}

#[test]
fn only_what_a_batch_has_taken_counts_as_useful() {
    let (remote, store, arrived) = sharded("useful", 8, 16 << 20);
    let useful = || remote.counters.bytes_fetched_useful.get();
    assert!(remote.fetch_ahead(3, (0..8).map(cell)));
    // Two indexes of 64 bytes; of each sharded chunk two inner chunks of 16 bytes that touch, and a third one.
    wait_for(&store, 6);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while remote.counters.bytes_fetched.get() < 2 * (64 + 32 + 16) {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(useful(), 0);
    // Another chunk of the first request, and one that is missing, have no bytes that the batch takes.
    remote.fetch(3, [0, 3, 5].map(wanted));
    assert_eq!((next(&arrived, 3), useful()), (vec![0, 3, 5], 32));
    remote.planned(3);
    assert_eq!((remote.lock_ahead().size(), useful()), ((0, 0), 32));
    // What was dropped is fetched again.
    remote.fetch(4, [1, 2].map(wanted));
    assert_eq!((next(&arrived, 2), useful()), (vec![1, 2], 64));
}

#[test]
fn who_shares_an_answer_gets_it_and_its_bytes_count_once() {
    let (remote, store, arrived) = sharded("shared", 8, 16 << 20);
    *remote.lock_ahead() = Ahead::new(true);
    // Two claims before the request is made, so that none can come behind the answer.
    remote.fetch(3, [0, 0].map(wanted));
    assert_eq!(next(&arrived, 2), [0, 0]);
    // An index, and an inner chunk of 16 bytes.
    assert_eq!((store.asked.lock().unwrap().len(), remote.counters.bytes_fetched_useful.get()), (2, 16));
    assert_eq!(remote.lock_ahead().size(), (0, 0));
    // What was answered is asked for again.
    remote.fetch(4, [wanted(0)]);
    assert_eq!((next(&arrived, 1), store.asked.lock().unwrap().len()), (vec![0], 3));
}

#[test]
fn a_sharded_chunk_that_is_replaced_is_an_error_once_and_then_read_by_its_new_index() {
    let (remote, store, arrived) = sharded("replaced", 8, 16 << 20);
    remote.fetch(0, [wanted(0)]);
    assert_eq!(next(&arrived, 1), [0]);
    store.objects.put("c/0/0", object());
    remote.fetch(1, [wanted(0)]);
    let (_, error) = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(error.is_some_and(|error| error.contains("changed while it was read")));
    remote.fetch(2, [wanted(0)]);
    assert_eq!(next(&arrived, 1), [0]);
    let asked = store.asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|(_, extent)| *extent == Extent::Suffix(64)).count(), 2);
}

#[test]
fn memory_bounds_what_is_fetched_ahead_and_is_given_back_to_earlier_batches() {
    const UNIT: u64 = 4096;
    let (remote, store, arrived) = sharded("given-back", 8, 4 * UNIT);
    // Each request takes a unit, which is more than the chunks have: two sharded chunks fill the memory.
    assert!(remote.fetch_ahead(5, (0..8).map(cell)));
    wait_for(&store, 6);
    // The index of a third one waits for memory, and an earlier batch needs it.
    assert!(remote.fetch_ahead(6, (8..12).map(cell)));
    remote.fetch(0, (8..10).map(wanted));
    assert_eq!(next(&arrived, 2), [8, 9]);
    remote.planned(0);
    // Nobody needs what was fetched for batch 5.
    remote.fetch(5, (12..16).map(wanted));
    assert_eq!(next(&arrived, 4), [12, 13, 14, 15]);
    remote.planned(5);
    remote.fetch(6, (8..12).map(wanted));
    assert_eq!(next(&arrived, 4), [8, 9, 10, 11]);
    assert_eq!(remote.lock_ahead().size(), (0, 0));
}

#[test]
fn no_more_is_fetched_ahead_than_half_of_the_memory_holds() {
    // Chunks have 16 bytes. These are in four sharded chunks.
    let (remote, _store, _arrived) = sharded("half", 8, 64);
    assert!(!remote.fetch_ahead(1, (0..4).map(|shard| cell(4 * shard))));
    assert_eq!(remote.lock_ahead().size(), (32, 2));
}

#[test]
fn inner_chunks_that_are_asked_for_together_are_fetched_ahead_together() {
    // Half of the memory is full within the third sharded chunk, and a sixteenth of it, one chunk, may be joined.
    let (remote, _store, _arrived) = sharded("together", 8, 256);
    let cells = || [0, 1, 2, 4, 5, 6, 8, 9, 10, 12].map(cell);
    for _ in 0..2 {
        assert!(!remote.fetch_ahead(1, cells()));
        assert_eq!(remote.lock_ahead().size(), (144, 9));
    }
}

#[test]
fn indexes_are_kept_as_many_as_their_memory_holds() {
    assert_eq!(kept_indexes(u64::MAX, 1 << 20).get(), 1);
    // 48 inner chunks and a checksum.
    assert!((1500..2000).contains(&kept_indexes(48 * 16 + 4, 2 << 20).get()));
    assert_eq!(kept_indexes(0, u64::MAX).get(), 1 << 16);
}

#[test]
fn bytes_behind_an_index_come_before_later_batches_and_those_that_are_near_each_other_together() {
    let (remote, store, arrived) = sharded("order", 1, 16 << 20);
    for batch in 0..4 {
        remote.fetch(batch, (4 * batch..4 * batch + 4).map(wanted));
    }
    // Another batch wants some of the last shard, too.
    remote.fetch(4, (12..14).map(wanted));
    let all: Vec<_> = (0..18).map(|_| arrived.recv_timeout(Duration::from_secs(30)).unwrap()).collect();
    assert!(all.iter().all(|(_, error)| error.is_none()), "{all:?}");
    let (near, far) = (Extent::Range(0..32), Extent::Range(100_016..100_032));
    let mut expected = vec![];
    for shard in 0..4 {
        let parts = [Extent::Suffix(64), near.clone(), far.clone()];
        expected.extend(parts.map(|extent| (format!("c/{shard}/0"), extent)));
    }
    expected.extend([Extent::Range(0..16), far].map(|extent| ("c/3/0".into(), extent)));
    assert_eq!(*store.asked.lock().unwrap(), expected);
}

#[test]
fn an_index_whose_decoding_panics_is_an_error_for_all_that_wait_for_it() {
    let store = MemoryStore::default();
    store.put("zarr.json", metadata(4));
    store.put("c/0/0", vec![0; 200]);
    MemoryStore::publish("index-panics", Arc::new(store));
    let mut dataset =
        Dataset::open(&["memory://index-panics".into()], &[], &Access::to_folders(true)).unwrap();
    let sharding = dataset.arrays[0].parts[0].sharding.as_mut().unwrap();
    sharding.index_codecs = CodecChain::new(vec![], Arc::new(BytesCodec::little()), vec![Arc::new(Panics)]);
    let limits = Limits { threads: 1, requests: 4, bytes: 1 << 20, split_above_bytes: 1 << 20 };
    let (sender, arrived) = mpsc::channel();
    let settings = settings(limits, 1);
    let arrive = Arc::new(Arrived(sender));
    let remote = Remote::new(Arc::new(dataset), settings, None, arrive, Arc::default()).unwrap();
    remote.fetch(0, (0..4).map(wanted));
    for _ in 0..4 {
        let (_, error) = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(error.as_ref().is_some_and(|error| error.contains("on purpose")), "{error:?}");
    }
    // One that is asked for later is not forgotten either, and another shard is read.
    remote.fetch(1, [wanted(1), wanted(4)]);
    let mut found: Vec<_> = (0..2).map(|_| arrived.recv_timeout(Duration::from_secs(30)).unwrap()).collect();
    found.sort();
    assert!(found[0].1.as_ref().unwrap().contains("on purpose"));
    assert_eq!(found[1], (4, None));
}
