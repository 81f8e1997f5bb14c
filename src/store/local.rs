//! Folders of this machine's file systems.
//!
//! Whoever wrote a store may have put anything in the place of a file. Opening a named pipe waits for a writer, and opening a
//! device can do something, so that a path is looked at before it is opened, and what was opened is looked at again.
//!
//! Only what is not there counts as missing. A symbolic link that leads nowhere is there: the disk behind it may not be mounted.

use super::{Body, Extent, Head, Listing, Store, Version};

use std::ffi::CString;
use std::fmt;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};

/// The folder of a store, of which keys are paths.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Where it really is, if links must not lead out of it.
    confines: Option<PathBuf>,
    /// So many files in a row were not there.
    missing: AtomicU32,
}

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

/// What stands in the way of a file, beside what the system says. The text ends with the remedy.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Something other than a regular file.
    NotAFile(&'static str),
    /// A link that leads nowhere.
    DanglingLink {
        /// The link.
        link: PathBuf,
        /// Where it should lead.
        target: PathBuf,
    },
    /// A link out of the store's folder, where that is not allowed.
    LinkLeaves {
        /// The link.
        link: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// Somebody writes to the file.
    Written,
    /// A request that a store did not answer as it should.
    Request {
        /// The store and what it said, without secrets.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An object that is not the one any more that was read before.
    Changed,
    /// Bytes that an object does not have.
    OutOfRange {
        /// The bytes that were asked for.
        range: Range<u64>,
        /// Length of the object.
        object_bytes: u64,
    },
    /// A store that stopped sending before all bytes had come.
    CutShort {
        /// The bytes that it announced.
        expected_bytes: u64,
        /// The bytes that came.
        received_bytes: u64,
    },
    /// A store that sent more bytes than it had announced.
    Overlong {
        /// The bytes that it announced.
        expected_bytes: u64,
    },
    /// A chunk that is longer than its codecs can make it.
    LongerThanEncoded {
        /// Its bytes.
        bytes: u64,
        /// The most that the codecs make.
        most_bytes: u64,
    },
    /// A file that is larger than it can be.
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most that are read.
        most_bytes: u64,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAFile(what) => write!(f, "it is {what}, not a regular file; write the file again"),
            Self::DanglingLink { link, target } => write!(
                f,
                "{link:?} is a symbolic link to {target:?}, where nothing is; mount or restore what it leads to"
            ),
            Self::LinkLeaves { link, target } => write!(
                f,
                "{link:?} is a symbolic link to {target:?}, which is not in the store's folder; copy what it leads to, or give follow_links=True for a store that you trust"
            ),
            Self::Written => f.write_str(
                "the file was written to while it was read; read it when its writer has finished, or write another file and rename it",
            ),
            Self::Request { problem, remedy } => write!(f, "{problem}; {remedy}"),
            Self::Changed => f.write_str(
                "the object changed while it was read; build the pipeline again when its writer has finished",
            ),
            Self::OutOfRange { range, object_bytes } => write!(
                f,
                "bytes {}..{} end past its {object_bytes} bytes; the object is cut short, write it again",
                range.start, range.end
            ),
            Self::CutShort { expected_bytes, received_bytes } => write!(
                f,
                "only {received_bytes} of {expected_bytes} bytes came before the connection ended; check the network, and read again"
            ),
            Self::Overlong { expected_bytes } => write!(
                f,
                "more than the {expected_bytes} bytes came that were announced; check the server, or a proxy before it"
            ),
            Self::LongerThanEncoded { bytes, most_bytes } => write!(
                f,
                "it has {bytes} bytes, but the codecs of the array make at most {most_bytes} of a chunk; the object is damaged, write it again"
            ),
            Self::TooLarge { bytes, most_bytes } => write!(
                f,
                "it has {bytes} bytes, and no more than {most_bytes} are read of metadata; the file is damaged, write it again"
            ),
        }
    }
}

impl std::error::Error for Obstacle {}

impl From<Obstacle> for io::Error {
    fn from(obstacle: Obstacle) -> Self {
        // Never `NotFound`: what stands in the way is there.
        Self::other(obstacle)
    }
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

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long to wait until whoever writes to the file gives it another stamp: the file system's clock has to go on. `None`
    /// if it has.
    fn unsettled(&self, now: SystemTime) -> Option<Duration> {
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

impl Folder {
    /// A writer that goes on has written to a file so many times while it was waited for.
    const PATIENCE: usize = 10;
    /// When so many files in a row were not there, the next one is expected not to be there either.
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
        for _ in 0..Self::PATIENCE {
            let Some(wait) = stamp.unsettled(SystemTime::now()) else { return Ok(Some((file, stamp))) };
            std::thread::sleep(wait);
            let before = std::mem::replace(&mut stamp, Stamp::of(&file.metadata()?)?);
            if stamp == before {
                return Ok(Some((file, stamp)));
            }
        }
        Err(Obstacle::Written.into())
    }

    /// Reads a part of the file that a key names. `None` if there is none.
    fn answer(&self, key: &str, extent: &Extent, expected: Option<&Version>) -> io::Result<Option<Body>> {
        let Some((file, stamp)) = self.open(key)? else { return Ok(None) };
        let head = Head { object_bytes: stamp.len, version: Version::File(stamp) };
        if expected.is_some_and(|expected| *expected != head.version) {
            return Err(Obstacle::Changed.into());
        }
        let range = extent.range_in(stamp.len)?;
        // Read when the stream is asked, so that a file of any size can be asked for its length.
        let part = range.clone();
        let read = move || {
            let mut bytes = crate::memory::zeroed(part.end - part.start).map_err(io::Error::other)?;
            let read = file.read_exact_at(&mut bytes, part.start);
            // A file that was cut short meanwhile ends too early.
            if !stamp.holds(&file.metadata()?)? {
                return Err(Obstacle::Written.into());
            }
            read.map(|()| Bytes::from(bytes))
        };
        Ok(Some(Body { head, range, stream: stream::once(future::lazy(move |_| read())).boxed() }))
    }

    /// Names of the folders in a folder, in no order, and what tells that folder from others.
    ///
    /// # Errors
    /// What stands in the way of the folder.
    fn folders(&self, key: &str) -> io::Result<Listing> {
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
        Ok(Listing { names, identity: Some((found.dev(), found.ino())) })
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

impl Store for Folder {
    fn folder(&self) -> Option<&Folder> {
        Some(self)
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        future::ready(self.answer(key, &extent, expected)).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        let found = self.stamp(key);
        let head = |stamp: Stamp| Head { object_bytes: stamp.len, version: Version::File(stamp) };
        future::ready(found.map(|stamp| stamp.map(head))).boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        future::ready(self.folders(key)).boxed()
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
        assert_eq!(confined.folders("b").unwrap().names, ["c"]);
    }

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
