//! Read chunks that were found valid, so that they need not be checked again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A read chunk in one version of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u64);

impl Identity {
    /// Identity of the read chunk at `cell` of the array and part `array`, in version `file_version` of its file.
    pub fn new(array: (usize, usize), cell: &[u64], file_version: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (array, cell, file_version).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The chunks of a reader that were found valid.
///
/// Checking zstd frames before nvCOMP decodes them costs a third of its speed (benches/NOTES.md), and every epoch reads
/// the same files.
#[derive(Debug, Default)]
pub struct VerifiedChunks(Mutex<HashSet<Identity>>);

impl VerifiedChunks {
    /// The most chunks that are remembered, at about 16 bytes each. Further chunks are checked every time.
    const MAX: usize = 4 << 20;

    /// Whether `chunk` was found valid before.
    pub fn contains(&self, chunk: Identity) -> bool {
        self.lock().contains(&chunk)
    }

    /// Remembers `chunks` as valid.
    pub fn extend(&self, chunks: impl Iterator<Item = Identity>) {
        let mut verified = self.lock();
        for chunk in chunks {
            if verified.len() < Self::MAX {
                verified.insert(chunk);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Identity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_of_a_changed_file_has_another_identity() {
        let verified = VerifiedChunks::default();
        let chunk = Identity::new((0, 1), &[2, 3], 7);
        verified.extend([chunk].into_iter());
        assert!(verified.contains(Identity::new((0, 1), &[2, 3], 7)));
        for other in [
            Identity::new((0, 1), &[2, 3], 8),
            Identity::new((1, 0), &[2, 3], 7),
            Identity::new((0, 1), &[3, 2], 7),
        ] {
            assert!(!verified.contains(other));
        }
    }
}
