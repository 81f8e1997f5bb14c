//! Files that cuFile reads to the GPU; headers and what is small are read with `pread`.

use super::cufile::{Driver, Handle};
use super::posix::OpenFile;
use super::{Blob, Fetch};
use crate::error::log_once;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Opens files for cuFile and keeps the most recent ones, because making a file known to it takes long.
pub struct Gds {
    driver: Arc<Driver>,
    /// A file that cuFile cannot read is an error, in place of being read otherwise.
    strict: bool,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    known: HashMap<PathBuf, Arc<GdsFile>>,
    oldest_first: VecDeque<PathBuf>,
}

struct GdsFile {
    /// First, so that it goes before the file is closed.
    handle: Option<Handle>,
    file: OpenFile,
}

impl Gds {
    /// Open files that are kept; the usual limit on open files is 1024.
    const OPEN_FILES: usize = 256;

    /// Over cuFile's driver.
    pub fn new(driver: Arc<Driver>, strict: bool) -> Self {
        Self { driver, strict, files: Mutex::default() }
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch for Gds {
    fn open(&self, root: &Path, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
        let path = root.join(key);
        let known = self.files().known.get(&path).cloned();
        if let Some(known) = known
            && known.file.is_that_of(&path)?
        {
            return Ok(Some(known));
        }
        let Some(file) = OpenFile::open(&path)? else { return Ok(None) };
        let handle = match self.driver.file(file.file()) {
            Ok(handle) => Some(handle),
            Err(problem) if self.strict => {
                return Err(io::Error::other(format!("{problem}; give io=\"auto\" or io=\"posix\"")));
            }
            Err(problem) => {
                log_once(&format!("files below \"{}\" are read without cuFile: {problem}", root.display()));
                None
            }
        };
        let file = Arc::new(GdsFile { handle, file });
        let mut files = self.files();
        if files.known.insert(path.clone(), file.clone()).is_none() {
            files.oldest_first.push_back(path);
        }
        let gone = match files.oldest_first.len() > Self::OPEN_FILES {
            true => files.oldest_first.pop_front().and_then(|oldest| files.known.remove(&oldest)),
            false => None,
        };
        drop(files);
        drop(gone);
        Ok(Some(file))
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
