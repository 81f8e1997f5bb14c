//! numcodecs' LZ4: the size of the content in four bytes, little-endian, and one LZ4 block. zarrs does not have it.
//!
//! Source: numcodecs/lz4.pyx; lz4_Block_format.md of LZ4.

use super::work::{Decoder, Stream, Verdict, Work};
use crate::memory;

use std::ops::RangeInclusive;

const PREFIX_BYTES: usize = 4;

/// The most bytes that LZ4 makes of `decoded` bytes, prefix included.
pub fn encoded_bound(decoded: u64) -> u64 {
    decoded + decoded / 255 + 16 + PREFIX_BYTES as u64
}

/// The block behind the prefix of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// What cannot be right about the prefix, in words.
pub fn block(encoded: &[u8], decoded: u64) -> Result<&[u8], String> {
    parse(encoded, &(decoded..=decoded)).map(|(block, _)| block)
}

/// The LZ4 block, and the size of its content, which has to be one of `sizes`.
fn parse<'a>(encoded: &'a [u8], sizes: &RangeInclusive<u64>) -> Result<(&'a [u8], u64), String> {
    let (prefix, block) = encoded
        .split_first_chunk::<PREFIX_BYTES>()
        .ok_or_else(|| format!("{} bytes are too few for an LZ4 chunk", encoded.len()))?;
    let declared = u64::from(u32::from_le_bytes(*prefix));
    if !sizes.contains(&declared) {
        return Err(format!(
            "the LZ4 prefix declares {declared} bytes of content, but the chunk has {}",
            sizes.end()
        ));
    }
    Ok((block, declared))
}

/// Adds the stream of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// What cannot be right about the prefix, in words.
pub fn work(encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
    block(encoded, decoded)?;
    let from = PREFIX_BYTES as u64..encoded.len() as u64;
    work.streams.push(Stream { decoder: Decoder::Lz4, from, to: 0..decoded });
    Ok(Verdict::Gpu)
}

/// Decodes on the CPU to one of `sizes`.
///
/// # Errors
/// What the decoder says.
pub fn decode(encoded: &[u8], sizes: RangeInclusive<u64>) -> Result<Vec<u8>, String> {
    let (block, declared) = parse(encoded, &sizes)?;
    let mut decoded = memory::zeroed(declared)?;
    let written = lz4_flex::block::decompress_into(block, &mut decoded).map_err(|error| error.to_string())?;
    if written as u64 != declared {
        return Err(format!("it decodes to {written} bytes instead of {declared}"));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_lz4_and_the_prefix() {
        // LZ4_compressBound.
        for (decoded, bound) in [(0, 16), (254, 270), (255, 272), (1 << 20, 1_052_704)] {
            assert_eq!(encoded_bound(decoded), bound + 4, "{decoded}");
        }
    }

    #[test]
    fn the_prefix_has_to_be_right() {
        let content = b"to be or not to be or not to be";
        let encoded = lz4_flex::block::compress_prepend_size(content);
        assert_eq!(decode(&encoded, 31..=31).unwrap(), content);
        assert_eq!(work(&encoded, 31, &mut Work::default()), Ok(Verdict::Gpu));
        assert!(decode(&encoded, 0..=30).unwrap_err().contains("declares 31 bytes"));
        assert!(decode(&encoded[..3], 31..=31).unwrap_err().contains("too few"));
        assert!(decode(&encoded[..encoded.len() - 1], 31..=31).is_err());
    }
}
