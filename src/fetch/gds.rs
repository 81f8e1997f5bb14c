//! Files that cuFile reads to the GPU; headers and what is small are read with `pread`.

use super::cufile::{Driver, Handle};
use super::posix::OpenFile;
use super::{Blob, Fetch};
use crate::error::log_once;
use crate::store::Folder;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

/// Opens files for cuFile and keeps the most recent ones, because making a file known to it takes long.
pub struct Gds {
    driver: Arc<Driver>,
    /// A file that cuFile cannot read is an error, in place of being read otherwise.
    strict: bool,
    files: Mutex<LruCache<PathBuf, Arc<GdsFile>>>,
}

struct GdsFile {
    /// First, so that it goes before the file is closed.
    handle: Option<Handle>,
    file: OpenFile,
}

impl Gds {
    /// Open files that are kept; the usual limit on open files is 1024.
    const OPEN_FILES: NonZeroUsize = NonZeroUsize::new(256).unwrap();

    /// Over cuFile's driver.
    pub fn new(driver: Arc<Driver>, strict: bool) -> Self {
        Self { driver, strict, files: Mutex::new(LruCache::new(Self::OPEN_FILES)) }
    }

    fn files(&self) -> MutexGuard<'_, LruCache<PathBuf, Arc<GdsFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch for Gds {
    fn open(&self, folder: &Folder, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
        let path = folder.path().join(key);
        let known = self.files().get(&path).cloned();
        if let Some(known) = known
            && folder.stamp(key)? == Some(known.file.stamp())
        {
            return Ok(Some(known));
        }
        let Some(file) = OpenFile::open(folder, key)? else { return Ok(None) };
        wait_for_reads(file.file())?;
        let handle = match self.driver.file(file.file()) {
            Ok(handle) => Some(handle),
            Err(problem) if self.strict => {
                return Err(io::Error::other(format!("{problem}; give io=\"auto\" or io=\"posix\"")));
            }
            Err(problem) => {
                log_once(&format!(
                    "files below \"{}\" are read without cuFile: {problem}",
                    folder.path().display()
                ));
                None
            }
        };
        let file = Arc::new(GdsFile { handle, file });
        // Closing a file takes long, too.
        let evicted = self.files().push(path, file.clone());
        drop(evicted);
        Ok(Some(file))
    }
}

/// Takes back that reading must not wait, with which files are opened: cuFile is given plain ones.
fn wait_for_reads(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; the call changes nothing but its flags.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Blob for GdsFile {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn version(&self) -> u64 {
        self.file.version()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, into)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.file.check_unchanged()
    }

    fn cufile(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }
}
