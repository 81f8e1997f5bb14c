//! Folders of this machine's file systems.
//!
//! Whoever wrote a store may have put anything in the place of a file. Opening a named pipe waits for a writer, and opening a
//! device can do something, so that a path is looked at before it is opened, and what was opened is looked at again.
//!
//! Only what is not there counts as missing. A symbolic link that leads nowhere is there: the disk behind it may not be mounted.

use super::stamp::Stamp;
use crate::error::Obstacle;

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// The folder of a store, of which keys are paths.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Where it really is, if links must not lead out of it.
    confines: Option<PathBuf>,
    /// So many files in a row were not there.
    missing: AtomicU32,
}

impl Folder {
    /// Reads of a file that changed meanwhile, until its writer is taken to go on without end.
    const MOST_READS: usize = 10;
    /// After this many absent files in a row the next one is expected to be absent too.
    const EXPECTED: u32 = 8;

    /// A folder. With `follow_links` links may lead anywhere, else nowhere out of it; it may be a link itself.
    ///
    /// # Errors
    /// What the system says of the path.
    pub fn new(path: &Path, follow_links: bool) -> io::Result<Self> {
        let confines = if follow_links { None } else { Some(path.canonicalize()?) };
        Ok(Self { path: path.into(), confines, missing: AtomicU32::new(0) })
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The stamp of the file that a key names, without opening it. `None` if there is none.
    ///
    /// # Errors
    /// What stands in the way of a regular file.
    pub fn stamp(&self, key: &str) -> io::Result<Option<Stamp>> {
        self.look(key, &self.path.join(key))
    }

    /// [`Folder::stamp`] of the path of a key.
    fn look(&self, key: &str, path: &Path) -> io::Result<Option<Stamp>> {
        let missing = self.missing.load(Ordering::Relaxed);
        // Of an array with few chunks each question costs as much as all that is done with a small chunk.
        if missing >= Self::EXPECTED && is_missing_without_links(path) {
            return Ok(None);
        }
        let found = match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => follow(path)?,
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.missing.store(missing.saturating_add(1), Ordering::Relaxed);
                return self.check_missing(Path::new(key)).map(|()| None);
            }
            Err(error) => return Err(error),
        };
        if missing > 0 {
            self.missing.store(0, Ordering::Relaxed);
        }
        Stamp::of(&found).map(Some)
    }

    /// Opens the file that a key names, for reading; its stamp is another one once somebody has written to it. `None` if
    /// there is none.
    ///
    /// A file that was just written to is waited for, so that a later write cannot fall into the same tick of the file system's
    /// clock.
    ///
    /// # Errors
    /// What stands in the way of a regular file, or that somebody writes to it all the time.
    pub fn open(&self, key: &str) -> io::Result<Option<(File, Stamp)>> {
        let path = self.path.join(key);
        if self.look(key, &path)?.is_none() {
            return Ok(None);
        }
        let file = match open(&path) {
            // Removed since then.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.check_missing(Path::new(key)).map(|()| None);
            }
            opened => opened?,
        };
        if self.confines.is_some() {
            // What is open stays the same, whatever becomes of its path.
            let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
            let real = std::fs::read_link(opened).or_else(|_| path.canonicalize())?;
            self.check_inside(Path::new(key), &real)?;
        }
        let mut stamp = Stamp::of(&file.metadata()?)?;
        for _ in 0..Self::MOST_READS {
            let Some(wait) = stamp.unsettled(SystemTime::now()) else { return Ok(Some((file, stamp))) };
            std::thread::sleep(wait);
            let before = std::mem::replace(&mut stamp, Stamp::of(&file.metadata()?)?);
            if stamp == before {
                return Ok(Some((file, stamp)));
            }
        }
        Err(Obstacle::Written.into())
    }

    /// Names of the folders in a folder, in no order, and what tells that folder from others.
    ///
    /// # Errors
    /// What stands in the way of the folder.
    pub fn folders(&self, key: &str) -> io::Result<(Vec<String>, (u64, u64))> {
        let path = self.path.join(key);
        if self.confines.is_some() {
            self.check_inside(Path::new(key), &path.canonicalize()?)?;
        }
        let found = path.metadata()?;
        let mut names = vec![];
        for entry in path.read_dir()? {
            let entry = entry?;
            if entry.path().is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok((names, (found.dev(), found.ino())))
    }

    /// Checks that what is not there is missing: that no link on the way to it leads nowhere, or out of the folder.
    fn check_missing(&self, key: &Path) -> io::Result<()> {
        let mut parent = key.parent();
        while let Some(folder) = parent.filter(|folder| !folder.as_os_str().is_empty()) {
            let path = self.path.join(folder);
            match path.symlink_metadata() {
                Ok(found) => {
                    if found.is_symlink() {
                        follow(&path)?;
                    }
                    if self.confines.is_some() {
                        self.check_inside(folder, &path.canonicalize()?)?;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::NotFound => parent = folder.parent(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks that what a key names and is really elsewhere is in the folder, if it has to be.
    fn check_inside(&self, key: &Path, real: &Path) -> io::Result<()> {
        let Some(confines) = self.confines.as_ref().filter(|confines| !real.starts_with(confines)) else {
            return Ok(());
        };
        let mut link = self.path.clone();
        for component in key.components() {
            link.push(component);
            let leaves = link.is_symlink() && !link.canonicalize()?.starts_with(confines);
            if leaves {
                break;
            }
        }
        let target = link.read_link().unwrap_or_else(|_| real.into());
        Err(Obstacle::LinkLeaves { link, target }.into())
    }
}

/// What a link leads to.
fn follow(link: &Path) -> io::Result<Metadata> {
    link.metadata().map_err(|error| match (error.kind(), link.read_link()) {
        (ErrorKind::NotFound, Ok(target)) => Obstacle::DanglingLink { link: link.into(), target }.into(),
        _ => error,
    })
}

/// Whether nothing is at a path, and no link was met on the way. False too where the system cannot be asked.
fn is_missing_without_links(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all of its fields may be 0.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    // SAFETY: path and description are alive, and the size is the description's. With O_PATH nothing is opened for reading.
    let found = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size_of_val(&how))
    };
    match i32::try_from(found) {
        Ok(descriptor) if descriptor >= 0 => {
            // SAFETY: it was just opened, and belongs to nobody else.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            false
        }
        _ => io::Error::last_os_error().kind() == ErrorKind::NotFound,
    }
}

/// Opens what was a regular file a moment ago, without waiting for a pipe that may have taken its place.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        // Somebody holds a lease on the file, such as a file server; the system asks for it back, which takes a while.
        Err(error) if error.kind() == ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Version;

    use std::time::Duration;

    use std::os::unix::fs::symlink;

    fn store() -> (tempfile::TempDir, Folder) {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("store");
        std::fs::create_dir_all(root.join("a/c")).unwrap();
        std::fs::write(root.join("a/c/0"), "chunk").unwrap();
        let folder = Folder::new(&root, true).unwrap();
        (parent, folder)
    }

    fn read_whole(folder: &Folder, key: &str, most_bytes: u64) -> io::Result<Option<(Vec<u8>, Version)>> {
        futures::executor::block_on(crate::store::read_whole(folder, key, most_bytes))
    }

    fn obstacle(result: io::Result<impl Sized>) -> String {
        let error = result.err().expect("an obstacle");
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Obstacle>()), "{error}");
        error.to_string()
    }

    fn fifo(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (_parent, folder) = store();
        let path = |key: &str| folder.path().join(key);
        fifo(&path("a/c/1"));
        let _socket = std::os::unix::net::UnixListener::bind(path("a/c/2")).unwrap();
        symlink("/dev/tty", path("a/c/3")).unwrap();
        symlink("1", path("a/c/4")).unwrap();
        for (key, what) in [
            ("a/c/1", "FIFO"),
            ("a/c/2", "a socket"),
            ("a/c/3", "a character device"),
            ("a/c/4", "FIFO"),
            ("a/c", "a folder"),
        ] {
            for text in [
                obstacle(folder.open(key)),
                obstacle(read_whole(&folder, key, 9)),
                obstacle(folder.stamp(key)),
            ] {
                assert!(text.contains(what), "{key}: {text}");
            }
        }
        // What takes the place of a file that was looked at is not waited for.
        assert!(Stamp::of(&open(&path("a/c/1")).unwrap().metadata().unwrap()).is_err());
        assert_eq!(read_whole(&folder, "a/c/0", 5).unwrap().unwrap().0, b"chunk");
        assert!(obstacle(read_whole(&folder, "a/c/0", 4)).contains("5 bytes"));
    }

    #[test]
    fn what_is_behind_a_link_that_leads_nowhere_is_not_missing() {
        let (parent, folder) = store();
        let path = |key: &str| folder.path().join(key);
        assert!(folder.open("a/c/7").unwrap().is_none());
        assert!(folder.open("b/c/d/7").unwrap().is_none());
        symlink("/nowhere/7", path("a/c/7")).unwrap();
        std::fs::create_dir(parent.path().join("disk")).unwrap();
        symlink("../disk", path("b")).unwrap();
        assert!(obstacle(folder.open("a/c/7")).contains("\"/nowhere/7\""));
        assert!(folder.open("b/c/7").unwrap().is_none());
        std::fs::remove_dir(parent.path().join("disk")).unwrap();
        for key in ["b/7", "b/c/d/7"] {
            let text = obstacle(folder.open(key));
            assert!(text.contains("store/b\"") && text.contains("\"../disk\""), "{text}");
        }
        // Also where files are expected to be missing.
        for _ in 0..20 {
            assert!(folder.open("a/c/8").unwrap().is_none());
            assert!(folder.open("e/c/8").unwrap().is_none());
        }
        assert!(obstacle(folder.open("a/c/7")).contains("\"/nowhere/7\""));
        for _ in 0..20 {
            assert!(folder.open("a/c/8").unwrap().is_none());
        }
        assert!(obstacle(folder.open("b/7")).contains("\"../disk\""));
        for _ in 0..20 {
            assert!(folder.open("a/c/8").unwrap().is_none());
        }
        assert!(folder.open("a/c/0/0").is_err());
        assert!(folder.open("a/c/0").unwrap().is_some());
        // A file in the place of a folder is no missing chunk.
        assert!(folder.open("a/c/0/0").is_err());
    }

    #[test]
    fn links_stay_in_the_folder_if_they_have_to() {
        let (parent, free) = store();
        let outside = parent.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("0"), "others").unwrap();
        std::fs::write(parent.path().join("store-too"), "others").unwrap();
        symlink(free.path(), parent.path().join("link")).unwrap();
        let confined = Folder::new(&parent.path().join("link"), false).unwrap();
        let path = |key: &str| free.path().join(key);
        symlink("0", path("a/c/1")).unwrap();
        symlink(path("a/c/0"), path("a/c/2")).unwrap();
        symlink("a", path("b")).unwrap();
        symlink(&outside, path("d")).unwrap();
        symlink("../../../store-too", path("a/c/3")).unwrap();
        for key in ["a/c/0", "a/c/1", "a/c/2", "b/c/0"] {
            assert_eq!(read_whole(&confined, key, 9).unwrap().unwrap().0, b"chunk", "{key}");
        }
        assert!(confined.open("a/c/9").unwrap().is_none());
        for (key, target) in [("d/0", "outside"), ("d/9", "outside"), ("a/c/3", "../../../store-too")] {
            let text = obstacle(confined.open(key));
            assert!(text.contains(target) && text.contains("follow_links"), "{text}");
            free.open(key).unwrap();
        }
        assert!(confined.folders("d").is_err());
        assert_eq!(confined.folders("b").unwrap().0, ["c"]);
    }

    #[test]
    fn a_file_is_open_when_its_clock_has_gone_on() {
        let (_parent, folder) = store();
        let path = folder.path().join("a/c/0");
        for round in 0..20 {
            std::fs::write(&path, vec![round; 8]).unwrap();
            let (file, stamp) = folder.open("a/c/0").unwrap().unwrap();
            // In the tick of the first write it would have the same stamp.
            std::fs::write(&path, vec![!round; 8]).unwrap();
            assert_ne!(Stamp::of(&file.metadata().unwrap()).unwrap(), stamp, "round {round}");
        }
    }

    #[test]
    fn a_writer_that_goes_on_is_not_waited_for_without_end() {
        let (_parent, folder) = store();
        let path = folder.path().join("a/c/0");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::fs::write(&path, "other").unwrap();
                }
            });
            // On a busy machine the writer may pause.
            let since = std::time::Instant::now();
            let mut attempts = std::iter::repeat_with(|| folder.open("a/c/0").err());
            let mut attempts = attempts.by_ref().take_while(|_| since.elapsed() < Duration::from_secs(60));
            let refused = attempts.find_map(|refused| refused);
            stop.store(true, Ordering::Relaxed);
            assert!(refused.is_some_and(|error| error.to_string().contains("written to")));
        });
    }
}
