//! What tells the bytes of a file from those that it had before.

use crate::error::Obstacle;

use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What tells a file and its bytes from others: all of it stays as it is as long as nobody writes to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    /// Changes with the time of modification, and cannot be set.
    changed: (i64, i64),
}

impl Stamp {
    /// Nobody is writing to a file that has had its stamp for so long. Clocks of file systems go on at least 100 times a second, and a
    /// single write, which changes the stamp when it begins, was seen to take more than 20 ms on a busy machine.
    const SETTLED: Duration = Duration::from_millis(100);
    /// Some file systems count whole seconds.
    const SECOND: Duration = Duration::from_secs(1);
    /// A server's clock may be ahead of this machine's. Further ahead a stamp is no time of writing.
    const MOST_AHEAD: Duration = Duration::from_secs(60);

    /// That of a file.
    ///
    /// # Errors
    /// What it is, if it is no regular file.
    pub fn of(metadata: &Metadata) -> io::Result<Self> {
        if !metadata.is_file() {
            return Err(Obstacle::NotAFile(kind(metadata.file_type())).into());
        }
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether an open file of which this was the stamp still has the same bytes, to judge by what the system says of it now.
    ///
    /// # Errors
    /// What it is, if it is no regular file.
    pub fn holds(&self, now: &Metadata) -> io::Result<bool> {
        let found = Self::of(now)?;
        // A file that was replaced or removed keeps its bytes for those who have it open. That changes nothing but `changed`.
        let unlinked = now.nlink() == 0 && Self { changed: self.changed, ..found } == *self;
        Ok(unlinked || found == *self)
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// When the file was written to, in seconds since 1970.
    pub(super) fn modified_s(&self) -> i64 {
        self.modified.0
    }

    /// What others take for the file's entity tag: `object_store`, and so Icechunk's writers.
    pub(super) fn entity_tag(&self) -> String {
        let (seconds, nanoseconds) = self.modified;
        let microseconds = i128::from(seconds) * 1_000_000 + i128::from(nanoseconds / 1000);
        format!("\"{:x}-{:x}-{:x}\"", self.inode, microseconds.max(0), self.len)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long to wait until a write to the file gives it another stamp: the file system's clock has to go on. `None`
    /// if it has.
    pub(super) fn unsettled(&self, now: SystemTime) -> Option<Duration> {
        let (seconds, nanoseconds) = self.changed;
        let since_epoch = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        let changed = UNIX_EPOCH.checked_add(since_epoch)?;
        let granularity = if nanoseconds == 0 { Self::SECOND } else { Self::SETTLED };
        match now.duration_since(changed) {
            Ok(age) => granularity.checked_sub(age).filter(|wait| !wait.is_zero()),
            Err(ahead) => (ahead.duration() <= Self::MOST_AHEAD).then_some(granularity),
        }
    }
}

fn kind(found: FileType) -> &'static str {
    match found {
        found if found.is_dir() => "a folder",
        found if found.is_fifo() => "a named pipe (FIFO)",
        found if found.is_socket() => "a socket",
        found if found.is_char_device() => "a character device",
        found if found.is_block_device() => "a block device",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_just_written_is_waited_for() {
        let stamp = |changed| Stamp { device: 0, inode: 0, len: 0, modified: (0, 0), changed };
        let at = |milliseconds| UNIX_EPOCH + Duration::from_millis(milliseconds);
        let waits = |changed, now| stamp(changed).unsettled(at(now)).map(|wait| wait.as_millis());
        assert_eq!(waits((9, 5_000_000), 9_010), Some(95));
        assert_eq!(waits((9, 5_000_000), 9_105), None);
        // Whole seconds.
        assert_eq!(waits((9, 0), 9_400), Some(600));
        assert_eq!(waits((9, 0), 10_000), None);
        // Of a clock that is ahead, and no time at all.
        assert_eq!(waits((10, 5_000_000), 9_000), Some(100));
        assert_eq!(waits((1_000, 5_000_000), 9_000), None);
        assert_eq!(waits((-1, 0), 9_000), None);
    }
}
