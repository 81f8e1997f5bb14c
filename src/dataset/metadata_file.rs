//! The files that metadata are read from.

use crate::store::Version;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// The largest metadata file that is read, in bytes: that of an array has some kilobytes, consolidated metadata of many arrays
/// some megabytes.
pub(super) const MOST_METADATA_BYTES: u64 = 64 << 20;

/// The file that metadata were read from, and its version.
#[derive(Clone)]
pub(super) struct MetadataFile {
    pub key: String,
    /// The version that the file had when it was last seen with these bytes.
    pub version: Arc<Mutex<Version>>,
    /// Of its bytes, if they were read.
    pub digest: Option<u64>,
    /// The version, as they were read, of the bytes that say what is in the file: its own, or those of consolidated metadata.
    pub source: Version,
}

impl MetadataFile {
    pub fn new(key: String, version: Version, bytes: &[u8]) -> Self {
        Self {
            key,
            source: version.clone(),
            version: Arc::new(Mutex::new(version)),
            digest: Some(digest(bytes)),
        }
    }

    /// A file that consolidated metadata of the version `source` stand for, and that was not read. As long as it is there, so is its array.
    pub fn consolidated(key: String, source: Version) -> Self {
        Self { key, version: Arc::new(Mutex::new(Version::Immutable)), digest: None, source }
    }
}

pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
