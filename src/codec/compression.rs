//! The compressions that the GPU decodes.

use super::work::{Verdict, Work};
use super::{blosc, gzip, lz4, snappy, zlib, zstd};

use zarrs::array::CodecMetadataOptions;
use zarrs::array::codec::api::BytesToBytesCodecTraits;

/// Where in a chunk the headers are that [`GpuChain::prepare`](super::GpuChain::prepare) reads: what `headers.rs` copies of a
/// chunk that passes in pieces, and `src/kernels/headers.cuh` of one that was read straight to the GPU.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFormat {
    /// At its beginning and end.
    Ends = 0,
    /// In a zstd frame: also those of its blocks.
    Zstd = 1,
    /// In a Blosc container: also those of its streams.
    Blosc = 2,
}

/// A compression that the GPU can decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// One Zstandard frame.
    Zstd,
    /// A Blosc container.
    Blosc {
        /// Whether the metadata says that zstd is inside.
        zstd: bool,
    },
    /// One gzip member.
    Gzip,
    /// One zlib stream.
    Zlib,
    /// numcodecs' LZ4.
    Lz4,
    /// Snappy's raw format.
    Snappy,
}

impl Compression {
    pub(super) fn new(name: &str, codec: &dyn BytesToBytesCodecTraits) -> Option<Self> {
        let zstd_inside = || {
            let configuration = codec.configuration_v3(&CodecMetadataOptions::default());
            configuration.is_some_and(|c| c.get("cname").and_then(|name| name.as_str()) == Some("zstd"))
        };
        Some(match name {
            "zstd" => Self::Zstd,
            "blosc" => Self::Blosc { zstd: zstd_inside() },
            "gzip" => Self::Gzip,
            "numcodecs.zlib" => Self::Zlib,
            "numcodecs.lz4" => Self::Lz4,
            "snappy" => Self::Snappy,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Blosc { zstd: false } => "blosc",
            Self::Blosc { zstd: true } => "blosc with zstd",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
        }
    }

    /// Where its headers are; `None`: a header may be of any length.
    pub(super) fn headers(self) -> Option<HeaderFormat> {
        match self {
            Self::Zstd => Some(HeaderFormat::Zstd),
            Self::Blosc { .. } => Some(HeaderFormat::Blosc),
            Self::Zlib | Self::Lz4 | Self::Snappy => Some(HeaderFormat::Ends),
            Self::Gzip => None,
        }
    }

    /// The most bytes that an encoder makes of `decoded` bytes; what is longer is left to the CPU.
    pub(super) fn encoded_bound(self, decoded: u64) -> u64 {
        match self {
            Self::Zstd => zstd::encoded_bound(decoded),
            Self::Blosc { .. } => blosc::encoded_bound(decoded),
            // What zlib promises for its lowest memory level, with the longer of the two frames.
            Self::Gzip | Self::Zlib => decoded + decoded.div_ceil(8) + decoded.div_ceil(64) + 64,
            Self::Lz4 => lz4::encoded_bound(decoded),
            Self::Snappy => snappy::encoded_bound(decoded),
        }
    }

    pub(super) fn work(self, encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
        match self {
            Self::Zstd => work.add_zstd_frame(encoded, 0, 0..decoded),
            Self::Blosc { .. } => blosc::work(encoded, decoded, work),
            Self::Gzip => gzip::work(encoded, decoded, work),
            Self::Zlib => zlib::work(encoded, decoded, work),
            Self::Lz4 => lz4::work(encoded, decoded, work),
            Self::Snappy => snappy::work(encoded, decoded, work),
        }
    }
}
