//! Zstandard frames: what is checked before nvCOMP sees a byte, because it promises nothing for input that is not valid.
//!
//! [`check`] reads the frame header and the chain of block headers, and chooses who decodes. [`blocks`] reads what is left
//! of headers and tables inside the blocks of a frame for the GPU; the bitstreams are checked there
//! (`src/kernels/zstd_check.cu`).
//!
//! Source: RFC 8878, section 3.1 (frames and blocks).
#![forbid(unsafe_code)]

mod blocks;
mod tables;

pub use blocks::{Block, CheckedFrame, SUMMARY_BYTES, VALID_FRAME, blocks};

use super::work::{self, Checksum, Decoder, Expected, Pass, Stream, Work};
use crate::memory;

use std::ops::{Range, RangeInclusive};

/// nvCOMP's limit for a decoded chunk, `nvcompZstdDecompressionMaxAllowedChunkSize`.
pub const MAX_GPU_CHUNK_BYTES: u64 = (1 << 31) - 1;

const MAGIC: u32 = 0xFD2F_B528;
/// Block_Maximum_Size: no block regenerates more, whatever the window.
const MAX_BLOCK_BYTES: u64 = 128 << 10;

/// The most bytes that zstd makes of `decoded` bytes, whatever they are (`ZSTD_compressBound`).
pub fn encoded_bound(decoded: u64) -> u64 {
    decoded + (decoded >> 8) + (MAX_BLOCK_BYTES.saturating_sub(decoded) >> 11)
}

/// Scratch memory that nvCOMP needs for a compressed block, apart from its contents, rounded up.
/// Fitted to 41 frames on nvCOMP 5.3.0: 2.7 KB a block, 12 bytes a sequence and 1 byte a literal, within 4 %.
const GPU_SCRATCH_PER_BLOCK: u64 = 4 << 10;

/// The most scratch memory that nvCOMP needs for a chunk that [`check`] gives to the GPU: a sequence stands for at least
/// three bytes, and blocks are not smaller than `check` allows.
pub fn gpu_scratch_bound(decoded: u64) -> u64 {
    decoded * 4 + max_gpu_blocks(decoded) * GPU_SCRATCH_PER_BLOCK
}

/// More compressed blocks than this are left to the CPU: encoders make blocks of 128 KiB and split them a few times.
fn max_gpu_blocks(decoded: u64) -> u64 {
    16 + decoded / (8 << 10)
}

/// What the headers of a frame say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Size of the decoded content, if the frame declares it.
    pub content_bytes: Option<u64>,
    /// The frame needs a dictionary.
    pub needs_dictionary: bool,
    /// The checksum that follows the content: the low 32 bits of its XXH64, seed 0.
    pub checksum: Option<u32>,
    /// Encoded size of the frame, from the first byte of the magic number.
    pub frame_bytes: u64,
    /// The least and the most that the blocks can regenerate.
    pub regenerates: (u64, u64),
    /// How many blocks are compressed.
    pub compressed_blocks: u64,
}

/// What the GPU may do with an encoded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Decode it if [`blocks`] and the GPU find nothing wrong. nvCOMP does not verify the checksum, if there is one.
    Gpu {
        /// [`Frame::checksum`].
        checksum: Option<u32>,
    },
    /// Leave it to the CPU: it is unusual (several frames, a dictionary, very small blocks).
    Cpu,
}

