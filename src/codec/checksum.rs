//! Checksums beside encoded bytes: `crc32c`, and numcodecs' `adler32` and `fletcher32`.
//!
//! The host verifies an outermost checksum before the GPU gets the bytes; the GPU verifies a checksum below a compression.

use super::work::Checksum;

use std::ops::Range;

use zarrs::array::CodecMetadataOptions;
use zarrs::array::codec::api::BytesToBytesCodecTraits;

/// Size of a checksum.
pub const BYTES: u64 = 4;

/// HDF5's checksum, as numcodecs computes it: of words with the high byte first, a last byte alone being a high one. A sum
/// that is not 0 never becomes 0, because carries are folded back in.
pub fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |sum: u64| if sum == 0 { 0 } else { (sum - 1) % 65535 + 1 };
    let (mut low, mut high) = (0u64, 0u64);
    // The sums over 32768 words fit into 64 bits.
    for block in bytes.chunks(1 << 16) {
        for pair in block.chunks(2) {
            low += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&byte| byte.into());
            high += low;
        }
        (low, high) = (fold(low), fold(high));
    }
    (high as u32) << 16 | low as u32
}

/// Verifies and takes off a Fletcher-32 at the end. zarrs computes another one for an odd number of bytes.
///
/// # Errors
/// That the checksum is another, or that there is none.
pub fn decode_fletcher32(encoded: &[u8]) -> Result<Vec<u8>, String> {
    let codec = ChecksumCodec { checksum: Checksum::Fletcher32, at_start: false };
    codec.verify(encoded).map(<[u8]>::to_vec)
}

/// One checksum codec of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumCodec {
    /// The kind of checksum.
    pub checksum: Checksum,
    /// The checksum stands before the bytes instead of behind them.
    pub at_start: bool,
}

impl ChecksumCodec {
    /// The codec of that name, if it is one of these.
    pub fn new(name: &str, codec: &dyn BytesToBytesCodecTraits) -> Option<Self> {
        let checksum = match name {
            "crc32c" => Checksum::Crc32c,
            "numcodecs.adler32" => Checksum::Adler32,
            "numcodecs.fletcher32" => Checksum::Fletcher32,
            _ => return None,
        };
        let location = codec.configuration_v3(&CodecMetadataOptions::default()).and_then(|configuration| {
            configuration.get("location").and_then(|at| at.as_str().map(str::to_owned))
        });
        // numcodecs puts Adler-32 first unless told otherwise.
        let at_start = match location.as_deref() {
            Some(location) => location == "start",
            None => checksum == Checksum::Adler32,
        };
        Some(Self { checksum, at_start })
    }

    /// The bytes that the checksum covers, out of `bytes` bytes with it.
    pub fn covered(&self, bytes: u64) -> Range<u64> {
        if self.at_start { BYTES..bytes } else { 0..bytes - BYTES }
    }

    /// Verifies on the host; returns the bytes that are covered.
    ///
    /// # Errors
    /// That the checksum is another, or that there is none.
    pub fn verify<'a>(&self, encoded: &'a [u8]) -> Result<&'a [u8], String> {
        let bytes = encoded.len() as u64;
        if bytes < BYTES {
            return Err(format!("{bytes} bytes are too few to hold a checksum"));
        }
        let covered = self.covered(bytes);
        let stored =
            if self.at_start { &encoded[..BYTES as usize] } else { &encoded[covered.end as usize..] };
        let covered = &encoded[covered.start as usize..covered.end as usize];
        let matches = match self.checksum {
            Checksum::Crc32c => crc32c::crc32c(covered).to_le_bytes() == stored,
            Checksum::Adler32 => simd_adler32::adler32(&covered).to_le_bytes() == stored,
            _ => fletcher32(covered).to_le_bytes() == stored,
        };
        if matches { Ok(covered) } else { Err("its checksum does not match its content".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fletcher32_is_that_of_numcodecs() {
        // numcodecs.Fletcher32().encode(...)[-4:] of bytes 0, 1, 2, ...
        for (bytes, expected) in [(5usize, 0x08090604), (6, 0x080E0609)] {
            let content: Vec<u8> = (0..bytes as u8).collect();
            assert_eq!(fletcher32(&content), expected);
            let encoded = [&content[..], &expected.to_le_bytes()].concat();
            assert_eq!(decode_fletcher32(&encoded).unwrap(), content);
            assert!(decode_fletcher32(&encoded[1..]).is_err());
        }
        assert!(decode_fletcher32(&[1, 2, 3]).unwrap_err().contains("too few"));
    }
}
