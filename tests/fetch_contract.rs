//! What every store has to do, asked of each of them, and what becomes of a store that is slow or fails.

mod common;

use common::{FakeStore, Fault};

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use proptest::prelude::*;
use zarr_dali::dataset::Dataset;
use zarr_dali::error::{Error, Obstacle};
use zarr_dali::fetch::request::{Received, Request};
use zarr_dali::fetch::scheduler::{Deliver, Limits, Scheduler};
use zarr_dali::options::Arguments;
use zarr_dali::reader::Reader;
use zarr_dali::stats::Counters;
use zarr_dali::store::{self, Access, Buffers, Extent, Folder, Head, Listing, MemoryStore, Store, Version};

/// Held by tests that start network threads, and alone by the one that counts them.
static OTHERS: RwLock<()> = RwLock::new(());

/// A store, and how objects get into it and out of it.
trait Backend {
    fn store(&self) -> &dyn Store;
    fn put(&self, key: &str, bytes: &[u8]);
    fn remove(&self, key: &str);
}

struct OnDisk(tempfile::TempDir, Folder);

impl Backend for OnDisk {
    fn store(&self) -> &dyn Store {
        &self.1
    }
    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.0.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Another file each time, as writers of stores do it.
        let other = path.with_extension("new");
        std::fs::write(&other, bytes).unwrap();
        std::fs::rename(other, path).unwrap();
    }
    fn remove(&self, key: &str) {
        std::fs::remove_file(self.0.path().join(key)).unwrap();
    }
}

impl Backend for MemoryStore {
    fn store(&self) -> &dyn Store {
        self
    }
    fn put(&self, key: &str, bytes: &[u8]) {
        self.put(key, bytes.to_vec());
    }
    fn remove(&self, key: &str) {
        self.remove(key);
    }
}

impl Backend for FakeStore {
    fn store(&self) -> &dyn Store {
        self
    }
    fn put(&self, key: &str, bytes: &[u8]) {
        self.objects.put(key, bytes.to_vec());
    }
    fn remove(&self, key: &str) {
        self.objects.remove(key);
    }
}

fn backends() -> Vec<Box<dyn Backend>> {
    let folder = tempfile::tempdir().unwrap();
    let store = Folder::new(folder.path(), true).unwrap();
    let fake = FakeStore { latency: Duration::from_millis(1), ..FakeStore::default() };
    vec![Box::new(OnDisk(folder, store)), Box::new(MemoryStore::default()), Box::new(fake)]
}

/// The bytes of a part of an object, where they are in it, and its version.
type Answer = Option<(Vec<u8>, std::ops::Range<u64>, u64, Version)>;

fn get(store: &dyn Store, key: &str, extent: Extent, expected: Option<&Version>) -> io::Result<Answer> {
    block_on(async {
        let Some(body) = store.get(key, extent, expected).await? else { return Ok(None) };
        let range = body.range.clone();
        let mut bytes = vec![];
        let head = body.read_to(&mut bytes).await?;
        Ok(Some((bytes, range, head.object_bytes, head.version)))
    })
}

fn read_whole(store: &dyn Store, key: &str, most_bytes: u64) -> io::Result<Option<(Vec<u8>, Version)>> {
    block_on(store::read_whole(store, key, most_bytes))
}

fn head(store: &dyn Store, key: &str) -> io::Result<Option<Head>> {
    block_on(store.head(key))
}

fn list(store: &dyn Store, key: &str) -> io::Result<Listing> {
    block_on(store.list(key))
}

#[test]
fn an_object_is_read_in_whole_and_in_part() {
    for backend in backends() {
        let store = backend.store();
        let object: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        backend.put("a/c/0/1", &object);
        backend.put("a/empty", b"");
        for (extent, range) in [
            (Extent::Whole, 0..5000),
            (Extent::Range(0..5000), 0..5000),
            (Extent::Range(17..4001), 17..4001),
            (Extent::Range(5000..5000), 5000..5000),
            (Extent::Prefix(16), 0..16),
            (Extent::Prefix(9999), 0..5000),
            (Extent::Suffix(16), 4984..5000),
            (Extent::Suffix(0), 5000..5000),
            (Extent::Suffix(9999), 0..5000),
        ] {
            let (bytes, found, whole, _) = get(store, "a/c/0/1", extent.clone(), None).unwrap().unwrap();
            assert_eq!((&found, whole), (&range, 5000), "{store:?} {extent:?}");
            assert_eq!(bytes, object[range.start as usize..range.end as usize], "{store:?} {extent:?}");
        }
        for past in [Extent::Range(1..5001), Extent::Range(6000..6001)] {
            let text = get(store, "a/c/0/1", past, None).unwrap_err().to_string();
            assert!(text.contains("5000 bytes"), "{store:?}: {text}");
        }
        for extent in [Extent::Whole, Extent::Range(0..0), Extent::Suffix(7)] {
            assert_eq!(get(store, "a/empty", extent, None).unwrap().unwrap().1, 0..0, "{store:?}");
        }
    }
}

#[test]
fn only_what_is_absent_is_missing() {
    for backend in backends() {
        let store = backend.store();
        backend.put("a/zarr.json", b"{}");
        for key in ["a/c/0", "b/c/0", "nothing"] {
            assert!(get(store, key, Extent::Whole, None).unwrap().is_none(), "{store:?}");
            assert!(get(store, key, Extent::Suffix(3), None).unwrap().is_none(), "{store:?}");
            assert!(head(store, key).unwrap().is_none() && read_whole(store, key, 9).unwrap().is_none());
        }
        backend.remove("a/zarr.json");
        assert!(head(store, "a/zarr.json").unwrap().is_none(), "{store:?}");
    }
}

