//! The folder of the cache: how many bytes are in it, who uses it, and how entries come and go.
//!
//! Locks are those of `flock` and belong to open files, so that they end with their process. On the folder itself: shared by all that write
//! to it, exclusive for who counts it anew. On the folder of an array: shared by those that read the array, exclusive for who evicts it. On
//! `usage`: exclusive, for as long as a number is read and written.

use super::entry::EntryKey;
use crate::error::{Obstacle, log_once};

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{self, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The open folder of a cache.
pub struct CacheFolder {
    path: PathBuf,
    pub(super) folder: OwnedFd,
    /// Of this process only one thread has it at a time, which the lock on the file cannot see.
    usage: Mutex<File>,
    most_bytes: u64,
    /// Whether files without a name cannot be had here.
    names_first: AtomicBool,
    /// Numbers the files that had to have a name before they were complete.
    named: AtomicU64,
    off: AtomicBool,
}

/// Whether there is room for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It is reserved.
    Reserved,
    /// There is none.
    Full,
    /// Somebody else has the lock.
    Busy,
}

/// Bytes that a file counts for: whole blocks, as most file systems give them.
pub fn counted(file_bytes: u64) -> u64 {
    const BLOCK: u64 = 4096;
    file_bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// Begins the name of a file that is not complete.
pub const INCOMPLETE: &str = "incomplete-";

impl CacheFolder {
    /// What all of this lies in, below the folder that the user gave. Other formats get other names.
    const NAME: &str = "zarr-dali-1";
    const USAGE: &str = "usage";
    const MAGIC: [u8; 8] = *b"usage  1";
    /// This part of the file system is left free, at most [`CacheFolder::MOST_FREE`].
    const FREE_SHARE: u64 = 20;
    const MOST_FREE: u64 = 10 << 30;
    /// How often a lock is asked for that is held for some microseconds only, and the time between.
    const ATTEMPTS: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(1);

    /// Opens the cache in a folder, which is made if it is not there, for at most `most_bytes` bytes of entries.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(parent: &str, most_bytes: u64) -> io::Result<Self> {
        let path = Path::new(parent).join(Self::NAME);
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let folder = fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let usage = fs::openat(&folder, Self::USAGE, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self {
            path,
            folder,
            usage: Mutex::new(usage.into()),
            most_bytes,
            names_first: AtomicBool::new(false),
            named: AtomicU64::new(0),
            off: AtomicBool::new(false),
        })
    }

    /// Checks that entries can be made and locked in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// What the system says.
    pub fn check(parent: &str, most_bytes: u64) -> io::Result<()> {
        let cache = Self::open(parent, most_bytes)?;
        let is_held = |error: &Errno| *error == Errno::WOULDBLOCK;
        match fs::flock(&cache.folder, FlockOperation::NonBlockingLockShared) {
            Err(error) if !is_held(&error) => return Err(error.into()),
            _ => fs::flock(&cache.folder, FlockOperation::Unlock)?,
        }
        let name = cache.next_name();
        cache.write_as(&cache.folder, ".", &name, &[])?;
        match fs::unlinkat(&cache.folder, &name, AtFlags::empty()) {
            // Another process that measures the folder has removed the file.
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Writes as where files without a name cannot be had.
    #[cfg(test)]
    pub(super) fn give_names_first(&self) {
        self.names_first.store(true, Ordering::Relaxed);
    }

    /// Its path.
    #[cfg(test)]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is not used any more.
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Uses the folder no longer, because of an error of the disk.
    pub fn turn_off(&self, error: &io::Error) {
        if !self.off.swap(true, Ordering::Relaxed) {
            log_once(&format!(
                "the disk cache \"{}\" is not used any more ({error}): chunks come from their store; check the disk and whether the folder was removed",
                self.path.display()
            ));
        }
    }

    /// Length of the file of an entry. `None` if there is none.
    ///
    /// # Errors
    /// What else the system says.
    pub fn file_bytes(&self, key: &EntryKey) -> io::Result<Option<u64>> {
        match fs::statat(&self.folder, &key.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found.st_size as u64)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens an entry.
    ///
    /// # Errors
    /// `NotFound` if it is gone, and what else the system says.
    pub fn open_entry(&self, key: &EntryKey) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(fs::openat(&self.folder, &key.path, flags, Mode::empty())?.into())
    }

    /// Removes an entry that cannot be used. It counts until the folder is counted anew, because who does so may be at it.
    pub fn discard(&self, key: &EntryKey) {
        let _ = fs::unlinkat(&self.folder, &key.path, AtFlags::empty());
    }

    /// Reserves room for that many bytes if the bound and the file system have it.
    ///
    /// # Errors
    /// What the system says, or that `usage` was removed.
    pub fn reserve(&self, bytes: u64) -> io::Result<Room> {
        let space = fs::fstatvfs(&self.folder)?;
        let kept = (space.f_blocks.saturating_mul(space.f_frsize) / Self::FREE_SHARE).min(Self::MOST_FREE);
        if space.f_bavail.saturating_mul(space.f_frsize) < kept.saturating_add(bytes) {
            return Ok(Room::Full);
        }
        let mut room = Room::Full;
        let reserved = self.change(|used| {
            let fits = used.checked_add(bytes).filter(|used| *used <= self.most_bytes);
            room = if fits.is_some() { Room::Reserved } else { Room::Full };
            fits
        })?;
        Ok(if reserved { room } else { Room::Busy })
    }

    /// Gives room back. What cannot be given back counts until the folder is counted anew.
    pub fn release(&self, bytes: u64) {
        let _ = self.change(|used| Some(used.saturating_sub(bytes)));
    }

    /// Bytes by which there are more than there may be. `None` if it is not known how many there are.
    pub(super) fn excess(&self) -> io::Result<Option<u64>> {
        let mut excess = None;
        self.change(|used| {
            excess = Some(used.saturating_sub(self.most_bytes));
            None
        })?;
        Ok(excess)
    }

    /// Sets how many bytes there are.
    pub(super) fn set_used(&self, bytes: u64) -> io::Result<()> {
        let usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.write_all_at(&[Self::MAGIC, bytes.to_le_bytes()].concat(), 0)
    }

    /// Changes how many bytes there are to what `change` makes of it. Returns false if the lock was not had, or the number is not there.
    fn change(&self, change: impl FnOnce(u64) -> Option<u64>) -> io::Result<bool> {
        let usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let _locked = match Locked::exclusive(&*usage)? {
            Some(locked) => locked,
            None => return Ok(false),
        };
        if usage.metadata()?.nlink() == 0 {
            return Err(io::Error::other("its file \"usage\" was removed"));
        }
        let mut bytes = [0; 16];
        match usage.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        let (magic, number) = bytes.split_at(8);
        let Ok(number) = number.try_into().map(u64::from_le_bytes) else { return Ok(false) };
        if magic != Self::MAGIC {
            return Ok(false);
        }
        if let Some(number) = change(number) {
            usage.write_all_at(&number.to_le_bytes(), 8)?;
        }
        Ok(true)
    }

    /// Writes an entry below the open folder of its array; `name` is the rest of its path. Room for it was reserved. Returns false
    /// if it was there already.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, array: &OwnedFd, name: &str, pieces: &[&[u8]]) -> io::Result<bool> {
        let (folder, _) = name.split_once('/').unwrap_or((".", name));
        match self.write_as(array, folder, name, pieces) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match fs::mkdirat(array, folder, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => self.write_as(array, folder, name, pieces),
                    Err(error) => Err(error.into()),
                }
            }
            written => written,
        }
    }

    fn write_as(&self, at: &OwnedFd, folder: &str, name: &str, pieces: &[&[u8]]) -> io::Result<bool> {
        if !self.names_first.load(Ordering::Relaxed) {
            match write_without_name(at, folder, name, pieces) {
                Err(error) if lacks_files_without_names(&error) => {
                    self.names_first.store(true, Ordering::Relaxed);
                }
                written => return written,
            }
        }
        self.write_under_another_name(at, folder, name, pieces)
    }

    /// Writes a file under a name of its own and renames it. If the process is killed in between, who counts the folder removes the file.
    fn write_under_another_name(
        &self,
        at: &OwnedFd,
        folder: &str,
        name: &str,
        pieces: &[&[u8]],
    ) -> io::Result<bool> {
        let other = format!("{folder}/{}", self.next_name());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(fs::openat(at, &other, flags, Mode::RUSR | Mode::WUSR)?);
        let renamed = write_all(&file, pieces).and_then(|()| Ok(fs::renameat(at, &other, at, name)?));
        if renamed.is_err() {
            let _ = fs::unlinkat(at, &other, AtFlags::empty());
        }
        renamed.map(|()| true)
    }

    fn next_name(&self) -> String {
        let number = self.named.fetch_add(1, Ordering::Relaxed);
        format!("{INCOMPLETE}{}-{}-{number}", std::process::id(), self.folder.as_raw_fd())
    }
}

