//! The encoded bytes of one chunk in its store.

use super::cufile::Handle;
use super::{Blob, Located};
use crate::error::{Context, Error, Result};
use crate::trace::{self, Stage};

use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A byte range of an open file: the encoded bytes of a chunk that the store has.
#[derive(Clone)]
pub struct Encoded {
    blob: Arc<dyn Blob>,
    range: Range<u64>,
}

impl Encoded {
    /// The bytes that were located; `None` for a chunk that is missing.
    pub fn located(located: Located) -> Option<Self> {
        match located {
            Located::At { blob, range } => Some(Self { blob, range }),
            Located::Missing => None,
        }
    }

    /// The file.
    pub fn blob(&self) -> &Arc<dyn Blob> {
        &self.blob
    }

    /// The range in the file.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Number of encoded bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// A number that changes when the file does.
    pub fn version(&self) -> u64 {
        self.blob.version()
    }

    /// Extends the range to contain that of `next`, which starts behind its start, if both touch in the same file. Returns whether
    /// they do.
    pub fn join(&mut self, next: &Self) -> bool {
        let touches = Arc::ptr_eq(&self.blob, &next.blob) && next.range.start <= self.range.end;
        if touches {
            self.range.end = self.range.end.max(next.range.end);
        }
        touches
    }

    /// Reads all bytes.
    ///
    /// # Errors
    /// What the system says. `at` is the place of the error.
    pub fn read(&self, into: &mut [u8], at: &Context) -> Result<()> {
        self.read_from(0, into, at)
    }

    /// Reads as many bytes as `into` holds, from byte `offset` of the chunk on.
    ///
    /// # Errors
    /// As [`Encoded::read`].
    pub fn read_from(&self, offset: u64, into: &mut [u8], at: &Context) -> Result<()> {
        let _range = trace::range(Stage::Fetch, into.len() as u64);
        self.blob
            .read_at(self.range.start + offset, into)
            .map_err(|source| Error::Io { at: at.clone(), source })
    }

    /// The bytes, piece by piece, if they are in memory for as long as this lives.
    pub fn in_memory(&self) -> Option<Vec<&[u8]>> {
        self.blob.in_memory(&self.range)
    }

    /// The handle to read the file with cuFile, if that is possible.
    pub fn cufile(&self) -> Option<&Handle> {
        self.blob.cufile()
    }

    /// Checks that nobody wrote to the file since it was opened. [`Encoded::read`] does so itself.
    ///
    /// # Errors
    /// What the system says, or that the file changed.
    pub fn check_unchanged(&self) -> io::Result<()> {
        self.blob.check_unchanged()
    }
}