#[test]
fn an_object_that_was_replaced_has_another_version() {
    for backend in backends() {
        let store = backend.store();
        backend.put("zarr.json", b"before");
        let (_, version) = read_whole(store, "zarr.json", 6).unwrap().unwrap();
        let again = head(store, "zarr.json").unwrap().unwrap();
        assert_eq!((&again.version, again.object_bytes), (&version, 6), "{store:?}");
        assert!(get(store, "zarr.json", Extent::Range(1..3), Some(&version)).unwrap().is_some(), "{store:?}");
        backend.put("zarr.json", b"behind");
        assert_ne!(head(store, "zarr.json").unwrap().unwrap().version, version, "{store:?}");
        let text = get(store, "zarr.json", Extent::Range(1..3), Some(&version)).unwrap_err().to_string();
        assert!(text.contains("changed while it was read"), "{store:?}: {text}");
    }
}

#[test]
fn what_is_too_large_for_metadata_is_not_read() {
    for backend in backends() {
        backend.put("zarr.json", &[b' '; 100]);
        let text = read_whole(backend.store(), "zarr.json", 99).unwrap_err().to_string();
        assert!(text.contains("100 bytes") && text.contains("99"), "{text}");
        assert!(read_whole(backend.store(), "zarr.json", 100).unwrap().is_some());
    }
}

#[test]
fn a_listing_names_what_is_directly_below() {
    for backend in backends() {
        for key in ["zarr.json", "b/zarr.json", "a/zarr.json", "a/x/zarr.json", "a/x/c/0", "ab/zarr.json"] {
            backend.put(key, b"{}");
        }
        let names = |key: &str| {
            let mut names = list(backend.store(), key).unwrap().names;
            names.sort();
            names
        };
        assert_eq!(names(""), ["a", "ab", "b"]);
        assert_eq!(names("a"), ["x"]);
        assert_eq!(names("a/x"), ["c"]);
    }
}

/// Answers by the number of their request.
#[derive(Default)]
struct Answers(Mutex<HashMap<usize, io::Result<Option<Received>>>>, Mutex<Option<mpsc::Sender<usize>>>);

impl Deliver<usize> for Answers {
    fn delivered(&self, ticket: usize, answer: io::Result<Option<Received>>) {
        self.0.lock().unwrap().insert(ticket, answer);
        if let Some(sender) = &*self.1.lock().unwrap() {
            let _ = sender.send(ticket);
        }
    }

    fn is_planned(&self, _: u64) -> bool {
        true
    }

    fn give_back(&self, _: u64) -> bool {
        false
    }
}

fn whole(store: &Arc<dyn Store>, key: &str, bytes: u64) -> Request {
    Request {
        store: store.clone(),
        key: key.into(),
        extent: Extent::Whole,
        version: None,
        expected_bytes: bytes,
        likely_bytes: None,
        most_bytes: bytes,
        was_present: false,
        batch: 0,
    }
}

/// Limits of which only these matter.
fn limits(threads: usize, requests: usize, bytes: u64) -> Limits {
    Limits { threads, requests, bytes, split_above_bytes: 16 << 20 }
}

/// A scheduler, its answers, the tickets as they are answered, and its counters.
fn started(limits: Limits) -> (Scheduler<usize>, Arc<Answers>, mpsc::Receiver<usize>, Arc<Counters>) {
    let (sender, finished) = mpsc::channel();
    let answers = Arc::new(Answers(Mutex::default(), Mutex::new(Some(sender))));
    let counters = Arc::<Counters>::default();
    let scheduler =
        Scheduler::new(limits, &Buffers::new(limits.bytes), answers.clone(), counters.clone()).unwrap();
    (scheduler, answers, finished, counters)
}

/// Threads of this process with that name.
fn threads(name: &str) -> usize {
    let tasks = Path::new("/proc/self/task").read_dir().unwrap();
    tasks
        .filter(|task| {
            let comm = task.as_ref().unwrap().path().join("comm");
            std::fs::read_to_string(comm).is_ok_and(|comm| comm.trim() == name)
        })
        .count()
}

#[test]
fn hundreds_of_requests_are_in_flight_on_few_threads() {
    const REQUESTS: usize = 256;
    let _alone = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore { latency: Duration::from_millis(500), ..FakeStore::default() };
    (0..2 * REQUESTS).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![i as u8; 3000]));
    let store: Arc<dyn Store> = Arc::new(fake);
    let (scheduler, answers, finished, counters) = started(limits(4, REQUESTS, 1 << 30));
    let since = Instant::now();
    (0..2 * REQUESTS).for_each(|i| scheduler.request(whole(&store, &format!("c/{i}"), 3000), i));
    // Threads have their names once they run.
    finished.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!((1..=4).contains(&threads("zarr net")));
    (1..2 * REQUESTS).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(60)).unwrap());
    // One after the other they would take 256 s.
    assert!(since.elapsed() < Duration::from_secs(30));
    assert_eq!(scheduler.slots().most_in_flight(), REQUESTS);
    assert_eq!((counters.requests.get(), counters.bytes_fetched.get()), (512, 512 * 3000));
    for (i, answer) in answers.0.lock().unwrap().drain() {
        assert_eq!(answer.unwrap().unwrap().into_bytes().unwrap(), vec![i as u8; 3000]);
    }
}

