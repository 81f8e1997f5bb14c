//! Codec chains: which of them the GPU decodes, and with what. One file per codec. Most of the same chains the CPU decodes by decoders that are
//! called directly (`direct`), and what is left through zarrs. A codec to follow from file to file: `grep -rl snappy src tests python`.
//!
//! A compression that zarrs lacks gets a file and a `mod` here, a line of `byte_codec!` in `read_only`, a place in `CODECS` of `dataset/codecs.rs`, defaults in
//! `dataset/codec_defaults.rs`, a crate in `Cargo.toml`; one that zarrs has, a line in `guarded`. For the GPU also: variants of `Compression` (matches in
//! `compression` and `direct`; `most` and `is_sequential` here) and of `work::Decoder`, `decode_streams` in `decode/group/plan.rs` (tests in `decode/group/mod.rs`), a kernel in `src/kernels/`, a
//! variant of `StreamKernel` and its statuses in `gpu/kernels.rs`. And `docs/formats.md`, `cpp_shim/schema.cc` (then `docs/generate.py`), `python/zarr_dali/_profile/findings.py`, chains of the tests.

pub mod blosc;
mod bz2;
mod checksum;
mod compression;
mod cpu;
mod delta;
mod direct;
mod guarded;
mod gzip;
pub mod headers;
mod lz4;
mod pcodec;
mod read_only;
mod shuffle;
mod snappy;
pub mod work;
mod zlib;
pub mod zstd;

pub use compression::{Compression, HeaderFormat};
pub use cpu::decode_on_cpu;
pub use direct::Unpacker;
pub use guarded::register;
pub use read_only::lenient_bound;
pub use work::{Verdict, Work};

use crate::dataset::ArrayInfo;
use checksum::ChecksumCodec;
use work::{Expected, Pass};

use std::borrow::Cow;
use std::ops::Range;

use zarrs::array::CodecMetadataOptions;
use zarrs::plugin::ExtensionName;

/// How the read chunks of an array become decoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodePath {
    /// On the GPU.
    Gpu(GpuChain),
    /// On the CPU by zarrs, then copied where a GPU wants them; with the reason.
    Cpu(String),
}

/// A codec chain that the GPU can decode.
///
/// In the order of decoding: checksums that the host verifies, at most one compression, what was done to the bytes
/// before it, the byte order, and differences of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuChain {
    outer: Vec<ChecksumCodec>,
    compression: Option<Compression>,
    inner: Vec<Inner>,
    delta_element_bytes: Option<u32>,
    swaps_bytes: bool,
    /// Size of a decoded read chunk.
    decoded_bytes: u64,
}

/// A bytes-to-bytes codec below a compression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Inner {
    Checksum(ChecksumCodec),
    Shuffle { element_bytes: u32 },
}

/// Chooses the decode path of an array's read chunks from its codec chain.
pub fn decode_path(array: &ArrayInfo) -> DecodePath {
    match GpuChain::new(array) {
        Ok(chain) => DecodePath::Gpu(chain),
        Err(reason) => DecodePath::Cpu(reason),
    }
}

/// An encoded read chunk on its way to the GPU.
#[derive(Debug)]
pub enum Prepared {
    /// The part of the encoded bytes that the GPU needs, and what it does with it.
    Gpu(Range<usize>, Work),
    /// The CPU has to decode it, for this reason.
    Cpu(&'static str),
}

impl GpuChain {
    /// Largest read chunk: offsets on the GPU have 32 bits, sizes for nvCOMP 31.
    pub const MAX_CHUNK_BYTES: u64 = zstd::MAX_GPU_CHUNK_BYTES;

