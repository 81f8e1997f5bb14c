//! Reads a large encoded chunk in pieces, whose pinned memory is used again as soon as they were copied to the GPU. Its headers are kept, for
//! the host to plan the decoding when all pieces have passed.
//!
//! One piece is copied while the next one is read. More of them would not stay in the host's cache (benches/NOTES.md); where chunks are not
//! encoded, the bus is the limit, and two are copied.

use super::submission::OnComplete;
use super::uploader::Uploader;
use crate::codec::headers::{LOOK_BACK, Pieces};
use crate::error::{Context, Error};
use crate::fetch::Encoded;
use crate::gpu::PinnedBuffer;

use std::ops::Range;

/// The pieces of an encoded chunk on their way to the GPU.
pub struct PassingChunk<'a> {
    uploader: &'a mut Uploader,
    encoded: &'a Encoded,
    /// The device memory that they are copied to.
    address: u64,
    at: &'a Context,
    /// The present piece, and where in the chunk it is.
    piece: Option<PinnedBuffer>,
    range: Range<usize>,
    /// From here on the bytes before the present piece were kept.
    kept: usize,
    reads_in_place: bool,
}

/// Why a chunk cannot pass in pieces.
pub enum Interrupted {
    /// What the system or the driver says.
    Failed(Box<Error>),
    /// Bytes that have passed are asked for.
    LooksBack,
}

impl From<Error> for Interrupted {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

type Result<T> = std::result::Result<T, Interrupted>;

impl<'a> PassingChunk<'a> {
    /// The pieces of `encoded`, to be copied to the device memory at `address`.
    ///
    /// # Safety
    /// There is memory for the whole chunk, and nothing else uses it until the copies are complete.
    pub unsafe fn new(
        uploader: &'a mut Uploader,
        encoded: &'a Encoded,
        address: u64,
        at: &'a Context,
    ) -> Self {
        Self { uploader, encoded, address, at, piece: None, range: 0..0, kept: 0, reads_in_place: false }
    }

    /// Reads the next piece and enqueues its copy. Where there is no pinned memory for it, it is read to its place in `to`, which is pinned memory as
    /// well, and is copied from there.
    fn advance(&mut self, to: &mut [u8]) -> Result<()> {
        self.kept = self.range.end - self.range.len().min(LOOK_BACK);
        if let Some(piece) = &self.piece {
            to[self.kept..self.range.end].copy_from_slice(&piece.bytes()[self.kept - self.range.start..]);
        }
        self.release()?;
        self.uploader.complete_to(Uploader::PIECE_BYTES);
        let start = self.range.end;
        let end = to.len().min(start + Uploader::PIECE_BYTES);
        // A thread that holds pinned memory does not wait for more.
        self.piece = self.uploader.try_buffer(end - start);
        self.range = start..end;
        let bytes = match &mut self.piece {
            Some(piece) => piece.bytes_mut(),
            None => {
                self.reads_in_place = true;
                &mut to[start..end]
            }
        };
        self.encoded.read_from(start as u64, bytes, self.at)?;
        // SAFETY: the duty of the caller of `new`; `release` and the caller of `into_last` keep what is copied from.
        unsafe { self.uploader.copy(bytes, self.address + start as u64) }.map_err(Interrupted::from)
    }

    /// Leaves the present piece to its copy.
    fn release(&mut self) -> std::result::Result<(), Error> {
        match self.piece.take() {
            Some(piece) => self.uploader.add(Some(piece.into()), OnComplete::Piece),
            None => Ok(()),
        }
    }

    /// Reads and copies what is left.
    ///
    /// # Errors
    /// What the system or the driver says. Copies may be in flight then, also from `to`.
    pub fn pass(&mut self, to: &mut [u8]) -> Result<()> {
        while self.range.end < to.len() {
            self.advance(to)?;
        }
        Ok(())
    }

    /// The last piece, and whether there are copies from `to`. The caller keeps both until the copies are complete.
    pub fn into_last(mut self) -> (Option<PinnedBuffer>, bool) {
        (self.piece.take(), self.reads_in_place)
    }
}

impl Pieces for PassingChunk<'_> {
    type Error = Interrupted;

    fn copy(&mut self, range: Range<usize>, to: &mut [u8]) -> Result<()> {
        let Range { start: mut at, end } = range;
        if at < self.kept {
            return Err(Interrupted::LooksBack);
        }
        at = at.max(self.range.start);
        while at < end {
            if at >= self.range.end {
                self.advance(to)?;
                continue;
            }
            let here = at..end.min(self.range.end);
            at = here.end;
            if let Some(piece) = &self.piece {
                let start = self.range.start;
                to[here.clone()].copy_from_slice(&piece.bytes()[here.start - start..here.end - start]);
            }
        }
        Ok(())
    }
}

impl Drop for PassingChunk<'_> {
    /// After an error: the present piece may be in use by its copy, for which the caller waits.
    fn drop(&mut self) {
        let _ = self.release();
    }
}
