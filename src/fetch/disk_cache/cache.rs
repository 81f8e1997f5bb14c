//! The cache of a reader: finds entries, and hands over what is to become one.

use super::cached::CachedEntry;
use super::entry::{ArrayKey, EntryKey, Header};
use super::folder::CacheFolder;
use super::pending::{Pending, PendingEntries};
use super::writer::{WriteQueue, Writer};
use crate::dataset::Dataset;
use crate::error::log_once;
use crate::fetch::fetched::FetchedBytes;
use crate::fetch::request::Received;
use crate::fetch::{Blob, Located};
use crate::memory;
use crate::options::DiskCacheOptions;
use crate::stats::Counters;
use crate::store::{Extent, Head, Version};

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The arrays that can be cached, by array and part.
type Arrays = HashMap<(usize, usize), ArrayKey>;

/// The cache on the local disk, for the arrays of a reader.
pub struct DiskCache {
    folder: Arc<CacheFolder>,
    arrays: Arrays,
    queue: Arc<WriteQueue>,
    writer: Option<JoinHandle<()>>,
    /// What the stores said is absent, for as long as this reader runs.
    absent: Mutex<HashSet<u128>>,
    counters: Arc<Counters>,
}

/// Where the bytes of an entry are.
enum Hit {
    /// In a file.
    Written(CachedEntry),
    /// In memory: they wait to be written.
    Pending(Arc<Received>),
}

impl DiskCache {
    /// The most objects that are remembered as absent, 32 bytes each with the room that the set has.
    const MOST_ABSENT: usize = 1 << 18;

