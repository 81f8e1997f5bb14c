//! The entries that wait to be written. Until an entry is written or dropped, readers of this process take its bytes from memory.

use super::entry::EntryKey;
use super::folder::CacheFolder;
use crate::fetch::request::Received;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The pending entries of a cache folder, by the text of their keys. All readers of this process that use the folder share them.
#[derive(Default)]
pub struct PendingEntries(Mutex<HashMap<String, Pending>>);

/// Bytes that wait to be written.
#[derive(Clone)]
pub struct Pending {
    /// The answer that they are a part of.
    pub answer: Arc<Received>,
    /// Where they are in the object.
    pub range: Range<u64>,
}

/// An answer and the entries to make of it. They are pending until [`Item::finish`], or until the item is dropped.
pub struct Item {
    /// The answer.
    pub answer: Arc<Received>,
    /// Keys of the entries, and which bytes of the object they have.
    pub entries: Vec<(EntryKey, Range<u64>)>,
    pending: Arc<PendingEntries>,
}

/// The process that uses a folder, and device and inode of the folder.
type FolderId = (u32, u64, u64);

impl PendingEntries {
    /// The pending entries of a folder, whichever path it was opened with. A forked process does not get those of its parent: only the
    /// parent has the thread that writes them.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(folder: &CacheFolder) -> io::Result<Arc<Self>> {
        let found = rustix::fs::fstat(&folder.folder)?;
        Ok(Self::shared((std::process::id(), found.st_dev, found.st_ino)))
    }

    fn shared(id: FolderId) -> Arc<Self> {
        static OPEN: Mutex<Vec<(FolderId, Weak<PendingEntries>)>> = Mutex::new(vec![]);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, entries)| entries.strong_count() > 0);
        let found = open.iter().find(|(other, _)| *other == id).and_then(|(_, entries)| entries.upgrade());
        found.unwrap_or_else(|| {
            let new = Arc::default();
            open.push((id, Arc::downgrade(&new)));
            new
        })
    }

    /// The bytes of an entry, if it is pending.
    pub fn find(&self, key: &EntryKey) -> Option<Pending> {
        self.lock().get(&key.text).cloned()
    }

    /// Notes an entry. If two answers have the bytes of one entry, the later answer is found.
    fn insert(&self, key: &EntryKey, pending: Pending) {
        self.lock().insert(key.text.clone(), pending);
    }

    /// Removes an entry, unless another answer has replaced its bytes.
    fn remove(&self, key: &EntryKey, answer: &Arc<Received>) {
        let mut entries = self.lock();
        if entries.get(&key.text).is_some_and(|pending| Arc::ptr_eq(&pending.answer, answer)) {
            entries.remove(&key.text);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Item {
    /// Notes the entries as pending.
    pub fn new(answer: Received, entries: Vec<(EntryKey, Range<u64>)>, pending: Arc<PendingEntries>) -> Self {
        let answer = Arc::new(answer);
        for (key, range) in &entries {
            pending.insert(key, Pending { answer: answer.clone(), range: range.clone() });
        }
        Self { answer, entries, pending }
    }

    /// Ends the wait of an entry, which is on the disk now or was dropped.
    pub fn finish(&self, key: &EntryKey) {
        self.pending.remove(key, &self.answer);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.entries.iter().for_each(|(key, _)| self.finish(key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, array, key};
    use super::*;

    #[test]
    fn an_entry_is_pending_until_it_is_finished_or_its_item_is_dropped() {
        let (array, pending) = (array("one"), Arc::new(PendingEntries::default()));
        let entries = |numbers: Range<u64>| numbers.map(|n| (key(&array, n), n..n + 1)).collect();
        let found = |n| pending.find(&key(&array, n)).map(|found| found.range);
        let first = Item::new(answer(9), entries(0..3), pending.clone());
        assert_eq!([0, 1, 2, 3].map(found), [Some(0..1), Some(1..2), Some(2..3), None]);
        first.finish(&key(&array, 1));
        assert_eq!([0, 1, 2].map(found), [Some(0..1), None, Some(2..3)]);
        // A second answer for two of them: the end of the first item does not end its wait.
        let second = Item::new(answer(9), entries(1..3), pending.clone());
        first.finish(&key(&array, 1));
        drop(first);
        assert_eq!([0, 1, 2].map(found), [None, Some(1..2), Some(2..3)]);
        drop(second);
        assert_eq!([0, 1, 2].map(found), [None, None, None]);
    }

    #[test]
    fn readers_of_a_process_share_the_pending_entries_of_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let path = parent.path().join(name);
            let folder = CacheFolder::open(path.to_str().unwrap(), 1 << 20).unwrap();
            (PendingEntries::of(&folder).unwrap(), folder)
        };
        let (one, folder) = of("a");
        std::os::unix::fs::symlink(parent.path().join("a"), parent.path().join("link")).unwrap();
        assert!(Arc::ptr_eq(&one, &of("link").0) && !Arc::ptr_eq(&one, &of("b").0));
        let found = rustix::fs::fstat(&folder.folder).unwrap();
        let of_process = |id: u32| PendingEntries::shared((id, found.st_dev, found.st_ino));
        assert!(Arc::ptr_eq(&one, &of_process(std::process::id())));
        assert!(!Arc::ptr_eq(&one, &of_process(std::process::id() + 1)));
    }
}