#[test]
fn memory_is_reserved_before_a_request_is_sent_and_in_the_order_of_the_requests() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = Arc::new(FakeStore::default());
    (0..10).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![i as u8; 1 << 20]));
    let store: Arc<dyn Store> = fake.clone();
    let (scheduler, answers, finished, _) = started(limits(2, 64, 3 << 20));
    (0..10).for_each(|i| scheduler.request(whole(&store, &format!("c/{i}"), 1 << 20), i));
    let next = || finished.recv_timeout(Duration::from_secs(30)).unwrap();
    let mut first: Vec<usize> = (0..3).map(|_| next()).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2]);
    assert!(finished.recv_timeout(Duration::from_millis(200)).is_err());
    assert_eq!(fake.requests(), 3);
    // Each answer that is dropped makes room for the next request.
    for expected in 3..10 {
        answers.0.lock().unwrap().remove(&(expected - 3));
        assert_eq!(finished.recv_timeout(Duration::from_secs(30)).unwrap(), expected);
    }
    // One that needs more than all memory is read when nothing else has any.
    fake.objects.put("c/10", vec![7; 5 << 20]);
    answers.0.lock().unwrap().clear();
    scheduler.request(whole(&store, "c/10", 5 << 20), 10);
    assert_eq!(finished.recv_timeout(Duration::from_secs(30)).unwrap(), 10);
}

#[test]
fn an_answer_that_is_longer_than_expected_is_waited_for_with_memory_for_it() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for split_above_bytes in [16 << 20, 10_000] {
        let fake = Arc::new(FakeStore { latency: Duration::from_millis(1), ..FakeStore::default() });
        (0..8).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![i as u8; 4 * 4096]));
        // Longer than all memory.
        fake.objects.put("c/8", vec![8; 40 * 4096]);
        let store: Arc<dyn Store> = fake.clone();
        let limits = Limits { split_above_bytes, ..limits(2, 16, 10 * 4096) };
        let (scheduler, answers, finished, counters) = started(limits);
        let short =
            |i: usize| Request { expected_bytes: 4096, ..whole(&store, &format!("c/{i}"), 40 * 4096) };
        (0..9).for_each(|i| scheduler.request(short(i), i));
        for left in (1..=9).rev() {
            let ticket = finished.recv_timeout(Duration::from_secs(30)).unwrap();
            // No more are in memory than it has room for.
            std::thread::sleep(Duration::from_millis(20));
            assert!(answers.0.lock().unwrap().len() <= 2.min(left));
            let answer = answers.0.lock().unwrap().remove(&ticket).unwrap().unwrap().unwrap();
            let bytes = answer.into_bytes().unwrap();
            assert!(bytes.iter().all(|&byte| usize::from(byte) == ticket));
            assert_eq!(bytes.len(), if ticket == 8 { 40 * 4096 } else { 4 * 4096 });
        }
        assert_eq!(counters.requests_retried.get(), 9);
    }
}

#[test]
fn a_fault_is_an_error_and_never_a_missing_object() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for (fault, text) in [
        (Fault::Denied, "permission denied"),
        (Fault::Unavailable, "503"),
        (Fault::Overlong, "more than the 3000 bytes"),
        (Fault::Panic, "before the answer came"),
    ] {
        let fake = FakeStore { fault: Some((2, fault)), ..FakeStore::default() };
        (0..8).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![1; 3000]));
        let store: Arc<dyn Store> = Arc::new(fake);
        let (scheduler, answers, finished, _) = started(limits(1, 8, 1 << 30));
        (0..8).for_each(|i| scheduler.request(whole(&store, &format!("c/{i}"), 3000), i));
        // Longer than the codecs can make it.
        scheduler.request(whole(&store, "c/0", 2999), 8);
        (0..9).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(30)).unwrap());
        let mut answers = answers.0.lock().unwrap();
        let too_long = answers.remove(&8).unwrap().unwrap_err().to_string();
        assert!(too_long.contains("at most 2999"), "{too_long}");
        let failed: Vec<String> =
            answers.values().filter_map(|answer| Some(answer.as_ref().err()?.to_string())).collect();
        assert_eq!(failed.len(), 4);
        assert!(failed.iter().all(|found| found.contains(text)), "{failed:?}");
        assert!(answers.values().flatten().all(Option::is_some));
    }
}

/// So many random cases, of which none is written to a file.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

/// A whole object that is fetched in parts.
fn large(store: &Arc<dyn Store>, bytes: u64) -> Request {
    Request { expected_bytes: bytes.max(20_000), ..whole(store, "c/0", bytes) }
}

#[test]
fn requests_of_earlier_batches_are_sent_first_and_those_of_one_batch_in_their_order() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    proptest!(cases(24), |(batches in prop::collection::vec(0u64..5, 1..30), bytes in 1u64..4)| {
        let fake = Arc::new(FakeStore { latency: Duration::from_millis(1), ..FakeStore::default() });
        fake.objects.put("c/first", vec![0; 4096 * bytes as usize]);
        (0..batches.len()).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![0; 10]));
        let store: Arc<dyn Store> = fake.clone();
        let (scheduler, answers, finished, _) = started(limits(2, 1, 4096 * bytes));
        // The answer holds all memory until all others wait.
        scheduler.request(whole(&store, "c/first", 4096 * bytes), usize::MAX);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        for (i, &batch) in batches.iter().enumerate() {
            scheduler.request(Request { batch, ..whole(&store, &format!("c/{i}"), 4096) }, i);
        }
        answers.0.lock().unwrap().clear();
        for _ in &batches {
            let ticket = finished.recv_timeout(Duration::from_secs(30)).unwrap();
            answers.0.lock().unwrap().remove(&ticket);
        }
        let mut expected: Vec<usize> = (0..batches.len()).collect();
        expected.sort_by_key(|&i| batches[i]);
        let asked = fake.asked.lock().unwrap();
        let asked: Vec<usize> = asked[1..].iter().map(|(key, _)| key[2..].parse().unwrap()).collect();
        prop_assert_eq!(asked, expected);
    });
}