    fn new(array: &ArrayInfo) -> Result<Self, String> {
        let chain = &array.codec.chain;
        let refused = |name: Option<Cow<'static, str>>| {
            format!("codec \"{}\" is decoded on the CPU", name.unwrap_or(Cow::Borrowed("unknown")))
        };
        let serializer = chain.array_to_bytes_codec();
        if serializer.name_v3().as_deref() != Some("bytes") {
            return Err(refused(serializer.name_v3()));
        }
        let swaps_bytes = serializer
            .configuration_v3(&CodecMetadataOptions::default())
            .and_then(|configuration| configuration.get("endian").and_then(|e| e.as_str()).map(str::to_owned))
            .is_some_and(|endian| endian != if cfg!(target_endian = "big") { "big" } else { "little" })
            && array.stored.size_bytes() > 1;
        let delta_element_bytes = match chain.array_to_array_codecs() {
            [] => None,
            [codec] if !swaps_bytes => match delta::DeltaCodec::gpu_element_bytes(&**codec) {
                None => return Err(refused(codec.name_v3())),
                bytes => bytes,
            },
            [codec, ..] => return Err(refused(codec.name_v3())),
        };
        let mut result = Self {
            outer: vec![],
            compression: None,
            inner: vec![],
            delta_element_bytes,
            swaps_bytes,
            decoded_bytes: array.read_chunk_bytes(),
        };
        for codec in chain.bytes_to_bytes_codecs().iter().rev() {
            let name = codec.name_v3();
            let before = result.compression.is_none() && result.inner.is_empty();
            let known = name.as_deref().unwrap_or_default();
            if let Some(checksum) = ChecksumCodec::new(known, &**codec) {
                if before {
                    result.outer.push(checksum);
                } else {
                    result.inner.push(Inner::Checksum(checksum));
                }
            } else if let Some(element_bytes) = shuffle::element_bytes(known, &**codec) {
                result.inner.push(Inner::Shuffle { element_bytes });
            } else if let (true, Some(compression)) = (before, Compression::new(known, &**codec)) {
                result.compression = Some(compression);
            } else {
                return Err(refused(name));
            }
        }
        if result.decoded_bytes > Self::MAX_CHUNK_BYTES {
            return Err(format!(
                "its read chunks decode to {} bytes, and the GPU takes at most {}",
                result.decoded_bytes,
                Self::MAX_CHUNK_BYTES
            ));
        }
        Ok(result)
    }

    /// Whether the host has to see all encoded bytes of a chunk before the GPU does.
    pub fn is_verified_by_host(&self) -> bool {
        !self.outer.is_empty()
    }

    /// Where the headers are that [`GpuChain::prepare`] reads; `None` if it reads all of an encoded chunk, or may.
    pub fn headers(&self) -> Option<HeaderFormat> {
        self.compression.filter(|_| !self.is_verified_by_host()).and_then(Compression::headers)
    }

    /// Size of what the compression decodes to: the elements with the checksums below it.
    pub fn area_bytes(&self) -> u64 {
        let checksums = self.inner.iter().filter(|inner| matches!(inner, Inner::Checksum(_))).count();
        self.decoded_bytes + checksums as u64 * checksum::BYTES
    }

    /// Whether nothing happens to the bytes of a chunk: they are its elements.
    pub fn is_copy(&self) -> bool {
        self.compression.is_none()
            && self.outer.is_empty()
            && self.inner.is_empty()
            && self.delta_element_bytes.is_none()
            && !self.swaps_bytes
    }

    /// Whether there may be zstd frames.
    pub fn has_zstd(&self) -> bool {
        matches!(self.compression, Some(Compression::Zstd | Compression::Blosc { zstd: true }))
    }

    /// The most bytes that an encoded chunk has which goes to the GPU.
    pub fn encoded_bound(&self) -> u64 {
        let area = self.area_bytes();
        let compressed = self.compression.map_or(area, |compression| compression.encoded_bound(area));
        compressed + self.outer.len() as u64 * checksum::BYTES
    }

    /// What the GPU needs at most for a chunk, for budgets.
    pub fn most(&self) -> Most {
        let area = self.area_bytes();
        let shuffles =
            self.inner.iter().filter(|inner| matches!(inner, Inner::Shuffle { .. })).count() as u64;
        let (streams, containers) = match self.compression {
            None => (0, 0),
            Some(Compression::Blosc { .. }) => (blosc::max_gpu_streams(area), 1),
            Some(_) => (1, 0),
        };
        Most {
            encoded_bytes: if self.compression.is_some() { self.encoded_bound() } else { 0 },
            area_bytes: area,
            areas: 1 + shuffles + containers,
            streams,
            // Encoders make blocks of 128 KiB, or of as much as there is, and split them a few times.
            zstd_blocks: if self.has_zstd() { 64 + area / 2048 } else { 0 },
        }
    }

