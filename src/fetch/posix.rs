//! Plain files through the page cache.

use super::{Blob, Fetch};

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Reads with `pread`.
#[derive(Debug, Default)]
pub struct Posix;

struct OpenFile {
    file: File,
    version: Version,
}

/// What changes when somebody writes to a file.
#[derive(PartialEq, Eq, Hash)]
struct Version {
    len: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is not a regular file"));
        }
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { len: metadata.len(), inode: metadata.ino(), modified })
    }
}

impl Fetch for Posix {
    fn open(&self, root: &Path, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
        let file = match File::open(root.join(key)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let version = Version::of(&file)?;
        Ok(Some(Arc::new(OpenFile { file, version })))
    }
}

impl Blob for OpenFile {
    fn len(&self) -> u64 {
        self.version.len
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.version.hash(&mut hasher);
        hasher.finish()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)?;
        // A chunk that is replaced is another file; one that is written to in place would be read in part from before.
        if Version::of(&self.file)? != self.version {
            return Err(io::Error::other("the file was written to while it was read"));
        }
        Ok(())
    }
}
