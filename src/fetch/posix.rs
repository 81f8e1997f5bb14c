//! Plain files through the page cache.

use super::{Blob, Fetch};

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Reads with `pread`.
#[derive(Debug, Default)]
pub struct Posix;

struct OpenFile {
    file: File,
    len: u64,
}

impl Fetch for Posix {
    fn open(&self, root: &Path, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
        let file = match File::open(root.join(key)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is not a regular file"));
        }
        Ok(Some(Arc::new(OpenFile { file, len: metadata.len() })))
    }
}

impl Blob for OpenFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}