/// Checks a chunk that has to decode to `expected` bytes.
///
/// # Errors
/// What cannot be right about it, in words.
pub fn check(encoded: &[u8], expected: u64) -> Result<Verdict, String> {
    if skippable_bytes(encoded).is_some() {
        // Valid, rare.
        return Ok(Verdict::Cpu);
    }
    let frame = Frame::parse(encoded)?;
    if frame.frame_bytes < encoded.len() as u64 {
        // More frames may follow; zstd's decoder says so, or that they are none.
        return Ok(Verdict::Cpu);
    }
    if let Some(declared) = frame.content_bytes
        && declared != expected
    {
        return Err(format!(
            "the zstd frame declares {declared} bytes of content, but the chunk has {expected}"
        ));
    }
    let (least, most) = frame.regenerates;
    if expected < least || expected > most {
        return Err(format!(
            "the blocks of the zstd frame hold {least} to {most} bytes, but the chunk has {expected}"
        ));
    }
    let unusual = frame.needs_dictionary || frame.compressed_blocks > max_gpu_blocks(expected);
    Ok(if unusual { Verdict::Cpu } else { Verdict::Gpu { checksum: frame.checksum } })
}

/// Adds a frame that starts at `offset` of the chunk and decodes to the bytes `to` of the area.
///
/// # Errors
/// As [`check`].
pub fn work(encoded: &[u8], offset: u64, to: Range<u64>, work: &mut Work) -> Result<work::Verdict, String> {
    const UNUSUAL: &str = "its zstd frames are unusual, or damaged";
    let expected = to.end - to.start;
    let Verdict::Gpu { checksum } = check(encoded, expected)? else { return Ok(work::Verdict::Cpu(UNUSUAL)) };
    let Ok(blocks) = blocks(encoded, expected) else { return Ok(work::Verdict::Cpu(UNUSUAL)) };
    if let Some(checksum) = checksum {
        work.passes.push(Pass::Check {
            checksum: Checksum::Xxh64,
            start: to.start,
            end: to.end,
            expected: Expected::Value(checksum),
        });
    }
    let from = offset..offset + encoded.len() as u64;
    work.streams.push(Stream { decoder: Decoder::Zstd(blocks), from, to });
    Ok(work::Verdict::Gpu)
}

/// Checks any number of frames that together have to decode to a number of bytes within `expected`, before a decoder that allocates what
/// they declare sees them. What comes after the last frame, and everything inside the blocks, is left to that decoder.
///
/// # Errors
/// What cannot be right about it, in words.
pub fn check_size(encoded: &[u8], expected: RangeInclusive<u64>) -> Result<(), String> {
    let (least, most) = content_bounds(encoded)?;
    if least <= *expected.end() && most >= *expected.start() {
        return Ok(());
    }
    Err(format!(
        "the zstd frames declare or hold {least} to {most} bytes of content, but the chunk has {}",
        expected.end()
    ))
}

/// Decodes on the CPU, any number of frames, to one of `sizes`. Takes no more memory than the largest of them, whatever
/// the frames declare and whatever is in them.
///
/// # Errors
/// What the decoder says, or that there is more content.
pub fn decode(encoded: &[u8], sizes: RangeInclusive<u64>) -> Result<Vec<u8>, String> {
    check_size(encoded, sizes.clone())?;
    let most = content_bounds(encoded)?.1.min(*sizes.end());
    let mut decoded = vec![];
    memory::reserve(&mut decoded, most)?;
    let decoder = ::zstd::bulk::Decompressor::new();
    decoder
        .and_then(|mut decoder| decoder.decompress_to_buffer(encoded, &mut decoded))
        .map_err(|error| format!("{error} (the chunk has {} bytes)", sizes.end()))?;
    Ok(decoded)
}

/// The least and the most bytes that the frames decode to.
fn content_bounds(mut encoded: &[u8]) -> Result<(u64, u64), String> {
    let (mut least, mut most) = (0u64, 0u64);
    while !encoded.is_empty() {
        let bytes = match skippable_bytes(encoded) {
            Some(bytes) => bytes,
            None => {
                let frame = Frame::parse(encoded)?;
                let (low, high) =
                    frame.content_bytes.map_or(frame.regenerates, |declared| (declared, declared));
                (least, most) = (least.saturating_add(low), most.saturating_add(high));
                frame.frame_bytes
            }
        };
        encoded = usize::try_from(bytes).ok().and_then(|bytes| encoded.get(bytes..)).unwrap_or_default();
    }
    Ok((least, most))
}