#[test]
fn an_object_that_was_there_is_not_taken_for_absent_when_a_later_part_is_forbidden() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let forbidden = |fault, bytes, likely_bytes| {
        let fake = Arc::new(FakeStore { fault, ..FakeStore::default() });
        fake.objects.put("c/0", vec![1; bytes as usize]);
        let store: Arc<dyn Store> = fake.clone();
        let limits = Limits { split_above_bytes: 16_000, ..limits(1, 8, 1 << 20) };
        let (scheduler, answers, finished, _) = started(limits);
        scheduler.request(Request { likely_bytes, ..large(&store, bytes) }, 0);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        let error = answers.0.lock().unwrap().remove(&0).unwrap().unwrap_err();
        matches!(Obstacle::of(&error), Some(Obstacle::Forbidden { .. }))
    };
    // The first answer says that nothing is known of the object; a later one does not.
    for likely_bytes in [None, Some(100_000)] {
        assert!(forbidden(Some((1, Fault::Forbidden)), 100_000, likely_bytes));
        assert!(!forbidden(Some((3, Fault::Forbidden)), 100_000, likely_bytes));
    }
}

#[test]
fn a_large_object_is_fetched_in_parts_of_one_version() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let object: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let limits = Limits { split_above_bytes: 16_000, ..limits(2, 8, 1 << 20) };
    for untagged in [false, true] {
        let fake =
            Arc::new(FakeStore { untagged, latency: Duration::from_millis(5), ..FakeStore::default() });
        fake.objects.put("c/0", object.clone());
        let store: Arc<dyn Store> = fake.clone();
        let (scheduler, answers, finished, counters) = started(limits);
        for ticket in 0..2 {
            scheduler.request(large(&store, 100_000), ticket);
            finished.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        let version = head(&*store, "c/0").unwrap().unwrap().version;
        let extent = Extent::Range(10..70_010);
        scheduler.request(Request { extent, version: Some(version), ..large(&store, 70_000) }, 2);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut answers = answers.0.lock().unwrap();
        let mut take = |ticket| answers.remove(&ticket).unwrap().unwrap().unwrap();
        for ticket in 0..2 {
            assert_eq!(take(ticket).into_bytes().unwrap(), object);
        }
        assert_eq!(take(2).into_bytes().unwrap(), object[10..70_010]);
        let asked = std::mem::take(&mut *fake.asked.lock().unwrap());
        let longest = asked.iter().map(|(_, extent)| match extent {
            Extent::Range(range) => range.end - range.start,
            Extent::Prefix(bytes) => *bytes,
            _ => u64::MAX,
        });
        match untagged {
            // A first part, 8 more of 88,000 bytes; 6 of 70,000 bytes.
            false => {
                assert!(longest.max().unwrap() <= 12_000 && scheduler.slots().most_in_flight() == 8);
                assert_eq!(asked.len(), 9 + 9 + 6);
                assert_eq!(counters.bytes_fetched.get(), 270_000);
            }
            // Where times alone tell versions, a single answer has all bytes. That is found out once for each thread.
            true => assert!((3 + 1..=3 + 2).contains(&asked.len()), "{asked:?}"),
        }
    }
}

#[test]
fn parts_of_an_object_of_a_likely_length_are_asked_for_at_once_by_all_threads() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let object: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let limits = Limits { split_above_bytes: 16_000, ..limits(4, 16, 1 << 20) };
    let fake = Arc::new(FakeStore { latency: Duration::from_millis(500), ..FakeStore::default() });
    fake.objects.put("c/0", object.clone());
    let store: Arc<dyn Store> = fake.clone();
    let (scheduler, answers, finished, counters) = started(limits);
    let likely = |bytes: u64| Request { likely_bytes: Some(bytes), ..large(&store, 200_000) };
    scheduler.request(likely(100_000), 0);
    // A first part and 8 more, before any is answered.
    let asked_at_once = || fake.requests() == 9;
    let ended =
        std::iter::from_fn(|| (!asked_at_once()).then(|| finished.recv_timeout(Duration::from_millis(1))));
    assert!(ended.into_iter().all(|answer| answer.is_err()) && asked_at_once());
    finished.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!((fake.requests(), counters.bytes_fetched.get()), (9, 100_000));
    assert_eq!(fake.threads.lock().unwrap().len(), 4);
    // Of other lengths than was thought, and absent.
    scheduler.request(likely(70_000), 1);
    scheduler.request(likely(130_000), 2);
    scheduler.request(Request { key: "c/1".into(), ..likely(100_000) }, 3);
    (0..3).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(30)).unwrap());
    let mut received_all = answers.0.lock().unwrap();
    for ticket in 0..3 {
        let received = received_all.remove(&ticket).unwrap().unwrap().unwrap();
        assert_eq!(received.into_bytes().unwrap(), object, "{ticket}");
    }
    assert!(received_all.remove(&3).unwrap().unwrap().is_none());
    drop(received_all);
    // One that needs more memory than was thought is asked for by its own length then.
    let begins = |asked: &[(String, Extent)]| {
        asked.iter().filter(|(_, extent)| *extent == Extent::Prefix(12_000)).count()
    };
    let before = begins(&fake.asked.lock().unwrap());
    scheduler.request(Request { expected_bytes: 70_000, ..likely(70_000) }, 4);
    finished.recv_timeout(Duration::from_secs(30)).unwrap();
    let received = answers.0.lock().unwrap().remove(&4).unwrap().unwrap().unwrap();
    assert_eq!(received.into_bytes().unwrap(), object);
    assert_eq!(begins(&fake.asked.lock().unwrap()) - before, 3);
}