    /// Checks an encoded chunk and says what the GPU has to do.
    ///
    /// # Errors
    /// What cannot be right about the bytes, in words.
    pub fn prepare(&self, encoded: &[u8]) -> Result<Prepared, String> {
        let mut part = encoded;
        for checksum in &self.outer {
            part = checksum.verify(part)?;
        }
        let mut work = Work { swaps_bytes: self.swaps_bytes, bytes: self.area_bytes(), ..Work::default() };
        match self.compression {
            None if part.len() as u64 == work.bytes => {}
            None => {
                let problem =
                    format!("the uncompressed chunk has {} bytes instead of {}", part.len(), work.bytes);
                return Err(problem);
            }
            Some(compression) => {
                if part.len() as u64 > compression.encoded_bound(work.bytes) {
                    return Ok(Prepared::Cpu("its chunks are longer than their codec makes them"));
                }
                if let Verdict::Cpu(reason) = compression.work(part, work.bytes, &mut work)? {
                    return Ok(Prepared::Cpu(reason));
                }
                let is_zstd = |stream: &work::Stream| matches!(stream.decoder, work::Decoder::Zstd(_));
                if !self.has_zstd() && work.streams.iter().any(is_zstd) {
                    return Ok(Prepared::Cpu("its Blosc chunks hold zstd, which its metadata do not say"));
                }
                if work.zstd_blocks() > self.most().zstd_blocks {
                    return Ok(Prepared::Cpu("its zstd frames have very small blocks"));
                }
            }
        }
        self.finish(&mut work);
        let start = part.as_ptr() as usize - encoded.as_ptr() as usize;
        Ok(Prepared::Gpu(start..start + part.len(), work))
    }

    /// What the GPU has to do where nothing in the encoded bytes has to be looked at for it: there is no compression, and
    /// no checksum that the host verifies.
    pub fn uncompressed(&self) -> Option<Work> {
        if self.compression.is_some() || !self.outer.is_empty() {
            return None;
        }
        let mut work = Work { swaps_bytes: self.swaps_bytes, bytes: self.area_bytes(), ..Work::default() };
        self.finish(&mut work);
        Some(work)
    }

    /// Adds what follows the compression.
    fn finish(&self, work: &mut Work) {
        let mut range = 0..work.bytes;
        for inner in &self.inner {
            match inner {
                Inner::Shuffle { element_bytes } => {
                    let bytes = range.end - range.start;
                    work.passes.push(shuffle::pass(*element_bytes, range));
                    range = 0..bytes;
                }
                Inner::Checksum(codec) => {
                    let bytes = range.end - range.start;
                    let covered = codec.covered(bytes);
                    let at = if codec.at_start { range.start } else { range.end - checksum::BYTES };
                    let (start, end) = (range.start + covered.start, range.start + covered.end);
                    let expected = Expected::At(at);
                    work.passes.push(Pass::Check { checksum: codec.checksum, start, end, expected });
                    range = start..end;
                }
            }
        }
        work.elements = range;
        if let Some(element_bytes) = self.delta_element_bytes {
            work.passes.push(Pass::UndoDelta { element_bytes });
        }
    }
}

/// What the GPU needs at most for a chunk of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Encoded bytes that are kept on the GPU while they are decoded.
    pub encoded_bytes: u64,
    /// Size of an area.
    pub area_bytes: u64,
    /// How many areas.
    pub areas: u64,
    /// How many streams.
    pub streams: u64,
    /// How many blocks its zstd frames have; none if there are no such frames.
    pub zstd_blocks: u64,
}

impl DecodePath {
    /// Whether there may be zstd frames.
    pub fn has_zstd(&self) -> bool {
        matches!(self, Self::Gpu(chain) if chain.has_zstd())
    }

    /// Whether the GPU decodes a chunk in one sequential walk. `by_nvcomp`: nvCOMP decodes zstd.
    pub fn is_sequential(&self, by_nvcomp: bool) -> bool {
        match self {
            Self::Gpu(GpuChain { compression, .. }) => match compression {
                None | Some(Compression::Blosc { zstd: false }) => false,
                Some(Compression::Zstd | Compression::Blosc { zstd: true }) => by_nvcomp,
                Some(_) => true,
            },
            Self::Cpu(_) => false,
        }
    }
}

