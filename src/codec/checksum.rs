//! Checksums beside encoded bytes: `crc32c`, and numcodecs' `adler32` and `fletcher32`.
//!
//! Where they are the outermost codec they are verified on the host, before the GPU gets the bytes; below a compression
//! the GPU verifies them.

use super::work::Checksum;

use std::ops::Range;

use zarrs::array::codec::api::BytesToBytesCodecTraits;
use zarrs::array::{BytesRepresentation, CodecMetadataOptions, CodecOptions};

/// Size of each of them.
pub const BYTES: u64 = 4;

/// One checksum codec of a chain.
#[derive(Clone, Debug)]
pub struct ChecksumCodec {
    /// Which.
    pub checksum: Checksum,
    /// It stands before the bytes instead of behind them.
    pub at_start: bool,
    codec: std::sync::Arc<dyn BytesToBytesCodecTraits>,
}

impl ChecksumCodec {
    /// The codec of that name, if it is one of these.
    pub fn new(name: &str, codec: &std::sync::Arc<dyn BytesToBytesCodecTraits>) -> Option<Self> {
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
        Some(Self { checksum, at_start, codec: codec.clone() })
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
            _ => self
                .codec
                .decode(encoded.into(), &BytesRepresentation::UnboundedSize, &CodecOptions::default())
                .is_ok(),
        };
        if matches { Ok(covered) } else { Err("its checksum does not match its content".into()) }
    }
}

impl PartialEq for ChecksumCodec {
    fn eq(&self, other: &Self) -> bool {
        (self.checksum, self.at_start) == (other.checksum, other.at_start)
    }
}

impl Eq for ChecksumCodec {}