#[test]
fn a_part_whose_task_panics_is_an_error_and_leaves_no_slot_taken() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = Arc::new(FakeStore { fault: Some((5, Fault::Panic)), ..FakeStore::default() });
    fake.objects.put("c/0", vec![1; 100_000]);
    let store: Arc<dyn Store> = fake.clone();
    let limits = Limits { split_above_bytes: 16_000, ..limits(3, 4, 1 << 20) };
    let (scheduler, answers, finished, _) = started(limits);
    let large = || Request { likely_bytes: Some(100_000), ..large(&store, 100_000) };
    scheduler.request(large(), 0);
    finished.recv_timeout(Duration::from_secs(30)).unwrap();
    let error = answers.0.lock().unwrap().remove(&0).unwrap().unwrap_err().to_string();
    assert!(error.contains("before the answer came"), "{error}");
    // Later requests are answered, and all slots are free again.
    for ticket in 1..4 {
        scheduler.request(Request { key: "c/1".into(), ..large() }, ticket);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    let in_flight = || scheduler.slots().in_flight();
    let until = Instant::now() + Duration::from_secs(30);
    while in_flight() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(in_flight(), 0);
}

#[test]
fn parts_of_an_object_that_is_replaced_are_an_error_and_not_a_mixture() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for every in 2..10 {
        let fake = FakeStore { fault: Some((every, Fault::Replaced)), ..FakeStore::default() };
        fake.objects.put("c/0", vec![1; 100_000]);
        let store: Arc<dyn Store> = Arc::new(fake);
        let limits = Limits { split_above_bytes: 16_000, ..limits(2, 3, 1 << 20) };
        let (scheduler, answers, finished, _) = started(limits);
        scheduler.request(large(&store, 100_000), 0);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        let answer = answers.0.lock().unwrap().remove(&0).unwrap();
        assert!(answer.unwrap_err().to_string().contains("changed while it was read"), "{every}");
    }
}

#[test]
fn a_body_that_breaks_off_is_fetched_to_its_end() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for fault in [Fault::CutShort, Fault::Broken] {
        for untagged in [false, true] {
            let fake = FakeStore { fault: Some((2, fault)), untagged, ..FakeStore::default() };
            let fake = Arc::new(fake);
            (0..8).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![i; 8000]));
            let store: Arc<dyn Store> = fake.clone();
            let (scheduler, answers, finished, counters) = started(limits(1, 1, 1 << 20));
            (0..8).for_each(|i| scheduler.request(whole(&store, &format!("c/{i}"), 8000), i));
            (0..8).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(30)).unwrap());
            for (i, answer) in answers.0.lock().unwrap().drain() {
                assert_eq!(answer.unwrap().unwrap().into_bytes().unwrap(), vec![i as u8; 8000]);
            }
            // The second of each two breaks off, and each that follows one that did is the third.
            let repeated = counters.requests_retried.get();
            assert_eq!((counters.requests.get(), repeated > 0), (8, true));
            let asked = fake.asked.lock().unwrap();
            let rest = asked.iter().filter(|(_, extent)| *extent == Extent::Range(4000..8000)).count() as u64;
            // Without a tag nobody knows whether the rest is of the same object.
            assert_eq!(rest, if untagged { 0 } else { repeated });
            let more = if untagged { repeated * 4000 } else { 0 };
            assert_eq!(counters.bytes_fetched.get(), 8 * 8000 + more);
        }
    }
}

#[test]
fn a_body_is_asked_for_again_more_often_where_the_client_cannot_resume_it() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    // A client resumes objects that have entity tags.
    for (untagged, immutable, repeats) in [(false, false, 1), (false, true, 5), (true, false, 5)] {
        let fault = Some((1, Fault::CutShort));
        let fake = Arc::new(FakeStore { fault, untagged, immutable, ..FakeStore::default() });
        fake.objects.put("c/0", vec![1; 8000]);
        let store: Arc<dyn Store> = fake;
        let (scheduler, answers, finished, counters) = started(limits(1, 1, 1 << 20));
        scheduler.request(whole(&store, "c/0", 8000), 0);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(answers.0.lock().unwrap().remove(&0).unwrap().is_err());
        assert_eq!(counters.requests_retried.get(), repeats);
    }
}

#[test]
fn an_object_that_is_replaced_when_its_body_breaks_off_is_an_error() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    // The first answer breaks off, and the second is of another object.
    for tagged in [true, false] {
        let fake = FakeStore { fault: Some((1, Fault::Broken)), untagged: !tagged, ..FakeStore::default() };
        let fake = Arc::new(fake);
        fake.objects.put("c/0", vec![1; 8000]);
        let store: Arc<dyn Store> = fake.clone();
        let (scheduler, answers, finished, counters) = started(limits(1, 1, 1 << 20));
        scheduler.request(whole(&store, "c/0", 9000), 0);
        while counters.bytes_fetched.get() == 0 {
            std::thread::yield_now();
        }
        // Times are the same, but the length is not.
        fake.objects.put("c/0", vec![2; if tagged { 8000 } else { 9000 }]);
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
        let answer = answers.0.lock().unwrap().remove(&0).unwrap();
        assert!(answer.unwrap_err().to_string().contains("changed while it was read"), "{tagged}");
    }
}

