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
    /// That of the file when it last had these bytes.
    pub version: Arc<Mutex<Version>>,
    /// Of its bytes.
    pub digest: u64,
}

impl MetadataFile {
    pub fn new(key: String, version: Version, bytes: &[u8]) -> Self {
        Self { key, version: Arc::new(Mutex::new(version)), digest: digest(bytes) }
    }
}

pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
