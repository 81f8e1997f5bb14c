//! Bytes that were fetched, for the thread that decodes them.

use super::Blob;
use super::request::Received;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that were fetched, in place of the object that they are a part of. Chunks that were asked for together share them.
pub struct FetchedBytes {
    /// The answer that they are in.
    pub answer: Arc<Received>,
    /// How many bytes of the answer were fetched for this chunk and for none before it.
    pub own_bytes: u64,
}

impl Blob for FetchedBytes {
    fn len(&self) -> u64 {
        self.answer.head.object_bytes
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.answer.head.version.hash(&mut hasher);
        hasher.finish()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.answer.read_at(offset, into)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }

    fn fetched_bytes(&self) -> u64 {
        self.own_bytes
    }

    fn in_memory(&self, range: &Range<u64>) -> Option<Vec<&[u8]>> {
        let pieces: Vec<_> = self.answer.pieces(range).collect();
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        (bytes as u64 == range.end - range.start).then_some(pieces)
    }

    fn answer_id(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.answer) as usize)
    }
}