/// A lock that ends with this value.
struct Locked<F: AsFd>(F);

impl<F: AsFd> Locked<F> {
    /// An exclusive lock that nobody holds for long. `None` if somebody does all the same.
    fn exclusive(file: F) -> io::Result<Option<Self>> {
        for _ in 0..CacheFolder::ATTEMPTS {
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(file))),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(CacheFolder::PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

impl<F: AsFd> Drop for Locked<F> {
    fn drop(&mut self) {
        let _ = fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Writes a file that has no name before it is complete, so that none is left of a process that is killed. Returns false if there is
/// a file of that name.
fn write_without_name(at: &OwnedFd, folder: &str, name: &str, pieces: &[&[u8]]) -> io::Result<bool> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = File::from(fs::openat(at, folder, flags, Mode::RUSR | Mode::WUSR)?);
    write_all(&file, pieces)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match fs::linkat(CWD, path, at, name, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        // Without /proc.
        Err(Errno::NOENT) => Err(io::Error::from(Errno::OPNOTSUPP)),
        Err(error) => Err(error.into()),
    }
}

fn lacks_files_without_names(error: &io::Error) -> bool {
    let errors = [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL, Errno::NOSYS];
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

fn write_all(file: &File, pieces: &[&[u8]]) -> io::Result<()> {
    let mut offset = 0;
    for piece in pieces {
        file.write_all_at(piece, offset)?;
        offset += piece.len() as u64;
    }
    Ok(())
}

/// An entry that cannot be used, which is no matter of the store.
pub fn unusable(problem: impl Into<String>) -> io::Error {
    Obstacle::DiskCache { problem: problem.into() }.into()
}