/// Size of the skippable frame at the start, if there is one.
fn skippable_bytes(encoded: &[u8]) -> Option<u64> {
    let header = encoded.first_chunk::<8>()?;
    let [kind, 0x2A, 0x4D, 0x18, size @ ..] = *header else { return None };
    (kind & 0xF0 == 0x50).then(|| 8 + u64::from(u32::from_le_bytes(size)))
}

impl Frame {
    /// Reads the frame header and every block header.
    ///
    /// # Errors
    /// Where the bytes stop being a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor { bytes, at: 0 };
        let header = Header::read(&mut cursor)?;
        let (mut least, mut most, mut compressed_blocks) = (0, 0, 0);
        loop {
            let block = BlockHeader::read(&mut cursor)?;
            let (low, high) = match block.kind {
                BlockKind::Raw | BlockKind::Rle => (block.size, block.size),
                BlockKind::Compressed => {
                    compressed_blocks += 1;
                    (0, MAX_BLOCK_BYTES)
                }
            };
            (least, most) = (least + low, most + high);
            cursor.skip(block.encoded_bytes())?;
            if block.last {
                break;
            }
        }
        let checksum = if header.has_checksum { Some(cursor.number(4)? as u32) } else { None };
        Ok(Self {
            content_bytes: header.content_bytes,
            needs_dictionary: header.needs_dictionary,
            checksum,
            frame_bytes: cursor.at as u64,
            regenerates: (least, most),
            compressed_blocks,
        })
    }
}

/// The header of a frame.
struct Header {
    content_bytes: Option<u64>,
    needs_dictionary: bool,
    has_checksum: bool,
    /// Size of the window; that of the content, if it is all in one.
    window_bytes: u64,
}

