//! Writes entries on a thread of its own. What it cannot write soon is dropped: nobody waits for the disk.

use super::entry::{EntryKey, Header};
use super::folder::{CacheFolder, Room, counted};
use super::pending::{Item, PendingEntries};
use super::scan::InUse;
use crate::fetch::request::Received;
use crate::stats::Counters;
use crate::store::Head;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The items that wait to be written.
pub struct WriteQueue {
    state: Mutex<State>,
    changed: Condvar,
    pending: Arc<PendingEntries>,
    /// Bytes of the answers that wait, are being written, or were handed over and are not decoded yet.
    bytes: Arc<AtomicU64>,
    /// The most of them.
    most_bytes: u64,
}

/// Bytes that a queue counts until this is dropped.
struct Counted {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    /// There was no room then.
    full: Option<Instant>,
    /// What is not written by then is dropped, and the thread ends.
    ends: Option<Instant>,
}

impl WriteQueue {
    /// A cache that has no room is tried again after this time: other readers end, and files of others are removed.
    const LOOK_AGAIN: Duration = Duration::from_secs(30);
    /// How long a reader that ends waits for what it has not written yet.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
    /// Before locks that others have are tried again.
    const PAUSE: Duration = Duration::from_millis(20);

    /// An empty queue for at most `most_bytes` bytes. What it holds is noted in `pending`.
    pub fn new(most_bytes: u64, pending: Arc<PendingEntries>) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), pending, bytes: Arc::default(), most_bytes }
    }

    /// The entries that wait to be written.
    pub fn pending(&self) -> &PendingEntries {
        &self.pending
    }

    /// Queues entries, which have these bytes of the object of an answer, unless there is no room. Returns whether it did.
    pub fn push(&self, answer: &Received, entries: Vec<(EntryKey, Range<u64>)>) -> bool {
        let bytes = answer.parts.bytes();
        let mut state = self.lock();
        let is_full = state.full.is_some_and(|since| since.elapsed() < Self::LOOK_AGAIN);
        // One that is larger than all of the room waits alone.
        let counted = self.bytes.load(Ordering::Relaxed);
        let fits = counted == 0 || counted.saturating_add(bytes) <= self.most_bytes;
        if is_full || state.ends.is_some() || !fits {
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let counted = Counted { bytes, all: self.bytes.clone() };
        // The entries are pending before the thread that writes can take the item.
        state.items.push_back(Item::new(answer.counted_by(counted), entries, self.pending.clone()));
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Whether nothing is counted: all was written or dropped, and nobody has any of it.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Lets the thread write what it can within [`WriteQueue::FLUSH_TIMEOUT`] and end.
    pub fn close(&self) {
        self.lock().ends = Some(Instant::now() + Self::FLUSH_TIMEOUT);
        self.changed.notify_all();
    }

    /// Waits until there is something to write. False once the thread is to end.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.ends.is_some_and(|ends| Instant::now() >= ends || state.items.is_empty()) {
                return false;
            }
            if !state.items.is_empty() {
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the next item out.
    fn pop(&self) -> Option<Item> {
        self.lock().items.pop_front()
    }

    /// Drops all items, and takes none for a while. Returns how many entries that were.
    fn no_room(&self) -> u64 {
        let mut state = self.lock();
        state.full = Some(Instant::now());
        let dropped = std::mem::take(&mut state.items);
        drop(state);
        dropped.iter().map(|item| item.entries.len() as u64).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what is queued to a folder until the queue is closed.
pub struct Writer {
    /// The queue.
    pub queue: Arc<WriteQueue>,
    /// The folder of the cache.
    pub folder: Arc<CacheFolder>,
    /// Names of the folders of the arrays that are read.
    pub arrays: Vec<String>,
    /// The counters of the reader.
    pub counters: Arc<Counters>,
}

impl Writer {
    /// The work of the thread.
    pub fn run(self) {
        if let Err(error) = self.write_all() {
            self.folder.turn_off(&error);
        }
        self.dropped();
    }

    /// Writes nothing of what waits.
    fn dropped(&self) {
        self.counters.disk_cache_dropped.add(self.queue.no_room());
    }

    fn write_all(&self) -> io::Result<()> {
        // At once, so that who is alone counts before others come.
        let mut in_use = self.folder.join(&self.arrays)?;
        while self.queue.wait() && !self.folder.is_off() {
            let Some(in_use) = &in_use else {
                std::thread::sleep(WriteQueue::PAUSE);
                in_use = self.folder.join(&self.arrays)?;
                continue;
            };
            let Some(item) = self.queue.pop() else { continue };
            for (key, range) in &item.entries {
                let written = self.write(in_use, &item.answer, key, range)?;
                item.finish(key);
                self.counters.disk_cache_dropped.add(u64::from(!written));
            }
        }
        Ok(())
    }

    /// Writes an entry. Returns whether it is there then.
    fn write(
        &self,
        in_use: &InUse,
        answer: &Received,
        key: &EntryKey,
        range: &Range<u64>,
    ) -> io::Result<bool> {
        let bytes = range.end - range.start;
        let mut pieces: Vec<&[u8]> = answer.pieces(range).collect();
        let checksum = pieces.iter().fold(0, |checksum, piece| crc32c::crc32c_append(checksum, piece));
        let Head { object_bytes, version } = answer.head.clone();
        let Some(header) = (Header { checksum, object_bytes, version }).encode(key, bytes) else {
            return Ok(false);
        };
        let Some((array, name)) = key.path.split_once('/') else { return Ok(false) };
        let Some((_, array)) = in_use.arrays.iter().find(|(one, _)| one == array) else { return Ok(false) };
        if self.folder.file_bytes(key)?.is_some() {
            return Ok(true);
        }
        pieces.insert(0, &header);
        let needed = counted(header.len() as u64 + bytes);
        let mut room = self.folder.reserve(needed)?;
        if room == Room::Full && self.folder.evict(needed, &in_use.arrays)? > 0 {
            room = self.folder.reserve(needed)?;
        }
        match room {
            Room::Reserved => {}
            Room::Busy => return Ok(false),
            Room::Full => {
                self.dropped();
                return Ok(false);
            }
        }
        match self.folder.write(array, name, &pieces) {
            Ok(true) => {
                self.counters.disk_cache_bytes_written.add(bytes);
                Ok(true)
            }
            Ok(false) => {
                self.folder.release(needed);
                Ok(true)
            }
            Err(error) => {
                self.folder.release(needed);
                match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        self.dropped();
                        Ok(false)
                    }
                    _ => Err(error),
                }
            }
        }
    }
}
