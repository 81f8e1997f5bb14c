//! Copies the headers of an encoded chunk while it passes in pieces: all that [`GpuChain::prepare`](super::GpuChain::prepare) reads.
//!
//! The same bytes as `src/kernels/headers.cuh`, which copies them of a chunk that is on the GPU; `tests/zstd_check.rs` compares what is
//! planned from either with what is planned from the whole chunk. What the numbers mean is said there.
//!
//! Source: RFC 8878, section 3.1.1; c-blosc 1.21, README_CHUNK_FORMAT.rst.
#![forbid(unsafe_code)]

use super::HeaderFormat;
use super::blosc::Layout;
use super::zstd::{MAGIC, max_gpu_blocks};

use std::ops::Range;

/// Headers are copied at their greatest length, so that the next one may begin before the end of what was copied, but no more than this before. Only in
/// damaged chunks, and in Blosc containers whose blocks overlap, it may begin anywhere.
pub const LOOK_BACK: usize = 256;

/// An encoded chunk that passes in pieces, in order.
pub trait Pieces {
    /// What may go wrong with reading.
    type Error;

    /// Copies bytes of the chunk to their places in `to`, which is as long as the chunk. What lies behind the present piece is waited for.
    ///
    /// # Errors
    /// Those of reading, and that the bytes begin more than [`LOOK_BACK`] before the present piece.
    fn copy(&mut self, range: Range<usize>, to: &mut [u8]) -> Result<(), Self::Error>;
}

const END_BYTES: usize = 32;
const BLOCK_HEADER_BYTES: usize = 3;
const LITERAL_HEADER_BYTES: usize = 5 + 129 + 6;
const SEQUENCE_HEADER_BYTES: usize = 4 + (36 + 53 + 32) * 12 / 8 + 8;

/// Copies the headers of a chunk that decodes to `decoded` bytes to their places in `to`.
///
/// # Errors
/// Those of [`Pieces::copy`].
pub fn copy_headers<P: Pieces>(
    format: HeaderFormat,
    decoded: u64,
    pieces: &mut P,
    to: &mut [u8],
) -> Result<(), P::Error> {
    let end = to.len();
    let mut headers = Headers { pieces, to };
    headers.copy(0, END_BYTES, end)?;
    match format {
        HeaderFormat::Ends => {}
        HeaderFormat::Zstd => headers.frame(0, end, decoded)?,
        HeaderFormat::Blosc => headers.container(decoded)?,
    }
    headers.copy(end.saturating_sub(END_BYTES), END_BYTES, end)
}

struct Headers<'a, P> {
    pieces: &'a mut P,
    to: &'a mut [u8],
}

impl<P: Pieces> Headers<'_, P> {
    /// Copies up to `size` bytes from `at` on, as far as they are before `end`.
    fn copy(&mut self, at: usize, size: usize, end: usize) -> Result<(), P::Error> {
        if at >= end { Ok(()) } else { self.pieces.copy(at..end.min(at + size), self.to) }
    }

    /// The number of `size` bytes at `at`, which were copied; 0 where they are not all before `end`.
    fn number(&self, at: usize, size: usize, end: usize) -> usize {
        let bytes = self.to[..end].get(at..at + size).unwrap_or_default();
        bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    }

    /// Copies the last byte of a bitstream, which has the mark of its end.
    fn mark(&mut self, stream_end: usize, end: usize) -> Result<(), P::Error> {
        self.copy(stream_end.saturating_sub(1), 1, end)
    }

    /// Copies the headers in a compressed block.
    fn block(&mut self, at: usize, end: usize) -> Result<(), P::Error> {
        self.copy(at, LITERAL_HEADER_BYTES, end)?;
        let first = self.number(at, 1, end);
        let (kind, format) = (first & 3, first >> 2 & 3);
        let sequences = if kind < 2 {
            let size = match format {
                1 => 2,
                3 => 3,
                _ => 1,
            };
            let literals = self.number(at, size, end) >> if size == 1 { 3 } else { 4 };
            at + size + if kind == 0 { literals } else { 1 }
        } else {
            // Two numbers of 10, 14 or 18 bits.
            let size = if format < 2 { 3 } else { format + 2 };
            let header = self.number(at, size, end);
            let sequences = at + size + (header >> (4 + 4 * size - 2));
            if format > 0 {
                let tree = if kind == 2 { self.number(at + size, 1, end) } else { 0 };
                let tree_bytes = match (kind, tree) {
                    (3, _) => 0,
                    (_, ..128) => 1 + tree,
                    _ => 1 + (tree - 126) / 2,
                };
                let sizes = at + size + tree_bytes;
                let mut stream_end = sizes + 6;
                for stream in 0..3 {
                    stream_end += self.number(sizes + 2 * stream, 2, end);
                    self.mark(stream_end, end)?;
                }
            }
            self.mark(sequences, end)?;
            sequences
        };
        self.copy(sequences, SEQUENCE_HEADER_BYTES, end)?;
        self.mark(end, end)
    }

    /// Copies the headers of the zstd frame at `at`, and what follows its last block.
    fn frame(&mut self, mut at: usize, end: usize, decoded: u64) -> Result<(), P::Error> {
        self.copy(at, END_BYTES, end)?;
        if self.number(at, 4, end) != MAGIC as usize {
            return Ok(());
        }
        let descriptor = self.number(at + 4, 1, end);
        let (declares, single, dictionary) =
            (descriptor >> 6, descriptor >> 5 & 1, (1 << (descriptor & 3)) >> 1);
        at += 5 + (1 - single) + dictionary + if declares > 0 || single > 0 { 1 << declares } else { 0 };
        // `prepare` stops at the first block too many.
        for _ in 0..=max_gpu_blocks(decoded) {
            self.copy(at, BLOCK_HEADER_BYTES, end)?;
            if at + BLOCK_HEADER_BYTES > end {
                return Ok(());
            }
            let header = self.number(at, BLOCK_HEADER_BYTES, end);
            let kind = header >> 1 & 3;
            let bytes = if kind == 1 { 1 } else { header >> 3 };
            at += BLOCK_HEADER_BYTES;
            if bytes > end - at {
                return Ok(());
            }
            if kind == 2 {
                self.block(at, at + bytes)?;
            }
            at += bytes;
            if header & 1 > 0 {
                break;
            }
        }
        self.copy(at, END_BYTES, end)
    }

    /// Copies the headers in a Blosc container.
    fn container(&mut self, decoded: u64) -> Result<(), P::Error> {
        let end = self.to.len();
        let Some(layout) = Layout::of(self.to, end as u64, decoded) else { return Ok(()) };
        let table = layout.table().start as usize..layout.table().end as usize;
        self.copy(table.start, table.len(), end)?;
        // Threads that compress write blocks in the order in which they are done.
        let mut starts: Vec<(usize, u64)> =
            table.step_by(4).map(|entry| self.number(entry, 4, end)).zip(0..).collect();
        starts.sort_unstable();
        for (mut at, number) in starts {
            let streams = layout.block(number);
            for _ in 0..streams.count {
                self.copy(at, 4, end)?;
                let bytes = self.number(at, 4, end);
                at += 4;
                if at > end || bytes > end - at {
                    break;
                }
                self.frame(at, at + bytes, streams.bytes)?;
                at += bytes;
                self.copy(at - bytes.min(END_BYTES), END_BYTES, at)?;
            }
        }
        Ok(())
    }
}