    /// Checks that a cache can be had as the options say. Makes its folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn check(options: &DiskCacheOptions) -> io::Result<()> {
        CacheFolder::check(&options.folder, options.bytes)
    }

    /// Opens the cache and starts the thread that writes to it. At most `queue_bytes` bytes wait to be written. `None` if no array can
    /// be cached.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(
        options: &DiskCacheOptions,
        dataset: &Dataset,
        queue_bytes: u64,
        counters: Arc<Counters>,
    ) -> io::Result<Option<Self>> {
        let arrays = cacheable(dataset);
        if arrays.is_empty() {
            return Ok(None);
        }
        Self::open(options, arrays, queue_bytes, counters).map(Some)
    }

    fn open(
        options: &DiskCacheOptions,
        arrays: Arrays,
        queue_bytes: u64,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let folder = Arc::new(CacheFolder::open(&options.folder, options.bytes)?);
        let queue = Arc::new(WriteQueue::new(queue_bytes, PendingEntries::of(&folder)?));
        let mut names: Vec<String> = arrays.values().map(|key| key.folder.clone()).collect();
        names.sort();
        names.dedup();
        let writer = Writer {
            queue: queue.clone(),
            folder: folder.clone(),
            arrays: names,
            counters: counters.clone(),
        };
        let thread = std::thread::Builder::new().name("zarr disk cache".into());
        let writer = Some(thread.spawn(move || writer.run())?);
        Ok(Self { folder, arrays, queue, writer, absent: Mutex::default(), counters })
    }

    /// What is known of a part of an object of an array: its bytes as an entry that was written or waits for that, or that the object is
    /// absent. `expected` is the version of the object if that is known before its bytes are.
    pub fn find(
        &self,
        part: (usize, usize),
        key: &str,
        extent: &Extent,
        expected: Option<&Version>,
    ) -> Option<Located> {
        let found = self.look_up(part, key, extent, expected)?;
        Some(match found {
            None => Located::Missing,
            Some((Hit::Written(entry), range)) => Located::At { blob: Arc::new(entry), range },
            Some((Hit::Pending(answer), range)) => {
                Located::At { blob: Arc::new(FetchedBytes { answer, own_bytes: 0 }), range }
            }
        })
    }

    /// All bytes of a small part of an object, as of the index of a sharded chunk, read on the calling thread. `Some(None)` if the object is
    /// absent.
    pub fn read(&self, part: (usize, usize), key: &str, extent: &Extent) -> Option<Option<(Vec<u8>, Head)>> {
        let read = match self.look_up(part, key, extent, None)? {
            None => return Some(None),
            Some((Hit::Written(entry), _)) => {
                let read = entry.read_whole();
                if read.is_none() {
                    entry.discard();
                }
                read
            }
            Some((Hit::Pending(answer), range)) => {
                let mut bytes = vec![];
                memory::grow(&mut bytes, range.end - range.start).ok()?;
                answer.read_at(range.start, &mut bytes).ok()?;
                Some((bytes, answer.head.clone()))
            }
        };
        read.map(Some)
    }

    /// The entry of a part of an object and which bytes it has, `Some(None)` for an object that is absent.
    fn look_up(
        &self,
        part: (usize, usize),
        key: &str,
        extent: &Extent,
        expected: Option<&Version>,
    ) -> Option<Option<(Hit, Range<u64>)>> {
        let key = self.arrays.get(&part)?.entry(key, extent, expected)?;
        if self.absent.lock().unwrap_or_else(PoisonError::into_inner).contains(&key.id) {
            return Some(None);
        }
        let hit = if self.folder.is_off() { None } else { self.hit(key, extent) };
        let counter = match &hit {
            Some(_) => &self.counters.disk_cache_hits,
            None => &self.counters.disk_cache_misses,
        };
        counter.add(1);
        hit.map(Some)
    }

    /// The entry of a key, pending or written. Pending entries are looked at first: when one is pending no more, its file is there, or it was
    /// dropped.
    fn hit(&self, key: EntryKey, extent: &Extent) -> Option<(Hit, Range<u64>)> {
        if let Some(Pending { answer, range }) = self.queue.pending().find(&key) {
            return Some((Hit::Pending(answer), range));
        }
        self.written(key, extent).map(|(entry, range)| (Hit::Written(entry), range))
    }

    /// Removes an entry whose bytes cannot be decoded.
    pub fn discard(&self, part: (usize, usize), key: &str, extent: &Extent) {
        if let Some(key) = self.arrays.get(&part).and_then(|array| array.entry(key, extent, None)) {
            self.discard_entry(&key);
        }
    }

    fn discard_entry(&self, key: &EntryKey) {
        self.counters.disk_cache_discarded.add(1);
        self.folder.discard(key);
    }

    /// The entry of a key if its file is there, and which bytes it has. Those of a suffix count from 0 on.
    fn written(&self, key: EntryKey, extent: &Extent) -> Option<(CachedEntry, Range<u64>)> {
        let found = self.folder.file_bytes(&key).unwrap_or_else(|error| {
            self.folder.turn_off(&error);
            None
        });
        let bytes = found?.checked_sub(Header::BYTES as u64);
        // Chunks of no bytes are not kept.
        let bytes = bytes.filter(|&bytes| bytes > 0);
        let range = match (bytes, extent) {
            (Some(bytes), Extent::Range(range)) if range.end - range.start == bytes => range.clone(),
            (Some(bytes), Extent::Whole | Extent::Prefix(_) | Extent::Suffix(_)) => 0..bytes,
            _ => {
                self.discard_entry(&key);
                return None;
            }
        };
        let entry = CachedEntry::new(self.folder.clone(), key, range.clone(), self.counters.clone());
        Some((entry, range))
    }

    /// Keeps what came for parts of an object of an array, if the disk is fast enough and has room. `expected` is the version that was asked
    /// for; with each extent are the bytes of the object that it is.
    pub fn keep(
        &self,
        part: (usize, usize),
        key: &str,
        expected: Option<&Version>,
        received: &Received,
        extents: impl Iterator<Item = (Extent, Range<u64>)>,
    ) {
        let Some(array) = self.arrays.get(&part).filter(|_| !self.folder.is_off()) else { return };
        if !received.head.version.tells_bytes() {
            return;
        }
        let came = &received.range;
        let entry = |(extent, range): (Extent, Range<u64>)| {
            let is_whole = !range.is_empty() && came.start <= range.start && range.end <= came.end;
            let key = array.entry(key, &extent, expected).filter(|_| is_whole)?;
            Some((key, range))
        };
        let entries: Vec<_> = extents.filter_map(entry).collect();
        let count = entries.len() as u64;
        if !self.queue.push(received, entries) {
            self.counters.disk_cache_dropped.add(count);
        }
    }

    /// Remembers that an object is absent.
    pub fn note_absent(&self, part: (usize, usize), key: &str, extent: &Extent) {
        let Some(key) = self.arrays.get(&part).and_then(|array| array.entry(key, extent, None)) else {
            return;
        };
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        if absent.len() < Self::MOST_ABSENT {
            absent.insert(key.id);
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// The arrays of a dataset that can be cached.
fn cacheable(dataset: &Dataset) -> Arrays {
    let mut arrays = HashMap::new();
    for (number, array) in dataset.arrays.iter().enumerate() {
        for (part, info) in array.parts.iter().enumerate().filter(|(_, info)| info.objects.folder().is_none())
        {
            let key = info.objects.identity();
            match key.and_then(|store| ArrayKey::new(&store, &info.name, info.metadata_version())) {
                Some(key) => _ = arrays.insert((number, part), key),
                None => log_once(&format!(
                    "{}: not kept in cache_dir, because nothing tells whether its metadata change between runs: a store needs entity tags that are not weak",
                    info.context()
                )),
            }
        }
    }
    arrays
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, array, wait_until};
    use super::*;

    use std::path::Path;

    use rustix::fs::{FlockOperation, flock};

    const PART: (usize, usize) = (0, 0);

    /// The cache of a reader, which may have `cache_bytes` bytes on the disk and `queue_bytes` bytes that wait.
    fn reader(parent: &Path, cache_bytes: u64, queue_bytes: u64) -> DiskCache {
        let options = DiskCacheOptions { folder: parent.to_str().unwrap().into(), bytes: cache_bytes };
        let arrays = HashMap::from([(PART, array("one"))]);
        DiskCache::open(&options, arrays, queue_bytes, Arc::default()).unwrap()
    }

    /// A lock on a folder with which no reader writes to it until the lock is dropped.
    fn locked(parent: &Path) -> CacheFolder {
        let folder = CacheFolder::open(parent.to_str().unwrap(), 0).unwrap();
        flock(&folder.folder, FlockOperation::NonBlockingLockExclusive).unwrap();
        folder
    }

    /// Keeps an object of 1000 bytes.
    fn keep(cache: &DiskCache, key: &str) {
        cache.keep(PART, key, None, &answer(1000), [(Extent::Whole, 0..1000)].into_iter());
    }

    /// The bytes that a cache has of a part of an object, and whether they are in a file.
    fn found(
        cache: &DiskCache,
        key: &str,
        extent: &Extent,
        expected: Option<&Version>,
    ) -> Option<(Vec<u8>, bool)> {
        let Located::At { blob, range } = cache.find(PART, key, extent, expected)? else { panic!("absent") };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        blob.read_at(range.start, &mut bytes).unwrap();
        Some((bytes, blob.is_in_disk_cache()))
    }

    /// Whether an object is found, and whether in a file.
    fn place(cache: &DiskCache, key: &str) -> Option<bool> {
        found(cache, key, &Extent::Whole, None).map(|(_, is_in_file)| is_in_file)
    }

    #[test]
    fn what_waits_to_be_written_is_found_by_all_readers_of_the_process() {
        let parent = tempfile::tempdir().unwrap();
        let lock = locked(parent.path());
        let (one, other) = (reader(parent.path(), 1 << 20, 1 << 20), reader(parent.path(), 1 << 20, 1 << 20));
        let object = answer(1000);
        let mut all = vec![0; 1000];
        object.read_at(0, &mut all).unwrap();
        let (version, inner, index) = (&object.head.version, Extent::Range(200..700), Extent::Suffix(100));
        keep(&one, "c/0");
        one.keep(PART, "c/1", Some(version), &object, [(inner.clone(), 200..700)].into_iter());
        one.keep(PART, "c/1", None, &object, [(index.clone(), 900..1000)].into_iter());
        for is_in_file in [false, true] {
            for cache in [&one, &other] {
                let counted =
                    || (cache.counters.disk_cache_hits.get(), cache.counters.disk_cache_misses.get());
                let before = counted();
                assert_eq!(found(cache, "c/0", &Extent::Whole, None), Some((all.clone(), is_in_file)));
                let bytes = all[200..700].to_vec();
                assert_eq!(found(cache, "c/1", &inner, Some(version)), Some((bytes, is_in_file)));
                let of_index = Some((all[900..].to_vec(), object.head.clone()));
                assert_eq!(cache.read(PART, "c/1", &index), Some(of_index));
                assert_eq!(counted(), (before.0 + 3, before.1));
                // Neither another version nor other bytes.
                let newer = Version::ETag("\"w\"".into());
                for (extent, expected) in [
                    (inner.clone(), Some(&newer)),
                    (inner.clone(), None),
                    (Extent::Range(200..701), Some(version)),
                    (Extent::Whole, None),
                ] {
                    assert_eq!(found(cache, "c/1", &extent, expected), None);
                }
                assert_eq!(counted(), (before.0 + 3, before.1 + 4));
            }
            flock(&lock.folder, FlockOperation::Unlock).unwrap();
            let written = |cache: &DiskCache| cache.queue.is_idle();
            wait_until(|| written(&one) && written(&other));
        }
    }

    #[test]
    fn what_was_dropped_is_absent() {
        let parent = tempfile::tempdir().unwrap();
        let lock = locked(parent.path());
        // The queue has room for one, the disk too.
        let (one, other) = (reader(parent.path(), 4096, 1500), reader(parent.path(), 4096, 1500));
        keep(&one, "c/0");
        keep(&one, "c/1");
        keep(&other, "c/2");
        assert_eq!(["c/0", "c/1", "c/2"].map(|key| place(&other, key)), [Some(false), None, Some(false)]);
        // A reader that ends drops what it cannot write in time.
        drop(other);
        assert_eq!(["c/0", "c/2"].map(|key| place(&one, key)), [Some(false), None]);
        flock(&lock.folder, FlockOperation::Unlock).unwrap();
        wait_until(|| one.queue.is_idle());
        keep(&one, "c/3");
        wait_until(|| one.queue.is_idle());
        assert_eq!(["c/0", "c/3"].map(|key| place(&one, key)), [Some(true), None]);
        assert_eq!(one.counters.disk_cache_dropped.get(), 2);
    }

    #[test]
    fn an_error_of_the_disk_drops_what_waits() {
        let parent = tempfile::tempdir().unwrap();
        let lock = locked(parent.path());
        let (one, other) = (reader(parent.path(), 1 << 20, 1 << 20), reader(parent.path(), 1 << 20, 1 << 20));
        keep(&one, "c/0");
        assert_eq!(place(&other, "c/0"), Some(false));
        std::fs::remove_dir_all(one.folder.path()).unwrap();
        flock(&lock.folder, FlockOperation::Unlock).unwrap();
        wait_until(|| one.folder.is_off() && one.queue.is_idle());
        assert_eq!((place(&one, "c/0"), place(&other, "c/0")), (None, None));
        assert_eq!(one.counters.disk_cache_dropped.get(), 1);
    }

    #[test]
    fn what_was_handed_over_counts_as_memory_of_the_queue_until_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let lock = locked(parent.path());
        let cache = reader(parent.path(), 1 << 20, 1500);
        keep(&cache, "c/0");
        let held = cache.find(PART, "c/0", &Extent::Whole, None);
        flock(&lock.folder, FlockOperation::Unlock).unwrap();
        wait_until(|| place(&cache, "c/0") == Some(true));
        keep(&cache, "c/1");
        assert_eq!(cache.counters.disk_cache_dropped.get(), 1);
        drop(held);
        wait_until(|| cache.queue.is_idle());
        keep(&cache, "c/1");
        wait_until(|| place(&cache, "c/1") == Some(true));
    }
}
