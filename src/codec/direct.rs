//! Decodes usual codec chains on the CPU straight to where the elements belong.
//!
//! zarrs returns fresh memory for each codec of a chain, whose pages the system has to provide each time; here the last step
//! writes to its destination. What is not done here, and what fails here, is zarrs' part, so that errors are its own.

use super::{Compression, GpuChain, blosc, lz4, zlib, zstd};

use std::io::Read;

use ::zstd::bulk::Decompressor;

/// What a thread keeps for decoding.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<Decompressor<'static>>,
}

impl GpuChain {
    /// Whether [`GpuChain::decode_into`] can do it, if the chunk is usual.
    pub fn is_direct(&self) -> bool {
        self.inner.is_empty() && self.delta_element_bytes.is_none() && !self.swaps_bytes
    }

    /// Decodes to native elements. False if it was not done; what is in `into` is of no meaning then.
    pub fn decode_into(&self, encoded: &[u8], into: &mut [u8], unpacker: &mut Unpacker) -> bool {
        if !self.is_direct() {
            return false;
        }
        let mut part = encoded;
        for checksum in &self.outer {
            match checksum.verify(part) {
                Ok(rest) => part = rest,
                Err(_) => return false,
            }
        }
        self.unpack(part, into, unpacker).is_some()
    }

    fn unpack(&self, encoded: &[u8], into: &mut [u8], unpacker: &mut Unpacker) -> Option<()> {
        let bytes = into.len() as u64;
        match self.compression {
            None => (encoded.len() == into.len()).then(|| into.copy_from_slice(encoded)),
            Some(Compression::Zstd) => {
                zstd::check_size(encoded, bytes..=bytes).ok()?;
                if unpacker.zstd.is_none() {
                    unpacker.zstd = Decompressor::new().ok();
                }
                let decoder = unpacker.zstd.as_mut()?;
                (decoder.decompress_to_buffer(encoded, into).ok()? == into.len()).then_some(())
            }
            Some(Compression::Blosc { .. }) => {
                blosc::check_size(encoded, bytes..=bytes).ok()?;
                // SAFETY: both pointers are those of slices with these lengths, and the header was compared with them.
                let written = unsafe {
                    let mut declared = 0;
                    let valid = blosc_src::blosc_cbuffer_validate(
                        encoded.as_ptr().cast(),
                        encoded.len(),
                        &raw mut declared,
                    );
                    if valid != 0 || declared != into.len() {
                        return None;
                    }
                    blosc_src::blosc_decompress_ctx(
                        encoded.as_ptr().cast(),
                        into.as_mut_ptr().cast(),
                        into.len(),
                        1,
                    )
                };
                (usize::try_from(written) == Ok(into.len())).then_some(())
            }
            Some(Compression::Gzip) => {
                let mut rest = encoded;
                fill(flate2::bufread::MultiGzDecoder::new(&mut rest), into)?;
                zlib::nothing_behind(rest, "gzip").ok()
            }
            Some(Compression::Zlib) => {
                let mut rest = encoded;
                fill(flate2::bufread::ZlibDecoder::new(&mut rest), into)?;
                zlib::nothing_behind(rest, "zlib").ok()
            }
            Some(Compression::Lz4) => {
                let block = lz4::block(encoded, bytes).ok()?;
                (lz4_flex::block::decompress_into(block, into).ok()? == into.len()).then_some(())
            }
            Some(Compression::Snappy) => {
                // As large as it declares; a decoder that finds less room says so.
                let written = snap::raw::Decoder::new().decompress(encoded, into).ok()?;
                (written == into.len()).then_some(())
            }
        }
    }
}

/// Reads exactly what there is to read.
fn fill(mut decoder: impl Read, into: &mut [u8]) -> Option<()> {
    decoder.read_exact(into).ok()?;
    // Reads on to the end of the stream, where the decoder compares the checksum.
    (decoder.read(&mut [0]).ok()? == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn chain(compression: Option<Compression>) -> GpuChain {
        GpuChain {
            outer: vec![],
            compression,
            inner: vec![],
            delta_element_bytes: None,
            swaps_bytes: false,
            decoded_bytes: 0,
        }
    }

    fn blosc(content: &[u8], name: &std::ffi::CStr) -> Vec<u8> {
        let mut encoded = vec![0; content.len() + 16];
        // SAFETY: both pointers are those of slices with these lengths; the name ends with a zero byte.
        let bytes = unsafe {
            blosc_src::blosc_compress_ctx(
                5,
                1,
                4,
                content.len(),
                content.as_ptr().cast(),
                encoded.as_mut_ptr().cast(),
                encoded.len(),
                name.as_ptr(),
                0,
                1,
            )
        };
        encoded.truncate(usize::try_from(bytes).unwrap());
        encoded
    }

    fn encoded(content: &[u8]) -> Vec<(Option<Compression>, Vec<u8>)> {
        let level = flate2::Compression::default();
        let mut gzip = flate2::write::GzEncoder::new(vec![], level);
        gzip.write_all(content).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(vec![], level);
        zlib.write_all(content).unwrap();
        vec![
            (None, content.to_vec()),
            (Some(Compression::Zstd), ::zstd::bulk::compress(content, 3).unwrap()),
            (Some(Compression::Blosc { zstd: false }), blosc(content, c"lz4")),
            (Some(Compression::Blosc { zstd: true }), blosc(content, c"zstd")),
            (Some(Compression::Gzip), gzip.finish().unwrap()),
            (Some(Compression::Zlib), zlib.finish().unwrap()),
            (Some(Compression::Lz4), lz4_flex::block::compress_prepend_size(content)),
            (Some(Compression::Snappy), snap::raw::Encoder::new().compress_vec(content).unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn what_an_encoder_makes_is_decoded_and_nothing_shorter_or_longer(
            content in prop::collection::vec(0u8..9, 1..3000),
            repeats in 1usize..20,
            cut in 1usize..40,
        ) {
            let content = content.repeat(repeats);
            let mut unpacker = Unpacker::default();
            for (compression, bytes) in encoded(&content) {
                let chain = chain(compression);
                let mut into = vec![1; content.len()];
                prop_assert!(chain.decode_into(&bytes, &mut into, &mut unpacker), "{:?}", compression);
                prop_assert_eq!(&into, &content);
                // Cut off, with something behind it, or for chunks of other sizes: that is left to zarrs.
                let shorter = &bytes[..bytes.len() - cut.min(bytes.len())];
                prop_assert!(!chain.decode_into(shorter, &mut into, &mut unpacker), "{:?}", compression);
                let longer = [&bytes[..], &[7; 3]].concat();
                prop_assert!(!chain.decode_into(&longer, &mut into, &mut unpacker), "{:?}", compression);
                for other in [content.len() - 1, content.len() + 1] {
                    let mut into = vec![1; other];
                    prop_assert!(!chain.decode_into(&bytes, &mut into, &mut unpacker), "{:?}", compression);
                }
            }
        }
    }
}
