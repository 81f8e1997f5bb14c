//! What is asked for, and what comes.

use crate::memory;
use crate::store::{Extent, Head, Store, Version};

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of which store.
    pub store: Arc<dyn Store>,
    /// Key of the object.
    pub key: String,
    /// Which of its bytes.
    pub extent: Extent,
    /// The version that the object has to have, if an earlier answer told it.
    pub version: Option<Version>,
    /// Bytes that the answer will probably have. Memory is reserved for them before the request is sent.
    pub expected_bytes: u64,
    /// The length that the object has in all probability. Parts of a large one are asked for at once then.
    pub likely_bytes: Option<u64>,
    /// The most bytes that the answer can have.
    pub most_bytes: u64,
    /// Whether an answer for the object has begun before: it is there.
    pub was_present: bool,
    /// Number of the batch that needs the answer first. Requests of earlier batches are sent first.
    pub batch: u64,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Received {
    /// Where the bytes are in the object.
    pub range: Range<u64>,
    /// The object.
    pub head: Head,
    /// The bytes.
    pub(super) parts: Arc<Parts>,
    /// Counts the memory of the bytes until it is dropped with the answer.
    pub(super) _memory: Box<dyn Any + Send + Sync>,
}

/// Bytes as they came: one piece behind the other.
#[derive(Debug)]
pub struct Parts(pub Vec<Bytes>);

impl Parts {
    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|part| part.len() as u64).sum()
    }

    /// The bytes of a range piece by piece, fewer if there are fewer.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = &[u8]> {
        let mut end = 0;
        self.0.iter().filter_map(move |part| {
            let start = end;
            end += part.len() as u64;
            let within = |at: u64| (at.clamp(start, end) - start) as usize;
            part.get(within(range.start)..within(range.end)).filter(|piece| !piece.is_empty())
        })
    }
}

impl Received {
    /// The same bytes once more, with something else that counts their memory until it is dropped.
    pub fn counted_by(&self, memory: impl Any + Send + Sync) -> Self {
        let Self { range, head, parts, .. } = self;
        let (range, head, parts) = (range.clone(), head.clone(), parts.clone());
        Self { range, head, parts, _memory: Box::new(memory) }
    }

    /// The bytes of a range of the object piece by piece, fewer if there are fewer.
    pub fn pieces(&self, range: &Range<u64>) -> impl Iterator<Item = &[u8]> {
        let within = |at: u64| at.saturating_sub(self.range.start);
        self.parts.pieces(within(range.start)..within(range.end))
    }

    /// Copies the bytes from `offset` of the object on.
    ///
    /// # Errors
    /// `UnexpectedEof` for bytes that were not asked for.
    pub fn read_at(&self, offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        let start = offset.checked_sub(self.range.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        for piece in self.parts.pieces(start..start.saturating_add(into.len() as u64)) {
            let (now, rest) = into.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            into = rest;
        }
        if into.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// All of the bytes.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        memory::reserve(&mut bytes, self.parts.bytes()).map_err(io::Error::other)?;
        self.parts.0.iter().for_each(|part| bytes.extend_from_slice(part));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_read_as_one(
            lengths in prop::collection::vec(0usize..20, 0..6), start in 0u64..100, offset in 0u64..140, bytes in 0usize..60,
        ) {
            let all: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|i| i as u8).collect();
            let mut rest = all.as_slice();
            let piece = |length: &usize| Bytes::from(rest.split_off(..*length).unwrap().to_vec());
            let parts = lengths.iter().map(piece).collect();
            let range = start..start + all.len() as u64;
            let head = Head { object_bytes: 1000, version: Version::Immutable };
            let parts = Arc::new(Parts(parts));
            let received = Received { range, head, parts, _memory: Box::new(()) };
            let mut found = vec![0; bytes];
            let read = received.read_at(offset, &mut found);
            let range = received.range.clone();
            let inside = offset >= range.start && (bytes == 0 || offset + bytes as u64 <= range.end);
            prop_assert_eq!(read.is_ok(), inside);
            if inside && bytes > 0 {
                let from = (offset - start) as usize;
                prop_assert_eq!(&found, &all[from..from + bytes]);
            }
            prop_assert_eq!(received.into_bytes().unwrap(), all);
        }
    }
}