#[test]
fn random_faults_end_in_the_right_bytes_or_in_an_error() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let faults = [Fault::CutShort, Fault::Broken, Fault::Overlong, Fault::Denied, Fault::Unavailable];
    let case = (
        prop::collection::vec(0usize..60_000, 1..6),
        (2u64..9, 0..faults.len()),
        any::<bool>(),
        1_000u64..40_000,
        1usize..6,
        1u64..30,
        prop::option::of(0u64..3),
    );
    let (right, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    proptest!(cases(30), |((lengths, (every, fault), untagged, split, requests, units, likely) in case)| {
        let fake = FakeStore { fault: Some((every, faults[fault])), untagged, ..FakeStore::default() };
        let object = |i: usize| (0..lengths[i]).map(|byte| (byte * 7 + i) as u8).collect::<Vec<u8>>();
        (0..lengths.len()).for_each(|i| fake.objects.put(&format!("c/{i}"), object(i)));
        let store: Arc<dyn Store> = Arc::new(fake);
        let limits = Limits { split_above_bytes: split, ..limits(2, requests, units * 4096) };
        let (scheduler, answers, finished, _) = started(limits);
        for (i, &length) in lengths.iter().enumerate() {
            // None, the right length, or another.
            let likely_bytes = likely.map(|likely| length as u64 + 500 * likely);
            scheduler.request(Request { likely_bytes, ..whole(&store, &format!("c/{i}"), 60_000) }, i);
        }
        for _ in &lengths {
            let ticket = finished.recv_timeout(Duration::from_secs(60)).unwrap();
            match answers.0.lock().unwrap().remove(&ticket).unwrap() {
                Ok(received) => {
                    prop_assert!(received.unwrap().into_bytes().unwrap() == object(ticket));
                    right.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
        }
    });
    assert!(right.into_inner() > 0 && failed.into_inner() > 0);
}

#[test]
fn a_request_that_is_late_is_made_a_second_time_and_a_third() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let (latency, late) = (Duration::from_millis(2), Some((150, Duration::from_secs(5))));
    let late_at_first = Some(("c/700", 2, Duration::from_secs(3600)));
    let fake = FakeStore { latency, late, late_at_first, ..FakeStore::default() };
    (0..1000).for_each(|i| fake.objects.put(&format!("c/{i}"), vec![i as u8; 10]));
    let store: Arc<dyn Store> = Arc::new(fake);
    let (scheduler, answers, finished, counters) = started(limits(1, 4, 1 << 30));
    (0..1000).for_each(|i| scheduler.request(whole(&store, &format!("c/{i}"), 10), i));
    (0..1000).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(30)).unwrap());
    for (i, answer) in answers.0.lock().unwrap().drain() {
        assert_eq!(answer.unwrap().unwrap().into_bytes().unwrap(), vec![i as u8; 10]);
    }
    // Six take seconds, and of one both the first and the second an hour; others are late only where this machine holds them up.
    assert!((7..=1000 / 50 + 1).contains(&counters.requests_hedged.get()));
}

#[test]
fn requests_are_not_sent_in_crowds() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore { latency: Duration::from_millis(100), ..FakeStore::default() };
    fake.objects.put("c/0", vec![1; 10]);
    let store: Arc<dyn Store> = Arc::new(fake);
    let (scheduler, _, finished, _) = started(limits(1, 8, 1 << 30));
    let crowd = || {
        let began = Instant::now();
        (0..8).for_each(|i| scheduler.request(whole(&store, "c/0", 10), i));
        (0..8).for_each(|_| _ = finished.recv_timeout(Duration::from_secs(30)).unwrap());
        began.elapsed()
    };
    // Of the first nothing is known. Of the next, one is sent each 10 ms, but for what may be made up for.
    crowd();
    assert!(crowd() > Duration::from_millis(140));
}

#[test]
fn dropping_the_scheduler_ends_what_is_in_flight() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore { latency: Duration::from_secs(3600), ..FakeStore::default() };
    fake.objects.put("c/0", vec![1; 100_000]);
    let fake = Arc::new(fake);
    let store: Arc<dyn Store> = fake.clone();
    for likely_bytes in [None, Some(100_000)] {
        let answers = Arc::new(Answers::default());
        let limits = Limits { split_above_bytes: 16_000, ..limits(4, 40, 1 << 20) };
        let scheduler = Scheduler::new(limits, &Buffers::none(), answers.clone(), Arc::default()).unwrap();
        let before = fake.requests();
        // More than may be in flight.
        (0..100).for_each(|i| scheduler.request(Request { likely_bytes, ..large(&store, 100_000) }, i));
        while fake.requests() < before + 8 {
            std::thread::yield_now();
        }
        let since = Instant::now();
        drop(scheduler);
        assert!(since.elapsed() < Duration::from_secs(10));
        assert!(answers.0.lock().unwrap().is_empty());
    }
}

/// Metadata of a float32 array of 40 x 6, with chunks of 2 x 6 or, sharded, inner chunks of 1 x 3 in shards of 4 x 6.
fn metadata(sharded: bool) -> String {
    let (chunk, codecs) = match sharded {
        false => ("[2, 6]", r#"[{"name": "bytes", "configuration": {"endian": "little"}}]"#),
        true => (
            "[4, 6]",
            r#"[{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 3],
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]"#,
        ),
    };
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [40, 6], "data_type": "float32", "fill_value": -1,
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": {chunk}}}}},
            "chunk_key_encoding": {{"name": "default"}}, "codecs": {codecs}}}"#
    )
}

/// Fills a store with an array whose elements are their own numbers; every fifth chunk is left out. Returns the values.
fn fill(objects: &MemoryStore, name: &str, sharded: bool) -> Vec<f32> {
    let mut values: Vec<f32> = (0..240).map(|i| i as f32).collect();
    let key = |key: String| if name.is_empty() { key } else { format!("{name}/{key}") };
    objects.put(&key("zarr.json".into()), metadata(sharded));
    if !sharded {
        for chunk in 0..20 {
            let elements = &mut values[12 * chunk..12 * (chunk + 1)];
            if chunk % 5 == 4 {
                elements.fill(-1.0);
            } else {
                let bytes: Vec<u8> = elements.iter().flat_map(|value| value.to_le_bytes()).collect();
                objects.put(&key(format!("c/{chunk}/0")), bytes);
            }
        }
        return values;
    }
    for shard in 0..10usize {
        if shard % 5 == 4 {
            values[24 * shard..24 * (shard + 1)].fill(-1.0);
            continue;
        }
        let (mut bytes, mut index) = (vec![], vec![]);
        for inner in 0..8 {
            let start = 24 * shard + 6 * (inner / 2) + 3 * (inner % 2);
            if inner == 3 {
                values[start..start + 3].fill(-1.0);
                index.extend([u64::MAX; 2]);
                continue;
            }
            index.extend([bytes.len() as u64, 12]);
            bytes.extend(values[start..start + 3].iter().flat_map(|value| value.to_le_bytes()));
        }
        let index: Vec<u8> = index.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        bytes.extend(&index);
        bytes.extend(crc32c::crc32c(&index).to_le_bytes());
        objects.put(&key(format!("c/{shard}/0")), bytes);
    }
    values
}

