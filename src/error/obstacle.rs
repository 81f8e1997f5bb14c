//! What stands in the way of the bytes of a store.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// What stands in the way of a file, beside what the system says. The text ends with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// An object that may not be read with the credentials that were given, or that is absent in a store that may not be listed.
    Forbidden {
        /// The store and what it said, without secrets.
        problem: String,
        /// What to do if the object is there.
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
    /// A zip file, or an entry of one, that cannot be read.
    Zip {
        /// Why.
        problem: &'static str,
    },
    /// A file that is too short for a zip archive.
    TooShortForZip {
        /// Its length.
        file_bytes: u64,
    },
    /// References, or one of them, that cannot be read.
    References {
        /// Why, and what to do.
        problem: String,
    },
    /// A repository of Icechunk, or a part of one, that cannot be read.
    Icechunk {
        /// Why.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An object that lies outside of a store, which names it.
    Target {
        /// Its URL or path, without secrets.
        url: String,
        /// Why it cannot be read, and what to do.
        problem: String,
    },
    /// An entry of the cache on the local disk that cannot be used; the store has its bytes.
    DiskCache {
        /// Why.
        problem: String,
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
            Self::Forbidden { problem, remedy } => write!(
                f,
                "{problem}; {remedy}; or the object is absent and there is no permission to list the store (if that is sure, missing_chunks=\"fill-403\" reads the fill value)"
            ),
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
            Self::Zip { problem } => write!(
                f,
                "the zip file cannot be read, {problem}; write it again, with entries that are stored without compression (zip -0, or zarr.storage.ZipStore)"
            ),
            Self::TooShortForZip { file_bytes: 0 } => f.write_str(
                "the file is empty and not a zip archive; write it again, or check its path or URL",
            ),
            Self::TooShortForZip { file_bytes } => write!(
                f,
                "the file has {file_bytes} bytes, too few for a zip archive; it is cut short or something else: write it again, or check its path or URL"
            ),
            Self::References { problem } => write!(f, "the references cannot be read, {problem}"),
            Self::Icechunk { problem, remedy } => {
                write!(f, "the Icechunk repository cannot be read, {problem}; {remedy}")
            }
            Self::Target { url, problem } => write!(f, "what it refers to, \"{url}\": {problem}"),
            Self::DiskCache { problem } => {
                write!(f, "its entry in the disk cache cannot be used, {problem}; remove the folder that cache_dir names")
            }
            Self::TooLarge { bytes, most_bytes } => write!(
                f,
                "it has {bytes} bytes, and no more than {most_bytes} are read of metadata; the file is damaged, write it again"
            ),
        }
    }
}

impl std::error::Error for Obstacle {}

impl Obstacle {
    /// What stands in the way, if an error says it.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Whether an error says that a store forbids to read an object, which may be absent.
    pub fn is_forbidden(error: &io::Error) -> bool {
        matches!(Self::of(error), Some(Self::Forbidden { .. }))
    }

    /// An error about an object that is known to be there: that it may not be read is no sign that it is absent.
    pub fn of_present(error: io::Error) -> io::Error {
        let Some(Self::Forbidden { problem, .. }) = Self::of(&error) else { return error };
        let remedy = "the object is there and may not be read; check the credentials and whether it was archived or deleted";
        io::Error::new(error.kind(), Self::Request { problem: problem.clone(), remedy })
    }
}

impl From<Obstacle> for io::Error {
    fn from(obstacle: Obstacle) -> Self {
        // Never `NotFound`: what stands in the way is there.
        Self::other(obstacle)
    }
}
