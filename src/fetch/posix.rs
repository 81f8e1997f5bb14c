//! Plain files through the page cache.

use super::{Blob, Fetch};
use crate::error::Obstacle;
use crate::store::{Folder, Stamp};

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads with `pread`.
#[derive(Debug, Default)]
pub struct Posix;

/// A regular file, and what it was like when it was opened.
pub struct OpenFile {
    file: File,
    stamp: Stamp,
    _counted: Counted,
}

/// An open file among those of all readers of the process, which share one limit with everything else in it.
pub(super) struct Counted;

impl Counted {
    pub fn new() -> Self {
        OPEN_FILES.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

static OPEN_FILES: AtomicUsize = AtomicUsize::new(0);

/// Whether a file that is not being read may stay open.
pub(super) fn may_stay_open() -> bool {
    OPEN_FILES.load(Ordering::Relaxed) < most_open()
}

/// Files that are not being read are kept open while there are fewer open ones: a quarter of what the process may have.
fn most_open() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it fills what it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known { (limit.rlim_cur / 4) as usize } else { 0 }
}

impl OpenFile {
    /// Opens a file. `None` if there is none.
    ///
    /// # Errors
    /// What else stands in the way.
    pub fn open(folder: &Folder, key: &str) -> io::Result<Option<Self>> {
        let opened = folder.open(key)?;
        Ok(opened.map(|(file, stamp)| Self { file, stamp, _counted: Counted::new() }))
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it was like.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Fetch for Posix {
    fn open(&self, folder: &Folder, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
        Ok(OpenFile::open(folder, key)?.map(|file| Arc::new(file) as Arc<dyn Blob>))
    }
}

impl Blob for OpenFile {
    fn len(&self) -> u64 {
        self.stamp.len()
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.stamp.hash(&mut hasher);
        hasher.finish()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(into, offset);
        // A file that was cut short meanwhile ends too early.
        self.check_unchanged()?;
        read
    }

    fn is_cached(&self, range: &Range<u64>) -> bool {
        is_in_page_cache(&self.file, range)
    }

    fn will_need(&self, range: Range<u64>) {
        will_need(&self.file, &range);
    }

    fn may_stay_open(&self) -> bool {
        may_stay_open()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        // A chunk that is replaced is another file; one that is written to in place would be read in part from before.
        match self.stamp.holds(&self.file.metadata()?)? {
            true => Ok(()),
            false => Err(Obstacle::Written.into()),
        }
    }
}

/// Whether a range of a file can be read without waiting for storage.
pub(super) fn is_in_page_cache(file: &File, range: &Range<u64>) -> bool {
    // Its first and last page may have been read with its neighbours.
    let offset = range.start + (range.end - range.start) / 2;
    let mut byte = 0u8;
    let into = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: there is room for the byte.
    let read = unsafe {
        libc::preadv2(file.as_raw_fd(), &raw const into, 1, offset as libc::off_t, libc::RWF_NOWAIT)
    };
    // Some file systems do not say, NFS among them. Announcing everything there would cost where all is in memory.
    read >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
}

/// Announces that a range of a file will be read soon.
pub(super) fn will_need(file: &File, range: &Range<u64>) {
    /// The system takes no more at once than it would read ahead; this is the least that is usual.
    const STEP: u64 = 128 << 10;
    let mut start = range.start;
    while start < range.end {
        // To whole steps in the file, so that each page is in one of them.
        let end = (start / STEP * STEP).saturating_add(STEP).min(range.end);
        // SAFETY: it is a hint, and cannot do harm. Where it is not taken, the bytes are read later.
        unsafe {
            libc::posix_fadvise(
                file.as_raw_fd(),
                start as libc::off_t,
                (end - start) as libc::off_t,
                libc::POSIX_FADV_WILLNEED,
            );
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_is_read_as_it_was_and_one_that_is_written_to_is_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), true).unwrap();
        let (path, other) = (root.path().join("chunk"), root.path().join("other"));
        std::fs::write(&path, "before").unwrap();
        let file = OpenFile::open(&folder, "chunk").unwrap().unwrap();
        std::fs::write(&other, "behind").unwrap();
        std::fs::rename(&other, &path).unwrap();
        let mut bytes = [0; 6];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"before");
        let file = OpenFile::open(&folder, "chunk").unwrap().unwrap();
        std::fs::write(&path, "midway").unwrap();
        assert!(file.read_at(0, &mut bytes).unwrap_err().to_string().contains("written to"));
        let file = OpenFile::open(&folder, "chunk").unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"midway");
    }

    #[test]
    fn a_range_whose_neighbours_were_read_is_not_in_the_page_cache() {
        // Of 16 pages and more.
        const BYTES: u64 = 1 << 20;
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), true).unwrap();
        // A file that is not in the page cache, of which nothing is read but what is asked for.
        let cold = |name: &str| {
            std::fs::write(root.path().join(name), vec![1; BYTES as usize]).unwrap();
            let file = OpenFile::open(&folder, name).unwrap().unwrap();
            file.file().sync_all().unwrap();
            for advice in [libc::POSIX_FADV_DONTNEED, libc::POSIX_FADV_RANDOM] {
                // SAFETY: it is a hint.
                unsafe { libc::posix_fadvise(file.file().as_raw_fd(), 0, 0, advice) };
            }
            file
        };
        let range = 100..BYTES - 100;
        // Asking makes some systems read, so that each file is asked once.
        if cold("asked").is_cached(&range) {
            // A file system that is all memory.
            return;
        }
        // Advice is not an order, and what asking makes a system read may be there before it answers: one file of many is enough.
        let is_cold = |attempt: usize| {
            let file = cold(&format!("between-{attempt}"));
            file.read_at(0, &mut [0; 200]).unwrap();
            file.read_at(range.end - 100, &mut [0; 200]).unwrap();
            !file.is_cached(&range)
        };
        assert!((0..100).any(is_cold));
        let is_warm = |attempt: usize| {
            let file = cold(&format!("read-{attempt}"));
            file.read_at(range.start, &mut vec![0; (range.end - range.start) as usize]).unwrap();
            file.is_cached(&range)
        };
        assert!((0..100).any(is_warm));
    }
}