/// Reads all samples, windows of two rows, in batches of four; fails with the first error.
fn read_all(url: &str, arrays: &[&str]) -> zarr_dali::error::Result<Vec<f32>> {
    let mut arguments = Arguments::new(url);
    arguments.arrays = arrays.iter().map(|&name| name.into()).collect();
    (arguments.batch_size, arguments.window, arguments.stride) = (4, Some(vec![2]), Some(vec![2]));
    let mut reader = Reader::open(&arguments)?;
    let mut read = vec![];
    for _ in 0..5 {
        let mut batch = vec![0f32; 4 * 12 * arrays.len().max(1)];
        let addresses: Vec<usize> = batch.chunks_mut(48).map(|output| output.as_mut_ptr() as usize).collect();
        // SAFETY: the memory is large enough and stays until the batch is complete, or the reader is dropped.
        unsafe { reader.submit(&addresses)? };
        let done = reader.next_batch();
        if done.is_err() {
            drop(reader);
            done?;
            unreachable!();
        }
        read.extend(batch);
    }
    Ok(read)
}

fn publish(name: &str, fake: FakeStore) -> Arc<FakeStore> {
    let fake = Arc::new(fake);
    MemoryStore::publish(name, fake.clone());
    fake
}

#[test]
fn a_reader_reads_a_slow_store() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for sharded in [false, true] {
        let fake = FakeStore { latency: Duration::from_millis(5), ..FakeStore::default() };
        let expected = fill(&fake.objects, "", sharded);
        let name = format!("slow-{sharded}");
        let fake = publish(&name, fake);
        assert_eq!(read_all(&format!("memory://{name}"), &[]).unwrap(), expected);
        // Each index once, and the inner chunks of each shard, of which a batch wants all, together.
        let requests = if sharded { 10 + 8 } else { 20 };
        assert_eq!(fake.requests(), requests);
    }
}

#[test]
fn faults_of_a_store_reach_the_consumer_with_the_chunk_they_are_about() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for sharded in [false, true] {
        for (fault, text) in [
            ((7, Fault::Denied), "permission denied"),
            // It is asked for again, and breaks off again.
            ((1, Fault::CutShort), "bytes came before"),
            ((7, Fault::Panic), "before the answer came"),
        ] {
            let fake = FakeStore { fault: Some(fault), ..FakeStore::default() };
            fill(&fake.objects, "", sharded);
            let name = format!("faulty-{sharded}-{fault:?}");
            publish(&name, fake);
            let error = read_all(&format!("memory://{name}"), &[]).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("chunk ["), "{error}");
        }
    }
}

#[test]
fn metadata_that_are_forbidden_are_absent_and_other_faults_are_errors() {
    let open = |name: &str, faulty: &[(&'static str, Fault)]| {
        let fake = FakeStore { faulty: faulty.to_vec(), ..FakeStore::default() };
        let metadata = r#"{"zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "<f4", "compressor": null,
            "fill_value": null, "filters": null, "order": "C"}"#;
        fake.objects.put(".zarray", metadata);
        publish(name, fake);
        let access = Access::to_folders(true);
        let opened = Dataset::open(&[format!("memory://{name}")], &[], &access);
        opened.map(|dataset| dataset.arrays[0].shape.clone()).map_err(|error| error.to_string())
    };
    // Without the permission to list, some stores refuse what is not there.
    let some = [("zarr.json", Fault::Forbidden), (".zmetadata", Fault::Forbidden)];
    assert_eq!(open("forbidden", &some), Ok(vec![6]));
    let all = [("zarr.json", Fault::Forbidden), (".zarray", Fault::Forbidden)];
    let text = open("all-forbidden", &all).unwrap_err();
    assert!(text.contains("403") && text.contains("zarr.json"), "{text}");
    // Other refusals, such as of a signature, are of all that there is.
    let text = open("denied", &[("zarr.json", Fault::Denied)]).unwrap_err();
    assert!(text.contains("permission denied") && text.contains("zarr.json"), "{text}");
    let text = open("unavailable", &[("zarr.json", Fault::Unavailable)]).unwrap_err();
    assert!(text.contains("503"), "{text}");
}

#[test]
fn a_folder_that_cannot_be_listed_is_named_among_the_arrays_unless_it_is_the_store() {
    let publish = |name: &str, folder: &'static str| {
        let fake = FakeStore { faulty: vec![(folder, Fault::Denied)], ..FakeStore::default() };
        fill(&fake.objects, "a", false);
        for group in ["zarr.json", "g/zarr.json"] {
            fake.objects.put(group, r#"{"zarr_format": 3, "node_type": "group"}"#);
        }
        publish(name, fake);
        [format!("memory://{name}")]
    };
    let access = Access::to_folders(true);
    assert_eq!(Dataset::names(&publish("unlistable-group", "g"), &access).unwrap(), ["a", "g"]);
    match Dataset::open(&publish("unlistable", ""), &[], &access).unwrap_err() {
        Error::GroupWithoutArrays { present, .. } => assert_eq!(present, [""; 0]),
        other => panic!("{other}"),
    }
}

