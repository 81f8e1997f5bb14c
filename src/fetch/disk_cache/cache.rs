//! The cache of a reader: finds entries, and hands over what is to become one.

use super::cached::CachedEntry;
use super::entry::{ArrayKey, EntryKey, Header};
use super::folder::CacheFolder;
use super::writer::{Item, WriteQueue, Writer};
use crate::dataset::Dataset;
use crate::error::log_once;
use crate::fetch::request::Received;
use crate::fetch::{Blob, Located};
use crate::options::DiskCacheOptions;
use crate::stats::Counters;
use crate::store::{Extent, Head, Version};

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The cache on the local disk, for the arrays of a reader.
pub struct DiskCache {
    folder: Arc<CacheFolder>,
    /// Of the arrays that can be cached, by array and part.
    arrays: HashMap<(usize, usize), ArrayKey>,
    queue: Arc<WriteQueue>,
    writer: Option<JoinHandle<()>>,
    /// What the stores said is absent, for as long as this reader runs.
    absent: Mutex<HashSet<u128>>,
    counters: Arc<Counters>,
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
        let mut arrays = HashMap::new();
        for (number, array) in dataset.arrays.iter().enumerate() {
            for (part, info) in
                array.parts.iter().enumerate().filter(|(_, info)| info.objects.folder().is_none())
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
        if arrays.is_empty() {
            return Ok(None);
        }
        let folder = Arc::new(CacheFolder::open(&options.folder, options.bytes)?);
        let queue = Arc::new(WriteQueue::new(queue_bytes));
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
        Ok(Some(Self { folder, arrays, queue, writer, absent: Mutex::default(), counters }))
    }

    /// What is known of a part of an object of an array: its bytes as an entry, or that the object is absent. `expected` is the version of
    /// the object if that is known before its bytes are.
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
            Some((entry, range)) => Located::At { blob: Arc::new(entry), range },
        })
    }

    /// All bytes of a small part of an object, as of the index of a sharded chunk, read on the calling thread. `Some(None)` if the object is
    /// absent.
    pub fn read(&self, part: (usize, usize), key: &str, extent: &Extent) -> Option<Option<(Vec<u8>, Head)>> {
        let Some((entry, _)) = self.look_up(part, key, extent, None)? else { return Some(None) };
        let read = entry.read_whole();
        if read.is_none() {
            entry.discard();
        }
        read.map(Some)
    }

    /// The entry of a part of an object and which bytes it has, `Some(None)` for an object that is absent.
    fn look_up(
        &self,
        part: (usize, usize),
        key: &str,
        extent: &Extent,
        expected: Option<&Version>,
    ) -> Option<Option<(CachedEntry, Range<u64>)>> {
        let key = self.arrays.get(&part)?.entry(key, extent, expected)?;
        if self.absent.lock().unwrap_or_else(PoisonError::into_inner).contains(&key.id) {
            return Some(None);
        }
        let entry = self.entry(key, extent);
        let counter = match &entry {
            Some(_) => &self.counters.disk_cache_hits,
            None => &self.counters.disk_cache_misses,
        };
        counter.add(1);
        entry.map(Some)
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

    /// The entry of a key if it is there, and which bytes it has. Those of a suffix count from 0 on.
    fn entry(&self, key: EntryKey, extent: &Extent) -> Option<(CachedEntry, Range<u64>)> {
        if self.folder.is_off() {
            return None;
        }
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
        let start = received.range.start;
        let entry = |(extent, range): (Extent, Range<u64>)| {
            let key = array.entry(key, &extent, expected).filter(|_| !range.is_empty())?;
            Some((key, range.start.checked_sub(start)?..range.end.checked_sub(start)?))
        };
        let entries: Vec<_> = extents.filter_map(entry).collect();
        let count = entries.len() as u64;
        let item = Item { head: received.head.clone(), parts: received.parts.clone(), entries };
        if !self.queue.push(item) {
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
