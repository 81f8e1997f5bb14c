//! Snappy's raw format: the size of the content as a varint, and its elements. zarrs does not have it.
//!
//! Source: format_description.txt of Snappy.

use super::work::{Decoder, Stream, Verdict, Work};
use crate::memory;

use std::ops::RangeInclusive;

/// The most bytes that Snappy makes of `decoded` bytes.
pub fn encoded_bound(decoded: u64) -> u64 {
    32 + decoded + decoded / 6
}

/// The size of the content that the prefix declares, which has to be one of `sizes`.
fn check(encoded: &[u8], sizes: &RangeInclusive<u64>) -> Result<u64, String> {
    let declared = snap::raw::decompress_len(encoded).map_err(|error| error.to_string())? as u64;
    if !sizes.contains(&declared) {
        return Err(format!(
            "Snappy's prefix declares {declared} bytes of content, but the chunk has {}",
            sizes.end()
        ));
    }
    Ok(declared)
}

/// Adds the stream of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// What cannot be right about the prefix, in words.
pub fn work(encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
    check(encoded, &(decoded..=decoded))?;
    work.streams.push(Stream { decoder: Decoder::Snappy, from: 0..encoded.len() as u64, to: 0..decoded });
    Ok(Verdict::Gpu)
}

/// Decodes on the CPU to one of `sizes`.
///
/// # Errors
/// What the decoder says.
pub fn decode(encoded: &[u8], sizes: RangeInclusive<u64>) -> Result<Vec<u8>, String> {
    let declared = check(encoded, &sizes)?;
    let mut decoded = memory::zeroed(declared)?;
    let written =
        snap::raw::Decoder::new().decompress(encoded, &mut decoded).map_err(|error| error.to_string())?;
    if written as u64 != declared {
        return Err(format!("it decodes to {written} bytes instead of {declared}"));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bound_is_that_of_snappy(decoded in prop_oneof![0usize..300, 0usize..1 << 31]) {
            prop_assert_eq!(encoded_bound(decoded as u64), snap::raw::max_compress_len(decoded) as u64);
        }
    }

    #[test]
    fn the_prefix_has_to_be_right() {
        let content = b"to be or not to be or not to be";
        let encoded = snap::raw::Encoder::new().compress_vec(content).unwrap();
        assert_eq!(decode(&encoded, 31..=31).unwrap(), content);
        assert_eq!(work(&encoded, 31, &mut Work::default()), Ok(Verdict::Gpu));
        assert!(decode(&encoded, 0..=30).unwrap_err().contains("declares 31 bytes"));
        assert!(decode(&encoded[..encoded.len() - 1], 31..=31).is_err());
    }
}