#[test]
fn a_damaged_index_and_an_object_that_changes_are_errors() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore::default();
    fill(&fake.objects, "", true);
    fake.objects.put("c/2/0", vec![7; 400]);
    publish("damaged-index", fake);
    let error = read_all("memory://damaged-index", &[]).unwrap_err().to_string();
    assert!(error.contains("index") && error.contains("[2, 0]"), "{error}");

    let fake = FakeStore::default();
    fill(&fake.objects, "", true);
    fake.objects.put("c/1/0", vec![7; 40]);
    publish("short-index", fake);
    let error = read_all("memory://short-index", &[]).unwrap_err().to_string();
    assert!(error.contains("needs 132 bytes, but the file has 40"), "{error}");
}

#[test]
fn consolidated_metadata_save_requests() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore::default();
    let expected = fill(&fake.objects, "x", false);
    fill(&fake.objects, "y", true);
    // Whether a missing chunk is to be believed is asked of the array's own metadata.
    let fill_value: Vec<u8> = std::iter::repeat_n((-1f32).to_le_bytes(), 12).flatten().collect();
    (4..20).step_by(5).for_each(|chunk| fake.objects.put(&format!("x/c/{chunk}/0"), fill_value.clone()));
    fake.objects.put(
        "zarr.json",
        format!(
            r#"{{"zarr_format": 3, "node_type": "group", "consolidated_metadata": {{"kind": "inline", "metadata":
                {{"x": {}, "y": {}}}}}}}"#,
            metadata(false),
            metadata(true)
        ),
    );
    // They are not asked for.
    fake.objects.remove("x/zarr.json");
    fake.objects.remove("y/zarr.json");
    publish("consolidated", fake);
    let read = read_all("memory://consolidated", &["x"]).unwrap();
    assert_eq!(read, expected);
    let error = read_all("memory://consolidated", &["z"]).unwrap_err().to_string();
    assert!(error.contains(r#""x", "y""#), "{error}");
}

#[test]
fn an_array_that_is_deleted_is_not_read_as_fill_values_though_it_is_in_consolidated_metadata() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    for deleted in [false, true] {
        let fake = FakeStore::default();
        let expected = fill(&fake.objects, "x", false);
        let root = r#"{"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"x": METADATA}}}"#;
        fake.objects.put("zarr.json", root.replace("METADATA", &metadata(false)));
        if deleted {
            (0..20).for_each(|chunk| fake.objects.remove(&format!("x/c/{chunk}/0")));
            fake.objects.remove("x/zarr.json");
        }
        let name = format!("consolidated-{deleted}");
        publish(&name, fake);
        match (deleted, read_all(&format!("memory://{name}"), &["x"])) {
            (false, read) => assert_eq!(read.unwrap(), expected),
            (true, read) => assert!(read.unwrap_err().to_string().contains("went away")),
        }
    }
}

#[test]
fn consolidated_metadata_of_format_2_save_requests() {
    let fake = FakeStore::default();
    let chunk: Vec<u8> = (0..240).flat_map(|i| (i as f32).to_le_bytes()).collect();
    fake.objects.put("g/x/0.0", chunk);
    fake.objects.put(
        ".zmetadata",
        r#"{"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}, ".zattrs": {}, "g/.zgroup": {"zarr_format": 2},
            "g/x/.zattrs": {"units": "K"}, "g/x/.zarray": {"zarr_format": 2, "shape": [40, 6], "chunks": [40, 6], "dtype": "<f4",
            "order": "C", "fill_value": 0, "compressor": null, "filters": null}}}"#,
    );
    publish("consolidated-2", fake);
    assert_eq!(read_all("memory://consolidated-2", &["g/x"]).unwrap()[..3], [0., 1., 2.]);
    let error = read_all("memory://consolidated-2", &[]).unwrap_err().to_string();
    assert!(error.contains(r#""g/x""#), "{error}");
}

#[test]
fn a_store_that_went_away_is_not_read_as_fill_values() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore::default();
    fill(&fake.objects, "", false);
    let fake = publish("gone", fake);
    let mut arguments = Arguments::new("memory://gone");
    (arguments.batch_size, arguments.window) = (4, Some(vec![2]));
    let mut reader = Reader::open(&arguments).unwrap();
    (0..20).for_each(|chunk| fake.objects.remove(&format!("c/{chunk}/0")));
    fake.objects.remove("zarr.json");
    let mut batch = vec![0f32; 4 * 12];
    // SAFETY: the memory stays until the reader is dropped.
    unsafe { reader.submit(&[batch.as_mut_ptr() as usize]).unwrap() };
    let error = reader.next_batch().unwrap_err().to_string();
    drop(reader);
    assert!(error.contains("went away"), "{error}");
}

#[test]
fn a_reader_that_is_dropped_while_requests_are_in_flight_ends() {
    let _others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    let fake = FakeStore { latency: Duration::from_millis(200), ..FakeStore::default() };
    fill(&fake.objects, "", true);
    publish("dropped", fake);
    let mut arguments = Arguments::new("memory://dropped");
    (arguments.batch_size, arguments.window) = (4, Some(vec![2]));
    let since = Instant::now();
    for _ in 0..3 {
        let mut reader = Reader::open(&arguments).unwrap();
        let mut batch = vec![0f32; 4 * 12];
        // SAFETY: the memory stays until the reader is dropped.
        unsafe { reader.submit(&[batch.as_mut_ptr() as usize]).unwrap() };
        drop(reader);
    }
    assert!(since.elapsed() < Duration::from_secs(10));
}
