//! What the GPU has to do with the encoded bytes of one read chunk, worked out on the host. Pure.
#![forbid(unsafe_code)]

use super::zstd;

use std::ops::Range;

/// What the GPU does with a read chunk's encoded bytes.
///
/// Streams first: all of them together write the *decoded area* of `bytes` bytes. Without streams the encoded bytes
/// are that area. Then the passes, one after another; each unshuffling moves the bytes to another area of the same size.
/// The elements are `elements` of the last area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Streams of encoded bytes, each decoded on its own.
    pub streams: Vec<Stream>,
    /// Steps over the whole area after the streams, in this order.
    pub passes: Vec<Pass>,
    /// Size of the decoded area.
    pub bytes: u64,
    /// The part of the last area that holds the chunk's elements.
    pub elements: Range<u64>,
    /// The elements are in the other byte order.
    pub swaps_bytes: bool,
}

impl Work {
    /// Nothing to do: the bytes are the elements, in native order.
    pub fn none(bytes: u64) -> Self {
        Self { bytes, elements: 0..bytes, ..Self::default() }
    }

    /// How many zstd blocks its frames have.
    pub fn zstd_blocks(&self) -> u64 {
        let blocks =
            |stream: &Stream| if let Decoder::Zstd(blocks) = &stream.decoder { blocks.len() } else { 0 };
        self.streams.iter().map(|stream| blocks(stream) as u64).sum()
    }

    /// Adds a zstd frame that starts at `offset` of the chunk and decodes to the bytes `to` of the area.
    ///
    /// # Errors
    /// As [`zstd::check`].
    pub fn add_zstd_frame(&mut self, frame: &[u8], offset: u64, to: Range<u64>) -> Result<Verdict, String> {
        let expected = to.end - to.start;
        let checksum = match zstd::check(frame, expected)? {
            zstd::Verdict::Gpu { checksum } => checksum,
            zstd::Verdict::Cpu(reason) => return Ok(Verdict::Cpu(reason)),
        };
        let Ok(blocks) = zstd::blocks(frame, expected) else {
            return Ok(Verdict::Cpu(zstd::UNUSUAL));
        };
        if let Some(checksum) = checksum {
            self.passes.push(Pass::Check {
                checksum: Checksum::Xxh64,
                start: to.start,
                end: to.end,
                expected: Expected::Value(checksum),
            });
        }
        let from = offset..offset + frame.len() as u64;
        self.streams.push(Stream { decoder: Decoder::Zstd(blocks), from, to });
        Ok(Verdict::Gpu)
    }

    /// How many areas the chunk needs.
    pub fn areas(&self) -> u64 {
        1 + self.passes.iter().filter(|pass| matches!(pass, Pass::Unshuffle { .. })).count() as u64
    }
}

/// One independent piece of encoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// What decodes it.
    pub decoder: Decoder,
    /// Where the stream is among the chunk's encoded bytes.
    pub from: Range<u64>,
    /// Where the decoded bytes belong in the decoded area.
    pub to: Range<u64>,
}

/// What decodes a stream on the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// A copy.
    Stored,
    /// Our kernel for LZ4 blocks.
    Lz4,
    /// Our kernel for BloscLZ.
    BloscLz,
    /// Our kernel for Snappy.
    Snappy,
    /// Our kernel for DEFLATE.
    Inflate,
    /// A zstd frame: our kernels, or nvCOMP where it was asked for.
    Zstd(Vec<zstd::Block>),
}

/// A step over a whole area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Compares a checksum.
    Check {
        /// The kind of checksum.
        checksum: Checksum,
        /// Start of the bytes that the checksum covers.
        start: u64,
        /// End of the bytes that the checksum covers.
        end: u64,
        /// What the checksum has to be.
        expected: Expected,
    },
    /// Undoes a shuffle of blocks that follow one another. Whole bytes or single bits of elements were brought together.
    Unshuffle {
        /// Bits instead of bytes.
        bits: bool,
        /// Start of the shuffled bytes.
        start: u64,
        /// End of the shuffled bytes.
        end: u64,
        /// Size of an element.
        element_bytes: u32,
        /// Size of a block; the last one may be smaller.
        block_bytes: u32,
    },
    /// Adds up the elements, wrapping around.
    UndoDelta {
        /// Size of an element.
        element_bytes: u32,
    },
}

/// A checksum of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// gzip's.
    Crc32,
    /// zlib's.
    Adler32,
    /// The lower half of XXH64, zstd's.
    Xxh64,
    /// Castagnoli's polynomial.
    Crc32c,
    /// HDF5's.
    Fletcher32,
}

/// What a checksum is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A number that the host knows.
    Value(u32),
    /// Four bytes at this place of the area, little-endian.
    At(u64),
}

/// What becomes of an encoded chunk whose codec chain the GPU can decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The GPU decodes it.
    Gpu,
    /// It is left to the CPU, for this reason.
    Cpu(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_work_all_bytes_are_elements() {
        let work = Work::none(12);
        assert_eq!((work.bytes, work.elements.clone(), work.areas(), work.zstd_blocks()), (12, 0..12, 1, 0));
        assert!(work.streams.is_empty() && work.passes.is_empty() && !work.swaps_bytes);
    }

    #[test]
    fn a_zstd_frame_is_decoded_and_checked_where_it_belongs() {
        let content = b"to be or not to be or not to be";
        let mut encoder = ::zstd::bulk::Compressor::new(3).unwrap();
        encoder.include_checksum(true).unwrap();
        let frame = encoder.compress(content).unwrap();
        let checksum = frame.last_chunk().map(|bytes| u32::from_le_bytes(*bytes)).unwrap();
        let mut work = Work::default();
        assert_eq!(work.add_zstd_frame(&frame, 100, 7..38), Ok(Verdict::Gpu));
        let [Stream { decoder: Decoder::Zstd(blocks), from, to }] = &work.streams[..] else {
            panic!("{work:?}")
        };
        assert_eq!((blocks.len(), from, to), (1, &(100..100 + frame.len() as u64), &(7..38)));
        let (checksum, expected) = (Checksum::Xxh64, Expected::Value(checksum));
        assert_eq!(work.passes, [Pass::Check { checksum, start: 7, end: 38, expected }]);
        assert_eq!(work.zstd_blocks(), 1);
        assert!(
            Work::default().add_zstd_frame(&frame, 100, 7..39).unwrap_err().contains("declares 31 bytes")
        );
    }
}
