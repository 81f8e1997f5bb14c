//! numcodecs' shuffle: the first bytes of all elements, then the second ones, and so on.
//!
//! Source: numcodecs/_shuffle.pyx.

use super::work::Pass;

use std::ops::Range;

use zarrs::array::CodecMetadataOptions;
use zarrs::array::codec::api::BytesToBytesCodecTraits;

/// The element size of a codec of that name.
pub fn element_bytes(name: &str, codec: &dyn BytesToBytesCodecTraits) -> Option<u32> {
    if name != "numcodecs.shuffle" {
        return None;
    }
    let configuration = codec.configuration_v3(&CodecMetadataOptions::default())?;
    let bytes = configuration.get("elementsize")?.as_u64()?;
    u32::try_from(bytes).ok().filter(|&bytes| bytes > 0)
}

/// The pass that undoes the shuffle over a range of the area.
pub fn pass(element_bytes: u32, Range { start, end }: Range<u64>) -> Pass {
    Pass::Unshuffle { bits: false, start, end, element_bytes, block_bytes: (end - start) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffled_bytes_are_one_block() {
        let expected = Pass::Unshuffle { bits: false, start: 4, end: 100, element_bytes: 8, block_bytes: 96 };
        assert_eq!(pass(8, 4..100), expected);
    }
}
