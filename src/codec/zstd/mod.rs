//! Zstandard frames: what is checked before the GPU sees a byte.
//!
//! [`check`] reads the frame header and the chain of block headers, and chooses GPU or CPU. [`blocks`] reads the headers
//! and tables inside the blocks of a frame for the GPU, which checks the bitstreams (`src/kernels/zstd_check.cu`).
//!
//! Source: RFC 8878, section 3.1 (frames and blocks).
#![forbid(unsafe_code)]

mod blocks;
mod frame;
mod tables;

pub use blocks::{Block, CheckedFrame, Place, SUMMARY_BYTES, VALID_FRAME, blocks};
pub use frame::Frame;
pub(super) use frame::MAGIC;

use crate::memory;
use frame::{MAX_BLOCK_BYTES, skippable_bytes};

use std::ops::RangeInclusive;

/// nvCOMP's limit for a decoded chunk, `nvcompZstdDecompressionMaxAllowedChunkSize`.
pub const MAX_GPU_CHUNK_BYTES: u64 = (1 << 31) - 1;

/// Larger chunks are left to nvCOMP: an offset has 29 bits in what our own decoder makes of a sequence.
pub const MAX_BUILTIN_CHUNK_BYTES: u64 = (1 << 29) - 1;

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

/// Frames of more blocks than this are left to the CPU: encoders make blocks of 128 KiB and split them a few times. As in
/// `headers.cuh` and `headers.rs`, which copy the headers of no more.
pub(super) fn max_gpu_blocks(decoded: u64) -> u64 {
    16 + decoded / (8 << 10)
}

/// What the GPU may do with an encoded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Decode it if [`blocks`] and the GPU find nothing wrong. nvCOMP does not verify the checksum, if there is one.
    Gpu {
        /// [`Frame::checksum`].
        checksum: Option<u32>,
    },
    /// Leave it to the CPU, for this reason.
    Cpu(&'static str),
}

/// Why a chunk is left to the CPU that has several frames, a dictionary, or what [`blocks`] refuses.
pub const UNUSUAL: &str = "its zstd frames are unusual, or damaged";

/// Checks a chunk that has to decode to `expected` bytes.
///
/// # Errors
/// What cannot be right about it, in words.
pub fn check(encoded: &[u8], expected: u64) -> Result<Verdict, String> {
    if skippable_bytes(encoded).is_some() {
        // Valid, rare.
        return Ok(Verdict::Cpu(UNUSUAL));
    }
    let Some(frame) = Frame::parse_most(encoded, max_gpu_blocks(expected))? else {
        return Ok(Verdict::Cpu("its zstd frames have very small blocks"));
    };
    if frame.frame_bytes < encoded.len() as u64 {
        // More frames may follow; zstd's decoder says so, or that they are none.
        return Ok(Verdict::Cpu(UNUSUAL));
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
    Ok(if frame.needs_dictionary { Verdict::Cpu(UNUSUAL) } else { Verdict::Gpu { checksum: frame.checksum } })
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
    fn blocks_hold_no_more_than_the_chunk() {
        let frame = raw_frame(b"abcd", 4);
        assert_eq!(blocks(&frame, 4).unwrap().len(), 1);
        assert!(blocks(&frame, 3).unwrap_err().contains("hold at least 4 bytes"));
    }

    #[test]
    fn windows_are_no_larger_than_those_of_libzstd() {
        // A window descriptor, and one empty block.
        let frame = |window| [&MAGIC.to_le_bytes()[..], &[0, window, 1, 0, 0]].concat();
        assert_eq!(blocks(&frame(0xAF), 0).unwrap().len(), 1);
        for too_large in [0xB0, 0xFF] {
            assert!(blocks(&frame(too_large), 0).unwrap_err().contains("asks for a window"));
        }
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
        assert_eq!(check(&two, 8), Ok(Verdict::Cpu(UNUSUAL)));
        assert_eq!(check(&[0x53, 0x2A, 0x4D, 0x18, 0, 0, 0, 0], 8), Ok(Verdict::Cpu(UNUSUAL)));
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
        fn the_bound_is_that_of_libzstd(decoded in prop_oneof![0usize..300_000, any::<u32>().prop_map(|n| n as usize)]) {
            prop_assert_eq!(encoded_bound(decoded as u64), ::zstd::zstd_safe::compress_bound(decoded) as u64);
        }

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
