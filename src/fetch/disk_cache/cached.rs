//! The bytes of an entry, for the thread that decodes them.

use super::entry::{EntryKey, Header};
use super::folder::{CacheFolder, unusable};
use crate::fetch::Blob;
use crate::fetch::posix::{Counted, is_in_page_cache, may_stay_open, will_need};
use crate::stats::Counters;
use crate::store::Head;

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use once_cell::sync::OnceCell;

/// An entry in place of the object that it is a part of. It is opened when it is read, and its bytes are compared with their checksum as they are
/// read from the first to the last.
pub struct CachedEntry {
    folder: Arc<CacheFolder>,
    key: EntryKey,
    /// Which bytes of the object it has.
    range: Range<u64>,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    opened: Option<Arc<Opened>>,
    /// What was read from the first byte on: where it ends in the object, and its checksum.
    read: Option<(u64, u32)>,
}

struct Opened {
    file: File,
    /// Read when the bytes are, and not when they are prefetched: it waits for the disk.
    header: OnceCell<Header>,
    _counted: Counted,
}

impl CachedEntry {
    /// The entry of a key, which has these bytes of its object.
    pub fn new(folder: Arc<CacheFolder>, key: EntryKey, range: Range<u64>, counters: Arc<Counters>) -> Self {
        Self { folder, key, range, counters, state: Mutex::default() }
    }

    /// All of its bytes, and what it says of the object. `None` if it cannot be used.
    pub fn read_whole(&self) -> Option<(Vec<u8>, Head)> {
        let mut bytes = vec![];
        crate::memory::grow(&mut bytes, self.range.end - self.range.start).ok()?;
        self.read_at(self.range.start, &mut bytes).ok()?;
        let opened = self.opened().ok()?;
        let Header { object_bytes, version, .. } = self.header_of(&opened).ok()?.clone();
        Some((bytes, Head { object_bytes, version }))
    }

    fn opened(&self) -> io::Result<Arc<Opened>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &state.opened {
            return Ok(opened.clone());
        }
        let file = self.folder.open_entry(&self.key).map_err(|error| self.failed(&error))?;
        let opened = Arc::new(Opened { file, header: OnceCell::new(), _counted: Counted::new() });
        if may_stay_open() {
            state.opened = Some(opened.clone());
        }
        Ok(opened)
    }

    fn header_of<'a>(&self, opened: &'a Opened) -> io::Result<&'a Header> {
        opened.header.get_or_try_init(|| {
            let mut header = [0; Header::BYTES];
            opened.file.read_exact_at(&mut header, 0).map_err(|error| self.failed(&error))?;
            let header = Header::decode(&header, &self.key, self.range.end - self.range.start);
            header.ok_or_else(|| unusable("its header is damaged, or that of another entry"))
        })
    }

    fn failed(&self, error: &io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::NotFound => unusable("it was evicted"),
            ErrorKind::UnexpectedEof => unusable("it is cut short"),
            _ => {
                self.folder.turn_off(error);
                unusable(error.to_string())
            }
        }
    }

    fn in_file(&self, range: &Range<u64>) -> Range<u64> {
        let offset = |at: u64| at.saturating_sub(self.range.start) + Header::BYTES as u64;
        offset(range.start)..offset(range.end)
    }

    /// Adds bytes that were read to the checksum, which is compared behind the last.
    fn check(&self, offset: u64, bytes: &[u8], expected: u32) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if offset == self.range.start { Some((offset, 0)) } else { state.read };
        // Bytes that are read in another order cannot be compared with the checksum as they come.
        let Some((_, checksum)) = before.filter(|(end, _)| *end == offset) else {
            return Err(unusable("its bytes were read out of order"));
        };
        let read = (offset + bytes.len() as u64, crc32c::crc32c_append(checksum, bytes));
        state.read = Some(read);
        match read {
            (end, checksum) if end == self.range.end && checksum != expected => {
                Err(unusable("its bytes do not have their checksum"))
            }
            _ => Ok(()),
        }
    }
}

impl Blob for CachedEntry {
    fn len(&self) -> u64 {
        self.range.end
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let opened = self.opened();
        match opened.as_deref().ok().and_then(|opened| self.header_of(opened).ok()) {
            Some(header) => header.version.hash(&mut hasher),
            // Nothing was read that has to be told from anything.
            None => std::ptr::from_ref(self).hash(&mut hasher),
        }
        hasher.finish()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        /// The processor's cache still holds that many bytes when their checksum is made.
        const PIECE: usize = 256 << 10;
        let opened = self.opened()?;
        let checksum = self.header_of(&opened)?.checksum;
        let bytes = into.len() as u64;
        let mut at = offset;
        // An empty piece at the end makes that no bytes are compared, too.
        for piece in into.chunks_mut(PIECE).chain([&mut [][..]]) {
            let range = self.in_file(&(at..at + piece.len() as u64));
            opened.file.read_exact_at(piece, range.start).map_err(|error| {
                if error.kind() != ErrorKind::UnexpectedEof {
                    self.folder.turn_off(&error);
                }
                unusable(error.to_string())
            })?;
            self.check(at, piece, checksum)?;
            at += piece.len() as u64;
        }
        self.counters.disk_cache_bytes_read.add(bytes);
        Ok(())
    }

    fn check_unchanged(&self) -> io::Result<()> {
        // Nobody writes to an entry that has a name, and its checksum says so.
        Ok(())
    }

    fn is_cached(&self, range: &Range<u64>) -> bool {
        self.opened().map_or(true, |opened| is_in_page_cache(&opened.file, &self.in_file(range)))
    }

    fn will_need(&self, range: Range<u64>) {
        if let Ok(opened) = self.opened() {
            // With the header.
            will_need(&opened.file, &(0..self.in_file(&range).end));
        }
    }

    fn may_stay_open(&self) -> bool {
        may_stay_open()
    }

    fn is_in_disk_cache(&self) -> bool {
        true
    }

    fn discard(&self) {
        self.counters.disk_cache_discarded.add(1);
        self.folder.discard(&self.key);
    }
}