impl Header {
    fn read(cursor: &mut Cursor) -> Result<Self, String> {
        if cursor.number(4)? != u64::from(MAGIC) {
            return Err("it does not start with a zstd frame".into());
        }
        let descriptor = cursor.number(1)?;
        if descriptor & 0x08 != 0 {
            return Err("the zstd frame header uses a reserved bit".into());
        }
        let single_segment = descriptor & 0x20 != 0;
        let window = if single_segment { None } else { Some(cursor.number(1)?) };
        let dictionary = cursor.number([0, 1, 2, 4][(descriptor & 3) as usize])?;
        let content_bytes = match descriptor >> 6 {
            0 if single_segment => Some(cursor.number(1)?),
            0 => None,
            1 => Some(cursor.number(2)? + 256),
            2 => Some(cursor.number(4)?),
            _ => Some(cursor.number(8)?),
        };
        let window_bytes = match window {
            Some(window) => (8 + (window & 7)) << (7 + (window >> 3)),
            None => content_bytes.unwrap_or(0),
        };
        Ok(Self {
            content_bytes,
            needs_dictionary: dictionary != 0,
            has_checksum: descriptor & 0x04 != 0,
            window_bytes,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Raw,
    Rle,
    Compressed,
}

/// The header of a block.
struct BlockHeader {
    last: bool,
    kind: BlockKind,
    /// Encoded bytes; of an RLE block, regenerated ones.
    size: u64,
}

impl BlockHeader {
    fn read(cursor: &mut Cursor) -> Result<Self, String> {
        let header = cursor.number(3)?;
        let size = header >> 3;
        if size > MAX_BLOCK_BYTES {
            return Err(format!("a zstd block of {size} bytes is larger than blocks can be"));
        }
        let kind = match header >> 1 & 3 {
            0 => BlockKind::Raw,
            1 => BlockKind::Rle,
            2 => BlockKind::Compressed,
            _ => return Err("a zstd block has the reserved type".into()),
        };
        Ok(Self { last: header & 1 != 0, kind, size })
    }

    /// Size of what follows the header.
    fn encoded_bytes(&self) -> u64 {
        if self.kind == BlockKind::Rle { 1 } else { self.size }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// The next little-endian number of up to 8 bytes.
    fn number(&mut self, size: usize) -> Result<u64, String> {
        let start = self.at;
        self.skip(size as u64)?;
        Ok(self.bytes[start..self.at].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn skip(&mut self, size: u64) -> Result<(), String> {
        if size > (self.bytes.len() - self.at) as u64 {
            return Err(format!(
                "the zstd frame ends after {} bytes, in the middle of a block or header",
                self.bytes.len()
            ));
        }
        self.at += size as usize;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame of one raw block that declares `declared` bytes in an 8-byte field.
    fn raw_frame(content: &[u8], declared: u64) -> Vec<u8> {
        let mut frame = MAGIC.to_le_bytes().to_vec();
        frame.push(0xE0);
        frame.extend(declared.to_le_bytes());
        frame.extend(&((content.len() as u32) << 3 | 1).to_le_bytes()[..3]);
        frame.extend(content);
        frame
    }

    #[test]
    fn a_valid_frame_goes_to_the_gpu() {
        assert_eq!(check(&raw_frame(b"abcd", 4), 4), Ok(Verdict::Gpu { checksum: None }));
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let good = raw_frame(b"abcd", 4);
        assert!(check(&good, 5).unwrap_err().contains("declares 4 bytes"));
        assert!(check(&raw_frame(b"abcd", 9), 9).unwrap_err().contains("hold 4 to 4 bytes"));
        assert!(check(b"nothing like it", 4).unwrap_err().contains("does not start"));
        assert!(check(b"", 4).is_err());
        for cut in 0..good.len() {
            assert!(check(&good[..cut], 4).is_err(), "cut at {cut}");
        }
        let mut reserved = good.clone();
        reserved[13] |= 0b110;
        assert!(check(&reserved, 4).unwrap_err().contains("reserved"));
    }

    #[test]
    fn frames_add_up() {
        let mut frames = raw_frame(b"abcd", 4);
        frames.extend([0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 9, 9, 9]);
        frames.extend(raw_frame(b"efg", 3));
        assert_eq!(check_size(&frames, 7..=7), Ok(()));
        assert!(check_size(&frames, 8..=8).unwrap_err().contains("7 to 7"));
        assert!(check_size(&raw_frame(b"abcd", 1 << 62), 0..=4).is_err());
        assert!(check_size(&[frames, vec![0]].concat(), 7..=7).is_err());
    }

    #[test]
    fn unusual_chunks_are_left_to_the_cpu() {
        let mut two = raw_frame(b"abcd", 4);
        two.extend(raw_frame(b"efgh", 4));
        assert_eq!(check(&two, 8), Ok(Verdict::Cpu));
        assert_eq!(check(&[0x53, 0x2A, 0x4D, 0x18, 0, 0, 0, 0], 8), Ok(Verdict::Cpu));
    }

    #[test]
    fn a_checksum_is_handed_on() {
        let mut frame = raw_frame(b"abcd", 4);
        frame[4] |= 0x04;
        frame.extend([4, 3, 2, 1]);
        assert_eq!(check(&frame, 4), Ok(Verdict::Gpu { checksum: Some(0x0102_0304) }));
        assert!(check(&frame[..frame.len() - 1], 4).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), frame: bool) {
            if frame && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            let _ = check(&bytes, 64);
            let _ = check_size(&bytes, 64..=64);
            let _ = blocks(&bytes, 64);
        }

        #[test]
        fn no_block_makes_it_panic(block in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..4) {
            let mut frame = raw_frame(&block, 1 << 16);
            frame[13] |= 0b100;
            if let Some(first) = frame.get_mut(16) {
                // Literals of every kind, of few bytes.
                *first = *first & 0x7C | kind;
            }
            let _ = blocks(&frame, 1 << 16);
        }
    }
}