impl std::fmt::Display for DecodePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(GpuChain { compression: None, .. }) => f.write_str("uncompressed, on the GPU"),
            Self::Gpu(GpuChain { compression: Some(compression), .. }) => {
                write!(f, "{} on the GPU", compression.name())
            }
            Self::Cpu(reason) => write!(f, "on the CPU: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use work::Checksum;

    const CRC: ChecksumCodec = ChecksumCodec { checksum: Checksum::Crc32c, at_start: false };

    /// Chunks of 4092 bytes with a checksum and shuffled, and with two checksums around the compression.
    fn chain(compression: Option<Compression>) -> GpuChain {
        GpuChain {
            outer: vec![CRC; 2],
            compression,
            inner: vec![Inner::Checksum(CRC), Inner::Shuffle { element_bytes: 4 }],
            delta_element_bytes: None,
            swaps_bytes: false,
            decoded_bytes: 4092,
        }
    }

    #[test]
    fn what_a_chunk_needs_at_most_counts_each_of_its_codecs() {
        let plain = chain(None);
        assert_eq!(plain.encoded_bound(), 4096 + 8);
        let Most { encoded_bytes, area_bytes, areas, streams, zstd_blocks } = plain.most();
        assert_eq!((encoded_bytes, area_bytes, areas, streams, zstd_blocks), (0, 4096, 2, 0, 0));
        for (compression, bound, areas, streams, zstd_blocks) in [
            (Compression::Zstd, zstd::encoded_bound(4096), 2, 1, 66),
            (Compression::Blosc { zstd: true }, 4096 + 16, 3, 72, 66),
            (Compression::Blosc { zstd: false }, 4096 + 16, 3, 72, 0),
            // As zlib's deflateBound, and for gzip's longer frame.
            (Compression::Gzip, 4096 + 512 + 64 + 64, 2, 1, 0),
            (Compression::Zlib, 4096 + 512 + 64 + 64, 2, 1, 0),
            (Compression::Lz4, lz4::encoded_bound(4096), 2, 1, 0),
            (Compression::Snappy, snappy::encoded_bound(4096), 2, 1, 0),
        ] {
            let chain = chain(Some(compression));
            let most = chain.most();
            assert_eq!(
                (chain.encoded_bound(), most.encoded_bytes),
                (bound + 8, bound + 8),
                "{compression:?}"
            );
            assert_eq!(
                (most.areas, most.streams, most.zstd_blocks),
                (areas, streams, zstd_blocks),
                "{compression:?}"
            );
            assert_eq!(chain.has_zstd(), zstd_blocks > 0, "{compression:?}");
        }
    }

    #[test]
    fn bytes_are_copied_only_where_no_codec_changes_them() {
        let copy = GpuChain { outer: vec![], inner: vec![], ..chain(None) };
        assert!(copy.is_copy() && !copy.is_verified_by_host());
        for other in [
            GpuChain { outer: vec![CRC], ..copy.clone() },
            GpuChain { compression: Some(Compression::Lz4), ..copy.clone() },
            GpuChain { inner: vec![Inner::Shuffle { element_bytes: 2 }], ..copy.clone() },
            GpuChain { delta_element_bytes: Some(4), ..copy.clone() },
            GpuChain { swaps_bytes: true, ..copy.clone() },
        ] {
            assert!(!other.is_copy(), "{other:?}");
            let needs_look = !other.outer.is_empty() || other.compression.is_some();
            assert_eq!(other.uncompressed().is_none(), needs_look, "{other:?}");
        }
        assert_eq!(copy.uncompressed(), Some(Work::none(4092)));
    }

    #[test]
    fn zstd_frames_of_many_blocks_are_left_to_the_cpu() {
        let zstd =
            GpuChain { outer: vec![], inner: vec![], decoded_bytes: 4096, ..chain(Some(Compression::Zstd)) };
        let content: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
        let usual = ::zstd::bulk::compress(&content, 3).unwrap();
        assert!(matches!(zstd.prepare(&usual), Ok(Prepared::Gpu(..))));
        let mut encoder = ::zstd::Encoder::new(vec![], 3).unwrap();
        let (flushed, rest) = content.split_at(80);
        for byte in flushed.chunks(1) {
            encoder.write_all(byte).unwrap();
            encoder.flush().unwrap();
        }
        encoder.write_all(rest).unwrap();
        let reason = match zstd.prepare(&encoder.finish().unwrap()) {
            Ok(Prepared::Cpu(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason, "its zstd frames have very small blocks");
    }

    #[test]
    fn uncompressed_chunks_have_the_size_of_their_content() {
        let plain = GpuChain { outer: vec![], ..chain(None) };
        let Ok(Prepared::Gpu(range, work)) = plain.prepare(&[0; 4096]) else { panic!("not prepared") };
        assert_eq!((range, Some(&work)), (0..4096, plain.uncompressed().as_ref()));
        let (checksum, expected) = (Checksum::Crc32c, Expected::At(4092));
        let check = Pass::Check { checksum, start: 0, end: 4092, expected };
        assert_eq!(work.passes, [check, shuffle::pass(4, 0..4092)]);
        assert_eq!((work.bytes, work.elements), (4096, 0..4092));
        for bytes in [4092, 4095, 4097] {
            let problem = plain.prepare(&vec![0; bytes]).unwrap_err();
            assert!(problem.contains(&format!("has {bytes} bytes instead of 4096")), "{problem}");
        }
    }
}
