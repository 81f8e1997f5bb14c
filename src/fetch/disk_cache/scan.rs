//! Looks through the folder of the cache: to count what is in it, and to evict what is used by nobody.

use super::folder::{CacheFolder, INCOMPLETE, counted};

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FlockOperation, Mode, OFlags, Timestamps};
use rustix::io::Errno;

/// Open folders of the arrays that are read, locked against being evicted.
pub struct InUse {
    /// Name and folder.
    pub arrays: Vec<(String, OwnedFd)>,
}

impl CacheFolder {
    /// Takes the locks that are needed to write entries of these arrays. Who is alone in the folder counts it first, and evicts what is too
    /// much. `None` if somebody counts or evicts, or nobody has counted yet: it can be tried again.
    ///
    /// # Errors
    /// What the system says.
    pub fn join(&self, arrays: &[String]) -> io::Result<Option<InUse>> {
        let joined = self.try_join(arrays);
        if !matches!(joined, Ok(Some(_))) {
            // Somebody else can be alone then.
            let _ = fs::flock(&self.folder, FlockOperation::Unlock);
        }
        joined
    }

    fn try_join(&self, arrays: &[String]) -> io::Result<Option<InUse>> {
        if had(fs::flock(&self.folder, FlockOperation::NonBlockingLockExclusive))? {
            self.set_used(self.count()?)?;
            if let Some(excess) = self.excess()?.filter(|&excess| excess > 0) {
                self.evict(excess, &[])?;
            }
        }
        if !had(fs::flock(&self.folder, FlockOperation::NonBlockingLockShared))? || self.excess()?.is_none() {
            return Ok(None);
        }
        let mut open = vec![];
        for name in arrays {
            match fs::mkdirat(&self.folder, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let folder = self.subfolder(&self.folder, name)?;
            if !had(fs::flock(&folder, FlockOperation::NonBlockingLockShared))? {
                return Ok(None);
            }
            // The folder that was used least recently is evicted first.
            let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
            fs::futimens(&folder, &Timestamps { last_access: now, last_modification: now })?;
            open.push((name.clone(), folder));
        }
        Ok(Some(InUse { arrays: open }))
    }

    /// Bytes of all entries. Removes files that were never completed, and the folders of arrays without entries; nobody writes.
    fn count(&self) -> io::Result<u64> {
        let mut used = 0u64;
        remove_incomplete(&self.folder)?;
        for array_name in names(&self.folder, 32)? {
            let array = self.subfolder(&self.folder, &array_name)?;
            let (before, folders) = (used, names(&array, 2)?);
            for name in &folders {
                let folder = self.subfolder(&array, name)?;
                remove_incomplete(&folder)?;
                for entry in names(&folder, 30)? {
                    used = used.saturating_add(counted_file(&folder, &entry));
                }
            }
            if used == before {
                folders.iter().for_each(|name| _ = fs::unlinkat(&array, name, AtFlags::REMOVEDIR));
                let _ = fs::unlinkat(&self.folder, &array_name, AtFlags::REMOVEDIR);
            }
        }
        Ok(used)
    }

    /// Evicts entries of arrays that nobody reads, those first that were read least recently, until `bytes` bytes are free again or there
    /// are none. Returns how many bytes that were.
    ///
    /// # Errors
    /// What the system says.
    pub fn evict(&self, bytes: u64, in_use: &[(String, OwnedFd)]) -> io::Result<u64> {
        let mut arrays = vec![];
        for name in
            names(&self.folder, 32)?.into_iter().filter(|name| in_use.iter().all(|(one, _)| one != name))
        {
            if let Ok(found) = fs::statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                arrays.push((found.st_mtime, found.st_mtime_nsec, name));
            }
        }
        arrays.sort();
        let mut evicted = 0u64;
        for (_, _, name) in arrays {
            let array = self.subfolder(&self.folder, &name)?;
            if !had(fs::flock(&array, FlockOperation::NonBlockingLockExclusive))? {
                continue;
            }
            for name in names(&array, 2)? {
                if evicted >= bytes {
                    return Ok(evicted);
                }
                let folder = self.subfolder(&array, &name)?;
                let mut gone = 0;
                for entry in names(&folder, 30)? {
                    let counted = counted_file(&folder, &entry);
                    if fs::unlinkat(&folder, &entry, AtFlags::empty()).is_ok() {
                        gone += counted;
                    }
                }
                self.release(gone);
                evicted = evicted.saturating_add(gone);
            }
        }
        Ok(evicted)
    }

    fn subfolder(&self, of: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(of, name, flags, Mode::empty())?)
    }
}

/// Whether a lock was had.
fn had(locked: rustix::io::Result<()>) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What an entry counts for; nothing if it is gone.
fn counted_file(folder: &OwnedFd, name: &str) -> u64 {
    let found = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.map_or(0, |found| counted(found.st_size as u64))
}

/// The names in a folder that have this length and are hexadecimal numbers.
fn names(folder: impl AsFd, length: usize) -> io::Result<Vec<String>> {
    let is_ours = |name: &str| name.len() == length && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(all_names(folder)?.into_iter().filter(|name| is_ours(name)).collect())
}

fn remove_incomplete(folder: &OwnedFd) -> io::Result<()> {
    for name in all_names(folder)?.iter().filter(|name| name.starts_with(INCOMPLETE)) {
        let _ = fs::unlinkat(folder, name, AtFlags::empty());
    }
    Ok(())
}

fn all_names(folder: impl AsFd) -> io::Result<Vec<String>> {
    let mut names = vec![];
    for entry in Dir::read_from(folder)? {
        names.extend(entry?.file_name().to_str().ok().map(str::to_string));
    }
    Ok(names)
}
